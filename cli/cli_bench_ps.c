/* `braid bench ps`: rows a second between trainers and parameter servers, each a process of its
 * own. Values are checked against what they must be before anything is timed. */
#include "cli/cli_bench_ps.h"

#include "base/clock.h"
#include "base/exit_code.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/num/row_codec.h"

#include "cli/cli_bench.h"
#include "rpc/rpc.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT(field) offsetof(bench_ps_flags, field)

static const bd_opt table[] = {
    {"op", BD_OPT_ENUM, AT(op), "lookup", 0, 0, "lookup|push|mixed",
     "What is timed; mixed: every batch is looked up, then pushed."},
    {"keys", BD_OPT_LIST, AT(keys), "4096", 0, 0, NULL,
     "Keys in a batch; several sizes, separated by commas, are measured one after the other."},
    {"dim", BD_OPT_I64, AT(dim), "64", 1, 65536, NULL, "Elements of a row."},
    {"dtype", BD_OPT_ENUM, AT(dtype), "f32", 0, 0, "f32|f16|bf16|i8",
     "Type of the stored weights."},
    {"rows", BD_OPT_I64, AT(rows), "1000000", 1, 1e11, NULL, "Rows of the table."},
    {"dist", BD_OPT_ENUM, AT(dist), "uniform", 0, 0, "uniform|zipf", "How keys are drawn."},
    {"zipf", BD_OPT_F64, AT(zipf), "1.05", 0.01, 10, NULL, "Exponent of --dist zipf."},
    {"durability", BD_OPT_ENUM, AT(durability), "journal", 0, 0, "checkpoint|journal|sync",
     "Of the table."},
    {"optimizer", BD_OPT_STR, AT(optimizer), "adagrad", 0, 0, NULL, "What applies gradients."},
    {"consistency", BD_OPT_ENUM, AT(consistency), "async", 0, 0, "async|sync",
     "Of the job; sync: a push is followed by its commit, and both are timed."},
    {"servers", BD_OPT_I64, AT(servers), "1", 1, CLI_BENCH_MAX_SERVERS, NULL,
     "Servers to start, unless --coordinator names running ones."},
    {"clients", BD_OPT_I64, AT(clients), "1", 1, BENCH_PS_MAX_CLIENTS, NULL, "Client processes."},
    {"depth", BD_OPT_I64, AT(depth), "1", 1, 16, NULL,
     "Lookups in flight at once; more than 1 is what a trainer that prefetches does."},
    {"seconds", BD_OPT_F64, AT(seconds), "2", 0.01, 3600, NULL, "Timed length of each size."},
    {"wire_rows", BD_OPT_ENUM, AT(wire_rows), "f32", 0, 0, "f32|f16|bf16|i8",
     "How looked-up rows travel."},
    {"wire_grads", BD_OPT_ENUM, AT(wire_grads), "f32", 0, 0, "f32|f16|bf16|i8",
     "How gradients travel."},
    {"codec", BD_OPT_ENUM, AT(codec), "none", 0, 0, "none|lz4|zstd",
     "What compresses rows and gradients on their way."},
    {"spin_us", BD_OPT_I64, AT(spin_us), "0", 0, 1000, NULL,
     "Clients poll for so long before they sleep, in microseconds."},
    {"coordinator", BD_OPT_STR, AT(coordinator), "", 0, 0, NULL,
     "host:port of server 0 of running servers; the benchmark's table stays on them."},
    {"data_dir", BD_OPT_STR, AT(data_dir), "", 0, 0, NULL,
     "Where the started servers keep their data; empty: $TMPDIR or /tmp."},
    {"ps_set", BD_OPT_LIST, AT(ps_set), "", 0, 0, NULL,
     "Options of the started servers, key=value,..., such as journal_cap=1GiB."},
    {"json", BD_OPT_BOOL, AT(json), "no", 0, 0, NULL, "One JSON object a line."},
};

static bd_status parse_sizes(bench_ps *b, bd_err *err)
{
    const bd_str_list *list = &b->flags->keys;
    if (list->n == 0 || list->n > BENCH_PS_MAX_SIZES) {
        return bd_err_set(err, BD_E_USAGE, "bench: --keys has %zu sizes, not 1 to %d", list->n,
                          BENCH_PS_MAX_SIZES);
    }
    for (size_t i = 0; i < list->n; i++) {
        char *end = NULL;
        unsigned long long n = strtoull(list->items[i], &end, 10);
        if (end == list->items[i] || *end != '\0' || list->items[i][0] == '-' || n == 0 ||
            n > 10000000) {
            return bd_err_set(err, BD_E_USAGE, "bench: --keys \"%.64s\" is not 1 to 10000000",
                              list->items[i]);
        }
        b->sizes[b->n_sizes++] = (size_t)n;
        b->max_keys = n > b->max_keys ? (size_t)n : b->max_keys;
    }
    return BD_OK;
}

