/* The coordinator's core: ops and ticks in, answers out. */
#include "base/assert.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_coord_int.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    ps_coord_clear(c);
    for (uint32_t i = 0; c->servers != NULL && i < c->n_servers; i++) {
        bd_free(c->servers[i]);
    }
    bd_free(c->servers);
    bd_free(c->memos);
    bd_free(c);
}

/* ---- answers ---- */
static void finish(ps_coord_op *op, bd_status rc)
{
    op->rc = rc;
    op->done(op);
}

static bd_status number_of(const ps_coord_entry *e, int64_t *out, bd_err *err)
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

/* The same value for the same term again is a sign of life and nothing else. */
static bd_status set(ps_coord_core *c, ps_coord_op *op)
{
    ps_coord_entry *e = *ps_coord_find(c, op->key);
    if (op->ttl_ms != 0 && e != NULL && e->ttl_ms == op->ttl_ms && e->n_bytes == op->val_bytes &&
        (e->n_bytes == 0 || memcmp(e->value, op->val, e->n_bytes) == 0)) {
        e->until_ns = 0;
        return BD_OK;
    }
    return ps_coord_store(c, op, op->val, op->val_bytes, 0);
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
    const ps_coord_memo *m = ps_coord_find_memo(c, op->op_id);
    if (m != NULL) {
        op->number = (int64_t)m->result;
        return BD_OK;
    }
    bd_status rc = number_of(*ps_coord_find(c, op->key), &now, &op->err);
    if (rc != BD_OK || op->number == 0) {
        op->number = now;
        return rc;
    }
    if (__builtin_add_overflow(now, op->number, &after)) {
        return bd_err_set(&op->err, BD_E_INVALID, "key \"%s\": %" PRId64 " + %" PRId64 " overflows",
                          op->key, now, op->number);
    }
    int n = snprintf(text, sizeof text, "%" PRId64, after);
    rc = ps_coord_store(c, op, text, (size_t)n, (uint64_t)after);
    op->number = after;
    return rc;
}

static bool is_value(const ps_coord_entry *e, const ps_coord_op *op)
{
    return e->n_bytes == op->expected_bytes &&
           (e->n_bytes == 0 || memcmp(e->value, op->expected, e->n_bytes) == 0);
}

static bd_status swap(ps_coord_core *c, ps_coord_op *op)
{
    const ps_coord_memo *m = ps_coord_find_memo(c, op->op_id);
    const ps_coord_entry *e = *ps_coord_find(c, op->key);
    if (m != NULL) {
        op->swapped = m->result != 0;
        return BD_OK;
    }
    op->swapped = op->expect_absent ? e == NULL : e != NULL && is_value(e, op);
    if (op->swapped) {
        bd_status rc = ps_coord_store(c, op, op->val, op->val_bytes, 1);
        op->swapped = rc == BD_OK;
        return rc;
    }
    /* The refusal is remembered too: a repeat gets the first answer. */
    return ps_coord_remember(c, op, NULL, false, 0);
}

static bd_status new_client(ps_coord_core *c, ps_coord_op *op)
{
    uint8_t bytes[8];
    const ps_fact fact = {'C', "client", bytes, sizeof bytes};
    const ps_coord_memo *m = ps_coord_find_memo(c, op->op_id);
    if (m != NULL) {
        op->id = m->result;
        return BD_OK;
    }
    ps_put_le64(bytes, c->last_client + 1);
    bd_status rc = ps_coord_remember(c, op, &fact, true, c->last_client + 1);
    if (rc == BD_OK) {
        op->id = ++c->last_client;
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
    const ps_coord_entry *e = *ps_coord_find(c, op->key);
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
    for (size_t i = 0; c->n_leases > 0 && i < PS_COORD_BUCKETS; i++) {
        for (ps_coord_entry **link = &c->buckets[i]; *link != NULL;) {
            ps_coord_entry *e = *link;
            char key[PS_COORD_MAX_KEY_BYTES + 1];
            bd_err why;
            if (e->ttl_ms != 0 && e->until_ns == 0) {
                e->until_ns = now_ns + e->ttl_ms * BD_NS_PER_MS;
            }
            (void)snprintf(key, sizeof key, "%s", e->key);
            if (e->ttl_ms != 0 && e->until_ns <= now_ns && ps_coord_erase(c, key, &why) == BD_OK) {
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
        rc = ps_coord_erase(c, op->key, &op->err);
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
