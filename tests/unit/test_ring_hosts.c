/* Ranks on several hosts: network namespaces that tests/integ/test_ring_netns.sh makes and names in
 * BRAID_TEST_HOSTS ("netns,IPv4,IPv6 ..."); skipped without. The conformance matrix over real
 * links, and links that break. */
#include "base/clock.h"
#include "base/mem.h"

#include "ring/ring.h"

#include "tests/util/ring_matrix.h"
#include "tests/util/ring_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MOST_HOSTS 8

static ranks_host g_v4[MOST_HOSTS];
static ranks_host g_v6[MOST_HOSTS];
static int g_n;

static bool read_hosts(void)
{
    const char *list = getenv("BRAID_TEST_HOSTS"); /* NOLINT(concurrency-mt-unsafe): one thread */
    int used = 0;
    while (list != NULL && g_n < MOST_HOSTS &&
           sscanf(list, " %63[^,],%63[^,],%63[^, ]%n", g_v4[g_n].netns, g_v4[g_n].address,
                  g_v6[g_n].address, &used) == 3) {
        memcpy(g_v6[g_n].netns, g_v4[g_n].netns, sizeof g_v4[g_n].netns);
        list += used;
        g_n++;
    }
    return g_n >= 4;
}

static void matrix_tcp(void **state)
{
    (void)state;
    ring_ranks_use_hosts(g_v4, g_n);
    ring_matrix_small(RANKS_TCP);
    ring_matrix_large(RANKS_TCP);
    ring_matrix_bitwise(RANKS_TCP);
}

static void matrix_hier(void **state)
{
    (void)state;
    ring_ranks_use_hosts(g_v4, g_n);
    ring_matrix_small(RANKS_HIER);
    ring_matrix_large(RANKS_HIER);
    ring_matrix_bitwise(RANKS_HIER);
}

static void sum_ranks(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    float x = (float)(t->rank + 1);
    RANK_OK(t, ring_allreduce(t->comm, &x, 1, NUM_F32, NUM_SUM, "x", NULL, &err), &err);
    RANK_CHECK(t, (int)x == t->world * (t->world + 1) / 2);
}

static void ipv6_works_alone(void **state)
{
    (void)state;
    ring_ranks_use_hosts(g_v6, g_n);
    ring_ranks_run(RANKS_TCP, 4, NULL, sum_ranks, NULL);
    ring_ranks_run(RANKS_HIER, 5, NULL, sum_ranks, NULL);
}

/* What a rank moves tells whether it really found its host's ranks: of 4 ranks on 2 hosts each
 * sends half as much over the link as without the hierarchy, and its slice through shared memory.
 */
static void large_sum(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    uint64_t *sent = t->arg;
    const size_t n = (size_t)1 << 18;
    float *v = ring_alloc(t->comm, n * sizeof *v);
    RANK_CHECK(t, v != NULL);
    RANK_OK(t, ring_allreduce(t->comm, v, n, NUM_F32, NUM_SUM, "x", NULL, &err), &err);
    sent[t->rank] = ring_bytes_sent(t->comm);
    RANK_OK(t, ring_barrier(t->comm, "end", &err), &err);
    ring_mem_release(t->comm, v);
}

static void hosts_are_told_apart_by_namespace(void **state)
{
    (void)state;
    uint64_t sent[2][4];
    ring_ranks_use_hosts(g_v4, g_n);
    ring_ranks_run(RANKS_TCP, 4, NULL, large_sum, sent[0]);
    ring_ranks_run(RANKS_HIER, 4, NULL, large_sum, sent[1]);
    for (int r = 0; r < 4; r++) { /* 1.5 S against 2 (H-1)/H * S / 2, and the slice's way */
        assert_true(sent[1][r] < sent[0][r] * 4 / 5);
    }
}

/* Links that break. */

typedef struct cut {
    ranks_backend backend;
    int host; /* whose link it is */
    bool heals;
} cut;

static bool run_nft(int host, const char *what)
{
    char line[400];
    (void)snprintf(line, sizeof line, "ip netns exec %s nft '%s'", g_v4[host].netns, what);
    return system(line) == 0; /* NOLINT(cert-env33-c): names of our own making */
}

static bool break_link(int host)
{
    return run_nft(host, "add table inet cut; "
                         "add chain inet cut in { type filter hook input priority 0; }; "
                         "add rule inet cut in iifname eth0 drop; "
                         "add chain inet cut out { type filter hook output priority 0; }; "
                         "add rule inet cut out oifname eth0 drop");
}

