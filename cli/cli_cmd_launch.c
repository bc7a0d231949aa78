/* `braid launch`: any program, once a rank, on one host of several. The options are torchrun's. */
#include "base/cgroup.h"
#include "base/exit_code.h"
#include "base/mem.h"

#include "cli/cli_agent.h"
#include "cli/cli_cmd.h"
#include "cli/cli_host.h"
#include "cli/cli_offline.h"
#include "cli/cli_torch.h"
#include "rpc/rpc_security_opt.h"
#include "rpc/rpc_store.h"

#include <uv.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_PORT = 29400, STORE_WAIT_BEATS = 6, STORE_WAIT_MIN_MS = 3000 };

typedef struct launch_flags {
    const char *nnodes, *nproc_per_node, *rdzv_backend, *rdzv_endpoint, *rdzv_id, *rdzv_conf;
    const char *master_addr, *local_addr, *role, *log_dir, *redirects, *tee;
    const char *module, *coordinator;
    int64_t node_rank, master_port, max_restarts;
    int64_t join_timeout, last_call, monitor_interval;
    bd_str_list local_ranks_filter;
    bool standalone, no_python, allow_insecure;
    rpc_security_options security;
} launch_flags;

#define AT(field)  offsetof(launch_flags, field)
#define SEC(field) offsetof(launch_flags, security.field)

static const bd_opt table[] = {
    {"nnodes", BD_OPT_STR, AT(nnodes), "1", 0, 0, NULL,
     "Hosts: N, or MIN:MAX for a job that begins with MIN of them and takes in more, up to MAX."},
    {"nproc_per_node", BD_OPT_STR, AT(nproc_per_node), "1", 0, 0, NULL,
     "Ranks on this host: a number; gpu: one a GPU; cpu: one a core; auto: GPUs if there are any, "
     "else cores."},
    {"node_rank", BD_OPT_I64, AT(node_rank), "-1", -1, 65535, NULL,
     "This host's place among them, from 0; -1: as they come (static: 0)."},
    {"rdzv_endpoint", BD_OPT_STR, AT(rdzv_endpoint), "", 0, 0, NULL,
     "HOST[:PORT] where the launchers meet; port 29400 if none is given. The launcher on that host "
     "serves there, unless something (a braid-ps) does already. etcd: HOST:PORT[,HOST:PORT...]."},
    {"rdzv_id", BD_OPT_STR, AT(rdzv_id), "none", 0, 0, NULL,
     "Name of the job, the same on all hosts."},
    {"rdzv_backend", BD_OPT_ENUM, AT(rdzv_backend), "auto", 0, 0,
     "auto|static|braid|c10d|etcd|etcd-v2",
     "braid (also c10d, as a name): meet at rdzv_endpoint; etcd (also etcd-v2): in etcd; static: "
     "nobody meets, ranks come from node_rank, and a failure on one host is the others' to notice; "
     "auto: braid with an endpoint, else static."},
    {"rdzv_conf", BD_OPT_STR, AT(rdzv_conf), "", 0, 0, NULL,
     "torchrun's form of other options, KEY=VALUE,...: join_timeout (also timeout), "
     "last_call_timeout, keep_alive_interval (seconds), rank, cacert, cert, key."},
    {"standalone", BD_OPT_BOOL, AT(standalone), "false", 0, 0, NULL,
     "One host, whatever else is said of hosts."},
    {"master_addr", BD_OPT_STR, AT(master_addr), "", 0, 0, NULL,
     "What ranks get as MASTER_ADDR; empty: the address of rank 0's host (static: 127.0.0.1)."},
    {"master_port", BD_OPT_I64, AT(master_port), "0", 0, 65535, NULL,
     "What they get as MASTER_PORT; 0: a port free on rank 0's host (static: 29500)."},
    {"local_addr", BD_OPT_STR, AT(local_addr), "", 0, 0, NULL,
     "This host's address for the others; empty: the one that leads to rdzv_endpoint."},
    {"max_restarts", BD_OPT_I64, AT(max_restarts), "0", 0, 1000000, NULL,
     "How often all ranks are started again after one has failed or a host is lost."},
    {"join_timeout", BD_OPT_DURATION_MS, AT(join_timeout), "600s", 100, 86400000, NULL,
     "How long the other hosts may take to come."},
    {"last_call", BD_OPT_DURATION_MS, AT(last_call), "30s", 0, 86400000, NULL,
     "MIN:MAX: how long more hosts are waited for when MIN are there."},
    {"monitor_interval", BD_OPT_DURATION_MS, AT(monitor_interval), "5s", 400, 3600000, NULL,
     "Between a launcher's signs of life (without a unit: seconds, at least 0.4 of them); three "
     "missed ones and its host is lost. A place to meet that is away is waited for six "
     "times as long."},
    {"role", BD_OPT_STR, AT(role), "default", 0, 0, NULL, "What ranks get as ROLE_NAME."},
    {"log_dir", BD_OPT_STR, AT(log_dir), "", 0, 0, NULL,
     "Folder of redirects and tee: <rdzv_id>/attempt_<restarts>/<rank>/stdout.log and stderr.log."},
    {"redirects", BD_OPT_STR, AT(redirects), "0", 0, 0, NULL,
     "What goes to files alone: 0 nothing, 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,1:1. "
     "Short: -r."},
    {"tee", BD_OPT_STR, AT(tee), "0", 0, 0, NULL,
     "What goes to files too, and to the terminal behind its rank; as redirects. Short: -t."},
    {"local_ranks_filter", BD_OPT_LIST, AT(local_ranks_filter), "", 0, 0, NULL,
     "Local ranks that are shown on the terminal; empty: all."},
    {"module", BD_OPT_STR, AT(module), "", 0, 0, NULL,
     "Runs `python3 -u -m MODULE ARGS`. Short: -m MODULE, the last option."},
    {"no_python", BD_OPT_BOOL, AT(no_python), "false", 0, 0, NULL,
     "Runs the program itself also when its name ends in .py."},
    {"coordinator", BD_OPT_STR, AT(coordinator), "", 0, 0, NULL,
     "braid-worker: host:port of server 0, or etcd://... (its ranks get BRAID_COORDINATOR)."},
    {"allow_insecure", BD_OPT_BOOL, AT(allow_insecure), "false", 0, 0, NULL,
     "Without TLS: the launchers meet in plain text also beyond this host."},
    {"tls_client_auth", BD_OPT_BOOL, SEC(require_client_cert), "false", 0, 0, NULL,
     "The launcher that serves asks the others for certificates signed by tls_ca."},
    {"tokens_file", BD_OPT_STR, SEC(tokens_file), "", 0, 0, NULL,
     "Tokens that the launcher that serves takes; as braid-ps's."},
    RPC_SECURITY_ROWS(SEC),
    RPC_ETCD_ROWS(SEC),
};
enum { N_OPTIONS = sizeof table / sizeof table[0] };

