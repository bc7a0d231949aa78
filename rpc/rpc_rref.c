/* Values, forks and handles of references: who keeps what alive. */
#include "rpc/rpc_rref.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "proto/px_pack.h"
#include "rpc/rpc_rref_int.h"

#include <inttypes.h>
#include <string.h>

static size_t slot_of(uint64_t creator_id, uint64_t number)
{
    return (size_t)(bd_mix64(bd_mix64(creator_id) ^ number) % AG_RREF_SLOTS);
}

/* ---- values ---- */

static ag_value **value_find_locked(rpc_ag *ag, uint64_t creator_id, uint64_t number)
{
    ag_value **p = &ag->values[slot_of(creator_id, number)];
    while (*p != NULL && ((*p)->creator_id != creator_id || (*p)->number != number)) {
        p = &(*p)->next;
    }
    return p;
}

bd_status ag_value_new(rpc_ag *ag, uint64_t creator_id, uint64_t number, rpc_tensor *t, size_t n,
                       ag_value **out)
{
    ag_value *v = bd_calloc(1, sizeof *v);
    if (v == NULL) {
        return BD_E_NOMEM;
    }
    v->creator_id = creator_id;
    v->number = number;
    v->n_refs = 1;
    (void)pthread_mutex_lock(&ag->lock);
    ag_value **p = value_find_locked(ag, creator_id, number);
    bd_status rc = *p == NULL ? BD_OK : BD_E_EXISTS;
    if (rc == BD_OK) {
        memcpy(v->t, t, n * sizeof *t);
        v->n = n;
        *p = v;
        ag->n_values++;
    }
    (void)pthread_mutex_unlock(&ag->lock);
    if (rc != BD_OK) {
        bd_free(v);
        return rc;
    }
    *out = v;
    return BD_OK;
}

ag_value *ag_value_get(rpc_ag *ag, const Braid__V1__AutogradRRef *name)
{
    (void)pthread_mutex_lock(&ag->lock);
    ag_value *v = *value_find_locked(ag, name->creator_id, name->number);
    if (v != NULL) {
        v->n_refs++;
    }
    (void)pthread_mutex_unlock(&ag->lock);
    return v;
}

static void value_free(ag_value *v)
{
    while (v->forks != NULL) {
        ag_fork *f = v->forks;
        v->forks = f->next;
        bd_free(f);
    }
    rpc_tensors_free(v->t, v->n);
    bd_free(v);
}

/* Takes it out when nobody refers to it any more; the caller frees it. NULL: it stays. */
static ag_value *value_dead_locked(rpc_ag *ag, ag_value *v)
{
    if (v->n_refs + v->n_alive > 0) {
        return NULL;
    }
    ag_value **p = value_find_locked(ag, v->creator_id, v->number);
    BD_ASSERT(*p == v);
    *p = v->next;
    ag->n_values--;
    return v;
}

void ag_value_unref(rpc_ag *ag, ag_value *v)
{
    if (v == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&ag->lock);
    v->n_refs--;
    ag_value *dead = value_dead_locked(ag, v);
    (void)pthread_mutex_unlock(&ag->lock);
    if (dead != NULL) {
        value_free(dead);
    }
}

void ag_values_free(rpc_ag *ag)
{
    for (size_t i = 0; i < AG_RREF_SLOTS; i++) {
        BD_ASSERT(ag->rrefs[i] == NULL); /* the user's handles */
        while (ag->values[i] != NULL) {
            ag_value *v = ag->values[i];
            ag->values[i] = v->next;
            value_free(v);
        }
    }
}

/* ---- forks: the owner's side ---- */

/* The node's entry of this value, made when new; NULL: out of memory. */
static ag_fork *fork_get(ag_value *v, uint64_t client_id)
{
    ag_fork *f = v->forks;
    while (f != NULL && f->client_id != client_id) {
        f = f->next;
    }
    if (f == NULL) {
        f = bd_calloc(1, sizeof *f);
        if (f != NULL) {
            f->client_id = client_id;
            f->next = v->forks;
            v->forks = f;
        }
    }
    return f;
}

