/* What probes see of a server: alive from the start, ready only while it can work. */
#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"

#include "proto/px_pack.h"
#include "ps_server/ps_health.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_server.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "braid/v1/parameter_server.pb-c.h"
#include "grpc/health/v1/health.pb-c.h"

#define WAIT_MS 10000

enum { UNKNOWN = -1, SERVING = 1, NOT_SERVING = 2 };

static rpc_env *env; /* of the asking side */

static int set_up_env(void **state)
{
    bd_err err;
    (void)state;
    return rpc_env_new(NULL, &env, &err) == BD_OK ? 0 : -1;
}

static int tear_down_env(void **state)
{
    (void)state;
    rpc_env_free(env);
    return 0;
}

static bd_status ask(int port, const char *method, const ProtobufCMessage *m, bd_chain *reply,
                     bd_err *err)
{
    char target[64];
    const rpc_channel_options co = {.name = "asked"};
    const rpc_call_options opt = {.deadline_ms = WAIT_MS};
    rpc_channel *ch = NULL;
    bd_chain request = {0};
    (void)snprintf(target, sizeof target, "127.0.0.1:%d", port);
    assert_int_equal(rpc_channel_new(env, target, &co, &ch, err), BD_OK);
    assert_int_equal(px_pack(m, &request, err), BD_OK);
    bd_status rc = rpc_call_sync(ch, method, &request, &opt, reply, err);
    rpc_channel_free(ch);
    bd_chain_deinit(&request);
    return rc;
}

static int probe(int port, const char *service)
{
    Grpc__Health__V1__HealthCheckRequest m;
    char name[32];
    uint8_t bytes[2] = {0};
    bd_chain reply = {0};
    bd_err err = BD_ERR_INIT;
    (void)snprintf(name, sizeof name, "%s", service);
    grpc__health__v1__health_check_request__init(&m);
    m.service = name;
    bd_status rc = ask(port, "/grpc.health.v1.Health/Check", &m.base, &reply, &err);
    bool read = rc == BD_OK && bd_chain_read(&reply, 0, bytes, 2);
    bd_chain_deinit(&reply);
    return read ? bytes[1] : UNKNOWN;
}

static void readiness_is_ready_and_not_draining(void **state)
{
    ps_health *h = NULL;
    bd_err err = BD_ERR_INIT;
    char why[64] = "";
    (void)state;
    assert_int_equal(ps_health_new("127.0.0.1:0", &h, &err), BD_OK);
    int port = ps_health_port(h);
    assert_false(ps_health_is_serving(h, why, sizeof why));
    assert_string_equal(why, "starting or stopping");
    ps_health_tell(h, "loading rows: 7 so far");
    assert_false(ps_health_is_serving(h, why, sizeof why));
    assert_string_equal(why, "loading rows: 7 so far"); /* until it has been ready */
    ps_health_set_ready(h, true);
    ps_health_set_ready(h, false);
    assert_false(ps_health_is_serving(h, why, sizeof why));
    assert_string_equal(why, "starting or stopping");
    for (int ready = 0; ready <= 1; ready++) {
        for (int draining = 0; draining <= 1; draining++) {
            int want = ready == 1 && draining == 0 ? SERVING : NOT_SERVING;
            ps_health_set_ready(h, ready == 1);
            ps_health_set_draining(h, draining == 1);
            assert_int_equal(probe(port, "liveness"), SERVING);
            assert_int_equal(probe(port, "readiness"), want);
            assert_int_equal(probe(port, ""), want);
            assert_int_equal(ps_health_is_serving(h, why, sizeof why), want == SERVING);
        }
    }
    assert_string_equal(why, "draining");
    assert_int_equal(probe(port, "other"), UNKNOWN);
    char again[64];
    ps_health *second = NULL;
    (void)snprintf(again, sizeof again, "127.0.0.1:%d", port);
    assert_int_equal(ps_health_new(again, &second, &err), BD_E_IO);
    assert_non_null(strstr(bd_err_text(&err), "health port"));
    ps_health_free(h);
    assert_int_equal(ps_health_new("", &h, &err), BD_OK); /* no port: the states all the same */
    assert_int_equal(ps_health_port(h), 0);
    ps_health_set_ready(h, true);
    assert_true(ps_health_is_serving(h, why, sizeof why));
    ps_health_set_failed(h, "the disk");
    ps_health_set_failed(h, "later");
    assert_false(ps_health_is_serving(h, why, sizeof why));
    assert_string_equal(why, "failed: the disk");
    ps_health_free(h);
}