/* ---- what it means ---- */
typedef struct plan {
    launch_flags flags;
    char *guard;      /* owned */
    bool module_next; /* the program's word is the module */
    cli_args argv, env;
    int min_nodes, max_nodes, n_ranks;
    int redirects[CLI_AGENT_MAX_RANKS], tee[CLI_AGENT_MAX_RANKS];
    bool show[CLI_AGENT_MAX_RANKS];
    bool is_static, is_etcd, is_worker;
    char endpoint[512];
    char host[CLI_RDZV_HOST_BYTES], address[CLI_RDZV_HOST_BYTES];
    char log_dir[PATH_MAX];
    rpc_env *rpc;
    rpc_server *server;
    rpc_store *served, *store; /* store: what we ask */
} plan;

static bd_status parse_nodes(plan *p, bd_err *err)
{
    char *end = NULL;
    const char *text = p->flags.nnodes;
    long min = strtol(text, &end, 10), max = min;
    bool ok = end != text;
    if (ok && *end == ':') {
        const char *second = end + 1;
        max = strtol(second, &end, 10);
        ok = end != second;
    }
    if (!ok || *end != '\0' || min < 1 || max < min || max > CLI_RDZV_MAX_NODES) {
        return bd_err_set(err, BD_E_USAGE, "nnodes: \"%.64s\" is not N or MIN:MAX (1 to %d)", text,
                          CLI_RDZV_MAX_NODES);
    }
    const char *port = strrchr(p->flags.rdzv_endpoint, ':');
    bool any_port = port != NULL && strcmp(port, ":0") == 0;
    if (any_port && max > 1 && !p->flags.standalone) {
        return bd_err_set(err, BD_E_USAGE, "rdzv_endpoint: port 0, which other hosts cannot know");
    }
    p->flags.standalone = p->flags.standalone || any_port; /* torchrun's localhost:0 */
    p->min_nodes = p->flags.standalone ? 1 : (int)min;
    p->max_nodes = p->flags.standalone ? 1 : (int)max;
    return BD_OK;
}