static void set_alive(rpc_ag *ag, ag_value *v, ag_fork *f, ag_client *c, bool alive)
{
    if (f->alive == alive) {
        return;
    }
    f->alive = alive;
    v->n_alive += alive ? 1 : (size_t)-1;
    ag->n_forks += alive ? 1 : (size_t)-1;
    if (c != NULL) {
        c->n_forks += alive ? 1 : (size_t)-1;
    }
}

/* See the rule in rpc_rref_int.h. */
static bd_status fork_locked(rpc_ag *ag, const Braid__V1__AutogradForkRequest *r)
{
    ag_value *v = *value_find_locked(ag, r->rref->creator_id, r->rref->number);
    if (ag_client_is_expired_locked(ag, r->client_id)) {
        return BD_E_CLIENT_EXPIRED;
    }
    if (v == NULL) {
        return BD_E_NOT_FOUND;
    }
    ag_client *c = ag_client_get_locked(ag, r->client_id);
    ag_fork *f = c != NULL ? fork_get(v, r->client_id) : NULL;
    if (f == NULL) {
        return BD_E_NOMEM;
    }
    if (r->fork > f->latest) {
        f->latest = r->fork;
        set_alive(ag, v, f, c, true);
    }
    return r->fork == f->latest && f->alive ? BD_OK : BD_E_STATE;
}

bd_status ag_value_fork(rpc_ag *ag, const Braid__V1__AutogradForkRequest *r, bd_err *err)
{
    (void)pthread_mutex_lock(&ag->lock);
    bd_status rc = fork_locked(ag, r);
    (void)pthread_mutex_unlock(&ag->lock);
    return rc == BD_OK ? BD_OK
                       : bd_err_set(err, rc, "reference %" PRIu64 "/%" PRIu64 ": %s",
                                    r->rref->creator_id, r->rref->number,
                                    rc == BD_E_NOT_FOUND ? "nobody holds it any more, or never did"
                                                         : bd_status_text(rc));
}

bd_status ag_value_delete_fork(rpc_ag *ag, const Braid__V1__AutogradForkRequest *r, bd_err *err)
{
    ag_value *dead = NULL;
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&ag->lock);
    ag_value *v = *value_find_locked(ag, r->rref->creator_id, r->rref->number);
    bool expired = ag_client_is_expired_locked(ag, r->client_id); /* its forks have gone with it */
    ag_client *c = v != NULL && !expired ? ag_client_get_locked(ag, r->client_id) : NULL;
    ag_fork *f = c != NULL ? fork_get(v, r->client_id) : NULL;
    if (f != NULL && r->fork >= f->latest) {
        f->latest = r->fork;
        set_alive(ag, v, f, c, false);
        dead = value_dead_locked(ag, v);
    } else if (f == NULL && v != NULL && !expired) {
        rc = BD_E_NOMEM;
    }
    (void)pthread_mutex_unlock(&ag->lock);
    if (dead != NULL) {
        value_free(dead);
    }
    return rc == BD_OK ? BD_OK : bd_err_set(err, rc, "reference: out of memory");
}

/* The client's fork of v goes. What is returned the caller frees; NULL: v stays. */
static ag_value *drop_fork_locked(rpc_ag *ag, ag_value *v, uint64_t client_id)
{
    ag_fork *f = v->forks;
    while (f != NULL && (f->client_id != client_id || !f->alive)) {
        f = f->next;
    }
    if (f == NULL) {
        return NULL;
    }
    set_alive(ag, v, f, NULL, false); /* its entry is gone */
    return value_dead_locked(ag, v);
}

/* The next value that dies with the client's forks; NULL: no more. */
static ag_value *drop_one(rpc_ag *ag, uint64_t client_id)
{
    ag_value *dead = NULL;
    (void)pthread_mutex_lock(&ag->lock);
    for (size_t i = 0; i < AG_RREF_SLOTS && dead == NULL; i++) {
        for (ag_value *v = ag->values[i], *next; v != NULL && dead == NULL; v = next) {
            next = v->next;
            dead = drop_fork_locked(ag, v, client_id);
        }
    }
    (void)pthread_mutex_unlock(&ag->lock);
    return dead;
}

