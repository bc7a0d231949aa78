/* ps_server/ps_table.h - one table in memory: 64 stripes of rows, gathered and updated in batches.
 *
 * Layer:     ps_server (memory only; no disk, no network). Includes base/.
 * Ownership: the caller's arrays are borrowed during a call.
 * Numbers:   a batch is applied in the order of its keys; each row's result depends on that row and
 *            its gradient only, so the order of different keys does not change a bit.
 * Cost:      gather and apply are one probe and one row access a key, prefetched up to 32 keys
 *            ahead; one lock for each run of keys of one stripe.
 *
 * Thread model of ps_table
 *   threads    handlers (N): gather, export, hash; commit thread (1): reserve, apply, assign;
 *              write-back thread (1): take_dirty, put_back
 *   field      written by              read by      protected by
 *   stripe     commit, write-back      all          the stripe's rwlock: writers take one at a
 *                                                   time, batched reads a few, in ascending order
 *   n_rows     commit                  all          _Atomic, relaxed (a statistic)
 *   scratch    commit                  commit       owner
 *   blocking   only on stripe locks, which are never held across a callback or the disk
 *
 * Tiers:     with a budget, rows that are not used leave memory (ps_rows.h) once the store
 *            has them, and come back when they are asked for. A row that is away is found by its
 *            absence here while n_away is not 0: the caller fetches it (ps_fetch.h), never under a
 *            stripe lock, and finishes. A record holds its rows from plan to apply, so that apply
 *            meets every row it needs and cannot fail.
 */
#ifndef PS_TABLE_H
#define PS_TABLE_H

#include "ps_server/ps_budget.h"
#include "ps_server/ps_spec.h"

typedef struct ps_table ps_table;

/* Copies the spec; the budget (NULL or without a limit: none) is borrowed. NULL: no memory. */
ps_table *ps_table_new(const ps_spec *spec, ps_budget *budget);
void ps_table_free(ps_table *t);
const ps_spec *ps_table_spec(const ps_table *t);
uint64_t ps_table_n_rows(const ps_table *t); /* in memory and on the disk */
/* On the disk only, tombstones included, also those that a merge has left out since the start. */
uint64_t ps_table_n_away(const ps_table *t);
/* Gradients that the table's policy (ps_policy.h) was asked about, and the key of the last count.
 * Any thread; a count and its key may be read a moment apart. */
void ps_table_count_bad(ps_table *t, size_t n_rows, uint64_t key);
uint64_t ps_table_n_bad(const ps_table *t, uint64_t *last_key);

/* The table's hidden table of this kind; NULL: it has none. Borrowed. */
ps_table *ps_table_hidden(const ps_table *t, ps_hidden kind);
void ps_table_set_hidden(ps_table *t, ps_hidden kind, ps_table *hidden);
/* What its rules have done since it was made. Any thread; a moment's work. */
typedef struct ps_rule_counts {
    uint64_t filtered, evicted;
} ps_rule_counts;
ps_rule_counts ps_table_rule_counts(ps_table *t);

/* ps_table_read - out[n x dim] = weights of keys; an absent key reads as its initial value. Creates
 * nothing, counts nothing. Any thread. The indexes of keys that may be on the disk go to
 * missing[n], their number is returned; fetch them and call ps_table_finish. */
size_t ps_table_read(ps_table *t, const uint64_t *keys, size_t n, float *out, uint32_t *missing);

/* False: no row of this table ever leaves memory; `missing` may be NULL. */
bool ps_table_is_limited(const ps_table *t);

/* ps_table_gather - the same for a table with no row away (asserted). */
void ps_table_gather(ps_table *t, const uint64_t *keys, size_t n, float *out);

/* ps_table_pool - out[n_bags x dim] = sums of weight x row, for a table with no row away
 * (asserted). An absent key reads as its initial value. found: gets [n] the rows' numbers or
 * PS_NO_ROW, for ps_trail.h; NULL: not wanted. BD_E_NOMEM. */
bd_status ps_table_pool(ps_table *t, const uint64_t *keys, size_t n, const ps_bags *bags,
                        float *out, uint32_t *found) BD_MUST_CHECK;

/* What the store has for some keys. Borrowed. */
typedef struct ps_found {
    const uint8_t *values; /* [n x stride], 8-byte aligned values as entries have them */
    size_t stride;
    const uint32_t *bytes; /* [n] length of a value; 0: the store has none */
    uint64_t as_of;        /* ps_table_finish: see there */
} ps_found;

