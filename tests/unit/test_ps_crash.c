/* Two ranks train on braid-ps processes that are killed at random moments, through a network that
 * delays, cuts, loses and repeats: the tables end with the bits of a run that nothing disturbed.
 *
 *   test_ps_crash                            a few kills, and a bad network for some steps
 *   test_ps_crash ROUNDS [SEED [MODE]]       so many kills; MODE: sync, async, bounded, net (four
 * steps a round) or all
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "client/client.h"

#include "tests/util/tu_host.h"
#include "tests/util/tu_proxy.h"
#include "tests/util/tu_shard.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_SERVERS 2
#define WORLD     2
#define DIM       8u
#define N_IDS     ((size_t)60)
#define N_KEYS    300u
#define N_TABLES  4  /* in sync: two without rules, two with all kinds of them */
#define BASE      6u /* steps of an undisturbed run at least */

extern char **environ;

/* 5 of 100 messages at each server meet trouble, and the proxy adds its own. */
#define NET_FAULTS                                                                   \
    "BRAID_FAULTS=ps.stream.lose_request=share:12,ps.stream.lose_reply=share:13,ps." \
    "stream.repeat=share:25"

typedef struct cluster {
    char dir[64], binary[512];
    pid_t pids[N_SERVERS];
    char address[N_SERVERS][64]; /* stays over a restart */
    tu_proxy *proxies[N_SERVERS];
    bool faulty;
} cluster;

static pid_t running[N_SERVERS]; /* 0: none; ended with the test, whose pipes they hold */

static void check(bool ok, const char *what)
{
    if (!ok) {
        (void)fprintf(stderr, "FAILED: %s\n", what);
        for (int i = 0; i < N_SERVERS; i++) {
            if (running[i] != 0) {
                (void)kill(running[i], SIGKILL);
            }
        }
        abort();
    }
}

/* ---- servers ---- */
static void read_ready(int fd, char *address, size_t cap)
{
    char line[128];
    size_t n = 0;
    while (n == 0 || line[n - 1] != '\n') {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        check(n < sizeof line && poll(&p, 1, 60000) == 1 && read(fd, line + n, 1) == 1,
              "a server comes up");
        n++;
    }
    line[n - 1] = '\0';
    check(strncmp(line, "READY ", 6) == 0, "READY");
    (void)snprintf(address, cap, "%s", line + 6);
}

/* Our environment and the faults; one block of memory. */
static char **with_faults(void)
{
    static char faults[] = NET_FAULTS;
    size_t n = 0;
    while (environ[n] != NULL) {
        n++;
    }
    char **env = bd_calloc(n + 2, sizeof *env);
    check(env != NULL, "memory");
    memcpy(env, environ, n * sizeof *env);
    env[n] = faults;
    return env;
}

static void start_server(cluster *c, int i)
{
    char dir[96], index[8], fd[8], advertised[64], listen[64];
    int ends[2];
    (void)snprintf(dir, sizeof dir, "%s/ps-%d", c->dir, i);
    (void)snprintf(index, sizeof index, "%d", i);
    check(pipe(ends) == 0 && fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0, "pipe");
    (void)snprintf(fd, sizeof fd, "%d", ends[1]);
    (void)snprintf(listen, sizeof listen, "%s",
                   c->address[i][0] == '\0' ? tu_host_any_port() : c->address[i]);
    char coordinator[64];
    (void)snprintf(coordinator, sizeof coordinator, "%s", c->address[0]);
    char *argv[] = {c->binary,   "--index",
                    index,       "--servers",
                    "2",         "--data-dir",
                    dir,         "--ready-fd",
                    fd,          "--log-level",
                    "error",     "--journal-cap",
                    "1MiB",      "--listen",
                    listen,      "--coordinator",
                    coordinator, c->proxies[i] == NULL ? NULL : "--advertise",
                    advertised,  NULL};
    if (c->proxies[i] != NULL) {
        (void)snprintf(advertised, sizeof advertised, "%s", tu_proxy_address(c->proxies[i]));
    }
    char **env = c->faulty ? with_faults() : NULL;
    check(posix_spawn(&c->pids[i], c->binary, NULL, NULL, argv, c->faulty ? env : environ) == 0,
          "spawn");
    running[i] = c->pids[i];
    bd_free(env);
    (void)close(ends[1]);
    char
        said[64]; /* with a proxy: the advertised address, so the bound port is read from the log */
    read_ready(ends[0], said, sizeof said);
    (void)close(ends[0]);
    if (c->proxies[i] == NULL) {
        (void)snprintf(c->address[i], sizeof c->address[i], "%s", said);
    }
}

