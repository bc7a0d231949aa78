/* worker/wk_net.h - the job's model with its tables: from a batch to scores.
 *
 * Layer:     worker; joins models (wk_model.h), rows (wk_sparse.h) and the tape.
 * Threads:   the training thread; wk_net_prepare from any one other thread as well.
 * Ownership: owns model and tape; job, data, sparse and device are borrowed.
 */
#ifndef WK_NET_H
#define WK_NET_H

#include "worker/data/wk_data.h"
#include "worker/wk_model.h"
#include "worker/wk_sparse.h"

typedef struct wk_net {
    const wk_job *job;
    const wk_data *data;
    wk_sparse *sparse;
    tp_device *dev;
    tp_tape *tape;                /* owned */
    wk_model *model;              /* owned */
    const wk_model_table *tables; /* the model's */
    size_t n_tables;
    uint32_t *table_ids; /* owned [n_tables] */
    const wk_model_param *params;
    size_t n_params;
    wk_model_rows *rows; /* owned [n_tables]: leaves of the forward in progress */
} wk_net;

/* Builds the model; sparse may be NULL (dry run without lookups). */
bd_status wk_net_init(wk_net *net, const wk_job *job, const wk_data *data, wk_sparse *sparse,
                      tp_device *dev, bd_err *err) BD_MUST_CHECK;
void wk_net_deinit(wk_net *net);
/* Creates the tables where the rows live, or finds equal ones there. */
bd_status wk_net_create_tables(wk_net *net, bd_err *err) BD_MUST_CHECK;

/* Distinct keys of a batch, table by table; to be fetched. Any thread. */
bd_status wk_net_prepare(const wk_net *net, const wk_batch *b, wk_lookup **out,
                         bd_err *err) BD_MUST_CHECK;
/* Resets the tape, wraps the rows that came (net->rows), runs the model. hook (may be NULL) is set
 * on every leaf of rows; hook_users[i] is its user pointer for table i. */
bd_status wk_net_forward(wk_net *net, const wk_batch *b, const wk_lookup *l,
                         const wk_model_mode *mode, tp_ready_fn hook, void *const *hook_users,
                         tp_tensor **logits, bd_err *err) BD_MUST_CHECK;
/* Scores of rows [first, first + n) of set as they are after_step; no gradients. */
bd_status wk_net_scores(wk_net *net, const wk_dataset *set, size_t first, size_t n,
                        uint64_t after_step, float *scores, bd_err *err) BD_MUST_CHECK;

/* Elements of all trained dense parameters. */
size_t wk_net_dense_elems(const wk_net *net);

#endif
