/* The coordinator's keys, their terms and what ops were answered, and the facts that all of it is kept by. */
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_coord_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the map ---- */
ps_coord_entry **ps_coord_find(ps_coord_core *c, const char *key)
{
    ps_coord_entry **link = &c->buckets[bd_hash64(key, strlen(key), 0) % PS_COORD_BUCKETS];
    while (*link != NULL && strcmp((*link)->key, key) != 0) {
        link = &(*link)->next;
    }
    return link;
}

static void entry_free(ps_coord_entry *e)
{
    bd_free(e->key);
    bd_free(e->value);
    bd_free(e);
}

static ps_coord_entry *entry_new(const char *key, const void *val, size_t n)
{
    ps_coord_entry *e = bd_calloc(1, sizeof *e);
    if (e == NULL) {
        return NULL;
    }
    e->key = bd_strdup(key);
    e->value = bd_alloc(n);
    if (e->key == NULL || e->value == NULL) {
        entry_free(e);
        return NULL;
    }
    if (n != 0) {
        memcpy(e->value, val, n);
    }
    e->n_bytes = n;
    return e;
}

static void remove_at(ps_coord_core *c, ps_coord_entry **link)
{
    ps_coord_entry *e = *link;
    *link = e->next;
    c->bytes -= e->n_bytes + strlen(e->key);
    c->n_leases -= e->ttl_ms != 0;
    entry_free(e);
}

static void insert(ps_coord_core *c, ps_coord_entry *e)
{
    ps_coord_entry **link = ps_coord_find(c, e->key);
    if (*link != NULL) {
        remove_at(c, link);
        link = ps_coord_find(c, e->key);
    }
    c->bytes += e->n_bytes + strlen(e->key);
    e->next = NULL;
    *link = e;
}

void ps_coord_clear(ps_coord_core *c)
{
    for (size_t i = 0; i < PS_COORD_BUCKETS; i++) {
        for (ps_coord_entry *e = c->buckets[i], *next; e != NULL; e = next) {
            next = e->next;
            entry_free(e);
        }
    }
}

/* ---- what ops were answered ---- */
const ps_coord_memo *ps_coord_find_memo(const ps_coord_core *c, uint64_t op_id)
{
    /* A repeat comes soon after its first: look at the newest first. */
    for (uint64_t o = c->next_order; op_id != 0 && o-- > 1 && c->next_order - o <= PS_COORD_OPS;) {
        const ps_coord_memo *m = &c->memos[o % PS_COORD_OPS];
        if (m->op_id == op_id) {
            return m;
        }
    }
    return NULL;
}

/* ---- changes ---- */
/* Room for the facts of one op: its change, its memo, and the memo that falls out. */
typedef struct change {
    ps_fact facts[4];
    size_t n;
    char name[PS_COORD_MAX_KEY_BYTES + 8], ttl_name[PS_COORD_MAX_KEY_BYTES + 8];
    uint8_t ttl_bytes[8];
    char memo_name[32], old_name[32];
    uint8_t memo_bytes[16];
} change;

static void change_kv(change *ch, const char *key, const void *val, size_t n)
{
    (void)snprintf(ch->name, sizeof ch->name, "kv/%s", key);
    ch->facts[ch->n++] = (ps_fact){'C', ch->name, val, n};
}

/* The term of a key: the one it has now, and the one it is to have. */
static void change_ttl(change *ch, const char *key, uint32_t old_ms, uint32_t new_ms)
{
    if (old_ms == new_ms) {
        return;
    }
    (void)snprintf(ch->ttl_name, sizeof ch->ttl_name, "ttl/%s", key);
    ps_put_le64(ch->ttl_bytes, new_ms);
    ch->facts[ch->n++] = (ps_fact){'C', ch->ttl_name, new_ms != 0 ? ch->ttl_bytes : NULL,
                                   new_ms != 0 ? sizeof ch->ttl_bytes : 0};
}

static uint32_t ttl_of(const ps_coord_entry *e)
{
    return e == NULL ? 0 : e->ttl_ms;
}

static void change_memo(const ps_coord_core *c, change *ch, uint64_t op_id, uint64_t result)
{
    if (op_id == 0) {
        return;
    }
    const ps_coord_memo *old = &c->memos[c->next_order % PS_COORD_OPS];
    if (old->op_id != 0) {
        (void)snprintf(ch->old_name, sizeof ch->old_name, "op/%016" PRIx64, old->op_id);
        ch->facts[ch->n++] = (ps_fact){'C', ch->old_name, NULL, 0};
    }
    (void)snprintf(ch->memo_name, sizeof ch->memo_name, "op/%016" PRIx64, op_id);
    ps_put_le64(ch->memo_bytes, c->next_order);
    ps_put_le64(ch->memo_bytes + 8, result);
    ch->facts[ch->n++] = (ps_fact){'C', ch->memo_name, ch->memo_bytes, sizeof ch->memo_bytes};
}

static void keep_memo(ps_coord_core *c, uint64_t op_id, uint64_t result)
{
    if (op_id != 0) {
        c->memos[c->next_order % PS_COORD_OPS] = (ps_coord_memo){op_id, c->next_order, result};
        c->next_order++;
    }
}

