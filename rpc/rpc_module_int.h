/* rpc/rpc_module_int.h - what the modules of this folder share. Layer: rpc, private. */
#ifndef RPC_MODULE_INT_H
#define RPC_MODULE_INT_H

#include "rpc/rpc_module.h"

/* Fills optim and hyper; spec->name NULL: no optimiser. */
bd_status rpc_module_set_optim(rpc_module *m, const rpc_optim_spec *spec,
                               bd_err *err) BD_MUST_CHECK;

#endif
