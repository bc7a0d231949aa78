#include "base/assert.h"

#include "proto/px_int.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bulk bytes are the machine's own");

px_bulk px_bulk_of(bd_buf *buf, size_t offset_bytes, size_t n_elems, size_t elem_bytes)
{
    px_bulk b = {.elem_bytes = elem_bytes};
    if (n_elems > 0) {
        b.n_bytes = n_elems * elem_bytes;
        BD_ASSERT(offset_bytes <= buf->n_bytes &&
                  n_elems <= (buf->n_bytes - offset_bytes) / elem_bytes);
        b.one = (px_span){buf, buf->bytes + offset_bytes, b.n_bytes, 0};
        b.n_spans = 1;
    }
    return b;
}

size_t px_bulk_count(const px_bulk *b)
{
    return b->elem_bytes == 0 ? 0 : b->n_bytes / b->elem_bytes;
}

const px_span *px_bulk_span(const px_bulk *b, size_t i)
{
    BD_DASSERT(i < b->n_spans);
    return b->n_spans == 1 ? &b->one : &b->spans[i];
}

bool px_bulk_append(px_bulk *b, bd_arena *arena, bd_buf *buf, const uint8_t *bytes, size_t n_bytes)
{
    px_span next = {buf, bytes, n_bytes, b->n_bytes};
    if (n_bytes == 0) {
        return true;
    }
    if (b->n_spans > 0) {
        px_span *last = b->n_spans == 1 ? &b->one : &b->spans[b->n_spans - 1];
        if (last->buf == buf && last->bytes + last->n_bytes == bytes) {
            last->n_bytes += n_bytes;
            b->n_bytes += n_bytes;
            return true;
        }
    }
    if (b->n_spans == 0) {
        b->one = next;
    } else {
        if (b->n_spans + 1 > b->cap_spans) {
            size_t cap = b->cap_spans == 0 ? 8 : 2 * b->cap_spans;
            px_span *grown = bd_arena_alloc(arena, cap * sizeof *grown);
            if (grown == NULL) {
                return false;
            }
            memcpy(grown, b->n_spans == 1 ? &b->one : b->spans, b->n_spans * sizeof *grown);
            b->spans = grown;
            b->cap_spans = cap;
        }
        b->spans[b->n_spans] = next;
    }
    b->n_spans++;
    b->n_bytes += n_bytes;
    return true;
}

/* The span that holds byte `at` of the field; at < n_bytes. */
static size_t find_span(const px_bulk *b, size_t at)
{
    size_t lo = 0, hi = b->n_spans; /* span lo begins at or before `at`, span hi after it */
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (px_bulk_span(b, mid)->at_bytes <= at) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static void assert_inside(const px_bulk *b, size_t first, size_t n)
{
    size_t count = px_bulk_count(b);
    BD_ASSERT(first <= count && n <= count - first);
}

static bool is_aligned(const uint8_t *p, size_t elem_bytes)
{
    return ((uintptr_t)p & (elem_bytes - 1)) == 0;
}

void px_bulk_copy(const px_bulk *b, size_t first, size_t n, void *dst)
{
    assert_inside(b, first, n);
    size_t at = first * b->elem_bytes, left = n * b->elem_bytes;
    uint8_t *out = dst;
    for (size_t i = left > 0 ? find_span(b, at) : 0; left > 0; i++) {
        const px_span *s = px_bulk_span(b, i);
        size_t skip = at - s->at_bytes;
        size_t take = s->n_bytes - skip < left ? s->n_bytes - skip : left;
        memcpy(out, s->bytes + skip, take);
        out += take;
        at += take;
        left -= take;
    }
}

const void *px_bulk_ptr(const px_bulk *b, size_t first, size_t n)
{
    assert_inside(b, first, n);
    if (n == 0) {
        return b;
    }
    size_t at = first * b->elem_bytes;
    const px_span *s = px_bulk_span(b, find_span(b, at));
    size_t skip = at - s->at_bytes;
    bool whole = n * b->elem_bytes <= s->n_bytes - skip;
    return whole && is_aligned(s->bytes + skip, b->elem_bytes) ? s->bytes + skip : NULL;
}

void px_walk_init(px_walk *w, const px_bulk *b)
{
    *w = (px_walk){b, 0, 0};
}

const void *px_walk_next(px_walk *w, size_t n, void *scratch)
{
    const px_bulk *b = w->bulk;
    size_t left = n * b->elem_bytes;
    uint8_t *out = scratch;
    while (left > 0) {
        BD_ASSERT(w->span_idx < b->n_spans);
        const px_span *s = px_bulk_span(b, w->span_idx);
        const uint8_t *p = s->bytes + w->in_span_bytes;
        size_t here = s->n_bytes - w->in_span_bytes;
        size_t take = here < left ? here : left;
        bool in_place = out == scratch && take == left && is_aligned(p, b->elem_bytes);
        w->in_span_bytes += take;
        if (w->in_span_bytes == s->n_bytes) {
            w->span_idx++;
            w->in_span_bytes = 0;
        }
        if (in_place) {
            return p;
        }
        memcpy(out, p, take);
        out += take;
        left -= take;
    }
    return scratch;
}
