/* braid-ps as processes: kill -9 while two ranks train, typed errors over the wire, bad starts. */
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "client/client.h"
#include "ps_server/ps_rocks.h"

#include "tests/util/tu_host.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define N_SERVERS 2
#define WORLD     2
#define STEPS     24u
#define DIM       8u
#define IDS       60u

static char binary[512];

typedef struct cluster {
    char dir[64];
    char address[N_SERVERS][64];
    pid_t pids[N_SERVERS];
} cluster;

static void must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        (void)fprintf(stderr, "%s: %s\n", bd_status_name(rc), bd_err_text(err));
        abort();
    }
}

/* Starts braid-ps with the arguments; *out reads its standard error or its ready line. */
static pid_t spawn(char *const argv[], int fd_in_child, int *out)
{
    int p[2];
    assert_int_equal(pipe(p), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(p[0]); /* first: it may be the number we want */
        (void)dup2(p[1], fd_in_child);
        if (fd_in_child != STDERR_FILENO) {
            (void)dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        }
        (void)execv(binary, argv);
        _exit(127);
    }
    (void)close(p[1]);
    *out = p[0];
    return pid;
}

static void read_all(int fd, char *buf, size_t cap)
{
    size_t n = 0;
    for (ssize_t got = 1; got > 0 && n + 1 < cap; n += (size_t)(got > 0 ? got : 0)) {
        got = read(fd, buf + n, cap - 1 - n);
        if (got > 0 && memchr(buf + n, '\n', (size_t)got) != NULL) {
            n += (size_t)got;
            break;
        }
    }
    buf[n] = '\0';
    (void)close(fd);
}

static void start_server(cluster *c, int i)
{
    char dir[96], index[8], line[128];
    int fd = -1;
    (void)snprintf(dir, sizeof dir, "%s/ps-%d", c->dir, i);
    (void)snprintf(index, sizeof index, "%d", i);
    char listen[64];
    (void)snprintf(listen, sizeof listen, "%s",
                   c->address[i][0] == '\0' ? tu_host_any_port() : c->address[i]);
    char *argv[] = {binary, "--index",       index,         "--servers",  "2", "--listen",
                    listen, "--coordinator", c->address[0], "--data-dir", dir, "--ready-fd",
                    "3",    "--journal-cap", "1MiB",        NULL};
    c->pids[i] = spawn(argv, 3, &fd);
    read_all(fd, line, sizeof line);
    assert_memory_equal(line, "READY ", 6);
    line[strcspn(line, "\n")] = '\0';
    assert_true(c->address[i][0] == '\0' || strcmp(c->address[i], line + 6) == 0);
    (void)snprintf(c->address[i], sizeof c->address[i], "%s", line + 6);
}

static void start_cluster(cluster *c)
{
    memset(c, 0, sizeof *c);
    (void)snprintf(c->dir, sizeof c->dir, "/tmp/test_ps_process.XXXXXX");
    assert_non_null(mkdtemp(c->dir));
    for (int i = 0; i < N_SERVERS; i++) {
        start_server(c, i);
    }
}

static int end_server(cluster *c, int i, int sig)
{
    int status = 0;
    assert_int_equal(kill(c->pids[i], sig), 0);
    assert_int_equal(waitpid(c->pids[i], &status, 0), c->pids[i]);
    return status;
}

