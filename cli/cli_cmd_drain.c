/* `braid ps drain|undrain|health`: a server is made ready for its restart, and asked whether it is.
 */
#include "cli/cli_cmd_drain.h"

#include "base/exit_code.h"
#include "base/json.h"

#include "cli/cli_admin.h"
#include "cli/cli_cmd.h"
#include "rpc/rpc_security_opt.h"

#include <inttypes.h>
#include <string.h>

#include "braid/v1/parameter_server.pb-c.h"

typedef struct drain_flags {
    const char *coordinator, *run_dir, *format;
    int64_t timeout_ms, server;
    bool yes;
    rpc_security_options security;
} drain_flags;

#define AT(field)  offsetof(drain_flags, field)
#define SEC(field) offsetof(drain_flags, security.field)

static const bd_opt table[] = {
    {"coordinator", BD_OPT_STR, AT(coordinator), "", 0, 0, NULL, "host:port of server 0."},
    {"run_dir", BD_OPT_STR, AT(run_dir), "", 0, 0, NULL,
     "Folder of a run of `braid run` on this host, instead of --coordinator."},
    {"server", BD_OPT_I64, AT(server), "-1", -1, 4095, NULL, "This server alone; -1: all."},
    {"timeout", BD_OPT_DURATION_MS, AT(timeout_ms), "60s", 100, 86400000, NULL,
     "How long one server may take to write its rows back."},
    {"yes", BD_OPT_BOOL, AT(yes), "false", 0, 0, NULL,
     "drain: do it; without it, only what would be drained is shown."},
    {"format", BD_OPT_ENUM, AT(format), "table", 0, 0, "table|json", "What is printed."},
    RPC_SECURITY_ROWS(SEC),
    RPC_ETCD_ROWS(SEC),
};

typedef struct drain_verb {
    const char *name;
    Braid__V1__DrainMode mode;
} drain_verb;

static const drain_verb *find_verb(const char *word)
{
    static const drain_verb verbs[] = {
        {"drain", BRAID__V1__DRAIN_MODE__DRAIN_MODE_DRAIN},
        {"undrain", BRAID__V1__DRAIN_MODE__DRAIN_MODE_UNDRAIN},
        {"health", BRAID__V1__DRAIN_MODE__DRAIN_MODE_QUERY},
    };
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (strcmp(verbs[i].name, word) == 0) {
            return &verbs[i];
        }
    }
    return NULL;
}

bool cli_drain_has(const char *word)
{
    return find_verb(word) != NULL;
}

static bool is_ready(const Braid__V1__DrainReply *r)
{
    return !r->draining && r->not_ready[0] == '\0';
}

static void print_row(const cli_admin *a, size_t i, const Braid__V1__DrainReply *r,
                      const bd_err *error, FILE *out)
{
    if (r == NULL) {
        (void)fprintf(out, "%-6zu %-28s no answer: %s\n", i, cli_admin_address(a, i),
                      bd_err_text(error));
        return;
    }
    (void)fprintf(out, "%-6zu %-28s %-9s %10" PRIu64 " %7.1f MB %7.1f MB %7.1f MB%s%s\n", i,
                  cli_admin_address(a, i),
                  r->draining   ? "draining"
                  : is_ready(r) ? "ready"
                                : "not ready",
                  r->job_epoch, (double)r->journal_bytes / 1e6, (double)r->dirty_bytes / 1e6,
                  (double)r->staged_bytes / 1e6, r->draining || is_ready(r) ? "" : "  ",
                  r->draining ? "" : r->not_ready);
}

static void put_row(const cli_admin *a, size_t i, const Braid__V1__DrainReply *r,
                    const bd_err *error, bd_json *j)
{
    bd_json_obj(j);
    bd_json_put_i64(j, "server", (int64_t)i);
    bd_json_put_str(j, "address", cli_admin_address(a, i));
    bd_json_put_bool(j, "answers", r != NULL);
    if (r != NULL) {
        bd_json_put_bool(j, "ready", is_ready(r));
        bd_json_put_str(j, "not_ready", r->not_ready);
        bd_json_put_bool(j, "draining", r->draining);
        bd_json_put_u64(j, "job_epoch", r->job_epoch);
        bd_json_put_u64(j, "journal_bytes", r->journal_bytes);
        bd_json_put_u64(j, "dirty_bytes", r->dirty_bytes);
        bd_json_put_u64(j, "staged_bytes", r->staged_bytes);
    } else {
        bd_json_put_str(j, "error", bd_err_text(error));
    }
    bd_json_obj_end(j);
}

