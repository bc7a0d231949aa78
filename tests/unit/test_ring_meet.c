/* How ranks find each other: who is absent, twice, of another world or a stranger; and memory that
 * runs out on the way. */
#include "base/fault.h"
#include "base/mem.h"

#include "ring/ring.h"
#include "ring/ring_frame.h"

#include "tests/util/ring_ranks.h"

#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static void absent_rank_is_named(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    bd_err err = BD_ERR_INIT;
    ring_comm *c = NULL;
    ring_options opt = {.group = "absent", .epoch = 3, .timeout_ms = 100};
    assert_int_equal(ring_tcp_new(kv, 1, 4, &opt, &c, &err), BD_E_TIMEOUT);
    assert_non_null(strstr(err.text, "ranks 0, 2, 3 did not join within 100 ms"));
    assert_non_null(strstr(err.text, "group absent, epoch 3"));
    /* the failed try left nothing behind: the same rank may try again */
    assert_int_equal(ring_tcp_new(kv, 1, 2, &opt, &c, &err), BD_E_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 0 did not join"));
    bd_kv_mem_free(kv);
}

static void duplicate_rank_is_refused(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    bd_err err = BD_ERR_INIT;
    ring_comm *c = NULL, *second = NULL;
    ring_options opt = {.group = "twice", .epoch = 3, .timeout_ms = 1000};
    float x = 5;
    assert_int_equal(ring_tcp_new(kv, 0, 1, &opt, &c, &err), BD_OK);
    assert_int_equal(ring_tcp_new(kv, 0, 1, &opt, &second, &err), BD_E_EXISTS);
    assert_non_null(strstr(err.text, "rank 0 has already joined group twice"));
    assert_int_equal(ring_allreduce(c, &x, 1, NUM_F32, NUM_SUM, "", NULL, &err), BD_OK);
    ring_free(c);
    opt.epoch++; /* a new epoch is a new group */
    assert_int_equal(ring_tcp_new(kv, 0, 1, &opt, &c, &err), BD_OK);
    ring_free(c);
    bd_kv_mem_free(kv);
}

static void bad_options_are_typed(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    bd_err err = BD_ERR_INIT;
    ring_comm *c = NULL;
    ring_options opt = {.group = "bad", .timeout_ms = 100, .bind_host = "no.such.host.invalid"};
    assert_int_equal(ring_tcp_new(kv, 2, 2, &opt, &c, &err), BD_E_INVALID);
    assert_int_equal(ring_tcp_new(kv, 0, 1, &opt, &c, &err), BD_E_INVALID);
    assert_non_null(strstr(err.text, "no.such.host.invalid"));
    opt.bind_host = "203.0.113.1"; /* documentation range: not ours */
    assert_int_equal(ring_tcp_new(kv, 0, 1, &opt, &c, &err), BD_E_IO);
#ifndef BRAID_HAVE_NCCL
    opt.backend = RING_NCCL;
    assert_int_equal(ring_new(kv, 0, 1, &opt, &c, &err), BD_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "this build has no NCCL"));
#endif
    assert_null(c);
    bd_kv_mem_free(kv);
}

typedef struct joiner {
    bd_kv *kv;
    int rank;
    int world;
    bool is_shm;
    int64_t timeout_ms;
    ring_comm *comm;
    bd_status rc;
    bd_err err;
} joiner;

static void *join_main(void *arg)
{
    joiner *j = arg;
    ring_options opt = {.group = "join", .epoch = 8, .timeout_ms = 20000};
    opt.timeout_ms = j->timeout_ms > 0 ? j->timeout_ms : opt.timeout_ms;
    j->rc = (j->is_shm ? ring_shm_new : ring_tcp_new)(j->kv, j->rank, j->world, &opt, &j->comm,
                                                      &j->err);
    return NULL;
}

static int connect_to_rank(bd_kv *kv, const char *key)
{
    char *at = NULL;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(kv->get(kv, key, 2000, &at, NULL, &err), BD_OK);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)strtol(strrchr(at, ':') + 1, NULL, 10))};
    bd_free(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Strangers at the door (garbage, a wrong epoch, a hang-up) do not disturb the rendezvous. */
static void strangers_are_turned_away(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    joiner j[2] = {{.kv = kv, .rank = 0, .world = 2}, {.kv = kv, .rank = 1, .world = 2}};
    pthread_t threads[2];
    assert_int_equal(pthread_create(&threads[0], NULL, join_main, &j[0]), 0);
    int fd[3];
    uint8_t bytes[RING_FRAME_BYTES];
    ring_frame f = {.kind = RING_FRAME_HELLO, .rank = 1, .world = 2, .epoch = 7};
    for (int k = 0; k < 3; k++) {
        fd[k] = connect_to_rank(kv, "ring/join/8/rank/0");
    }
    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(send(fd[0], bytes, sizeof bytes, 0), sizeof bytes);
    ring_frame_encode(&f, bytes);
    assert_int_equal(send(fd[1], bytes, sizeof bytes, 0), sizeof bytes);
    (void)close(fd[2]);
    assert_int_equal(pthread_create(&threads[1], NULL, join_main, &j[1]), 0);
    for (int r = 0; r < 2; r++) {
        (void)pthread_join(threads[r], NULL);
        assert_int_equal(j[r].rc, BD_OK);
    }
    (void)close(fd[0]);
    (void)close(fd[1]);
    ring_free(j[0].comm);
    ring_free(j[1].comm);
    bd_kv_mem_free(kv);
}

static void different_worlds_are_a_mismatch(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    joiner j[2] = {{.kv = kv, .rank = 0, .world = 2}, {.kv = kv, .rank = 1, .world = 3}};
    pthread_t threads[2];
    /* rank 1 of 3 would wait for rank 2 before it connects: give it an address */
    assert_int_equal(kv->set(kv, "ring/join/8/rank/2", "127.0.0.1:1", 11, NULL), BD_OK);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(pthread_create(&threads[r], NULL, join_main, &j[r]), 0);
    }
    for (int r = 0; r < 2; r++) {
        (void)pthread_join(threads[r], NULL);
        assert_int_not_equal(j[r].rc, BD_OK);
    }
    assert_int_equal(j[0].rc, BD_E_MISMATCH);
    assert_non_null(strstr(j[0].err.text, "rank 0 was started with world 2, rank 1 with world 3"));
    bd_kv_mem_free(kv);
}

