#include "ps_server/ps_rows.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/pages.h"

#include <string.h>

#define MIN_PAGED_BYTES   ((size_t)32 << 10) /* smaller pieces are plain memory */
#define MIN_INDEX_ENTRIES 16u
#define MIN_PAID_SLOTS    16u
#define HAND_ROWS         16u /* the least used of so many leaves */
#define AGE_ROUNDS        4u  /* questions for rows that are away between two halvings, a slot */

void ps_rows_init(ps_rows *r, size_t elems, ps_budget *budget)
{
    memset(r, 0, sizeof *r);
    r->elems = elems;
    r->budget = budget;
    r->free_slot = PS_NO_ROW;
    r->meta_offset = (elems * sizeof(float) + 7) / 8 * 8;
    size_t bytes = r->meta_offset + sizeof(ps_row_meta);
    /* With a budget a row more in memory is worth more than one on cache-line borders. */
    size_t align = bytes < 128      ? 16
                   : budget != NULL ? BD_CACHE_LINE_BYTES / 2
                                    : BD_CACHE_LINE_BYTES;
    r->stride_bytes = (bytes + align - 1) / align * align;
}

static size_t rows_of_block(size_t b)
{
    return (size_t)1 << (PS_ROWS_FIRST - 3 + b / 8);
}

/* Pages are resident as a whole huge page; small pieces would only be rounded up to pages. */
static void *new_piece(size_t n_bytes)
{
    return n_bytes < MIN_PAGED_BYTES ? bd_alloc_aligned(BD_CACHE_LINE_BYTES, n_bytes)
                                     : bd_pages_alloc(n_bytes);
}

static void free_piece(void *p, size_t n_bytes)
{
    if (n_bytes < MIN_PAGED_BYTES) {
        bd_free(p);
    } else {
        bd_pages_free(p, n_bytes);
    }
}

static size_t index_bytes(const ps_rows *r)
{
    return r->index == NULL ? 0 : (r->index_mask + 1) * sizeof *r->index;
}

void ps_rows_deinit(ps_rows *r)
{
    ps_budget_give(r->budget, r->paid_slots * ps_rows_slot_bytes(r) + index_bytes(r));
    if (r->budget != NULL) {
        (void)atomic_fetch_sub(&r->budget->dirty_bytes, r->n_dirty * r->stride_bytes);
    }
    for (size_t b = 0; b < r->n_blocks; b++) {
        free_piece(r->blocks[b], rows_of_block(b) * r->stride_bytes);
    }
    free_piece(r->index, index_bytes(r));
    bd_free(r->uses);
    bd_free(r->sketch);
    bd_free(r->dirty);
    ps_rows_init(r, r->elems, r->budget);
}

static void put(ps_rows_entry *index, size_t mask, uint64_t key, uint64_t mixed, uint32_t row)
{
    size_t i = mixed & mask;
    while (index[i].row_plus_1 != 0) {
        i = (i + 1) & mask;
    }
    index[i].key = key;
    index[i].row_plus_1 = row + 1;
}

/* Half full at most; with a budget two thirds, where the entries that are not there hold rows. */
static bool fits_index(const ps_rows *r, size_t rows, size_t cap)
{
    return r->budget == NULL ? 2 * rows <= cap : 3 * rows <= 2 * cap;
}

/* The size an index for so many rows has. */
static size_t index_cap(const ps_rows *r, size_t rows)
{
    size_t cap = r->index == NULL ? MIN_INDEX_ENTRIES : r->index_mask + 1;
    while (!fits_index(r, rows, cap)) {
        cap *= 2;
    }
    return cap;
}

static bd_status grow_index(ps_rows *r, size_t rows)
{
    size_t cap = index_cap(r, rows);
    if (r->index != NULL && cap == r->index_mask + 1) {
        return BD_OK;
    }
    ps_rows_entry *index = new_piece(cap * sizeof *index);
    if (index == NULL) {
        return BD_E_NOMEM;
    }
    memset(index, 0, cap * sizeof *index);
    for (size_t i = 0; r->index != NULL && i <= r->index_mask; i++) {
        const ps_rows_entry *e = &r->index[i];
        if (e->row_plus_1 != 0) {
            put(index, cap - 1, e->key, bd_mix64(e->key), e->row_plus_1 - 1);
        }
    }
    ps_budget_force(r->budget, cap * sizeof *index - index_bytes(r));
    free_piece(r->index, index_bytes(r));
    r->index = index;
    r->index_mask = cap - 1;
    return BD_OK;
}