/* ---- whole servers ---- */
typedef struct start {
    ps_options opt;
    bd_status rc;
    bd_err err;
    ps_server *server;
} start;

static void *start_main(void *user)
{
    start *st = user;
    st->rc = ps_server_start(&st->opt, &st->server, &st->err);
    return NULL;
}

static int free_port(void)
{
    ps_health *h = NULL;
    bd_err err;
    assert_int_equal(ps_health_new("127.0.0.1:0", &h, &err), BD_OK);
    int port = ps_health_port(h);
    ps_health_free(h);
    return port;
}

static const ps_options base_options = {.servers = 2,
                                        .coordinator = "",
                                        .listen = "127.0.0.1:0",
                                        .advertise = "",
                                        .ready_fd = -1,
                                        .journal_cap = 64 << 20,
                                        .staged_limit = 64 << 20,
                                        .register_wait = 60000,
                                        .metrics_listen = ""};

static void await(int port, const char *service, int want)
{
    int64_t until = bd_mono_ns() + WAIT_MS * BD_NS_PER_MS;
    while (probe(port, service) != want) {
        assert_true(bd_mono_ns() < until);
        bd_sleep_ms(2);
    }
}

/* A server whose coordinator has not come yet is alive and not ready; when it comes, ready. */
static void a_server_that_waits_is_alive_and_not_ready(void **state)
{
    char dir[] = "/tmp/test_ps_health.XXXXXX", dirs[2][64], health[64], zero[64];
    int port = free_port(), zero_port = free_port();
    start one = {.opt = base_options}, first = {.opt = base_options};
    pthread_t thread;
    bd_err err = BD_ERR_INIT;
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        (void)snprintf(dirs[i], sizeof dirs[i], "%s/ps-%d", dir, i);
    }
    (void)snprintf(health, sizeof health, "127.0.0.1:%d", port);
    (void)snprintf(zero, sizeof zero, "127.0.0.1:%d", zero_port);
    one.opt.index = 1;
    one.opt.coordinator = zero;
    one.opt.data_dir = dirs[1];
    one.opt.health_listen = health;
    assert_int_equal(pthread_create(&thread, NULL, start_main, &one), 0);
    await(port, "liveness", SERVING);
    assert_int_equal(probe(port, "readiness"), NOT_SERVING);
    first.opt.listen = zero;
    first.opt.data_dir = dirs[0];
    first.opt.health_listen = "";
    (void)start_main(&first);
    assert_int_equal(first.rc, BD_OK);
    await(port, "readiness", SERVING);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(one.rc, BD_OK);
    assert_int_equal(ps_server_stop(one.server, &err), BD_OK);
    assert_int_equal(ps_server_stop(first.server, &err), BD_OK);
    assert_int_equal(ps_dir_remove(dir, &err), BD_OK);
}

/* What the last reply said of readiness. */
static char not_ready[128];

static bd_status drain(int port, Braid__V1__DrainMode mode, bool *draining, bd_err *err)
{
    Braid__V1__DrainRequest m;
    ProtobufCMessage *msg = NULL;
    bd_chain reply = {0};
    braid__v1__drain_request__init(&m);
    m.mode = mode;
    bd_status rc = ask(port, "/braid.v1.ParameterServer/Drain", &m.base, &reply, err);
    if (rc == BD_OK) {
        rc = px_unpack(&braid__v1__drain_reply__descriptor, &reply, 4096, &msg, err);
        *draining = rc == BD_OK && ((Braid__V1__DrainReply *)(void *)msg)->draining;
        (void)snprintf(not_ready, sizeof not_ready, "%s",
                       rc == BD_OK ? ((Braid__V1__DrainReply *)(void *)msg)->not_ready : "?");
        px_unpacked_free(msg);
    }
    bd_chain_deinit(&reply);
    return rc;
}

static bd_status open_job(int port, uint64_t epoch, bd_err *err)
{
    Braid__V1__OpenJobRequest m;
    bd_chain reply = {0};
    braid__v1__open_job_request__init(&m);
    m.job_epoch = epoch;
    m.world = 1;
    m.next_step = 1;
    bd_status rc = ask(port, "/braid.v1.ParameterServer/OpenJob", &m.base, &reply, err);
    bd_chain_deinit(&reply);
    return rc;
}

