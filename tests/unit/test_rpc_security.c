/* TLS, mutual TLS and tokens over real gRPC on loopback, with files that change while in use. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/metrics.h"

#include "rpc/rpc.h"
#include "rpc/rpc_mem.h"

#include "tests/util/tu_certs.h"

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

#define READ_TOKEN  "reading-0123456789abcdef"
#define TRAIN_TOKEN "training-0123456789abcdef"
#define ADMIN_TOKEN "administering-0123456789"
#define LOOKUP      "/braid.v1.ParameterServer/Lookup" /* read */
#define PUSH        "/braid.v1.ParameterServer/Push"   /* train */
#define DRAIN       "/braid.v1.ParameterServer/Drain"  /* admin */
#define STREAM      "/braid.v1.ParameterServer/Stream" /* read */
#define OWN         "/t.T/Own"                         /* not in the table: admin */

enum { ANSWER_MS = 20000 };

typedef struct world {
    char dir[64];
    tu_ca *ca, *other;
    rpc_env *env; /* the server's */
    rpc_server *server;
    char target[64];
    rpc_security_options server_opt;
    _Atomic int may_train; /* of the last stream or call; -1: none yet */
} world;

static const rpc_call_options plain = {.deadline_ms = ANSWER_MS};

static const char *path_of(world *w, const char *name)
{
    static _Thread_local char paths[16][96];
    static _Thread_local int next;
    char *p = paths[next++ % 16];
    (void)snprintf(p, sizeof paths[0], "%s/%s", w->dir, name);
    return p;
}

static void on_echo(void *user, rpc_req *req)
{
    ((world *)user)->may_train = rpc_req_may(req, PUSH) ? 1 : 0;
    bd_chain reply = {0};
    bd_chain_move(&reply, rpc_req_body(req));
    rpc_req_reply(req, &reply);
}

static void on_message(void *user, bd_chain *msg)
{
    (void)user;
    (void)msg;
}

static bd_status on_stream(void *user, rpc_stream *s, rpc_stream_events *ev, bd_err *err)
{
    (void)err;
    world *w = user;
    w->may_train = rpc_stream_may(s, PUSH) ? 1 : 0;
    *ev = (rpc_stream_events){.on_message = on_message, .user = w};
    return BD_OK;
}