static bd_status grow_blocks(ps_rows *r, size_t rows)
{
    while (r->cap_rows < rows) {
        size_t n = rows_of_block(r->n_blocks), bytes = 0;
        uint8_t *b = bd_mul_size(n, r->stride_bytes, &bytes) ? new_piece(bytes) : NULL;
        if (b == NULL) {
            return BD_E_NOMEM;
        }
        r->blocks[r->n_blocks++] = b;
        r->cap_rows += n;
    }
    return BD_OK;
}

/* Twice the size has every count twice, where both of its keys find it. */
static bd_status grow_sketch(ps_rows *r, size_t slots)
{
    size_t had = r->sketch == NULL ? 0 : r->sketch_mask + 1;
    size_t cap = had == 0 ? MIN_INDEX_ENTRIES : had;
    while (cap < PS_ROWS_SKETCH * slots) {
        cap *= 2;
    }
    if (cap == had) {
        return BD_OK;
    }
    uint8_t *sketch = bd_calloc(cap, 1);
    if (sketch == NULL) {
        return BD_E_NOMEM;
    }
    for (size_t i = 0; had != 0 && i < cap; i += had) {
        memcpy(sketch + i, r->sketch, had);
    }
    bd_free(r->sketch);
    r->sketch = sketch;
    r->sketch_mask = cap - 1;
    return BD_OK;
}

static bd_status grow_lists(ps_rows *r, size_t slots)
{
    size_t had = r->cap_uses;
    if (!bd_grow(&r->dirty, &r->cap_dirty, slots, sizeof *r->dirty)) {
        return BD_E_NOMEM;
    }
    if (r->budget == NULL) {
        return BD_OK;
    }
    if (!bd_grow(&r->uses, &r->cap_uses, slots, sizeof *r->uses)) {
        return BD_E_NOMEM;
    }
    for (size_t i = had; i < r->cap_uses; i++) {
        atomic_init(&r->uses[i], 0);
    }
    return grow_sketch(r, slots);
}

/* So many further slots from the budget, or at least `need` of them. Returns how many were paid. */
static size_t pay(ps_rows *r, size_t need)
{
    size_t per = ps_rows_slot_bytes(r);
    size_t ahead = r->paid_slots / 16 + MIN_PAID_SLOTS;
    for (size_t n = need > ahead ? need : ahead;; n = need) {
        /* The index's bytes are charged when it grows; here they are only asked for. */
        size_t index = index_cap(r, r->paid_slots + n) * sizeof(ps_rows_entry) - index_bytes(r);
        if (ps_budget_take(r->budget, n * per + index)) {
            ps_budget_give(r->budget, index);
            r->paid_slots += n;
            return n;
        }
        if (n == need) {
            return 0;
        }
    }
}

bd_status ps_rows_reserve(ps_rows *r, size_t more, bool may_move, size_t *n_moved)
{
    size_t rows = 0, want = 0;
    if (!bd_add_size(r->promised, more, &want) || !bd_add_size(r->n_rows, want, &rows) ||
        rows >= PS_NO_ROW - 64) {
        return BD_E_NOMEM;
    }
    if (r->budget != NULL && rows > r->paid_slots && pay(r, rows - r->paid_slots) == 0) {
        size_t lack = rows - r->paid_slots;
        size_t moved = may_move ? ps_rows_move_out(r, lack, PS_ROWS_ANY_USES) : 0;
        *n_moved += moved;
        rows -= moved;
        if (rows > r->paid_slots) {
            return BD_E_EXHAUSTED;
        }
    }
    size_t slots = r->n_slots > rows ? r->n_slots : rows;
    bd_status rc = grow_index(r, rows > r->paid_slots ? rows : r->paid_slots);
    if (rc == BD_OK) {
        rc = grow_blocks(r, slots);
    }
    return rc == BD_OK ? grow_lists(r, slots) : rc;
}

/* ---- uses of rows that are away ---- */
static uint8_t *place(const ps_rows *r, uint64_t mixed, bool second)
{
    return &r->sketch[(second ? mixed >> 32 : mixed) & r->sketch_mask];
}

static unsigned uses_away(const ps_rows *r, uint64_t mixed)
{
    uint8_t a = *place(r, mixed, false), b = *place(r, mixed, true);
    return a < b ? a : b;
}

