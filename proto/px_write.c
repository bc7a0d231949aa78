/* Two passes: sizes (a length stands before what it counts), then bytes. All small bytes of a
 * message go to one buffer; the chain takes turns between pieces of it and the caller's bulk
 * buffers. */
#include "base/assert.h"

#include "proto/px_int.h"

#include <string.h>

typedef struct writer {
    bd_chain chain;   /* owned */
    bd_buf *head;     /* owned: all bytes that are not bulk */
    size_t used;      /* of head */
    size_t added;     /* of head, up to which the chain has it */
    bd_status status; /* the first failure */
} writer;

static size_t varint_bytes(uint64_t v)
{
    size_t n = 1;
    for (; v >= 0x80; v >>= 7) {
        n++;
    }
    return n;
}

static int wire_type(px_kind kind)
{
    switch (kind) {
    case PX_DOUBLE:
    case PX_FIX64:
        return PX_WIRE_64;
    case PX_TEXT:
    case PX_BYTES:
    case PX_BULK4:
    case PX_BULKU4:
    case PX_BULK8:
    case PX_LIST:
    case PX_ONE:
        return PX_WIRE_LEN;
    default:
        return PX_WIRE_VARINT;
    }
}

static uint64_t tag_of(const px_field *f)
{
    return ((uint64_t)f->number << 3) | (uint64_t)wire_type(f->kind);
}

/* The member's value as the number that goes on the wire; 0 means: left out. */
static uint64_t scalar_of(const px_field *f, const void *member)
{
    uint64_t u64 = 0;
    uint32_t u32 = 0;
    int32_t i32 = 0;
    switch (f->kind) {
    case PX_U32:
        memcpy(&u32, member, sizeof u32);
        return u32;
    case PX_ENUM:
        memcpy(&i32, member, sizeof i32);
        return (uint64_t)(int64_t)i32;
    case PX_S32:
        memcpy(&i32, member, sizeof i32);
        u32 = (uint32_t)i32;
        return (u32 << 1) ^ (i32 < 0 ? UINT32_MAX : 0);
    case PX_BOOL:
        return *(const bool *)member ? 1 : 0;
    default: /* PX_U64, PX_FIX64, PX_DOUBLE: 64 bits as they are */
        memcpy(&u64, member, sizeof u64);
        return u64;
    }
}

typedef struct list_view {
    const uint8_t *items; /* px_desc.size_bytes apart */
    size_t n;
} list_view;

/* The sub-messages of a PX_LIST or PX_ONE field. */
static list_view subs_of(const px_field *f, const uint8_t *msg)
{
    list_view v;
    memcpy(&v.items, msg + f->offset, sizeof v.items);
    if (f->kind == PX_LIST) {
        memcpy(&v.n, msg + f->count_offset, sizeof v.n);
    } else {
        v.n = v.items != NULL ? 1 : 0;
    }
    return v;
}

static const char *text_of(const px_field *f, const uint8_t *msg)
{
    const char *text;
    memcpy(&text, msg + f->offset, sizeof text);
    return text == NULL ? "" : text;
}

typedef struct sizes {
    size_t total; /* on the wire */
    size_t bulk;  /* of it, in the caller's buffers */
} sizes;

static sizes message_sizes(const px_desc *d, const uint8_t *msg);

static sizes field_sizes(const px_field *f, const uint8_t *msg)
{
    sizes s = {0, 0};
    size_t tag = varint_bytes(tag_of(f)), n;
    list_view subs;
    switch (f->kind) {
    case PX_TEXT:
        n = strlen(text_of(f, msg));
        s.total = n == 0 ? 0 : tag + varint_bytes(n) + n;
        return s;
    case PX_BYTES:
    case PX_BULK4:
    case PX_BULKU4:
    case PX_BULK8:
        n = ((const px_bulk *)(const void *)(msg + f->offset))->n_bytes;
        s.total = n == 0 ? 0 : tag + varint_bytes(n) + n;
        s.bulk = n;
        return s;
    case PX_LIST:
    case PX_ONE:
        subs = subs_of(f, msg);
        for (size_t i = 0; i < subs.n; i++) {
            sizes sub = message_sizes(f->sub, subs.items + i * f->sub->size_bytes);
            s.total += tag + varint_bytes(sub.total) + sub.total;
            s.bulk += sub.bulk;
        }
        return s;
    default: {
        uint64_t v = scalar_of(f, msg + f->offset);
        n = wire_type(f->kind) == PX_WIRE_64 ? 8 : varint_bytes(v);
        s.total = v == 0 ? 0 : tag + n;
        return s;
    }
    }
}

