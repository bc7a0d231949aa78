/* worker/data/wk_data.h - the job's data, parsed once into compact arrays.
 *
 * Layer:     worker/data.
 * Threads:   loaded on one thread; read-only afterwards, so any thread may make batches of it.
 * Ownership: wk_data owns all arrays; a batch copies what it needs.
 * Formats:   one file each, wk_read_<format>.c, listed in wk_data.c (wk_format.h is their
 * contract). Bad lines: counted and skipped up to data.max_bad_lines; one more ends the load with
 * the bad line's BD_E_DATA (file:line:column: reason).
 * Bags:      of a multi-valued field the first data.first_n ids of a row are kept, in every data set
 * alike, so that training, evaluation and predictions see the same ones.
 */
#ifndef WK_DATA_H
#define WK_DATA_H

#include "base/err.h"

#include "worker/wk_batch.h"
#include "worker/wk_job.h"

#include <stdbool.h>

/* Columns as a model sees them. */
typedef struct wk_shape {
    size_t n_dense;
    size_t n_fields;
    const char **field_names; /* [n_fields], owned by the reader */
    bool *field_multi;        /* [n_fields] bags of any length, empty ones too */
} wk_shape;

/* Ids of a multi-valued field. */
typedef struct wk_bags {
    uint64_t *ids;
    size_t n_ids, cap_ids;
    uint64_t *ends; /* [n rows] end of row i's ids; its start is the end of row i - 1 */
    size_t cap_ends;
} wk_bags;

typedef struct wk_dataset {
    size_t n; /* rows */
    float *labels;
    float *dense; /* [n x n_dense] */
    uint64_t
        *single; /* [n x n_single] one-hot fields, row by row: a row is one or two cache lines */
    size_t n_single;
    wk_bags *bags; /* [n_fields]; used for multi-valued fields only */
    size_t cap_labels, cap_dense, cap_single;
} wk_dataset;

struct wk_reader;

typedef struct wk_data {
    struct wk_reader *reader; /* owned; owns the shape */
    const wk_shape *shape;
    wk_dataset train, test;
    uint64_t n_lines, n_bad_lines;
    double seconds; /* what loading took */
} wk_data;

/* Reads data.train and data.test (or splits). No training row is BD_E_DATA. */
bd_status wk_data_load(const wk_job *job, wk_data *out, bd_err *err) BD_MUST_CHECK;
/* Reads one file, whole, into out->test: for predictions. */
bd_status wk_data_load_only(const wk_job *job, const char *path, wk_data *out,
                            bd_err *err) BD_MUST_CHECK;
void wk_data_free(wk_data *d);

/* Fills b with the rows rows[n] of d, in that order. b's arena is reset first. */
bd_status wk_data_batch(const wk_data *d, const wk_dataset *set, const uint32_t *rows, size_t n,
                        size_t n_global, wk_batch *b, bd_err *err) BD_MUST_CHECK;

#endif
