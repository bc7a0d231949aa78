/* Which scope each public method needs. */
#include "rpc/rpc_coordinator.h"
#include "rpc/rpc_security.h"

#include <string.h>

typedef struct scope_row {
    const char *path;
    rpc_scope scope;
} scope_row;

#define PS                         "/braid.v1.ParameterServer/"
#define AG                         "/braid.v1.Autograd/"
#define CO(handler, method, needs) {RPC_COORDINATOR method, RPC_SCOPE_##needs},

static const scope_row rows[] = {
    {"/grpc.health.v1.Health/Check", RPC_SCOPE_NONE},
    {"/grpc.health.v1.Health/Watch", RPC_SCOPE_NONE},
    {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", RPC_SCOPE_READ},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", RPC_SCOPE_READ},
    {PS "Lookup", RPC_SCOPE_READ},
    {PS "ListTables", RPC_SCOPE_READ},
    {PS "Export", RPC_SCOPE_READ},
    {PS "HotKeys", RPC_SCOPE_READ},
    {PS "ParamHash", RPC_SCOPE_READ},
    {PS "Stats", RPC_SCOPE_READ},
    {PS "Stream", RPC_SCOPE_READ}, /* each message in it is asked for its own method's scope */
    {PS "CreateTable", RPC_SCOPE_TRAIN},
    {PS "OpenJob", RPC_SCOPE_TRAIN},
    {PS "Push", RPC_SCOPE_TRAIN},
    {PS "Commit", RPC_SCOPE_TRAIN},
    {PS "Assign", RPC_SCOPE_TRAIN},
    {PS "Checkpoint", RPC_SCOPE_TRAIN},
    {PS "DeleteCheckpoint", RPC_SCOPE_TRAIN}, /* a trainer prunes its own */
    {PS "Drain", RPC_SCOPE_ADMIN},
    {PS "ReadPart", RPC_SCOPE_ADMIN}, /* asked by servers, as RegisterServer */
    {AG "Forward", RPC_SCOPE_TRAIN},
    {AG "Backward", RPC_SCOPE_TRAIN},
    {AG "Step", RPC_SCOPE_TRAIN},
    {AG "Cleanup", RPC_SCOPE_TRAIN},
    {AG "Fail", RPC_SCOPE_TRAIN},
    {AG "Gradients", RPC_SCOPE_TRAIN},
    {AG "KeepAlive", RPC_SCOPE_TRAIN},
    {AG "Fetch", RPC_SCOPE_TRAIN},
    {AG "Fork", RPC_SCOPE_TRAIN},
    {AG "DeleteFork", RPC_SCOPE_TRAIN},
    {AG "Reach", RPC_SCOPE_TRAIN},
    RPC_COORDINATOR_METHODS(CO)};

rpc_scope rpc_scope_of_method(const char *path)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].path, path) == 0) {
            return rows[i].scope;
        }
    }
    return RPC_SCOPE_ADMIN;
}

const char *rpc_scope_name(rpc_scope s)
{
    static const char *const names[] = {"none", "read", "train", "admin"};
    return names[s];
}