static void start_cluster(cluster *c, bool net, uint64_t seed)
{
    *c = (cluster){.faulty = net};
    tu_dir_new(c->dir);
    ssize_t len = readlink("/proc/self/exe", c->binary, sizeof c->binary - 32);
    check(len > 0, "readlink");
    (void)snprintf(strrchr(c->binary, '/') + 1, 32, "braid-ps");
    for (int i = 0; i < N_SERVERS; i++) {
        if (net) {
            c->proxies[i] = tu_proxy_new(&(tu_proxy_options){.seed = seed + (uint64_t)i,
                                                             .delay_permille = 50,
                                                             .delay_ms = 10,
                                                             .cut_permille = 10});
            /* free, as this process alone uses the host */
            (void)snprintf(c->address[i], sizeof c->address[i], "%s:%d", tu_host(), 20000 + i);
            tu_proxy_set_target(c->proxies[i], c->address[i]);
        }
        start_server(c, i);
    }
}

static void kill_server(cluster *c, int i)
{
    int status = 0;
    check(kill(c->pids[i], SIGKILL) == 0 && waitpid(c->pids[i], &status, 0) == c->pids[i], "kill");
    running[i] = 0;
    check(WIFSIGNALED(status), "it had not ended by itself");
}

static void stop_cluster(cluster *c)
{
    for (int i = N_SERVERS; i-- > 0;) {
        int status = 0;
        check(kill(c->pids[i], SIGTERM) == 0 && waitpid(c->pids[i], &status, 0) == c->pids[i] &&
                  WIFEXITED(status) && WEXITSTATUS(status) == 0,
              "a server ends well");
        running[i] = 0;
        if (c->proxies[i] != NULL) {
            (void)printf("proxy %d: %" PRIu64 " connections cut, %" PRIu64 " pieces held back\n", i,
                         tu_proxy_cuts(c->proxies[i]), tu_proxy_delays(c->proxies[i]));
            tu_proxy_free(c->proxies[i]);
        }
    }
    tu_dir_drop(c->dir);
}

/* ---- ranks ---- */
static _Atomic uint64_t last_step; /* 0: not known yet */
static _Atomic uint64_t begun[WORLD];

typedef struct trainer {
    const cluster *cluster;
    cl_job job;
    uint32_t tables[N_TABLES];
    size_t n_tables;
    rpc_env *env;
    cl_client *client;
    pthread_t thread;
} trainer;

static void connect_trainer(trainer *t, const cluster *c, cl_consistency consistency, int rank)
{
    bd_err err;
    bool sync = consistency == CL_SYNC;
    cl_param opt = {"learning_rate", sync ? 0.05 : 0.5}, zero = {"value", 0};
    cl_options o = {.coordinator = c->address[0],
                    .name = rank == 0 ? "rank-0" : "rank-1",
                    .ps_wait_ms = 60000,
                    .part_bytes = 1024};
    *t = (trainer){.cluster = c, .job = {.epoch = 1, .rank = rank, .world = WORLD}};
    t->job.consistency = consistency;
    tu_must(rpc_env_new(&(rpc_env_options){.n_queues = 1, .n_threads = 1}, &t->env, &err), &err);
    tu_must(cl_client_new(t->env, &o, &t->client, &err), &err);
    if (rank == 0) {
        tu_must(cl_job_open(t->client, &t->job, NULL, 1, &err), &err);
    }
    cl_job_join(t->client, &t->job);
    static const char *const names[N_TABLES] = {"journaled", "synced", "counted", "sketched"};
    static const char *const admission[N_TABLES] = {
        NULL, NULL, "frequency(count=2, within_steps=9)", "sketch(count=2)"};
    static const char *const eviction[N_TABLES] = {
        NULL, NULL, "ttl(steps=4, every=2); lru(max_rows=90, every=4)",
        "lfu(max_rows=120, every=2); norm(below=0.2)"};
    t->n_tables = sync ? N_TABLES : 2;
    for (size_t k = 0; k < t->n_tables; k++) {
        cl_table_spec spec = {.name = names[k],
                              .dim = DIM,
                              .initializer = sync ? "normal" : "constant",
                              .init_params = &zero,
                              .n_init_params = sync ? 0 : 1,
                              .seed = 3,
                              .optimizer = sync ? "adam" : "sgd",
                              .opt_params = &opt,
                              .n_opt_params = 1,
                              .admission = admission[k],
                              .eviction = eviction[k],
                              .durability = k % 2 == 0 ? "journal" : "sync"};
        tu_must(cl_table_create(t->client, &spec, &t->tables[k], &err), &err);
    }
}

