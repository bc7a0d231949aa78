/* `braid bench allreduce`: how fast ranks of this machine sum vectors. Each rank is a process of
 * its own, forked from here. Every size is checked against the expected sums before it is timed. */
#include "base/clock.h"
#include "base/exit_code.h"
#include "base/json.h"
#include "base/mem.h"

#include "cli/cli_bench.h"
#include "cli/cli_bench_kv.h"
#include "ring/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_RANKS 64
#define MAX_REPS  101

typedef struct bench_flags {
    int64_t ranks, reps, hosts, connections;
    const char *backend, *bytes, *dtype, *buffers, *interface, *netns;
    bool rewrite, json;
} bench_flags;

#define AT(field) offsetof(bench_flags, field)

static const bd_opt table[] = {
    {"ranks", BD_OPT_I64, AT(ranks), "2", 1, MAX_RANKS, NULL, "Processes that take part."},
    {"backend", BD_OPT_ENUM, AT(backend), "shm", 0, 0, "shm|tcp|hier",
     "What carries the data; hier: as on several hosts, shm inside each and tcp between them."},
    {"bytes", BD_OPT_STR, AT(bytes), "4KiB:64MiB", 0, 0, NULL,
     "Smallest and largest vector, MIN:MAX; each size is 4 times the one before."},
    {"dtype", BD_OPT_ENUM, AT(dtype), "f32", 0, 0, "f32|f16|bf16|f64|i32|i64|u8|i8",
     "Type of the elements."},
    {"buffers", BD_OPT_ENUM, AT(buffers), "ring", 0, 0, "ring|any",
     "ring: vectors in memory of ring_alloc, as the reducer's buckets are; any: plain memory."},
    {"hosts", BD_OPT_I64, AT(hosts), "2", 1, MAX_RANKS, NULL, "hier: hosts to pretend."},
    {"connections", BD_OPT_I64, AT(connections), "1", 1, 16, NULL,
     "tcp: connections between two ranks."},
    {"interface", BD_OPT_STR, AT(interface), "", 0, 0, NULL,
     "tcp: network interface, by name or address prefix; empty: loopback."},
    {"netns", BD_OPT_STR, AT(netns), "", 0, 0, NULL,
     "NAME,NAME,...: rank r runs in the network namespace NAME number r modulo their count."},
    {"reps", BD_OPT_I64, AT(reps), "7", 1, MAX_REPS, NULL, "Timed repetitions; the median counts."},
    {"rewrite", BD_OPT_BOOL, AT(rewrite), "no", 0, 0, NULL,
     "Write the vector anew before each call, outside the timed part, as a training step does; "
     "the slowest rank counts."},
    {"json", BD_OPT_BOOL, AT(json), "no", 0, 0, NULL, "One JSON object a line."},
};

/* Of all ranks, in shared memory. */
typedef struct bench_shared {
    bd_err errors[MAX_RANKS];
} bench_shared;

typedef struct bench {
    const bench_flags *flags;
    const cli_io *io;
    size_t min_bytes, max_bytes;
    num_dtype dtype;
    bd_kv *kv;
    bench_shared *shared;
} bench;

typedef struct bench_rank {
    const bench *b;
    ring_comm *comm;
    int rank;
    uint8_t *v;
} bench_rank;

/* "4KiB", "64m", "100". */
static bool parse_size(const char *text, const char **end, size_t *out)
{
    char *rest = NULL;
    errno = 0;
    unsigned long long n = strtoull(text, &rest, 10);
    size_t unit = 1;
    if (rest == text || errno != 0 || text[0] == '-') {
        return false;
    }
    switch (*rest) {
    case 'k':
    case 'K':
        unit = (size_t)1 << 10;
        break;
    case 'm':
    case 'M':
        unit = (size_t)1 << 20;
        break;
    case 'g':
    case 'G':
        unit = (size_t)1 << 30;
        break;
    default:
        break;
    }
    rest += unit > 1 ? 1 : 0;
    rest += unit > 1 && strncmp(rest, "iB", 2) == 0 ? 2 : 0;
    *end = rest;
    return bd_mul_size((size_t)n, unit, out);
}

static bd_status parse_range(bench *b, bd_err *err)
{
    const char *end = NULL;
    bool ok = parse_size(b->flags->bytes, &end, &b->min_bytes);
    b->max_bytes = b->min_bytes;
    if (ok && *end == ':') {
        ok = parse_size(end + 1, &end, &b->max_bytes);
    }
    if (!ok || *end != '\0' || b->min_bytes < 8 || b->max_bytes < b->min_bytes ||
        b->max_bytes > (size_t)1 << 40) {
        return bd_err_set(err, BD_E_USAGE,
                          "bench: --bytes is \"%s\", not MIN:MAX such as 4KiB:64MiB",
                          b->flags->bytes);
    }
    return BD_OK;
}

