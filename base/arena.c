#include "base/arena.h"

#include "base/mem.h"

#include <stdint.h>
#include <string.h>

#define MIN_BLOCK_BYTES  ((size_t)64 << 10)
#define MAX_GROWTH_BYTES ((size_t)64 << 20) /* a larger block is made only for a larger request */

struct bd_arena_block {
    bd_arena_block *next;
    size_t cap_bytes;
    size_t used_bytes;
    _Alignas(BD_CACHE_LINE_BYTES) uint8_t bytes[];
};

void bd_arena_init(bd_arena *a)
{
    *a = (bd_arena){0};
}

static void free_list(bd_arena_block *b)
{
    while (b != NULL) {
        bd_arena_block *next = b->next;
        bd_free(b);
        b = next;
    }
}

void bd_arena_deinit(bd_arena *a)
{
    free_list(a->blocks);
    free_list(a->spare);
    *a = (bd_arena){0};
}

void bd_arena_reset(bd_arena *a)
{
    while (a->blocks != NULL) {
        bd_arena_block *b = a->blocks;
        a->blocks = b->next;
        b->used_bytes = 0;
        b->next = a->spare;
        a->spare = b;
    }
    a->used_bytes = 0;
}

/* First spare block that is large enough, else a new one twice the last, up to a bound. */
static bd_arena_block *next_block(bd_arena *a, size_t n_bytes)
{
    for (bd_arena_block **link = &a->spare; *link != NULL; link = &(*link)->next) {
        if ((*link)->cap_bytes >= n_bytes) {
            bd_arena_block *b = *link;
            *link = b->next;
            return b;
        }
    }
    size_t cap = a->blocks != NULL ? a->blocks->cap_bytes * 2 : MIN_BLOCK_BYTES;
    if (cap > MAX_GROWTH_BYTES) {
        cap = MAX_GROWTH_BYTES;
    }
    if (cap < n_bytes) {
        cap = n_bytes;
    }
    size_t total;
    if (!bd_add_size(cap, sizeof(bd_arena_block), &total)) {
        return NULL;
    }
    bd_arena_block *b = bd_alloc_aligned(BD_CACHE_LINE_BYTES, total);
    if (b != NULL) {
        b->cap_bytes = cap;
        b->used_bytes = 0;
    }
    return b;
}

void *bd_arena_alloc(bd_arena *a, size_t n_bytes)
{
    size_t rounded;
    if (!bd_add_size(n_bytes, BD_CACHE_LINE_BYTES - 1, &rounded)) {
        return NULL;
    }
    rounded &= ~(size_t)(BD_CACHE_LINE_BYTES - 1);
    if (rounded == 0) {
        rounded = BD_CACHE_LINE_BYTES;
    }
    bd_arena_block *b = a->blocks;
    if (b == NULL || b->cap_bytes - b->used_bytes < rounded) {
        b = next_block(a, rounded);
        if (b == NULL) {
            return NULL;
        }
        b->next = a->blocks;
        a->blocks = b;
    }
    void *p = b->bytes + b->used_bytes;
    b->used_bytes += rounded;
    a->used_bytes += rounded;
    return p;
}

void *bd_arena_calloc(bd_arena *a, size_t n, size_t size_bytes)
{
    size_t total;
    void *p = bd_mul_size(n, size_bytes, &total) ? bd_arena_alloc(a, total) : NULL;
    return p == NULL ? NULL : memset(p, 0, total);
}

char *bd_arena_strdup(bd_arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = bd_arena_alloc(a, n);
    return p == NULL ? NULL : memcpy(p, s, n);
}