static void stop_cluster(cluster *c)
{
    bd_err err;
    for (int i = N_SERVERS; i-- > 0;) {
        int status = end_server(c, i, SIGTERM);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    must(ps_dir_remove(c->dir, &err), &err);
}

/* ---- two ranks ---- */
typedef struct trainer {
    int rank;
    const cluster *cluster;
    uint64_t epoch;
    uint32_t table;
    rpc_env *env;
    cl_client *client;
    pthread_t thread;
} trainer;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t reached; /* under lock: the last step rank 0 has begun */

static void connect_trainer(trainer *t, const cluster *c, int rank)
{
    bd_err err;
    cl_param opt = {"learning_rate", 0.05};
    cl_options o = {
        .coordinator = c->address[0], .name = "rank", .ps_wait_ms = 30000, .part_bytes = 1024};
    cl_table_spec spec = {.name = "t",
                          .dim = DIM,
                          .initializer = "normal",
                          .seed = 3,
                          .optimizer = "adam",
                          .opt_params = &opt,
                          .n_opt_params = 1};
    *t = (trainer){.rank = rank, .cluster = c};
    must(rpc_env_new(&(rpc_env_options){.n_queues = 1, .n_threads = 1}, &t->env, &err), &err);
    must(cl_client_new(t->env, &o, &t->client, &err), &err);
    must(cl_table_create(t->client, &spec, &t->table, &err), &err);
}

static void train_step(trainer *t, uint64_t step)
{
    bd_err err;
    cl_rows *r = NULL;
    uint64_t ids[IDS];
    for (uint64_t i = 0; i < IDS; i++) {
        ids[i] = bd_rand_u64(2, (uint64_t)t->rank, step * 1000 + i) % 300;
    }
    cl_ids asked = {.table_id = t->table, .dim = DIM, .ids = ids, .n_ids = IDS};
    must(cl_rows_prepare(t->client, &asked, 1, &r, &err), &err);
    must(cl_rows_fetch(r, step - 1, &err), &err);
    must(cl_rows_wait(r, &err), &err);
    const cl_table_rows *rows = cl_rows_table(r, 0);
    float *g = bd_alloc(rows->n_unique * DIM * sizeof(float));
    for (size_t i = 0; i < rows->n_unique * DIM; i++) {
        g[i] = rows->rows[i] * 0.3f + (float)(t->rank + 1) * 0.1f;
    }
    must(cl_push_start(t->client, step, r, &g, &err), &err);
    must(cl_push_wait(t->client, &err), &err);
    must(cl_commit(t->client, step, true, 1.0, &err), &err);
    bd_free(g);
    cl_rows_free(r);
}

static void *train_main(void *user)
{
    trainer *t = user;
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (t->rank == 0) {
            (void)pthread_mutex_lock(&lock);
            reached = step;
            (void)pthread_cond_broadcast(&changed);
            (void)pthread_mutex_unlock(&lock);
        }
        train_step(t, step);
    }
    return NULL;
}

static void wait_for_step(uint64_t step)
{
    (void)pthread_mutex_lock(&lock);
    while (reached < step) {
        (void)pthread_cond_wait(&changed, &lock);
    }
    (void)pthread_mutex_unlock(&lock);
}

/* Trains with both ranks; kills server i and starts it again at each given step. */
static uint64_t train(const uint64_t *kill_at, size_t n_kills)
{
    cluster c;
    trainer t[WORLD];
    bd_err err;
    uint64_t hash = 0, rows = 0, epoch = 0;
    start_cluster(&c);
    reached = 0;
    for (int r = 0; r < WORLD; r++) {
        connect_trainer(&t[r], &c, r);
    }
    must(cl_job_next_epoch(t[0].client, &epoch, &err), &err);
    cl_job job = {.epoch = epoch, .world = WORLD, .consistency = CL_SYNC};
    must(cl_job_open(t[0].client, &job, NULL, 1, &err), &err);
    for (int r = 0; r < WORLD; r++) {
        job.rank = r;
        cl_job_join(t[r].client, &job);
        assert_int_equal(pthread_create(&t[r].thread, NULL, train_main, &t[r]), 0);
    }
    for (size_t k = 0; k < n_kills; k++) {
        wait_for_step(kill_at[k]);
        (void)end_server(&c, (int)(k % N_SERVERS), SIGKILL);
        start_server(&c, (int)(k % N_SERVERS));
    }
    for (int r = 0; r < WORLD; r++) {
        (void)pthread_join(t[r].thread, NULL);
    }
    must(cl_param_hash(t[0].client, &hash, &rows, &err), &err);
    assert_true(rows > 200);
    for (int r = 0; r < WORLD; r++) {
        cl_client_free(t[r].client);
        rpc_env_free(t[r].env);
    }
    stop_cluster(&c);
    return hash;
}

static void kills_do_not_change_a_bit(void **state)
{
    (void)state;
    const uint64_t at[] = {4, 9, 15};
    uint64_t want = train(NULL, 0);
    assert_int_equal(train(at, 3), want);
}

