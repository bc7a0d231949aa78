/* All rows of a table that is in memory as a whole: its hash, its pages in key order. */
#include "base/assert.h"
#include "base/mem.h"

#include "ps_server/ps_hot.h"
#include "ps_server/ps_table_int.h"

#include <stdlib.h>
#include <string.h>

#define HOT_ROWS 8192u /* looked at in one hold of a lock */

uint64_t ps_table_hash_row(const ps_spec *spec, uint64_t key, const void *row)
{
    size_t bytes = (spec->weight_words + spec->state_elems) * sizeof(float);
    return bd_hash64(row, bytes, bd_mix64(spec->name_hash ^ bd_mix64(key)));
}

uint64_t ps_table_hash(ps_table *t, uint64_t *n_rows)
{
    uint64_t sum = 0;
    *n_rows = 0;
    for (size_t s = 0; s < PS_N_STRIPES; s++) {
        const ps_rows *r = &t->stripes[s].rows;
        ps_stripe_read_lock(&t->stripes[s]);
        for (uint32_t i = 0; i < r->n_slots; i++) {
            const ps_row_meta *m = ps_rows_meta(r, i);
            if (m->live && !m->dead) {
                sum += ps_table_hash_row(&t->spec, m->key, ps_rows_at(r, i));
                ++*n_rows;
            }
        }
        ps_stripe_unlock(&t->stripes[s]);
    }
    return sum;
}

static void offer_rows(const ps_rows *r, size_t at, size_t end, ps_hot *hot)
{
    for (size_t i = at; i < end; i++) {
        const ps_row_meta *m = ps_rows_meta(r, (uint32_t)i);
        if (m->live && !m->dead) {
            ps_hot_offer(hot, &(ps_hot_key){m->key, m->last_step, m->freq});
        }
    }
}

void ps_table_hot(ps_table *t, ps_hot *hot)
{
    for (size_t s = 0; s < PS_N_STRIPES; s++) {
        const ps_rows *r = &t->stripes[s].rows;
        bool more = true;
        for (size_t at = 0; more; at += HOT_ROWS) { /* rows that come meanwhile may be missed */
            ps_stripe_read_lock(&t->stripes[s]);
            more = r->n_slots > at && r->n_slots - at > HOT_ROWS;
            offer_rows(r, at, more ? at + HOT_ROWS : r->n_slots, hot);
            ps_stripe_unlock(&t->stripes[s]);
        }
    }
}

/* ---- pages ---- */
/* heap[n] is a max-heap: its root is the largest of the smallest keys seen. */
static void sift_down(uint64_t *heap, size_t n, size_t i)
{
    for (;;) {
        size_t big = 2 * i + 1;
        if (big >= n) {
            return;
        }
        if (big + 1 < n && heap[big + 1] > heap[big]) {
            big++;
        }
        if (heap[i] >= heap[big]) {
            return;
        }
        uint64_t x = heap[i];
        heap[i] = heap[big];
        heap[big] = x;
        i = big;
    }
}

static void sift_up(uint64_t *heap, size_t i)
{
    while (i > 0 && heap[(i - 1) / 2] < heap[i]) {
        uint64_t x = heap[i];
        heap[i] = heap[(i - 1) / 2];
        heap[(i - 1) / 2] = x;
        i = (i - 1) / 2;
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

/* The `cap` smallest keys >= from, sorted; returns how many. */
static size_t smallest_keys(ps_table *t, uint64_t from, uint64_t *heap, size_t cap)
{
    size_t n = 0;
    for (size_t s = 0; s < PS_N_STRIPES; s++) {
        const ps_rows *r = &t->stripes[s].rows;
        ps_stripe_read_lock(&t->stripes[s]);
        for (uint32_t i = 0; i < r->n_slots; i++) {
            const ps_row_meta *m = ps_rows_meta(r, i);
            uint64_t key = m->key;
            if (!m->live || m->dead || key < from) {
                continue;
            }
            if (n < cap) {
                heap[n] = key;
                sift_up(heap, n++);
            } else if (key < heap[0]) {
                heap[0] = key;
                sift_down(heap, n, 0);
            }
        }
        ps_stripe_unlock(&t->stripes[s]);
    }
    qsort(heap, n, sizeof *heap, by_value);
    return n;
}

bd_status ps_table_page(ps_table *t, uint64_t from, size_t max_rows, ps_page *page)
{
    BD_ASSERT(max_rows > 0);
    size_t dim = t->spec.dim, se = t->spec.state_elems;
    uint64_t *heap = bd_alloc((max_rows + 1) * sizeof *heap);
    if (heap == NULL) {
        return BD_E_NOMEM;
    }
    size_t found = smallest_keys(t, from, heap, max_rows + 1);
    page->more = found > max_rows;
    page->next = page->more ? heap[max_rows] : 0;
    page->n = page->more ? max_rows : found;
    for (size_t i = 0; i < page->n; i++) {
        ps_stripe *st = &t->stripes[ps_stripe_of_key(heap[i])];
        page->keys[i] = heap[i];
        ps_stripe_read_lock(st);
        uint32_t row = ps_rows_find(&st->rows, heap[i], bd_mix64(heap[i]));
        if (row == PS_NO_ROW) { /* it has left since: the caller turns to the store */
            ps_stripe_unlock(st);
            bd_free(heap);
            return BD_E_STATE;
        }
        const float *w = ps_rows_at(&st->rows, row);
        num_row_decode(t->spec.dtype, w, dim, page->rows + i * dim);
        if (page->state != NULL) {
            memcpy(page->state + i * se, w + t->spec.weight_words, se * sizeof(float));
        }
        ps_stripe_unlock(st);
    }
    bd_free(heap);
    return BD_OK;
}