static int count_entries(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d) != NULL) {
        n++;
    }
    (void)closedir(d);
    return n;
}

/* Every allocation of making a group, each once. */
static void making_a_group_survives_allocation_failures(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    bd_status rc = BD_E_NOMEM;
    uint64_t epoch = 1;
    for (long nth = 0; rc != BD_OK; nth++) {
        ring_comm *c[2] = {NULL, NULL};
        ring_options opt = {.group = "alloc", .epoch = epoch++, .timeout_ms = 500};
        long before = bd_mem_live_blocks();
        bd_fault_fail_alloc(nth);
        rc = ring_mem_new(2, &opt, c, NULL);
        ring_free(c[0]);
        ring_free(c[1]);
        assert_int_equal(bd_mem_live_blocks(), before);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
    }
    rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        ring_comm *c = NULL;
        ring_options opt = {.group = "alloc", .epoch = epoch++, .timeout_ms = 500};
        bd_fault_fail_alloc(nth);
        rc = ring_tcp_new(kv, 0, 1, &opt, &c, NULL);
        ring_free(c);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
    }
    bd_fault_fail_alloc(-1);
    bd_kv_mem_free(kv);
}

/* Through shared memory two ranks are needed; the fault hits either of them, and the other one is
 * told or waits in vain. */
static void joining_memory_survives_allocation_failures(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    int fds = count_entries("/proc/self/fd");
    bool all_ok = false;
    for (long nth = 0; !all_ok; nth++) {
        bd_kv *kv = bd_kv_mem_new();
        joiner j[2] = {{.kv = kv, .rank = 0, .world = 2}, {.kv = kv, .rank = 1, .world = 2}};
        pthread_t threads[2];
        bd_fault_fail_alloc(nth);
        for (int r = 0; r < 2; r++) {
            j[r].is_shm = true;
            j[r].timeout_ms = 100;
            assert_int_equal(pthread_create(&threads[r], NULL, join_main, &j[r]), 0);
        }
        for (int r = 0; r < 2; r++) {
            (void)pthread_join(threads[r], NULL);
        }
        bd_fault_fail_alloc(-1);
        all_ok = j[0].rc == BD_OK && j[1].rc == BD_OK;
        ring_free(j[0].comm);
        ring_free(j[1].comm);
        bd_kv_mem_free(kv);
        assert_int_equal(bd_mem_live_blocks(), before);
        assert_int_equal(count_entries("/proc/self/fd"), fds);
    }
}

/* Blocks of ring_alloc: they do not overlap, come back zeroed, and are found again. */
static void blocks_come_and_go(rank_test *t)
{
    enum { N = 40 };
    bd_err err = BD_ERR_INIT;
    uint8_t *p[N] = {NULL};
    size_t n_bytes[N];
    for (int i = 0; i < 400; i++) {
        size_t k = (size_t)(i * 7 + t->rank) % N;
        if (p[k] != NULL) {
            for (size_t b = 0; b < n_bytes[k]; b++) {
                RANK_CHECK(t, p[k][b] == (uint8_t)k);
            }
            ring_mem_release(t->comm, p[k]);
            p[k] = NULL;
            continue;
        }
        n_bytes[k] = (size_t)(i * 1237) % 30000;
        p[k] = ring_alloc(t->comm, n_bytes[k]);
        RANK_CHECK(t, p[k] != NULL && (uintptr_t)p[k] % 64 == 0);
        for (size_t b = 0; b < n_bytes[k]; b++) {
            RANK_CHECK(t, p[k][b] == 0);
            p[k][b] = (uint8_t)k;
        }
    }
    for (size_t k = 0; k < N; k++) {
        ring_mem_release(t->comm, p[k]);
    }
    uint8_t *small = ring_alloc(t->comm, 0);
    RANK_CHECK(t, small != NULL);
    ring_mem_release(t->comm, small);
    RANK_OK(t, ring_barrier(t->comm, "end", &err), &err);
}

static void ring_alloc_gives_disjoint_zeroed_blocks(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_SHM, 2, NULL, blocks_come_and_go, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_rank_is_named),
        cmocka_unit_test(duplicate_rank_is_refused),
        cmocka_unit_test(bad_options_are_typed),
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(different_worlds_are_a_mismatch),
        cmocka_unit_test(making_a_group_survives_allocation_failures),
        cmocka_unit_test(joining_memory_survives_allocation_failures),
        cmocka_unit_test(ring_alloc_gives_disjoint_zeroed_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
