/* Walks a message where it lies in its slices. Every length is checked against what its surrounding
 * message has left before anything is skipped, noted or allocated; nothing is read past `end`. */
#include "base/assert.h"

#include "proto/px_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_GROUP_DEPTH 32

typedef struct reader {
    const bd_chain *chain;
    size_t piece_idx;
    size_t in_piece_bytes;
    size_t pos; /* from the start of the chain */
    const px_limits *limits;
    bd_arena *arena;
    bd_err *err;
} reader;

/* One field being read: for error texts. */
typedef struct where {
    const px_desc *desc;
    const char *field; /* NULL: a field this version does not know */
    uint32_t number;
} where;

static bd_status fail(const reader *r, const where *w, const char *reason, uint64_t number)
{
    char unknown[32];
    const char *field = w->field;
    if (field == NULL) {
        (void)snprintf(unknown, sizeof unknown, "field %" PRIu32, w->number);
        field = unknown;
    }
    return bd_err_set(r->err, BD_E_CORRUPT, "%s.%s: %s (%" PRIu64 ") at byte %zu", w->desc->name,
                      field, reason, number, r->pos);
}

static bd_status no_memory(const reader *r, const where *w)
{
    return bd_err_set(r->err, BD_E_NOMEM, "decode %s.%s", w->desc->name, w->field);
}

/* The bytes at the reader that are contiguous, at most max; *n > 0 as long as max > 0 and the chain
 * has bytes left. */
static const uint8_t *window(reader *r, size_t max, size_t *n, bd_buf **buf)
{
    const bd_piece *p = &r->chain->pieces[r->piece_idx];
    while (r->in_piece_bytes == p->n_bytes) { /* also skips empty pieces */
        p = &r->chain->pieces[++r->piece_idx];
        r->in_piece_bytes = 0;
    }
    size_t here = p->n_bytes - r->in_piece_bytes;
    *n = here < max ? here : max;
    if (buf != NULL) {
        *buf = p->buf;
    }
    return bd_piece_bytes(p) + r->in_piece_bytes;
}

static void advance(reader *r, size_t n)
{
    r->in_piece_bytes += n;
    r->pos += n;
}

static void skip(reader *r, size_t n)
{
    size_t here;
    for (; n > 0; n -= here) {
        (void)window(r, n, &here, NULL);
        advance(r, here);
    }
}

static void read_bytes(reader *r, void *dst, size_t n)
{
    uint8_t *out = dst;
    size_t here;
    for (; n > 0; n -= here) {
        const uint8_t *p = window(r, n, &here, NULL);
        memcpy(out, p, here);
        out += here;
        advance(r, here);
    }
}

static bd_status read_varint(reader *r, size_t end, const where *w, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        size_t n;
        if (r->pos >= end) {
            return fail(r, w, "number cut off after bytes", shift / 7);
        }
        uint8_t byte = *window(r, 1, &n, NULL);
        advance(r, 1);
        v |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if (byte < 0x80) {
            *out = v;
            return BD_OK;
        }
    }
    return fail(r, w, "number longer than 10 bytes", v);
}

static bd_status read_length(reader *r, size_t end, const where *w, size_t *out)
{
    uint64_t n = 0;
    bd_status rc = read_varint(r, end, w, &n);
    if (rc == BD_OK && n > end - r->pos) {
        rc = fail(r, w, "length exceeds the message", n);
    }
    if (rc == BD_OK) {
        *out = (size_t)n;
    }
    return rc;
}

static bd_status read_tag(reader *r, size_t end, const px_desc *d, uint32_t *number, int *wire)
{
    where w = {d, NULL, 0};
    uint64_t tag = 0;
    bd_status rc = read_varint(r, end, &w, &tag);
    if (rc != BD_OK) {
        return rc;
    }
    if (tag > UINT32_MAX || tag >> 3 == 0) {
        return fail(r, &w, "not a field tag", tag);
    }
    *number = (uint32_t)(tag >> 3);
    *wire = (int)(tag & 7);
    return BD_OK;
}

static bd_status skip_field(reader *r, size_t end, const where *w, int wire, int depth);

/* Skips up to the end mark of the group w->number. */
static bd_status skip_group(reader *r, size_t end, const where *w, int depth)
{
    if (depth >= MAX_GROUP_DEPTH) {
        return fail(r, w, "groups nested too deep", (uint64_t)depth);
    }
    for (;;) {
        where inner = {w->desc, NULL, 0};
        int wire = 0;
        bd_status rc = read_tag(r, end, w->desc, &inner.number, &wire);
        if (rc != BD_OK) {
            return rc;
        }
        if (wire == PX_WIRE_END) {
            return inner.number == w->number
                       ? BD_OK
                       : fail(r, w, "group ended by the mark of field", inner.number);
        }
        rc = skip_field(r, end, &inner, wire, depth + 1);
        if (rc != BD_OK) {
            return rc;
        }
    }
}

