/* Runs a module's functions. */
#include "rpc/rpc_rref_int.h"

/* Calls made by a forward belong to its record. In memory one thread runs everything, one inside
 * the other: hence it is put back. */
static _Thread_local const ag_node *running;

const ag_node *ag_running(void)
{
    return running;
}

bd_status ag_run_forward(rpc_ag_ctx *ctx, ag_node *node, const rpc_tensor *in, size_t n_in,
                         rpc_tensor *out, size_t *n_out, void **saved, bd_err *err)
{
    const rpc_module *m = node->module->m;
    const ag_node *outer = running;
    (void)pthread_rwlock_rdlock(&node->module->lock);
    running = node;
    bd_status rc = m->forward(m->self, ctx, in, n_in, out, n_out, saved, err);
    running = outer;
    (void)pthread_rwlock_unlock(&node->module->lock);
    return rc;
}

bd_status ag_run_backward(rpc_ag_ctx *ctx, ag_node *node, const rpc_tensor *grad_out,
                          rpc_tensor *grad_in, bd_err *err)
{
    const rpc_module *m = node->module->m;
    rpc_grad_sink sink = {.ctx = ctx, .module = node->module};
    const ag_node *outer = running;
    (void)pthread_rwlock_rdlock(&node->module->lock);
    running = NULL;
    bd_status rc =
        m->backward(m->self, node->saved, grad_out, node->n_out, grad_in, node->n_in, &sink, err);
    running = outer;
    (void)pthread_rwlock_unlock(&node->module->lock);
    return rc == BD_OK ? ag_reach_release(ctx, node, err) : rc;
}
