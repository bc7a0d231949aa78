/* base/num/row_codec.h - rows of weights as tables store them: f32, f16, bf16, or int8 with a
 * scale.
 *
 * Layer:   base/num. Pure: no allocation, any thread.
 * Promise: the SIMD version equals the reference bit for bit. The bytes are a pure function of
 *          (weights, dtype, draw). A row that was decoded encodes to the bytes it came from,
 *          whatever the draw, so that copies, exports and restores keep every bit.
 *
 * Formats, little-endian, padded with zeros to a multiple of 4 bytes:
 *   f32   f32[dim]
 *   f16   u16[dim], IEEE half
 *   bf16  u16[dim], the upper half of an f32
 *   i8    f32 scale, i8[dim] in -127 .. 127: a weight is scale * q. The scale is the largest weight
 *         over 127, rounded to 17 bits so that scale * q is exact; a row of weights below 2^-100
 *         is a row of zeros, scale 0.
 *
 * Rounding: to nearest even (i8: nearest, ties away from 0), or stochastic: up with the probability
 *           that makes the mean the weight itself, so that updates smaller than a step of the
 * format add up instead of being lost. Random bits are a hash of (draw, element). Range:    a
 * finite weight beyond the format becomes its largest one. Infinities and NaN stay (f16, bf16) or
 * make every weight of the row NaN (i8): never a number.
 */
#ifndef NUM_ROW_CODEC_H
#define NUM_ROW_CODEC_H

#include "base/num/dtype.h"
#include "base/num/optim.h"

#include <stddef.h>
#include <stdint.h>

#define NUM_ROW_NEAREST 0 /* as draw: no randomness */

/* Bytes of a row, a multiple of 4; 0 when rows are not stored as dtype. */
size_t num_row_bytes(int dtype, size_t dim);

/* The draw of one write of one row: a pure function of the table's key (num_init_key), the row's
 * key and the number of the write. Never NUM_ROW_NEAREST. */
uint64_t num_row_draw(uint64_t table_key, uint64_t key, uint64_t write);

/* w[dim] to row[num_row_bytes(dtype, dim)], 4-byte aligned. dtype must be one that stores rows. */
void num_row_encode(int dtype, const float *w, size_t dim, uint64_t draw, void *row);
void num_row_encode_ref(int dtype, const float *w, size_t dim, uint64_t draw, void *row);
void num_row_decode(int dtype, const void *row, size_t dim, float *w);
void num_row_decode_ref(int dtype, const void *row, size_t dim, float *w);

/* What w reads as after it was stored to nearest, in place. */
void num_row_round(int dtype, float *w, size_t dim);

/* How a table keeps its rows: stored weights, then the optimiser's state in f32. */
typedef struct num_row_form {
    const num_optim *opt; /* borrowed */
    int dtype;
    size_t dim;
} num_row_form;

/* num_row_update - num_optim_apply on a stored row: its weights are decoded, stepped and encoded.
 * draw: num_row_draw of this update (f32: unused). scratch: [2 * dim]. */
void num_row_update(const num_row_form *f, const float *hyper, void *row, const float *g,
                    uint64_t draw, float *scratch);

#endif
