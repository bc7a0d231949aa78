/* References of the C library (braid_rref_*) against whole servers in this process: who reads, who
 * keeps, who gives back. As its user gets it: tests/integ/abi/rref.c. */
#include "base/fault.h"
#include "base/mem.h"

#include "client/abi/abi_int.h"

#include "tests/util/ps_cluster.h"
#include "tests/util/tu_mem.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 3, N = 6, ALL = N * DIM, BAGS = 3 * DIM, TWO = 2 * DIM };

typedef struct world {
    ps_cluster cluster;
    braid_client *c;
    braid_table *t;
    uint64_t ids[N]; /* all of server 1 */
    float rows[ALL];
} world;

static braid_error err;

static void ok(int status)
{
    if (status != BRAID_OK) {
        fail_msg("%s: %s", braid_status_name(status), err.text);
    }
}

static void start(world *w)
{
    const braid_param init[] = {{"low", -1}, {"high", 1}}, rate = {"learning_rate", 1};
    braid_options o = BRAID_OPTIONS_INIT;
    braid_table_options spec = BRAID_TABLE_OPTIONS_INIT;
    memset(w, 0, sizeof *w);
    ps_cluster_start(&w->cluster, 2);
    o.coordinator = w->cluster.address[0];
    o.ps_wait_ms = 1500;
    ok(braid_connect(&o, &w->c, &err));
    spec.name = "user";
    spec.dim = DIM;
    spec.initializer = "uniform";
    spec.init_params = init;
    spec.n_init_params = 2;
    spec.optimizer = "sgd";
    spec.opt_params = &rate;
    spec.n_opt_params = 1;
    ok(braid_table_create(w->c, &spec, &w->t, &err));
    uint64_t key = 0;
    for (size_t i = 0; i < N; i++) {
        while (braid_key_server(w->c, key) != 1) {
            key++;
        }
        w->ids[i] = key++;
    }
    ok(braid_lookup(w->t, w->ids, N, w->rows, &err));
}

static void stop(world *w)
{
    braid_close(w->c);
    ps_cluster_stop(&w->cluster);
}

static braid_feature rows_of(world *w)
{
    return (braid_feature){.table = w->t, .ids = w->ids, .n_ids = N, .n_bags = N};
}

static int remote(world *w, const braid_feature *f, uint32_t server, braid_rref **out)
{
    braid_rref_options o = BRAID_RREF_OPTIONS_INIT;
    o.feature = f;
    o.server = server;
    return braid_rref_remote(w->c, &o, out, &err);
}

static void the_value_is_that_of_its_making(void **state)
{
    (void)state;
    world w;
    float got[ALL], ones[ALL], now[ALL];
    braid_rref *ref = NULL;
    start(&w);
    const braid_feature f = rows_of(&w);
    ok(remote(&w, &f, 1, &ref));
    assert_string_equal(braid_rref_owner(ref), "ps-1");
    ok(braid_rref_to_here(ref, got, ALL, &err));
    assert_memory_equal(got, w.rows, sizeof got);
    for (size_t i = 0; i < ALL; i++) {
        ones[i] = 1;
    }
    ok(braid_push(w.t, w.ids, N, ones, 1, &err));
    ok(braid_lookup(w.t, w.ids, N, now, &err));
    assert_true(now[0] == w.rows[0] - 1);
    ok(braid_rref_to_here(ref, got, ALL, &err)); /* again, and unchanged */
    assert_memory_equal(got, w.rows, sizeof got);
    ok(braid_rref_keep_alive(w.c, &err));
    braid_rref_free(ref);
    stop(&w);
}

static void bags_are_pooled_at_the_server(void **state)
{
    (void)state;
    world w;
    const int64_t offsets[] = {0, 4, 4};
    const float *r0 = w.rows, *r1 = r0 + DIM, *r2 = r1 + DIM, *r3 = r2 + DIM;
    start(&w);
    for (int mode = BRAID_SUM; mode <= BRAID_MAX; mode++) {
        float got[BAGS];
        braid_rref *ref = NULL;
        braid_feature f = rows_of(&w);
        f.offsets = offsets;
        f.n_bags = 3;
        f.mode = mode;
        ok(remote(&w, &f, 1, &ref));
        ok(braid_rref_to_here(ref, got, BAGS, &err));
        for (size_t d = 0; d < DIM; d++) {
            float sum = r0[d] + r1[d] + r2[d] + r3[d];
            float most = fmaxf(fmaxf(r0[d], r1[d]), fmaxf(r2[d], r3[d]));
            const float want[] = {sum, sum / 4, sum / 2, most};
            assert_true(fabsf(got[d] - want[mode]) < 1e-6f);
            assert_true(got[DIM + d] == 0);
        }
        braid_rref_free(ref);
    }
    stop(&w);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    world w;
    float got[ALL] = {7};
    const int64_t offsets[] = {1, 2};
    braid_rref *ref = NULL;
    braid_rref_options o = BRAID_RREF_OPTIONS_INIT;
    start(&w);
    braid_feature f = rows_of(&w);
    assert_int_equal(braid_rref_remote(w.c, &o, &ref, &err), BRAID_E_INVALID);
    assert_non_null(strstr(err.text, "feature"));
    o.size = 1;
    assert_int_equal(braid_rref_remote(w.c, &o, &ref, &err), BRAID_E_INVALID);
    assert_non_null(strstr(err.text, "braid_rref_options: size 1"));
    assert_int_equal(remote(&w, &f, 2, &ref), BRAID_E_INVALID);
    assert_non_null(strstr(err.text, "server 2 of 2"));
    assert_int_equal(remote(&w, &f, 0, &ref), BRAID_E_INVALID);
    assert_non_null(strstr(err.text, "is on server 1, not on server 0"));
    f.first_n = 1;
    assert_int_equal(remote(&w, &f, 1, &ref), BRAID_E_INVALID);
    assert_non_null(strstr(err.text, "first_n"));
    f = rows_of(&w);
    f.n_bags = 2;
    assert_int_equal(remote(&w, &f, 1, &ref), BRAID_E_INVALID);
    assert_null(ref);
    f.offsets = offsets; /* found by the server */
    ok(remote(&w, &f, 1, &ref));
    assert_int_equal(braid_rref_to_here(ref, got, 5, &err), BRAID_E_INVALID);
    assert_non_null(strstr(err.text, "room for 5 floats, it has 6"));
    assert_int_equal(braid_rref_to_here(ref, got, TWO, &err), BRAID_E_INVALID);
    assert_non_null(strstr(err.text, "Error on node ps-1: "));
    assert_non_null(strstr(err.text, "offset 1 at 0"));
    assert_true(got[0] == 7);
    braid_rref_free(ref);
    braid_rref_free(NULL);
    stop(&w);
}

