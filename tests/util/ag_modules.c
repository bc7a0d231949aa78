#include "tests/util/ag_modules.h"

static bd_status relay_forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                               rpc_tensor *out, size_t *n_out, void **saved, bd_err *err)
{
    const am_relay *r = self;
    rpc_ag_result y = {.n_out = 0};
    bd_status rc = rpc_ag_call(ctx, r->peer, r->asks, in, n_in, &y, err);
    if (rc == BD_OK) {
        for (size_t i = 0; i < y.n_out; i++) {
            out[i] = y.out[i];
        }
        *n_out = y.n_out;
        *saved = y.msg;
    }
    return rc;
}

static bd_status relay_backward(void *self, void *saved, const rpc_tensor *grad_out, size_t n_out,
                                rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink, bd_err *err)
{
    (void)self;
    (void)sink;
    return rpc_ag_backward(saved, grad_out, n_out, grad_in, n_in, NULL, err);
}

static bd_status boom_forward(void *self, rpc_ag_ctx *ctx, const rpc_tensor *in, size_t n_in,
                              rpc_tensor *out, size_t *n_out, void **saved, bd_err *err)
{
    static int kept; /* there is something to go backward to */
    (void)self;
    (void)ctx;
    (void)n_in;
    (void)err;
    *out = in[0];
    (void)bd_buf_ref(out->buf);
    out->requires_grad = true;
    *n_out = 1;
    *saved = &kept;
    return BD_OK;
}

static bd_status boom_backward(void *self, void *saved, const rpc_tensor *grad_out, size_t n_out,
                               rpc_tensor *grad_in, size_t n_in, rpc_grad_sink *sink, bd_err *err)
{
    (void)self;
    (void)saved;
    (void)grad_out;
    (void)n_out;
    (void)grad_in;
    (void)n_in;
    (void)sink;
    return bd_err_set(err, BD_E_NUMERIC, "simulated error on backward pass");
}

static void keep_saved(void *self, void *saved)
{
    (void)self;
    (void)saved; /* records belong to the context */
}

void am_relay_init(am_relay *r, const char *name, rpc_ag_peer *peer, const char *asks)
{
    *r = (am_relay){.module = {.name = name,
                               .self = r,
                               .forward = relay_forward,
                               .backward = relay_backward,
                               .saved_free = keep_saved},
                    .peer = peer,
                    .asks = asks};
}

rpc_module am_boom(const char *name)
{
    return (rpc_module){
        .name = name, .forward = boom_forward, .backward = boom_backward, .saved_free = keep_saved};
}
