/* What every store promises, of each kind: in one process's memory and served to others, in server
 * 0, in etcd, and etcd behind a server. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include "rpc/rpc_stats.h"
#include "rpc/rpc_store.h"

#include "tests/util/ps_cluster.h"
#include "tests/util/tu_etcd.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { LONG_MS = 30000 };

/* Whatever a kind needs; `a` and `b` are two clients of one store. */
static struct world {
    rpc_env *env;
    rpc_store *mem;  /* served */
    rpc_store *back; /* etcd behind a server */
    rpc_server *server;
    ps_cluster cluster;
    rpc_store *a, *b;
} w;
/* One for all tests, each under a prefix of its own. */
static tu_etcd etcd;
static int n_prefixes;

static void etcd_url(char url[128])
{
    (void)snprintf(url, 128, "%s/test-%d", etcd.url, n_prefixes++);
}

static void open_both(const char *url)
{
    bd_err err = BD_ERR_INIT;
    const rpc_store_options opt = {.wait_ms = LONG_MS};
    must(rpc_store_open(w.env, url, &opt, &w.a, &err), &err);
    must(rpc_store_open(w.env, url, &opt, &w.b, &err), &err);
}

static void start_env(void)
{
    bd_err err = BD_ERR_INIT;
    memset(&w, 0, sizeof w);
    must(rpc_env_new(NULL, &w.env, &err), &err);
}

static void serve(rpc_store *s)
{
    char address[64];
    bd_err err = BD_ERR_INIT;
    const rpc_server_options opt = {.listen = "127.0.0.1:0"};
    must(rpc_server_new(w.env, &opt, &w.server, &err), &err);
    must(rpc_store_serve(w.server, s, &err), &err);
    must(rpc_server_start(w.server, &err), &err);
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", rpc_server_port(w.server));
    open_both(address);
}

static int start_served(void **state)
{
    (void)state;
    start_env();
    w.mem = rpc_store_mem();
    assert_non_null(w.mem);
    serve(w.mem);
    return 0;
}

static int start_embedded(void **state)
{
    (void)state;
    start_env();
    ps_cluster_start(&w.cluster, 1);
    open_both(w.cluster.address[0]);
    return 0;
}

static int start_etcd(void **state)
{
    (void)state;
    char url[128];
    start_env();
    etcd_url(url);
    open_both(url);
    return 0;
}

static int start_etcd_behind(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    const rpc_store_options opt = {.wait_ms = LONG_MS};
    char url[128];
    start_env();
    etcd_url(url);
    must(rpc_store_open(w.env, url, &opt, &w.back, &err), &err);
    serve(w.back);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    rpc_store_free(w.a);
    rpc_store_free(w.b);
    if (w.server != NULL) {
        rpc_server_free(w.server);
    }
    rpc_store_free(w.mem);
    rpc_store_free(w.back);
    rpc_env_free(w.env);
    if (w.cluster.n > 0) {
        ps_cluster_stop(&w.cluster);
    }
    return 0;
}

/* ---- the contract ---- */
static void expect(rpc_store *s, const char *key, const char *want, int64_t timeout_ms)
{
    char *val = NULL;
    size_t n = 0;
    bd_err err = BD_ERR_INIT;
    must(s->kv->get(s->kv, key, timeout_ms, &val, &n, &err), &err);
    assert_string_equal(val, want);
    assert_int_equal(n, strlen(want));
    bd_free(val);
}

static void values_and_numbers(void **state)
{
    (void)state;
    bd_kv *kv = w.a->kv;
    char *val = NULL;
    size_t n = 0;
    int64_t after = 0;
    bool swapped = true;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(kv->get(kv, "x", 0, &val, &n, &err), BD_E_NOT_FOUND);
    assert_int_equal(kv->get(kv, "x", 30, &val, &n, &err), BD_E_TIMEOUT);
    assert_non_null(strstr(err.text, "kv get x"));
    must(kv->set(kv, "x", "ab\0c", 4, &err), &err);
    must(w.b->kv->get(w.b->kv, "x", 0, &val, &n, &err), &err);
    assert_int_equal(n, 4);
    assert_memory_equal(val, "ab\0c", 5);
    bd_free(val);
    must(kv->set(kv, "x", "", 0, &err), &err);
    expect(w.b, "x", "", 0);
    must(kv->add(kv, "n", 5, &after, &err), &err);
    must(w.b->kv->add(w.b->kv, "n", -7, &after, &err), &err);
    assert_int_equal(after, -2);
    must(kv->add(kv, "n", 0, &after, &err), &err);
    assert_int_equal(after, -2);
    assert_int_equal(kv->wait_at_least(kv, "n", 1, 30, &err), BD_E_TIMEOUT);
    must(kv->compare_set(kv, "c", "old", "new", &swapped, &err), &err);
    assert_false(swapped);
    must(kv->compare_set(kv, "c", NULL, "new", &swapped, &err), &err);
    assert_true(swapped);
    must(kv->compare_set(kv, "c", NULL, "newer", &swapped, &err), &err);
    assert_false(swapped);
    must(kv->compare_set(kv, "c", "new", "newest", &swapped, &err), &err);
    assert_true(swapped);
    expect(w.b, "c", "newest", 0);
    must(kv->del(kv, "x", &err), &err);
    must(kv->del(kv, "x", &err), &err);
    assert_int_equal(kv->get(kv, "x", 0, &val, &n, &err), BD_E_NOT_FOUND);
    assert_int_equal(kv->set(kv, "sp\tace", "1", 1, &err), BD_E_INVALID);
}

