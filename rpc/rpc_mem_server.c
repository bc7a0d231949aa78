/* Servers and requests of the in-memory network. */
#include "base/mem.h"

#include "rpc/rpc_mem_int.h"
#include "rpc/rpc_status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rpc_mem_net *net_of(const mem_server *s)
{
    return mem_env_of(s->base.env)->net;
}

mem_server *mem_server_find(rpc_mem_net *net, const char *address)
{
    for (mem_server *s = net->servers; s != NULL; s = s->next) {
        if (strcmp(s->listen, address) == 0) {
            return s;
        }
    }
    return NULL;
}

bd_status mem_server_new(rpc_env *env, const rpc_server_options *opt, rpc_server **out, bd_err *err)
{
    mem_server *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "server on %s: out of memory", opt->listen);
    }
    s->base.t = env->t;
    s->base.env = env;
    s->max_message_bytes =
        opt->max_message_bytes > 0 ? opt->max_message_bytes : RPC_SERVER_MAX_BYTES;
    const char *colon = strrchr(opt->listen, ':');
    bool pick = colon != NULL && strcmp(colon, ":0") == 0;
    s->port = pick            ? mem_env_of(env)->net->next_port++
              : colon != NULL ? (int)strtol(colon + 1, NULL, 10)
                              : 0;
    s->listen = pick ? bd_strfmt("%.*s:%d", (int)(colon - opt->listen), opt->listen, s->port)
                     : bd_strdup(opt->listen);
    bd_status rc = s->listen == NULL ? BD_E_NOMEM : rpc_server_init(&s->base, env, &opt->limits);
    if (rc != BD_OK) {
        mem_server_destroy(&s->base);
        return bd_err_set(err, rc, "server on %s: out of memory", opt->listen);
    }
    *out = &s->base;
    return BD_OK;
}

bd_status mem_server_start(rpc_server *base, bd_err *err)
{
    mem_server *s = (mem_server *)base;
    rpc_mem_net *net = net_of(s);
    if (mem_server_find(net, s->listen) != NULL) {
        return bd_err_set(err, BD_E_IO, "cannot listen on %s: Address already in use", s->listen);
    }
    s->bound = true;
    s->next = net->servers;
    net->servers = s;
    return BD_OK;
}

int mem_server_port(const rpc_server *s)
{
    return ((const mem_server *)s)->port;
}

static void unbind(mem_server *s)
{
    mem_server **p = &net_of(s)->servers;
    while (*p != NULL && *p != s) {
        p = &(*p)->next;
    }
    if (*p == s) {
        *p = s->next;
    }
    s->bound = false;
}

/* Open requests and streams: their clients see a broken connection. */
static void drop_open(mem_server *s)
{
    while (s->requests != NULL) {
        mem_req *r = s->requests;
        bd_chain none = {0};
        s->requests = r->next;
        r->server = NULL; /* the handler's answer goes nowhere */
        rpc_req_count_end(&r->base, BD_E_UNAVAILABLE, 0);
        r->flight->cancelled = true;
        mem_flight_answer(r->flight, BD_E_UNAVAILABLE, &none, "the server has stopped");
    }
    while (s->streams != NULL) {
        mem_stream_break(s->streams); /* leaves the list */
    }
}

void mem_server_kill(mem_server *s)
{
    unbind(s);
    drop_open(s);
}

void mem_server_stop(rpc_server *base, int64_t grace_ms)
{
    mem_server *s = (mem_server *)base;
    rpc_mem_net *net = net_of(s);
    if (!s->bound) {
        return;
    }
    unbind(s);
    int64_t until = mem_now(net) + grace_ms * BD_NS_PER_MS;
    while (s->requests != NULL && net->n > 0 && net->heap[0].at_ns <= until) {
        (void)rpc_mem_net_step(net);
    }
    drop_open(s);
}

void mem_server_destroy(rpc_server *base)
{
    mem_server *s = (mem_server *)base;
    rpc_server_deinit(base);
    bd_free(s->listen);
    bd_free(s);
}