/* ps_table_finish - the missing rows of a read: their weights to out, and those in the store come
 * into memory where there is room. A row that is in memory by now is read as it is there. One that
 * is not may have come, changed and left again since the read, and then what was fetched is old: it
 * is what the row was when the read began, so it is a right answer, but it never becomes the row.
 * as_of: all of that record and the ones before it was in the rows before the read began, so that
 * a change since then carries a later number, as does the row it leaves memory with. */
void ps_table_finish(ps_table *t, const uint64_t *keys, const uint32_t *miss, size_t n_miss,
                     const ps_found *found, float *out);

/* ps_table_bring - rows that the caller has read from the store come into memory, where there is
 * room and they are not there already; tombstones stay away. The thread that writes rows back alone:
 * what it has read is not old while it has not written again. */
void ps_table_bring(ps_table *t, const uint64_t *keys, size_t n, const ps_found *found);

/* ---- around an apply or assign (commit thread) ----
 * ps_table_hold - room for the keys, and their rows stay in memory until they have been applied.
 * Those that may be on the disk go to miss[n]: fetch and install them. BD_E_NOMEM; BD_E_EXHAUSTED:
 * the budget is used up and no row can leave before changed ones are written back. On failure
 * nothing is held. (Only this thread changes rows, so what it fetches does not get old.) */
bd_status ps_table_hold(ps_table *t, const uint64_t *keys, size_t n, uint32_t *miss,
                        size_t *n_miss) BD_MUST_CHECK;
void ps_table_install(ps_table *t, const uint64_t *keys, const uint32_t *miss, size_t n_miss,
                      const ps_found *found);
/* Lets go of rows that were held and not applied. */
void ps_table_release(ps_table *t, const uint64_t *keys, size_t n);
/* After the last apply or assign of the hold: room that was not needed is free again. */
void ps_table_end_hold(ps_table *t);

/* ps_table_reserve - room for n further keys of this batch, for a table without a limit.
 * BD_E_NOMEM: rows unchanged. */
bd_status ps_table_reserve(ps_table *t, const uint64_t *keys, size_t n) BD_MUST_CHECK;

typedef struct ps_apply {
    ps_seqno seq;    /* of the record; rows that carry it or a later one are left alone */
    uint64_t step;   /* becomes the row's last step */
    uint64_t write;  /* the same at every replay of this update: draws stochastic rounding */
    double lr_scale; /* factor on the learning rate */
    uint32_t time_s; /* when the record was made, seconds since 1970 */
} ps_apply;

/* ps_table_apply - one optimiser step for each key with its gradient (grads[n x dim]); absent rows
 * are created first. Keys must be distinct, and held or reserved. */
void ps_table_apply(ps_table *t, const uint64_t *keys, const float *grads, size_t n,
                    const ps_apply *a);

/* The same from the gradients of bags, bag_grads[n_bags x dim]. guesses: [n] where the rows may be
 * (ps_trail.h); NULL: no idea. */
void ps_table_apply_bags(ps_table *t, const uint64_t *keys, size_t n, const ps_bags *bags,
                         const float *bag_grads, const uint32_t *guesses, const ps_apply *a);

/* ps_table_assign - overwrites weights (rows[n x dim], rounded to nearest as the table stores them)
 * and, when state is not NULL, the optimiser state (state[n x state_elems]; else a new row gets its
 * initial state and an old one keeps its own). Keys held or reserved; for repeated keys the last
 * one wins.
 */
void ps_table_assign(ps_table *t, const uint64_t *keys, const float *rows, const float *state,
                     size_t n, const ps_apply *a);

/* ---- rules (commit thread; keys held or reserved) ---- */
/* absent[n] gets the indexes of the keys that have no row; how many. */
size_t ps_table_absent(ps_table *t, const uint64_t *keys, size_t n, uint32_t *absent);
/* The words of a row of a hidden table; false: there is none. */
bool ps_table_peek(ps_table *t, uint64_t key, uint32_t *words);
/* Lets fn change the words of a row, once for each key and record: not when the row has the record
 * already (replay). An absent row starts as zeros. */
void ps_table_visit(ps_table *t, uint64_t key, const ps_apply *a,
                    void (*fn)(void *user, uint32_t *words), void *user);
