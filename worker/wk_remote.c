#include "worker/wk_remote.h"

#include <string.h>

/* Gradient of the one output to the peer, gradient of the one differentiable input (if any) back.
 */
static bd_status remote_backward(void *user, tp_tape *tape, tp_tensor *const *in, size_t n_in,
                                 tp_tensor *const *out, size_t n_out, bd_err *err)
{
    (void)n_out;
    rpc_ag_msg *msg = user;
    const void *host = NULL;
    rpc_tensor g = {0}, gx[2] = {{0}};
    const size_t n_args = rpc_ag_msg_n_in(msg); /* 1, or ids and offsets */
    bd_status rc = BD_OK;
    if (out[0]->grad != NULL) {
        rc = tp_read(out[0]->grad, &host, err);
        if (rc == BD_OK) {
            rc = rpc_tensor_copy_of(NUM_F32, out[0]->n_dims, out[0]->dims, host, &g);
        }
    }
    if (rc == BD_OK) {
        rc = rpc_ag_backward(msg, &g, 1, gx, n_args, NULL, err);
    }
    if (rc == BD_OK && n_in > 0 && gx[0].buf != NULL) {
        rc = tp_grad_add(tape, in[0], rpc_tensor_f32(&gx[0]), err);
    }
    rpc_tensor_free(&g);
    rpc_tensors_free(gx, 2);
    return rc;
}

/* args moved. x: the tape's tensor behind args[0] when it wants a gradient, else NULL: then the
 * node is a source, whose backward still runs, for the module's own parameters. */
static bd_status call(const wk_remote *r, rpc_tensor *args, size_t n_args, tp_tensor *x,
                      tp_tensor **out, bd_err *err)
{
    rpc_ag_result y = {.n_out = 0};
    tp_tensor *t = NULL;
    bd_status rc = rpc_ag_call(r->ctx, r->peer, r->module, args, n_args, &y, err);
    rpc_tensors_free(args, n_args);
    if (rc == BD_OK && y.n_out != 1) {
        rc = bd_err_set(err, BD_E_MISMATCH, "%s: %zu outputs", r->module, y.n_out);
    }
    if (rc == BD_OK) {
        rc = tp_tape_tensor(r->tape, y.out[0].n_dims, y.out[0].dims, false, &t, err);
    }
    if (rc == BD_OK) {
        rc = tp_write(t, rpc_tensor_f32(&y.out[0]), err);
    }
    rpc_ag_result_free(&y);
    if (rc == BD_OK && y.msg != NULL) {
        tp_custom_node node = {.name = r->module,
                               .in = &x,
                               .n_in = x != NULL ? 1 : 0,
                               .out = &t,
                               .n_out = 1,
                               .backward = remote_backward,
                               .user = y.msg};
        rc = tp_custom(r->tape, &node, err);
    }
    if (rc == BD_OK) {
        *out = t;
    }
    return rc;
}

bd_status wk_remote_call(const wk_remote *r, tp_tensor *x, tp_tensor **out, bd_err *err)
{
    const void *host = NULL;
    rpc_tensor arg = {0};
    bd_status rc = tp_read(x, &host, err);
    if (rc == BD_OK) {
        rc = rpc_tensor_copy_of(NUM_F32, x->n_dims, x->dims, host, &arg);
    }
    if (rc != BD_OK) {
        return rc;
    }
    arg.requires_grad = x->requires_grad;
    return call(r, &arg, 1, x->requires_grad ? x : NULL, out, err);
}

bd_status wk_remote_bag(const wk_remote *r, const int64_t *ids, size_t n_ids,
                        const int64_t *offsets, size_t n_bags, tp_tensor **out, bd_err *err)
{
    rpc_tensor args[2] = {{0}};
    bd_status rc = rpc_tensor_copy_of(NUM_I64, 1, &n_ids, ids, &args[0]);
    if (rc == BD_OK) {
        rc = rpc_tensor_copy_of(NUM_I64, 1, &n_bags, offsets, &args[1]);
    }
    if (rc != BD_OK) {
        rpc_tensors_free(args, 2);
        return bd_err_set(err, rc, "%s: out of memory", r->module);
    }
    return call(r, args, 2, NULL, out, err);
}
