#include "base/pages.h"

#include "base/assert.h"
#include "base/fault.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define N_PAGES   (BD_HUGE_PAGE_BYTES / BD_PAGE_BYTES)
#define N_WORDS   (N_PAGES / 64)
#define MAX_TRIES 16 /* chunks looked at for one piece */

/* The first page of every chunk. Chunks with a free page are in the list of open ones. */
typedef struct chunk {
    struct chunk *prev, *next;
    size_t n_free;          /* pages */
    uint64_t used[N_WORDS]; /* a bit a page */
} chunk;
_Static_assert(sizeof(chunk) <= BD_PAGE_BYTES, "a chunk's head is one page");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static chunk *first_open, *last_open; /* under lock */
static _Atomic size_t mapped_bytes;

size_t bd_pages_mapped_bytes(void)
{
    return atomic_load_explicit(&mapped_bytes, memory_order_relaxed);
}

static size_t pages_of(size_t n_bytes)
{
    return n_bytes / BD_PAGE_BYTES + (n_bytes % BD_PAGE_BYTES != 0);
}

/* n_bytes (whole pages) at an address that is a multiple of a huge page. */
static void *map(size_t n_bytes)
{
    size_t all;
    if (!bd_add_size(n_bytes, BD_HUGE_PAGE_BYTES, &all)) {
        return NULL;
    }
    uint8_t *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    size_t over = (uintptr_t)p % BD_HUGE_PAGE_BYTES;
    size_t before = over == 0 ? 0 : BD_HUGE_PAGE_BYTES - over;
    if (before != 0) {
        (void)munmap(p, before);
    }
    (void)munmap(p + before + n_bytes, all - before - n_bytes);
    (void)madvise(p + before, n_bytes, MADV_HUGEPAGE); /* an advice: without it, small pages */
    (void)atomic_fetch_add_explicit(&mapped_bytes, n_bytes, memory_order_relaxed);
    return p + before;
}

static void unmap(void *p, size_t n_bytes)
{
    (void)munmap(p, n_bytes);
    (void)atomic_fetch_sub_explicit(&mapped_bytes, n_bytes, memory_order_relaxed);
}

static void link_last(chunk *c)
{
    c->prev = last_open;
    c->next = NULL;
    if (last_open != NULL) {
        last_open->next = c;
    } else {
        first_open = c;
    }
    last_open = c;
}

static void unlink_open(chunk *c)
{
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        first_open = c->next;
    }
    if (c->next != NULL) {
        c->next->prev = c->prev;
    } else {
        last_open = c->prev;
    }
}

static chunk *chunk_new(void)
{
    chunk *c = map(BD_HUGE_PAGE_BYTES);
    if (c != NULL) {
        memset(c, 0, sizeof *c);
        c->used[0] = 1;
        c->n_free = N_PAGES - 1;
        link_last(c);
    }
    return c;
}

static bool is_used(const chunk *c, size_t page)
{
    return ((c->used[page / 64] >> (page % 64)) & 1) != 0;
}

/* The first page of n free ones in a row; 0: there are none. */
static size_t find_run(const chunk *c, size_t n)
{
    size_t run = 0;
    for (size_t page = 1; page < N_PAGES && c->n_free >= n; page++) {
        if (page % 64 == 0 && c->used[page / 64] == UINT64_MAX) {
            run = 0;
            page += 63;
            continue;
        }
        run = is_used(c, page) ? 0 : run + 1;
        if (run == n) {
            return page + 1 - n;
        }
    }
    return 0;
}

static void mark(chunk *c, size_t first, size_t n, bool used)
{
    for (size_t page = first; page < first + n; page++) {
        BD_ASSERT(is_used(c, page) != used);
        c->used[page / 64] ^= 1ull << (page % 64);
    }
    c->n_free = used ? c->n_free - n : c->n_free + n;
}

/* n pages of one chunk, under the lock. Chunks that had no room go behind the others. */
static void *take(size_t n)
{
    for (size_t tries = 0; tries <= MAX_TRIES; tries++) {
        chunk *c = tries == MAX_TRIES ? NULL : first_open;
        if (c == NULL) {
            c = chunk_new();
            tries = MAX_TRIES;
        }
        size_t page = c == NULL ? 0 : find_run(c, n);
        if (page != 0) {
            mark(c, page, n, true);
            if (c->n_free == 0) {
                unlink_open(c);
            }
            return (uint8_t *)c + page * BD_PAGE_BYTES;
        }
        if (c != NULL) {
            unlink_open(c);
            link_last(c);
        }
    }
    return NULL;
}

void *bd_pages_alloc(size_t n_bytes)
{
    void *p = NULL;
    size_t n = pages_of(n_bytes);
    BD_ASSERT(n > 0);
    if (bd_fault_alloc_fails()) {
        return NULL;
    }
    if (n >= N_PAGES) {
        p = map(n * BD_PAGE_BYTES);
    } else {
        (void)pthread_mutex_lock(&lock);
        p = take(n);
        (void)pthread_mutex_unlock(&lock);
    }
    bd_mem_count_blocks(p != NULL ? 1 : 0);
    return p;
}

void bd_pages_free(void *p, size_t n_bytes)
{
    size_t n = pages_of(n_bytes);
    if (p == NULL) {
        return;
    }
    bd_mem_count_blocks(-1);
    if (n >= N_PAGES) {
        unmap(p, n * BD_PAGE_BYTES);
        return;
    }
    size_t offset = (uintptr_t)p % BD_HUGE_PAGE_BYTES;
    chunk *c = (chunk *)(void *)((uint8_t *)p - offset);
    (void)pthread_mutex_lock(&lock);
    if (c->n_free == 0) {
        link_last(c);
    }
    mark(c, offset / BD_PAGE_BYTES, n, false);
    bool is_empty = c->n_free == N_PAGES - 1;
    if (is_empty) {
        unlink_open(c);
    }
    (void)pthread_mutex_unlock(&lock);
    if (is_empty) {
        unmap(c, BD_HUGE_PAGE_BYTES);
    }
}