static void repeats_count_once(void **state)
{
    (void)state;
    int64_t after = 0;
    bool swapped = false;
    uint64_t id[3] = {0, 0, 0}, op = rpc_store_op_id();
    bd_err err = BD_ERR_INIT;
    must(w.a->add_once(w.a, op, "once", 3, &after, &err), &err);
    must(w.a->add_once(w.a, rpc_store_op_id(), "once", 4, &after, &err), &err);
    must(w.b->add_once(w.b, op, "once", 3, &after, &err), &err);
    assert_int_equal(after, 3); /* the first answer */
    must(w.b->kv->add(w.b->kv, "once", 0, &after, &err), &err);
    assert_int_equal(after, 7);
    op = rpc_store_op_id();
    for (int i = 0; i < 2; i++) {
        swapped = false;
        must(w.a->swap_once(w.a, op, "lock", NULL, "mine", &swapped, &err), &err);
        assert_true(swapped);
    }
    must(w.a->client_id(w.a, 77, "one", &id[0], &err), &err);
    must(w.b->client_id(w.b, 78, "two", &id[1], &err), &err);
    must(w.b->client_id(w.b, 77, "one", &id[2], &err), &err);
    assert_true(id[0] != 0 && id[0] != id[1]);
    assert_int_equal(id[0], id[2]);
}

/* ---- waits end by a change of somebody else ---- */
/* Grows with each question that waits: to a Coordinator, or a watch of etcd. */
static uint64_t waits_sent(void)
{
    return rpc_stats_of(RPC_CLIENT_SIDE, "/braid.v1.Coordinator/KvGet")->sent_bytes +
           rpc_stats_of(RPC_CLIENT_SIDE, "/braid.v1.Coordinator/KvWait")->sent_bytes +
           rpc_stats_of(RPC_CLIENT_SIDE, "/etcdserverpb.Watch/Watch")->sent_messages;
}

/* Until somebody waits who did not when *before was taken. */
static void wait_for_a_wait(uint64_t *before)
{
    int64_t until = bd_mono_ns() + LONG_MS * BD_NS_PER_MS;
    uint64_t now = waits_sent();
    for (; now == *before && bd_mono_ns() < until; now = waits_sent()) {
        bd_sleep_ms(1);
    }
    assert_true(now > *before);
    *before = now;
}

static void *change_when_waited_for(void *arg)
{
    bd_err err = BD_ERR_INIT;
    bd_kv *kv = w.b->kv;
    int64_t after = 0;
    uint64_t *sent = arg;
    wait_for_a_wait(sent);
    must(kv->set(kv, "late", "here", 4, &err), &err);
    wait_for_a_wait(sent);
    must(kv->add(kv, "count", 1, &after, &err), &err);
    must(kv->add(kv, "count", 1, &after, &err), &err);
    wait_for_a_wait(sent);
    must(kv->set(kv, "turn", "two", 3, &err), &err);
    wait_for_a_wait(sent);
    must(kv->del(kv, "gone", &err), &err);
    return NULL;
}

static void waits_end_by_a_change(void **state)
{
    (void)state;
    pthread_t t;
    char *val = NULL;
    bd_err err = BD_ERR_INIT;
    bd_kv *kv = w.a->kv;
    must(kv->set(kv, "turn", "one", 3, &err), &err);
    must(kv->set(kv, "gone", "still here", 10, &err), &err);
    assert_int_equal(kv->get_other(kv, "turn", "one", 30, &val, &err), BD_E_TIMEOUT);
    must(kv->get_other(kv, "turn", NULL, 0, &val, &err), &err);
    assert_string_equal(val, "one");
    bd_free(val);
    uint64_t sent = waits_sent();
    assert_int_equal(pthread_create(&t, NULL, change_when_waited_for, &sent), 0);
    expect(w.a, "late", "here", LONG_MS);
    must(kv->wait_at_least(kv, "count", 2, LONG_MS, &err), &err);
    must(kv->get_other(kv, "turn", "one", LONG_MS, &val, &err), &err);
    assert_string_equal(val, "two");
    bd_free(val);
    must(kv->get_other(kv, "gone", "still here", LONG_MS, &val, &err), &err);
    assert_null(val);
    assert_int_equal(pthread_join(t, NULL), 0);
}

