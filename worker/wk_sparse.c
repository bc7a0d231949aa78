/* The servers' side of wk_sparse: one call each into client/. */
#include "worker/wk_sparse.h"

#include "base/mem.h"

#include <float.h>

typedef struct remote {
    wk_sparse base;
    cl_client *client; /* borrowed */
} remote;

static cl_client *client_of(wk_sparse *s)
{
    return ((remote *)s)->client;
}

/* A wk_lookup of this home is a cl_rows. */
static cl_rows *rows_of(wk_lookup *l)
{
    return (cl_rows *)l;
}

static bd_status remote_table(wk_sparse *s, const cl_table_spec *spec, uint32_t *table_id,
                              bd_err *err)
{
    return cl_table_create(client_of(s), spec, table_id, err);
}

static bd_status remote_prepare(wk_sparse *s, const cl_ids *tables, size_t n, wk_lookup **out,
                                bd_err *err)
{
    cl_rows *rows = NULL;
    bd_status rc = cl_rows_prepare(client_of(s), tables, n, &rows, err);
    if (rc == BD_OK) {
        *out = (wk_lookup *)rows;
    }
    return rc;
}

static bd_status remote_fetch(wk_sparse *s, wk_lookup *l, uint64_t after_step, bd_err *err)
{
    (void)s;
    return cl_rows_fetch(rows_of(l), after_step, err);
}

static bd_status remote_wait(wk_sparse *s, wk_lookup *l, bd_err *err)
{
    (void)s;
    return cl_rows_wait(rows_of(l), err);
}

static const cl_table_rows *remote_rows(const wk_lookup *l, size_t i)
{
    return cl_rows_table((const cl_rows *)l, i);
}

static void remote_lookup_free(wk_lookup *l)
{
    if (l != NULL) {
        cl_rows_free(rows_of(l));
    }
}

/* On the wire 0 means "not set", so a rate of 0 travels as a number that rounds to it. */
static double wire_scale(double lr_scale)
{
    return lr_scale > 0 ? lr_scale : DBL_MIN;
}

static bd_status remote_push_begin(wk_sparse *s, uint64_t step, wk_lookup *l, double lr_scale,
                                   bd_err *err)
{
    cl_set_lr_scale(client_of(s), wire_scale(lr_scale));
    return cl_push_begin(client_of(s), step, rows_of(l), err);
}

static bd_status remote_push_table(wk_sparse *s, size_t table_idx, const float *grads, bd_err *err)
{
    return cl_push_table(client_of(s), table_idx, grads, err);
}

static bd_status remote_push_end(wk_sparse *s, bd_err *err)
{
    return cl_push_end(client_of(s), err);
}

static bd_status remote_push_wait(wk_sparse *s, bd_err *err)
{
    return cl_push_wait(client_of(s), err);
}

static bd_status remote_commit_start(wk_sparse *s, uint64_t step, bool commit, double lr_scale,
                                     bd_err *err)
{
    return cl_commit_start(client_of(s), step, commit, wire_scale(lr_scale), err);
}

static bd_status remote_commit_wait(wk_sparse *s, bd_err *err)
{
    return cl_commit_wait(client_of(s), err);
}

static bd_status remote_drop(wk_sparse *s, uint64_t abort_step, bd_err *err)
{
    return cl_push_drop(client_of(s), abort_step, err);
}

static bd_status remote_param_hash(wk_sparse *s, uint64_t *hash, uint64_t *n_rows, bd_err *err)
{
    return cl_param_hash(client_of(s), hash, n_rows, err);
}

static bd_status remote_checkpoint(wk_sparse *s, const char *name, uint64_t step, bd_err *err)
{
    return cl_checkpoint(client_of(s), name, step, err);
}

static bd_status remote_checkpoint_cut(wk_sparse *s, const char *name, uint64_t step, bd_err *err)
{
    return cl_checkpoint_cut(client_of(s), name, step, err);
}

static bd_status remote_checkpoint_poll(wk_sparse *s, const char *name, uint64_t step, bool wait,
                                        bool *done, bd_err *err)
{
    return cl_checkpoint_poll(client_of(s), name, step, wait, done, err);
}

static bd_status remote_checkpoint_delete(wk_sparse *s, const char *name, bd_err *err)
{
    return cl_checkpoint_delete(client_of(s), name, err);
}

static void remote_free(wk_sparse *s)
{
    bd_free(s);
}

static const wk_sparse_ops remote_ops = {
    .table = remote_table,
    .prepare = remote_prepare,
    .fetch = remote_fetch,
    .wait = remote_wait,
    .rows = remote_rows,
    .lookup_free = remote_lookup_free,
    .push_begin = remote_push_begin,
    .push_table = remote_push_table,
    .push_end = remote_push_end,
    .push_wait = remote_push_wait,
    .commit_start = remote_commit_start,
    .commit_wait = remote_commit_wait,
    .drop = remote_drop,
    .param_hash = remote_param_hash,
    .checkpoint = remote_checkpoint,
    .checkpoint_cut = remote_checkpoint_cut,
    .checkpoint_poll = remote_checkpoint_poll,
    .checkpoint_delete = remote_checkpoint_delete,
    .free = remote_free,
};

bd_status wk_sparse_client_new(cl_client *c, wk_sparse **out, bd_err *err)
{
    remote *r = bd_calloc(1, sizeof *r);
    if (r == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "sparse client");
    }
    r->base.ops = &remote_ops;
    r->client = c;
    *out = &r->base;
    return BD_OK;
}

void wk_sparse_free(wk_sparse *s)
{
    if (s != NULL) {
        s->ops->free(s);
    }
}
