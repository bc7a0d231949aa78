#include "cli/cli_rdzv.h"

#include "base/clock.h"
#include "base/mem.h"

#include "cli/cli_plan.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Waits are watches of the store; they are cut into slices so that a signal is heard. */
enum { SLICE_MS = 1000, LEAVE_MS = 5000, HURRY_MS = 1000, KEY_BYTES = 256, MISSED_BEATS = 3 };

struct cli_rdzv {
    rpc_store *store;
    bd_kv *kv; /* the store's */
    cli_rdzv_options opt;
    _Atomic bool stopped;
    /* The sign of life. */
    pthread_t beat, watch;
    bool beats, watches;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    bool quiet;             /* under lock: the threads end */
    char own_key[KEY_BYTES], own_entry[2 * CLI_RDZV_HOST_BYTES + 64];
    /* Of the launcher that is watched. */
    char next_key[KEY_BYTES], next_entry[2 * CLI_RDZV_HOST_BYTES + 64];
    char next_host[CLI_RDZV_HOST_BYTES];
    const cli_plan *plan; /* of the round that is watched; borrowed from its user */
};

static void key_of(const cli_rdzv *r, int64_t round, const char *what, char key[KEY_BYTES])
{
    (void)snprintf(key, KEY_BYTES, "launch/%s/%" PRId64 "/%s", r->opt.id, round, what);
}

static void node_key_of(const cli_rdzv *r, int64_t round, int arrival, char key[KEY_BYTES])
{
    (void)snprintf(key, KEY_BYTES, "launch/%s/%" PRId64 "/node/%d", r->opt.id, round, arrival);
}

/* *val NULL: absent. Owned. */
static bd_status try_get(const cli_rdzv *r, const char *key, char **val, bd_err *err)
{
    *val = NULL;
    bd_status rc = r->kv->get(r->kv, key, 0, val, NULL, err);
    return rc == BD_E_NOT_FOUND ? BD_OK : rc;
}

static bd_status cancelled(bd_err *err)
{
    return bd_err_set(err, BD_E_CANCELLED, "stopped");
}

/* A slice of a wait for a key: BD_AGAIN: not there yet. */
static bd_status wait_slice(const cli_rdzv *r, const char *key, int64_t ms, char **val, bd_err *err)
{
    if (atomic_load(&r->stopped)) {
        return cancelled(err);
    }
    *val = NULL;
    bd_status rc = r->kv->get(r->kv, key, ms < SLICE_MS ? ms : SLICE_MS, val, NULL, err);
    return rc == BD_E_TIMEOUT || rc == BD_E_NOT_FOUND ? BD_AGAIN : rc;
}

/* ---- signs of life ---- */
static void *beat_main(void *arg)
{
    cli_rdzv *r = arg;
    (void)pthread_mutex_lock(&r->lock);
    while (!r->quiet) {
        bd_err ignored = BD_ERR_INIT;
        (void)pthread_mutex_unlock(&r->lock);
        (void)!r->kv->set_for(r->kv, r->own_key, r->own_entry, MISSED_BEATS * r->opt.beat_ms,
                              &ignored);
        int64_t at = bd_mono_ns() + r->opt.beat_ms * BD_NS_PER_MS;
        const struct timespec until = {.tv_sec = at / BD_NS_PER_S, .tv_nsec = at % BD_NS_PER_S};
        (void)pthread_mutex_lock(&r->lock);
        while (!r->quiet && pthread_cond_timedwait(&r->changed, &r->lock, &until) == 0) {
        }
    }
    (void)pthread_mutex_unlock(&r->lock);
    return NULL;
}

static bool is_quiet(cli_rdzv *r)
{
    (void)pthread_mutex_lock(&r->lock);
    bool quiet = r->quiet;
    (void)pthread_mutex_unlock(&r->lock);
    return quiet;
}

/* The next launcher in a ring: so each is watched, also when a neighbour dies with it. */
static void *watch_main(void *arg)
{
    cli_rdzv *r = arg;
    while (!is_quiet(r)) {
        char *val = NULL, text[CLI_RDZV_TEXT_BYTES];
        bd_err err = BD_ERR_INIT;
        bd_status rc = r->kv->get_other(r->kv, r->next_key, r->next_entry, SLICE_MS, &val, &err);
        bool gone = rc == BD_OK && val == NULL;
        bd_free(val);
        if (gone) {
            (void)snprintf(text, sizeof text, "the launcher on %s is lost", r->next_host);
            (void)!cli_rdzv_post(r, r->plan, 4, true, text, &err);
            return NULL;
        }
    }
    return NULL;
}