/* ---- errors over the wire ---- */
static void errors_name_the_culprit(void **state)
{
    (void)state;
    cluster c;
    trainer t;
    bd_err err;
    uint64_t key = 5;
    float row[DIM] = {1, 2, 3};
    start_cluster(&c);
    connect_trainer(&t, &c, 0);
    must(cl_assign(t.client, t.table, DIM, &key, row, NULL, 1, &err), &err);
    row[2] = 0.0f / 0.0f;
    assert_int_equal(cl_assign(t.client, t.table, DIM, &key, row, NULL, 1, &err), BD_E_NUMERIC);
    assert_non_null(strstr(bd_err_text(&err), "\"t\""));
    assert_non_null(strstr(bd_err_text(&err), "key 5 element 2"));
    row[2] = 3;
    assert_int_equal(cl_assign(t.client, 12345, DIM, &key, row, NULL, 1, &err), BD_E_NOT_FOUND);
    assert_non_null(strstr(bd_err_text(&err), "12345"));
    cl_job job = {.epoch = 3, .world = 1, .consistency = CL_SYNC};
    must(cl_job_open(t.client, &job, NULL, 1, &err), &err);
    job.epoch = 2;
    assert_int_equal(cl_job_open(t.client, &job, NULL, 1, &err), BD_E_FENCED);
    assert_non_null(strstr(bd_err_text(&err), "2"));
    job.epoch = 4;
    assert_int_equal(cl_job_open(t.client, &job, "no-such", 1, &err), BD_E_NOT_FOUND);
    assert_int_equal(cl_job_open(t.client, &job, "../../etc", 1, &err), BD_E_INVALID);
    assert_int_equal(cl_checkpoint(t.client, "../x", 1, &err), BD_E_INVALID);
    cl_client_free(t.client);
    rpc_env_free(t.env);
    stop_cluster(&c);
}

/* ---- bad starts ---- */
static int start_badly(char *const argv[], char *text, size_t cap)
{
    int fd = -1, status = 0;
    pid_t pid = spawn(argv, STDERR_FILENO, &fd);
    read_all(fd, text, cap);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void bad_starts_say_why(void **state)
{
    (void)state;
    cluster c;
    char text[1024], dir[96];
    start_cluster(&c);
    (void)snprintf(dir, sizeof dir, "%s/ps-0", c.dir);
    char *in_use[] = {binary,     "--data-dir",  dir,           "--servers", "2",
                      "--listen", "127.0.0.1:0", "--log-level", "error",     NULL};
    assert_int_equal(start_badly(in_use, text, sizeof text), 1);
    assert_non_null(strstr(text, "in use by another server (pid "));
    (void)snprintf(dir, sizeof dir, "%s/other", c.dir);
    char *port[] = {binary,       "--data-dir",  dir,     "--listen",
                    c.address[1], "--log-level", "error", NULL};
    assert_int_equal(start_badly(port, text, sizeof text), 1);
    assert_non_null(strstr(text, c.address[1]));
    char *word[] = {binary, "--data-dri", dir, NULL};
    assert_int_equal(start_badly(word, text, sizeof text), 2);
    assert_non_null(strstr(text, "data_dir"));
    char *none[] = {binary, NULL};
    assert_int_equal(start_badly(none, text, sizeof text), 2);
    char *proc[] = {binary, "--data-dir", "/proc/nowhere", "--log-level", "error", NULL};
    assert_int_equal(start_badly(proc, text, sizeof text), 1);
    assert_non_null(strstr(text, "/proc/nowhere"));
    char *alone[] = {binary,      "--data-dir", dir,           "--index", "1",
                     "--servers", "2",          "--log-level", "error",   NULL};
    assert_int_equal(start_badly(alone, text, sizeof text), 2);
    assert_non_null(strstr(text, "coordinator"));
    stop_cluster(&c);
}

int main(void)
{
    ssize_t n = readlink("/proc/self/exe", binary, sizeof binary - 16);
    char *slash = n > 0 ? strrchr(binary, '/') : NULL;
    if (slash == NULL) {
        return 1;
    }
    (void)snprintf(slash, 16, "/braid-ps");
    bd_log_set_level(BD_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kills_do_not_change_a_bit),
        cmocka_unit_test(errors_name_the_culprit),
        cmocka_unit_test(bad_starts_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
