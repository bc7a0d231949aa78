/* tests/util/ag_modules.h - modules for cases of distributed autograd that every test world has.
 *
 * Layer: tests. The structs are the caller's and must outlive the node they are registered at.
 */
#ifndef AG_MODULES_H
#define AG_MODULES_H

#include "rpc/rpc_autograd.h"

/* Passes its inputs to another node's module, and the gradients back. */
typedef struct am_relay {
    rpc_module module;
    rpc_ag_peer *peer; /* borrowed */
    const char *asks;
} am_relay;

/* peer may be filled in later, before the first call. */
void am_relay_init(am_relay *r, const char *name, rpc_ag_peer *peer, const char *asks);

/* Identity whose backward fails with BD_E_NUMERIC "simulated error on backward pass". */
rpc_module am_boom(const char *name);

#endif
