#include "tests/util/ring_ranks.h"

#include "ring/ring_comm_int.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct rank_thread {
    rank_test test; /* first */
    pthread_t thread;
    rank_fn fn;
    bd_kv *kv;
    const ring_options *opt;
    ranks_backend backend;
} rank_thread;

/* Of the group that runs; one at a time. A rank that returns early (a failed check) leaves the
 * meeting, so that the others do not wait for it for ever. */
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_changed = PTHREAD_COND_INITIALIZER;
static int g_expected;
static int g_arrived;
static unsigned g_round;

static void end_round_if_complete(void)
{
    if (g_arrived >= g_expected) {
        g_arrived = 0;
        g_round++;
        (void)pthread_cond_broadcast(&g_changed);
    }
}

static void leave_meeting(void)
{
    (void)pthread_mutex_lock(&g_lock);
    g_expected--;
    end_round_if_complete();
    (void)pthread_mutex_unlock(&g_lock);
}

void rank_failed(rank_test *t, const char *file, int line, const char *what, const bd_err *err)
{
    if (t->failure[0] == '\0') {
        (void)snprintf(t->failure, sizeof t->failure, "%s:%d: %s: %s", file, line, what,
                       err != NULL ? bd_err_text(err) : "false");
    }
}

void rank_meet(rank_test *t)
{
    (void)t;
    (void)pthread_mutex_lock(&g_lock);
    unsigned round = g_round;
    g_arrived++;
    end_round_if_complete();
    while (round == g_round) {
        (void)pthread_cond_wait(&g_changed, &g_lock);
    }
    (void)pthread_mutex_unlock(&g_lock);
}

void rank_limit(rank_test *t, int64_t limit_ms)
{
    bd_err err = BD_ERR_INIT;
    if (ring_barrier(t->comm, "limit", &err) != BD_OK) {
        rank_failed(t, __FILE__, __LINE__, "barrier", &err);
    }
    rank_meet(t);
    ring_test_limit(t->comm, limit_ms);
}

static const char *g_other_name = "other";
static ranks_join_fn g_other_join;
static long (*g_other_live)(void);

void ring_ranks_set_other(const char *name, ranks_join_fn join_fn, long (*count_live)(void))
{
    g_other_name = name;
    g_other_join = join_fn;
    g_other_live = count_live;
}

bool ring_ranks_has_other(void)
{
    return g_other_join != NULL;
}

const char *ranks_backend_name(ranks_backend b)
{
    static const char *const names[] = {"mem", "tcp", "shm", "hier"};
    return b == RANKS_OTHER ? g_other_name : names[b];
}

static const ranks_host *g_hosts;
static int g_n_hosts;

void ring_ranks_use_hosts(const ranks_host *hosts, int n)
{
    g_hosts = hosts;
    g_n_hosts = n;
}

int ring_ranks_host_of(ranks_backend backend, int rank, int world)
{
    int n = world % 2 == 0 ? 2 : 3;
    n = n < g_n_hosts ? n : g_n_hosts;
    return g_n_hosts == 0 ? -1 : backend == RANKS_HIER ? rank * n / world : rank % g_n_hosts;
}

/* Of this thread and those that it starts. */
static bd_status enter_netns(const char *name, bd_err *err)
{
    char path[128];
    (void)snprintf(path, sizeof path, "/run/netns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "network namespace %s", name);
    }
    (void)close(fd);
    return BD_OK;
}

static bd_status join_from_host(rank_thread *r, const ranks_host *host, bd_err *err)
{
    rank_test *t = &r->test;
    ring_options opt = *r->opt;
    opt.bind_host = host->address;
    opt.backend = r->backend == RANKS_TCP ? RING_TCP : RING_AUTO;
    bd_status rc = enter_netns(host->netns, err);
    return rc != BD_OK ? rc : ring_new(r->kv, t->rank, t->world, &opt, &t->comm, err);
}

static bd_status join(rank_thread *r, bd_err *err)
{
    rank_test *t = &r->test;
    int host = ring_ranks_host_of(r->backend, t->rank, t->world);
    if (host >= 0 && (r->backend == RANKS_TCP || r->backend == RANKS_HIER)) {
        return join_from_host(r, &g_hosts[host], err);
    }
    switch (r->backend) {
    case RANKS_TCP:
        return ring_tcp_new(r->kv, t->rank, t->world, r->opt, &t->comm, err);
    case RANKS_SHM:
        return ring_shm_new(r->kv, t->rank, t->world, r->opt, &t->comm, err);
    case RANKS_HIER: {
        /* an even world: two hosts of equal size; else hosts of different size */
        static const char *const hosts[] = {"a", "b", "c"};
        ring_options opt = *r->opt;
        opt.host = hosts[t->world % 2 == 0 ? t->rank * 2 / t->world : t->rank % 3 * t->rank % 2];
        return ring_new(r->kv, t->rank, t->world, &opt, &t->comm, err);
    }
    case RANKS_OTHER:
        return g_other_join(r->kv, t->rank, t->world, r->opt, &t->comm, err);
    case RANKS_MEM:
        break;
    }
    return BD_OK; /* has it already */
}

static void *rank_main(void *arg)
{
    rank_thread *r = arg;
    rank_test *t = &r->test;
    bd_err err = BD_ERR_INIT;
    if (join(r, &err) != BD_OK) {
        rank_failed(t, __FILE__, __LINE__, "join", &err);
        leave_meeting();
        return NULL;
    }
    r->fn(t);
    leave_meeting();
    if (!t->keep_comm) {
        ring_free(t->comm);
        t->comm = NULL;
    }
    return NULL;
}

void ring_ranks_run(ranks_backend backend, int world, const ring_options *opt, rank_fn fn,
                    void *arg)
{
    static uint64_t epoch = 1000;
    const ring_options fresh = {
        .group = "test", .epoch = epoch++, .timeout_ms = 20000, .poll_ms = 5};
    ring_comm *comms[64] = {0};
    rank_thread threads[64] = {0};
    bd_kv *kv = bd_kv_mem_new();
    bd_err err = BD_ERR_INIT;
    assert_true(world <= 64);
    assert_non_null(kv);
    opt = opt != NULL ? opt : &fresh;
    if (backend == RANKS_MEM && ring_mem_new(world, opt, comms, &err) != BD_OK) {
        fail_msg("ring_mem_new: %s", bd_err_text(&err));
    }
    g_expected = world;
    g_arrived = 0;
    for (int r = 0; r < world; r++) {
        threads[r] = (rank_thread){
            .test = {.comm = comms[r], .rank = r, .world = world, .arg = arg},
            .fn = fn,
            .kv = kv,
            .opt = opt,
            .backend = backend,
        };
        assert_int_equal(pthread_create(&threads[r].thread, NULL, rank_main, &threads[r]), 0);
    }
    for (int r = 0; r < world; r++) {
        (void)pthread_join(threads[r].thread, NULL);
    }
    bd_kv_mem_free(kv);
    for (int r = 0; r < world; r++) {
        if (threads[r].test.failure[0] != '\0') {
            fail_msg("%s, world %d, rank %d: %s", ranks_backend_name(backend), world, r,
                     threads[r].test.failure);
        }
    }
    if (backend == RANKS_OTHER && g_other_live != NULL) {
        assert_int_equal(g_other_live(), 0);
    }
}