/* ---- report ---- */
static int by_value(const void *a, const void *b)
{
    float x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

typedef struct line {
    double rows_per_s, p50_us, p99_us;
} line;

static bd_status sum_up(const bench_ps *b, line *out, bd_err *err)
{
    size_t n = 0, n_clients = (size_t)b->flags->clients;
    float *all = bd_alloc(n_clients * BENCH_PS_MAX_SAMPLES * sizeof *all);
    if (all == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "bench");
    }
    *out = (line){0};
    for (size_t i = 0; i < n_clients; i++) {
        const bench_ps_result *r = &b->shared->results[i];
        out->rows_per_s += r->seconds > 0 ? (double)r->rows / r->seconds : 0;
        memcpy(all + n, r->us, r->n_samples * sizeof *all);
        n += r->n_samples;
    }
    qsort(all, n, sizeof *all, by_value);
    if (n > 0) {
        out->p50_us = (double)all[n / 2];
        out->p99_us = (double)all[n - 1 - n / 100];
    }
    bd_free(all);
    return BD_OK;
}

static void put_line(bd_json *j, const bench_ps *b, size_t n_keys, const line *l)
{
    const bench_ps_flags *f = b->flags;
    char dist[32];
    (void)snprintf(dist, sizeof dist, strcmp(f->dist, "zipf") == 0 ? "zipf:%g" : "uniform",
                   f->zipf);
    bd_json_obj(j);
    bd_json_put_str(j, "op", f->op);
    bd_json_put_i64(j, "keys_per_batch", (int64_t)n_keys);
    bd_json_put_i64(j, "dim", f->dim);
    bd_json_put_i64(j, "row_bytes", (int64_t)b->row_bytes);
    bd_json_put_str(j, "dist", dist);
    bd_json_put_str(j, "durability", f->durability);
    bd_json_put_i64(j, "servers", f->servers);
    bd_json_put_i64(j, "clients", f->clients);
    bd_json_put_f64(j, "rows_per_s", l->rows_per_s);
    bd_json_put_f64(j, "bytes_per_s", l->rows_per_s * (double)b->row_bytes);
    bd_json_put_f64(j, "p50_us", l->p50_us);
    bd_json_put_f64(j, "p99_us", l->p99_us);
    bd_json_put_u64(j, "server_rss_bytes", cli_bench_servers_rss_bytes(&b->servers));
    bd_json_obj_end(j);
}

bd_status bench_ps_report(const bench_ps *b, size_t n_keys, bd_err *err)
{
    line l = {0};
    bd_status rc = sum_up(b, &l, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (!b->flags->json) {
        (void)fprintf(b->io->out, "%8zu %14.0f %10.0f %10.1f %10.1f %10.1f\n", n_keys, l.rows_per_s,
                      l.rows_per_s * (double)b->row_bytes * 1e-6, l.p50_us, l.p99_us,
                      (double)cli_bench_servers_rss_bytes(&b->servers) * 0x1p-20);
        (void)fflush(b->io->out);
        return BD_OK;
    }
    bd_json j;
    bd_json_init(&j);
    put_line(&j, b, n_keys, &l);
    const char *text = bd_json_text(&j);
    if (text != NULL) {
        (void)fprintf(b->io->out, "%s\n", text);
        (void)fflush(b->io->out);
    }
    rc = text != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "bench");
    bd_json_deinit(&j);
    return rc;
}

static void print_head(const bench_ps *b)
{
    const bench_ps_flags *f = b->flags;
    (void)fprintf(b->io->out,
                  "ps %s: dim %" PRId64 " %s (%zu bytes a row), %" PRId64 " rows, %s keys, %s, %s, "
                  "%" PRId64 " servers, %" PRId64 " clients, depth %" PRId64 ", %ld cpus\n",
                  f->op, f->dim, f->dtype, b->row_bytes, f->rows, f->dist, f->durability,
                  f->consistency, f->servers, f->clients, f->depth, sysconf(_SC_NPROCESSORS_ONLN));
    (void)fprintf(b->io->out, "%8s %14s %10s %10s %10s %10s\n", "keys", "rows/s", "MB/s", "p50 us",
                  "p99 us", "ps MiB");
    (void)fflush(b->io->out);
}

/* ---- processes ---- */
static void child(const bench_ps *b, int rank)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    cli_bench_signals_default();
    rpc_tune_process();
    bd_err *err = &b->shared->errors[rank];
    bd_status rc = bench_ps_client_run(b, rank, err);
    if (rc != BD_OK) {
        atomic_store(&b->shared->failed, 1);
    }
    (void)fflush(b->io->out);
    _exit(rc == BD_OK ? 0 : 1);
}