static bd_status skip_field(reader *r, size_t end, const where *w, int wire, int depth)
{
    uint64_t ignored;
    size_t n = 0;
    bd_status rc = BD_OK;
    switch (wire) {
    case PX_WIRE_VARINT:
        return read_varint(r, end, w, &ignored);
    case PX_WIRE_64:
        n = 8;
        break;
    case PX_WIRE_32:
        n = 4;
        break;
    case PX_WIRE_LEN:
        rc = read_length(r, end, w, &n);
        break;
    case PX_WIRE_GROUP:
        return skip_group(r, end, w, depth);
    default:
        return fail(r, w, "unexpected wire type", (uint64_t)wire);
    }
    if (rc == BD_OK && n > end - r->pos) {
        rc = fail(r, w, "value cut off, bytes left", end - r->pos);
    }
    if (rc == BD_OK) {
        skip(r, n);
    }
    return rc;
}

static void store_scalar(const px_field *f, uint64_t v, uint8_t *member)
{
    uint32_t u32 = (uint32_t)v;
    int32_t i32;
    bool flag = v != 0;
    switch (f->kind) {
    case PX_S32:
        u32 = (u32 >> 1) ^ (0 - (u32 & 1));
        /* fall through */
    case PX_U32:
    case PX_ENUM:
        memcpy(&i32, &u32, sizeof i32);
        memcpy(member, &i32, sizeof i32);
        break;
    case PX_BOOL:
        memcpy(member, &flag, sizeof flag);
        break;
    default:
        memcpy(member, &v, sizeof v);
        break;
    }
}

static bd_status read_bulk(reader *r, size_t end, const where *w, px_bulk *b, size_t elem_bytes,
                           int wire)
{
    size_t n = elem_bytes;
    if (wire == PX_WIRE_LEN) {
        bd_status rc = read_length(r, end, w, &n);
        if (rc != BD_OK) {
            return rc;
        }
        if (n % elem_bytes != 0) {
            return fail(r, w,
                        elem_bytes == 8 ? "packed length is not a multiple of 8"
                                        : "packed length is not a multiple of 4",
                        n);
        }
    } else if (n > end - r->pos) {
        return fail(r, w, "value cut off, bytes left", end - r->pos);
    }
    b->elem_bytes = elem_bytes;
    size_t here;
    for (; n > 0; n -= here) {
        bd_buf *buf;
        const uint8_t *p = window(r, n, &here, &buf);
        if (!px_bulk_append(b, r->arena, buf, p, here)) {
            return no_memory(r, w);
        }
        advance(r, here);
    }
    return BD_OK;
}

static bd_status read_text(reader *r, size_t end, const where *w, uint8_t *member)
{
    size_t n = 0;
    bd_status rc = read_length(r, end, w, &n);
    if (rc != BD_OK) {
        return rc;
    }
    if (n > r->limits->max_text_bytes) {
        return fail(r, w, "text too long, bytes", n);
    }
    char *text = bd_arena_alloc(r->arena, n + 1);
    if (text == NULL) {
        return no_memory(r, w);
    }
    read_bytes(r, text, n);
    text[n] = '\0';
    memcpy(member, &text, sizeof text);
    return BD_OK;
}

/* Room for one more element of a list; its count grows. NULL: no memory. Arrays double, so their
 * capacity follows from their count. */
static void *list_grow(reader *r, const px_field *f, uint8_t *msg, size_t n)
{
    uint8_t *items;
    memcpy(&items, msg + f->offset, sizeof items);
    size_t size = f->sub->size_bytes;
    if (n == 0 || (n >= 4 && (n & (n - 1)) == 0)) {
        uint8_t *grown = bd_arena_alloc(r->arena, (n == 0 ? 4 : 2 * n) * size);
        if (grown == NULL) {
            return NULL;
        }
        if (n > 0) {
            memcpy(grown, items, n * size);
        }
        items = grown;
        memcpy(msg + f->offset, &items, sizeof items);
    }
    memset(items + n * size, 0, size);
    n++;
    memcpy(msg + f->count_offset, &n, sizeof n);
    return items + (n - 1) * size;
}

/* The member of the oneof that came last wins; the same one again is merged. */
static void *oneof_choose(reader *r, const px_desc *d, const px_field *f, uint8_t *msg)
{
    void *sub;
    memcpy(&sub, msg + f->offset, sizeof sub);
    if (sub != NULL) {
        return sub;
    }
    for (size_t i = 0; i < d->n_fields; i++) {
        if (d->fields[i].kind == PX_ONE) {
            memcpy(msg + d->fields[i].offset, &sub, sizeof sub);
        }
    }
    sub = bd_arena_calloc(r->arena, 1, f->sub->size_bytes);
    memcpy(msg + f->offset, &sub, sizeof sub);
    return sub;
}

