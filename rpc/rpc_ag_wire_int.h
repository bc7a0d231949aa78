/* rpc/rpc_ag_wire_int.h - tensors and gradients as messages (proto/braid/v1/autograd.proto).
 *
 * Layer:  rpc, private to rpc_ag_*.c and rpc_rref*.c.
 */
#ifndef RPC_AG_WIRE_INT_H
#define RPC_AG_WIRE_INT_H

#include "rpc/rpc_autograd.h"

#include "braid/v1/autograd.pb-c.h"

/* Messages point into the tensors; nothing is copied. */
void ag_tensor_to_wire(const rpc_tensor *t, Braid__V1__AutogradTensor *w, uint64_t *dims);
/* A checked copy; "absent" gives no tensor. */
bd_status ag_tensor_from_wire(const Braid__V1__AutogradTensor *w, const char *what, rpc_tensor *out,
                              bd_err *err) BD_MUST_CHECK;
bd_status ag_tensors_from_wire(Braid__V1__AutogradTensor *const *w, size_t n, const char *what,
                               rpc_tensor *out, bd_err *err) BD_MUST_CHECK;
bd_status ag_gradients_pack(rpc_ag_ctx *ctx, const char *module, bd_chain *out,
                            bd_err *err) BD_MUST_CHECK;
bd_status ag_gradients_unpack(const bd_chain *in, rpc_ag_grads *out, bd_err *err) BD_MUST_CHECK;
/* Room for one message's tensors. */
typedef struct ag_wire_tensors {
    Braid__V1__AutogradTensor items[RPC_MODULE_MAX_IO];
    Braid__V1__AutogradTensor *list[RPC_MODULE_MAX_IO];
    Braid__V1__AutogradRRef rrefs[RPC_MODULE_MAX_IO];
    uint64_t dims[RPC_MODULE_MAX_IO][RPC_TENSOR_MAX_DIMS];
} ag_wire_tensors;
void ag_wire_fill(ag_wire_tensors *w, const rpc_tensor *t, size_t n);
/* Same dtype and shape. */
bool ag_same_shape(const rpc_tensor *a, const rpc_tensor *b);

#endif
