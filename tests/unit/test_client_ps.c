/* The client against real braid-ps processes: whatever is killed when, the rows end the same, bit
 * for bit, and for any number of servers. */
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "client/client.h"

#include "tests/util/tu_host.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_SERVERS = 3, DIM_A = 8, DIM_B = 3, N_IDS = 500, N_STEPS = 6, READY_WAIT_MS = 20000 };

extern char **environ;

typedef struct cluster {
    char dir[64], binary[512];
    size_t n;
    pid_t pids[MAX_SERVERS];
    char addresses[MAX_SERVERS][64]; /* stay over a restart */
} cluster;

static cluster live; /* of the running test: a failed one leaves no servers behind */

static int kill_the_rest(void **state)
{
    (void)state;
    for (size_t i = 0; i < MAX_SERVERS; i++) {
        if (live.pids[i] > 0) {
            (void)kill(live.pids[i], SIGKILL);
            (void)waitpid(live.pids[i], NULL, 0);
            live.pids[i] = 0;
        }
    }
    return 0;
}

/* Reads "READY host:port\n" from the server's pipe. */
static void read_ready(int fd, char *address, size_t cap)
{
    char line[128];
    size_t n = 0;
    while (n == 0 || line[n - 1] != '\n') {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, READY_WAIT_MS), 1);
        ssize_t got = read(fd, line + n, 1);
        if (got <= 0) {
            fail_msg("braid-ps ended before it was ready");
        }
        n++;
        assert_true(n < sizeof line);
    }
    line[n - 1] = '\0';
    assert_int_equal(strncmp(line, "READY ", 6), 0);
    (void)snprintf(address, cap, "%s", line + 6);
}

static void spawn_server(cluster *cl, size_t i)
{
    char index[8], servers[8], dir[96], fd[8];
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[0], F_SETFD, FD_CLOEXEC), 0);
    (void)snprintf(index, sizeof index, "%zu", i);
    (void)snprintf(servers, sizeof servers, "%zu", cl->n);
    (void)snprintf(dir, sizeof dir, "%s/ps-%zu", cl->dir, i);
    (void)snprintf(fd, sizeof fd, "%d", ends[1]);
    char *argv[] = {cl->binary,
                    "--index",
                    index,
                    "--servers",
                    servers,
                    "--data-dir",
                    dir,
                    "--ready-fd",
                    fd,
                    "--log-level",
                    "error",
                    "--listen",
                    cl->addresses[i],
                    i > 0 ? "--coordinator" : NULL,
                    cl->addresses[0],
                    NULL};
    assert_int_equal(posix_spawn(&cl->pids[i], cl->binary, NULL, NULL, argv, environ), 0);
    (void)close(ends[1]);
    read_ready(ends[0], cl->addresses[i], sizeof cl->addresses[i]);
    (void)close(ends[0]);
}

