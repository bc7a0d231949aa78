/* Clients of a node: which contexts of theirs have ended, their last answers, and their leases. */
#include "base/clock.h"
#include "base/mem.h"

#include "rpc/rpc_rref_int.h"

#include <inttypes.h>
#include <string.h>

void ag_client_free(ag_client *c)
{
    for (size_t i = 0; i < AG_LAST_REPLIES; i++) {
        bd_chain_deinit(&c->last[i].reply);
    }
    bd_free(c->ended);
    bd_free(c);
}

static int64_t now_of(const rpc_ag *ag)
{
    return ag->env != NULL ? ag->env->t->now_ns(ag->env) : 0;
}

ag_client *ag_client_get_locked(rpc_ag *ag, uint64_t id)
{
    for (ag_client *c = ag->clients; c != NULL; c = c->next) {
        if (c->id == id) {
            c->last_ns = now_of(ag);
            return c;
        }
    }
    ag_client *c = bd_calloc(1, sizeof *c);
    if (c != NULL) {
        c->id = id;
        c->last_ns = now_of(ag);
        c->next = ag->clients;
        ag->clients = c;
    }
    return c;
}

static void forget_locked(rpc_ag *ag, uint64_t id)
{
    for (ag_client **p = &ag->clients; *p != NULL; p = &(*p)->next) {
        if ((*p)->id == id) {
            ag_client *c = *p;
            *p = c->next;
            ag_client_free(c);
            return;
        }
    }
}

