#include "base/assert.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_coord.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_BUCKETS 4096u

typedef struct entry {
    struct entry *next;
    char *key;      /* owned */
    uint8_t *value; /* owned */
    size_t n_bytes;
    uint32_t ttl_ms;  /* 0: stays */
    int64_t until_ns; /* 0: the term begins with the next tick */
} entry;

/* What an op with this id was answered. */
typedef struct memo {
    uint64_t op_id, order, result;
} memo;

struct ps_coord_core {
    entry *buckets[N_BUCKETS];
    size_t bytes;
    size_t n_leases; /* entries that run out */
    memo *memos;     /* owned ring of PS_COORD_OPS by order */
    uint64_t next_order;
    uint64_t last_client;
    uint64_t map_epoch;
    uint32_t n_servers;
    char **servers;   /* owned [n_servers]; NULL: not registered */
    uint32_t n_stale; /* facts name so many servers (0: as many as there are, or fewer): the next
                       * address makes a new map without them */
    ps_coord_op *parked;
    ps_coord_write_fn write;
    void *user;
};

ps_coord_core *ps_coord_core_new(uint32_t n_servers, ps_coord_write_fn write, void *user)
{
    ps_coord_core *c = bd_calloc(1, sizeof *c);
    if (c == NULL) {
        return NULL;
    }
    c->n_servers = n_servers;
    c->write = write;
    c->user = user;
    c->next_order = 1;
    c->memos = bd_calloc(PS_COORD_OPS, sizeof *c->memos);
    c->servers = bd_calloc(n_servers, sizeof *c->servers);
    if (c->memos == NULL || c->servers == NULL) {
        ps_coord_core_free(c);
        return NULL;
    }
    return c;
}

void ps_coord_core_free(ps_coord_core *c)
{
    if (c == NULL) {
        return;
    }
    BD_ASSERT(c->parked == NULL);
    for (size_t i = 0; i < N_BUCKETS; i++) {
        for (entry *e = c->buckets[i], *next; e != NULL; e = next) {
            next = e->next;
            bd_free(e->key);
            bd_free(e->value);
            bd_free(e);
        }
    }
    for (uint32_t i = 0; c->servers != NULL && i < c->n_servers; i++) {
        bd_free(c->servers[i]);
    }
    bd_free(c->servers);
    bd_free(c->memos);
    bd_free(c);
}

/* ---- the map ---- */
static entry **find(ps_coord_core *c, const char *key)
{
    entry **link = &c->buckets[bd_hash64(key, strlen(key), 0) % N_BUCKETS];
    while (*link != NULL && strcmp((*link)->key, key) != 0) {
        link = &(*link)->next;
    }
    return link;
}

static entry *entry_new(const char *key, const void *val, size_t n)
{
    entry *e = bd_calloc(1, sizeof *e);
    if (e == NULL) {
        return NULL;
    }
    e->key = bd_strdup(key);
    e->value = bd_alloc(n);
    if (e->key == NULL || e->value == NULL) {
        bd_free(e->key);
        bd_free(e->value);
        bd_free(e);
        return NULL;
    }
    if (n != 0) {
        memcpy(e->value, val, n);
    }
    e->n_bytes = n;
    return e;
}

static void remove_at(ps_coord_core *c, entry **link)
{
    entry *e = *link;
    *link = e->next;
    c->bytes -= e->n_bytes + strlen(e->key);
    c->n_leases -= e->ttl_ms != 0;
    bd_free(e->key);
    bd_free(e->value);
    bd_free(e);
}

static void insert(ps_coord_core *c, entry *e)
{
    entry **link = find(c, e->key);
    if (*link != NULL) {
        remove_at(c, link);
        link = find(c, e->key);
    }
    c->bytes += e->n_bytes + strlen(e->key);
    e->next = NULL;
    *link = e;
}

/* ---- answers ---- */
static void finish(ps_coord_op *op, bd_status rc)
{
    op->rc = rc;
    op->done(op);
}

static bd_status number_of(const entry *e, int64_t *out, bd_err *err)
{
    char text[32], *end = NULL;
    *out = 0;
    if (e == NULL) {
        return BD_OK;
    }
    if (e->n_bytes > 0 && e->n_bytes < sizeof text) {
        memcpy(text, e->value, e->n_bytes);
        text[e->n_bytes] = '\0';
        errno = 0;
        *out = strtoll(text, &end, 10);
        if (errno == 0 && end == text + e->n_bytes) {
            return BD_OK;
        }
    }
    return bd_err_set(err, BD_E_STATE, "the value of key \"%s\" is not a number", e->key);
}