static bd_status parse_ranks(plan *p, bd_err *err)
{
    char *end = NULL;
    const char *text = p->flags.nproc_per_node;
    long n = strtol(text, &end, 10), cores = bd_cpus();
    bool number = end != text && *end == '\0';
    if (!number && strcmp(text, "cpu") == 0) {
        n = cores;
    } else if (!number && strcmp(text, "gpu") == 0) {
        n = cli_host_gpus();
        if (n == 0) {
            return bd_err_set(err, BD_E_USAGE, "nproc_per_node: gpu: this host has none");
        }
    } else if (!number && strcmp(text, "auto") == 0) {
        n = cli_host_gpus() > 0 ? cli_host_gpus() : cores;
    } else if (!number) {
        n = 0;
    }
    if (n < 1 || n > CLI_AGENT_MAX_RANKS) {
        return bd_err_set(err, BD_E_USAGE,
                          "nproc_per_node: \"%.64s\" is not a number (1 to %d), gpu, cpu or auto",
                          text, CLI_AGENT_MAX_RANKS);
    }
    p->n_ranks = (int)n;
    return BD_OK;
}

/* "3", or "0:3,1:1": local rank: what; ranks that are not named: nothing. */
static bd_status parse_std(const char *key, const char *text, int n_ranks, int *out, bd_err *err)
{
    const char *at = text;
    bool ok = *at != '\0', more = true;
    for (int i = 0; i < n_ranks; i++) {
        out[i] = 0;
    }
    while (ok && more) {
        char *end = NULL;
        long a = strtol(at, &end, 10), what = a, rank = -1;
        ok = end != at;
        if (ok && *end == ':') {
            const char *second = end + 1;
            rank = a;
            what = strtol(second, &end, 10);
            ok = end != second && rank >= 0 && rank < n_ranks;
        } else if (ok) {
            ok = at == text && *end == '\0';
        }
        ok = ok && what >= 0 && what <= 3 && (*end == '\0' || *end == ',');
        for (int i = 0; ok && i < n_ranks; i++) {
            out[i] = rank < 0 || rank == i ? (int)what : out[i];
        }
        more = *end == ',';
        at = end + 1;
    }
    return ok ? BD_OK
              : bd_err_set(err, BD_E_USAGE,
                           "%s: \"%.64s\" is not 0 to 3, or LOCAL_RANK:0-3,... (%d ranks here)",
                           key, text, n_ranks);
}

static bd_status parse_output(plan *p, bd_err *err)
{
    const launch_flags *f = &p->flags;
    bd_status rc = parse_std("redirects", f->redirects, p->n_ranks, p->redirects, err);
    if (rc == BD_OK) {
        rc = parse_std("tee", f->tee, p->n_ranks, p->tee, err);
    }
    for (int i = 0; i < p->n_ranks; i++) {
        p->show[i] = f->local_ranks_filter.n == 0;
    }
    for (size_t i = 0; rc == BD_OK && i < f->local_ranks_filter.n; i++) {
        char *end = NULL;
        const char *word = f->local_ranks_filter.items[i];
        long rank = strtol(word, &end, 10);
        if (end == word || *end != '\0' || rank < 0 || rank >= p->n_ranks) {
            return bd_err_set(err, BD_E_USAGE, "local_ranks_filter: \"%.32s\" is no rank here",
                              word);
        }
        p->show[rank] = true;
    }
    int kept = 0;
    for (int i = 0; i < p->n_ranks; i++) {
        kept |= p->redirects[i] | p->tee[i];
    }
    (void)snprintf(p->log_dir, sizeof p->log_dir, "%s", f->log_dir);
    if (rc == BD_OK && kept != 0 && p->log_dir[0] == '\0') {
        (void)snprintf(p->log_dir, sizeof p->log_dir, "/tmp/braid-launch-XXXXXX");
        if (mkdtemp(p->log_dir) == NULL) {
            rc = bd_err_errno(err, BD_E_IO, errno, "log_dir");
        }
    }
    return rc;
}

