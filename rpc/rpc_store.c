/* Which kind of store a url names, and what every kind can do with nothing but keys and values. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "rpc/rpc_store_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define CLIENTS_KEY "braid/clients"
#define MAP_KEY     "braid/map"
#define ETCD_SCHEME "etcd://"

enum { FIRST_TELL_MS = 500, TELL_MS = 5000, MAX_SERVERS = RPC_N_SLOTS };

void rpc_slots_of(uint32_t index, uint32_t servers, uint32_t *first, uint32_t *end)
{
    *first = (uint32_t)((uint64_t)index * RPC_N_SLOTS / servers);
    *end = (uint32_t)(((uint64_t)index + 1) * RPC_N_SLOTS / servers);
}

void rpc_shard_map_deinit(rpc_shard_map *m)
{
    for (size_t i = 0; m->servers != NULL && i < m->n_servers; i++) {
        bd_free(m->servers[i]);
    }
    bd_free(m->servers);
    bd_free(m->slot_owner);
    *m = (rpc_shard_map){0};
}

uint64_t rpc_store_op_id(void)
{
    uint64_t x = 0;
    if (getrandom(&x, sizeof x, 0) != (ssize_t)sizeof x) {
        x = (uint64_t)bd_wall_ns() ^ (uint64_t)bd_mono_ns() << 20 ^ (uint64_t)getpid() << 44;
    }
    return bd_mix64(x) | 1;
}

/* ---- trouble ---- */
static bool may_pass(bd_status rc)
{
    return rc == BD_E_UNAVAILABLE || rc == BD_E_PEER_LOST || rc == BD_E_CANCELLED ||
           rc == BD_E_TIMEOUT || rc == BD_E_EXHAUSTED;
}

bool rpc_store_again(rpc_store_trouble *t, const char *who, int64_t wait_ms, bd_err *err)
{
    int64_t now = bd_mono_ns();
    unsigned doublings = t->n_failures < 6 ? t->n_failures : 6;
    if (!may_pass(err->code)) {
        return false;
    }
    t->since_ns = t->since_ns == 0 ? now : t->since_ns;
    int64_t for_ms = (now - t->since_ns) / BD_NS_PER_MS;
    if (for_ms >= wait_ms) {
        char why[sizeof err->text];
        (void)snprintf(why, sizeof why, "%s", bd_err_text(err));
        (void)bd_err_set(err, BD_E_UNAVAILABLE, "%s: waited %" PRId64 " ms: %s", who, for_ms, why);
        return false;
    }
    if (for_ms >= FIRST_TELL_MS && now - t->told_ns >= TELL_MS * BD_NS_PER_MS) {
        t->told_ns = now;
        BD_LOG(WARN, "waiting for the cluster's store", "server", who, "for_ms", for_ms, "why",
               bd_err_text(err));
    }
    t->n_failures++;
    int64_t most = 10LL << doublings; /* 10 to 500 ms, each between half and whole */
    most = most < 500 ? most : 500;
    bd_sleep_ms(most / 2 + (int64_t)(rpc_store_op_id() % (uint64_t)(most / 2 + 1)));
    return true;
}

/* ---- over keys and values ---- */
static bd_status kv_client_id(rpc_store *s, uint64_t op_id, const char *name, uint64_t *id,
                              bd_err *err)
{
    int64_t after = 0;
    (void)name;
    bd_status rc = s->add_once(s, op_id, CLIENTS_KEY, 1, &after, err);
    if (rc == BD_OK) {
        *id = (uint64_t)after;
    }
    return rc;
}

/* One map as text: strings point into `text`, which is cut up. */
typedef struct map_text {
    uint64_t epoch;
    uint32_t n_servers;
    char **servers; /* owned array */
} map_text;

static bd_status map_parse(char *text, map_text *out, bd_err *err)
{
    char *at = text, *end = NULL;
    *out = (map_text){.epoch = strtoull(at, &end, 10)};
    out->n_servers = (uint32_t)strtoul(end, &at, 10);
    bool ok =
        at > end && end > text && *at == ' ' && out->n_servers > 0 && out->n_servers <= MAX_SERVERS;
    out->servers = ok ? bd_calloc(out->n_servers, sizeof(char *)) : NULL;
    if (ok && out->servers == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "shard map");
    }
    uint32_t n = 0;
    for (char *word = ok ? strtok_r(at + 1, ",", &end) : NULL; word != NULL && n < out->n_servers;
         word = strtok_r(NULL, ",", &end)) {
        out->servers[n++] = word;
    }
    if (!ok || n != out->n_servers) {
        bd_free(out->servers);
        out->servers = NULL;
        return bd_err_set(err, BD_E_CORRUPT, "key %s is not a shard map", MAP_KEY);
    }
    return BD_OK;
}