static const memo *find_memo(const ps_coord_core *c, uint64_t op_id)
{
    /* A repeat comes soon after its first: look at the newest first. */
    for (uint64_t o = c->next_order; op_id != 0 && o-- > 1 && c->next_order - o <= PS_COORD_OPS;) {
        const memo *m = &c->memos[o % PS_COORD_OPS];
        if (m->op_id == op_id) {
            return m;
        }
    }
    return NULL;
}

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

static uint32_t ttl_of(const entry *e)
{
    return e == NULL ? 0 : e->ttl_ms;
}

static void change_memo(const ps_coord_core *c, change *ch, uint64_t op_id, uint64_t result)
{
    if (op_id == 0) {
        return;
    }
    const memo *old = &c->memos[c->next_order % PS_COORD_OPS];
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
        c->memos[c->next_order % PS_COORD_OPS] = (memo){op_id, c->next_order, result};
        c->next_order++;
    }
}

/* Writes key = val with the op's memo, then changes the map. */
static bd_status store(ps_coord_core *c, ps_coord_op *op, const void *val, size_t n,
                       uint64_t result)
{
    change ch = {.n = 0};
    if (c->bytes + n + strlen(op->key) > PS_COORD_MAX_BYTES) {
        return bd_err_set(&op->err, BD_E_EXHAUSTED, "key \"%s\": the store is full", op->key);
    }
    entry *e = entry_new(op->key, val, n);
    if (e == NULL) {
        return bd_err_set(&op->err, BD_E_NOMEM, "key \"%s\": no memory", op->key);
    }
    change_kv(&ch, op->key, n == 0 ? "" : val, n);
    change_ttl(&ch, op->key, ttl_of(*find(c, op->key)), op->ttl_ms);
    change_memo(c, &ch, op->op_id, result);
    bd_status rc = c->write(c->user, ch.facts, ch.n, false, &op->err);
    if (rc != BD_OK) {
        bd_free(e->key);
        bd_free(e->value);
        bd_free(e);
        return rc;
    }
    insert(c, e);
    e->ttl_ms = op->ttl_ms;
    c->n_leases += e->ttl_ms != 0;
    keep_memo(c, op->op_id, result);
    return BD_OK;
}

/* The same value for the same term again is a sign of life and nothing else. */
static bd_status set(ps_coord_core *c, ps_coord_op *op)
{
    entry *e = *find(c, op->key);
    if (op->ttl_ms != 0 && e != NULL && e->ttl_ms == op->ttl_ms && e->n_bytes == op->val_bytes &&
        (e->n_bytes == 0 || memcmp(e->value, op->val, e->n_bytes) == 0)) {
        e->until_ns = 0;
        return BD_OK;
    }
    return store(c, op, op->val, op->val_bytes, 0);
}

/* ---- ops ---- */
static bd_status check_key(ps_coord_op *op)
{
    size_t n = op->key == NULL ? 0 : strlen(op->key);
    bool ok = n > 0 && n <= PS_COORD_MAX_KEY_BYTES;
    for (size_t i = 0; ok && i < n; i++) {
        ok = op->key[i] > ' ' - 1 && op->key[i] < 127;
    }
    if (!ok) {
        return bd_err_set(&op->err, BD_E_INVALID, "a key is 1..%u bytes of printable ASCII",
                          PS_COORD_MAX_KEY_BYTES);
    }
    if (op->val_bytes > PS_COORD_MAX_VALUE_BYTES) {
        return bd_err_set(&op->err, BD_E_INVALID, "key \"%s\": a value of %zu bytes (at most %u)",
                          op->key, op->val_bytes, PS_COORD_MAX_VALUE_BYTES);
    }
    return BD_OK;
}

