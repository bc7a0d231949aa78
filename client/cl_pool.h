/* client/cl_pool.h - memory for looked-up rows that is used again, so that batches of megabytes do
 * not fault their pages in anew each time (an allocator gives blocks of that size back to the
 * kernel).
 *
 * Layer:     client, private.
 * Threads:   any; one lock for a few comparisons.
 * Ownership: a block belongs to whoever took it until it is given back. The pool is shared: the
 *            client and each lookup hold a reference.
 * Keeps:     at most CL_POOL_BLOCKS blocks; the smallest goes when there are more. Blocks below
 *            CL_POOL_MIN_BYTES are not kept.
 */
#ifndef CL_POOL_H
#define CL_POOL_H

#include <stddef.h>

#define CL_POOL_BLOCKS    8
#define CL_POOL_MIN_BYTES ((size_t)256 << 10)

typedef struct cl_pool cl_pool;

typedef struct cl_block {
    void *bytes; /* aligned to a cache line; uninitialised */
    size_t cap_bytes;
} cl_block;

cl_pool *cl_pool_new(void); /* NULL: no memory */
cl_pool *cl_pool_ref(cl_pool *p);
void cl_pool_unref(cl_pool *p); /* NULL is fine */
/* bytes NULL: no memory. A block of up to half as much again may come. */
cl_block cl_pool_take(cl_pool *p, size_t n_bytes);
/* A zeroed block is fine; *b is zeroed. */
void cl_pool_give(cl_pool *p, cl_block *b);

#endif
