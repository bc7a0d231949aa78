/* ps_server/ps_rows.h - the rows of one stripe of one table: index over slabs.
 *
 * Layer:     ps_server (pure, memory only). Includes base/.
 * Threads:   none of its own; the stripe's lock (ps_table.c) guards it. ps_rows_use alone may run
 *            under the lock for reading.
 * Ownership: all memory is owned by the ps_rows; the budget is borrowed.
 * Layout:    a row is u32[elems] followed by ps_row_meta, at a stride that keeps a row of 128 bytes
 *            and more on cache-line borders. Rows live in blocks that grow with the stripe, eight
 *            each time it doubles, so a row never moves, its number finds it by one count of
 *            leading zeros among a few pointers that stay in the caches, and at most an eighth is
 *            room ahead. Larger blocks and a larger index are cut from huge pages (base/pages.h).
 *            Slots of rows that left are used again, last left first.
 * Index:     open addressing, linear probing, load at most 1/2; 16 bytes an entry. Occupancy is the
 *            row number (0: empty), never the key: every 64-bit key is legal. Removal shifts back.
 * Who stays: with a budget each slot counts its uses, up to 15; the count of a row that leaves, and
 *            of one that is asked for while it is away, is kept in a sketch (two places of each key,
 *            the smaller counts). All counts are halved now and then. The hand takes the least
 *            used of the next few rows that are unchanged, not held and not on their way to the
 *            disk. A row that only a lookup wants comes in when it has more uses than the one that
 *            would leave, or when rows are being changed: then its change is next. (Zipf 1.05,
 *            memory for 15 % of the keys: 0.22 to 0.23 of the rows of a batch are missing, with one
 *            mark a slot 0.28, with the most frequent keys in memory it would be 0.20.)
 * Cost:      find is O(1); grow rehashes the stripe (1/64 of the table); move out is one pass of
 * the hand over at most two rounds.
 */
#ifndef PS_ROWS_H
#define PS_ROWS_H

#include "ps_server/ps_budget.h"
#include "ps_server/ps_types.h"

#include <stdatomic.h>

#define PS_ROWS_FIRST      6u /* log2 of the rows in the first eight blocks */
#define PS_ROWS_MAX_BLOCKS ((32 - PS_ROWS_FIRST) * 8)
#define PS_ROWS_MOST_USES  15u
#define PS_ROWS_SKETCH     4u /* counts of the sketch a slot, up to the next power of two */
#define PS_NO_ROW          UINT32_MAX
#define PS_MAX_FREQ        ((1u << 27) - 1)

typedef struct ps_row_meta {
    uint64_t key;         /* a free slot: the next free one */
    uint64_t seq_n;       /* last record that changed it */
    uint64_t last_step;   /* of the last push that named it */
    uint32_t last_time;   /* of that push, seconds since 1970 */
    uint32_t freq : 27;   /* pushes that named it; sticks at the top */
    uint32_t dirty : 1;   /* changed since it was last taken for the store */
    uint32_t writing : 1; /* taken, and not yet in the store */
    uint32_t held : 1;    /* a record that is being applied needs it */
    uint32_t live : 1;    /* the slot is in use */
    uint32_t dead : 1;    /* evicted for good: a tombstone, reads as absent */
} ps_row_meta;

typedef struct ps_rows_entry {
    uint64_t key;
    uint32_t row_plus_1; /* 0: empty */
    uint32_t unused;
} ps_rows_entry;

typedef struct ps_rows {
    size_t elems; /* 4-byte words of a row: stored weights and f32 state */
    size_t stride_bytes;
    size_t meta_offset;
    ps_budget *budget;      /* borrowed; NULL: none */
    ps_rows_entry *index;   /* owned; NULL while empty */
    size_t index_mask;      /* capacity - 1 */
    size_t n_rows;          /* slots in use */
    size_t n_slots;         /* slots ever used: rows are scanned over [0, n_slots) */
    size_t paid_slots;      /* slots the budget has been charged for */
    size_t promised;        /* free slots that belong to the record being applied */
    size_t lacks;           /* slots it could not get for the last record; ps_tables_share */
    uint32_t free_slot;     /* the first free one; PS_NO_ROW: none */
    uint32_t hand;          /* the next row to look at */
    bool stuck;             /* the hand found nothing; true until rows reach the store */
    uint8_t cold;           /* uses of the last row that left */
    size_t n_asked, n_aged; /* rows asked for while away, and when the counts were halved */
    size_t last_change;     /* n_asked when a row was last changed */
    size_t n_looked, n_top; /* slots the hand has looked at since the halving, those at the top */
    uint64_t left_n;        /* newest record in a row that has left memory */
    size_t n_blocks, cap_rows;           /* room in the blocks */
    uint8_t *blocks[PS_ROWS_MAX_BLOCKS]; /* owned [n_blocks] */
    _Atomic uint8_t *uses;               /* owned [cap_uses] */
    size_t cap_uses;
    uint8_t *sketch; /* owned [sketch_mask + 1]: uses of rows that are away; NULL: none */
    size_t sketch_mask;
    uint32_t *dirty; /* owned: rows changed since the last write-back, oldest first */
    size_t n_dirty, cap_dirty;
    uint64_t oldest_dirty_n; /* no record before it is needed by a dirty row */
} ps_rows;