/* Sums of small whole numbers are exact in every type. */
static double value_at(int rank, size_t i)
{
    return (double)((size_t)rank % 2 + i % 3);
}

static void store(const bench_rank *me, size_t i, double x)
{
    switch (me->b->dtype) {
    case NUM_F32:
        ((float *)(void *)me->v)[i] = (float)x;
        break;
    case NUM_F16:
        ((uint16_t *)(void *)me->v)[i] = num_f32_to_f16((float)x);
        break;
    case NUM_BF16:
        ((uint16_t *)(void *)me->v)[i] = num_f32_to_bf16((float)x);
        break;
    case NUM_F64:
        ((double *)(void *)me->v)[i] = x;
        break;
    case NUM_I32:
        ((int32_t *)(void *)me->v)[i] = (int32_t)x;
        break;
    case NUM_I64:
        ((int64_t *)(void *)me->v)[i] = (int64_t)x;
        break;
    case NUM_U8:
    case NUM_I8:
        me->v[i] = (uint8_t)x;
        break;
    }
}

static double load(const bench_rank *me, size_t i)
{
    switch (me->b->dtype) {
    case NUM_F32:
        return (double)((const float *)(const void *)me->v)[i];
    case NUM_F16:
        return (double)num_f16_to_f32(((const uint16_t *)(const void *)me->v)[i]);
    case NUM_BF16:
        return (double)num_bf16_to_f32(((const uint16_t *)(const void *)me->v)[i]);
    case NUM_F64:
        return ((const double *)(const void *)me->v)[i];
    case NUM_I32:
        return ((const int32_t *)(const void *)me->v)[i];
    case NUM_I64:
        return (double)((const int64_t *)(const void *)me->v)[i];
    case NUM_U8:
    case NUM_I8:
        break;
    }
    return me->v[i];
}

static bd_status check(bench_rank *me, size_t n, bd_err *err)
{
    int world = ring_world(me->comm);
    for (size_t i = 0; i < n; i++) {
        store(me, i, value_at(me->rank, i));
    }
    bd_status rc = ring_allreduce(me->comm, me->v, n, me->b->dtype, NUM_SUM, "check", NULL, err);
    for (size_t i = 0; rc == BD_OK && i < n; i++) {
        int half = world / 2; /* whole: that many ranks add 1 */
        double want = (double)half + (double)world * (double)(i % 3);
        if (load(me, i) != want) {
            rc = bd_err_set(err, BD_E_INTERNAL, "wrong sum at element %zu of %zu: %g, not %g", i, n,
                            load(me, i), want);
        }
    }
    memset(me->v, 0, n * num_dtype_bytes((int)me->b->dtype)); /* stays 0: no overflow */
    return rc;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

static size_t calls_for(size_t n_bytes)
{
    size_t n = ((size_t)64 << 20) / (n_bytes + 16384);
    return n < 1 ? 1 : n > 2000 ? 2000 : n;
}

static bd_status report(const bench_rank *me, size_t n_bytes, double *us, size_t reps, bd_err *err)
{
    const bench *b = me->b;
    double share = 2.0 * (double)(b->flags->ranks - 1) / (double)b->flags->ranks;
    qsort(us, reps, sizeof us[0], by_value);
    double median = us[reps / 2];
    double algbw = (double)n_bytes / median / 1e3;
    if (!b->flags->json) {
        (void)fprintf(b->io->out, "%12zu %12.2f %12.2f %12.2f %9.3f %9.3f\n", n_bytes, median,
                      us[0], us[reps - 1], algbw, algbw * share);
        (void)fflush(b->io->out);
        return BD_OK;
    }
    bd_json j;
    bd_json_init(&j);
    bd_json_obj(&j);
    bd_json_put_str(&j, "op", "allreduce");
    bd_json_put_str(&j, "backend", b->flags->backend);
    bd_json_put_i64(&j, "ranks", b->flags->ranks);
    bd_json_put_i64(&j, "bytes", (int64_t)n_bytes);
    bd_json_put_str(&j, "dtype", b->flags->dtype);
    bd_json_put_str(&j, "buffers", b->flags->buffers);
    bd_json_put_bool(&j, "rewrite", b->flags->rewrite);
    bd_json_put_f64(&j, "median_us", median);
    bd_json_put_f64(&j, "min_us", us[0]);
    bd_json_put_f64(&j, "max_us", us[reps - 1]);
    bd_json_put_f64(&j, "algbw_gbps", algbw);
    bd_json_put_f64(&j, "busbw_gbps", algbw * share);
    bd_json_obj_end(&j);
    const char *text = bd_json_text(&j);
    if (text != NULL) {
        (void)fprintf(b->io->out, "%s\n", text);
        (void)fflush(b->io->out);
    }
    bd_status rc = text != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "bench");
    bd_json_deinit(&j);
    return rc;
}

