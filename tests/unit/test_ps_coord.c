/* The coordinator's core in virtual time over a store in memory. */
#include "base/fault.h"
#include "base/mem.h"

#include "ps_server/ps_coord.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a store of facts ---- */
#define MAX_FACTS 64
typedef struct disk {
    char names[MAX_FACTS][64];
    uint8_t vals[MAX_FACTS][64];
    size_t bytes[MAX_FACTS];
    size_t n;
    bool broken;
} disk;

static bd_status write_facts(void *user, const ps_fact *facts, size_t n, bool sync, bd_err *err)
{
    disk *d = user;
    (void)sync;
    if (d->broken) {
        return bd_err_set(err, BD_E_IO, "disk is full");
    }
    for (size_t i = 0; i < n; i++) {
        size_t at = 0;
        while (at < d->n && strcmp(d->names[at], facts[i].name) != 0) {
            at++;
        }
        assert_true(at < MAX_FACTS && facts[i].val_bytes <= sizeof d->vals[at]);
        if (facts[i].val == NULL) {
            d->bytes[at] = SIZE_MAX; /* removed */
            continue;
        }
        (void)snprintf(d->names[at], sizeof d->names[at], "%s", facts[i].name);
        memcpy(d->vals[at], facts[i].val, facts[i].val_bytes);
        d->bytes[at] = facts[i].val_bytes;
        d->n = at == d->n ? at + 1 : d->n;
    }
    return BD_OK;
}

static ps_coord_core *boot(disk *d, uint32_t n_servers)
{
    bd_err err;
    ps_coord_core *c = ps_coord_core_new(n_servers, write_facts, d);
    for (size_t i = 0; i < d->n; i++) {
        if (d->bytes[i] != SIZE_MAX) {
            assert_int_equal(ps_coord_core_load(c, d->names[i], d->vals[i], d->bytes[i], &err),
                             BD_OK);
        }
    }
    return c;
}

/* ---- ops ---- */
static int n_done;
static char got[64]; /* value a get was answered with */
static void on_done(ps_coord_op *op)
{
    n_done++;
    if (op->rc == BD_OK && op->kind == PS_COORD_GET) {
        (void)snprintf(got, sizeof got, "%.*s", (int)op->out_val_bytes, (const char *)op->out_val);
    }
}

static bd_status run(ps_coord_core *c, ps_coord_op *op, int64_t now_ms)
{
    int before = n_done;
    op->done = on_done;
    ps_coord_core_run(c, op, now_ms * BD_NS_PER_MS);
    return n_done == before ? BD_AGAIN : op->rc;
}

static bd_status set(ps_coord_core *c, const char *key, const char *val)
{
    ps_coord_op op = {.kind = PS_COORD_SET, .key = key, .val = val, .val_bytes = strlen(val)};
    return run(c, &op, 0);
}

static bd_status add(ps_coord_core *c, const char *key, int64_t by, uint64_t id, int64_t *after)
{
    ps_coord_op op = {.kind = PS_COORD_ADD, .key = key, .number = by, .op_id = id};
    bd_status rc = run(c, &op, 0);
    *after = op.number;
    return rc;
}

static void waits_end_by_change_or_time(void **state)
{
    (void)state;
    disk d = {.n = 0};
    ps_coord_core *c = boot(&d, 1);
    ps_coord_op a = {.kind = PS_COORD_GET, .key = "k", .wait_ms = 100}, b = a, now = a, w;
    now.wait_ms = 0;
    assert_int_equal(run(c, &now, 0), BD_E_NOT_FOUND);
    b.wait_ms = 200;
    assert_int_equal(run(c, &a, 0), BD_AGAIN);
    assert_int_equal(run(c, &b, 0), BD_AGAIN);
    assert_int_equal(ps_coord_core_tick(c, 99 * BD_NS_PER_MS), 100 * BD_NS_PER_MS);
    assert_int_equal(ps_coord_core_tick(c, 100 * BD_NS_PER_MS), 200 * BD_NS_PER_MS);
    assert_int_equal(a.rc, BD_E_TIMEOUT);
    assert_non_null(strstr(bd_err_text(&a.err), "\"k\""));
    assert_int_equal(set(c, "other", "x"), BD_OK);
    int before = n_done;
    assert_int_equal(set(c, "k", "hello"), BD_OK);
    assert_int_equal(n_done, before + 2); /* the set, and b */
    assert_string_equal(got, "hello");
    assert_int_equal(b.rc, BD_OK);

    w = (ps_coord_op){.kind = PS_COORD_WAIT, .key = "n", .number = 3, .wait_ms = 1000};
    assert_int_equal(run(c, &w, 0), BD_AGAIN);
    int64_t after = 0;
    assert_int_equal(add(c, "n", 2, 0, &after), BD_OK);
    assert_int_equal(add(c, "n", 2, 0, &after), BD_OK);
    assert_int_equal(after, 4);
    assert_true(w.rc == BD_OK && w.number == 4);
    w.number = 9;
    assert_int_equal(run(c, &w, 0), BD_AGAIN);
    ps_coord_core_stop(c);
    assert_int_equal(w.rc, BD_E_UNAVAILABLE);
    ps_coord_core_free(c);
}