void ps_rows_init(ps_rows *r, size_t elems, ps_budget *budget);
void ps_rows_deinit(ps_rows *r);

/* Room for `more` further rows besides the promised ones, so that ps_rows_add and ps_rows_touch
 * cannot fail. With may_move, rows that are not in use leave memory for it (their number is added
 * to *n_moved). BD_E_NOMEM; BD_E_EXHAUSTED: the budget is used up and nothing (more) can leave. */
bd_status ps_rows_reserve(ps_rows *r, size_t more, bool may_move, size_t *n_moved) BD_MUST_CHECK;

__attribute__((always_inline)) static inline void ps_rows_prefetch(const ps_rows *r, uint64_t mixed)
{
    if (r->index != NULL) {
        __builtin_prefetch(&r->index[mixed & r->index_mask]);
    }
}
/* Row number or PS_NO_ROW. mixed = bd_mix64(key). Finds tombstones too. */
static inline uint32_t ps_rows_find(const ps_rows *r, uint64_t key, uint64_t mixed)
{
    for (size_t i = mixed & r->index_mask; r->index != NULL; i = (i + 1) & r->index_mask) {
        const ps_rows_entry *e = &r->index[i];
        if (e->row_plus_1 == 0) {
            break;
        }
        if (e->key == key) {
            return e->row_plus_1 - 1;
        }
    }
    return PS_NO_ROW;
}
/* Adds a key that is absent; needs room. Weights and state are uninitialised, meta is zero but for
 * key and live. */
uint32_t ps_rows_add(ps_rows *r, uint64_t key, uint64_t mixed);
/* Takes a row that is neither changed nor on its way to the store out of memory. */
void ps_rows_remove(ps_rows *r, uint32_t row);
/* ps_rows_give - gives up its last block: the rows in it leave memory (added to *n_moved) and its
 * memory is freed. Returns how many slots had been paid for in it; they stay charged to the budget
 * and are the caller's. 0: one of its rows has changed or is in use, or there is no other block. */
size_t ps_rows_give(ps_rows *r, size_t *n_moved);
/* Up to `want` rows that are used less than `uses` leave; returns how many did. */
size_t ps_rows_move_out(ps_rows *r, size_t want, unsigned uses);
#define PS_ROWS_ANY_USES 255u
/* ps_rows_admit - room for a row that a lookup has found away, if it is worth it: see above. The
 * question counts as a use. BD_E_EXHAUSTED: it is not, or nothing can leave. BD_E_NOMEM. */
bd_status ps_rows_admit(ps_rows *r, uint64_t mixed, size_t *n_moved) BD_MUST_CHECK;
/* Lists a row that is not dirty as changed by record n: ps_rows_touch. */
void ps_rows_list_dirty(ps_rows *r, uint32_t row, uint64_t n);
/* Row bytes with all that belongs to a slot, for sums over budgets. */
static inline size_t ps_rows_slot_bytes(const ps_rows *r)
{
    return r->stride_bytes + sizeof(uint8_t) + sizeof(uint32_t) + (size_t)2 * PS_ROWS_SKETCH;
}

/* The row was used. Does nothing without a budget. (Of two at once one may be lost.) */
static inline void ps_rows_use(const ps_rows *r, uint32_t row)
{
    if (r->budget != NULL) {
        uint8_t n = atomic_load_explicit(&r->uses[row], memory_order_relaxed);
        if (n < PS_ROWS_MOST_USES) {
            atomic_store_explicit(&r->uses[row], (uint8_t)(n + 1), memory_order_relaxed);
        }
    }
}
/* It is among those that leave next. */
static inline bool ps_rows_is_cold(const ps_rows *r, uint32_t row)
{
    return atomic_load_explicit(&r->uses[row], memory_order_relaxed) <= r->cold + 1u;
}

/* Block b holds 2^(PS_ROWS_FIRST - 3 + b / 8) rows. */
static inline float *ps_rows_at(const ps_rows *r, uint32_t row)
{
    uint64_t v = (uint64_t)row + (1u << PS_ROWS_FIRST);
    unsigned part = 63u - (unsigned)__builtin_clzll(v) - 3u; /* log2 of the block's rows */
    uint64_t in_block = v & ((1ull << part) - 1);
    uint64_t block = (uint64_t)(part - (PS_ROWS_FIRST - 3u)) * 8 + (v >> part) - 8;
    return (float *)(void *)(r->blocks[block] + in_block * r->stride_bytes);
}
static inline ps_row_meta *ps_rows_meta(const ps_rows *r, uint32_t row)
{
    return (ps_row_meta *)(void *)((uint8_t *)ps_rows_at(r, row) + r->meta_offset);
}

/* Marks it changed by record n; needs room in the dirty list (ps_rows_reserve). */
static inline void ps_rows_touch(ps_rows *r, uint32_t row, uint64_t n)
{
    r->last_change = r->n_asked;
    if (!ps_rows_meta(r, row)->dirty) {
        ps_rows_list_dirty(r, row, n);
    }
}

/* A number that may be out of date: is it the row of this key? Touches the row's own header only. */
static inline bool ps_rows_is_row_of(const ps_rows *r, uint32_t row, uint64_t key)
{
    if (row >= r->n_slots) {
        return false;
    }
    const ps_row_meta *m = ps_rows_meta(r, row);
    return m->live && m->key == key;
}

#endif