static bd_status result_of(const bench_ps *b, int rank, int status, bd_err *err)
{
    const bd_err *why = &b->shared->errors[rank];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return BD_OK;
    }
    return why->code != BD_OK
               ? bd_err_set(err, why->code, "bench: client %d: %s", rank, why->text)
               : bd_err_set(err, BD_E_PEER_LOST, "bench: client %d ended by signal %d", rank,
                            WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

/* Waits for pids[r]; after a signal for none of them. */
static int wait_client(const pid_t *pids, int r, int n)
{
    int status = 0;
    bool killed = false;
    while (waitpid(pids[r], &status, WNOHANG) == 0) {
        for (int k = r; k < n && !killed && cli_bench_signo() != 0; k++) {
            (void)kill(pids[k], SIGKILL);
        }
        killed = cli_bench_signo() != 0;
        bd_sleep_ms(10);
    }
    return status;
}

/* Starts all clients and waits for them; of their failures, the one that is not "another client
 * failed" is the result. */
static bd_status run_clients(const bench_ps *b, bd_err *err)
{
    pid_t pids[BENCH_PS_MAX_CLIENTS];
    int n = 0;
    bd_status rc = BD_OK;
    (void)fflush(NULL); /* children would write it again */
    for (; rc == BD_OK && n < b->flags->clients; n++) {
        pids[n] = fork();
        if (pids[n] == 0) {
            child(b, n);
        }
        if (pids[n] < 0) {
            rc = bd_err_errno(err, BD_E_EXHAUSTED, errno, "bench: client %d", n);
            atomic_store(&b->shared->failed, 1);
            break;
        }
    }
    for (int r = 0; r < n; r++) {
        int status = wait_client(pids, r, n);
        bd_err why = BD_ERR_INIT;
        bd_status one = result_of(b, r, status, &why);
        if (one != BD_OK) {
            atomic_store(&b->shared->failed, 1); /* a killed one could not say so */
            if (rc == BD_OK || rc == BD_E_CANCELLED) {
                rc = one;
                *err = why;
            }
        }
    }
    return rc;
}

static bd_status start_servers(bench_ps *b, bd_err *err)
{
    const bench_ps_flags *f = b->flags;
    const char *parent = f->data_dir;
    if (f->coordinator[0] != '\0') {
        b->coordinator = f->coordinator;
        return BD_OK;
    }
    if (parent[0] == '\0') {
        parent = getenv("TMPDIR"); /* NOLINT(concurrency-mt-unsafe): no other thread yet */
        parent = parent != NULL ? parent : "/tmp";
    }
    bd_status rc = cli_bench_servers_start(&b->servers, (int)f->servers, parent, &f->ps_set, err);
    b->coordinator = b->servers.coordinator;
    return rc;
}

static bd_status bench(const bench_ps_flags *f, const cli_io *io, bd_err *err)
{
    bench_ps b = {.flags = f, .io = io};
    bd_status rc = parse_sizes(&b, err);
    if (rc != BD_OK) {
        return rc;
    }
    /* As it travels, before the codec; of mixed traffic: looked-up rows. */
    const char *wire = strcmp(f->op, "push") == 0 ? f->wire_grads : f->wire_rows;
    b.row_bytes = num_row_bytes(num_dtype_parse(wire), (size_t)f->dim);
    (void)snprintf(b.table, sizeof b.table, "bench-%ld", (long)getpid());
    size_t bytes = sizeof *b.shared + (size_t)f->clients * sizeof b.shared->results[0];
    b.shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b.shared == MAP_FAILED) {
        return bd_err_errno(err, BD_E_NOMEM, errno, "bench");
    }
    cli_bench_signals_watch();
    rc = start_servers(&b, err);
    if (rc == BD_OK) {
        if (!f->json) {
            print_head(&b);
        }
        rc = run_clients(&b, err);
        bd_err why = BD_ERR_INIT;
        bd_status stopped = cli_bench_servers_stop(&b.servers, &why);
        if (rc == BD_OK && stopped != BD_OK) {
            *err = why;
            rc = stopped;
        }
    }
    (void)munmap(b.shared, bytes);
    cli_bench_signals_default();
    if (cli_bench_signo() != 0) {
        (void)raise(cli_bench_signo()); /* nothing is left behind: end as asked */
    }
    return rc;
}

static bd_status run(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    bench_ps_flags f = {0};
    bd_options o;
    *exit_code = BD_EXIT_OK;
    bd_status rc = bd_options_init(&o, table, sizeof table / sizeof table[0], &f, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = cli_cmd_parse(&o, &argc, argv, NULL, NULL, err);
    if (rc == BD_OK && strcmp(f.consistency, "sync") == 0 && f.depth > 1) {
        rc = bd_err_set(err, BD_E_USAGE,
                        "bench: --depth is 1 with --consistency sync: a lookup "
                        "waits for the step before");
    }
    if (rc == BD_OK) {
        rc = bench(&f, io, err);
    }
    bd_options_deinit(&o);
    return rc;
}

const cli_cmd cli_bench_ps = {
    .name = "ps",
    .usage = "--op lookup|push|mixed [--keys N,...] [--dim D] [--dist uniform|zipf] ...",
    .help = "Measures lookups and pushes of rows between clients and parameter servers.",
    CLI_OPTIONS(table),
    .run = run};