static void keep_uses(ps_rows *r, uint64_t mixed, unsigned uses)
{
    for (int i = 0; i < 2; i++) {
        uint8_t *p = place(r, mixed, i != 0);
        *p = *p < uses ? (uint8_t)uses : *p;
    }
}

/* Old uses count half: after as many questions as there are slots a few times over, or when too
 * many rows have reached the top to tell them apart. */
static void age(ps_rows *r)
{
    bool full = r->n_looked > r->n_slots && r->n_top > r->n_looked / 2;
    if (!full && r->n_asked - r->n_aged < AGE_ROUNDS * r->n_slots) {
        return;
    }
    for (size_t i = 0; i < r->n_slots; i++) {
        uint8_t n = atomic_load_explicit(&r->uses[i], memory_order_relaxed);
        atomic_store_explicit(&r->uses[i], n / 2, memory_order_relaxed);
    }
    for (size_t i = 0; i <= r->sketch_mask; i++) {
        r->sketch[i] /= 2;
    }
    r->n_aged = r->n_asked;
    r->n_looked = r->n_top = 0;
}

uint32_t ps_rows_add(ps_rows *r, uint64_t key, uint64_t mixed)
{
    uint32_t row = r->free_slot;
    BD_ASSERT(fits_index(r, r->n_rows + 1, r->index_mask + 1));
    if (row != PS_NO_ROW) {
        r->free_slot = (uint32_t)ps_rows_meta(r, row)->key;
    } else {
        BD_ASSERT(r->n_slots < r->cap_rows);
        row = (uint32_t)r->n_slots++;
    }
    r->n_rows++;
    put(r->index, r->index_mask, key, mixed, row);
    ps_row_meta *m = ps_rows_meta(r, row);
    memset(m, 0, sizeof *m);
    m->key = key;
    m->live = 1;
    if (r->budget != NULL) {
        unsigned uses = uses_away(r, mixed);
        atomic_store_explicit(&r->uses[row], (uint8_t)(uses == 0 ? 1 : uses), memory_order_relaxed);
    }
    return row;
}

static void unindex(ps_rows *r, uint32_t row, uint64_t key)
{
    size_t mask = r->index_mask, hole = bd_mix64(key) & mask;
    while (r->index[hole].row_plus_1 != row + 1) {
        hole = (hole + 1) & mask;
    }
    for (size_t i = (hole + 1) & mask; r->index[i].row_plus_1 != 0; i = (i + 1) & mask) {
        size_t home = bd_mix64(r->index[i].key) & mask;
        if (((i - home) & mask) >= ((i - hole) & mask)) { /* its probe passes the hole */
            r->index[hole] = r->index[i];
            hole = i;
        }
    }
    r->index[hole] = (ps_rows_entry){0};
}

void ps_rows_remove(ps_rows *r, uint32_t row)
{
    ps_row_meta *m = ps_rows_meta(r, row);
    BD_ASSERT(m->live && !m->dirty && !m->writing && !m->held);
    unindex(r, row, m->key);
    if (r->sketch != NULL) {
        keep_uses(r, bd_mix64(m->key), atomic_load_explicit(&r->uses[row], memory_order_relaxed));
    }
    r->left_n = m->seq_n > r->left_n ? m->seq_n : r->left_n;
    memset(m, 0, sizeof *m);
    m->key = r->free_slot;
    r->free_slot = row;
    r->n_rows--;
}

/* The least used of the next few rows that may leave, used less than `uses`; PS_NO_ROW: none of
 * them. Changed rows that are used less than it had to stay: *blocked. */
static uint32_t next_victim(ps_rows *r, unsigned uses, size_t *blocked)
{
    uint32_t best = PS_NO_ROW;
    unsigned least = uses, n_changed[PS_ROWS_MOST_USES + 1] = {0};
    for (size_t i = 0; i < HAND_ROWS && i < r->n_slots; i++) {
        uint32_t row = r->hand;
        r->hand = row + 1 < r->n_slots ? row + 1 : 0;
        unsigned n = atomic_load_explicit(&r->uses[row], memory_order_relaxed);
        r->n_looked++;
        r->n_top += n == PS_ROWS_MOST_USES;
        if (n >= least) {
            continue;
        }
        const ps_row_meta *m = ps_rows_meta(r, row);
        if (!m->live || m->held || m->writing) {
            continue;
        }
        if (m->dirty) {
            n_changed[n]++;
            continue;
        }
        best = row;
        least = n;
    }
    for (unsigned n = 0; n <= PS_ROWS_MOST_USES && n < least; n++) {
        *blocked += n_changed[n];
    }
    return best;
}