/* The text of `old` (n_servers 0: none) with e in it. NULL: no memory. */
static char *map_with(const map_text *old, const rpc_server_entry *e)
{
    char *text = bd_strfmt("%" PRIu64 " %u ", old->epoch + 1, e->n_servers);
    for (uint32_t i = 0; text != NULL && i < e->n_servers; i++) {
        const char *address = i == e->index ? e->address
                              : old->servers != NULL && old->n_servers == e->n_servers
                                  ? old->servers[i]
                                  : "-";
        char *longer = bd_strfmt("%s%s%s", text, i > 0 ? "," : "", address);
        bd_free(text);
        text = longer;
    }
    return text;
}

static bd_status check_entry(const rpc_server_entry *e, bd_err *err)
{
    bool ok = e->n_servers > 0 && e->n_servers <= MAX_SERVERS && e->index < e->n_servers &&
              e->address != NULL && e->address[0] != '\0' && strpbrk(e->address, ", ") == NULL;
    return ok ? BD_OK
              : bd_err_set(err, BD_E_INVALID, "server %u of %u with address \"%s\"", e->index,
                           e->n_servers, e->address == NULL ? "" : e->address);
}

/* One try; *done: it stands in the map. */
static bd_status try_enter(rpc_store *s, const rpc_server_entry *e, uint64_t *epoch, bool *done,
                           bd_err *err)
{
    char *text = NULL, *cut = NULL, *next = NULL;
    map_text old = {0};
    bd_status rc = s->kv->get(s->kv, MAP_KEY, 0, &text, NULL, err);
    if (rc == BD_OK) {
        cut = bd_strdup(text);
        rc = cut == NULL ? bd_err_set(err, BD_E_NOMEM, "shard map") : map_parse(cut, &old, err);
    } else if (rc == BD_E_NOT_FOUND) {
        rc = BD_OK;
    }
    if (rc == BD_OK && old.n_servers != 0 && old.n_servers != e->n_servers && e->index != 0) {
        rc = bd_err_set(err, BD_E_UNAVAILABLE, "server %u says %u servers, server 0 says %u",
                        e->index, e->n_servers, old.n_servers);
    }
    if (rc == BD_OK && old.servers != NULL && old.n_servers == e->n_servers &&
        strcmp(old.servers[e->index], e->address) == 0) {
        *epoch = old.epoch;
        *done = true;
    } else if (rc == BD_OK) {
        next = map_with(&old, e);
        rc = next == NULL ? bd_err_set(err, BD_E_NOMEM, "shard map")
                          : s->kv->compare_set(s->kv, MAP_KEY, text, next, done, err);
        *epoch = old.epoch + 1;
    }
    bd_free(old.servers);
    bd_free(next);
    bd_free(cut);
    bd_free(text);
    return rc;
}

static bd_status kv_register(rpc_store *s, const rpc_server_entry *e, uint64_t *epoch, bd_err *err)
{
    bool done = false;
    bd_status rc = check_entry(e, err);
    while (rc == BD_OK && !done) {
        rc = try_enter(s, e, epoch, &done, err);
    }
    return rc;
}

static uint32_t first_missing(const map_text *m, uint32_t *n)
{
    uint32_t first = 0;
    *n = 0;
    for (uint32_t i = m->servers == NULL ? 0 : m->n_servers; i-- > 0;) {
        if (strcmp(m->servers[i], "-") == 0) {
            first = i;
            ++*n;
        }
    }
    return first;
}

static bd_status map_take(const map_text *m, rpc_shard_map *out, bd_err *err)
{
    *out = (rpc_shard_map){.epoch = m->epoch, .n_servers = m->n_servers, .n_slots = RPC_N_SLOTS};
    out->servers = bd_calloc(m->n_servers, sizeof(char *));
    out->slot_owner = bd_calloc(RPC_N_SLOTS, sizeof *out->slot_owner);
    bool ok = out->servers != NULL && out->slot_owner != NULL;
    for (uint32_t i = 0; ok && m->servers != NULL && i < m->n_servers; i++) {
        uint32_t first = 0, end = 0;
        rpc_slots_of(i, m->n_servers, &first, &end);
        for (uint32_t slot = first; slot < end; slot++) {
            out->slot_owner[slot] = i;
        }
        out->servers[i] = bd_strdup(m->servers[i]);
        ok = out->servers[i] != NULL;
    }
    if (!ok) {
        rpc_shard_map_deinit(out);
        return bd_err_set(err, BD_E_NOMEM, "shard map");
    }
    return BD_OK;
}