static bd_status add(ps_coord_core *c, ps_coord_op *op)
{
    int64_t now = 0, after = 0;
    char text[32];
    const memo *m = find_memo(c, op->op_id);
    if (m != NULL) {
        op->number = (int64_t)m->result;
        return BD_OK;
    }
    bd_status rc = number_of(*find(c, op->key), &now, &op->err);
    if (rc != BD_OK || op->number == 0) {
        op->number = now;
        return rc;
    }
    if (__builtin_add_overflow(now, op->number, &after)) {
        return bd_err_set(&op->err, BD_E_INVALID, "key \"%s\": %" PRId64 " + %" PRId64 " overflows",
                          op->key, now, op->number);
    }
    int n = snprintf(text, sizeof text, "%" PRId64, after);
    rc = store(c, op, text, (size_t)n, (uint64_t)after);
    op->number = after;
    return rc;
}

static bool is_value(const entry *e, const ps_coord_op *op)
{
    return e->n_bytes == op->expected_bytes &&
           (e->n_bytes == 0 || memcmp(e->value, op->expected, e->n_bytes) == 0);
}

static bd_status swap(ps_coord_core *c, ps_coord_op *op)
{
    const memo *m = find_memo(c, op->op_id);
    const entry *e = *find(c, op->key);
    if (m != NULL) {
        op->swapped = m->result != 0;
        return BD_OK;
    }
    op->swapped = op->expect_absent ? e == NULL : e != NULL && is_value(e, op);
    if (op->swapped) {
        bd_status rc = store(c, op, op->val, op->val_bytes, 1);
        op->swapped = rc == BD_OK;
        return rc;
    }
    change ch = {.n = 0}; /* the refusal is remembered too: a repeat gets the first answer */
    change_memo(c, &ch, op->op_id, 0);
    bd_status rc = ch.n == 0 ? BD_OK : c->write(c->user, ch.facts, ch.n, false, &op->err);
    if (rc == BD_OK) {
        keep_memo(c, op->op_id, 0);
    }
    return rc;
}

static bd_status del(ps_coord_core *c, ps_coord_op *op)
{
    change ch = {.n = 0};
    entry **link = find(c, op->key);
    if (*link == NULL) {
        return BD_OK;
    }
    change_kv(&ch, op->key, NULL, 0);
    change_ttl(&ch, op->key, ttl_of(*link), 0);
    bd_status rc = c->write(c->user, ch.facts, ch.n, false, &op->err);
    if (rc == BD_OK) {
        remove_at(c, link);
    }
    return rc;
}

static bd_status new_client(ps_coord_core *c, ps_coord_op *op)
{
    uint8_t bytes[8];
    change ch = {.n = 0};
    const memo *m = find_memo(c, op->op_id);
    if (m != NULL) {
        op->id = m->result;
        return BD_OK;
    }
    ps_put_le64(bytes, c->last_client + 1);
    ch.facts[ch.n++] = (ps_fact){'C', "client", bytes, sizeof bytes};
    change_memo(c, &ch, op->op_id, c->last_client + 1);
    bd_status rc = c->write(c->user, ch.facts, ch.n, true, &op->err);
    if (rc == BD_OK) {
        op->id = ++c->last_client;
        keep_memo(c, op->op_id, op->id);
    }
    return rc;
}

static uint32_t n_missing(const ps_coord_core *c, uint32_t *first)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_servers; i++) {
        if (c->servers[i] == NULL) {
            *first = n == 0 ? i : *first;
            n++;
        }
    }
    return n;
}

/* Servers of a larger cluster that this one was: should it grow again, they register anew. */
static bd_status forget_stale(ps_coord_core *c, bd_err *err)
{
    bd_status rc = BD_OK;
    for (uint32_t i = c->n_servers; i < c->n_stale && rc == BD_OK; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "server/%u", i);
        const ps_fact f = {'C', name, NULL, 0};
        rc = c->write(c->user, &f, 1, false, err);
    }
    c->n_stale = rc == BD_OK ? 0 : c->n_stale;
    return rc;
}

