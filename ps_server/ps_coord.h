/* ps_server/ps_coord.h - the coordinator: key-value store, client ids, shard map.
 *
 * Layer:     ps_server. ps_coord_core is pure (ops and ticks in, answers out, facts through a
 *            function); ps_coord runs it on a thread of its own over the journal's area 'C'.
 * Promise:   an answer means that the change is in the journal: it survives kill -9 of server 0.
 *            Adds, compare-sets and client ids with an op id happen once however often the message
 *            is repeated, also across a restart (the last PS_COORD_OPS ids are remembered).
 * Waiting:   a waiting op is parked in a list; no thread is blocked. Every change wakes those who
 *            wait for its key.
 * Facts:     "kv/<key>" value; "op/<16 hex>" u64 order, u64 result; "client" u64 last id;
 *            "map" u64 epoch; "server/<index>" address; "ttl/<key>" u64 ms, of keys that run out.
 * Leases:    a key set with ttl_ms goes that long after it was last set. A repeat of value and term
 *            is written nowhere; after a restart each has a whole term again.
 */
#ifndef PS_COORD_H
#define PS_COORD_H

#include "base/clock.h"

#include "ps_server/ps_journal.h"

#define PS_COORD_OPS             65536u
#define PS_COORD_MAX_WAIT_MS     30000u
#define PS_COORD_MAX_KEY_BYTES   1024u
#define PS_COORD_MAX_VALUE_BYTES (1u << 20)
#define PS_COORD_MAX_BYTES       (256ull << 20) /* of all values and keys */

typedef enum ps_coord_kind {
    /* those with a key come first, WAIT is the last of them */
    PS_COORD_SET,      /* key, val, ttl_ms */
    PS_COORD_GET,      /* key, wait_ms -> out_val; other: waits for another value than expected (or
                          absent) -> out_val or absent */
    PS_COORD_ADD,      /* key, number, op_id -> number */
    PS_COORD_SWAP,     /* key, expect_absent or expected, val (desired), op_id -> swapped */
    PS_COORD_DEL,      /* key */
    PS_COORD_WAIT,     /* key, number (at least), wait_ms -> number */
    PS_COORD_CLIENT,   /* op_id -> id */
    PS_COORD_REGISTER, /* index, n_servers, address -> id (map epoch) */
    PS_COORD_MAP,      /* id (newer than), wait_ms -> id (epoch), servers */
    PS_COORD_QUIT      /* internal */
} ps_coord_kind;

typedef struct ps_coord_op ps_coord_op;
struct ps_coord_op {
    ps_coord_kind kind;
    void (*done)(ps_coord_op *op); /* once, on the coordinator's thread; must not block */
    /* in; borrowed until done */
    const char *key;
    const void *val, *expected;
    size_t val_bytes, expected_bytes;
    bool expect_absent;
    uint64_t op_id;
    bool other;
    uint32_t wait_ms, ttl_ms, index, n_servers;
    const char *address;
    /* in and out */
    int64_t number;
    uint64_t id;
    /* out; borrowed, valid inside done */
    bd_status rc;
    bd_err err;
    bool swapped, absent;
    const void *out_val;
    size_t out_val_bytes;
    const char *const *servers; /* [n_servers] addresses */

    int64_t until_ns; /* the core's */
    ps_coord_op *next;
};

/* ---- pure core ---- */
typedef bd_status (*ps_coord_write_fn)(void *user, const ps_fact *facts, size_t n, bool sync,
                                       bd_err *err);
typedef struct ps_coord_core ps_coord_core;
ps_coord_core *ps_coord_core_new(uint32_t n_servers, ps_coord_write_fn write, void *user);
void ps_coord_core_free(ps_coord_core *c); /* nobody may be parked */
/* A fact read back at start, in any order. */
bd_status ps_coord_core_load(ps_coord_core *c, const char *name, const uint8_t *val, size_t n_bytes,
                             bd_err *err) BD_MUST_CHECK;
void ps_coord_core_run(ps_coord_core *c, ps_coord_op *op, int64_t now_ns);
/* Ends the waits that are over; returns when the next one is, INT64_MAX: none. */
int64_t ps_coord_core_tick(ps_coord_core *c, int64_t now_ns);
/* Answers everybody parked: BD_E_UNAVAILABLE. */
void ps_coord_core_stop(ps_coord_core *c);

/* ---- on a thread ---- */
typedef struct ps_coord ps_coord;
bd_status ps_coord_new(ps_journal *journal, uint32_t n_servers, ps_coord **out,
                       bd_err *err) BD_MUST_CHECK;
void ps_coord_post(ps_coord *c, ps_coord_op *op); /* any thread */
void ps_coord_stop(ps_coord *c);                  /* later posts are answered UNAVAILABLE */
void ps_coord_free(ps_coord *c);

#endif
