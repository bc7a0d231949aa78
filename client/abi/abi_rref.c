/* References: rows or bags that a server has read or summed, and keeps until they are dropped. The
 * client is a node of rpc/rpc_autograd.h that nobody can call. */
#include "base/log.h"
#include "base/mem.h"

#include "client/abi/abi_int.h"
#include "client/cl_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct braid_rref {
    braid_client *c;         /* NULL: it has been closed */
    braid_rref *prev, *next; /* of the client; under its lock */
    rpc_ag_ctx *_Atomic making;
    rpc_rref *r; /* one reference; NULL: the client has been closed */
    size_t n_elems;
    char owner[32];
};

/* ---- the node ---- */

/* Client lock held. */
static bd_status node_locked(braid_client *c, bd_err *err)
{
    char name[40];
    if (c->ag != NULL) {
        return BD_OK;
    }
    (void)snprintf(name, sizeof name, "client-%" PRIu64, cl_client_id(c->cl));
    const rpc_ag_options opt = {
        .name = name, .client_id = cl_client_id(c->cl), .deadline_ms = c->cl->ps_wait_ms};
    return rpc_ag_new(c->env, &opt, &c->ag, err);
}

/* Client lock held. The peer of this server, made when new: it keeps the address that the server
 * has now. */
static bd_status peer_locked(braid_client *c, size_t server, rpc_ag_peer **out, bd_err *err)
{
    char name[32];
    bd_status rc = node_locked(c, err);
    if (rc == BD_OK && c->peers == NULL) {
        c->peers = bd_calloc(cl_client_n_servers(c->cl), sizeof(rpc_ag_peer *));
        rc = c->peers != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "reference");
    }
    if (rc == BD_OK && c->peers[server] == NULL) {
        (void)snprintf(name, sizeof name, "ps-%zu", server);
        rc =
            rpc_ag_peer_new(c->ag, name, cl_client_link(c->cl, server)->channel, &c->peers[server]);
        rc = rc == BD_OK ? rc : bd_err_set(err, rc, "reference: server %zu", server);
    }
    if (rc == BD_OK) {
        *out = c->peers[server];
    }
    return rc;
}

uint32_t braid_key_server(const braid_client *client, uint64_t key)
{
    cl_map *map = cl_client_map(client->cl);
    uint32_t server = map->owner[cl_slot_of(key)];
    cl_map_unref(map);
    return server;
}

int braid_rref_keep_alive(braid_client *client, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    (void)pthread_mutex_lock(&client->lock);
    rpc_ag *ag = client->ag;
    (void)pthread_mutex_unlock(&client->lock);
    return abi_done(ag != NULL ? rpc_ag_keep_alive(ag, &e) : BD_OK, &e, err);
}

/* ---- making ---- */

static bd_status check_ids(const braid_client *c, const braid_feature *f, uint32_t server,
                           bd_err *err)
{
    bd_status rc = BD_OK;
    cl_map *map = cl_client_map(c->cl);
    for (size_t i = 0; i < f->n_ids && rc == BD_OK; i++) {
        uint32_t owner = map->owner[cl_slot_of(f->ids[i])];
        if (owner != server) {
            rc = bd_err_set(err, BD_E_INVALID,
                            "reference: key %" PRIu64 " is on server %u, not on server %u",
                            f->ids[i], owner, server);
        }
    }
    cl_map_unref(map);
    return rc;
}

static bd_status check(const braid_client *c, const braid_rref_options *o, bd_err *err)
{
    const braid_feature *f = o->feature;
    if (f == NULL || f->table == NULL || f->table->c != c) {
        return bd_err_set(err, BD_E_INVALID, "reference: no feature with a table of this client");
    }
    if (o->server >= cl_client_n_servers(c->cl)) {
        return bd_err_set(err, BD_E_INVALID, "reference: server %u of %zu", o->server,
                          cl_client_n_servers(c->cl));
    }
    if (f->weights != NULL || f->first_n != 0) {
        return bd_err_set(err, BD_E_INVALID, "reference: %s is not for references",
                          f->weights != NULL ? "weights" : "first_n");
    }
    if ((f->ids == NULL && f->n_ids > 0) ||
        (f->offsets == NULL && f->n_bags != 0 && f->n_bags != f->n_ids)) {
        return bd_err_set(err, BD_E_INVALID, "reference: %zu ids%s, %zu bags", f->n_ids,
                          f->ids == NULL ? " at NULL" : "", f->n_bags);
    }
    if (f->mode < BRAID_SUM || f->mode > BRAID_MAX) {
        return bd_err_set(err, BD_E_INVALID, "reference: mode %d", f->mode);
    }
    return check_ids(c, f, o->server, err);
}

/* Owned. What ps_server/ps_autograd.h calls it. */
static char *module_of(const braid_feature *f)
{
    static const char *const kinds[] = {"embedding_bag", "embedding_bag_mean",
                                        "embedding_bag_sqrtn", "embedding_bag_max"};
    return bd_strfmt("%s:%s", f->offsets == NULL ? "embedding" : kinds[f->mode], f->table->name);
}

static bd_status start(braid_rref *ref, rpc_ag_ctx *ctx, rpc_ag_peer *peer, const braid_feature *f,
                       bd_err *err)
{
    static const int64_t none[1];
    rpc_tensor in[2] = {{0}};
    size_t n_in = f->offsets == NULL ? 1 : 2;
    char *module = module_of(f);
    bd_status rc = module != NULL ? BD_OK : BD_E_NOMEM;
    if (rc == BD_OK) {
        rc = rpc_tensor_copy_of(NUM_I64, 1, &f->n_ids, f->ids != NULL ? (const void *)f->ids : none,
                                &in[0]);
    }
    if (rc == BD_OK && n_in == 2) {
        rc = rpc_tensor_copy_of(NUM_I64, 1, &f->n_bags, f->offsets, &in[1]);
    }
    rc = rc == BD_OK ? rpc_rref_remote(ctx, peer, module, in, n_in, &ref->r, err)
                     : bd_err_set(err, rc, "reference");
    rpc_tensors_free(in, 2);
    bd_free(module);
    return rc;
}

