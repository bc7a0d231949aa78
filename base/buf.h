/* base/buf.h - refcounted bytes, and chains of pieces of them. All bulk bytes of Braid are these.
 *
 * Layer:     base.
 * Threads:   ref and unref from any thread (atomic); the bytes and a chain belong to one thread at
 * a time. `destroy` may run on any thread (also one of gRPC's): it must not block. Ownership:
 * bd_buf is shared. A chain owns one reference for each of its pieces.
 */
#ifndef BD_BUF_H
#define BD_BUF_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bd_buf bd_buf;
struct bd_buf {
    uint8_t *bytes;
    size_t n_bytes;
    _Atomic uint32_t refs;
    void (*destroy)(bd_buf *b); /* frees bytes and b */
    void *user;
};

/* bd_buf_new - n_bytes of uninitialised memory, 64-byte aligned, one reference; NULL: no memory. */
bd_buf *bd_buf_new(size_t n_bytes);
bd_buf *bd_buf_copy(const void *bytes, size_t n_bytes);
/* bd_buf_wrap - foreign memory; release(user) runs when the last reference goes. NULL: no memory,
 * and then release has not run. */
bd_buf *bd_buf_wrap(void *bytes, size_t n_bytes, void (*release)(void *user), void *user);
bd_buf *bd_buf_ref(bd_buf *b);
void bd_buf_unref(bd_buf *b); /* NULL is fine */

/* One piece: the bytes [offset, offset + n_bytes) of a buffer. */
typedef struct bd_piece {
    bd_buf *buf; /* shared: the chain holds one reference */
    size_t offset;
    size_t n_bytes;
} bd_piece;

/* A message: pieces in order. Zero-initialise, or bd_chain_init. */
typedef struct bd_chain {
    bd_piece *pieces; /* owned */
    size_t n_pieces;
    size_t cap_pieces;
    size_t n_bytes; /* sum over the pieces */
} bd_chain;

void bd_chain_init(bd_chain *c);
void bd_chain_deinit(bd_chain *c); /* drops the references; c is empty afterwards */
/* Appends a piece; takes a reference of its own. BD_E_NOMEM, chain untouched. */
bd_status bd_chain_add(bd_chain *c, bd_buf *b, size_t offset, size_t n_bytes) BD_MUST_CHECK;
/* Appends a whole buffer and takes over the caller's reference, also on failure. */
bd_status bd_chain_add_moved(bd_chain *c, bd_buf *b) BD_MUST_CHECK;
/* Appends a private copy of the bytes. */
bd_status bd_chain_add_copy(bd_chain *c, const void *bytes, size_t n_bytes) BD_MUST_CHECK;
/* Appends all pieces of src (references are shared), or none. src is another chain. */
bd_status bd_chain_add_chain(bd_chain *c, const bd_chain *src) BD_MUST_CHECK;
/* dst takes everything of src; src is empty afterwards. dst must be empty. */
void bd_chain_move(bd_chain *dst, bd_chain *src);
const uint8_t *bd_piece_bytes(const bd_piece *p);
/* Copies bytes [offset, offset + n_bytes) of the chain to dst; false when out of range. */
bool bd_chain_read(const bd_chain *c, size_t offset, void *dst, size_t n_bytes);
/* One contiguous buffer with all bytes (a reference when there is just one piece); NULL: no memory.
 */
bd_buf *bd_chain_flatten(const bd_chain *c);

#endif
