/* `braid ps status`: what running servers say of themselves. */
#include "base/exit_code.h"
#include "base/json.h"
#include "base/mem.h"

#include "cli/cli_admin.h"
#include "cli/cli_cmd.h"
#include "cli/cli_cmd_drain.h"
#include "rpc/rpc_security_opt.h"

#include <inttypes.h>
#include <string.h>

#include "braid/v1/parameter_server.pb-c.h"

typedef struct ps_flags {
    const char *coordinator, *run_dir, *format;
    int64_t timeout_ms;
    rpc_security_options security;
} ps_flags;

#define AT(field)  offsetof(ps_flags, field)
#define SEC(field) offsetof(ps_flags, security.field)

static const bd_opt table[] = {
    {"coordinator", BD_OPT_STR, AT(coordinator), "", 0, 0, NULL, "host:port of server 0."},
    {"run_dir", BD_OPT_STR, AT(run_dir), "", 0, 0, NULL,
     "Folder of a run of `braid run` on this host, instead of --coordinator."},
    {"timeout", BD_OPT_DURATION_MS, AT(timeout_ms), "5s", 100, 600000, NULL,
     "How long one question may take."},
    {"format", BD_OPT_ENUM, AT(format), "table", 0, 0, "table|json", "What is printed; also -o."},
    RPC_SECURITY_ROWS(SEC),
    RPC_ETCD_ROWS(SEC),
};

/* ---- ps status ---- */
typedef struct server_state {
    Braid__V1__StatsReply *stats; /* owned, NULL: it did not answer */
    bd_err error;
} server_state;

static double stat_of(const Braid__V1__StatsReply *r, const char *name)
{
    for (size_t i = 0; i < r->n_stats; i++) {
        if (strcmp(r->stats[i]->name, name) == 0) {
            return r->stats[i]->value;
        }
    }
    return 0.0;
}

static void status_table(const cli_admin *a, const server_state *s, FILE *out)
{
    (void)fprintf(out, "%-6s %-22s %-8s %10s %7s %12s %10s\n", "server", "address", "version",
                  "rows", "tables", "last step", "journal");
    for (size_t i = 0; i < a->n_servers; i++) {
        const Braid__V1__StatsReply *r = s[i].stats;
        if (r == NULL) {
            (void)fprintf(out, "%-6zu %-22s no answer: %s\n", i, cli_admin_address(a, i),
                          bd_err_text(&s[i].error));
            continue;
        }
        (void)fprintf(out, "%-6zu %-22s %-8s %10.0f %7.0f %12.0f %7.1f MB\n", i,
                      cli_admin_address(a, i), r->version, stat_of(r, "braid_ps_rows"),
                      stat_of(r, "braid_ps_tables"), stat_of(r, "braid_ps_last_step"),
                      stat_of(r, "braid_ps_journal_bytes") / 1e6);
    }
}

static bd_status status_json(const cli_admin *a, const server_state *s, FILE *out, bd_err *err)
{
    bd_json j;
    bd_json_init(&j);
    bd_json_arr(&j);
    for (size_t i = 0; i < a->n_servers; i++) {
        const Braid__V1__StatsReply *r = s[i].stats;
        bd_json_obj(&j);
        bd_json_put_i64(&j, "server", (int64_t)i);
        bd_json_put_str(&j, "address", cli_admin_address(a, i));
        bd_json_put_bool(&j, "answers", r != NULL);
        if (r == NULL) {
            bd_json_put_str(&j, "error", bd_err_text(&s[i].error));
        }
        for (size_t k = 0; r != NULL && k < r->n_stats; k++) {
            bd_json_put_f64(&j, r->stats[k]->name, r->stats[k]->value);
        }
        bd_json_obj_end(&j);
    }
    bd_json_arr_end(&j);
    const char *text = bd_json_text(&j);
    bd_status rc = text == NULL ? bd_err_set(err, BD_E_NOMEM, "ps status") : BD_OK;
    if (text != NULL) {
        (void)fprintf(out, "%s\n", text);
    }
    bd_json_deinit(&j);
    return rc;
}

/* Exit code 4 when a server does not answer: a script may wait for 0. */
static bd_status ps_status(cli_admin *a, const ps_flags *f, const cli_io *io, int *exit_code,
                           bd_err *err)
{
    Braid__V1__StatsRequest req;
    bd_status rc = BD_OK;
    braid__v1__stats_request__init(&req);
    server_state *s = bd_calloc(a->n_servers + 1, sizeof *s);
    if (s == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ps status");
    }
    for (size_t i = 0; i < a->n_servers; i++) {
        ProtobufCMessage *reply = NULL;
        if (cli_admin_ask(a, i, "/braid.v1.ParameterServer/Stats", &req.base,
                          &braid__v1__stats_reply__descriptor, &reply, &s[i].error) != BD_OK) {
            *exit_code = BD_EXIT_PEER;
        }
        s[i].stats = (void *)reply;
    }
    if (strcmp(f->format, "json") == 0) {
        rc = status_json(a, s, io->out, err);
    } else {
        status_table(a, s, io->out);
    }
    for (size_t i = 0; i < a->n_servers; i++) {
        px_unpacked_free((void *)s[i].stats);
    }
    bd_free(s);
    return rc;
}

typedef bd_status (*admin_fn)(cli_admin *a, const ps_flags *f, const cli_io *io, int *exit_code,
                              bd_err *err);

static bd_status with_servers(int argc, char **argv, const char *verb, admin_fn fn,
                              const cli_io *io, int *exit_code, bd_err *err)
{
    ps_flags f = {0};
    bd_options o;
    cli_admin a;
    const char *word = NULL;
    char address[512];
    bd_status rc = bd_options_init(&o, table, sizeof table / sizeof table[0], &f, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = cli_cmd_parse(&o, &argc, argv, verb, &word, err);
    if (rc == BD_OK && strcmp(word, verb) != 0) {
        rc = bd_err_set(err, BD_E_USAGE, "%s: \"%.64s\" is unknown; it has `%s`", argv[0], word,
                        verb);
    }
    if (rc == BD_OK) {
        rc = cli_admin_find(f.coordinator, f.run_dir, address, sizeof address, err);
    }
    if (rc == BD_OK) {
        rc = cli_admin_open(&a, address, f.timeout_ms, &f.security, err);
    }
    if (rc == BD_OK) {
        rc = fn(&a, &f, io, exit_code, err);
        cli_admin_close(&a);
    }
    bd_options_deinit(&o);
    return rc;
}

static bd_status run_ps(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    if (argc > 1 && cli_drain_has(argv[1])) {
        return cli_drain_run(argc, argv, io, exit_code, err);
    }
    return with_servers(argc, argv, "status", ps_status, io, exit_code, err);
}

static const cli_cmd *const subs[] = {&cli_cmd_drain, NULL};

const cli_cmd cli_cmd_ps = {
    .name = "ps",
    .usage = "status --coordinator HOST:PORT | --run-dir DIR [--format table|json]",
    .help =
        "Shows the servers of a run, or makes them ready for a restart; exit code 4 when one of "
        "them does not answer.",
    CLI_OPTIONS(table),
    .verbs = "status",
    .subs = subs,
    .run = run_ps};
