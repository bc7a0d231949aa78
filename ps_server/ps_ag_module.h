/* ps_server/ps_ag_module.h - one table as a remote module (see ps_autograd.h for what it computes).
 *
 * Layer:   ps_server.
 * Threads: forward and backward on rpc handlers, several at once; nothing changes after new.
 */
#ifndef PS_AG_MODULE_H
#define PS_AG_MODULE_H

#include "ps_server/ps_shard.h"
#include "rpc/rpc_autograd.h"

typedef struct ps_ag_module {
    rpc_module module; /* first; self is this */
    rpc_param param;
    ps_shard *shard; /* borrowed */
    uint32_t table_id, dim;
    int mode;                  /* private */
    char *name;                /* owned: the module's */
    struct ps_ag_module *next; /* the owner's list */
} ps_ag_module;

/* BD_E_NOT_FOUND: no such kind of module, or no such table. */
bd_status ps_ag_module_new(ps_shard *shard, const char *name, ps_ag_module **out,
                           bd_err *err) BD_MUST_CHECK;
void ps_ag_module_free(ps_ag_module *m);

#endif