static bd_status register_server(ps_coord_core *c, ps_coord_op *op)
{
    char name[32];
    uint8_t epoch[8];
    if (op->n_servers != c->n_servers) {
        return bd_err_set(&op->err, BD_E_MISMATCH, "server %u says %u servers, server 0 says %u",
                          op->index, op->n_servers, c->n_servers);
    }
    if (op->index >= c->n_servers || op->address == NULL || op->address[0] == '\0') {
        return bd_err_set(&op->err, BD_E_INVALID, "server %u of %u with address \"%s\"", op->index,
                          c->n_servers, op->address == NULL ? "" : op->address);
    }
    char **have = &c->servers[op->index];
    if (*have != NULL && strcmp(*have, op->address) == 0 && c->n_stale == 0) {
        op->id = c->map_epoch;
        return BD_OK;
    }
    char *copy = bd_strdup(op->address);
    if (copy == NULL) {
        return bd_err_set(&op->err, BD_E_NOMEM, "register server: no memory");
    }
    (void)snprintf(name, sizeof name, "server/%u", op->index);
    ps_put_le64(epoch, c->map_epoch + 1);
    ps_fact facts[2] = {{'C', name, copy, strlen(copy)}, {'C', "map", epoch, sizeof epoch}};
    bd_status rc = c->write(c->user, facts, 2, false, &op->err);
    if (rc != BD_OK) {
        bd_free(copy);
        return rc;
    }
    bd_free(*have);
    *have = copy;
    op->id = ++c->map_epoch;
    return forget_stale(c, &op->err);
}

/* ---- waiting ---- */
/* BD_AGAIN: not yet. */
static bd_status try_wait(ps_coord_core *c, ps_coord_op *op)
{
    if (op->kind == PS_COORD_MAP) {
        uint32_t first = 0;
        if (n_missing(c, &first) != 0 || c->map_epoch <= op->id) {
            return BD_AGAIN;
        }
        op->id = c->map_epoch;
        op->servers = (const char *const *)c->servers;
        op->n_servers = c->n_servers;
        return BD_OK;
    }
    const entry *e = *find(c, op->key);
    if (op->kind == PS_COORD_GET && op->other) {
        bool same = op->expect_absent ? e == NULL : e != NULL && is_value(e, op);
        op->absent = e == NULL;
        op->out_val = e == NULL ? NULL : e->value;
        op->out_val_bytes = e == NULL ? 0 : e->n_bytes;
        return same ? BD_AGAIN : BD_OK;
    }
    if (op->kind == PS_COORD_GET) {
        if (e == NULL) {
            return BD_AGAIN;
        }
        op->out_val = e->value;
        op->out_val_bytes = e->n_bytes;
        return BD_OK;
    }
    int64_t now = 0;
    bd_status rc = number_of(e, &now, &op->err);
    if (rc == BD_OK && now < op->number) {
        return BD_AGAIN;
    }
    op->number = now;
    return rc;
}

/* Why the wait is over without a result. */
static bd_status give_up(ps_coord_core *c, ps_coord_op *op)
{
    bd_status code = op->wait_ms == 0 ? BD_E_NOT_FOUND : BD_E_TIMEOUT;
    uint32_t first = 0, missing = n_missing(c, &first);
    if (op->kind == PS_COORD_GET) {
        return bd_err_set(&op->err, code, "key \"%s\" is %s", op->key,
                          op->other ? "the same" : "not there");
    }
    if (op->kind == PS_COORD_MAP && missing != 0) {
        return bd_err_set(&op->err, code, "%u of %u servers have not registered, first: server %u",
                          missing, c->n_servers, first);
    }
    if (op->kind == PS_COORD_MAP) {
        return bd_err_set(&op->err, code, "the shard map is still at epoch %" PRIu64, c->map_epoch);
    }
    return bd_err_set(&op->err, BD_E_TIMEOUT, "key \"%s\" has not reached %" PRId64, op->key,
                      op->number);
}

static void start_wait(ps_coord_core *c, ps_coord_op *op, int64_t now_ns)
{
    bd_status rc = try_wait(c, op);
    if (rc == BD_AGAIN && op->wait_ms == 0) {
        rc = give_up(c, op);
    }
    if (rc != BD_AGAIN) {
        finish(op, rc);
        return;
    }
    uint32_t ms = op->wait_ms < PS_COORD_MAX_WAIT_MS ? op->wait_ms : PS_COORD_MAX_WAIT_MS;
    op->until_ns = now_ns + ms * BD_NS_PER_MS;
    op->next = c->parked;
    c->parked = op;
}

