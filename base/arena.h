/* base/arena.h - scratch memory that lives for one step: bump allocation, freed all at once.
 *
 * Layer:     base.
 * Threads:   one owner thread.
 * Ownership: blocks belong to the arena; pointers die at bd_arena_reset / deinit. Reset keeps the
 *            memory, so a steady loop allocates nothing from the heap.
 */
#ifndef BD_ARENA_H
#define BD_ARENA_H

#include <stddef.h>

typedef struct bd_arena_block bd_arena_block;
typedef struct bd_arena {
    bd_arena_block *blocks; /* owned; the current one first */
    bd_arena_block *spare;  /* owned; kept by reset */
    size_t used_bytes;      /* handed out since the last reset */
} bd_arena;

void bd_arena_init(bd_arena *a);
void bd_arena_deinit(bd_arena *a);
void bd_arena_reset(bd_arena *a);
/* 64-byte aligned, uninitialised; NULL when out of memory. */
void *bd_arena_alloc(bd_arena *a, size_t n_bytes);
/* n * size bytes, zeroed; NULL on overflow or out of memory. */
void *bd_arena_calloc(bd_arena *a, size_t n, size_t size_bytes);
char *bd_arena_strdup(bd_arena *a, const char *s);

#endif
