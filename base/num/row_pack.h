/* base/num/row_pack.h - rows as they travel: in fewer bits, compressed, or both.
 *
 * Layer:   base/num; LZ4 and Zstandard stay behind this header. Pure: any thread.
 * Format:  n_rows rows of num_row_bytes(dtype, dim) bytes each, as base/num/row_codec.h stores them
 * to nearest; then, with a codec, the four planes of bytes 0, 1, 2 and 3 of every 4-byte word one
 *          after the other (exponents come to stand side by side), as one LZ4 block or one zstd
 * frame. Promise: a pure function of (rows, dtype, codec, version of the library); unpacking gives
 * what num_row_round makes of the rows, bit for bit, whatever the codec. Cost:    one pass a step;
 * LZ4 0.5-1 GB/s, zstd level 1 0.2-0.4 GB/s: for links slower than that.
 */
#ifndef NUM_ROW_PACK_H
#define NUM_ROW_PACK_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* name, number on the wire, text */
#define NUM_CODEC_MAP(X) \
    X(NONE, 0, "none")   \
    X(LZ4, 1, "lz4")     \
    X(ZSTD, 2, "zstd")

typedef enum num_codec {
#define BD_X(name, num, text) NUM_CODEC_##name = (num),
    NUM_CODEC_MAP(BD_X)
#undef BD_X
} num_codec;

const char *num_codec_name(int codec); /* "?" for a number that is not in the list */
int num_codec_parse(const char *name); /* -1 for an unknown name */

/* num_rows_pack - x[n_rows x dim] to *out (bd_free), *n_bytes long. dtype: one that stores rows.
 * BD_E_UNSUPPORTED names an unknown codec or a dtype that stores no rows; BD_E_INVALID: over 2 GiB;
 * BD_E_NOMEM. */
bd_status num_rows_pack(int dtype, int codec, const float *x, size_t n_rows, size_t dim,
                        uint8_t **out, size_t *n_bytes, bd_err *err) BD_MUST_CHECK;

/* num_rows_unpack - the other way; x[n_rows x dim] is written, also on a failure half way.
 * BD_E_CORRUPT: bytes that are not n_rows rows; BD_E_UNSUPPORTED, BD_E_INVALID, BD_E_NOMEM as
 * above. */
bd_status num_rows_unpack(int dtype, int codec, const uint8_t *bytes, size_t n_bytes, size_t n_rows,
                          size_t dim, float *x, bd_err *err) BD_MUST_CHECK;

#endif
