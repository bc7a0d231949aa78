/* Rendezvous: all ranks of one start meet, whatever older starts left in the store; a second
 * process of a rank, another world and an absent rank are named. */
#include "base/mem.h"

#include "worker/wk_file.h"
#include "worker/wk_rdzv.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct follower {
    bd_kv *kv;
    wk_rdzv r;
    char *text;
    bd_status rc;
    bd_err err;
} follower;

static void *follow(void *arg)
{
    follower *f = arg;
    f->rc = wk_rdzv_follow(f->kv, &f->r, &f->text, &f->err);
    return NULL;
}

static follower follower_of(bd_kv *kv, int rank, int world)
{
    return (follower){.kv = kv, .r = {"j", rank, world, 20000}};
}

static void every_start_meets_on_its_own_epoch(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    for (uint64_t epoch = 1; epoch <= 3; epoch++) { /* what epoch 1 left must not answer epoch 2 */
        const wk_rdzv lead = {"j", 0, 3, 20000};
        follower f[2] = {follower_of(kv, 1, 3), follower_of(kv, 2, 3)};
        pthread_t t[2];
        char text[32];
        bd_err err = BD_ERR_INIT;
        (void)snprintf(text, sizeof text, "%d 0", (int)epoch);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pthread_create(&t[i], NULL, follow, &f[i]), 0);
        }
        assert_int_equal(wk_rdzv_lead(kv, &lead, epoch, text, &err), BD_OK);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pthread_join(t[i], NULL), 0);
            assert_int_equal(f[i].rc, BD_OK);
            assert_string_equal(f[i].text, text);
            bd_free(f[i].text);
        }
    }
    bd_kv_mem_free(kv);
}

/* Both get the announcement; only one may join. */
static void one_rank_joins_once(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    bool swapped = false;
    follower f = follower_of(kv, 1, 2);
    const wk_rdzv lead = {"j", 0, 2, 20000};
    bd_err err = BD_ERR_INIT;
    pthread_t t;
    /* the first process of rank 1 has joined epoch 5, unseen by rank 0 until it looks */
    assert_int_equal(pthread_create(&t, NULL, follow, &f), 0);
    assert_int_equal(kv->compare_set(kv, "rdzv/j/5/joined/1", NULL, "1", &swapped, &err), BD_OK);
    char *ask = NULL;
    size_t n = 0;
    assert_int_equal(kv->get(kv, "rdzv/j/ask/1", 20000, &ask, &n, &err), BD_OK);
    ask[16] = '\0';
    char key[128];
    (void)snprintf(key, sizeof key, "rdzv/j/answer/1/%s", ask);
    assert_int_equal(kv->set(kv, key, "5 0", 3, &err), BD_OK);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(f.rc, BD_E_EXISTS);
    assert_string_equal(bd_err_text(&f.err),
                        "job j: rank 1 has joined already; was it started twice?");
    assert_int_equal(wk_rdzv_lead(kv, &lead, 5, "5 0", &err), BD_OK);
    bd_free(ask);
    bd_kv_mem_free(kv);
}

static void another_world_is_refused_and_the_absent_are_named(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    const wk_rdzv lead = {"j", 0, 3, 300};
    follower f = follower_of(kv, 1, 2);
    bd_err err = BD_ERR_INIT;
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, follow, &f), 0);
    assert_int_equal(wk_rdzv_lead(kv, &lead, 1, "1 0", &err), BD_E_TIMEOUT);
    assert_string_equal(bd_err_text(&err), "job j: not every worker came within 0 s; absent: 1 2");
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(f.rc, BD_E_MISMATCH);
    assert_string_equal(bd_err_text(&f.err),
                        "job j: rank 1 was started for 2 workers, rank 0 for 3");
    bd_kv_mem_free(kv);
}

static void a_rank_runs_once_in_a_folder(void **state)
{
    (void)state;
    char dir[] = "/tmp/braid_wk_rdzv_XXXXXX", want[128];
    int a = -1, b = -1, c = -1;
    bd_err err = BD_ERR_INIT;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(wk_rank_lock(dir, 1, &a, &err), BD_OK);
    assert_int_equal(wk_rank_lock(dir, 1, &b, &err), BD_E_EXISTS);
    (void)snprintf(want, sizeof want, "rank 1 runs already in %s (process %ld)", dir,
                   (long)getpid());
    assert_string_equal(bd_err_text(&err), want);
    assert_int_equal(wk_rank_lock(dir, 2, &c, &err), BD_OK);
    assert_int_equal(close(a), 0); /* as the kernel does when the process dies */
    assert_int_equal(wk_rank_lock(dir, 1, &b, &err), BD_OK);
    assert_int_equal(close(b) + close(c), 0);
    assert_int_equal(wk_remove_dir(dir, &err), BD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_start_meets_on_its_own_epoch),
        cmocka_unit_test(one_rank_joins_once),
        cmocka_unit_test(another_world_is_refused_and_the_absent_are_named),
        cmocka_unit_test(a_rank_runs_once_in_a_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
