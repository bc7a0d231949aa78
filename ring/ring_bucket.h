/* ring/ring_bucket.h - which parameters share a bucket, and in which order.
 *
 * Layer:     ring (pure part).
 * Threads:   pure functions.
 * Ownership: a plan owns its arrays; ring_bucket_plan_deinit frees them (zeroed is valid).
 * Algorithm: DDP's compute_bucket_assignment_by_size. In the given order, each parameter joins the
 *            open bucket of its dtype. Limits are close-after thresholds: the bucket that reaches
 *            its limit with this parameter is closed, and the next bucket of that dtype has the
 *            next limit (the last one stays). Sparse parameters get a bucket of their own.
 * Left-over buckets follow in the order in which their dtype was first seen. Without an order, the
 *            buckets are sorted by their smallest parameter index.
 */
#ifndef RING_BUCKET_H
#define RING_BUCKET_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct ring_bucket_item {
    size_t n_bytes;
    int dtype; /* num_dtype */
    bool is_sparse;
} ring_bucket_item;

typedef struct ring_bucket_plan {
    size_t n_buckets;
    size_t *starts; /* owned, n_buckets + 1: bucket b is params[starts[b]] .. params[starts[b+1]] */
    size_t *params; /* owned: parameter indices, all buckets one after the other */
} ring_bucket_plan;

/* order: n parameter indices, each once, or NULL for 0 .. n-1 and sorting. n_limits >= 1.
 * BD_E_NOMEM, *out untouched. */
bd_status ring_bucket_assign(const ring_bucket_item *items, size_t n, const size_t *order,
                             const size_t *limits_bytes, size_t n_limits, ring_bucket_plan *out,
                             bd_err *err) BD_MUST_CHECK;
void ring_bucket_plan_deinit(ring_bucket_plan *p);

#endif
