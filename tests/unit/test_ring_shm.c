/* The collectives through shared memory. */
#include "tests/util/ring_matrix.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void matrix_small_shm(void **state)
{
    (void)state;
    ring_matrix_small(RANKS_SHM);
}

static void matrix_large_shm(void **state)
{
    (void)state;
    ring_matrix_large(RANKS_SHM);
}

static void bitwise_ranks_and_runs_equal_shm(void **state)
{
    (void)state;
    ring_matrix_bitwise(RANKS_SHM);
}

/* Who waits for the last operation may run it; another thread may do so too, and the communicator's
 * own thread competes with both. */
typedef struct waiter {
    ring_work *work;
    bd_err err;
    bd_status rc;
} waiter;

static void *wait_elsewhere(void *arg)
{
    waiter *w = arg;
    w->rc = ring_work_wait(w->work, &w->err);
    return NULL;
}

static void waits_in_two_threads(rank_test *t)
{
    enum { ROUNDS = 60, N_OPS = 3 };
    float sum = (float)(t->world * (t->world + 1)) / 2;
    for (int k = 0; k < ROUNDS; k++) {
        float v[N_OPS] = {0};
        ring_work *work[N_OPS] = {0};
        bd_err err = BD_ERR_INIT;
        waiter last = {.err = BD_ERR_INIT};
        pthread_t thread;
        for (int i = 0; i < N_OPS; i++) {
            v[i] = (float)((t->rank + 1) * (i + 1));
            RANK_OK(t, ring_allreduce(t->comm, &v[i], 1, NUM_F32, NUM_SUM, "v", &work[i], &err),
                    &err);
        }
        last.work = work[N_OPS - 1];
        RANK_CHECK(t, pthread_create(&thread, NULL, wait_elsewhere, &last) == 0);
        bd_status rc = k % 2 == 0 ? ring_work_wait(work[0], &err) : ring_work_wait(work[1], &err);
        bd_status rc2 = k % 2 == 0 ? ring_work_wait(work[1], &err) : ring_work_wait(work[0], &err);
        RANK_CHECK(t, pthread_join(thread, NULL) == 0);
        RANK_OK(t, rc, &err);
        RANK_OK(t, rc2, &err);
        RANK_OK(t, last.rc, &last.err);
        for (int i = 0; i < N_OPS; i++) {
            RANK_CHECK(t, v[i] == sum * (float)(i + 1));
        }
    }
}

/* The moment a work has ended its communicator is idle: freeing it then is no failure to the
 * others, who may still be on their way out of the operation. */
static void freed_after_the_wait(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float v = 1;
    ring_work *work = NULL;
    RANK_OK(t, ring_allreduce(t->comm, &v, 1, NUM_F32, NUM_SUM, "v", &work, &err), &err);
    while (t->rank % 2 == 0 && !ring_work_done(work)) { /* by the own thread */
        (void)sched_yield();
    }
    RANK_OK(t, ring_work_wait(work, &err), &err);
    RANK_CHECK(t, v == (float)t->world);
    ring_free(t->comm);
    t->keep_comm = true;
}

static void waiters_may_run_operations(void **state)
{
    (void)state;
    ring_ranks_run(RANKS_SHM, 2, NULL, waits_in_two_threads, NULL);
    ring_ranks_run(RANKS_HIER, 3, NULL, waits_in_two_threads, NULL);
    for (int k = 0; k < 20; k++) {
        ring_ranks_run(RANKS_SHM, 3, NULL, freed_after_the_wait, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrix_small_shm),
        cmocka_unit_test(matrix_large_shm),
        cmocka_unit_test(bitwise_ranks_and_runs_equal_shm),
        cmocka_unit_test(waiters_may_run_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