static bd_status set_for(ps_coord_core *c, const char *key, const char *val, uint32_t ttl_ms,
                         int64_t now_ms)
{
    ps_coord_op op = {
        .kind = PS_COORD_SET, .key = key, .val = val, .val_bytes = strlen(val), .ttl_ms = ttl_ms};
    bd_status rc = run(c, &op, now_ms);
    (void)ps_coord_core_tick(c, now_ms * BD_NS_PER_MS);
    return rc;
}

static bd_status look(ps_coord_core *c, const char *key)
{
    ps_coord_op op = {.kind = PS_COORD_GET, .key = key};
    return run(c, &op, 0);
}

/* A key with a term goes when nobody renews it, wakes who waits for that, and has a whole term
 * again after a restart. Renewing the same value writes nothing. */
static void terms_end_unless_renewed(void **state)
{
    (void)state;
    disk d = {.n = 0};
    ps_coord_core *c = boot(&d, 1);
    assert_int_equal(set_for(c, "alive", "a", 1000, 0), BD_OK);
    d.broken = true;
    assert_int_equal(set_for(c, "alive", "a", 1000, 900), BD_OK);
    d.broken = false;
    assert_int_equal(ps_coord_core_tick(c, 1899 * BD_NS_PER_MS), 1900 * BD_NS_PER_MS);
    assert_int_equal(look(c, "alive"), BD_OK);
    ps_coord_op other = {.kind = PS_COORD_GET,
                         .key = "alive",
                         .other = true,
                         .expected = "a",
                         .expected_bytes = 1,
                         .wait_ms = 30000};
    assert_int_equal(run(c, &other, 1899), BD_AGAIN);
    ps_coord_core_free((ps_coord_core_stop(c), c));
    assert_int_equal(other.rc, BD_E_UNAVAILABLE);

    c = boot(&d, 1); /* much later */
    assert_int_equal(ps_coord_core_tick(c, 50000 * BD_NS_PER_MS), 51000 * BD_NS_PER_MS);
    assert_int_equal(run(c, &other, 50000), BD_AGAIN);
    d.broken = true; /* an end that cannot be written is none */
    assert_true(ps_coord_core_tick(c, 51000 * BD_NS_PER_MS) > 51000 * BD_NS_PER_MS);
    assert_int_equal(look(c, "alive"), BD_OK);
    d.broken = false;
    assert_true(ps_coord_core_tick(c, 52000 * BD_NS_PER_MS) > 60000 * BD_NS_PER_MS);
    assert_true(other.rc == BD_OK && other.absent);
    assert_int_equal(look(c, "alive"), BD_E_NOT_FOUND);
    assert_int_equal(set_for(c, "alive", "a", 1000, 60000), BD_OK);
    assert_int_equal(set(c, "alive", "b"), BD_OK); /* without a term it stays */
    assert_int_equal(ps_coord_core_tick(c, 99999 * BD_NS_PER_MS), INT64_MAX);
    ps_coord_core_free(c);
    c = boot(&d, 1);
    assert_int_equal(ps_coord_core_tick(c, 99999 * BD_NS_PER_MS), INT64_MAX);
    assert_int_equal(look(c, "alive"), BD_OK);
    ps_coord_core_free(c);
}

/* A repeated message adds once, swaps once and gets the first answer; over a restart as well. */
static void repeats_happen_once(void **state)
{
    (void)state;
    disk d = {.n = 0};
    ps_coord_core *c = boot(&d, 1);
    for (int round = 0; round < 2; round++) {
        int64_t after = 0;
        assert_int_equal(add(c, "n", 5, 1001, &after), BD_OK);
        assert_int_equal(after, 5);
        assert_int_equal(add(c, "n", 5, 1001, &after), BD_OK);
        assert_int_equal(after, 5);
        ps_coord_op s = {.kind = PS_COORD_SWAP,
                         .key = "s",
                         .expect_absent = true,
                         .val = "me",
                         .val_bytes = 2,
                         .op_id = 7};
        assert_int_equal(run(c, &s, 0), BD_OK);
        assert_true(s.swapped); /* in the second round the key is there: still the first answer */
        s.op_id = 8;
        assert_int_equal(run(c, &s, 0), BD_OK);
        assert_false(s.swapped);
        s.op_id = 0;
        s.expect_absent = false;
        s.expected = "me";
        s.expected_bytes = 2;
        assert_int_equal(run(c, &s, 0), BD_OK);
        assert_true(s.swapped);
        ps_coord_core_free(c);
        c = boot(&d, 1);
    }
    ps_coord_core_free(c);
}

/* Client ids are never issued twice, and a repeat gets the same. */
static void client_ids_are_new(void **state)
{
    (void)state;
    disk d = {.n = 0};
    uint64_t last = 0;
    for (uint64_t boots = 0; boots < 3; boots++) {
        ps_coord_core *c = boot(&d, 1);
        for (uint64_t i = 0; i < 4; i++) {
            ps_coord_op op = {.kind = PS_COORD_CLIENT, .op_id = boots * 10 + i + 1};
            assert_int_equal(run(c, &op, 0), BD_OK);
            assert_true(op.id > last);
            last = op.id;
            assert_int_equal(run(c, &op, 0), BD_OK);
            assert_int_equal(op.id, last);
        }
        ps_coord_core_free(c);
    }
}

