/* tests/util/tu_record.h - the bytes of a journal record in one piece. */
#ifndef TU_RECORD_H
#define TU_RECORD_H

#include "base/assert.h"
#include "base/buf.h"

#include "ps_server/ps_record.h"

#include <string.h>

static inline bd_buf *tu_record_bytes(const ps_record *r)
{
    ps_pieces p = {0};
    size_t at = 0;
    bd_buf *b = bd_buf_new(ps_record_bytes(r));
    BD_ASSERT(b != NULL && ps_record_pieces(r, &p) == BD_OK);
    for (size_t i = 0; i < p.n; i++) {
        memcpy(b->bytes + at, p.items[i].iov_base, p.items[i].iov_len);
        at += p.items[i].iov_len;
    }
    BD_ASSERT(at == b->n_bytes);
    ps_pieces_deinit(&p);
    return b;
}

#endif