/* ---- signs of life ---- */
static void what_is_not_kept_alive_goes(void **state)
{
    (void)state;
    char *val = NULL;
    bd_err err = BD_ERR_INIT;
    bd_kv *kv = w.a->kv;
    must(kv->set_for(kv, "alive", "a", 1000, &err), &err);
    must(kv->set_for(kv, "alive", "a", 1000, &err), &err);
    must(kv->set_for(kv, "alive", "b", 1000, &err), &err); /* and its value may change */
    expect(w.b, "alive", "b", 0);
    must(w.b->kv->get_other(w.b->kv, "alive", "b", LONG_MS, &val, &err), &err);
    assert_null(val);
    must(kv->set_for(kv, "alive", "b", 1000, &err), &err); /* it may come back */
    expect(w.b, "alive", "b", 0);
}

/* A value that is set without a term stays when the old term is over. */
static void a_plain_value_ends_the_term(void **state)
{
    (void)state;
    char *val = NULL;
    bd_err err = BD_ERR_INIT;
    must(w.a->kv->set_for(w.a->kv, "alive", "a", 1000, &err), &err);
    must(w.a->kv->set(w.a->kv, "alive", "for ever", 8, &err), &err);
    assert_int_equal(w.b->kv->get_other(w.b->kv, "alive", "for ever", 1300, &val, &err),
                     BD_E_TIMEOUT);
}

static void barriers_meet(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    int64_t after = 0;
    assert_int_equal(bd_kv_barrier(w.a->kv, "gate", 2, 30, &err), BD_E_TIMEOUT);
    must(bd_kv_barrier(w.b->kv, "gate", 2, LONG_MS, &err), &err);
    must(w.a->kv->add(w.a->kv, "gate", 0, &after, &err), &err);
    assert_int_equal(after, 2);
}

/* ---- the shard map, of stores that servers register with by themselves ---- */
static void servers_make_a_map(void **state)
{
    (void)state;
    uint64_t epoch = 0, first = 0;
    rpc_shard_map map = {0};
    bd_err err = BD_ERR_INIT;
    rpc_server_entry e = {.index = 1, .n_servers = 2, .address = "h1:1", .instance = "i"};
    assert_int_equal(w.a->shard_map(w.a, 0, 30, &map, &err), BD_E_TIMEOUT);
    must(w.a->register_server(w.a, &e, &epoch, &err), &err);
    assert_int_equal(w.b->shard_map(w.b, 0, 30, &map, &err), BD_E_TIMEOUT);
    assert_non_null(strstr(err.text, "1 of 2 servers have not registered, first: server 0"));
    e = (rpc_server_entry){.index = 0, .n_servers = 2, .address = "h0:1", .instance = "i"};
    must(w.a->register_server(w.a, &e, &first, &err), &err);
    assert_true(first > epoch);
    must(w.b->shard_map(w.b, 0, LONG_MS, &map, &err), &err);
    assert_int_equal(map.epoch, first);
    assert_int_equal(map.n_servers, 2);
    assert_string_equal(map.servers[0], "h0:1");
    assert_string_equal(map.servers[1], "h1:1");
    assert_int_equal(map.n_slots, RPC_N_SLOTS);
    assert_int_equal(map.slot_owner[0], 0);
    assert_int_equal(map.slot_owner[RPC_N_SLOTS - 1], 1);
    rpc_shard_map_deinit(&map);
    must(w.a->register_server(w.a, &e, &epoch, &err), &err); /* again: nothing new */
    assert_int_equal(epoch, first);
    assert_int_equal(w.b->shard_map(w.b, first, 30, &map, &err), BD_E_TIMEOUT);
    e.address = "h0:2";
    must(w.a->register_server(w.a, &e, &epoch, &err), &err);
    assert_int_equal(epoch, first + 1);
    must(w.b->shard_map(w.b, first, LONG_MS, &map, &err), &err);
    assert_string_equal(map.servers[0], "h0:2");
    rpc_shard_map_deinit(&map);
}

/* Server 0 says how many there are; the others wait for it. */
static void the_number_of_servers_is_server_0s(void **state)
{
    (void)state;
    uint64_t epoch = 0;
    rpc_shard_map map = {0};
    bd_err err = BD_ERR_INIT;
    rpc_server_entry e = {.index = 0, .n_servers = 1, .address = "h0:1", .instance = "i"};
    must(w.a->register_server(w.a, &e, &epoch, &err), &err);
    e = (rpc_server_entry){.index = 1, .n_servers = 2, .address = "h1:1", .instance = "i"};
    w.a->wait_ms = 100;
    assert_int_equal(w.a->register_server(w.a, &e, &epoch, &err), BD_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "server 1 says 2 servers, server 0 says 1"));
    e = (rpc_server_entry){.index = 0, .n_servers = 2, .address = "h0:1", .instance = "i"};
    must(w.a->register_server(w.a, &e, &epoch, &err), &err);
    assert_int_equal(w.a->shard_map(w.a, 0, 30, &map, &err), BD_E_TIMEOUT);
    e = (rpc_server_entry){.index = 2, .n_servers = 2, .address = "h1:1", .instance = "i"};
    assert_int_equal(w.a->register_server(w.a, &e, &epoch, &err), BD_E_INVALID);
}