static bd_status reg(ps_coord_core *c, uint32_t index, uint32_t n, const char *addr, bd_err *err)
{
    ps_coord_op op = {.kind = PS_COORD_REGISTER, .index = index, .n_servers = n, .address = addr};
    bd_status rc = run(c, &op, 0);
    *err = op.err;
    return rc;
}

/* A map exists once all servers are there; its epoch grows with addresses, not with repeats. */
static void the_map_waits_for_all(void **state)
{
    (void)state;
    disk d = {.n = 0};
    bd_err err;
    ps_coord_core *c = boot(&d, 2);
    ps_coord_op m = {.kind = PS_COORD_MAP, .wait_ms = 50};
    assert_int_equal(reg(c, 0, 2, "a:1", &err), BD_OK);
    assert_int_equal(run(c, &m, 0), BD_AGAIN);
    (void)ps_coord_core_tick(c, 60 * BD_NS_PER_MS);
    assert_int_equal(m.rc, BD_E_TIMEOUT);
    assert_non_null(strstr(bd_err_text(&m.err), "server 1"));
    assert_int_equal(run(c, &m, 0), BD_AGAIN);
    assert_int_equal(reg(c, 1, 2, "b:1", &err), BD_OK);
    assert_int_equal(m.rc, BD_OK);
    assert_string_equal(m.servers[1], "b:1");
    uint64_t epoch = m.id;
    assert_int_equal(reg(c, 1, 2, "b:1", &err), BD_OK);
    assert_int_equal(run(c, &m, 0), BD_AGAIN); /* newer than what we have: not yet */
    assert_int_equal(reg(c, 1, 2, "b:2", &err), BD_OK);
    assert_true(m.rc == BD_OK && m.id == epoch + 1);
    assert_int_equal(reg(c, 1, 3, "b:2", &err), BD_E_MISMATCH);
    assert_int_equal(reg(c, 2, 2, "b:2", &err), BD_E_INVALID);
    ps_coord_core_free(c);
    c = boot(&d, 2);
    m = (ps_coord_op){.kind = PS_COORD_MAP};
    assert_int_equal(run(c, &m, 0), BD_OK); /* it survived */
    assert_string_equal(m.servers[1], "b:2");
    ps_coord_core_free(c);
}

static void bad_requests_are_named(void **state)
{
    (void)state;
    disk d = {.n = 0};
    ps_coord_core *c = boot(&d, 1);
    char longest[1100];
    int64_t after = 0;
    memset(longest, 'k', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(set(c, "", "x"), BD_E_INVALID);
    assert_int_equal(set(c, "a\nb", "x"), BD_E_INVALID);
    assert_int_equal(set(c, longest, "x"), BD_E_INVALID);
    assert_int_equal(set(c, "word", "x7"), BD_OK);
    assert_int_equal(add(c, "word", 1, 0, &after), BD_E_STATE);
    assert_int_equal(add(c, "n", INT64_MAX, 0, &after), BD_OK);
    assert_int_equal(add(c, "n", 1, 0, &after), BD_E_INVALID);
    d.broken = true; /* nothing changes that is not written */
    assert_int_equal(add(c, "m", 1, 5, &after), BD_E_IO);
    d.broken = false;
    assert_int_equal(add(c, "m", 1, 5, &after), BD_OK);
    assert_int_equal(after, 1);
    ps_coord_op del = {.kind = PS_COORD_DEL, .key = "m"};
    assert_int_equal(run(c, &del, 0), BD_OK);
    assert_int_equal(run(c, &del, 0), BD_OK);
    ps_coord_op get = {.kind = PS_COORD_GET, .key = "m"};
    assert_int_equal(run(c, &get, 0), BD_E_NOT_FOUND);
    ps_coord_core_free(c);
}

static void sets_survive_every_allocation_failure(void **state)
{
    (void)state;
    disk d = {.n = 0};
    long start = bd_mem_live_blocks();
    ps_coord_core *c = boot(&d, 1);
    long full = bd_mem_live_blocks();
    for (long nth = 0; nth < 3; nth++) {
        bd_fault_fail_alloc(nth);
        assert_int_equal(set(c, "k", "v"), BD_E_NOMEM);
        bd_fault_fail_alloc(-1);
        assert_int_equal(bd_mem_live_blocks(), full);
    }
    assert_int_equal(d.n, 0);
    assert_int_equal(set(c, "k", "v"), BD_OK);
    ps_coord_core_free(c);
    assert_int_equal(bd_mem_live_blocks(), start);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_end_by_change_or_time),
        cmocka_unit_test(terms_end_unless_renewed),
        cmocka_unit_test(repeats_happen_once),
        cmocka_unit_test(client_ids_are_new),
        cmocka_unit_test(the_map_waits_for_all),
        cmocka_unit_test(bad_requests_are_named),
        cmocka_unit_test(sets_survive_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