/* What `text` (owned here) says: BD_AGAIN: nothing newer, or not whole; why then tells. */
static bd_status map_look(char *text, uint64_t newer_than, rpc_shard_map *out, bd_err *why)
{
    map_text m = {0};
    uint32_t n_missing = 0;
    bd_status rc = BD_AGAIN;
    if (text == NULL) {
        (void)bd_err_set(why, BD_E_TIMEOUT, "no server has registered");
    } else {
        rc = map_parse(text, &m, why);
    }
    if (text != NULL && rc == BD_OK) {
        uint32_t first = first_missing(&m, &n_missing);
        if (n_missing > 0) {
            rc = BD_AGAIN;
            (void)bd_err_set(why, BD_E_TIMEOUT,
                             "%u of %u servers have not registered, first: server %u", n_missing,
                             m.n_servers, first);
        } else if (m.epoch <= newer_than) {
            rc = BD_AGAIN;
            (void)bd_err_set(why, BD_E_TIMEOUT, "the shard map is still at epoch %" PRIu64,
                             m.epoch);
        } else {
            rc = map_take(&m, out, why);
        }
    }
    bd_free(m.servers);
    return rc;
}

static bd_status kv_shard_map(rpc_store *s, uint64_t newer_than, int64_t timeout_ms,
                              rpc_shard_map *out, bd_err *err)
{
    int64_t end_ns = bd_mono_ns() + timeout_ms * BD_NS_PER_MS;
    char *text = NULL, *known = NULL;
    bd_err why = BD_ERR_INIT;
    bd_status rc = s->kv->get(s->kv, MAP_KEY, 0, &text, NULL, &why);
    rc = rc == BD_E_NOT_FOUND ? BD_OK : rc;
    while (rc == BD_OK) {
        bd_free(known);
        known = text == NULL ? NULL : bd_strdup(text); /* look cuts it up */
        if (text != NULL && known == NULL) {
            rc = bd_err_set(&why, BD_E_NOMEM, "shard map");
            break;
        }
        rc = map_look(text, newer_than, out, &why);
        bd_free(text);
        text = NULL;
        int64_t left_ms = (end_ns - bd_mono_ns()) / BD_NS_PER_MS;
        if (rc != BD_AGAIN) {
            break;
        }
        rc = left_ms <= 0 ? BD_E_TIMEOUT : BD_OK;
        if (rc == BD_OK) {
            bd_err ignored = BD_ERR_INIT;
            rc = s->kv->get_other(s->kv, MAP_KEY, known, left_ms, &text, &ignored);
            why = rc == BD_OK || rc == BD_E_TIMEOUT ? why : ignored;
        }
    }
    bd_free(text);
    bd_free(known);
    if (rc != BD_OK && err != NULL) {
        *err = why;
        err->code = rc;
    }
    return rc;
}

void rpc_store_over_kv(rpc_store *s)
{
    s->client_id = kv_client_id;
    s->register_server = kv_register;
    s->shard_map = kv_shard_map;
}

/* ---- by url ---- */
bool rpc_store_is_etcd(const char *url)
{
    return strncmp(url, ETCD_SCHEME, strlen(ETCD_SCHEME)) == 0;
}

bd_status rpc_store_open(rpc_env *env, const char *url, const rpc_store_options *opt,
                         rpc_store **out, bd_err *err)
{
    rpc_store_options o = *opt;
    o.wait_ms = o.wait_ms > 0 ? o.wait_ms : 120000;
    if (strchr(url, '@') != NULL) { /* not shown: there may be a password in it */
        return bd_err_set(err, BD_E_USAGE,
                          "store: no user in the address: set etcd_user and etcd_password_file");
    }
    if (rpc_store_is_etcd(url)) {
        return rpc_etcd_new(env, url + strlen(ETCD_SCHEME), &o, out, err);
    }
    if (strstr(url, "://") != NULL || url[0] == '\0') {
        return bd_err_set(err, BD_E_USAGE,
                          "store \"%.200s\": neither HOST:PORT of server 0 nor "
                          "etcd://HOST:PORT[,HOST:PORT...]",
                          url);
    }
    return rpc_store_coord_new(env, url, &o, out, err);
}

void rpc_store_free(rpc_store *s)
{
    if (s != NULL) {
        s->free(s);
    }
}