static void end_threads(cli_rdzv *r)
{
    bd_err ignored = BD_ERR_INIT;
    (void)pthread_mutex_lock(&r->lock);
    r->quiet = true;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->lock);
    if (r->watches) {
        (void)pthread_join(r->watch, NULL);
        r->watches = false;
    }
    if (r->beats) {
        (void)pthread_join(r->beat, NULL);
        r->beats = false;
        (void)!r->kv->del(r->kv, r->own_key, &ignored);
    }
}

static bd_status start_thread(pthread_t *t, bool *runs, void *(*main)(void *), cli_rdzv *r,
                              bd_err *err)
{
    int e = pthread_create(t, NULL, main, r);
    *runs = e == 0;
    return e == 0 ? BD_OK : bd_err_errno(err, BD_E_EXHAUSTED, e, "start threads");
}

/* Enters this launcher as the arrival-th of a round, and keeps it there. */
static bd_status enter(cli_rdzv *r, int64_t round, int arrival, bd_err *err)
{
    cli_node me = {.arrival = arrival,
                   .n_ranks = r->opt.n_ranks,
                   .node_rank = r->opt.node_rank,
                   .port = cli_plan_free_port()};
    (void)snprintf(me.address, sizeof me.address, "%s", r->opt.address);
    (void)snprintf(me.host, sizeof me.host, "%s", r->opt.host);
    node_key_of(r, round, arrival, r->own_key);
    cli_node_text(&me, r->own_entry, sizeof r->own_entry);
    r->quiet = false;
    bd_status rc =
        r->kv->set_for(r->kv, r->own_key, r->own_entry, MISSED_BEATS * r->opt.beat_ms, err);
    return rc == BD_OK ? start_thread(&r->beat, &r->beats, beat_main, r, err) : rc;
}

/* ---- ends ---- */
static bd_status write_end(cli_rdzv *r, int64_t round, const cli_end *e, bd_err *err)
{
    char key[KEY_BYTES], text[CLI_RDZV_TEXT_BYTES + 64];
    bool first = false;
    key_of(r, round, "end", key);
    cli_end_text(e, text, sizeof text);
    return r->kv->compare_set(r->kv, key, NULL, text, &first, err);
}

bd_status cli_rdzv_post(cli_rdzv *r, const cli_plan *p, int exit_code, bool may_retry,
                        const char *text, bd_err *err)
{
    bool retry = may_retry && p->n_restarts < r->opt.max_restarts;
    cli_end e = {.kind = retry ? CLI_END_RETRY : CLI_END_FINAL,
                 .n_restarts = p->n_restarts + 1,
                 .exit_code = exit_code};
    (void)snprintf(e.text, sizeof e.text, "%s", text);
    return write_end(r, p->round, &e, err);
}

bd_status cli_rdzv_done(cli_rdzv *r, const cli_plan *p, bd_err *err)
{
    char key[KEY_BYTES];
    int64_t n = 0;
    const cli_end e = {.kind = CLI_END_OK, .n_restarts = p->n_restarts};
    key_of(r, p->round, "done", key);
    bd_status rc = r->kv->add(r->kv, key, 1, &n, err);
    return rc == BD_OK && n == p->n_nodes ? write_end(r, p->round, &e, err) : rc;
}

bd_status cli_rdzv_wait_end(cli_rdzv *r, const cli_plan *p, cli_end *out, bd_err *err)
{
    char key[KEY_BYTES], *val = NULL;
    key_of(r, p->round, "end", key);
    bd_status rc = BD_AGAIN;
    while (rc == BD_AGAIN) {
        rc = wait_slice(r, key, SLICE_MS, &val, err);
    }
    if (rc == BD_OK) {
        rc = cli_end_parse(val, out, err);
    }
    bd_free(val);
    if (rc != BD_OK) {
        cli_rdzv_hurry(r);
    }
    end_threads(r);
    return rc;
}