static sizes message_sizes(const px_desc *d, const uint8_t *msg)
{
    sizes s = {0, 0};
    for (size_t i = 0; i < d->n_fields; i++) {
        sizes one = field_sizes(&d->fields[i], msg);
        s.total += one.total;
        s.bulk += one.bulk;
    }
    return s;
}

static void put(writer *w, const void *bytes, size_t n)
{
    BD_DASSERT(n <= w->head->n_bytes - w->used);
    memcpy(w->head->bytes + w->used, bytes, n);
    w->used += n;
}

static void put_varint(writer *w, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; v >= 0x80; v >>= 7) {
        bytes[n++] = (uint8_t)(v | 0x80);
    }
    bytes[n++] = (uint8_t)v;
    put(w, bytes, n);
}

static void add_piece(writer *w, bd_buf *buf, size_t offset, size_t n)
{
    if (w->status == BD_OK && n > 0) {
        w->status = bd_chain_add(&w->chain, buf, offset, n);
    }
}

/* The chain gets what the header has grown by. */
static void flush_head(writer *w)
{
    add_piece(w, w->head, w->added, w->used - w->added);
    w->added = w->used;
}

static void put_bulk(writer *w, const px_bulk *b)
{
    flush_head(w);
    for (size_t i = 0; i < b->n_spans; i++) {
        const px_span *s = px_bulk_span(b, i);
        add_piece(w, s->buf, (size_t)(s->bytes - s->buf->bytes), s->n_bytes);
    }
}

static void put_message(writer *w, const px_desc *d, const uint8_t *msg);

static void put_field(writer *w, const px_field *f, const uint8_t *msg)
{
    if (f->kind == PX_LIST || f->kind == PX_ONE) {
        list_view subs = subs_of(f, msg);
        for (size_t i = 0; i < subs.n; i++) {
            const uint8_t *sub = subs.items + i * f->sub->size_bytes;
            put_varint(w, tag_of(f));
            put_varint(w, message_sizes(f->sub, sub).total);
            put_message(w, f->sub, sub);
        }
        return;
    }
    if (field_sizes(f, msg).total == 0) {
        return;
    }
    put_varint(w, tag_of(f));
    if (f->kind == PX_BYTES || f->kind == PX_BULK4 || f->kind == PX_BULKU4 || f->kind == PX_BULK8) {
        const px_bulk *b = (const px_bulk *)(const void *)(msg + f->offset);
        put_varint(w, b->n_bytes);
        put_bulk(w, b);
    } else if (f->kind == PX_TEXT) {
        const char *text = text_of(f, msg);
        put_varint(w, strlen(text));
        put(w, text, strlen(text));
    } else if (wire_type(f->kind) == PX_WIRE_64) {
        uint64_t v = scalar_of(f, msg + f->offset);
        put(w, &v, sizeof v);
    } else {
        put_varint(w, scalar_of(f, msg + f->offset));
    }
}

static void put_message(writer *w, const px_desc *d, const uint8_t *msg)
{
    for (size_t i = 0; i < d->n_fields; i++) {
        put_field(w, &d->fields[i], msg);
    }
}

bd_status px_encode(const px_desc *d, const void *msg, bd_chain *out, bd_err *err)
{
    writer w = {.status = BD_OK};
    BD_ASSERT(out->n_pieces == 0);
    sizes s = message_sizes(d, msg);
    if (s.total > INT32_MAX) {
        return bd_err_set(err, BD_E_INVALID, "%s: %zu bytes, a message holds 2 GiB at most",
                          d->name, s.total);
    }
    w.head = bd_buf_new(s.total - s.bulk);
    if (w.head == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "encode %s", d->name);
    }
    put_message(&w, d, msg);
    flush_head(&w);
    if (w.status == BD_OK) {
        BD_ASSERT(w.used == w.head->n_bytes && w.chain.n_bytes == s.total);
        bd_chain_move(out, &w.chain);
    } else {
        (void)bd_err_set(err, w.status, "encode %s", d->name);
    }
    bd_chain_deinit(&w.chain);
    bd_buf_unref(w.head);
    return w.status;
}
