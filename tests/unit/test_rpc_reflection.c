/* Server reflection over real gRPC: what `grpcurl list` and `describe` ask, in both versions, in plain
 * text and over TLS with tokens; and who may ask for the health of a server that wants tokens. */
#include "base/mem.h"

#include "proto/px_pack.h"
#include "rpc/rpc.h"

#include "tests/util/tu_certs.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "grpc/reflection/v1/reflection.pb-c.h"

typedef Grpc__Reflection__V1__ServerReflectionRequest request;
typedef Grpc__Reflection__V1__ServerReflectionResponse response;

#define READ_TOKEN  "reading-0123456789abcdef"
#define TRAIN_TOKEN "training-0123456789abcdef"
#define ADMIN_TOKEN "administering-0123456789"

typedef struct world {
    char dir[64]; /* certificates and tokens; "": the server has none */
    tu_ca *ca;
    rpc_env *env, *client_env;
    rpc_server *server;
    rpc_channel *ch;
    rpc_stream *s;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ProtobufCMessage *answer;
    size_t n_told; /* messages of a Watch */
    bool closed;
    bd_status close_rc;
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
    (void)err;
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    w->closed = true;
    w->close_rc = rc;
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

/* How the stream has ended. */
static bd_status close_stream(world *w)
{
    rpc_stream_finish(w->s);
    (void)pthread_mutex_lock(&w->lock);
    while (!w->closed) {
        (void)pthread_cond_wait(&w->changed, &w->lock);
    }
    (void)pthread_mutex_unlock(&w->lock);
    rpc_stream_unref(w->s);
    return w->close_rc;
}

static const char *path_of(world *w, const char *name)
{
    static char paths[8][96];
    static int next;
    char *p = paths[next++ % 8];
    (void)snprintf(p, sizeof paths[0], "%s/%s", w->dir, name);
    return p;
}

static void server_start(world *w, const rpc_security_options *sec)
{
    bd_err err = BD_ERR_INIT;
    rpc_env_options eo = {.n_queues = 1, .security = sec};
    rpc_server_options so = {.listen = "127.0.0.1:0"};
    assert_int_equal(rpc_env_new(&eo, &w->env, &err), BD_OK);
    assert_int_equal(rpc_server_new(w->env, &so, &w->server, &err), BD_OK);
    assert_int_equal(
        rpc_server_register(w->server, "/braid.v1.ParameterServer/Lookup", on_nothing, w), BD_OK);
    assert_int_equal(
        rpc_server_register(w->server, "/braid.v1.ParameterServer/Push", on_nothing, w), BD_OK);
    assert_int_equal(rpc_server_start(w->server, &err), BD_OK);
}

static void disconnect(world *w)
{
    rpc_channel_free(w->ch);
    rpc_env_free(w->client_env);
    w->ch = NULL;
    w->client_env = NULL;
}

/* As a process of its own; sec NULL: plain text, no token. */
static void connect_as(world *w, const rpc_security_options *sec)
{
    char target[64];
    bd_err err = BD_ERR_INIT;
    rpc_env_options eo = {.n_queues = 1, .security = sec};
    disconnect(w);
    (void)snprintf(target, sizeof target, "127.0.0.1:%d", rpc_server_port(w->server));
    assert_int_equal(rpc_env_new(&eo, &w->client_env, &err), BD_OK);
    assert_int_equal(rpc_channel_new(w->client_env, target, NULL, &w->ch, &err), BD_OK);
}

static world *world_new(void)
{
    world *w = bd_calloc(1, sizeof *w);
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    return w;
}

static int set_up(void **state)
{
    world *w = world_new();
    server_start(w, NULL);
    connect_as(w, NULL);
    *state = w;
    return 0;
}

/* TLS, and a token for each call. */
static int set_up_secure(void **state)
{
    world *w = world_new();
    (void)snprintf(w->dir, sizeof w->dir, "/tmp/braid-reflection-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    w->ca = tu_ca_new("test authority");
    tu_ca_write(w->ca, path_of(w, "ca"), 0);
    tu_cert_write(w->ca, "server", 3600, path_of(w, "cert"), path_of(w, "key"), 1);
    tu_file_write(path_of(w, "tokens"),
                  "r read " READ_TOKEN "\nt train " TRAIN_TOKEN "\na admin " ADMIN_TOKEN "\n");
    tu_file_write(path_of(w, "read"), READ_TOKEN "\n");
    tu_file_write(path_of(w, "train"), TRAIN_TOKEN "\n");
    tu_file_write(path_of(w, "admin"), ADMIN_TOKEN "\n");
    tu_file_write(path_of(w, "wrong"), "a-token-nobody-has-heard-of\n");
    server_start(w, &(rpc_security_options){.cert_file = path_of(w, "cert"),
                                            .key_file = path_of(w, "key"),
                                            .tokens_file = path_of(w, "tokens")});
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    world *w = *state;
    char command[128];
    disconnect(w);
    rpc_server_free(w->server);
    rpc_env_free(w->env);
    if (w->ca != NULL) {
        tu_ca_free(w->ca);
        (void)snprintf(command, sizeof command, "rm -r %s", w->dir);
        assert_int_equal(system(command), 0);
    }
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
    if (rpc_stream_send(w->s, &msg, &err) != BD_OK) { /* refused before it was asked */
        bd_chain_deinit(&msg);
    }
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

static const char *const versions[] = {"v1", "v1alpha"};

/* grpcurl's `list`, and a `describe` of each service. NULL answers: how the stream ended. */
static bd_status list_and_describe(world *w, const char *version)
{
    static const char *const wanted[] = {
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "braid.v1.ParameterServer",
    };
    char any[] = "*", host[] = "here";
    open_stream(w, version);
    request r = request_new();
    r.host = host;
    r.message_request_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES;
    r.list_services = any;
    response *a = ask(w, &r);
    if (a == NULL) {
        return close_stream(w);
    }
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
    return close_stream(w);
}

static void both_versions_list_the_services(void **state)
{
    for (size_t v = 0; v < 2; v++) {
        assert_int_equal(list_and_describe(*state, versions[v]), BD_OK);
    }
}

static rpc_security_options with_token(world *w, const char *token)
{
    return (rpc_security_options){.ca_file = path_of(w, "ca"),
                                  .token_file = token != NULL ? path_of(w, token) : NULL};
}

/* What a server can do is told to whom it answers at least reads. */
static void over_tls_reflection_wants_a_token(void **state)
{
    static const struct {
        const char *token;
        bd_status rc;
    } rows[] = {{"read", BD_OK},
                {"train", BD_OK},
                {"admin", BD_OK},
                {"wrong", BD_E_UNAUTHENTICATED},
                {NULL, BD_E_UNAUTHENTICATED}};
    world *w = *state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rpc_security_options sec = with_token(w, rows[i].token);
        connect_as(w, &sec);
        for (size_t v = 0; v < 2; v++) {
            bd_status rc = list_and_describe(w, versions[v]);
            if (rc != rows[i].rc) {
                fail_msg("%s, %s: %s", versions[v], rows[i].token, bd_status_name(rc));
            }
        }
    }
    connect_as(w, NULL); /* plain text at a TLS port */
    assert_int_equal(list_and_describe(w, "v1"), BD_E_UNAVAILABLE);
}

static void on_health(void *user, bd_chain *msg)
{
    (void)msg;
    world *w = user;
    (void)pthread_mutex_lock(&w->lock);
    w->n_told++;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

/* Watches the whole server's health: the status that is told at once, then no more. */
static bd_status watch(world *w)
{
    bd_chain everything = {0};
    bd_err err = BD_ERR_INIT;
    rpc_stream_events ev = {.on_message = on_health, .on_close = on_close, .user = w};
    w->closed = false;
    w->n_told = 0;
    assert_int_equal(rpc_stream_open(w->ch, "/grpc.health.v1.Health/Watch", &ev, &w->s, &err),
                     BD_OK);
    assert_int_equal(rpc_stream_send(w->s, &everything, &err), BD_OK);
    (void)pthread_mutex_lock(&w->lock);
    while (w->n_told == 0 && !w->closed) {
        (void)pthread_cond_wait(&w->changed, &w->lock);
    }
    bd_status rc = w->n_told == 1 ? BD_OK : w->close_rc;
    (void)pthread_mutex_unlock(&w->lock);
    rpc_stream_cancel(w->s);
    (void)close_stream(w);
    return rc;
}

/* Probes have no secrets: health is open to everybody who speaks TLS, whatever token is shown. */
static void over_tls_health_wants_none(void **state)
{
    static const char *const tokens[] = {NULL, "wrong", "read", "admin"};
    static const rpc_call_options plain = {.deadline_ms = 20000};
    world *w = *state;
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        rpc_security_options sec = with_token(w, tokens[i]);
        bd_chain everything = {0}, reply = {0};
        bd_err err = BD_ERR_INIT;
        connect_as(w, &sec);
        assert_int_equal(
            rpc_call_sync(w->ch, "/grpc.health.v1.Health/Check", &everything, &plain, &reply, &err),
            BD_OK);
        assert_int_equal(reply.n_bytes, 2); /* field 1, one byte */
        bd_chain_deinit(&reply);
        assert_int_equal(watch(w), BD_OK);
    }
    connect_as(w, NULL);
    assert_int_equal(watch(w), BD_E_UNAVAILABLE);
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
    (void)close_stream(w);
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
    (void)close_stream(w);
}

static void what_is_no_request_breaks_the_stream_alone(void **state)
{
    world *w = *state;
    bd_chain msg = {0};
    bd_err err = BD_ERR_INIT;
    open_stream(w, "v1");
    assert_int_equal(bd_chain_add_copy(&msg, "\xff\xff\xff\xff", 4), BD_OK);
    assert_int_equal(rpc_stream_send(w->s, &msg, &err), BD_OK);
    (void)close_stream(w);
    open_stream(w, "v1");
    char symbol[] = "braid.v1.ParameterServer";
    response *a = ask_symbol(w, symbol);
    assert_true(holds(a, "Lookup"));
    px_unpacked_free(&a->base);
    (void)close_stream(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(both_versions_list_the_services, set_up, tear_down),
        cmocka_unit_test_setup_teardown(over_tls_reflection_wants_a_token, set_up_secure,
                                        tear_down),
        cmocka_unit_test_setup_teardown(over_tls_health_wants_none, set_up_secure, tear_down),
        cmocka_unit_test_setup_teardown(symbols_of_every_kind_are_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(files_and_extensions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_request_breaks_the_stream_alone, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