/* ---- joining ---- */
static bd_status current_round(cli_rdzv *r, int64_t *round, bd_err *err)
{
    char key[KEY_BYTES];
    bool first = false;
    (void)snprintf(key, sizeof key, "launch/%s/round", r->opt.id);
    bd_status rc = r->kv->compare_set(r->kv, key, NULL, "1", &first, err);
    return rc == BD_OK ? r->kv->add(r->kv, key, 0, round, err) : rc;
}

static bd_status next_round(cli_rdzv *r, int64_t round, bd_err *err)
{
    char key[KEY_BYTES], from[32], to[32];
    bool first = false;
    (void)snprintf(key, sizeof key, "launch/%s/round", r->opt.id);
    (void)snprintf(from, sizeof from, "%" PRId64, round);
    (void)snprintf(to, sizeof to, "%" PRId64, round + 1);
    return r->kv->compare_set(r->kv, key, from, to, &first, err);
}

/* How often the job has failed when `round` begins: as the end of the one before it says. */
static bd_status restarts_before(const cli_rdzv *r, int64_t round, int *n, bd_err *err)
{
    char key[KEY_BYTES], *val = NULL;
    cli_end e = {.kind = CLI_END_OK};
    key_of(r, round - 1, "end", key);
    bd_status rc = try_get(r, key, &val, err);
    if (rc == BD_OK && val != NULL) {
        rc = cli_end_parse(val, &e, err);
    }
    *n = e.kind == CLI_END_RETRY || e.kind == CLI_END_AGAIN ? e.n_restarts : 0;
    bd_free(val);
    return rc;
}

/* The entries of a round whose launchers live: p->nodes (room for all that ever came), n_nodes. */
static bd_status scan(const cli_rdzv *r, int64_t round, cli_plan *p, bd_err *err)
{
    char key[KEY_BYTES];
    int64_t n = 0;
    key_of(r, round, "n", key);
    bd_status rc = r->kv->add(r->kv, key, 0, &n, err);
    n = n < CLI_RDZV_MAX_NODES ? n : CLI_RDZV_MAX_NODES;
    *p = (cli_plan){.round = round, .nodes = bd_calloc((size_t)n + 1, sizeof *p->nodes)};
    if (rc == BD_OK && p->nodes == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "rendezvous");
    }
    for (int i = 0; rc == BD_OK && i < n; i++) {
        char *val = NULL;
        node_key_of(r, round, i, key);
        rc = try_get(r, key, &val, err);
        if (rc == BD_OK && val != NULL && cli_node_parse(val, &p->nodes[p->n_nodes])) {
            p->n_nodes++;
        }
        bd_free(val);
    }
    return rc;
}

/* Writes the plan of those who live, if it is not written yet. */
static bd_status close_round(const cli_rdzv *r, cli_plan *p, bd_err *err)
{
    char key[KEY_BYTES];
    bool first = false;
    bd_status rc = restarts_before(r, p->round, &p->n_restarts, err);
    char *text = rc == BD_OK ? cli_plan_text(p) : NULL;
    if (rc == BD_OK && text == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "rendezvous");
    }
    key_of(r, p->round, "plan", key);
    if (rc == BD_OK) {
        rc = r->kv->compare_set(r->kv, key, NULL, text, &first, err);
    }
    bd_free(text);
    return rc;
}

static bd_status absent(const cli_rdzv *r, const cli_plan *p, bd_err *err)
{
    char names[256] = "";
    size_t n = 0;
    for (int i = 0; i < p->n_nodes && n + 72 < sizeof names; i++) {
        n += (size_t)snprintf(names + n, sizeof names - n, " %.64s", p->nodes[i].host);
    }
    return bd_err_set(err, BD_E_TIMEOUT, "job %s: %d of %d launchers came within %" PRId64 " s:%s",
                      r->opt.id, p->n_nodes, r->opt.min_nodes, r->opt.join_ms / 1000, names);
}