size_t ps_rows_move_out(ps_rows *r, size_t want, unsigned uses)
{
    size_t moved = 0, blocked = 0;
    BD_ASSERT(r->budget != NULL);
    if (r->stuck) {
        return 0;
    }
    /* Two rounds of the hand without a row that may leave are enough to know. */
    for (size_t steps = 0; moved < want && steps < 2 * r->n_slots; steps += HAND_ROWS) {
        uint32_t row = next_victim(r, uses, &blocked);
        if (row != PS_NO_ROW) {
            steps = 0;
            r->cold = atomic_load_explicit(&r->uses[row], memory_order_relaxed);
            ps_rows_remove(r, row);
            moved++;
        } else if (uses != PS_ROWS_ANY_USES) {
            break;
        }
    }
    r->stuck = moved < want && uses == PS_ROWS_ANY_USES;
    (void)atomic_fetch_add_explicit(&r->budget->blocked_bytes, blocked * r->stride_bytes,
                                    memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&r->budget->n_moved_out, moved, memory_order_relaxed);
    return moved;
}

static bool can_leave(const ps_row_meta *m)
{
    return !m->live || (!m->dirty && !m->writing && !m->held);
}

/* Free slots in a row, first ones first, after their number has changed. */
static void relist_free(ps_rows *r)
{
    r->free_slot = PS_NO_ROW;
    for (size_t row = r->n_slots; row-- > 0;) {
        ps_row_meta *m = ps_rows_meta(r, (uint32_t)row);
        if (!m->live) {
            m->key = r->free_slot;
            r->free_slot = (uint32_t)row;
        }
    }
}

size_t ps_rows_give(ps_rows *r, size_t *n_moved)
{
    if (r->n_blocks < 2 || r->promised != 0) {
        return 0;
    }
    size_t n = rows_of_block(r->n_blocks - 1), first = r->cap_rows - n;
    for (size_t row = first; row < r->n_slots; row++) {
        if (!can_leave(ps_rows_meta(r, (uint32_t)row))) {
            return 0;
        }
    }
    for (size_t row = first; row < r->n_slots; row++) {
        if (ps_rows_meta(r, (uint32_t)row)->live) {
            ps_rows_remove(r, (uint32_t)row);
            (*n_moved)++;
        }
    }
    r->n_slots = r->n_slots < first ? r->n_slots : first;
    relist_free(r);
    free_piece(r->blocks[--r->n_blocks], n * r->stride_bytes);
    r->cap_rows = first;
    r->hand = r->hand < r->n_slots ? r->hand : 0;
    size_t gave = r->paid_slots > first ? r->paid_slots - first : 0;
    r->paid_slots -= gave;
    return gave;
}

bd_status ps_rows_admit(ps_rows *r, uint64_t mixed, size_t *n_moved)
{
    if (r->budget == NULL || r->sketch == NULL) {
        return ps_rows_reserve(r, 1, true, n_moved);
    }
    unsigned uses = uses_away(r, mixed) + 1;
    keep_uses(r, mixed, uses < PS_ROWS_MOST_USES ? uses : PS_ROWS_MOST_USES);
    r->n_asked++;
    age(r);
    if (r->n_asked - r->last_change < r->n_slots) {
        return ps_rows_reserve(r, 1, true, n_moved);
    }
    bd_status rc = ps_rows_reserve(r, 1, false, n_moved);
    if (rc == BD_E_EXHAUSTED) {
        *n_moved += ps_rows_move_out(r, 1, uses);
        rc = ps_rows_reserve(r, 1, false, n_moved);
    }
    return rc;
}

void ps_rows_list_dirty(ps_rows *r, uint32_t row, uint64_t n)
{
    BD_ASSERT(r->n_dirty < r->cap_dirty);
    if (r->n_dirty == 0) {
        r->oldest_dirty_n = n;
    }
    r->dirty[r->n_dirty++] = row;
    ps_rows_meta(r, row)->dirty = 1;
    if (r->budget != NULL) {
        (void)atomic_fetch_add_explicit(&r->budget->dirty_bytes, r->stride_bytes,
                                        memory_order_relaxed);
    }
}