void ag_values_drop_client(rpc_ag *ag, uint64_t client_id)
{
    for (ag_value *v = drop_one(ag, client_id); v != NULL; v = drop_one(ag, client_id)) {
        value_free(v);
    }
}

/* ---- handles ---- */

static rpc_rref **handle_find_locked(rpc_ag *ag, uint64_t creator_id, uint64_t number)
{
    rpc_rref **p = &ag->rrefs[slot_of(creator_id, number)];
    while (*p != NULL && ((*p)->creator_id != creator_id || (*p)->number != number)) {
        p = &(*p)->next;
    }
    return p;
}

static rpc_rref *handle_alloc(rpc_ag *ag, uint64_t creator_id, uint64_t number, rpc_ag_peer *owner)
{
    rpc_rref *r = bd_calloc(1, sizeof *r);
    char *name = bd_strdup(owner != NULL ? owner->name : ag->name);
    if (r == NULL || name == NULL) {
        bd_free(r);
        bd_free(name);
        return NULL;
    }
    r->ag = ag;
    r->creator_id = creator_id;
    r->number = number;
    r->owner_name = name;
    r->owner = owner;
    r->refs = 1;
    rpc_wait_init(&r->made);
    return r;
}

static void handle_free(rpc_rref *r)
{
    rpc_wait_deinit(&r->made);
    bd_free(r->owner_name);
    bd_free(r);
}

static void handle_insert_locked(rpc_ag *ag, rpc_rref *r)
{
    rpc_rref **head = &ag->rrefs[slot_of(r->creator_id, r->number)];
    r->next = *head;
    *head = r;
    ag->n_rrefs++;
}

rpc_rref *ag_rref_new(rpc_ag *ag, uint64_t creator_id, uint64_t number, rpc_ag_peer *owner,
                      ag_value *value)
{
    rpc_rref *r = handle_alloc(ag, creator_id, number, owner);
    if (r != NULL) {
        r->value = value;
        r->state = owner != NULL ? RREF_MAKING : RREF_READY;
        r->fork = owner != NULL ? ag_next_id(ag) : 0;
        (void)pthread_mutex_lock(&ag->lock);
        handle_insert_locked(ag, r);
        (void)pthread_mutex_unlock(&ag->lock);
    }
    return r;
}

void ag_rref_made(rpc_rref *r, rref_state state, const bd_err *why)
{
    (void)pthread_mutex_lock(&r->ag->lock);
    r->state = state;
    if (state == RREF_FAILED) {
        r->why = *why;
    }
    (void)pthread_mutex_unlock(&r->ag->lock);
    rpc_wait_post(&r->made);
}

static rref_state state_of(rpc_rref *r, bd_err *why)
{
    (void)pthread_mutex_lock(&r->ag->lock);
    rref_state s = r->state;
    if (s == RREF_FAILED && why != NULL) {
        *why = r->why;
    }
    (void)pthread_mutex_unlock(&r->ag->lock);
    return s;
}

bd_status rpc_rref_wait(rpc_rref *r, bd_err *err)
{
    bd_err why = BD_ERR_INIT;
    rref_state s = state_of(r, &why);
    if (s == RREF_MAKING) {
        r->ag->env->t->block(r->ag->env, &r->made);
        s = state_of(r, &why);
    }
    if (s == RREF_FAILED && err != NULL) {
        *err = why;
    }
    return s == RREF_FAILED ? why.code : BD_OK;
}

rpc_rref *rpc_rref_ref(rpc_rref *r)
{
    (void)pthread_mutex_lock(&r->ag->lock);
    r->refs++;
    (void)pthread_mutex_unlock(&r->ag->lock);
    return r;
}

const char *rpc_rref_owner(const rpc_rref *r)
{
    return r->owner_name;
}

bool rpc_rref_is_owner(const rpc_rref *r)
{
    return r->owner == NULL;
}

/* ---- deleting ---- */