static bool mend_link(int host)
{
    return run_nft(host, "delete table inet cut");
}

/* "a|b" */
static bool names_one_of(const char *text, const char *either)
{
    char first[64];
    const char *bar = strchr(either, '|');
    (void)snprintf(first, sizeof first, "%.*s", (int)(bar - either), either);
    return strstr(text, first) != NULL || strstr(text, bar + 1) != NULL;
}

static void over_a_broken_link(rank_test *t)
{
    const cut *c = t->arg;
    bd_err err = BD_ERR_INIT;
    enum { CUT_AT = 3, STEPS = 6 };
    const size_t n = (size_t)1 << 17;
    bool is_cut_off = ring_ranks_host_of(c->backend, t->rank, t->world) == c->host;
    float *v = bd_calloc(n, sizeof *v);
    bd_status rc = BD_OK;
    for (int step = 0; rc == BD_OK && step < STEPS; step++) {
        if (step == CUT_AT) {
            rank_meet(t);
            if (t->rank == 0) {
                RANK_CHECK(t, break_link(c->host));
            }
            rank_meet(t);
        }
        if (step == CUT_AT && c->heals && t->rank == 0) { /* the others have begun, or soon will */
            RANK_CHECK(t, mend_link(c->host));
        }
        rc = ring_allreduce(t->comm, v, n, NUM_F32, NUM_SUM, "step", NULL, &err);
    }
    bd_free(v);
    if (c->heals) {
        RANK_OK(t, rc, &err);
        return;
    }
    const char *named =
        c->backend == RANKS_HIER
            ? (is_cut_off ? ": rank 0 did|: rank 1 did" : ": rank 2 did|: rank 3 did")
            : (is_cut_off ? ": ranks 0, 1, 2 did|-" : ": rank 3 did|-");
    if (rc != BD_E_TIMEOUT || !names_one_of(err.text, named)) {
        rank_failed(t, __FILE__, __LINE__, "who is named", &err);
    }
    rank_meet(t);
    if (t->rank == 0) {
        RANK_CHECK(t, mend_link(c->host));
    }
}

static void break_on(ranks_backend backend, int host, bool heals)
{
    static uint64_t epoch = 1;
    ring_options opt = {.group = "link", .epoch = epoch++, .timeout_ms = 2000};
    cut c = {backend, host, heals};
    if (heals) {
        opt.timeout_ms = 20000;
    }
    ring_ranks_use_hosts(g_v4, g_n);
    ring_ranks_run(backend, 4, &opt, over_a_broken_link, &c);
}

static void a_dropped_link_is_a_timeout_on_both_sides(void **state)
{
    (void)state;
    break_on(RANKS_TCP, 3, false);
    break_on(RANKS_HIER, 1, false);
}

static void a_link_that_comes_back_loses_nothing(void **state)
{
    (void)state;
    break_on(RANKS_TCP, 3, true);
    break_on(RANKS_HIER, 1, true);
}

/* Without an address of the host, loopback would be advertised: refused at the start, naming it. */
static void loopback_does_not_reach_other_hosts(void **state)
{
    (void)state;
    bd_kv *kv = bd_kv_mem_new();
    bd_err err = BD_ERR_INIT;
    ring_comm *c = NULL;
    ring_options opt = {.group = "loop", .epoch = 1, .timeout_ms = 20000, .backend = RING_TCP};
    /* as another host advertises it: nothing of ours listens there */
    assert_int_equal(kv->set(kv, "ring/loop/1/rank/0", "127.0.0.1:1", 11, &err), BD_OK);
    assert_int_equal(ring_new(kv, 1, 2, &opt, &c, &err), BD_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "rank 0 at 127.0.0.1:1"));
    bd_kv_mem_free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ipv6_works_alone),
        cmocka_unit_test(hosts_are_told_apart_by_namespace),
        cmocka_unit_test(loopback_does_not_reach_other_hosts),
        cmocka_unit_test(a_dropped_link_is_a_timeout_on_both_sides),
        cmocka_unit_test(a_link_that_comes_back_loses_nothing),
        cmocka_unit_test(matrix_tcp),
        cmocka_unit_test(matrix_hier),
    };
    if (!read_hosts()) {
        (void)printf(
            "SKIP: BRAID_TEST_HOSTS names no four hosts (tests/integ/test_ring_netns.sh)\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