/* Exit code 4 when a server does not answer, or is not ready where that was asked. */
static bd_status ask_all(cli_admin *a, const drain_flags *f, const drain_verb *verb, FILE *out,
                         int *exit_code, bd_err *err)
{
    bd_json j;
    bool json = strcmp(f->format, "json") == 0;
    bool query = verb->mode == BRAID__V1__DRAIN_MODE__DRAIN_MODE_QUERY;
    bd_json_init(&j);
    bd_json_arr(&j);
    if (!json) {
        (void)fprintf(out, "%-6s %-28s %-9s %10s %10s %10s %10s\n", "server", "address", "state",
                      "job epoch", "journal", "dirty", "staged");
    }
    for (size_t i = 0; i < a->n_servers; i++) {
        Braid__V1__DrainRequest req;
        ProtobufCMessage *reply = NULL;
        bd_err error = BD_ERR_INIT;
        if (f->server >= 0 && (size_t)f->server != i) {
            continue;
        }
        braid__v1__drain_request__init(&req);
        req.mode = verb->mode == BRAID__V1__DRAIN_MODE__DRAIN_MODE_DRAIN && !f->yes
                       ? BRAID__V1__DRAIN_MODE__DRAIN_MODE_QUERY
                       : verb->mode;
        bd_status rc = cli_admin_ask(a, i, "/braid.v1.ParameterServer/Drain", &req.base,
                                     &braid__v1__drain_reply__descriptor, &reply, &error);
        const Braid__V1__DrainReply *r = (const void *)reply;
        if (rc != BD_OK || (query && !is_ready(r))) {
            *exit_code = BD_EXIT_PEER;
        }
        if (json) {
            put_row(a, i, r, &error, &j);
        } else {
            print_row(a, i, r, &error, out);
        }
        px_unpacked_free(reply);
    }
    bd_json_arr_end(&j);
    bd_status rc = BD_OK;
    if (json && bd_json_text(&j) == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "ps %s", verb->name);
    } else if (json) {
        (void)fprintf(out, "%s\n", bd_json_text(&j));
    }
    bd_json_deinit(&j);
    return rc;
}

bd_status cli_drain_run(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    drain_flags f = {0};
    bd_options o;
    cli_admin a;
    const char *word = NULL;
    char address[512];
    bd_status rc = bd_options_init(&o, table, sizeof table / sizeof table[0], &f, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = cli_cmd_parse(&o, &argc, argv, "drain|undrain|health", &word, err);
    const drain_verb *verb = rc == BD_OK ? find_verb(word) : NULL;
    if (rc == BD_OK && verb == NULL) {
        rc = bd_err_set(err, BD_E_USAGE, "ps: what is \"%.64s\"?", word);
    }
    if (rc == BD_OK) {
        rc = cli_admin_find(f.coordinator, f.run_dir, address, sizeof address, err);
    }
    if (rc == BD_OK) {
        rc = cli_admin_open(&a, address, f.timeout_ms, &f.security, err);
    }
    if (rc == BD_OK) {
        if (f.server >= 0 && (size_t)f.server >= a.n_servers) {
            rc = bd_err_set(err, BD_E_USAGE, "server: %" PRId64 " of %zu servers", f.server,
                            a.n_servers);
        } else {
            rc = ask_all(&a, &f, verb, io->out, exit_code, err);
        }
        cli_admin_close(&a);
    }
    if (rc == BD_OK && verb->mode == BRAID__V1__DRAIN_MODE__DRAIN_MODE_DRAIN && !f.yes) {
        (void)fprintf(io->err, "nothing was changed: --yes drains them\n");
    }
    bd_options_deinit(&o);
    return rc;
}

const cli_cmd cli_cmd_drain = {
    .name = "drain|undrain|health",
    .usage = "--coordinator HOST:PORT | --run-dir DIR [--server N] [--yes]",
    .help = "Makes servers ready for a restart, takes that back, or asks whether they are.",
    CLI_OPTIONS(table),
    .run = cli_drain_run};
