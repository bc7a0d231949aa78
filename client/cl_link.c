/* The shard map and the links to the servers it names. */
#include "base/clock.h"
#include "base/mem.h"

#include "client/cl_int.h"

#include <stdio.h>
#include <string.h>

cl_link *cl_link_new(rpc_env *env, const char *name, const char *address, bd_err *err)
{
    cl_link *link = bd_calloc(1, sizeof *link);
    if (link == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "link to %s", address);
        return NULL;
    }
    for (size_t i = 0; i < CL_N_LANES; i++) {
        cl_lane_init(&link->lanes[i]);
    }
    link->stats = cl_stats_of(name);
    link->address = bd_strdup(address);
    link->name = bd_strfmt("%s (%s)", name, address);
    rpc_channel_options opt = {.name = link->name, .allow_insecure = true};
    if (link->address == NULL || link->name == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "link to %s", address);
    } else if (rpc_channel_new(env, address, &opt, &link->channel, err) == BD_OK) {
        return link;
    }
    cl_link_free(link);
    return NULL;
}

void cl_link_free(cl_link *link)
{
    if (link == NULL) {
        return;
    }
    if (atomic_exchange(&link->is_down, false)) { /* nobody waits for it any more */
        cl_stats_up(link->stats, bd_mono_ns() - atomic_load(&link->down_since_ns));
    }
    if (link->channel != NULL) {
        rpc_channel_free(link->channel); /* streams end: no callback after this */
    }
    for (size_t i = 0; i < CL_N_LANES; i++) {
        cl_lane_deinit(&link->lanes[i]);
    }
    bd_free(link->address);
    bd_free(link->name);
    bd_free(link);
}

void cl_links_free(cl_client *c)
{
    while (c->all_links != NULL) {
        cl_link *link = c->all_links;
        c->all_links = link->older;
        cl_link_free(link);
    }
    bd_free(c->links);
    c->links = NULL;
}

void cl_links_cut(cl_client *c, int lane)
{
    (void)pthread_mutex_lock(&c->lock);
    cl_link *link = c->all_links; /* grows at its head only */
    (void)pthread_mutex_unlock(&c->lock);
    for (; link != NULL; link = link->older) {
        cl_lane_cut(&link->lanes[lane]);
    }
}

cl_map *cl_client_map(cl_client *c)
{
    (void)pthread_mutex_lock(&c->lock);
    cl_map *m = cl_map_ref(c->map);
    (void)pthread_mutex_unlock(&c->lock);
    return m;
}

cl_link *cl_client_link(cl_client *c, size_t server_idx)
{
    (void)pthread_mutex_lock(&c->lock);
    cl_link *link = c->links[server_idx];
    (void)pthread_mutex_unlock(&c->lock);
    return link;
}

/* Links for the addresses of the map that have none yet; c->lock held. Old links stay: somebody may
 * be sending on them. */
static bd_status connect_locked(cl_client *c, const cl_map *map, bd_err *err)
{
    if (c->links == NULL) {
        c->links = bd_calloc(map->n_servers, sizeof(void *));
        if (c->links == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "links to %zu servers", map->n_servers);
        }
    }
    for (size_t i = 0; i < map->n_servers; i++) {
        char name[32];
        if (c->links[i] != NULL && strcmp(c->links[i]->address, map->addresses[i]) == 0) {
            continue;
        }
        (void)snprintf(name, sizeof name, "ps-%zu", i);
        cl_link *link = cl_link_new(c->env, name, map->addresses[i], err);
        if (link == NULL) {
            return err != NULL ? err->code : BD_E_NOMEM;
        }
        link->older = c->all_links;
        c->all_links = link;
        c->links[i] = link;
    }
    return BD_OK;
}

static bd_status install(cl_client *c, cl_map *map, bd_err *err)
{
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&c->lock);
    if (c->map != NULL && c->map->n_servers != map->n_servers) {
        rc = bd_err_set(err, BD_E_MISMATCH, "the shard map went from %zu to %zu servers",
                        c->map->n_servers, map->n_servers);
    } else if (c->map == NULL || map->epoch > c->map->epoch) {
        c->n_servers = map->n_servers;
        rc = connect_locked(c, map, err);
        if (rc == BD_OK) {
            cl_map *old = c->map;
            c->map = cl_map_ref(map);
            cl_map_unref(old);
        }
    }
    (void)pthread_mutex_unlock(&c->lock);
    return rc;
}

bd_status cl_map_refresh(cl_client *c, uint64_t newer_than, int64_t wait_ms, bd_err *err)
{
    rpc_shard_map got = {0};
    cl_map *map = NULL;
    bd_err local = BD_ERR_INIT;
    bool is_first = c->n_servers == 0;
    bd_status rc = c->store->shard_map(c->store, newer_than, wait_ms, &got, &local);
    if (rc == BD_E_TIMEOUT && !is_first) {
        return BD_OK; /* nothing newer */
    }
    if (rc == BD_OK) {
        rc = cl_map_new(got.epoch, (const char *const *)got.servers, got.n_servers, got.slot_owner,
                        got.n_slots, &map, &local);
    }
    if (rc == BD_OK) {
        rc = install(c, map, &local);
    }
    if (rc != BD_OK && err != NULL) {
        *err = local;
    }
    cl_map_unref(map);
    rpc_shard_map_deinit(&got);
    return rc;
}