/* Where id stands, or belongs. */
static size_t expired_at(const rpc_ag *ag, uint64_t id)
{
    size_t low = 0, high = ag->n_expired;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (ag->expired[mid] < id) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

bool ag_client_is_expired_locked(const rpc_ag *ag, uint64_t id)
{
    size_t i = expired_at(ag, id);
    return i < ag->n_expired && ag->expired[i] == id;
}

bool ag_client_has_ended(const ag_client *c, uint64_t number)
{
    if (number <= c->ended_below) {
        return true;
    }
    for (size_t i = 0; i < c->n_ended; i++) {
        if (c->ended[i] == number) {
            return true;
        }
    }
    return false;
}

/* Moves the watermark over what is contiguous, and over the oldest gap when the list is too long.
 */
static void compact(ag_client *c)
{
    size_t k = 0;
    while (k < c->n_ended && (c->ended[k] == c->ended_below + 1 || c->n_ended - k > AG_ENDED_MAX)) {
        c->ended_below = c->ended[k++];
    }
    memmove(c->ended, c->ended + k, (c->n_ended - k) * sizeof *c->ended);
    c->n_ended -= k;
}

void ag_client_note_ended(ag_client *c, uint64_t number)
{
    if (ag_client_has_ended(c, number)) {
        return;
    }
    void *items = c->ended;
    if (!bd_grow(&items, &c->cap_ended, c->n_ended + 1, sizeof *c->ended)) {
        c->ended_below = number; /* forget older gaps rather than let a late message in */
        return;
    }
    c->ended = items;
    size_t i = c->n_ended++;
    for (; i > 0 && c->ended[i - 1] > number; i--) {
        c->ended[i] = c->ended[i - 1];
    }
    c->ended[i] = number;
    compact(c);
}

void ag_reply_keep(rpc_ag *ag, uint64_t client_id, uint64_t number, uint64_t sequence,
                   const bd_chain *reply)
{
    (void)pthread_mutex_lock(&ag->lock);
    ag_client *c = ag_client_get_locked(ag, client_id);
    if (c != NULL) {
        size_t i = c->next_last++ % AG_LAST_REPLIES;
        bd_chain_deinit(&c->last[i].reply);
        c->last[i].number = 0;
        if (bd_chain_add_chain(&c->last[i].reply, reply) == BD_OK) {
            c->last[i].number = number;
            c->last[i].sequence = sequence;
        }
    }
    (void)pthread_mutex_unlock(&ag->lock);
}

bool ag_reply_find(rpc_ag *ag, uint64_t client_id, uint64_t number, uint64_t sequence,
                   bd_chain *out)
{
    bool found = false;
    (void)pthread_mutex_lock(&ag->lock);
    ag_client *c = ag_client_get_locked(ag, client_id);
    for (size_t i = 0; c != NULL && i < AG_LAST_REPLIES && !found; i++) {
        if (c->last[i].number == number && c->last[i].sequence == sequence && number != 0) {
            found = bd_chain_add_chain(out, &c->last[i].reply) == BD_OK;
        }
    }
    (void)pthread_mutex_unlock(&ag->lock);
    return found;
}

/* ---- leases ---- */

/* The next context of this client on this node, taken out of the map; NULL: none left. */
static rpc_ag_ctx *take_any(rpc_ag *ag, uint64_t client_id)
{
    uint64_t number = 0;
    (void)pthread_mutex_lock(&ag->lock);
    for (size_t h = 0; h < AG_CONTEXT_SLOTS && number == 0; h++) {
        for (rpc_ag_ctx *c = ag->map[h]; c != NULL && number == 0; c = c->map_next) {
            number = c->client_id == client_id ? c->number : 0;
        }
    }
    (void)pthread_mutex_unlock(&ag->lock);
    return number != 0 ? ag_ctx_take(ag, client_id, number) : NULL;
}

/* Forgets the client but for its id; its contexts are taken by the caller. */
static void expire_locked(rpc_ag *ag, uint64_t client_id)
{
    void *items = ag->expired;
    if (ag->n_expired >= AG_EXPIRED_MAX) { /* ids grow: the smallest are the oldest */
        ag->n_expired--;
        memmove(ag->expired, ag->expired + 1, ag->n_expired * sizeof *ag->expired);
    }
    if (!ag_client_is_expired_locked(ag, client_id) &&
        bd_grow(&items, &ag->cap_expired, ag->n_expired + 1, sizeof *ag->expired)) {
        ag->expired = items;
        size_t i = expired_at(ag, client_id);
        memmove(ag->expired + i + 1, ag->expired + i, (ag->n_expired - i) * sizeof *ag->expired);
        ag->expired[i] = client_id;
        ag->n_expired++;
    }
    forget_locked(ag, client_id);
}

void rpc_ag_drop_client(rpc_ag *ag, uint64_t client_id)
{
    (void)pthread_mutex_lock(&ag->lock);
    expire_locked(ag, client_id);
    (void)pthread_mutex_unlock(&ag->lock);
    ag_values_drop_client(ag, client_id);
    for (rpc_ag_ctx *ctx = take_any(ag, client_id); ctx != NULL; ctx = take_any(ag, client_id)) {
        ag_ctx_unref(ctx);
    }
}

/* A client whose time is up: 0: none. Those without contexts and references are only forgotten, and
 * much later. */
static uint64_t next_silent(rpc_ag *ag, int64_t lease_ns)
{
    uint64_t found = 0;
    (void)pthread_mutex_lock(&ag->lock);
    int64_t now = now_of(ag);
    for (ag_client *c = ag->clients, *next; c != NULL && found == 0; c = next) {
        next = c->next;
        if (c->id == ag->client_id || now - c->last_ns <= lease_ns) {
            continue;
        }
        if (c->n_live + c->n_forks > 0) {
            found = c->id;
        } else if (now - c->last_ns > AG_FORGET_LEASES * lease_ns) {
            forget_locked(ag, c->id);
        }
    }
    (void)pthread_mutex_unlock(&ag->lock);
    return found;
}

size_t rpc_ag_sweep(rpc_ag *ag, int64_t lease_ms)
{
    size_t n = 0;
    for (uint64_t id = next_silent(ag, lease_ms * BD_NS_PER_MS); id != 0;
         id = next_silent(ag, lease_ms * BD_NS_PER_MS)) {
        rpc_ag_drop_client(ag, id);
        n++;
    }
    return n;
}

/* False: its lease is over. A client that has nothing here needs no entry. */
static bool heard(rpc_ag *ag, uint64_t client_id)
{
    (void)pthread_mutex_lock(&ag->lock);
    bool expired = ag_client_is_expired_locked(ag, client_id);
    for (ag_client *c = ag->clients; c != NULL && !expired; c = c->next) {
        c->last_ns = c->id == client_id ? now_of(ag) : c->last_ns;
    }
    (void)pthread_mutex_unlock(&ag->lock);
    return !expired;
}

bd_status ag_client_touch(rpc_ag *ag, uint64_t client_id, bd_err *err)
{
    return heard(ag, client_id) ? BD_OK
                                : bd_err_set(err, BD_E_CLIENT_EXPIRED,
                                             "client %" PRIu64 ": its lease is over", client_id);
}

void ag_client_hear(rpc_ag *ag, uint64_t client_id)
{
    (void)heard(ag, client_id);
}
