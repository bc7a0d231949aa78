#include "base/buf.h"

#include "base/assert.h"
#include "base/mem.h"

#include <string.h>

typedef struct wrapped {
    bd_buf buf;
    void (*release)(void *user);
} wrapped;

static void destroy_plain(bd_buf *b)
{
    bd_free(b); /* header and bytes are one block */
}

static void destroy_wrapped(bd_buf *b)
{
    wrapped *w = (wrapped *)b;
    if (w->release != NULL) {
        w->release(b->user);
    }
    bd_free(w);
}

bd_buf *bd_buf_new(size_t n_bytes)
{
    const size_t head = BD_CACHE_LINE_BYTES;
    _Static_assert(sizeof(bd_buf) <= BD_CACHE_LINE_BYTES, "the header fits before the bytes");
    size_t total;
    if (!bd_add_size(n_bytes, head, &total)) {
        return NULL;
    }
    bd_buf *b = bd_alloc_aligned(BD_CACHE_LINE_BYTES, total);
    if (b == NULL) {
        return NULL;
    }
    b->bytes = (uint8_t *)b + head;
    b->n_bytes = n_bytes;
    atomic_init(&b->refs, 1);
    b->destroy = destroy_plain;
    b->user = NULL;
    return b;
}

bd_buf *bd_buf_copy(const void *bytes, size_t n_bytes)
{
    bd_buf *b = bd_buf_new(n_bytes);
    if (b != NULL && n_bytes > 0) {
        memcpy(b->bytes, bytes, n_bytes);
    }
    return b;
}

bd_buf *bd_buf_wrap(void *bytes, size_t n_bytes, void (*release)(void *user), void *user)
{
    wrapped *w = bd_alloc(sizeof *w);
    if (w == NULL) {
        return NULL;
    }
    w->buf.bytes = bytes;
    w->buf.n_bytes = n_bytes;
    atomic_init(&w->buf.refs, 1);
    w->buf.destroy = destroy_wrapped;
    w->buf.user = user;
    w->release = release;
    return &w->buf;
}

bd_buf *bd_buf_ref(bd_buf *b)
{
    atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void bd_buf_unref(bd_buf *b)
{
    /* acq_rel: the last holder must see every write of the others before it frees. */
    if (b != NULL && atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1) {
        b->destroy(b);
    }
}

void bd_chain_init(bd_chain *c)
{
    *c = (bd_chain){0};
}

void bd_chain_deinit(bd_chain *c)
{
    for (size_t i = 0; i < c->n_pieces; i++) {
        bd_buf_unref(c->pieces[i].buf);
    }
    bd_free(c->pieces);
    *c = (bd_chain){0};
}

bd_status bd_chain_add(bd_chain *c, bd_buf *b, size_t offset, size_t n_bytes)
{
    BD_ASSERT(offset <= b->n_bytes && n_bytes <= b->n_bytes - offset);
    void *items = c->pieces;
    if (!bd_grow(&items, &c->cap_pieces, c->n_pieces + 1, sizeof *c->pieces)) {
        return BD_E_NOMEM;
    }
    c->pieces = items;
    c->pieces[c->n_pieces++] = (bd_piece){bd_buf_ref(b), offset, n_bytes};
    c->n_bytes += n_bytes;
    return BD_OK;
}

bd_status bd_chain_add_moved(bd_chain *c, bd_buf *b)
{
    bd_status rc = bd_chain_add(c, b, 0, b->n_bytes);
    bd_buf_unref(b);
    return rc;
}

bd_status bd_chain_add_copy(bd_chain *c, const void *bytes, size_t n_bytes)
{
    bd_buf *b = bd_buf_copy(bytes, n_bytes);
    return b == NULL ? BD_E_NOMEM : bd_chain_add_moved(c, b);
}

/* Drops the pieces from index n on. */
static void cut_to(bd_chain *c, size_t n)
{
    while (c->n_pieces > n) {
        bd_piece *p = &c->pieces[--c->n_pieces];
        c->n_bytes -= p->n_bytes;
        bd_buf_unref(p->buf);
    }
}

bd_status bd_chain_add_chain(bd_chain *c, const bd_chain *src)
{
    BD_ASSERT(c != src);
    size_t n_before = c->n_pieces;
    for (size_t i = 0; i < src->n_pieces; i++) {
        const bd_piece *p = &src->pieces[i];
        bd_status rc = bd_chain_add(c, p->buf, p->offset, p->n_bytes);
        if (rc != BD_OK) {
            cut_to(c, n_before);
            return rc;
        }
    }
    return BD_OK;
}

void bd_chain_move(bd_chain *dst, bd_chain *src)
{
    BD_ASSERT(dst->n_pieces == 0);
    bd_chain_deinit(dst);
    *dst = *src;
    *src = (bd_chain){0};
}

const uint8_t *bd_piece_bytes(const bd_piece *p)
{
    return p->buf->bytes + p->offset;
}

bool bd_chain_read(const bd_chain *c, size_t offset, void *dst, size_t n_bytes)
{
    if (offset > c->n_bytes || n_bytes > c->n_bytes - offset) {
        return false;
    }
    uint8_t *out = dst;
    for (size_t i = 0; i < c->n_pieces && n_bytes > 0; i++) {
        const bd_piece *p = &c->pieces[i];
        if (offset >= p->n_bytes) {
            offset -= p->n_bytes;
            continue;
        }
        size_t n = p->n_bytes - offset < n_bytes ? p->n_bytes - offset : n_bytes;
        memcpy(out, bd_piece_bytes(p) + offset, n);
        out += n;
        n_bytes -= n;
        offset = 0;
    }
    return true;
}

bd_buf *bd_chain_flatten(const bd_chain *c)
{
    if (c->n_pieces == 1 && c->pieces[0].offset == 0 &&
        c->pieces[0].n_bytes == c->pieces[0].buf->n_bytes) {
        return bd_buf_ref(c->pieces[0].buf);
    }
    bd_buf *b = bd_buf_new(c->n_bytes);
    if (b != NULL) {
        (void)bd_chain_read(c, 0, b->bytes, c->n_bytes);
    }
    return b;
}
