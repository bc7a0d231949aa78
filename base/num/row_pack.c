#include "base/num/row_pack.h"

#include "base/mem.h"
#include "base/num/row_codec.h"

#include <limits.h>
#include <lz4.h>
#include <string.h>
#include <zstd.h>

#define ZSTD_LEVEL 1

static const struct {
    int codec;
    const char *name;
} codecs[] = {
#define BD_X(name, num, text) {num, text},
    NUM_CODEC_MAP(BD_X)
#undef BD_X
};

const char *num_codec_name(int codec)
{
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        if (codecs[i].codec == codec) {
            return codecs[i].name;
        }
    }
    return "?";
}

int num_codec_parse(const char *name)
{
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        if (strcmp(codecs[i].name, name) == 0) {
            return codecs[i].codec;
        }
    }
    return -1;
}

/* Bytes of all rows before the codec. */
static bd_status raw_size(int dtype, int codec, size_t n_rows, size_t dim, size_t *out, bd_err *err)
{
    size_t row = num_row_bytes(dtype, dim);
    if (num_codec_name(codec)[0] == '?') {
        return bd_err_set(err, BD_E_UNSUPPORTED, "codec %d is not known", codec);
    }
    if (row == 0) {
        return bd_err_set(err, BD_E_UNSUPPORTED, "rows do not travel as %s", num_dtype_name(dtype));
    }
    if (!bd_mul_size(row, n_rows, out) || *out > LZ4_MAX_INPUT_SIZE) {
        return bd_err_set(err, BD_E_INVALID, "%zu rows of %zu bytes in one piece", n_rows, row);
    }
    return BD_OK;
}

static void encode_rows(int dtype, const float *x, size_t n_rows, size_t dim, uint8_t *out)
{
    size_t row = num_row_bytes(dtype, dim);
    for (size_t i = 0; i < n_rows; i++) {
        num_row_encode(dtype, x + i * dim, dim, NUM_ROW_NEAREST, out + i * row);
    }
}

static void decode_rows(int dtype, const uint8_t *rows, size_t n_rows, size_t dim, float *x)
{
    size_t row = num_row_bytes(dtype, dim);
    for (size_t i = 0; i < n_rows; i++) {
        num_row_decode(dtype, rows + i * row, dim, x + i * dim);
    }
}

/* n is a multiple of 4. */
static void split_planes(const uint8_t *in, size_t n, uint8_t *out)
{
    size_t words = n / 4;
    for (size_t i = 0; i < words; i++) {
        out[i] = in[4 * i];
        out[words + i] = in[4 * i + 1];
        out[2 * words + i] = in[4 * i + 2];
        out[3 * words + i] = in[4 * i + 3];
    }
}

static void join_planes(const uint8_t *in, size_t n, uint8_t *out)
{
    size_t words = n / 4;
    for (size_t i = 0; i < words; i++) {
        out[4 * i] = in[i];
        out[4 * i + 1] = in[words + i];
        out[4 * i + 2] = in[2 * words + i];
        out[4 * i + 3] = in[3 * words + i];
    }
}

/* 0: it did not work. */
static size_t compress(int codec, const uint8_t *in, size_t n, uint8_t *out, size_t cap)
{
    if (codec == NUM_CODEC_LZ4) {
        int got = LZ4_compress_default((const char *)in, (char *)out, (int)n, (int)cap);
        return got > 0 ? (size_t)got : 0;
    }
    size_t got = ZSTD_compress(out, cap, in, n, ZSTD_LEVEL);
    return ZSTD_isError(got) ? 0 : got;
}

static size_t compress_bound(int codec, size_t n)
{
    return codec == NUM_CODEC_LZ4 ? (size_t)LZ4_compressBound((int)n) : ZSTD_compressBound(n);
}

static bool decompress(int codec, const uint8_t *in, size_t n, uint8_t *out, size_t n_out)
{
    if (codec == NUM_CODEC_LZ4) {
        return n <= INT_MAX &&
               LZ4_decompress_safe((const char *)in, (char *)out, (int)n, (int)n_out) == (int)n_out;
    }
    size_t got = ZSTD_decompress(out, n_out, in, n);
    return !ZSTD_isError(got) && got == n_out;
}

bd_status num_rows_pack(int dtype, int codec, const float *x, size_t n_rows, size_t dim,
                        uint8_t **out, size_t *n_bytes, bd_err *err)
{
    size_t raw = 0, used = 0;
    bd_status rc = raw_size(dtype, codec, n_rows, dim, &raw, err);
    if (rc != BD_OK) {
        return rc;
    }
    uint8_t *rows = bd_alloc(raw), *planes = NULL, *packed = NULL;
    rc = rows != NULL ? BD_OK : BD_E_NOMEM;
    if (rc == BD_OK) {
        encode_rows(dtype, x, n_rows, dim, rows);
    }
    if (rc == BD_OK && codec == NUM_CODEC_NONE) {
        *out = rows;
        *n_bytes = raw;
        return BD_OK;
    }
    size_t cap = compress_bound(codec, raw);
    planes = bd_alloc(raw);
    packed = bd_alloc(cap);
    rc = rows != NULL && planes != NULL && packed != NULL ? BD_OK : BD_E_NOMEM;
    if (rc == BD_OK) {
        split_planes(rows, raw, planes);
        used = compress(codec, planes, raw, packed, cap);
        rc = used > 0 ? BD_OK : BD_E_NOMEM; /* the buffer is large enough: no memory inside */
    }
    bd_free(rows);
    bd_free(planes);
    if (rc != BD_OK) {
        bd_free(packed);
        return bd_err_set(err, rc, "pack %zu rows of dim %zu", n_rows, dim);
    }
    *out = packed;
    *n_bytes = used;
    return BD_OK;
}

bd_status num_rows_unpack(int dtype, int codec, const uint8_t *bytes, size_t n_bytes, size_t n_rows,
                          size_t dim, float *x, bd_err *err)
{
    size_t raw = 0;
    bd_status rc = raw_size(dtype, codec, n_rows, dim, &raw, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (codec == NUM_CODEC_NONE) {
        if (n_bytes != raw) {
            return bd_err_set(err, BD_E_CORRUPT, "%zu bytes for %zu rows of %zu", n_bytes, n_rows,
                              num_row_bytes(dtype, dim));
        }
        decode_rows(dtype, bytes, n_rows, dim, x);
        return BD_OK;
    }
    uint8_t *planes = bd_alloc(raw), *rows = bd_alloc(raw);
    if (planes == NULL || rows == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "unpack %zu rows of dim %zu", n_rows, dim);
    } else if (!decompress(codec, bytes, n_bytes, planes, raw)) {
        rc = bd_err_set(err, BD_E_CORRUPT, "%zu bytes of %s are not %zu rows of %zu", n_bytes,
                        num_codec_name(codec), n_rows, num_row_bytes(dtype, dim));
    } else {
        join_planes(planes, raw, rows);
        decode_rows(dtype, rows, n_rows, dim, x);
    }
    bd_free(planes);
    bd_free(rows);
    return rc;
}
