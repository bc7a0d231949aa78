/* worker/wk_batch.h - one rank's part of a global batch, as readers make it and models take it.
 *
 * Layer:     worker.
 * Ownership: a batch owns its arrays (one arena); it is filled by a reader thread, handed to the
 *            training thread whole, and given back for reuse.
 * Shapes:    n samples; dense is row-major [n x n_dense]; field f has ids [offsets[n]] of its bags:
 *            sample i owns ids [offsets[i], offsets[i+1]) (one-hot fields have exactly one each).
 */
#ifndef WK_BATCH_H
#define WK_BATCH_H

#include "base/arena.h"

#include <stddef.h>
#include <stdint.h>

typedef struct wk_field_ids {
    uint64_t *ids;     /* [n_ids] hashed tokens, any 64-bit number */
    uint32_t *offsets; /* [n + 1] */
    size_t n_ids;
} wk_field_ids;

typedef struct wk_batch {
    bd_arena arena;  /* owns every array below */
    size_t n;        /* samples of this rank; may be 0 */
    size_t n_global; /* valid samples of the step over all ranks, >= 1: gradients divide by it */
    uint64_t *sample_idx; /* [n] global sample index in the data set: keys dropout masks */
    float *labels;        /* [n] 0/1 for binary losses, the value for MSE */
    float *dense;         /* [n x n_dense] */
    size_t n_dense;
    wk_field_ids *fields; /* [n_fields] */
    size_t n_fields;
} wk_batch;

#endif
