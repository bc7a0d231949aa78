/* bd_chain <-> grpc_byte_buffer, without copying bulk bytes. */
#include "base/mem.h"

#include "rpc/rpc_grpc_int.h"

#include <grpc/byte_buffer_reader.h>

#include <string.h>

#define SMALL_BYTES  256 /* below this a copy costs less than the bookkeeping of a shared slice */
#define STACK_SLICES 32

static void unref_buf(void *user)
{
    bd_buf_unref(user); /* atomic, no lock, never blocks: may run on a gRPC thread */
}

static grpc_slice wrap_piece(const bd_piece *p)
{
    uint8_t *bytes = p->buf->bytes + p->offset;
    if (p->n_bytes <= SMALL_BYTES) {
        return grpc_slice_from_copied_buffer((const char *)bytes, p->n_bytes);
    }
    return grpc_slice_new_with_user_data(bytes, p->n_bytes, unref_buf, bd_buf_ref(p->buf));
}

grpc_byte_buffer *gr_bytes_from_chain(const bd_chain *c)
{
    grpc_slice stack[STACK_SLICES];
    grpc_slice *slices = stack;
    if (c->n_pieces > STACK_SLICES) {
        slices = bd_calloc(c->n_pieces, sizeof *slices);
        if (slices == NULL) {
            return NULL;
        }
    }
    for (size_t i = 0; i < c->n_pieces; i++) {
        slices[i] = wrap_piece(&c->pieces[i]);
    }
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(slices, c->n_pieces);
    for (size_t i = 0; i < c->n_pieces; i++) {
        grpc_slice_unref(slices[i]);
    }
    if (slices != stack) {
        bd_free(slices);
    }
    return b;
}

/* A received slice as a buffer: the slice's reference goes with it. */
typedef struct slice_buf {
    bd_buf buf;
    grpc_slice slice;
} slice_buf;

static void destroy_slice_buf(bd_buf *b)
{
    slice_buf *s = (slice_buf *)b;
    grpc_slice_unref(s->slice);
    bd_free(s);
}

/* Takes the caller's reference of slice, also on failure. */
static bd_status add_slice(bd_chain *out, grpc_slice slice)
{
    size_t n = GRPC_SLICE_LENGTH(slice);
    if (slice.refcount == NULL) { /* inlined: the bytes are in this local variable */
        return n == 0 ? BD_OK : bd_chain_add_copy(out, GRPC_SLICE_START_PTR(slice), n);
    }
    slice_buf *s = bd_alloc(sizeof *s);
    if (s == NULL) {
        grpc_slice_unref(slice);
        return BD_E_NOMEM;
    }
    s->slice = slice;
    s->buf.bytes = GRPC_SLICE_START_PTR(s->slice);
    s->buf.n_bytes = n;
    atomic_init(&s->buf.refs, 1);
    s->buf.destroy = destroy_slice_buf;
    s->buf.user = NULL;
    return bd_chain_add_moved(out, &s->buf);
}

bd_status gr_bytes_to_chain(grpc_byte_buffer *b, bd_chain *out)
{
    grpc_byte_buffer_reader reader;
    grpc_slice slice;
    bd_status rc = BD_OK;
    if (!grpc_byte_buffer_reader_init(&reader, b)) {
        return BD_E_CORRUPT; /* a compressed message that does not decompress */
    }
    while (rc == BD_OK && grpc_byte_buffer_reader_next(&reader, &slice)) {
        rc = add_slice(out, slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    if (rc != BD_OK) {
        bd_chain_deinit(out);
    }
    return rc;
}
