/* The network: events, time, luck; nodes, channels and unary tries. */
#include "rpc/rpc_mem.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rand.h"

#include "rpc/rpc_mem_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- events ---- */

static bool earlier(const mem_event *a, const mem_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static void swap_events(mem_event *a, mem_event *b)
{
    mem_event t = *a;
    *a = *b;
    *b = t;
}

int64_t mem_now(const rpc_mem_net *net)
{
    return bd_now_ns(&net->clock.clock);
}

bd_status mem_at(rpc_mem_net *net, int64_t at_ns, void (*fn)(void *user), void *user)
{
    void *items = net->heap;
    if (!bd_grow(&items, &net->cap, net->n + 1, sizeof *net->heap)) {
        return BD_E_NOMEM;
    }
    net->heap = items;
    size_t i = net->n++;
    net->heap[i] = (mem_event){at_ns > mem_now(net) ? at_ns : mem_now(net), net->seq++, fn, user};
    while (i > 0 && earlier(&net->heap[i], &net->heap[(i - 1) / 2])) {
        swap_events(&net->heap[i], &net->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    return BD_OK;
}

static mem_event pop(rpc_mem_net *net)
{
    mem_event top = net->heap[0];
    net->heap[0] = net->heap[--net->n];
    for (size_t i = 0;;) {
        size_t least = i;
        for (size_t k = 2 * i + 1; k <= 2 * i + 2 && k < net->n; k++) {
            least = earlier(&net->heap[k], &net->heap[least]) ? k : least;
        }
        if (least == i) {
            return top;
        }
        swap_events(&net->heap[i], &net->heap[least]);
        i = least;
    }
}

bool rpc_mem_net_step(rpc_mem_net *net)
{
    if (net->n == 0) {
        return false;
    }
    mem_event e = pop(net);
    if (e.at_ns > mem_now(net)) {
        bd_clock_virtual_advance(&net->clock, e.at_ns - mem_now(net));
    }
    net->depth++;
    e.fn(e.user);
    net->depth--;
    return true;
}

void rpc_mem_net_run_until(rpc_mem_net *net, int64_t t_ns)
{
    while (net->n > 0 && net->heap[0].at_ns <= t_ns) {
        (void)rpc_mem_net_step(net);
    }
    if (t_ns > mem_now(net)) {
        bd_clock_virtual_advance(&net->clock, t_ns - mem_now(net));
    }
}

/* ---- luck ---- */

static double draw(rpc_mem_net *net)
{
    return bd_unit_f64(bd_rand_u64(net->opt.seed, 0x6d656d, net->n_draws++));
}

bool mem_draw(rpc_mem_net *net, double share)
{
    return share > 0 && draw(net) < share;
}

int64_t mem_delay_ns(rpc_mem_net *net)
{
    int64_t span = net->opt.delay_max_ns - net->opt.delay_min_ns;
    return net->opt.delay_min_ns + (span > 0 ? (int64_t)(draw(net) * (double)span) : 0);
}

void mem_trace(rpc_mem_net *net, const char *what, const char *from, const char *to,
               const char *method)
{
    if (net->opt.trace != NULL && !net->freeing) {
        char line[256];
        (void)snprintf(line, sizeof line, "%" PRId64 " %s %s > %s %s", mem_now(net), what, from, to,
                       method);
        net->opt.trace(net->opt.trace_user, line);
    }
}

/* ---- nodes ---- */

mem_env *mem_env_of(const rpc_env *env)
{
    union {
        const rpc_env *in;
        mem_env *out; /* base is its first member */
    } u = {.in = env};
    return u.out;
}

bool mem_can_talk(const mem_env *a, const mem_env *b)
{
    bool ok = !a->killed && !b->killed;
    for (size_t i = 0; ok && i < a->n_cut; i++) {
        ok = a->cut[i] != b;
    }
    return ok;
}

bd_status rpc_mem_net_new(const rpc_mem_options *opt, rpc_mem_net **out, bd_err *err)
{
    rpc_mem_net *net = bd_calloc(1, sizeof *net);
    if (net == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "memory network: out of memory");
    }
    net->opt = *opt;
    if (net->opt.delay_max_ns == 0) {
        net->opt.delay_min_ns = net->opt.delay_max_ns = 1000;
    }
    net->next_port = 50000;
    bd_clock_virtual_init(&net->clock, BD_NS_PER_S);
    *out = net;
    return BD_OK;
}

void rpc_mem_net_free(rpc_mem_net *net)
{
    if (net != NULL) {
        BD_ASSERT(net->envs == NULL);
        net->freeing = true;
        while (rpc_mem_net_step(net)) { /* what still flies ends nowhere */
        }
        bd_free(net->heap);
        bd_free(net);
    }
}

const bd_clock *rpc_mem_net_clock(const rpc_mem_net *net)
{
    return &net->clock.clock;
}

void rpc_mem_net_set_faults(rpc_mem_net *net, double loss, double repeat)
{
    net->opt.loss = loss;
    net->opt.repeat = repeat;
}

bd_status rpc_mem_env_new(rpc_mem_net *net, const char *name, rpc_env **out, bd_err *err)
{
    mem_env *env = bd_calloc(1, sizeof *env);
    char *copy = bd_strdup(name);
    if (env == NULL || copy == NULL) {
        bd_free(env);
        bd_free(copy);
        return bd_err_set(err, BD_E_NOMEM, "memory node: out of memory");
    }
    env->base.t = &mem_transport;
    env->net = net;
    env->name = copy;
    env->next = net->envs;
    net->envs = env;
    *out = &env->base;
    return BD_OK;
}

bd_status rpc_mem_env_secure(rpc_env *env, const rpc_security_options *opt, bd_err *err)
{
    rpc_security *fresh = NULL;
    bd_status rc = rpc_security_new(opt, &fresh, err);
    if (rc == BD_OK) {
        rpc_security_free(env->security);
        env->security = fresh;
    }
    return rc;
}

bd_status mem_authenticate(const mem_env *client, mem_server *s, const rpc_method *m,
                           rpc_scope *scope, bd_err *err)
{
    rpc_security *sec = client->base.security;
    rpc_security_poll(sec, mem_now(client->net));
    rpc_own_token *t = sec != NULL && sec->has_own ? rpc_security_own(sec) : NULL;
    bd_status rc = rpc_gate_authenticate(&s->base, m, t != NULL ? t->text : NULL,
                                         t != NULL ? t->n : 0, scope, err);
    rpc_own_token_unref(t);
    return rc;
}

static void env_free(rpc_env *base)
{
    mem_env *env = mem_env_of(base);
    rpc_mem_net *net = env->net;
    while (rpc_mem_net_step(net)) { /* no event may find a freed node */
    }
    mem_env **p = &net->envs;
    while (*p != env) {
        p = &(*p)->next;
    }
    *p = env->next;
    for (mem_env *e = net->envs; e != NULL; e = e->next) {
        rpc_mem_env_cut(&e->base, base, false);
    }
    rpc_security_free(base->security);
    bd_free(env->cut);
    bd_free(env->name);
    bd_free(env);
}

static void cut_one(mem_env *a, mem_env *b, bool cut)
{
    size_t k = 0;
    for (size_t i = 0; i < a->n_cut; i++) {
        if (a->cut[i] != b) {
            a->cut[k++] = a->cut[i];
        }
    }
    a->n_cut = k;
    void *items = a->cut;
    if (cut && bd_grow(&items, &a->cap_cut, k + 1, sizeof(mem_env *))) {
        a->cut = items;
        a->cut[a->n_cut++] = b;
    }
}

void rpc_mem_env_cut(rpc_env *a, rpc_env *b, bool cut)
{
    cut_one(mem_env_of(a), mem_env_of(b), cut);
    cut_one(mem_env_of(b), mem_env_of(a), cut);
}

void rpc_mem_env_kill(rpc_env *env)
{
    mem_env *me = mem_env_of(env);
    me->killed = true;
    mem_trace(me->net, "kill", me->name, "-", "-");
    mem_server *next = NULL;
    for (mem_server *s = me->net->servers; s != NULL; s = next) {
        next = s->next;
        if (s->base.env == env) {
            mem_server_kill(s);
        }
    }
}

static int64_t env_now_ns(const rpc_env *env)
{
    return mem_now(mem_env_of(env)->net);
}

static bd_status env_after(rpc_env *env, int64_t delay_ns, void (*fn)(void *user), void *user)
{
    rpc_mem_net *net = mem_env_of(env)->net;
    return mem_at(net, mem_now(net) + delay_ns, fn, user);
}

static void env_block(rpc_env *env, rpc_wait *w)
{
    while (!w->done) {
        bool more = rpc_mem_net_step(mem_env_of(env)->net);
        BD_ASSERT(more || w->done); /* else it would wait for ever */
    }
}

static bool on_env_thread(const rpc_env *env)
{
    return mem_env_of(env)->net->depth > 0;
}

/* ---- channels ---- */

static bd_status channel_new(rpc_env *env, const char *target, const rpc_channel_options *opt,
                             rpc_channel **out, bd_err *err)
{
    mem_channel *ch = bd_calloc(1, sizeof *ch);
    char *copy = bd_strdup(target);
    if (ch == NULL || copy == NULL || rpc_channel_init(&ch->base, env, target, opt) != BD_OK) {
        bd_free(ch);
        bd_free(copy);
        return bd_err_set(err, BD_E_NOMEM, "channel to %s: out of memory", target);
    }
    ch->target = copy;
    *out = &ch->base;
    return BD_OK;
}

static void channel_destroy(rpc_channel *base)
{
    mem_channel *ch = (mem_channel *)base;
    rpc_channel_deinit(base);
    bd_free(ch->target);
    bd_free(ch);
}

/* ---- flights ---- */

typedef struct mem_try {
    mem_flight *flight; /* shared; NULL: over */
} mem_try;

static mem_try *try_of(rpc_call *c)
{
    return (mem_try *)(void *)c->try_space;
}

void mem_flight_unref(mem_flight *f)
{
    if (--f->refs == 0) {
        bd_chain_deinit(&f->body);
        bd_chain_deinit(&f->reply);
        bd_free(f->target);
        bd_free(f);
    }
}

/* Event at at_ns with a reference of its own. */
static bd_status flight_at(mem_flight *f, int64_t at_ns, void (*fn)(void *user))
{
    bd_status rc = mem_at(f->net, at_ns, fn, f);
    f->refs += rc == BD_OK ? 1 : 0;
    return rc;
}

/* The try is over for the client; later events of it find no call. */
static void flight_end(mem_flight *f, bd_status rc, bd_chain *reply, const char *text)
{
    rpc_call *c = f->call;
    bd_err err = BD_ERR_INIT;
    bd_chain none = {0};
    if (c == NULL) {
        return;
    }
    f->call = NULL;
    try_of(c)->flight = NULL;
    if (rc != BD_OK) {
        (void)bd_err_set(&err, rc, "%s", text);
    }
    rpc_call_try_done(c, rc, reply != NULL ? reply : &none, &err);
    mem_flight_unref(f);
}

static void on_deadline(void *user)
{
    mem_flight *f = user;
    f->cancelled = f->cancelled || f->call != NULL;
    flight_end(f, BD_E_TIMEOUT, NULL, "deadline exceeded");
    mem_flight_unref(f);
}

static void on_cancel(void *user)
{
    mem_flight *f = user;
    flight_end(f, BD_E_CANCELLED, NULL, "cancelled");
    mem_flight_unref(f);
}

static void on_broken(void *user)
{
    mem_flight *f = user;
    flight_end(f, BD_E_UNAVAILABLE, NULL, "connection broken");
    mem_flight_unref(f);
}

static void on_answer(void *user)
{
    mem_flight *f = user;
    if (f->node != NULL && !mem_can_talk(f->node, f->client)) {
        flight_end(f, BD_E_UNAVAILABLE, NULL, "connection broken");
    } else {
        mem_trace(f->net, bd_status_name((int)f->end_rc), f->node != NULL ? f->node->name : "-",
                  f->client->name, f->method);
        flight_end(f, f->end_rc, &f->reply, f->end_err.text);
    }
    mem_flight_unref(f);
}

void mem_flight_answer(mem_flight *f, bd_status rc, bd_chain *reply, const char *text)
{
    int64_t at = mem_now(f->net) + mem_delay_ns(f->net);
    bool lost = mem_draw(f->net, f->net->opt.loss);
    if (f->call == NULL || f->end_rc != BD_AGAIN) {
        bd_chain_deinit(reply); /* given up, or the answer to a repeat */
        return;
    }
    if (lost) {
        mem_trace(f->net, "answer lost", f->node->name, f->client->name, f->method);
        f->end_rc = BD_E_UNAVAILABLE;
        bd_chain_deinit(reply);
        (void)flight_at(f, at, on_broken); /* no memory: the deadline ends it */
        return;
    }
    f->end_rc = rc;
    bd_chain_move(&f->reply, reply);
    if (rc != BD_OK) {
        (void)bd_err_set(&f->end_err, rc, "%s", text);
    }
    (void)flight_at(f, at, on_answer);
}

static void on_arrive(void *user)
{
    mem_flight *f = user;
    mem_server *s = mem_server_find(f->net, f->target);
    if (s == NULL || !mem_can_talk(f->client, mem_env_of(s->base.env))) {
        mem_trace(f->net, "refused", f->client->name, f->target, f->method);
        (void)flight_at(f, mem_now(f->net) + mem_delay_ns(f->net), on_broken);
    } else {
        f->node = mem_env_of(s->base.env);
        mem_trace(f->net, "request", f->client->name, f->node->name, f->method);
        mem_req_arrive(f, s);
    }
    mem_flight_unref(f);
}

static mem_flight *flight_new(rpc_call *c)
{
    const char *target = ((mem_channel *)c->ch)->target;
    size_t n_target = strlen(target) + 1, n_method = strlen(c->method) + 1;
    mem_flight *f = bd_calloc(1, sizeof *f);
    char *names = bd_alloc(n_target + n_method);
    if (f == NULL || names == NULL || bd_chain_add_chain(&f->body, &c->request) != BD_OK) {
        if (f != NULL) {
            bd_chain_deinit(&f->body);
        }
        bd_free(f);
        bd_free(names);
        return NULL;
    }
    memcpy(names, target, n_target);
    memcpy(names + n_target, c->method, n_method);
    f->refs = 1;
    f->client = mem_env_of(c->ch->env);
    f->net = f->client->net;
    f->call = c;
    f->target = names;
    f->method = names + n_target;
    f->deadline_ns = c->deadline_ns;
    f->end_rc = BD_AGAIN;
    return f;
}

static bd_status try_start(rpc_call *c, bd_err *err)
{
    mem_flight *f = flight_new(c);
    bd_status rc = f == NULL ? BD_E_NOMEM : flight_at(f, c->deadline_ns, on_deadline);
    if (rc != BD_OK) {
        if (f != NULL) {
            mem_flight_unref(f);
        }
        return bd_err_set(err, rc, "out of memory");
    }
    rpc_mem_net *net = f->net;
    int64_t at = mem_now(net) + mem_delay_ns(net);
    bool lost = mem_draw(net, net->opt.loss) || f->client->killed;
    bool twice = c->idempotent && mem_draw(net, net->opt.repeat);
    try_of(c)->flight = f;
    rc = flight_at(f, at, lost ? on_broken : on_arrive);
    if (lost) {
        mem_trace(net, "request lost", f->client->name, f->target, f->method);
    } else if (twice && rc == BD_OK) {
        (void)flight_at(f, at + mem_delay_ns(net), on_arrive);
    }
    return BD_OK; /* without memory for the event the deadline ends it */
}

static void try_cancel(rpc_call *c)
{
    mem_flight *f = try_of(c)->flight;
    if (f != NULL && !f->cancelled) {
        f->cancelled = true;
        (void)flight_at(f, mem_now(f->net), on_cancel);
    }
}

const rpc_transport mem_transport = {
    .try_bytes = sizeof(mem_try),
    .env_free = env_free,
    .now_ns = env_now_ns,
    .after = env_after,
    .block = env_block,
    .on_env_thread = on_env_thread,
    .channel_new = channel_new,
    .channel_destroy = channel_destroy,
    .try_start = try_start,
    .try_cancel = try_cancel,
    .stream_open = mem_stream_open,
    .stream_send = mem_stream_send,
    .stream_finish = mem_stream_finish,
    .stream_cancel = mem_stream_cancel,
    .stream_destroy = mem_stream_destroy,
    .server_new = mem_server_new,
    .server_start = mem_server_start,
    .server_port = mem_server_port,
    .server_stop = mem_server_stop,
    .server_destroy = mem_server_destroy,
    .req_cancelled = mem_req_cancelled,
    .req_ms_left = mem_req_ms_left,
    .req_reply = mem_req_reply,
    .req_fail = mem_req_fail,
};