/* Client lock held. */
static void insert_locked(braid_client *c, braid_rref *ref)
{
    ref->c = c;
    ref->next = c->rrefs;
    if (ref->next != NULL) {
        ref->next->prev = ref;
    }
    c->rrefs = ref;
}

/* Client lock held. */
static bd_status make_locked(braid_client *c, const braid_rref_options *o, braid_rref *ref,
                             bd_err *err)
{
    rpc_ag_peer *peer = NULL;
    rpc_ag_ctx *ctx = NULL;
    bd_status rc = peer_locked(c, o->server, &peer, err);
    if (rc == BD_OK) {
        rc = rpc_ag_begin(c->ag, &ctx, err);
    }
    if (rc != BD_OK || ctx == NULL) {
        return rc;
    }
    rc = start(ref, ctx, peer, o->feature, err);
    if (rc != BD_OK) {
        (void)rpc_ag_end(ctx, NULL);
        return rc;
    }
    atomic_store(&ref->making, ctx);
    insert_locked(c, ref);
    return BD_OK;
}

int braid_rref_remote(braid_client *client, const braid_rref_options *options, braid_rref **ref,
                      braid_error *err)
{
    braid_rref_options o;
    bd_err e = BD_ERR_INIT;
    braid_rref *made = NULL;
    bd_status rc = abi_take_options(&o, sizeof o, options, "braid_rref_options", &e);
    if (rc == BD_OK) {
        rc = check(client, &o, &e);
    }
    if (rc == BD_OK) {
        made = bd_calloc(1, sizeof *made);
        rc = made != NULL ? BD_OK : bd_err_set(&e, BD_E_NOMEM, "reference");
    }
    if (rc != BD_OK || made == NULL) {
        return abi_done(rc, &e, err);
    }
    const braid_feature *f = o.feature;
    made->n_elems = (f->offsets == NULL ? f->n_ids : f->n_bags) * f->table->dim;
    (void)snprintf(made->owner, sizeof made->owner, "ps-%u", o.server);
    (void)pthread_mutex_lock(&client->lock);
    rc = make_locked(client, &o, made, &e);
    (void)pthread_mutex_unlock(&client->lock);
    if (rc != BD_OK) {
        bd_free(made);
        return abi_done(rc, &e, err);
    }
    *ref = made;
    return abi_done(BD_OK, &e, err);
}

/* ---- using ---- */

/* Waits until the server has answered; it then forgets what only a backward would need. What cannot
 * be told to it ends with the lease. */
static void end_making(braid_rref *ref)
{
    rpc_ag_ctx *ctx = atomic_exchange(&ref->making, NULL);
    if (ctx != NULL) {
        (void)rpc_ag_end(ctx, NULL);
    }
}

const char *braid_rref_owner(const braid_rref *ref)
{
    return ref->owner;
}

static bd_status fetch(braid_rref *ref, float *out, bd_err *err)
{
    rpc_ag_result got = {0};
    bd_status rc = rpc_rref_wait(ref->r, err);
    end_making(ref);
    if (rc == BD_OK) {
        rc = rpc_rref_to_here(NULL, ref->r, &got, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    const rpc_tensor *t = &got.out[0];
    if (got.n_out == 1 && t->buf != NULL && t->dtype == NUM_F32 && t->n_elems == ref->n_elems) {
        memcpy(out, rpc_tensor_f32(t), ref->n_elems * sizeof *out);
    } else {
        rc = bd_err_set(err, BD_E_CORRUPT, "reference: %s answers with another shape", ref->owner);
    }
    rpc_ag_result_free(&got);
    return rc;
}

int braid_rref_to_here(braid_rref *ref, float *out, size_t n_elems, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    if (ref->c == NULL) {
        return abi_done(bd_err_set(&e, BD_E_STATE, "reference: its client is closed"), &e, err);
    }
    if (n_elems != ref->n_elems) {
        return abi_done(bd_err_set(&e, BD_E_INVALID, "reference: room for %zu floats, it has %zu",
                                   n_elems, ref->n_elems),
                        &e, err);
    }
    return abi_done(fetch(ref, out, &e), &e, err);
}

/* ---- dropping ---- */

static void drop(braid_rref *ref)
{
    end_making(ref);
    rpc_rref_unref(ref->r);
    ref->r = NULL;
    ref->c = NULL;
}

void braid_rref_free(braid_rref *ref)
{
    if (ref == NULL) {
        return;
    }
    braid_client *c = ref->c;
    if (c != NULL) {
        (void)pthread_mutex_lock(&c->lock);
        if (ref->prev != NULL) {
            ref->prev->next = ref->next;
        } else {
            c->rrefs = ref->next;
        }
        if (ref->next != NULL) {
            ref->next->prev = ref->prev;
        }
        (void)pthread_mutex_unlock(&c->lock);
        drop(ref);
    }
    bd_free(ref);
}

void abi_rrefs_free(braid_client *c)
{
    for (braid_rref *ref = c->rrefs, *next; ref != NULL; ref = next) {
        next = ref->next;
        drop(ref);
    }
    rpc_ag_free(c->ag);
    bd_free(c->peers);
}
