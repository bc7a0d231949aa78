#include "base/gzip.h"

#include "base/mem.h"

#include <stdint.h>
#include <string.h>
#define ZLIB_CONST
#include <zlib.h>

/* 16 more than the largest window asks zlib for a gzip header; 5 is fast and near the default's
 * size on click data. */
enum { WINDOW_GZIP = 15 + 16, LEVEL = 5, MEM_LEVEL = 8 };

bd_buf *bd_gzip_member(const void *bytes, size_t n_bytes)
{
    z_stream z = {0};
    bd_buf *out = NULL;
    if (n_bytes >= UINT32_MAX ||
        deflateInit2(&z, LEVEL, Z_DEFLATED, WINDOW_GZIP, MEM_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK) {
        return NULL;
    }
    uLong room = deflateBound(&z, (uLong)n_bytes);
    out = room < UINT32_MAX ? bd_buf_new((size_t)room) : NULL;
    if (out != NULL) {
        z.next_in = bd_unconst(bytes); /* zlib's field is not const, but it only reads */
        z.avail_in = (uInt)n_bytes;
        z.next_out = out->bytes;
        z.avail_out = (uInt)room;
        if (deflate(&z, Z_FINISH) == Z_STREAM_END) {
            out->n_bytes = (size_t)z.total_out;
        } else {
            bd_buf_unref(out);
            out = NULL;
        }
    }
    (void)deflateEnd(&z);
    return out;
}