static bd_status read_message(reader *r, size_t end, const px_desc *d, uint8_t *msg);

static bd_status read_sub(reader *r, size_t end, const where *w, const px_field *f, uint8_t *msg)
{
    size_t n, i = 0;
    void *sub;
    bd_status rc = read_length(r, end, w, &n);
    if (rc != BD_OK) {
        return rc;
    }
    if (f->kind == PX_LIST) {
        memcpy(&i, msg + f->count_offset, sizeof i);
        if (i >= r->limits->max_tables) {
            return fail(r, w, "too many entries, limit", r->limits->max_tables);
        }
        sub = list_grow(r, f, msg, i);
    } else {
        sub = oneof_choose(r, w->desc, f, msg);
    }
    if (sub == NULL) {
        return no_memory(r, w);
    }
    rc = read_message(r, r->pos + n, f->sub, sub);
    if (rc != BD_OK) {
        (void)bd_err_wrap(r->err, "%s.%s[%zu]", w->desc->name, f->name, i);
    }
    return rc;
}

/* A known field with a foreign wire type is skipped like an unknown one, as protobuf readers do. */
static bd_status read_field(reader *r, size_t end, const px_desc *d, const px_field *f, int wire,
                            uint8_t *msg)
{
    where w = {d, f->name, f->number};
    uint8_t *member = msg + f->offset;
    uint64_t v = 0;
    bd_status rc;
    switch (f->kind) {
    case PX_BYTES:
        if (wire == PX_WIRE_LEN) {
            px_bulk *b = (px_bulk *)(void *)member;
            *b = (px_bulk){.spans = b->spans, .cap_spans = b->cap_spans};
            return read_bulk(r, end, &w, b, 1, wire);
        }
        break;
    case PX_BULK4:
    case PX_BULKU4:
    case PX_BULK8:
        if (wire == PX_WIRE_LEN || wire == (f->kind == PX_BULK8 ? PX_WIRE_64 : PX_WIRE_32)) {
            return read_bulk(r, end, &w, (px_bulk *)(void *)member, f->kind == PX_BULK8 ? 8 : 4,
                             wire);
        }
        break;
    case PX_LIST:
    case PX_ONE:
        if (wire == PX_WIRE_LEN) {
            return read_sub(r, end, &w, f, msg);
        }
        break;
    case PX_TEXT:
        if (wire == PX_WIRE_LEN) {
            return read_text(r, end, &w, member);
        }
        break;
    case PX_DOUBLE:
    case PX_FIX64:
        if (wire == PX_WIRE_64) {
            if (end - r->pos < sizeof v) {
                return fail(r, &w, "value cut off, bytes left", end - r->pos);
            }
            read_bytes(r, &v, sizeof v);
            memcpy(member, &v, sizeof v);
            return BD_OK;
        }
        break;
    default:
        if (wire == PX_WIRE_VARINT) {
            rc = read_varint(r, end, &w, &v);
            if (rc == BD_OK) {
                store_scalar(f, v, member);
            }
            return rc;
        }
        break;
    }
    return skip_field(r, end, &w, wire, 0);
}

static bd_status read_message(reader *r, size_t end, const px_desc *d, uint8_t *msg)
{
    while (r->pos < end) {
        uint32_t number = 0;
        int wire = 0;
        bd_status rc = read_tag(r, end, d, &number, &wire);
        if (rc != BD_OK) {
            return rc;
        }
        const px_field *f = NULL;
        for (size_t i = 0; i < d->n_fields && f == NULL; i++) {
            f = d->fields[i].number == number ? &d->fields[i] : NULL;
        }
        if (f != NULL) {
            rc = read_field(r, end, d, f, wire, msg);
        } else {
            where w = {d, NULL, number};
            rc = skip_field(r, end, &w, wire, 0);
        }
        if (rc != BD_OK) {
            return rc;
        }
    }
    return BD_OK;
}

bd_status px_decode(const px_desc *d, const bd_chain *in, const px_limits *limits, bd_arena *arena,
                    void *out, bd_err *err)
{
    const px_limits defaults = PX_LIMITS_DEFAULT;
    reader r = {.chain = in, .arena = arena, .err = err};
    r.limits = limits != NULL ? limits : &defaults;
    if (in->n_bytes > r.limits->max_bytes) {
        return bd_err_set(err, BD_E_CORRUPT, "%s: %zu bytes, the limit is %zu", d->name,
                          in->n_bytes, r.limits->max_bytes);
    }
    void *msg = bd_arena_calloc(arena, 1, d->size_bytes);
    if (msg == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "decode %s", d->name);
    }
    bd_status rc = read_message(&r, in->n_bytes, d, msg);
    if (rc == BD_OK) {
        memcpy(out, msg, d->size_bytes);
    }
    return rc;
}