static bd_status parse_backend(plan *p, bd_err *err)
{
    const launch_flags *f = &p->flags;
    const char *b = f->rdzv_backend;
    p->is_etcd = strncmp(b, "etcd", 4) == 0 && !f->standalone;
    p->is_static =
        !f->standalone && !p->is_etcd &&
        (strcmp(b, "static") == 0 || (strcmp(b, "auto") == 0 && f->rdzv_endpoint[0] == '\0'));
    if (p->is_static && (p->min_nodes != p->max_nodes || f->node_rank >= p->max_nodes)) {
        return bd_err_set(err, BD_E_USAGE,
                          "static: node_rank is 0 to nnodes - 1, and nnodes a number, not a range");
    }
    if (p->is_static && p->max_nodes > 1 && (f->node_rank < 0 || f->master_addr[0] == '\0')) {
        return bd_err_set(err, BD_E_USAGE,
                          "%d hosts: --rdzv-endpoint HOST:PORT, or --node-rank and --master-addr",
                          p->max_nodes);
    }
    if (p->is_static && p->max_nodes > 1 && f->max_restarts > 0) {
        return bd_err_set(err, BD_E_USAGE,
                          "max_restarts on several hosts needs --rdzv-endpoint: all ranks start "
                          "again together");
    }
    if (!p->is_static && !f->standalone && f->rdzv_endpoint[0] == '\0') {
        return bd_err_set(err, BD_E_USAGE, "rdzv_backend %s needs --rdzv-endpoint", b);
    }
    return BD_OK;
}

/* The program, and python3 before a script. */
static bd_status find_program(plan *p, int argc, char **argv, bd_err *err)
{
    launch_flags *f = &p->flags;
    if (p->module_next && argc > 0) {
        f->module = argv[0];
        argc--;
        argv++;
    }
    bool module = f->module[0] != '\0';
    if (argc == 0 && !module) {
        return bd_err_set(err, BD_E_USAGE, "launch: no program is given; `braid help launch`");
    }
    size_t n = argc > 0 ? strlen(argv[0]) : 0;
    bool script = !f->no_python && n > 3 && strcmp(argv[0] + n - 3, ".py") == 0;
    const char *name = module || script ? "python3" : argv[0];
    char *path = cli_host_program(name);
    if (path == NULL && !module && !script && strncmp(name, "braid-", 6) == 0) {
        bd_err ignored = BD_ERR_INIT; /* beside us, as for `braid run` */
        (void)!cli_find_program(name, "", &path, &ignored);
    }
    if (path == NULL) {
        return bd_err_set(err, BD_E_USAGE, "launch: no program \"%.200s\"", name);
    }
    const char *base = strrchr(path, '/');
    p->is_worker = strcmp(base != NULL ? base + 1 : path, "braid-worker") == 0;
    cli_args_add(&p->argv, "%s", path);
    if (module || script) {
        cli_args_add(&p->argv, "-u");
    }
    if (module) {
        cli_args_add(&p->argv, "-m");
        cli_args_add(&p->argv, "%s", f->module);
    }
    for (int i = module || script ? 0 : 1; i < argc; i++) {
        cli_args_add(&p->argv, "%s", argv[i]);
    }
    bd_free(path);
    return p->argv.failed ? bd_err_set(err, BD_E_NOMEM, "command line") : BD_OK;
}