/* Entered in a round without a plan: until it has one, *text (owned). */
static bd_status wait_plan(const cli_rdzv *r, int64_t round, int64_t end_ns, char **text,
                           bd_err *err)
{
    char key[KEY_BYTES];
    int64_t call_ns = 0; /* when the last call is over */
    bd_status rc = BD_AGAIN;
    key_of(r, round, "plan", key);
    while (rc == BD_AGAIN) {
        cli_plan p;
        int64_t now = bd_mono_ns();
        rc = scan(r, round, &p, err);
        cli_plan_choose(&p, r->opt.max_nodes);
        if (rc == BD_OK && call_ns == 0 && p.n_nodes >= r->opt.min_nodes) {
            call_ns = now + r->opt.last_call_ms * BD_NS_PER_MS;
        }
        bool called = call_ns != 0 && now >= call_ns && p.n_nodes >= r->opt.min_nodes;
        if (rc == BD_OK && (p.n_nodes == r->opt.max_nodes || called)) {
            rc = close_round(r, &p, err);
        } else if (rc == BD_OK && now >= end_ns) {
            rc = absent(r, &p, err);
        }
        cli_plan_deinit(&p);
        if (rc == BD_OK) {
            rc = wait_slice(r, key, SLICE_MS, text, err);
        }
    }
    return rc;
}

/* Everybody in the plan lives still and has seen it. */
static bd_status confirm(cli_rdzv *r, const cli_plan *p, bool *again, bd_err *err)
{
    char key[KEY_BYTES];
    int64_t n = 0, end_ns = bd_mono_ns() + 2LL * MISSED_BEATS * r->opt.beat_ms * BD_NS_PER_MS;
    key_of(r, p->round, "ready", key);
    bd_status rc = r->kv->add(r->kv, key, 1, &n, err);
    while (rc == BD_OK && n < p->n_nodes) {
        rc = r->kv->wait_at_least(r->kv, key, p->n_nodes, SLICE_MS, err);
        if (rc == BD_OK) {
            break;
        }
        rc = rc == BD_E_TIMEOUT ? BD_OK : rc;
        if (atomic_load(&r->stopped)) {
            rc = cancelled(err);
        } else if (rc == BD_OK && bd_mono_ns() >= end_ns) {
            const cli_end e = {.kind = CLI_END_AGAIN,
                               .n_restarts = p->n_restarts,
                               .text = "a launcher did not confirm the plan"};
            *again = true;
            return write_end(r, p->round, &e, err);
        }
    }
    return rc;
}

/* What former rounds of this job have left, for the one who comes first in the plan. */
static void forget_round(const cli_rdzv *r, int64_t round)
{
    static const char *const what[] = {"n", "plan", "ready", "done", "end", "left"};
    for (size_t i = 0; round > 0 && i < sizeof what / sizeof what[0]; i++) {
        char key[KEY_BYTES];
        bd_err ignored = BD_ERR_INIT;
        key_of(r, round, what[i], key);
        (void)!r->kv->del(r->kv, key, &ignored);
    }
}

static bd_status begin(cli_rdzv *r, const cli_plan *p, bd_err *err)
{
    if (p->me == 0) {
        forget_round(r, p->round - 2);
    }
    if (p->n_nodes == 1) {
        return BD_OK;
    }
    const cli_node *next = &p->nodes[(p->me + 1) % p->n_nodes];
    node_key_of(r, p->round, next->arrival, r->next_key);
    cli_node_text(next, r->next_entry, sizeof r->next_entry);
    (void)snprintf(r->next_host, sizeof r->next_host, "%s", next->host);
    r->plan = p;
    return start_thread(&r->watch, &r->watches, watch_main, r, err);
}

/* One arrival. *again: this round came to nothing for us. */
static bd_status try_round(cli_rdzv *r, int64_t round, int64_t end_ns, cli_plan *out, bool *again,
                           bd_err *err)
{
    char key[KEY_BYTES], *text = NULL;
    int64_t n = 0;
    key_of(r, round, "n", key);
    bd_status rc = r->kv->add(r->kv, key, 1, &n, err);
    if (rc == BD_OK) {
        rc = enter(r, round, (int)n - 1, err);
    }
    if (rc == BD_OK) {
        rc = wait_plan(r, round, end_ns, &text, err);
    }
    if (rc == BD_OK) {
        rc = cli_plan_parse(text, round, (int)n - 1, out, err);
        *again = rc == BD_OK && out->me < 0; /* it was closed without us */
    }
    bd_free(text);
    if (rc == BD_OK && !*again) {
        rc = confirm(r, out, again, err);
    }
    if (rc == BD_OK && !*again) {
        return begin(r, out, err);
    }
    end_threads(r);
    cli_plan_deinit(out);
    return rc;
}