/* Calls one after the other. */
static bd_status time_calls(bench_rank *me, size_t n, size_t calls, int64_t *took_ns, bd_err *err)
{
    bd_status rc = ring_barrier(me->comm, "start", err);
    int64_t start_ns = bd_mono_ns();
    for (size_t k = 0; rc == BD_OK && k < calls; k++) {
        rc = ring_allreduce(me->comm, me->v, n, me->b->dtype, NUM_SUM, "time", NULL, err);
    }
    *took_ns = bd_mono_ns() - start_ns;
    return rc;
}

/* Ordinary stores, as of a kernel that writes gradients: no memset, which goes around the cache. */
static void rewrite(bench_rank *me, size_t n_bytes)
{
    uint64_t *v = (uint64_t *)(void *)me->v;
    for (size_t i = 0; i < n_bytes / sizeof *v; i++) {
        v[i] = UINT64_C(0x3f8000003f800000); /* f32: 1.0; finite in every type */
    }
}

static bd_status time_rewritten(bench_rank *me, size_t n, size_t calls, int64_t *took_ns,
                                bd_err *err)
{
    bd_status rc = BD_OK;
    double sum_ns = 0;
    for (size_t k = 0; rc == BD_OK && k < calls; k++) {
        rewrite(me, n * num_dtype_bytes((int)me->b->dtype));
        rc = ring_barrier(me->comm, "start", err);
        int64_t start_ns = bd_mono_ns();
        rc = rc != BD_OK
                 ? rc
                 : ring_allreduce(me->comm, me->v, n, me->b->dtype, NUM_SUM, "time", NULL, err);
        sum_ns += (double)(bd_mono_ns() - start_ns);
    }
    rc = rc != BD_OK ? rc
                     : ring_allreduce(me->comm, &sum_ns, 1, NUM_F64, NUM_MAX, "slowest", NULL, err);
    *took_ns = (int64_t)sum_ns;
    return rc;
}

static bd_status time_size(bench_rank *me, size_t n_bytes, bd_err *err)
{
    double us[MAX_REPS];
    size_t n = n_bytes / num_dtype_bytes((int)me->b->dtype);
    size_t calls = calls_for(n_bytes);
    int64_t reps = me->b->flags->reps;
    bd_status rc = check(me, n, err);
    for (int64_t rep = -1; rc == BD_OK && rep < reps; rep++) { /* the first one warms up */
        int64_t took_ns = 0;
        rc = me->b->flags->rewrite ? time_rewritten(me, n, calls, &took_ns, err)
                                   : time_calls(me, n, calls, &took_ns, err);
        if (rep >= 0) {
            us[rep] = (double)took_ns / 1e3 / (double)calls;
        }
    }
    return rc == BD_OK && me->rank == 0 ? report(me, n_bytes, us, (size_t)reps, err) : rc;
}

static bd_status run_sizes(bench_rank *me, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t n = me->b->min_bytes; rc == BD_OK && n <= me->b->max_bytes; n *= 4) {
        rc = time_size(me, n, err);
    }
    return rc;
}

/* The rank's one of the names, if there are any. Of this process. */
static bd_status enter_netns(const char *names, int rank, bd_err *err)
{
    char path[128];
    int n = 1;
    if (names[0] == '\0') {
        return BD_OK;
    }
    for (const char *c = names; *c != '\0'; c++) {
        n += *c == ',' ? 1 : 0;
    }
    const char *name = names;
    for (int skip = rank % n; skip > 0; skip--) {
        name = strchr(name, ',') + 1;
    }
    (void)snprintf(path, sizeof path, "/run/netns/%.*s", (int)strcspn(name, ","), name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "bench: network namespace %s", path);
    }
    (void)close(fd);
    return BD_OK;
}