/* The rows become tombstones. */
void ps_table_evict(ps_table *t, const uint64_t *keys, size_t n, const ps_apply *a);
/* Rows that are in memory stay there until they are evicted or released; the others leave the list.
 * Returns how many stay. */
size_t ps_table_pin(ps_table *t, uint64_t *keys, size_t n);

/* ps_table_hash - sum over the rows, modulo 2^64, of hash(name, key, stored weights, state). It
 * counts only when no row was away before and none is after (else: ps_scan.h). */
uint64_t ps_table_hash_row(const ps_spec *spec, uint64_t key, const void *row);
uint64_t ps_table_hash(ps_table *t, uint64_t *n_rows);

struct ps_hot;
/* Offers every row in memory (ps_hot.h); a stripe is never locked for long. */
void ps_table_hot(ps_table *t, struct ps_hot *hot);

/* The caller's arrays, with room for max_rows, and what was found. */
typedef struct ps_page {
    uint64_t *keys;
    float *rows;
    float *state; /* NULL: not wanted */
    size_t n;
    bool more;
    uint64_t next; /* key to go on from when more */
} ps_page;
/* ps_table_page - up to max_rows rows with key >= from in key order. BD_E_NOMEM; BD_E_STATE: rows
 * have begun to leave (ps_scan.h). */
bd_status ps_table_page(ps_table *t, uint64_t from, size_t max_rows, ps_page *page) BD_MUST_CHECK;

/* ---- rows on their way to and from the store ----
 * An entry is key (u32 BE table id, u64 BE row key: 12 bytes), then the value: u32 LE frequency,
 * u32 LE time and u64 LE step of the last push (step last), u64 LE n of the last record between
 * them, the weights as base/num/row_codec.h stores them (f32 LE[dim] or their dtype's form), f32
 * LE[state]. The value of a row that was evicted for good (a tombstone) is the first 24 bytes
 * alone; in a ps_entries it is as long as the others, with PS_ENTRY_DEAD in its frequency. */
#define PS_ENTRY_KEY_BYTES  12u
#define PS_ENTRY_META_BYTES 24u
#define PS_ENTRY_DEAD       0x80000000u

/* Bytes of a stored value of this table. */
size_t ps_table_value_bytes(const ps_table *t);

typedef struct ps_entries {
    uint32_t table_id, stripe;
    size_t value_bytes;
    size_t n;
    size_t n_dead;     /* tombstones among them */
    uint64_t oldest_n; /* the record that first made one of them dirty */
    uint8_t *bytes;    /* owned: n entries of PS_ENTRY_KEY_BYTES + value_bytes */
} ps_entries;

/* ps_table_take_dirty - copies the stripe's changed rows (cold_only: those nobody has used since
 * the hand came by) into out in any order; they are being written until ps_table_written or
 * ps_table_put_back. out->n 0: none. BD_E_NOMEM: nothing changed. */
bd_status ps_table_take_dirty(ps_table *t, uint32_t stripe, bool cold_only,
                              ps_entries *out) BD_MUST_CHECK;
/* The store has them: they may leave memory. */
void ps_table_written(ps_table *t, const ps_entries *e);
/* Marks them dirty again (the store could not take them). */
void ps_table_put_back(ps_table *t, const ps_entries *e);
void ps_entries_deinit(ps_entries *e);

/* The oldest record some changed row needs, UINT64_MAX when no row is dirty. */
uint64_t ps_table_oldest_dirty(ps_table *t);
/* Bytes of entries that a write-back would write now. */
size_t ps_table_dirty_bytes(ps_table *t);

/* BD_E_CORRUPT when no row of this table has a value of so many bytes. */
bd_status ps_table_check_value(const ps_table *t, size_t value_bytes, bd_err *err) BD_MUST_CHECK;
/* About what a row takes in memory, with its part of the index. */
size_t ps_table_memory_bytes(const ps_table *t);
/* So many bytes of rows are put in by ps_table_load at most; without the call, as many as fit. */
void ps_table_limit_load(ps_table *t, size_t bytes);
/* ps_table_load - puts one stored row in (clean), or counts it as away when the budget has no room.
 * BD_E_CORRUPT for a wrong size. Start-up only. */
bd_status ps_table_load(ps_table *t, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                        size_t value_bytes, bd_err *err) BD_MUST_CHECK;

#endif
