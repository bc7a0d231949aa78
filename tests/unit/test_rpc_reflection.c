/* Server reflection over real gRPC: what `grpcurl list` and `describe` ask, in both versions. */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "grpc/reflection/v1/reflection.pb-c.h"

typedef Grpc__Reflection__V1__ServerReflectionRequest request;
typedef Grpc__Reflection__V1__ServerReflectionResponse response;

typedef struct world {
    rpc_env *env;
    rpc_server *server;
    rpc_channel *ch;
    rpc_stream *s;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ProtobufCMessage *answer;
    bool closed;
} world;

static void on_nothing(void *user, rpc_req *req)
{
    (void)user;
    bd_chain none = {0};
    rpc_req_reply(req, &none);
}

static void on_message(void *user, bd_chain *msg)
{
    world *w = user;
    ProtobufCMessage *m = NULL;
    assert_int_equal(px_unpack(&grpc__reflection__v1__server_reflection_response__descriptor, msg,
                               1 << 20, &m, NULL),
                     BD_OK);
    (void)pthread_mutex_lock(&w->lock);
    w->answer = m;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

static void on_close(void *user, bd_status rc, const bd_err *err)
{
    (void)rc;
    (void)err;
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    w->closed = true;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

static void open_stream(world *w, const char *version)
{
    char method[128];
    bd_err err = BD_ERR_INIT;
    rpc_stream_events ev = {.on_message = on_message, .on_close = on_close, .user = w};
    (void)snprintf(method, sizeof method,
                   "/grpc.reflection.%s.ServerReflection/ServerReflectionInfo", version);
    w->closed = false;
    assert_int_equal(rpc_stream_open(w->ch, method, &ev, &w->s, &err), BD_OK);
}

static void close_stream(world *w)
{
    rpc_stream_finish(w->s);
    (void)pthread_mutex_lock(&w->lock);
    while (!w->closed) {
        (void)pthread_cond_wait(&w->changed, &w->lock);
    }
    (void)pthread_mutex_unlock(&w->lock);
    rpc_stream_unref(w->s);
}

static int set_up(void **state)
{
    world *w = bd_calloc(1, sizeof *w);
    char target[64];
    bd_err err = BD_ERR_INIT;
    rpc_env_options eo = {.n_queues = 1};
    rpc_server_options so = {.listen = "127.0.0.1:0"};
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    assert_int_equal(rpc_env_new(&eo, &w->env, &err), BD_OK);
    assert_int_equal(rpc_server_new(w->env, &so, &w->server, &err), BD_OK);
    assert_int_equal(
        rpc_server_register(w->server, "/braid.v1.ParameterServer/Lookup", on_nothing, w), BD_OK);
    assert_int_equal(
        rpc_server_register(w->server, "/braid.v1.ParameterServer/Push", on_nothing, w), BD_OK);
    assert_int_equal(rpc_server_start(w->server, &err), BD_OK);
    (void)snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(w->server));
    assert_int_equal(rpc_channel_new(w->env, target, NULL, &w->ch, &err), BD_OK);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    world *w = *state;
    rpc_channel_free(w->ch);
    rpc_server_free(w->server);
    rpc_env_free(w->env);
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->lock);
    bd_free(w);
    return 0;
}

/* NULL: the stream was closed. To be freed with px_unpacked_free. */
static response *ask(world *w, const request *r)
{
    bd_chain msg = {0};
    bd_err err = BD_ERR_INIT;
    assert_int_equal(px_pack(&r->base, &msg, &err), BD_OK);
    assert_int_equal(rpc_stream_send(w->s, &msg, &err), BD_OK);
    (void)pthread_mutex_lock(&w->lock);
    while (w->answer == NULL && !w->closed) {
        (void)pthread_cond_wait(&w->changed, &w->lock);
    }
    response *a = (void *)w->answer;
    w->answer = NULL;
    (void)pthread_mutex_unlock(&w->lock);
    return a;
}

static request request_new(void)
{
    request r;
    grpc__reflection__v1__server_reflection_request__init(&r);
    return r;
}

static response *ask_symbol(world *w, char *symbol)
{
    request r = request_new();
    r.message_request_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL;
    r.file_containing_symbol = symbol;
    return ask(w, &r);
}

static bool holds(const response *a, const char *text)
{
    if (a->message_response_case !=
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE) {
        return false;
    }
    const ProtobufCBinaryData *d = &a->file_descriptor_response->file_descriptor_proto[0];
    return memmem(d->data, d->len, text, strlen(text)) != NULL;
}

