/* ps_server/ps_sift.h - what the rules of one table make of one record: gradients that admission
 * drops, rows that eviction takes, and the hidden rows (ps_spec_hidden) that remember it.
 *
 * Layer:   ps_server (memory only). Threads: the one that applies.
 * Memory:  lists live in the caller's arena as long as the record is worked on.
 * Order:   ps_sift_ask names the filter rows, which the caller holds; ps_sift_decide, or at a
 * replay the record's own sections, say which keys are dropped; ps_sift_count names the counts
 *          rows, which the caller holds too; then ps_sift_apply, which cannot fail.
 * Replay:  a hidden row carries the record it was last changed by, as every row does, so a record
 * is counted once.
 */
#ifndef PS_SIFT_H
#define PS_SIFT_H

#include "base/arena.h"

#include "ps_server/ps_table.h"

/* A dropped key and the filter row that counts it. */
typedef struct ps_sift_note {
    uint64_t mixed_row, key;
} ps_sift_note;
/* What a counts row grows by: filtered, evicted. */
typedef struct ps_sift_add {
    uint64_t by[2];
} ps_sift_add;

typedef struct ps_sift {
    size_t n_dropped, n_fresh, n_evicted;
    const uint64_t *dropped; /* their gradients are left out */
    const uint64_t *fresh;   /* admitted, and maybe known to the filter: it forgets them */
    uint64_t *evicted;
    uint32_t *absent; /* [n_absent] indexes of keys that have no row */
    size_t n_absent;
    uint64_t *rows; /* [n_rows] keys of filter rows, grouped by stripe */
    size_t n_rows;
    uint64_t *slots; /* [n_slots] keys of counts rows, grouped by stripe */
    size_t n_slots;
    ps_sift_add *adds;   /* [n_slots] */
    ps_sift_note *notes; /* [n_notes] by filter row */
    size_t n_notes;
} ps_sift;

/* Which of keys[n] have no row, and the filter rows that may know them. BD_E_NOMEM. */
bd_status ps_sift_ask(ps_sift *s, bd_arena *a, ps_table *t, const uint64_t *keys,
                      size_t n) BD_MUST_CHECK;
/* The same at a replay: rows for the keys that the record says were dropped, and, where the filter
 * has a row a key, for those it pushed. */
bd_status ps_sift_recall(ps_sift *s, bd_arena *a, ps_table *t, const uint64_t *keys, size_t n,
                         const uint64_t *dropped, size_t n_dropped) BD_MUST_CHECK;

/* Keys with their gradients. */
typedef struct ps_sifted {
    const uint64_t *keys;
    const float *values; /* [n x dim] */
    size_t n;
} ps_sifted;
/* Splits g into what is admitted, left in *g (in the arena when something is dropped), and s's
 * dropped keys. draw: ps_admit_ask. BD_E_NOMEM. */
bd_status ps_sift_decide(ps_sift *s, bd_arena *a, ps_table *t, uint64_t draw,
                         ps_sifted *g) BD_MUST_CHECK;

/* Once it is known what is dropped and evicted. BD_E_NOMEM. */
bd_status ps_sift_count(ps_sift *s, bd_arena *a, ps_table *t) BD_MUST_CHECK;

void ps_sift_apply(const ps_sift *s, ps_table *t, const ps_apply *apply);

#endif