static int set_up(void **state)
{
    world *w = bd_calloc(1, sizeof *w);
    (void)snprintf(w->dir, sizeof w->dir, "/tmp/braid-security-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    w->ca = tu_ca_new("test authority");
    w->other = tu_ca_new("another authority");
    tu_ca_write(w->ca, path_of(w, "ca"), 0);
    tu_ca_write(w->other, path_of(w, "other_ca"), 0);
    tu_cert_write(w->ca, "server", 3600, path_of(w, "cert"), path_of(w, "key"), 1);
    tu_cert_write(w->ca, "client", 3600, path_of(w, "c_cert"), path_of(w, "c_key"), 1);
    tu_cert_write(w->ca, "old client", -60, path_of(w, "x_cert"), path_of(w, "x_key"), 1);
    tu_cert_write(w->other, "stranger", 3600, path_of(w, "o_cert"), path_of(w, "o_key"), 1);
    tu_file_write(path_of(w, "tokens"),
                  "# clients\nreader read " READ_TOKEN "\ntrainer train " TRAIN_TOKEN
                  "\noperator\tadmin\t" ADMIN_TOKEN "\n\n");
    tu_file_write(path_of(w, "read"), READ_TOKEN "\n");
    tu_file_write(path_of(w, "train"), TRAIN_TOKEN "\n");
    tu_file_write(path_of(w, "admin"), "  " ADMIN_TOKEN "  \r\nrest is ignored\n");
    tu_file_write(path_of(w, "wrong"), "a-token-nobody-has-heard-of\n");
    *state = w;
    return 0;
}

static void server_stop(world *w)
{
    if (w->server != NULL) {
        rpc_server_free(w->server);
        w->server = NULL;
    }
    if (w->env != NULL) {
        rpc_env_free(w->env);
        w->env = NULL;
    }
}

static int tear_down(void **state)
{
    world *w = *state;
    char command[128];
    server_stop(w);
    tu_ca_free(w->ca);
    tu_ca_free(w->other);
    (void)snprintf(command, sizeof command, "rm -r %s", w->dir);
    assert_int_equal(system(command), 0);
    bd_free(w);
    return 0;
}

/* Files are replaced here all the time: looked at more often than by the second. */
static rpc_security_options eager(const rpc_security_options *sec)
{
    rpc_security_options o = sec != NULL ? *sec : (rpc_security_options){0};
    o.look_ms = 20;
    return o;
}

static void server_start(world *w, const rpc_security_options *sec)
{
    static const char *const unary[] = {LOOKUP, PUSH, DRAIN, OWN};
    bd_err err = BD_ERR_INIT;
    const rpc_security_options opt = eager(sec);
    rpc_env_options eo = {.n_queues = 1, .security = &opt};
    rpc_server_options so = {.listen = "127.0.0.1:0"};
    assert_int_equal(rpc_env_new(&eo, &w->env, &err), BD_OK);
    assert_int_equal(rpc_server_new(w->env, &so, &w->server, &err), BD_OK);
    for (size_t i = 0; i < sizeof unary / sizeof unary[0]; i++) {
        assert_int_equal(rpc_server_register_inline(w->server, unary[i], on_echo, w), BD_OK);
    }
    assert_int_equal(rpc_server_register_stream(w->server, STREAM, on_stream, w), BD_OK);
    assert_int_equal(rpc_server_start(w->server, &err), BD_OK);
    rpc_server_set_serving(w->server, true);
    (void)snprintf(w->target, sizeof w->target, "localhost:%d", rpc_server_port(w->server));
}

/* A client process of its own: env and channel. */
typedef struct client {
    rpc_env *env;
    rpc_channel *ch;
} client;

static client client_new(world *w, const rpc_security_options *sec)
{
    client c = {0};
    bd_err err = BD_ERR_INIT;
    const rpc_security_options opt = eager(sec);
    rpc_env_options eo = {.n_queues = 1, .n_threads = 1, .security = &opt};
    assert_int_equal(rpc_env_new(&eo, &c.env, &err), BD_OK);
    assert_int_equal(rpc_channel_new(c.env, w->target, NULL, &c.ch, &err), BD_OK);
    return c;
}

static void client_free(client *c)
{
    rpc_channel_free(c->ch);
    rpc_env_free(c->env);
}

static bd_status call_on(client *c, const char *method, const rpc_call_options *opt, bd_err *err)
{
    bd_chain body = {0}, reply = {0};
    assert_int_equal(bd_chain_add_copy(&body, "hello", 5), BD_OK);
    bd_status rc = rpc_call_sync(c->ch, method, &body, opt, &reply, err);
    assert_true(rc != BD_OK || reply.n_bytes == 5);
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
    return rc;
}

/* One call by a client that is made for it. */
static bd_status ask(world *w, const rpc_security_options *sec, const char *method, bd_err *err)
{
    client c = client_new(w, sec);
    err->text[0] = '\0';
    bd_status rc = call_on(&c, method, &plain, err);
    client_free(&c);
    return rc;
}

/* The value of a series on the metrics page; 0: not there. */
static double metric(const char *series)
{
    char *page = bd_metrics_text();
    size_t n = strlen(series);
    double v = 0;
    for (const char *at = strstr(page, series); at != NULL; at = strstr(at + 1, series)) {
        if (at[n] == ' ' && (at == page || at[-1] == '\n')) {
            v = strtod(at + n, NULL);
        }
    }
    bd_free(page);
    return v;
}

/* ---- TLS ---- */

static void tls_calls_and_refusals(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    server_start(
        w, &(rpc_security_options){.cert_file = path_of(w, "cert"), .key_file = path_of(w, "key")});
    rpc_security_options good = {.ca_file = path_of(w, "ca")};
    assert_int_equal(ask(w, &good, LOOKUP, &err), BD_OK);
    rpc_security_options wrong_ca = {.ca_file = path_of(w, "other_ca")};
    assert_int_equal(ask(w, &wrong_ca, LOOKUP, &err), BD_E_UNAVAILABLE);
    assert_int_equal(ask(w, NULL, LOOKUP, &err), BD_E_UNAVAILABLE); /* plain text */
    good.server_name = "ps-7.example.org";
    assert_int_equal(ask(w, &good, LOOKUP, &err), BD_E_UNAVAILABLE);
    good.server_name = "localhost";
    assert_int_equal(ask(w, &good, LOOKUP, &err), BD_OK);
}

static void mutual_tls_asks_for_a_valid_certificate(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    server_start(w, &(rpc_security_options){.ca_file = path_of(w, "ca"),
                                            .cert_file = path_of(w, "cert"),
                                            .key_file = path_of(w, "key"),
                                            .require_client_cert = true});
    rpc_security_options good = {.ca_file = path_of(w, "ca"),
                                 .cert_file = path_of(w, "c_cert"),
                                 .key_file = path_of(w, "c_key")};
    rpc_security_options expired = good, stranger = good, none = {.ca_file = path_of(w, "ca")};
    expired.cert_file = path_of(w, "x_cert");
    expired.key_file = path_of(w, "x_key");
    stranger.cert_file = path_of(w, "o_cert");
    stranger.key_file = path_of(w, "o_key");
    const rpc_security_options *const refused[] = {&expired, &stranger, &none};
    for (size_t i = 0; i < 3; i++) {
        static const char failures[] = "braid_rpc_handshake_failures_total";
        double before = metric(failures);
        assert_int_equal(ask(w, refused[i], LOOKUP, &err), BD_E_UNAVAILABLE);
        int64_t end_ns = bd_mono_ns() + ANSWER_MS * BD_NS_PER_MS;
        while (metric(failures) == before && bd_mono_ns() < end_ns) {
            bd_sleep_ms(5); /* the client may hear of it first */
        }
        assert_true(metric(failures) > before);
    }
    assert_int_equal(ask(w, &good, LOOKUP, &err), BD_OK);
    assert_true(metric("braid_rpc_certificate_expiry_seconds") >
                (double)bd_wall_ns() / (double)BD_NS_PER_S);
}

static void malformed_files_are_named_at_the_start(void **state)
{
    world *w = *state;
    const char *cert = path_of(w, "cert"), *key = path_of(w, "key"), *ca = path_of(w, "ca");
    tu_file_write(path_of(w, "junk"), "-----BEGIN CERTIFICATE-----\nzzzz\n");
    const struct {
        rpc_security_options opt;
        const char *says;
    } rows[] = {
        {{.cert_file = cert}, "tls_cert and tls_key"},
        {{.cert_file = cert, .key_file = path_of(w, "c_key")}, "the key is not the certificate's"},
        {{.cert_file = path_of(w, "junk"), .key_file = key}, "no PEM certificate"},
        {{.cert_file = cert, .key_file = path_of(w, "junk")}, "no PEM private key"},
        {{.ca_file = path_of(w, "missing")}, "tls_ca"},
        {{.ca_file = key}, "no PEM certificate"},
        {{.require_client_cert = true, .cert_file = cert, .key_file = key}, "tls_ca"},
        {{.server_name = "x", .cert_file = cert, .key_file = key}, "tls_server_name"},
        {{.ca_file = ca, .token_file = path_of(w, "missing")}, "token_file"},
        {{.token_file = path_of(w, "junk2")}, "token_file"},
        {{.tokens_file = path_of(w, "missing")}, "tokens_file"},
        {{.etcd_ca_file = path_of(w, "missing")}, "etcd_ca"},
        {{.etcd_ca_file = key}, "etcd_ca: "},
        {{.etcd_cert_file = cert, .etcd_key_file = key}, "both need etcd_ca"},
        {{.etcd_ca_file = ca, .etcd_key_file = key}, "etcd_cert, etcd_key: one needs the other"},
        {{.etcd_ca_file = ca, .etcd_cert_file = cert, .etcd_key_file = path_of(w, "c_key")},
         "etcd_cert: "},
        {{.ca_file = ca, .etcd_user = "u"}, "etcd_user and etcd_password_file"},
        {{.etcd_password_file = key}, "etcd_user and etcd_password_file"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bd_err err = BD_ERR_INIT;
        rpc_env *env = NULL;
        rpc_env_options eo = {.n_queues = 1, .security = &rows[i].opt};
        assert_int_equal(rpc_env_new(&eo, &env, &err), BD_E_USAGE);
        if (strstr(err.text, rows[i].says) == NULL) {
            fail_msg("row %zu: %s", i, err.text);
        }
    }
}

/* Calls without a pause on one channel, and on fresh ones, until told to stop. */
typedef struct caller {
    world *w;
    rpc_security_options sec;
    _Atomic bool stop;
    _Atomic int n_calls, n_failed;
    bd_err first;
} caller;

static void *caller_main(void *arg)
{
    caller *c = arg;
    client steady = client_new(c->w, &c->sec);
    while (!c->stop) {
        bd_err err = BD_ERR_INIT;
        bd_status rc = call_on(&steady, LOOKUP, &plain, &err);
        rc = rc == BD_OK && c->n_calls % 50 == 0 ? ask(c->w, &c->sec, LOOKUP, &err) : rc;
        c->n_calls++;
        if (rc != BD_OK && c->n_failed++ == 0) {
            c->first = err;
        }
    }
    client_free(&steady);
    return NULL;
}

static void wait_for_calls(caller *c, int more)
{
    int until = c->n_calls + more;
    int64_t end_ns = bd_mono_ns() + ANSWER_MS * BD_NS_PER_MS;
    while (c->n_calls < until && bd_mono_ns() < end_ns) {
        bd_sleep_ms(1);
    }
    assert_true(c->n_calls >= until);
}

/* Until a client that trusts only `ca_name` and shows nothing gets in. */
static void wait_until_trusted(world *w, const char *ca_name)
{
    int64_t end_ns = bd_mono_ns() + ANSWER_MS * BD_NS_PER_MS;
    bd_err err = BD_ERR_INIT;
    rpc_security_options sec = {.ca_file = path_of(w, ca_name)};
    while (ask(w, &sec, LOOKUP, &err) != BD_OK) {
        if (bd_mono_ns() > end_ns) {
            fail_msg("the new certificate is not served: %s", err.text);
        }
        bd_sleep_ms(20);
    }
}

/* Same authority, whole and half-written files, and then a change of authority, as an operator does
 * it: clients trust both, the server's certificate changes, the old authority goes. */
static void certificates_rotate_under_load_without_a_failed_call(void **state)
{
    world *w = *state;
    caller c = {.w = w, .sec = {.ca_file = path_of(w, "trusted")}};
    pthread_t id;
    tu_ca_write(w->ca, path_of(w, "trusted"), 0);
    server_start(
        w, &(rpc_security_options){.cert_file = path_of(w, "cert"), .key_file = path_of(w, "key")});
    assert_int_equal(pthread_create(&id, NULL, caller_main, &c), 0);
    wait_for_calls(&c, 100);
    tu_cert_write(w->ca, "server", 3600, path_of(w, "cert"), path_of(w, "key"), 0);
    wait_for_calls(&c, 100);
    tu_ca_write(w->other, path_of(w, "trusted"), 1);
    /* Clients look once a second; a fresh one reads it at once. */
    int64_t looked = bd_mono_ns() + 1500 * BD_NS_PER_MS;
    while (bd_mono_ns() < looked) {
        wait_for_calls(&c, 20);
    }
    tu_cert_write(w->other, "server", 3600, path_of(w, "cert"), path_of(w, "key"), 0);
    wait_until_trusted(w, "other_ca");
    tu_file_write(path_of(w, "key"), "-----BEGIN PRIVATE KEY-----\nhalf"); /* never whole */
    wait_for_calls(&c, 200);
    c.stop = true;
    (void)pthread_join(id, NULL);
    if (c.n_failed != 0) {
        fail_msg("%d of %d calls failed: %s", c.n_failed, c.n_calls, c.first.text);
    }
    bd_err err = BD_ERR_INIT;
    rpc_security_options old_ca = {.ca_file = path_of(w, "ca")};
    assert_int_equal(ask(w, &old_ca, LOOKUP, &err), BD_E_UNAVAILABLE); /* really renewed */
}

/* A client whose certificate is renewed: the steady channel goes on, with the new one. */
static void a_clients_own_certificate_is_read_again(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    tu_ca_write(w->ca, path_of(w, "clients_ca"), 0);
    server_start(w, &(rpc_security_options){.ca_file = path_of(w, "clients_ca"),
                                            .cert_file = path_of(w, "cert"),
                                            .key_file = path_of(w, "key"),
                                            .require_client_cert = true});
    rpc_security_options sec = {.ca_file = path_of(w, "ca"),
                                .cert_file = path_of(w, "x_cert"),
                                .key_file = path_of(w, "x_key")};
    client c = client_new(w, &sec);
    assert_int_equal(call_on(&c, LOOKUP, &plain, &err), BD_E_UNAVAILABLE); /* expired */
    tu_cert_write(w->ca, "renewed", 3600, path_of(w, "x_cert"), path_of(w, "x_key"), 1);
    rpc_call_options again = {.deadline_ms = ANSWER_MS, .idempotent = true};
    assert_int_equal(call_on(&c, LOOKUP, &again, &err), BD_OK);
    client_free(&c);
}

/* ---- tokens ---- */

static rpc_security_options with_token(world *w, const char *name)
{
    return (rpc_security_options){.token_file = path_of(w, name)};
}

static void each_scope_opens_its_methods_and_those_below(void **state)
{
    world *w = *state;
    static const struct {
        const char *token, *method;
        bd_status rc;
    } rows[] = {
        {"read", LOOKUP, BD_OK},
        {"read", PUSH, BD_E_DENIED},
        {"read", DRAIN, BD_E_DENIED},
        {"train", LOOKUP, BD_OK},
        {"train", PUSH, BD_OK},
        {"train", DRAIN, BD_E_DENIED},
        {"train", OWN, BD_E_DENIED},
        {"admin", LOOKUP, BD_OK},
        {"admin", DRAIN, BD_OK},
        {"admin", OWN, BD_OK},
        {"wrong", LOOKUP, BD_E_UNAUTHENTICATED},
        {"wrong", "/t.T/Unknown", BD_E_UNAUTHENTICATED},
        {"read", "/t.T/Unknown", BD_E_UNSUPPORTED},
    };
    bd_err err = BD_ERR_INIT;
    double unknown = metric("braid_rpc_unauthenticated_total");
    double denied = metric("braid_rpc_denied_total");
    server_start(w, &(rpc_security_options){.tokens_file = path_of(w, "tokens")});
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rpc_security_options sec = with_token(w, rows[i].token);
        bd_status rc = ask(w, &sec, rows[i].method, &err);
        if (rc != rows[i].rc) {
            fail_msg("%s %s: %s, %s", rows[i].token, rows[i].method, bd_status_name(rc), err.text);
        }
        assert_null(strstr(err.text, "0123456789"));
        if (rc == BD_OK) { /* a lookup that decides a step is asked for more */
            assert_int_equal(w->may_train, strcmp(rows[i].token, "read") == 0 ? 0 : 1);
        }
    }
    assert_int_equal(ask(w, NULL, LOOKUP, &err), BD_E_UNAUTHENTICATED);
    assert_true(metric("braid_rpc_unauthenticated_total") - unknown == 3);
    assert_true(metric("braid_rpc_denied_total") - denied == 4);
    client c = client_new(w, NULL); /* probes have no token */
    bd_chain none = {0}, reply = {0};
    assert_int_equal(
        rpc_call_sync(c.ch, "/grpc.health.v1.Health/Check", &none, &plain, &reply, &err), BD_OK);
    bd_chain_deinit(&reply);
    client_free(&c);
}

typedef struct closed {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is;
    bd_status rc;
} closed;

static void on_closed(void *user, bd_status rc, const bd_err *err)
{
    (void)err;
    closed *c = user;
    (void)pthread_mutex_lock(&c->lock);
    c->is = true;
    c->rc = rc;
    (void)pthread_cond_signal(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

static bd_status open_and_finish(world *w, const rpc_security_options *sec)
{
    bd_err err = BD_ERR_INIT;
    client c = client_new(w, sec);
    closed over = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    rpc_stream_events ev = {.on_message = on_message, .on_close = on_closed, .user = &over};
    rpc_stream *s = NULL;
    w->may_train = -1;
    assert_int_equal(rpc_stream_open(c.ch, STREAM, &ev, &s, &err), BD_OK);
    rpc_stream_finish(s);
    (void)pthread_mutex_lock(&over.lock);
    while (!over.is) {
        (void)pthread_cond_wait(&over.changed, &over.lock);
    }
    (void)pthread_mutex_unlock(&over.lock);
    rpc_stream_unref(s);
    client_free(&c);
    return over.rc;
}

static void a_stream_knows_its_callers_scope(void **state)
{
    world *w = *state;
    server_start(w, &(rpc_security_options){.tokens_file = path_of(w, "tokens")});
    rpc_security_options reader = with_token(w, "read"), trainer = with_token(w, "train");
    assert_int_equal(open_and_finish(w, &reader), BD_OK);
    assert_int_equal(w->may_train, 0);
    assert_int_equal(open_and_finish(w, &trainer), BD_OK);
    assert_int_equal(w->may_train, 1);
    assert_int_equal(open_and_finish(w, NULL), BD_E_UNAUTHENTICATED);
    assert_int_equal(w->may_train, -1); /* the handler has not seen it */
}

static bd_status until(client *c, const char *method, bd_status wanted)
{
    bd_err err = BD_ERR_INIT;
    int64_t end_ns = bd_mono_ns() + ANSWER_MS * BD_NS_PER_MS;
    bd_status rc = call_on(c, method, &plain, &err);
    while (rc != wanted && bd_mono_ns() < end_ns) {
        bd_sleep_ms(20);
        rc = call_on(c, method, &plain, &err);
    }
    return rc;
}

/* New token beside the old one, clients change over, the old one goes. A broken list changes
 * nothing. */
static void tokens_rotate_without_a_restart(void **state)
{
    world *w = *state;
    const char *list = path_of(w, "tokens");
    bd_err err = BD_ERR_INIT;
    server_start(w, &(rpc_security_options){.tokens_file = list});
    rpc_security_options sec = with_token(w, "mine");
    tu_file_write(path_of(w, "mine"), TRAIN_TOKEN "\n");
    client c = client_new(w, &sec);
    client old = client_new(w, &(rpc_security_options){.token_file = path_of(w, "train")});
    assert_int_equal(call_on(&c, PUSH, &plain, &err), BD_OK);
    tu_file_write(list, "trainer train " TRAIN_TOKEN "\ntrainer train another-token-0123456789\n");
    client fresh = client_new(w, &(rpc_security_options){.token_file = path_of(w, "read")});
    assert_int_equal(until(&fresh, LOOKUP, BD_E_UNAUTHENTICATED), BD_E_UNAUTHENTICATED); /* seen */
    tu_file_write(path_of(w, "mine"), "another-token-0123456789\n");
    tu_file_write(list, "trainer train another-token-0123456789\n");
    assert_int_equal(until(&old, PUSH, BD_E_UNAUTHENTICATED), BD_E_UNAUTHENTICATED);
    assert_int_equal(until(&c, PUSH, BD_OK), BD_OK);
    tu_file_write(list, "trainer everything another-token-0123456789\n");
    int64_t looked = bd_mono_ns() + 1500 * BD_NS_PER_MS;
    while (bd_mono_ns() < looked) {
        assert_int_equal(call_on(&c, PUSH, &plain, &err), BD_OK);
        bd_sleep_ms(20);
    }
    client_free(&c);
    client_free(&old);
    client_free(&fresh);
}

static void a_malformed_list_is_refused_and_leaks_nothing(void **state)
{
    world *w = *state;
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "holds no token"},
        {"# nothing\n\n", "holds no token"},
        {"a read\n", ":1: a line is"},
        {"ok read secret-secret-secret\nb read x y\n", ":2: a line is"},
        {"a write secret-secret-secret\n", ":1: the second word"},
        {"a read secret-short\n", ":1: the token must"},
        {"secret-secret-secret read me\n", ":1: the token must"},
        {"a read secret\x01secret-secret\n", ":1: the token must"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bd_err err = BD_ERR_INIT;
        rpc_env *env = NULL;
        tu_file_write(path_of(w, "tokens"), rows[i].text);
        rpc_security_options sec = {.tokens_file = path_of(w, "tokens")};
        rpc_env_options eo = {.n_queues = 1, .security = &sec};
        assert_int_equal(rpc_env_new(&eo, &env, &err), BD_E_USAGE);
        if (strstr(err.text, rows[i].says) == NULL || strstr(err.text, "secret") != NULL) {
            fail_msg("row %zu: %s", i, err.text);
        }
    }
}

static void a_token_is_not_sent_in_plain_text_to_another_host(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    rpc_env *env = NULL;
    rpc_channel *ch = NULL;
    rpc_security_options sec = with_token(w, "read");
    rpc_env_options eo = {.n_queues = 1, .security = &sec};
    rpc_channel_options co = {.allow_insecure = true}; /* speaks of plain text, not of tokens */
    assert_int_equal(rpc_env_new(&eo, &env, &err), BD_OK);
    assert_int_equal(rpc_channel_new(env, "ps.example.org:7700", &co, &ch, &err), BD_E_DENIED);
    rpc_env_free(env);
    sec.allow_insecure = true;
    assert_int_equal(rpc_env_new(&eo, &env, &err), BD_OK);
    assert_int_equal(rpc_channel_new(env, "ps.example.org:7700", &co, &ch, &err), BD_OK);
    rpc_channel_free(ch);
    rpc_env_free(env);
}

/* A channel to etcd carries neither this process's token nor, in plain text to another host, a
 * password. */
static void secrets_are_not_shown_to_etcd(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    rpc_channel_options co = {.allow_insecure = true, .to_etcd = true};
    rpc_channel *other = NULL;
    server_start(w, &(rpc_security_options){.tokens_file = path_of(w, "tokens")});
    rpc_security_options sec = with_token(w, "read");
    client c = client_new(w, &sec);
    assert_int_equal(call_on(&c, LOOKUP, &plain, &err), BD_OK);
    rpc_channel_free(c.ch);
    assert_int_equal(rpc_channel_new(c.env, w->target, &co, &c.ch, &err), BD_OK);
    assert_int_equal(call_on(&c, LOOKUP, &plain, &err), BD_E_UNAUTHENTICATED);
    assert_int_equal(rpc_channel_set_token(c.ch, READ_TOKEN, &err), BD_OK); /* not as a bearer */
    assert_int_equal(call_on(&c, LOOKUP, &plain, &err), BD_E_UNAUTHENTICATED);
    assert_int_equal(rpc_channel_new(c.env, "etcd.example.org:2379", &co, &other, &err), BD_OK);
    rpc_channel_free(other);
    client_free(&c);
    sec = (rpc_security_options){.etcd_user = "u", .etcd_password_file = path_of(w, "read")};
    c = client_new(w, &sec);
    assert_int_equal(rpc_channel_new(c.env, "etcd.example.org:2379", &co, &other, &err),
                     BD_E_DENIED);
    client_free(&c);
}

/* The same gate stands before the in-memory network; its files are looked at in virtual time. */
static void tokens_hold_in_memory_too(void **state)
{
    world *w = *state;
    bd_err err = BD_ERR_INIT;
    rpc_mem_net *net = NULL;
    rpc_mem_options mo = {.seed = 1};
    rpc_server_options so = {.listen = "ps:1", .allow_insecure = true};
    rpc_channel_options co = {.allow_insecure = true};
    rpc_security_options server_sec = {.tokens_file = path_of(w, "tokens")};
    rpc_security_options reader = with_token(w, "mine");
    client c = {0};
    reader.allow_insecure = true; /* "ps" is not this host */
    tu_file_write(path_of(w, "mine"), READ_TOKEN "\n");
    assert_int_equal(rpc_mem_net_new(&mo, &net, &err), BD_OK);
    assert_int_equal(rpc_mem_env_new(net, "ps", &w->env, &err), BD_OK);
    assert_int_equal(rpc_mem_env_new(net, "trainer", &c.env, &err), BD_OK);
    assert_int_equal(rpc_mem_env_secure(w->env, &server_sec, &err), BD_OK);
    assert_int_equal(rpc_server_new(w->env, &so, &w->server, &err), BD_OK);
    assert_int_equal(rpc_server_register(w->server, LOOKUP, on_echo, w), BD_OK);
    assert_int_equal(rpc_server_register(w->server, PUSH, on_echo, w), BD_OK);
    assert_int_equal(rpc_server_start(w->server, &err), BD_OK);
    assert_int_equal(rpc_channel_new(c.env, "ps:1", &co, &c.ch, &err), BD_OK);
    assert_int_equal(call_on(&c, LOOKUP, &plain, &err), BD_E_UNAUTHENTICATED);
    rpc_channel_free(c.ch);
    assert_int_equal(rpc_mem_env_secure(c.env, &reader, &err), BD_OK);
    assert_int_equal(rpc_channel_new(c.env, "ps:1", &co, &c.ch, &err), BD_OK);
    assert_int_equal(call_on(&c, LOOKUP, &plain, &err), BD_OK);
    assert_int_equal(call_on(&c, PUSH, &plain, &err), BD_E_DENIED);
    tu_file_write(path_of(w, "mine"), TRAIN_TOKEN "\n");
    rpc_mem_net_run_until(net, bd_now_ns(rpc_mem_net_clock(net)) + 2 * BD_NS_PER_S);
    assert_int_equal(call_on(&c, PUSH, &plain, &err), BD_OK);
    rpc_channel_free(c.ch);
    rpc_server_free(w->server);
    w->server = NULL;
    rpc_env_free(c.env);
    rpc_env_free(w->env);
    w->env = NULL;
    rpc_mem_net_free(net);
}

/* A method that is forgotten in the table needs admin: only these may. */
static void scopes_of(const char *file, int *n_methods)
{
    char line[256], service[64] = "", path[256];
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        char name[64];
        if (sscanf(line, "service %63[A-Za-z]", name) == 1) {
            (void)snprintf(service, sizeof service, "%s", name);
        } else if (sscanf(line, " rpc %63[A-Za-z]", name) == 1) {
            (void)snprintf(path, sizeof path, "/braid.v1.%s/%s", service, name);
            bool admin = strcmp(name, "Drain") == 0 || strcmp(name, "RegisterServer") == 0 ||
                         strcmp(name, "ReadPart") == 0;
            if ((rpc_scope_of_method(path) == RPC_SCOPE_ADMIN) != admin) {
                fail_msg("rpc_scope.c has no row for %s", path);
            }
            (*n_methods)++;
        }
    }
    (void)fclose(f);
}

static void every_public_method_has_a_scope(void **state)
{
    (void)state;
    int n = 0;
    scopes_of("proto/braid/v1/parameter_server.proto", &n);
    scopes_of("proto/braid/v1/coordinator.proto", &n);
    scopes_of("proto/braid/v1/autograd.proto", &n);
    assert_true(n >= 30);
    assert_int_equal(rpc_scope_of_method("/braid.v1.ParameterServer/NoSuch"), RPC_SCOPE_ADMIN);
    assert_int_equal(rpc_scope_of_method("/grpc.health.v1.Health/Check"), RPC_SCOPE_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tls_calls_and_refusals, set_up, tear_down),
        cmocka_unit_test_setup_teardown(mutual_tls_asks_for_a_valid_certificate, set_up, tear_down),
        cmocka_unit_test_setup_teardown(malformed_files_are_named_at_the_start, set_up, tear_down),
        cmocka_unit_test_setup_teardown(certificates_rotate_under_load_without_a_failed_call,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_clients_own_certificate_is_read_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(each_scope_opens_its_methods_and_those_below, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(tokens_hold_in_memory_too, set_up, tear_down),
        cmocka_unit_test(every_public_method_has_a_scope),
        cmocka_unit_test_setup_teardown(a_stream_knows_its_callers_scope, set_up, tear_down),
        cmocka_unit_test_setup_teardown(tokens_rotate_without_a_restart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_malformed_list_is_refused_and_leaks_nothing, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(secrets_are_not_shown_to_etcd, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_token_is_not_sent_in_plain_text_to_another_host, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
