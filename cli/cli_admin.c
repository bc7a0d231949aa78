#include "cli/cli_admin.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bd_status cli_admin_find(const char *coordinator, const char *run_dir, char *address,
                         size_t n_address, bd_err *err)
{
    bd_status rc = BD_OK;
    if (coordinator[0] != '\0') {
        (void)snprintf(address, n_address, "%s", coordinator);
        return BD_OK;
    }
    if (run_dir[0] == '\0') {
        return bd_err_set(err, BD_E_USAGE, "--coordinator HOST:PORT or --run-dir DIR is missing");
    }
    char *path = bd_strfmt("%s/coordinator", run_dir);
    FILE *file = path == NULL ? NULL : fopen(path, "re");
    if (file == NULL || fgets(address, (int)n_address, file) == NULL) {
        rc = bd_err_errno(err, BD_E_NOT_FOUND, errno, "read %s/coordinator", run_dir);
    } else {
        address[strcspn(address, "\n")] = '\0';
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    bd_free(path);
    return rc;
}

static bd_status ask(rpc_channel *ch, const char *method, const ProtobufCMessage *request,
                     const ProtobufCMessageDescriptor *type, int64_t timeout_ms,
                     ProtobufCMessage **reply, bd_err *err)
{
    bd_chain out = {0}, in = {0};
    rpc_call_options opt = {.deadline_ms = timeout_ms, .idempotent = true};
    bd_status rc = px_pack(request, &out, err);
    if (rc == BD_OK) {
        rc = rpc_call_sync(ch, method, &out, &opt, &in, err);
    }
    if (rc == BD_OK) {
        rc = px_unpack(type, &in, 0, reply, err);
    }
    bd_chain_deinit(&out);
    bd_chain_deinit(&in);
    return rc;
}

/* As for every client: plain text may go to another host, a token never does (rpc_channel_new). */
static const rpc_channel_options plain_allowed = {.allow_insecure = true};

static bd_status connect_all(cli_admin *a, bd_err *err)
{
    bd_status rc = BD_OK;
    a->channels = bd_calloc(a->map.n_servers + 1, sizeof(void *));
    if (a->channels == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "connect to %zu servers", a->map.n_servers);
    }
    for (size_t i = 0; rc == BD_OK && i < a->map.n_servers; i++) {
        rc = rpc_channel_new(a->env, a->map.servers[i], &plain_allowed, &a->channels[i], err);
        a->n_servers += rc == BD_OK ? 1 : 0;
    }
    return rc;
}

static bd_status get_map(cli_admin *a, bd_err *err)
{
    bd_status rc = a->store->shard_map(a->store, 0, a->timeout_ms / 2, &a->map, err);
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "ask for the servers");
}

bd_status cli_admin_open(cli_admin *a, const char *coordinator, int64_t timeout_ms,
                         const rpc_security_options *security, bd_err *err)
{
    const rpc_env_options env = {
        .n_queues = 1, .n_threads = 1, .n_workers = 1, .security = security};
    const rpc_store_options options = {.wait_ms = timeout_ms, .allow_insecure = true};
    *a = (cli_admin){.timeout_ms = timeout_ms};
    bd_status rc = rpc_env_new(&env, &a->env, err);
    if (rc == BD_OK) {
        rc = rpc_store_open(a->env, coordinator, &options, &a->store, err);
    }
    if (rc == BD_OK) {
        rc = get_map(a, err);
    }
    if (rc == BD_OK) {
        rc = connect_all(a, err);
    }
    if (rc != BD_OK) {
        cli_admin_close(a);
    }
    return rc;
}

void cli_admin_close(cli_admin *a)
{
    for (size_t i = 0; i < a->n_servers; i++) {
        rpc_channel_free(a->channels[i]);
    }
    bd_free(a->channels);
    rpc_store_free(a->store);
    rpc_shard_map_deinit(&a->map);
    if (a->env != NULL) {
        rpc_env_free(a->env);
    }
    *a = (cli_admin){0};
}

const char *cli_admin_address(const cli_admin *a, size_t server)
{
    return a->map.servers[server];
}

bd_status cli_admin_ask(cli_admin *a, size_t server, const char *method,
                        const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                        ProtobufCMessage **reply, bd_err *err)
{
    return ask(a->channels[server], method, request, type, a->timeout_ms, reply, err);
}