/* ---- where they meet ---- */
static bd_status find_names(plan *p, bd_err *err)
{
    const launch_flags *f = &p->flags;
    size_t n = sizeof p->host;
    bool apart = !p->is_static && !f->standalone;
    char first[512];
    bd_status rc = BD_OK;
    if (uv_os_gethostname(p->host, &n) != 0) {
        (void)snprintf(p->host, sizeof p->host, "localhost");
    }
    (void)snprintf(p->endpoint, sizeof p->endpoint, "%s", f->rdzv_endpoint);
    if (apart && !p->is_etcd) {
        int port = 0;
        char host[256];
        rc = cli_host_split(f->rdzv_endpoint, DEFAULT_PORT, host, sizeof host, &port, err);
        (void)snprintf(p->endpoint, sizeof p->endpoint,
                       strchr(host, ':') != NULL ? "[%s]:%d" : "%s:%d", host, port);
    }
    (void)snprintf(first, sizeof first, "%.*s", (int)strcspn(p->endpoint, ",/"), p->endpoint);
    (void)snprintf(p->address, sizeof p->address, "%s",
                   f->local_addr[0] != '\0' ? f->local_addr : "127.0.0.1");
    if (rc == BD_OK && apart && f->local_addr[0] == '\0') {
        rc = cli_host_address_to(first, p->address, sizeof p->address, err);
    }
    return rc;
}

/* Serves the store at the endpoint when that is ours and free. */
static bd_status serve_store(plan *p, bd_err *err)
{
    const rpc_server_options so = {.listen = p->endpoint,
                                   .allow_insecure = p->flags.allow_insecure};
    bd_err busy = BD_ERR_INIT;
    p->served = rpc_store_mem();
    if (p->served == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "store");
    }
    bd_status rc = rpc_server_new(p->rpc, &so, &p->server, err);
    if (rc == BD_OK) {
        rc = rpc_store_serve(p->server, p->served, err);
    }
    if (rc == BD_OK && rpc_server_start(p->server, &busy) != BD_OK) {
        rpc_server_free(p->server); /* another launcher here, or a server, has it */
        p->server = NULL;
        if (busy.code != BD_E_IO) {
            return bd_err_set(err, busy.code, "%s", bd_err_text(&busy));
        }
    }
    return rc;
}

static bd_status open_store(plan *p, bd_err *err)
{
    const launch_flags *f = &p->flags;
    int64_t wait_ms = STORE_WAIT_BEATS * f->monitor_interval;
    const rpc_store_options so = {.wait_ms =
                                      wait_ms > STORE_WAIT_MIN_MS ? wait_ms : STORE_WAIT_MIN_MS,
                                  .allow_insecure = f->allow_insecure};
    if (p->is_static || f->standalone) {
        p->store = rpc_store_mem();
        return p->store != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "store");
    }
    rpc_security_options sec = f->security;
    sec.allow_insecure = f->allow_insecure;
    const rpc_env_options eo = {.n_queues = 1, .n_threads = 1, .security = &sec};
    bd_status rc = rpc_env_new(&eo, &p->rpc, err);
    if (rc == BD_OK && !p->is_etcd && cli_host_is_own(p->endpoint)) {
        rc = serve_store(p, err);
    }
    if (rc == BD_OK) {
        char url[640];
        (void)snprintf(url, sizeof url, "%s%s%s", p->is_etcd ? "etcd://" : "", p->endpoint,
                       p->is_etcd && strchr(p->endpoint, '/') == NULL ? "/braid" : "");
        rc = rpc_store_open(p->rpc, url, &so, &p->store, err);
    }
    return rc;
}

static void plan_deinit(plan *p)
{
    rpc_store_free(p->store);
    if (p->server != NULL) {
        rpc_server_free(p->server);
    }
    rpc_store_free(p->served);
    if (p->rpc != NULL) {
        rpc_env_free(p->rpc);
    }
    cli_args_deinit(&p->argv);
    cli_args_deinit(&p->env);
    bd_free(p->guard);
}