/* The handle carries its DeleteFork itself, however often it takes: what runs when memory is short
 * must not need any to be remembered. */
static void delete_try(void *user);

static void deleting_end(rpc_rref *r)
{
    rpc_ag *ag = r->ag;
    handle_free(r);
    ag_notice_end(ag);
}

/* Lost, or the owner had no room for it just now. */
static bool worth_another(const rpc_rref *r, bd_status rc)
{
    (void)pthread_mutex_lock(&r->ag->lock);
    bool closing = r->ag->closing;
    (void)pthread_mutex_unlock(&r->ag->lock);
    return !closing && r->n_deletes < AG_DELETE_TRIES &&
           (rc == BD_E_UNAVAILABLE || rc == BD_E_TIMEOUT || rc == BD_E_NOMEM ||
            rc == BD_E_EXHAUSTED);
}

static void delete_again_or_end(rpc_rref *r, bd_status rc, const bd_err *err)
{
    rpc_env *env = r->ag->env;
    if (rc != BD_OK && worth_another(r, rc)) {
        int64_t wait_ns = rc == BD_E_UNAVAILABLE || rc == BD_E_TIMEOUT /* have waited */
                              ? 0
                              : (int64_t)r->n_deletes * AG_DELETE_WAIT_MS * BD_NS_PER_MS;
        if (wait_ns == 0 || env->t->after(env, wait_ns, delete_try, r) != BD_OK) {
            delete_try(r);
        }
        return;
    }
    if (rc != BD_OK) {
        BD_LOG(WARN, "a reference was not given back; its owner keeps the value until the lease",
               "node", r->owner->name, "error", bd_err_text(err));
    }
    deleting_end(r);
}

static void on_deleted(void *user, bd_status rc, bd_chain *reply, const bd_err *err)
{
    (void)reply;
    delete_again_or_end(user, rc, err);
}

static void delete_try(void *user)
{
    rpc_rref *r = user;
    rpc_call_options opt = {.deadline_ms = AG_CONTROL_MS, .idempotent = true};
    bd_chain body = {0};
    bd_err err = BD_ERR_INIT;
    r->n_deletes++;
    bd_status rc = ag_rref_pack_fork(r, &body, &err);
    if (rc == BD_OK) {
        rc = rpc_call_start(r->owner->ch, AG_SERVICE "DeleteFork", &body, &opt, on_deleted, r, NULL,
                            &err);
    }
    bd_chain_deinit(&body);
    if (rc != BD_OK) {
        delete_again_or_end(r, rc, &err);
    }
}

/* Takes the handle. */
static void send_delete(rpc_rref *r)
{
    if (ag_notice_begin(r->ag)) {
        delete_try(r);
    } else {
        handle_free(r);
    }
}

void rpc_rref_unref(rpc_rref *r)
{
    if (r == NULL) {
        return;
    }
    rpc_ag *ag = r->ag;
    (void)pthread_mutex_lock(&ag->lock);
    bool last = --r->refs == 0;
    if (last) {
        rpc_rref **p = &ag->rrefs[slot_of(r->creator_id, r->number)];
        while (*p != r) {
            p = &(*p)->next;
        }
        *p = r->next;
        ag->n_rrefs--;
    }
    (void)pthread_mutex_unlock(&ag->lock);
    if (!last) {
        return;
    }
    if (r->owner != NULL) {
        send_delete(r);
        return;
    }
    ag_value_unref(ag, r->value);
    handle_free(r);
}

/* ---- messages ---- */

void ag_rref_to_wire(const rpc_rref *r, Braid__V1__AutogradRRef *w)
{
    braid__v1__autograd_rref__init(w);
    w->creator_id = r->creator_id;
    w->number = r->number;
    w->owner = r->owner_name;
}

bd_status ag_rref_pack_fork(const rpc_rref *r, bd_chain *out, bd_err *err)
{
    Braid__V1__AutogradForkRequest q = BRAID__V1__AUTOGRAD_FORK_REQUEST__INIT;
    Braid__V1__AutogradRRef w;
    ag_rref_to_wire(r, &w);
    q.client_id = r->ag->client_id;
    q.fork = r->fork;
    q.rref = &w;
    return px_pack(&q.base, out, err);
}