/* ---- etcd killed and started again: callers only wait, waits go on, nothing is done twice ---- */
static void *wait_through(void *arg)
{
    (void)arg;
    expect(w.a, "after", "the restart", 2LL * LONG_MS);
    return NULL;
}

static void a_restart_is_waited_for(void **state)
{
    (void)state;
    pthread_t t;
    int64_t after = 0;
    bd_err err = BD_ERR_INIT;
    must(w.a->kv->add(w.a->kv, "n", 1, &after, &err), &err);
    assert_int_equal(pthread_create(&t, NULL, wait_through, NULL), 0);
    tu_etcd_kill(&etcd);
    w.b->wait_ms = 200;
    assert_int_equal(w.b->kv->add(w.b->kv, "n", 1, &after, &err), BD_E_UNAVAILABLE);
    assert_non_null(strstr(err.text, "waited "));
    w.b->wait_ms = LONG_MS;
    tu_etcd_start(&etcd);
    must(w.b->kv->add(w.b->kv, "n", 1, &after, &err), &err);
    assert_int_equal(after, 2);
    must(w.b->kv->set(w.b->kv, "after", "the restart", 11, &err), &err);
    assert_int_equal(pthread_join(t, NULL), 0);
}

static void urls_are_checked(void **state)
{
    (void)state;
    rpc_store *s = NULL;
    bd_err err = BD_ERR_INIT;
    const rpc_store_options opt = {.wait_ms = 100};
    start_env();
    assert_int_equal(rpc_store_open(w.env, "redis://h:1", &opt, &s, &err), BD_E_USAGE);
    assert_int_equal(rpc_store_open(w.env, "etcd://", &opt, &s, &err), BD_E_USAGE);
    assert_int_equal(rpc_store_open(w.env, "", &opt, &s, &err), BD_E_USAGE);
    /* What may hold a password is not repeated. */
    assert_int_equal(rpc_store_open(w.env, "etcd://me:secret@h:1", &opt, &s, &err), BD_E_USAGE);
    assert_null(strstr(err.text, "secret"));
    must(rpc_store_open(w.env, "etcd://127.0.0.1:1,127.0.0.1:2/job", &opt, &s, &err), &err);
    assert_int_equal(s->kv->set(s->kv, "k", "v", 1, &err), BD_E_UNAVAILABLE);
    assert_int_equal(strncmp(err.text, "etcd (127.0.0.1:1,127.0.0.1:2): waited ", 39), 0);
    rpc_store_free(s);
    rpc_env_free(w.env);
}

#define CONTRACT(start)                                                      \
    cmocka_unit_test_setup_teardown(values_and_numbers, start, stop),        \
        cmocka_unit_test_setup_teardown(repeats_count_once, start, stop),    \
        cmocka_unit_test_setup_teardown(waits_end_by_a_change, start, stop), \
        cmocka_unit_test_setup_teardown(barriers_meet, start, stop)
#define TERMS(start) /* slow: of the two that are not as the others */         \
    cmocka_unit_test_setup_teardown(what_is_not_kept_alive_goes, start, stop), \
        cmocka_unit_test_setup_teardown(a_plain_value_ends_the_term, start, stop)
#define MAPS(start)                                                   \
    cmocka_unit_test_setup_teardown(servers_make_a_map, start, stop), \
        cmocka_unit_test_setup_teardown(the_number_of_servers_is_server_0s, start, stop)

int main(void)
{
    bd_log_set_level(BD_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(urls_are_checked), CONTRACT(start_served),
                                       MAPS(start_served), CONTRACT(start_embedded),
                                       TERMS(start_embedded)};
    const struct CMUnitTest etcd_tests[] = {
        CONTRACT(start_etcd), MAPS(start_etcd), TERMS(start_etcd), CONTRACT(start_etcd_behind),
        cmocka_unit_test_setup_teardown(a_restart_is_waited_for, start_etcd, stop)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (!tu_etcd_installed()) {
        (void)printf("SKIP: etcd: etcd-server is not installed\n");
        return failed;
    }
    tu_etcd_init(&etcd);
    failed += cmocka_run_group_tests(etcd_tests, NULL, NULL);
    tu_etcd_deinit(&etcd);
    return failed;
}