bd_status ps_coord_store(ps_coord_core *c, ps_coord_op *op, const void *val, size_t n,
                         uint64_t result)
{
    change ch = {.n = 0};
    if (c->bytes + n + strlen(op->key) > PS_COORD_MAX_BYTES) {
        return bd_err_set(&op->err, BD_E_EXHAUSTED, "key \"%s\": the store is full", op->key);
    }
    ps_coord_entry *e = entry_new(op->key, val, n);
    if (e == NULL) {
        return bd_err_set(&op->err, BD_E_NOMEM, "key \"%s\": no memory", op->key);
    }
    change_kv(&ch, op->key, n == 0 ? "" : val, n);
    change_ttl(&ch, op->key, ttl_of(*ps_coord_find(c, op->key)), op->ttl_ms);
    change_memo(c, &ch, op->op_id, result);
    bd_status rc = c->write(c->user, ch.facts, ch.n, false, &op->err);
    if (rc != BD_OK) {
        entry_free(e);
        return rc;
    }
    insert(c, e);
    e->ttl_ms = op->ttl_ms;
    c->n_leases += e->ttl_ms != 0;
    keep_memo(c, op->op_id, result);
    return BD_OK;
}

bd_status ps_coord_erase(ps_coord_core *c, const char *key, bd_err *err)
{
    change ch = {.n = 0};
    ps_coord_entry **link = ps_coord_find(c, key);
    if (*link == NULL) {
        return BD_OK;
    }
    change_kv(&ch, key, NULL, 0);
    change_ttl(&ch, key, ttl_of(*link), 0);
    bd_status rc = c->write(c->user, ch.facts, ch.n, false, err);
    if (rc == BD_OK) {
        remove_at(c, link);
    }
    return rc;
}

bd_status ps_coord_remember(ps_coord_core *c, ps_coord_op *op, const ps_fact *fact, bool sync,
                            uint64_t result)
{
    change ch = {.n = 0};
    if (fact != NULL) {
        ch.facts[ch.n++] = *fact;
    }
    change_memo(c, &ch, op->op_id, result);
    bd_status rc = ch.n == 0 ? BD_OK : c->write(c->user, ch.facts, ch.n, sync, &op->err);
    if (rc == BD_OK) {
        keep_memo(c, op->op_id, result);
    }
    return rc;
}

/* ---- start ---- */
static bd_status load_memo(ps_coord_core *c, const char *hex, const uint8_t *val, bd_err *err)
{
    ps_coord_memo m = {strtoull(hex, NULL, 16), ps_get_le64(val), ps_get_le64(val + 8)};
    if (m.op_id == 0 || m.order == 0) {
        return bd_err_set(err, BD_E_CORRUPT, "coordinator: op \"%s\" is damaged", hex);
    }
    c->memos[m.order % PS_COORD_OPS] = m;
    c->next_order = m.order >= c->next_order ? m.order + 1 : c->next_order;
    return BD_OK;
}

static bd_status load_server(ps_coord_core *c, const char *index, const uint8_t *val, size_t n,
                             bd_err *err)
{
    unsigned long i = strtoul(index, NULL, 10);
    if (i >= c->n_servers) { /* the cluster was larger: its old map must not pass for the new one */
        c->n_stale = i + 1 > c->n_stale ? (uint32_t)i + 1 : c->n_stale;
        return BD_OK;
    }
    c->servers[i] = bd_strfmt("%.*s", (int)n, (const char *)val);
    return c->servers[i] != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "coordinator: no memory");
}

/* Facts come in any order: a term without a key is a key without a value until that comes. */
static bd_status load_ttl(ps_coord_core *c, const char *key, uint64_t ttl_ms)
{
    ps_coord_entry *e = *ps_coord_find(c, key);
    if (e == NULL && ttl_ms != 0) {
        e = entry_new(key, "", 0);
        if (e == NULL) {
            return BD_E_NOMEM;
        }
        insert(c, e);
    }
    if (ttl_ms != 0) {
        c->n_leases += e->ttl_ms == 0;
        e->ttl_ms = (uint32_t)ttl_ms;
    }
    return BD_OK;
}

bd_status ps_coord_core_load(ps_coord_core *c, const char *name, const uint8_t *val, size_t n_bytes,
                             bd_err *err)
{
    if (strncmp(name, "kv/", 3) == 0) {
        const ps_coord_entry *old = *ps_coord_find(c, name + 3);
        uint32_t ttl_ms = ttl_of(old); /* its term came first */
        ps_coord_entry *e = entry_new(name + 3, val, n_bytes);
        if (e == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "coordinator: no memory");
        }
        insert(c, e);
        return load_ttl(c, name + 3, ttl_ms);
    }
    if (strncmp(name, "op/", 3) == 0 && n_bytes == 16) {
        return load_memo(c, name + 3, val, err);
    }
    if (strncmp(name, "ttl/", 4) == 0 && n_bytes == 8) {
        return load_ttl(c, name + 4, ps_get_le64(val));
    }
    if (strncmp(name, "server/", 7) == 0) {
        return load_server(c, name + 7, val, n_bytes, err);
    }
    if (strcmp(name, "client") == 0 && n_bytes == 8) {
        c->last_client = ps_get_le64(val);
        return BD_OK;
    }
    if (strcmp(name, "map") == 0 && n_bytes == 8) {
        c->map_epoch = ps_get_le64(val);
        return BD_OK;
    }
    return bd_err_set(err, BD_E_CORRUPT, "coordinator: unknown fact \"%s\" of %zu bytes", name,
                      n_bytes);
}