/* Sync: gradients depend on the rows, so that any lost or doubled update shows for good. Else:
 * whole numbers, whose sums are exact in any order. */
static float *gradients(const trainer *t, const cl_table_rows *rows, uint64_t step)
{
    float *g = bd_alloc(rows->n_unique * DIM * sizeof *g);
    for (size_t i = 0; i < rows->n_unique * DIM; i++) {
        g[i] = t->job.consistency == CL_SYNC
                   ? rows->rows[i] * 0.3f + (float)(t->job.rank + 1) * 0.1f
                   : (float)(bd_mix64(rows->keys[i / DIM] + step * 7 + (uint64_t)t->job.rank) % 5);
    }
    return g;
}

static uint64_t after_of(cl_consistency c, uint64_t step)
{
    if (c == CL_SYNC) {
        return step - 1;
    }
    return c == CL_BOUNDED && step > 2 ? step - 2 : 0;
}

static void train_step(trainer *t, uint64_t step)
{
    bd_err err;
    cl_rows *r = NULL;
    uint64_t ids[N_TABLES][N_IDS];
    float *grads[N_TABLES];
    cl_ids asked[N_TABLES];
    for (size_t i = 0; i < N_TABLES * N_IDS; i++) {
        ids[i / N_IDS][i % N_IDS] =
            bd_mix64(bd_rand_u64(2, (uint64_t)t->job.rank, step * 1000 + i) % N_KEYS);
    }
    for (size_t k = 0; k < t->n_tables; k++) {
        asked[k] = (cl_ids){.table_id = t->tables[k], .dim = DIM, .ids = ids[k], .n_ids = N_IDS};
    }
    tu_must(cl_rows_prepare(t->client, asked, t->n_tables, &r, &err), &err);
    tu_must(cl_rows_fetch(r, after_of(t->job.consistency, step), &err), &err);
    tu_must(cl_rows_wait(r, &err), &err);
    for (size_t k = 0; k < t->n_tables; k++) {
        grads[k] = gradients(t, cl_rows_table(r, k), step);
    }
    tu_must(cl_push_start(t->client, step, r, grads, &err), &err);
    tu_must(cl_push_wait(t->client, &err), &err);
    if (t->job.consistency == CL_SYNC) {
        tu_must(cl_commit(t->client, step, true, 1.0, &err), &err);
    }
    for (size_t k = 0; k < t->n_tables; k++) {
        bd_free(grads[k]);
    }
    cl_rows_free(r);
}

static void *train_main(void *user)
{
    trainer *t = user;
    for (uint64_t step = 1;; step++) {
        uint64_t last = atomic_load(&last_step);
        if (last != 0 && step > last) {
            return NULL;
        }
        atomic_store(&begun[t->job.rank], step);
        train_step(t, step);
    }
}

static void wait_for_step(uint64_t step, int rank)
{
    int64_t end = bd_mono_ns() + 60 * BD_NS_PER_S;
    while (atomic_load(&begun[rank]) < step) {
        check(bd_mono_ns() < end, "training goes on");
        bd_sleep_ms(1);
    }
}