/* Fetched or not, in the making or not. *held: blocks while all of them are open. */
static void make_and_drop_eight(world *w, long *held)
{
    float got[ALL];
    braid_rref *refs[8] = {NULL};
    const braid_feature f = rows_of(w);
    for (size_t i = 0; i < 8; i++) {
        ok(remote(w, &f, 1, &refs[i]));
    }
    *held = tu_settled_blocks();
    for (size_t i = 0; i < 8; i += 2) {
        braid_rref_free(refs[i]);
        ok(braid_rref_to_here(refs[i + 1], got, ALL, &err));
        assert_memory_equal(got, w->rows, sizeof got);
    }
    for (size_t i = 1; i < 8; i += 2) {
        braid_rref_free(refs[i]);
    }
}

/* All memory of the servers and the client is of this process: what is dropped is gone. */
static void dropping_gives_the_value_back(void **state)
{
    (void)state;
    world w;
    long held = 0;
    start(&w);
    make_and_drop_eight(&w, &held); /* what is made once: node, peer, the server's client */
    long before = tu_settled_blocks();
    for (int i = 0; i < 10; i++) {
        make_and_drop_eight(&w, &held);
        assert_true(held >= before + 8);
    }
    /* A list of ended contexts may have been made since, but nothing for each of 80 references. */
    assert_true(tu_blocks_come_under(before + 8));
    stop(&w);
}

/* Whichever allocation fails, maybe one of a server's: an error, nothing stays, the next one works.
 * Nothing: what one of the 300 left behind would be seen. */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    world w;
    float got[ALL];
    braid_rref *ref = NULL;
    start(&w);
    const braid_feature f = rows_of(&w);
    long before = 0;
    int n_failed = 0;
    for (long nth = 0; nth < 330; nth++) {
        ref = NULL;
        before = nth == 30 ? tu_settled_blocks() : before;
        bd_fault_fail_alloc(nth % 30);
        int rc = remote(&w, &f, 1, &ref);
        bd_fault_fail_alloc(-1);
        n_failed += rc != BRAID_OK;
        assert_true(rc == BRAID_OK || (rc == BRAID_E_NOMEM && ref == NULL));
        braid_rref_free(ref);
    }
    assert_true(n_failed > 10);
    assert_true(tu_blocks_come_under(before + 8));
    ok(remote(&w, &f, 1, &ref));
    ok(braid_rref_to_here(ref, got, ALL, &err));
    assert_memory_equal(got, w.rows, sizeof got);
    braid_rref_free(ref);
    stop(&w);
}

/* A server that was started again knows nothing of it; one that is away is named. */
static void a_restart_loses_it_and_a_lost_server_is_named(void **state)
{
    (void)state;
    world w;
    float got[ALL];
    braid_rref *ref = NULL, *next = NULL;
    start(&w);
    const braid_feature f = rows_of(&w);
    ok(remote(&w, &f, 1, &ref));
    ok(braid_rref_to_here(ref, got, ALL, &err));
    ps_cluster_stop_server(&w.cluster, 1);
    ok(remote(&w, &f, 1, &next)); /* is told when it is fetched */
    assert_int_equal(braid_rref_to_here(next, got, ALL, &err), BRAID_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "ps-1"));
    braid_rref_free(next);
    ps_cluster_start_server(&w.cluster, 1);
    assert_int_equal(braid_rref_to_here(ref, got, ALL, &err), BRAID_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "ps-1"));
    ok(remote(&w, &f, 1, &next));
    ok(braid_rref_to_here(next, got, ALL, &err));
    assert_memory_equal(got, w.rows, sizeof got);
    braid_rref_free(next);
    braid_rref_free(ref);
    stop(&w);
}

static void closing_gives_back_what_is_left(void **state)
{
    (void)state;
    world w;
    float got[ALL];
    braid_rref *ref = NULL, *other = NULL;
    start(&w);
    const braid_feature f = rows_of(&w);
    ok(remote(&w, &f, 1, &ref));
    ok(remote(&w, &f, 1, &other));
    braid_close(w.c);
    w.c = NULL;
    assert_int_equal(braid_rref_to_here(ref, got, ALL, &err), BRAID_E_STATE);
    assert_string_equal(braid_rref_owner(ref), "ps-1");
    braid_rref_free(ref);
    braid_rref_free(other);
    stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_value_is_that_of_its_making),
        cmocka_unit_test(bags_are_pooled_at_the_server),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(dropping_gives_the_value_back),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_restart_loses_it_and_a_lost_server_is_named),
        cmocka_unit_test(closing_gives_back_what_is_left),
    };
    (void)braid_log_level("error");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