/* The only server of a cluster, in a new folder, with its health on that port; its own port. */
static int start_alone(start *st, char *dir, char health[64], int health_port)
{
    assert_non_null(mkdtemp(dir));
    (void)snprintf(health, 64, "127.0.0.1:%d", health_port);
    st->opt.servers = 1;
    st->opt.data_dir = dir;
    st->opt.health_listen = health;
    (void)start_main(st);
    assert_int_equal(st->rc, BD_OK);
    return (int)strtol(strrchr(ps_server_address(st->server), ':') + 1, NULL, 10);
}

/* Drain: not ready, new jobs refused, over with undrain; asking changes nothing. */
static void drain_refuses_new_jobs_until_undrain(void **state)
{
    char dir[] = "/tmp/test_ps_health.XXXXXX", health[64];
    int port = free_port();
    bool draining = true;
    start st = {.opt = base_options};
    bd_err err = BD_ERR_INIT;
    (void)state;
    int main_port = start_alone(&st, dir, health, port);
    assert_int_equal(open_job(main_port, 1, &err), BD_OK);
    assert_int_equal(drain(main_port, BRAID__V1__DRAIN_MODE__DRAIN_MODE_QUERY, &draining, &err),
                     BD_OK);
    assert_false(draining);
    assert_string_equal(not_ready, "");
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(drain(main_port, BRAID__V1__DRAIN_MODE__DRAIN_MODE_DRAIN, &draining, &err),
                         BD_OK);
        assert_true(draining);
        assert_string_equal(not_ready, "draining");
    }
    assert_int_equal(probe(port, "readiness"), NOT_SERVING);
    assert_int_equal(probe(port, "liveness"), SERVING);
    assert_int_equal(probe(main_port, ""), NOT_SERVING);
    assert_int_equal(open_job(main_port, 2, &err), BD_E_UNAVAILABLE);
    assert_non_null(strstr(bd_err_text(&err), "draining"));
    assert_int_equal(drain(main_port, BRAID__V1__DRAIN_MODE__DRAIN_MODE_UNDRAIN, &draining, &err),
                     BD_OK);
    assert_false(draining);
    assert_int_equal(probe(port, "readiness"), SERVING);
    assert_int_equal(open_job(main_port, 2, &err), BD_OK);
    assert_int_equal(ps_server_stop(st.server, &err), BD_OK);
    assert_int_equal(ps_dir_remove(dir, &err), BD_OK);
}

/* A journal that cannot be synced: not ready any more, by its own, and alive. */
static void a_server_whose_journal_failed_is_not_ready(void **state)
{
    char dir[] = "/tmp/test_ps_health.XXXXXX", health[64];
    int port = free_port();
    bool draining = true;
    start st = {.opt = base_options};
    bd_err err = BD_ERR_INIT;
    (void)state;
    int main_port = start_alone(&st, dir, health, port);
    assert_int_equal(probe(port, "readiness"), SERVING);
    assert_true(bd_fault_arm("ps.journal.sync", "fail", 0));
    assert_int_equal(open_job(main_port, 1, &err), BD_E_IO);
    await(port, "readiness", NOT_SERVING);
    await(main_port, "", NOT_SERVING);
    assert_int_equal(probe(port, "liveness"), SERVING);
    assert_int_equal(open_job(main_port, 2, &err), BD_E_IO);
    assert_non_null(strstr(bd_err_text(&err), "fault point"));
    assert_int_equal(drain(main_port, BRAID__V1__DRAIN_MODE__DRAIN_MODE_QUERY, &draining, &err),
                     BD_OK);
    assert_false(draining);
    assert_non_null(strstr(not_ready, "fault point"));
    assert_int_equal(ps_server_stop(st.server, &err), BD_E_IO);
    bd_fault_disarm_all();
    assert_int_equal(ps_dir_remove(dir, &err), BD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readiness_is_ready_and_not_draining),
        cmocka_unit_test(a_server_that_waits_is_alive_and_not_ready),
        cmocka_unit_test(drain_refuses_new_jobs_until_undrain),
        cmocka_unit_test(a_server_whose_journal_failed_is_not_ready),
    };
    return cmocka_run_group_tests(tests, set_up_env, tear_down_env);
}
