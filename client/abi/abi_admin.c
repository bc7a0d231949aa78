/* Checkpoints, hash, numbers of the servers. */
#include "base/mem.h"

#include "client/abi/abi_int.h"
#include "client/cl_int.h"

#include <braid/v1/parameter_server.pb-c.h>
#include <string.h>

int braid_checkpoint(braid_client *client, const char *name, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    (void)pthread_mutex_lock(&client->lock);
    bd_status rc = abi_wait(client, &e);
    if (rc == BD_OK) {
        rc = cl_checkpoint(client->cl, name, abi_last_step(client), &e);
    }
    (void)pthread_mutex_unlock(&client->lock);
    return abi_done(rc, &e, err);
}

int braid_checkpoint_delete(braid_client *client, const char *name, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    (void)pthread_mutex_lock(&client->lock);
    bd_status rc = cl_checkpoint_delete(client->cl, name, &e);
    (void)pthread_mutex_unlock(&client->lock);
    return abi_done(rc, &e, err);
}

int braid_param_hash(braid_client *client, uint64_t *hash, uint64_t *n_rows, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    (void)pthread_mutex_lock(&client->lock);
    bd_status rc = abi_wait(client, &e);
    if (rc == BD_OK) {
        rc = cl_param_hash(client->cl, hash, n_rows, &e);
    }
    (void)pthread_mutex_unlock(&client->lock);
    return abi_done(rc, &e, err);
}

/* One block: the entries, then their names. */
static bd_status list_stats(ProtobufCMessage *const *replies, size_t n_servers, braid_stat **out,
                            size_t *n_out, bd_err *err)
{
    size_t n = 0, n_chars = 0, at = 0;
    for (size_t s = 0; s < n_servers; s++) {
        const Braid__V1__StatsReply *r = (const void *)replies[s];
        for (size_t i = 0; i < r->n_stats; i++) {
            n++;
            n_chars += strlen(r->stats[i]->name) + 1;
        }
    }
    braid_stat *stats = bd_calloc(1, n * sizeof *stats + n_chars + 1);
    if (stats == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "stats");
    }
    char *text = (char *)(stats + n);
    for (size_t s = 0; s < n_servers; s++) {
        const Braid__V1__StatsReply *r = (const void *)replies[s];
        for (size_t i = 0; i < r->n_stats; i++) {
            size_t len = strlen(r->stats[i]->name) + 1;
            memcpy(text, r->stats[i]->name, len);
            stats[at++] =
                (braid_stat){.server = (uint32_t)s, .name = text, .value = r->stats[i]->value};
            text += len;
        }
    }
    *out = stats;
    *n_out = n;
    return BD_OK;
}

int braid_stats(braid_client *client, braid_stat **stats, size_t *n, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    Braid__V1__StatsRequest req;
    size_t n_servers = cl_client_n_servers(client->cl);
    bd_status rc = BD_E_NOMEM;
    ProtobufCMessage **replies = bd_calloc(n_servers, sizeof(ProtobufCMessage *));
    if (replies == NULL) {
        return abi_done(bd_err_set(&e, rc, "stats"), &e, err);
    }
    braid__v1__stats_request__init(&req);
    (void)pthread_mutex_lock(&client->lock);
    rc = cl_ask_all(client->cl, CL_SERVICE "Stats", &req.base, &braid__v1__stats_reply__descriptor,
                    replies, &e);
    (void)pthread_mutex_unlock(&client->lock);
    if (rc == BD_OK) {
        rc = list_stats(replies, n_servers, stats, n, &e);
    }
    for (size_t i = 0; i < n_servers; i++) {
        px_unpacked_free(replies[i]);
    }
    bd_free(replies);
    return abi_done(rc, &e, err);
}

void braid_stats_free(braid_stat *stats)
{
    bd_free(stats);
}
