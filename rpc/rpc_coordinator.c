#include "rpc/rpc_coordinator.h"

#include "base/assert.h"

bd_status rpc_coordinator_register(rpc_server *server, const rpc_coordinator *c, void *user,
                                   bd_err *err)
{
#define ROW(handler, method, scope) {RPC_COORDINATOR method, c->handler},
    const struct {
        const char *method;
        rpc_handler_fn fn;
    } rows[] = {RPC_COORDINATOR_METHODS(ROW)};
#undef ROW
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        BD_ASSERT(rows[i].fn != NULL);
        bd_status rc = rpc_server_register(server, rows[i].method, rows[i].fn, user);
        if (rc != BD_OK) {
            return bd_err_set(err, rc, "register %s", rows[i].method);
        }
    }
    return BD_OK;
}