/* What braid-worker's ranks need besides; the user's own settings win. */
static void worker_env(plan *p)
{
    const launch_flags *f = &p->flags;
    int threads = bd_cpus() / p->n_ranks;
    if (f->coordinator[0] != '\0') {
        cli_args_add(&p->env, "BRAID_COORDINATOR=%s", f->coordinator);
    }
    if (!p->is_worker) {
        return;
    }
    if (getenv("BRAID_THREADS") == NULL) { // NOLINT(concurrency-mt-unsafe): before any thread
        cli_args_add(&p->env, "BRAID_THREADS=%d", threads > 0 ? threads : 1);
    }
    const char *host = getenv("BRAID_BIND_HOST"); // NOLINT(concurrency-mt-unsafe)
    const char *nic = getenv("BRAID_INTERFACE");  // NOLINT(concurrency-mt-unsafe)
    if (p->max_nodes > 1 && host == NULL && nic == NULL) {
        cli_args_add(&p->env, "BRAID_BIND_HOST=%s", p->address);
    }
}

static bd_status run_plan(plan *p, const cli_io *io, int *exit_code, bd_err *err)
{
    const launch_flags *f = &p->flags;
    char own[PATH_MAX];
    size_t n = sizeof own;
    bool fixed = p->is_static;
    int me = f->node_rank > 0 ? (int)f->node_rank : 0;
    bd_status rc = find_names(p, err);
    if (rc == BD_OK && uv_exepath(own, &n) == 0) {
        p->guard = bd_strdup(own);
    }
    if (rc == BD_OK) {
        worker_env(p);
        rc = open_store(p, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    const cli_agent_options opt = {
        .guard = p->guard,
        .argv = &p->argv,
        .rdzv = {.id = f->rdzv_id,
                 .min_nodes = fixed ? 1 : p->min_nodes,
                 .max_nodes = fixed ? 1 : p->max_nodes,
                 .n_ranks = p->n_ranks,
                 .node_rank = fixed || f->standalone ? -1 : (int)f->node_rank,
                 .host = p->host,
                 .address = p->address,
                 .max_restarts = (int)f->max_restarts,
                 .join_ms = f->join_timeout,
                 .last_call_ms = f->last_call,
                 .beat_ms = f->monitor_interval},
        .store = p->store,
        .serves = p->server != NULL,
        .address0 = fixed && f->master_addr[0] == '\0' ? "127.0.0.1" : f->master_addr,
        .port0 = fixed && f->master_port == 0 ? 29500 : (int)f->master_port,
        .first_rank = me * p->n_ranks,
        .world = fixed ? p->max_nodes * p->n_ranks : 0,
        .group_rank = me,
        .n_groups = p->max_nodes,
        .role = f->role,
        .env = &p->env,
        .is_worker = p->is_worker,
        .log_dir = p->log_dir,
        .redirects = p->redirects,
        .tee = p->tee,
        .show = p->show,
    };
    return cli_agent_run(&opt, io, exit_code, err);
}

static bd_status run(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    plan *p = bd_calloc(1, sizeof *p);
    bd_options o;
    *exit_code = BD_EXIT_OK;
    if (p == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "launch");
    }
    bd_status rc = bd_options_init(&o, table, N_OPTIONS, &p->flags, err);
    if (rc != BD_OK) {
        bd_free(p);
        return rc;
    }
    int n_own = cli_torch_count_own(&o, argc, argv);
    rc = cli_torch_load(&o, n_own, argv, &p->module_next, err);
    n_own += n_own < argc && strcmp(argv[n_own], "--") == 0;
    static bd_status (*const steps[])(plan *, bd_err *) = {parse_nodes, parse_ranks, parse_output,
                                                           parse_backend};
    for (size_t i = 0; rc == BD_OK && i < sizeof steps / sizeof steps[0]; i++) {
        rc = steps[i](p, err);
    }
    if (rc == BD_OK) {
        rc = find_program(p, argc - n_own, argv + n_own, err);
    }
    if (rc == BD_OK) {
        rc = run_plan(p, io, exit_code, err);
    }
    plan_deinit(p);
    bd_options_deinit(&o);
    bd_free(p);
    return rc;
}

const cli_cmd cli_cmd_launch = {
    .name = "launch",
    .usage = "[OPTIONS] PROGRAM|SCRIPT.py [ARGS]",
    .help =
        "Runs a program on this host, once for each of its ranks, in step with the launchers of "
        "other hosts; options and variables as torchrun's.",
    CLI_OPTIONS(table),
    .words = "file",
    .passes_on = true,
    .run = run};