static bd_status run_rank(const bench *b, int rank, bd_err *err)
{
    const bench_flags *f = b->flags;
    char host[32];
    bench_rank me = {.b = b, .rank = rank};
    ring_options opt = {.group = "bench",
                        .epoch = 1,
                        .n_connections = (int)f->connections,
                        .interface = f->interface};
    bool is_shared = strcmp(f->buffers, "ring") == 0;
    opt.backend = strcmp(f->backend, "shm") == 0 ? RING_SHM : RING_AUTO;
    if (strcmp(f->backend, "tcp") == 0) {
        opt.backend = RING_TCP;
    } else if (opt.backend == RING_AUTO) {
        (void)snprintf(host, sizeof host, "host %lld", (long long)(rank * f->hosts / f->ranks));
        opt.host = host;
    }
    bd_status rc = enter_netns(f->netns, rank, err);
    rc = rc != BD_OK ? rc : ring_new(b->kv, rank, (int)f->ranks, &opt, &me.comm, err);
    if (rc != BD_OK) {
        return rc;
    }
    me.v = is_shared ? ring_alloc(me.comm, b->max_bytes) : bd_alloc_aligned(64, b->max_bytes);
    rc = me.v != NULL ? run_sizes(&me, err)
                      : bd_err_set(err, BD_E_NOMEM, "bench: %zu bytes", b->max_bytes);
    if (is_shared) {
        ring_mem_release(me.comm, me.v);
    } else {
        bd_free(me.v);
    }
    ring_free(me.comm);
    return rc;
}

/* The child; never returns. */
static void child(const bench *b, int rank)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    bd_err *err = &b->shared->errors[rank];
    bd_status rc = run_rank(b, rank, err);
    (void)fflush(b->io->out);
    _exit(rc == BD_OK ? 0 : 1);
}

/* Starts all ranks and waits for them; the first failure is the result. */
static bd_status run_ranks(const bench *b, bd_err *err)
{
    pid_t pids[MAX_RANKS];
    int n = 0;
    bd_status rc = BD_OK;
    (void)fflush(NULL); /* children would write it again */
    for (; rc == BD_OK && n < b->flags->ranks; n++) {
        pids[n] = fork();
        if (pids[n] == 0) {
            child(b, n);
        }
        if (pids[n] < 0) {
            rc = bd_err_errno(err, BD_E_EXHAUSTED, errno, "bench: rank %d", n);
            break;
        }
    }
    for (int r = 0; r < n; r++) {
        int status = 0;
        pid_t got = -1;
        do {
            got = waitpid(pids[r], &status, 0);
        } while (got < 0 && errno == EINTR);
        if (rc == BD_OK && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
            const bd_err *why = &b->shared->errors[r];
            rc = why->code != BD_OK
                     ? bd_err_set(err, why->code, "bench: %s", why->text)
                     : bd_err_set(err, BD_E_PEER_LOST, "bench: rank %d ended by signal %d", r,
                                  WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        }
    }
    return rc;
}

static bd_status bench_allreduce(const bench_flags *f, const cli_io *io, bd_err *err)
{
    bench b = {.flags = f, .io = io, .dtype = (num_dtype)num_dtype_parse(f->dtype)};
    bd_status rc = parse_range(&b, err);
    if (rc != BD_OK) {
        return rc;
    }
    b.kv = cli_bench_kv_new();
    b.shared =
        mmap(NULL, sizeof *b.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b.kv == NULL || b.shared == MAP_FAILED) {
        cli_bench_kv_free(b.kv);
        return bd_err_set(err, BD_E_NOMEM, "bench");
    }
    if (!f->json) {
        (void)fprintf(io->out, "allreduce %s, %s, %lld ranks, %s buffers, %ld cpus\n", f->dtype,
                      f->backend, (long long)f->ranks, f->buffers, sysconf(_SC_NPROCESSORS_ONLN));
        (void)fprintf(io->out, "%12s %12s %12s %12s %9s %9s\n", "bytes", "median us", "min us",
                      "max us", "GB/s", "bus GB/s");
    }
    rc = run_ranks(&b, err);
    (void)munmap(b.shared, sizeof *b.shared);
    cli_bench_kv_free(b.kv);
    return rc;
}

static bd_status run(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    bench_flags f = {0};
    bd_options o;
    *exit_code = BD_EXIT_OK;
    bd_status rc = bd_options_init(&o, table, sizeof table / sizeof table[0], &f, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = cli_cmd_parse(&o, &argc, argv, NULL, NULL, err);
    if (rc == BD_OK) {
        rc = bench_allreduce(&f, io, err);
    }
    bd_options_deinit(&o);
    return rc;
}

const cli_cmd cli_bench_allreduce = {
    .name = "allreduce",
    .usage = "[--ranks N] [--backend shm|tcp|hier] [--bytes MIN:MAX] ...",
    .help = "Measures the ring on this machine: latency and bandwidth by size.",
    CLI_OPTIONS(table),
    .run = run};