/* A key (NULL: the map) has changed. */
static void wake(ps_coord_core *c, const char *key)
{
    for (ps_coord_op **link = &c->parked; *link != NULL;) {
        ps_coord_op *op = *link;
        bool mine = key == NULL ? op->kind == PS_COORD_MAP
                                : op->kind != PS_COORD_MAP && strcmp(op->key, key) == 0;
        bd_status rc = mine ? try_wait(c, op) : BD_AGAIN;
        if (rc == BD_AGAIN) {
            link = &op->next;
        } else {
            *link = op->next;
            finish(op, rc);
        }
    }
}

/* Ends the terms that are over. Returns when the next one is. A key whose end cannot be written
 * stays until it can. */
static int64_t expire(ps_coord_core *c, int64_t now_ns)
{
    int64_t next = INT64_MAX;
    for (size_t i = 0; c->n_leases > 0 && i < N_BUCKETS; i++) {
        for (entry **link = &c->buckets[i]; *link != NULL;) {
            entry *e = *link;
            ps_coord_op op = {.kind = PS_COORD_DEL, .key = e->key};
            char key[PS_COORD_MAX_KEY_BYTES + 1];
            if (e->ttl_ms != 0 && e->until_ns == 0) {
                e->until_ns = now_ns + e->ttl_ms * BD_NS_PER_MS;
            }
            (void)snprintf(key, sizeof key, "%s", e->key);
            if (e->ttl_ms != 0 && e->until_ns <= now_ns && del(c, &op) == BD_OK) {
                wake(c, key);
                continue;
            }
            next = e->ttl_ms != 0 && e->until_ns < next ? e->until_ns : next;
            link = &e->next;
        }
    }
    return next <= now_ns ? now_ns + BD_NS_PER_S : next;
}

int64_t ps_coord_core_tick(ps_coord_core *c, int64_t now_ns)
{
    int64_t next = expire(c, now_ns);
    for (ps_coord_op **link = &c->parked; *link != NULL;) {
        ps_coord_op *op = *link;
        if (op->until_ns <= now_ns) {
            *link = op->next;
            finish(op, give_up(c, op));
        } else {
            next = op->until_ns < next ? op->until_ns : next;
            link = &op->next;
        }
    }
    return next;
}

void ps_coord_core_stop(ps_coord_core *c)
{
    while (c->parked != NULL) {
        ps_coord_op *op = c->parked;
        c->parked = op->next;
        finish(op, bd_err_set(&op->err, BD_E_UNAVAILABLE, "the coordinator is stopping"));
    }
}

void ps_coord_core_run(ps_coord_core *c, ps_coord_op *op, int64_t now_ns)
{
    bd_status rc = BD_OK;
    bool has_key = op->kind <= PS_COORD_WAIT;
    const char *key = has_key ? op->key : NULL;
    char woken[PS_COORD_MAX_KEY_BYTES + 1] = "";
    op->err = (bd_err)BD_ERR_INIT;
    if (has_key && (rc = check_key(op)) != BD_OK) {
        finish(op, rc);
        return;
    }
    switch (op->kind) {
    case PS_COORD_GET:
    case PS_COORD_WAIT:
    case PS_COORD_MAP:
        start_wait(c, op, now_ns);
        return;
    case PS_COORD_SET:
        rc = set(c, op);
        break;
    case PS_COORD_ADD:
        rc = add(c, op);
        break;
    case PS_COORD_SWAP:
        rc = swap(c, op);
        break;
    case PS_COORD_DEL:
        rc = del(c, op);
        break;
    case PS_COORD_CLIENT:
        rc = new_client(c, op);
        break;
    default:
        BD_ASSERT(op->kind == PS_COORD_REGISTER);
        rc = register_server(c, op);
        break;
    }
    if (has_key) { /* the op's own text is gone after finish */
        (void)snprintf(woken, sizeof woken, "%s", key);
    }
    bool map_changed = op->kind == PS_COORD_REGISTER;
    finish(op, rc);
    if (rc == BD_OK && (has_key || map_changed)) {
        wake(c, has_key ? woken : NULL);
    }
}

/* ---- start ---- */
static bd_status load_memo(ps_coord_core *c, const char *hex, const uint8_t *val, bd_err *err)
{
    memo m = {strtoull(hex, NULL, 16), ps_get_le64(val), ps_get_le64(val + 8)};
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
    entry *e = *find(c, key);
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
        const entry *old = *find(c, name + 3);
        uint32_t ttl_ms = ttl_of(old); /* its term came first */
        entry *e = entry_new(name + 3, val, n_bytes);
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