/* Kills servers at moments of the seed, then lets the ranks end together a few steps later. */
static void disturb(cluster *c, int rounds, uint64_t seed)
{
    for (int i = 0; i < rounds; i++) {
        uint64_t r = bd_rand_u64(seed, 5, (uint64_t)i);
        wait_for_step(atomic_load(&begun[i % WORLD]) + 1 + r % 5, i % WORLD);
        (void)usleep((useconds_t)((r >> 8) % 2000)); /* the random moment itself */
        int server = (int)((r >> 32) % N_SERVERS);
        kill_server(c, server);
        start_server(c, server);
    }
    uint64_t most = BASE;
    for (int i = 0; i < WORLD; i++) {
        uint64_t at = atomic_load(&begun[i]);
        most = at > most ? at : most;
    }
    atomic_store(&last_step, most + 3);
}

static uint64_t run(cl_consistency consistency, bool net, int rounds, uint64_t seed, uint64_t steps)
{
    cluster c;
    trainer t[WORLD];
    bd_err err;
    uint64_t hash = 0, rows = 0;
    start_cluster(&c, net, seed);
    atomic_store(&last_step, steps);
    for (int i = 0; i < WORLD; i++) {
        atomic_store(&begun[i], 0);
        connect_trainer(&t[i], &c, consistency, i);
    }
    for (int i = 0; i < WORLD; i++) {
        check(pthread_create(&t[i].thread, NULL, train_main, &t[i]) == 0, "thread");
    }
    if (steps == 0) {
        disturb(&c, rounds, seed);
    }
    for (int i = 0; i < WORLD; i++) {
        (void)pthread_join(t[i].thread, NULL);
    }
    tu_must(cl_param_hash(t[0].client, &hash, &rows, &err), &err);
    for (int i = 0; i < WORLD; i++) {
        cl_client_free(t[i].client);
        rpc_env_free(t[i].env);
    }
    stop_cluster(&c);
    check(rows > N_KEYS, "there are rows in both tables");
    return hash;
}

static void compare(const char *mode, cl_consistency consistency, bool net, int rounds,
                    uint64_t seed)
{
    int64_t start = bd_mono_ns();
    uint64_t got = run(consistency, net, rounds, seed, net ? 4 * (uint64_t)rounds : 0);
    uint64_t steps = atomic_load(&last_step);
    uint64_t want = run(consistency, false, 0, seed, steps);
    (void)printf("%s: seed %" PRIu64 ", %d kills%s, %" PRIu64
                 " steps, %.1f s: param_hash %016" PRIx64 ", undisturbed %016" PRIx64 "\n",
                 mode, seed, net ? 0 : rounds, net ? ", bad network" : "", steps,
                 (double)(bd_mono_ns() - start) * 1e-9, got, want);
    check(got == want, "the tables are those of an undisturbed run");
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 3;
    uint64_t seed = argc > 2 ? (uint64_t)strtoull(argv[2], NULL, 10) : (uint64_t)getpid();
    const char *mode = argc > 3 ? argv[3] : argc > 1 ? "all" : "few";
    bool all = strcmp(mode, "all") == 0;
    static const struct {
        const char *name;
        cl_consistency consistency;
    } modes[] = {{"sync", CL_SYNC}, {"async", CL_ASYNC}, {"bounded", CL_BOUNDED}};
    bd_log_set_level(BD_LOG_ERROR);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < 3; i++) {
        if (all || strcmp(mode, modes[i].name) == 0) {
            compare(modes[i].name, modes[i].consistency, false, rounds, seed);
        }
    }
    for (size_t i = 0; i < 3; i++) {
        if (all || strcmp(mode, "net") == 0) {
            compare(modes[i].name, modes[i].consistency, true, rounds, seed);
        }
    }
    if (strcmp(mode, "few") == 0) {
        compare("sync", CL_SYNC, false, rounds, seed);
        compare("sync", CL_SYNC, true, rounds, seed);
    }
    return 0;
}