/* A round that has its plan without us: until it ends. Elastic jobs end it for our sake; one whose
 * launchers are all dead is ended for good. */
static bd_status outwait(cli_rdzv *r, int64_t round, const char *text, int64_t end_ns, bd_err *err)
{
    char key[KEY_BYTES], *val = NULL;
    cli_plan p = {0}, live = {0};
    bd_status rc = cli_plan_parse(text, round, -1, &p, err);
    if (rc == BD_OK) {
        rc = scan(r, round, &live, err);
    }
    if (rc == BD_OK && (live.n_nodes == 0 || p.n_nodes < r->opt.max_nodes)) {
        const cli_end e = {.kind = live.n_nodes == 0 ? CLI_END_FINAL : CLI_END_AGAIN,
                           .n_restarts = p.n_restarts,
                           .exit_code = 4,
                           .text = "its launchers are gone, or more have come"};
        rc = write_end(r, round, &e, err);
    }
    key_of(r, round, "end", key);
    if (rc == BD_OK) {
        rc = wait_slice(r, key, SLICE_MS, &val, err);
    }
    if (rc == BD_AGAIN && bd_mono_ns() >= end_ns) {
        rc = bd_err_set(err, BD_E_EXISTS,
                        "job %s runs already on its %d hosts, the first is %s: another --rdzv-id?",
                        r->opt.id, p.n_nodes, p.nodes[0].host);
    }
    bd_free(val);
    cli_plan_deinit(&p);
    cli_plan_deinit(&live);
    return rc == BD_AGAIN ? BD_OK : rc;
}

bd_status cli_rdzv_join(cli_rdzv *r, cli_plan *out, bd_err *err)
{
    int64_t end_ns = bd_mono_ns() + r->opt.join_ms * BD_NS_PER_MS, round = 0;
    bd_status rc = BD_OK;
    bool again = true;
    while (rc == BD_OK && again) {
        char key[KEY_BYTES], *end = NULL, *plan = NULL;
        rc = atomic_load(&r->stopped) ? cancelled(err) : current_round(r, &round, err);
        key_of(r, round, "end", key);
        rc = rc == BD_OK ? try_get(r, key, &end, err) : rc;
        key_of(r, round, "plan", key);
        rc = rc == BD_OK ? try_get(r, key, &plan, err) : rc;
        if (rc == BD_OK && end != NULL) {
            rc = next_round(r, round, err);
        } else if (rc == BD_OK && plan != NULL) {
            rc = outwait(r, round, plan, end_ns, err);
        } else if (rc == BD_OK) {
            again = false;
            rc = try_round(r, round, end_ns, out, &again, err);
        }
        bd_free(end);
        bd_free(plan);
    }
    return rc;
}

void cli_rdzv_leave(cli_rdzv *r, const cli_plan *p, bool wait)
{
    char key[KEY_BYTES];
    bd_err ignored = BD_ERR_INIT;
    int64_t n = 0;
    end_threads(r);
    key_of(r, p->round, "left", key);
    if (p->n_nodes > 1 && r->kv->add(r->kv, key, 1, &n, &ignored) == BD_OK && wait) {
        (void)!r->kv->wait_at_least(r->kv, key, p->n_nodes, LEAVE_MS, &ignored);
    }
}

/* ---- life ---- */
bd_status cli_rdzv_new(rpc_store *store, const cli_rdzv_options *opt, cli_rdzv **out, bd_err *err)
{
    pthread_condattr_t attr;
    cli_rdzv *r = bd_calloc(1, sizeof *r);
    if (r == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "rendezvous");
    }
    r->store = store;
    r->kv = store->kv;
    r->opt = *opt;
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&r->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    *out = r;
    return BD_OK;
}

void cli_rdzv_hurry(cli_rdzv *r)
{
    r->store->wait_ms = HURRY_MS;
}

void cli_rdzv_stop(cli_rdzv *r)
{
    cli_rdzv_hurry(r);
    atomic_store(&r->stopped, true);
}

void cli_rdzv_free(cli_rdzv *r)
{
    if (r == NULL) {
        return;
    }
    end_threads(r);
    (void)pthread_cond_destroy(&r->changed);
    (void)pthread_mutex_destroy(&r->lock);
    bd_free(r);
}