static void end_server(cluster *cl, size_t i, int sig)
{
    int status;
    pid_t pid = cl->pids[i];
    cl->pids[i] = 0;
    assert_int_equal(kill(pid, sig), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (sig == SIGTERM) {
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void start_cluster(cluster *cl, size_t n)
{
    *cl = (cluster){.n = n};
    ssize_t len = readlink("/proc/self/exe", cl->binary, sizeof cl->binary - 32);
    assert_true(len > 0);
    char *slash = strrchr(cl->binary, '/');
    (void)snprintf(slash + 1, 32, "braid-ps");
    (void)snprintf(cl->dir, sizeof cl->dir, "/tmp/test_client_ps.XXXXXX");
    assert_non_null(mkdtemp(cl->dir));
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(cl->addresses[i], sizeof cl->addresses[i], "%s", tu_host_any_port());
        spawn_server(cl, i);
    }
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void stop_cluster(cluster *cl)
{
    for (size_t i = cl->n; i-- > 0;) {
        end_server(cl, i, SIGTERM);
    }
    assert_int_equal(nftw(cl->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* ---- a small job ---- */
typedef void (*trouble_fn)(cluster *cl, uint64_t step, int moment);

typedef struct job {
    rpc_env *env;
    cl_client *c;
    uint32_t tables[2];
} job;

static void must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        fail_msg("%s", bd_err_text(err));
    }
}

static void open_job(job *j, const cluster *cl, cl_consistency consistency, size_t part_bytes)
{
    bd_err err = BD_ERR_INIT;
    static const char *const names[] = {"a", "b"}, *const optimizers[] = {"adagrad", "adam"};
    cl_param init[2] = {{"low", -0.1}, {"high", 0.1}};
    cl_options opt = {.coordinator = cl->addresses[0],
                      .name = "test",
                      .ps_wait_ms = 30000,
                      .part_bytes = part_bytes};
    must(rpc_env_new(NULL, &j->env, &err), &err);
    must(cl_client_new(j->env, &opt, &j->c, &err), &err);
    for (size_t t = 0; t < 2; t++) {
        cl_table_spec spec = {.name = names[t],
                              .dim = t == 0 ? DIM_A : DIM_B,
                              .initializer = "uniform",
                              .init_params = init,
                              .n_init_params = 2,
                              .seed = 11,
                              .optimizer = optimizers[t]};
        must(cl_table_create(j->c, &spec, &j->tables[t], &err), &err);
    }
    cl_job jb = {.rank = 0, .world = 1, .consistency = consistency};
    must(cl_job_next_epoch(j->c, &jb.epoch, &err), &err);
    must(cl_job_open(j->c, &jb, NULL, 1, &err), &err);
    cl_job_join(j->c, &jb);
}

static float *grads_of(const cl_table_rows *rows)
{
    float *g = bd_alloc((rows->n_unique * rows->dim + 1) * sizeof *g);
    assert_non_null(g);
    for (size_t i = 0; i < rows->n_unique * rows->dim; i++) {
        g[i] = rows->rows[i] * 0.5f + (float)(rows->keys[i / rows->dim] % 7) * 0.01f;
    }
    return g;
}

/* Moments: 0 before the lookup, 1 before the push, 2 after its start, 3 before the commit. */
static void one_step(job *j, cluster *cl, uint64_t step, bool is_sync, trouble_fn trouble)
{
    static uint64_t ids[2][N_IDS];
    bd_err err = BD_ERR_INIT;
    cl_rows *r = NULL;
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < N_IDS; i++) {
            ids[t][i] = bd_mix64(bd_rand_u64(3, step * 2 + t, i) % 400);
        }
    }
    cl_ids tables[2] = {{.table_id = j->tables[0], .dim = DIM_A, .ids = ids[0], .n_ids = N_IDS},
                        {.table_id = j->tables[1], .dim = DIM_B, .ids = ids[1], .n_ids = N_IDS}};
    trouble(cl, step, 0);
    must(cl_rows_prepare(j->c, tables, 2, &r, &err), &err);
    must(cl_rows_fetch(r, is_sync ? step - 1 : 0, &err), &err);
    must(cl_rows_wait(r, &err), &err);
    float *grads[2] = {grads_of(cl_rows_table(r, 0)), grads_of(cl_rows_table(r, 1))};
    trouble(cl, step, 1);
    must(cl_push_start(j->c, step, r, grads, &err), &err);
    trouble(cl, step, 2);
    must(cl_push_wait(j->c, &err), &err);
    trouble(cl, step, 3);
    if (is_sync) {
        must(cl_commit(j->c, step, true, 1.0, &err), &err);
    }
    cl_rows_free(r);
    bd_free(grads[0]);
    bd_free(grads[1]);
}

static uint64_t run(size_t n_servers, cl_consistency consistency, size_t part_bytes,
                    trouble_fn trouble)
{
    job j;
    bd_err err = BD_ERR_INIT;
    uint64_t hash = 0, n_rows = 0;
    start_cluster(&live, n_servers);
    open_job(&j, &live, consistency, part_bytes);
    for (uint64_t step = 1; step <= N_STEPS; step++) {
        one_step(&j, &live, step, consistency == CL_SYNC, trouble);
    }
    must(cl_param_hash(j.c, &hash, &n_rows, &err), &err);
    assert_true(n_rows > 700 && n_rows <= 800);
    cl_client_free(j.c);
    rpc_env_free(j.env);
    stop_cluster(&live);
    return hash;
}

static void no_trouble(cluster *cl, uint64_t step, int moment)
{
    (void)cl;
    (void)step;
    (void)moment;
}

/* Power off and on: what was staged is lost, what was answered is not. */
static void kill_one(cluster *cl, uint64_t step, int moment)
{
    if (moment == (int)(step % 4)) {
        size_t i = (size_t)(step / 2) % cl->n;
        end_server(cl, i, SIGKILL);
        spawn_server(cl, i);
    }
}

static void the_rows_do_not_depend_on_servers_parts_or_kills(void **state)
{
    (void)state;
    uint64_t want = run(1, CL_SYNC, 0, no_trouble);
    assert_true(run(3, CL_SYNC, 0, no_trouble) == want);
    assert_true(run(2, CL_SYNC, 1000, no_trouble) == want);
    assert_true(run(2, CL_SYNC, 2000, kill_one) == want);
}

static void async_pushes_are_applied_once_over_kills(void **state)
{
    (void)state;
    uint64_t want = run(2, CL_ASYNC, 1 << 20, no_trouble);
    assert_true(run(2, CL_ASYNC, 1 << 20, kill_one) == want);
}

int main(void)
{
    bd_log_set_level(BD_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_rows_do_not_depend_on_servers_parts_or_kills, kill_the_rest),
        cmocka_unit_test_teardown(async_pushes_are_applied_once_over_kills, kill_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
