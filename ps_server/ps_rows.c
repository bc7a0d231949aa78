#include "ps_server/ps_rows.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/pages.h"

#include <string.h>

#define MIN_PAGED_BYTES   ((size_t)32 << 10) /* smaller pieces are plain memory */
#define MIN_INDEX_ENTRIES 16u
#define MIN_PAID_SLOTS    16u

void ps_rows_init(ps_rows *r, size_t elems, ps_budget *budget)
{
    memset(r, 0, sizeof *r);
    r->elems = elems;
    r->budget = budget;
    r->free_slot = PS_NO_ROW;
    r->meta_offset = (elems * sizeof(float) + 7) / 8 * 8;
    size_t bytes = r->meta_offset + sizeof(ps_row_meta);
    size_t align = bytes >= 128 ? BD_CACHE_LINE_BYTES : 16;
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
    bd_free(r->marks);
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

/* The size an index for so many rows has. */
static size_t index_cap(const ps_rows *r, size_t rows)
{
    size_t cap = r->index == NULL ? MIN_INDEX_ENTRIES : r->index_mask + 1;
    while (cap < 2 * rows) {
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

static bd_status grow_lists(ps_rows *r, size_t slots)
{
    size_t had = r->cap_marks;
    if (!bd_grow(&r->dirty, &r->cap_dirty, slots, sizeof *r->dirty)) {
        return BD_E_NOMEM;
    }
    if (r->budget != NULL) {
        if (!bd_grow(&r->marks, &r->cap_marks, slots, sizeof *r->marks)) {
            return BD_E_NOMEM;
        }
        for (size_t i = had; i < r->cap_marks; i++) {
            atomic_init(&r->marks[i], 0);
        }
    }
    return BD_OK;
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
        size_t moved = may_move ? ps_rows_move_out(r, rows - r->paid_slots) : 0;
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

uint32_t ps_rows_add(ps_rows *r, uint64_t key, uint64_t mixed)
{
    uint32_t row = r->free_slot;
    BD_ASSERT(2 * (r->n_rows + 1) <= r->index_mask + 1);
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
    ps_rows_use(r, row);
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
    r->left_n = m->seq_n > r->left_n ? m->seq_n : r->left_n;
    memset(m, 0, sizeof *m);
    m->key = r->free_slot;
    r->free_slot = row;
    r->n_rows--;
}

size_t ps_rows_move_out(ps_rows *r, size_t want)
{
    size_t moved = 0, blocked = 0;
    BD_ASSERT(r->budget != NULL);
    if (r->stuck) {
        return 0;
    }
    for (size_t steps = 0; moved < want && steps < 2 * r->n_slots; steps++) {
        uint32_t row = r->hand;
        r->hand = row + 1 < r->n_slots ? row + 1 : 0;
        if (atomic_load_explicit(&r->marks[row], memory_order_relaxed) != 0) {
            atomic_store_explicit(&r->marks[row], 0, memory_order_relaxed);
            continue;
        }
        const ps_row_meta *m = ps_rows_meta(r, row);
        if (!m->live || m->held || m->writing) {
            continue;
        }
        if (m->dirty) {
            blocked++;
            continue;
        }
        ps_rows_remove(r, row);
        moved++;
    }
    r->stuck = moved < want;
    (void)atomic_fetch_add_explicit(&r->budget->blocked_bytes, blocked * r->stride_bytes,
                                    memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&r->budget->n_moved_out, moved, memory_order_relaxed);
    return moved;
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