/* Known here, or new: then its fork has to be confirmed. NULL with *rc. */
static rpc_rref *handle_for(rpc_ag *ag, const Braid__V1__AutogradRRef *w, bd_status *rc)
{
    uint64_t fork = ag_next_id(ag);
    (void)pthread_mutex_lock(&ag->lock);
    rpc_rref *r = *handle_find_locked(ag, w->creator_id, w->number);
    bool mine = strcmp(w->owner, ag->name) == 0;
    rpc_ag_peer *owner = mine ? NULL : ag_peer_find_locked(ag, w->owner);
    ag_value *v = mine ? *value_find_locked(ag, w->creator_id, w->number) : NULL;
    *rc = BD_OK;
    if (r != NULL) {
        r->refs++;
    } else if (mine ? v == NULL : owner == NULL) {
        *rc = BD_E_NOT_FOUND;
    } else {
        r = handle_alloc(ag, w->creator_id, w->number, owner);
        *rc = r == NULL ? BD_E_NOMEM : BD_OK;
    }
    if (r != NULL && r->refs == 1) { /* new */
        r->state = mine ? RREF_READY : RREF_FORKING;
        r->fork = mine ? 0 : fork;
        r->value = v;
        if (v != NULL) {
            v->n_refs++;
        }
        handle_insert_locked(ag, r);
    }
    (void)pthread_mutex_unlock(&ag->lock);
    return r;
}

static bd_status confirm(rpc_rref *r, bd_err *err)
{
    rpc_call_options opt = {.deadline_ms = r->ag->deadline_ms, .idempotent = true};
    bd_chain body = {0}, reply = {0};
    bd_status rc = ag_rref_pack_fork(r, &body, err);
    if (rc == BD_OK) {
        rc = rpc_call_sync(r->owner->ch, AG_SERVICE "Fork", &body, &opt, &reply, err);
    }
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
    if (rc == BD_OK) {
        ag_rref_made(r, RREF_READY, NULL);
    } else if (err != NULL) {
        ag_err_on_node(err, r->owner->name);
    }
    return rc;
}

bd_status ag_rref_import(rpc_ag *ag, const Braid__V1__AutogradRRef *w, rpc_rref **out, bd_err *err)
{
    bd_status rc = BD_OK;
    rpc_rref *r = handle_for(ag, w, &rc);
    if (r == NULL) {
        return bd_err_set(err, rc, "reference %" PRIu64 "/%" PRIu64 " of %.*s: %s", w->creator_id,
                          w->number, AG_NAME_MAX_BYTES, w->owner,
                          rc == BD_E_NOMEM ? bd_status_text(rc) : "no such value, or no such peer");
    }
    rc = rpc_rref_wait(r, err);
    if (rc == BD_OK && state_of(r, NULL) == RREF_FORKING) { /* two at once: the owner takes both */
        rc = confirm(r, err);
    }
    if (rc != BD_OK) {
        rpc_rref_unref(r);
        return rc;
    }
    *out = r;
    return BD_OK;
}

bd_status ag_rrefs_import(rpc_ag *ag, Braid__V1__AutogradTensor *const *w, size_t n, rpc_tensor *t,
                          bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < n && rc == BD_OK; i++) {
        if (w[i]->rref != NULL) {
            rpc_tensor_free(&t[i]); /* absent, if the sender is right */
            rc = ag_rref_import(ag, w[i]->rref, &t[i].rref, err);
        }
    }
    for (size_t i = 0; i < n && rc != BD_OK; i++) {
        rpc_rref_unref(t[i].rref);
        t[i].rref = NULL;
    }
    return rc;
}

void rpc_rref_count(rpc_ag *ag, rpc_rref_counts *out)
{
    (void)pthread_mutex_lock(&ag->lock);
    *out = (rpc_rref_counts){.values = ag->n_values, .forks = ag->n_forks, .handles = ag->n_rrefs};
    (void)pthread_mutex_unlock(&ag->lock);
}