/* ---- requests ---- */

static const rpc_method *find_method(const mem_server *s, const char *path)
{
    for (size_t i = 0; i < s->base.n_methods; i++) {
        if (strcmp(s->base.methods[i].path, path) == 0) {
            return &s->base.methods[i];
        }
    }
    return NULL;
}

static void req_free(mem_req *r)
{
    if (r->server != NULL) {
        if (r->prev != NULL) {
            r->prev->next = r->next;
        } else {
            r->server->requests = r->next;
        }
    }
    if (r->next != NULL) {
        r->next->prev = r->prev;
    }
    bd_chain_deinit(&r->base.body);
    mem_flight_unref(r->flight);
    bd_free(r);
}

static void refuse(mem_flight *f, bd_status rc, const char *text)
{
    bd_chain none = {0};
    mem_flight_answer(f, rc, &none, text);
}

void mem_req_arrive(mem_flight *f, mem_server *s)
{
    const rpc_method *m = find_method(s, f->method);
    rpc_scope scope;
    bd_err err = BD_ERR_INIT;
    bd_status rc = mem_authenticate(f->client, s, m, &scope, &err);
    if (rc != BD_OK) {
        refuse(f, rc, bd_err_text(&err));
        return;
    }
    if (m == NULL || m->fn == NULL) {
        char text[160];
        (void)snprintf(text, sizeof text, "no such method: %s", f->method);
        refuse(f, BD_E_UNSUPPORTED, text);
        return;
    }
    if (f->body.n_bytes > s->max_message_bytes) {
        refuse(f, BD_E_EXHAUSTED, "the message is larger than the server takes");
        return;
    }
    rpc_peer *peer = NULL;
    if (rpc_gate_limits(&s->base, m)) {
        rc = rpc_peers_enter(s->base.peers, f->client->name, f->body.n_bytes, mem_now(f->net),
                             &peer, &err);
        if (rc != BD_OK) {
            refuse(f, rc, bd_err_text(&err));
            return;
        }
    }
    mem_req *r = bd_calloc(1, sizeof *r);
    if (r == NULL || bd_chain_add_chain(&r->base.body, &f->body) != BD_OK) {
        bd_free(r);
        if (peer != NULL) {
            rpc_peers_leave(s->base.peers, peer, f->body.n_bytes);
        }
        refuse(f, BD_E_UNAVAILABLE, "the server is out of memory");
        return;
    }
    r->base.t = &mem_transport;
    r->base.method = m;
    r->flight = f;
    f->refs++;
    r->server = s;
    r->next = s->requests;
    if (r->next != NULL) {
        r->next->prev = r;
    }
    s->requests = r;
    r->base.scope = scope;
    rpc_req_count(&r->base, &s->base, m, f->body.n_bytes, peer);
    rpc_req_run(&r->base);
}

bool mem_req_cancelled(rpc_req *req)
{
    const mem_flight *f = ((mem_req *)req)->flight;
    return f->cancelled || mem_now(f->net) >= f->deadline_ns;
}

int64_t mem_req_ms_left(rpc_req *req)
{
    const mem_flight *f = ((mem_req *)req)->flight;
    int64_t left = (f->deadline_ns - mem_now(f->net)) / BD_NS_PER_MS;
    return left > 0 ? left : 0;
}

void mem_req_reply(rpc_req *req, bd_chain *reply)
{
    mem_req *r = (mem_req *)req;
    mem_flight_answer(r->flight, BD_OK, reply, "");
    req_free(r);
}

void mem_req_fail(rpc_req *req, bd_status code, const char *text)
{
    mem_req *r = (mem_req *)req;
    char line[BD_ERR_TEXT_BYTES];
    bd_chain none = {0};
    rpc_escape(line, sizeof line, text, strlen(text)); /* as the other transport does */
    mem_flight_answer(r->flight, code, &none, line);
    req_free(r);
}