static void both_versions_list_the_services(void **state)
{
    static const char *const versions[] = {"v1", "v1alpha"};
    static const char *const wanted[] = {
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "braid.v1.ParameterServer",
    };
    world *w = *state;
    char any[] = "*", host[] = "here";
    for (size_t v = 0; v < 2; v++) {
        open_stream(w, versions[v]);
        request r = request_new();
        r.host = host;
        r.message_request_case =
            GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES;
        r.list_services = any;
        response *a = ask(w, &r);
        assert_string_equal(a->valid_host, "here");
        assert_string_equal(a->original_request->list_services, "*");
        assert_int_equal(a->list_services_response->n_service, 4);
        for (size_t i = 0; i < 4; i++) {
            const char *name = a->list_services_response->service[i]->name;
            assert_string_equal(name, wanted[i]);
            response *f = ask_symbol(w, a->list_services_response->service[i]->name);
            assert_true(holds(f, strrchr(name, '.') + 1)); /* describe */
            px_unpacked_free(&f->base);
        }
        px_unpacked_free(&a->base);
        close_stream(w);
    }
}

static void symbols_of_every_kind_are_found(void **state)
{
    static const struct {
        const char *symbol;
        bool found;
    } rows[] = {
        {"braid.v1.LookupRequest", true},
        {"braid.v1.ParameterServer.Lookup", true},
        {"braid.v1.Coordinator", true}, /* described, though not served here */
        {"grpc.health.v1.HealthCheckResponse.ServingStatus", true},
        {"grpc.health.v1.HealthCheckRequest.service", true},
        {"grpc.reflection.v1.ServerReflectionRequest.message_request", true},
        {"braid.v1", false},
        {"braid.v1.", false},
        {"braid.v1.LookupReques", false},
        {"braid.v1.LookupRequest.no_such_field", false},
        {"braid.v1.ParameterServer.Lookup.more", false},
        {"braid.v2.LookupRequest", false},
        {"", false},
    };
    world *w = *state;
    open_stream(w, "v1");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char symbol[128];
        (void)snprintf(symbol, sizeof symbol, "%s", rows[i].symbol);
        response *a = ask_symbol(w, symbol);
        if (holds(a, "proto3") != rows[i].found) {
            fail_msg("%s", symbol);
        }
        if (!rows[i].found) {
            assert_int_equal(a->error_response->error_code, 5); /* NOT_FOUND */
        }
        px_unpacked_free(&a->base);
    }
    close_stream(w);
}

static void files_and_extensions(void **state)
{
    world *w = *state;
    char file[] = "braid/v1/parameter_server.proto", none[] = "no/such.proto";
    char type[] = "braid.v1.LookupRequest";
    open_stream(w, "v1");
    request r = request_new();
    r.message_request_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME;
    r.file_by_filename = file;
    response *a = ask(w, &r);
    assert_true(holds(a, "ParameterServer"));
    px_unpacked_free(&a->base);
    r.file_by_filename = none;
    a = ask(w, &r);
    assert_string_equal(a->error_response->error_message, "no such file: no/such.proto");
    px_unpacked_free(&a->base);
    r.message_request_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE;
    r.all_extension_numbers_of_type = type;
    a = ask(w, &r);
    assert_int_equal(a->all_extension_numbers_response->n_extension_number, 0);
    px_unpacked_free(&a->base);
    r.message_request_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST__NOT_SET;
    a = ask(w, &r);
    assert_int_equal(a->error_response->error_code, 3); /* INVALID_ARGUMENT */
    px_unpacked_free(&a->base);
    close_stream(w);
}

static void what_is_no_request_breaks_the_stream_alone(void **state)
{
    world *w = *state;
    bd_chain msg = {0};
    bd_err err = BD_ERR_INIT;
    open_stream(w, "v1");
    assert_int_equal(bd_chain_add_copy(&msg, "\xff\xff\xff\xff", 4), BD_OK);
    assert_int_equal(rpc_stream_send(w->s, &msg, &err), BD_OK);
    close_stream(w);
    open_stream(w, "v1");
    char symbol[] = "braid.v1.ParameterServer";
    response *a = ask_symbol(w, symbol);
    assert_true(holds(a, "Lookup"));
    px_unpacked_free(&a->base);
    close_stream(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(both_versions_list_the_services, set_up, tear_down),
        cmocka_unit_test_setup_teardown(symbols_of_every_kind_are_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(files_and_extensions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_request_breaks_the_stream_alone, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
