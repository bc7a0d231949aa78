/* Three launchers in one process over the memory store: two rounds that fail, one that ends well.
 */
#include "base/mem.h"

#include "cli/cli_rdzv.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N_NODES = 3, N_RANKS = 2, N_ROUNDS = 3, FAIL_CODE = 7 };

typedef struct node {
    rpc_store *store;
    int me;
    _Atomic int n_right; /* rounds that went as they should */
} node;

static void take_part(node *n, cli_rdzv *r, int round)
{
    cli_plan p;
    cli_end e = {.kind = CLI_END_AGAIN};
    bd_err err = BD_ERR_INIT;
    bool last = round == N_ROUNDS - 1;
    if (cli_rdzv_join(r, &p, &err) != BD_OK) {
        return;
    }
    bool right = p.n_restarts == round && p.world == N_NODES * N_RANKS && p.me >= 0;
    bd_status rc = BD_OK;
    if (last) {
        rc = cli_rdzv_done(r, &p, &err);
    } else if (n->me == round) {
        rc = cli_rdzv_post(r, &p, FAIL_CODE, true, "rank 1", &err);
    }
    right = right && rc == BD_OK && cli_rdzv_wait_end(r, &p, &e, &err) == BD_OK;
    right = right && e.kind == (last ? CLI_END_OK : CLI_END_RETRY) &&
            (last || (e.exit_code == FAIL_CODE && strcmp(e.text, "rank 1") == 0));
    if (last) {
        cli_rdzv_leave(r, &p, true);
    }
    cli_plan_deinit(&p);
    n->n_right += right;
}

static void *node_main(void *arg)
{
    node *n = arg;
    cli_rdzv *r = NULL;
    bd_err err = BD_ERR_INIT;
    const cli_rdzv_options o = {.id = "job",
                                .min_nodes = N_NODES,
                                .max_nodes = N_NODES,
                                .n_ranks = N_RANKS,
                                .node_rank = -1,
                                .host = "h",
                                .address = "a",
                                .max_restarts = N_ROUNDS,
                                .join_ms = 60000,
                                .beat_ms = 10000};
    if (cli_rdzv_new(n->store, &o, &r, &err) != BD_OK) {
        return NULL;
    }
    for (int round = 0; round < N_ROUNDS; round++) {
        take_part(n, r, round);
    }
    cli_rdzv_free(r);
    return NULL;
}

static void all_see_the_same_rounds(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    pthread_t threads[N_NODES];
    node nodes[N_NODES];
    rpc_store *store = rpc_store_mem();
    assert_non_null(store);
    for (int i = 0; i < N_NODES; i++) {
        nodes[i] = (node){.store = store, .me = i};
        assert_int_equal(pthread_create(&threads[i], NULL, node_main, &nodes[i]), 0);
    }
    for (int i = 0; i < N_NODES; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(nodes[i].n_right, N_ROUNDS);
    }
    rpc_store_free(store);
    assert_int_equal(bd_mem_live_blocks(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_see_the_same_rounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
