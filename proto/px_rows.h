/* proto/px_rows.h - rows and gradients that travel in fewer bytes: the `packed` fields of TableRows
 * and TableGrads, between px.h's structs and base/num/row_pack.h.
 *
 * Layer:     proto (base). Pure; any thread.
 * Ownership: a packed buffer is the caller's (one reference).
 */
#ifndef PX_ROWS_H
#define PX_ROWS_H

#include "base/num/row_pack.h"

#include "proto/px.h"

/* DType of the wire for a NUM_... that stores rows, and back; 0 is f32 for the wire. -1: not one.
 */
int32_t px_dtype_wire(int dtype);
int px_dtype_num(int32_t wire);

/* x[n_rows x dim] as one buffer. Errors of num_rows_pack; an unknown dtype of the wire is
 * BD_E_UNSUPPORTED. */
bd_status px_rows_pack(int32_t wire_dtype, int32_t codec, const float *x, size_t n_rows, size_t dim,
                       bd_buf **out, bd_err *err) BD_MUST_CHECK;
bd_status px_rows_unpack(const px_bulk *packed, int32_t wire_dtype, int32_t codec, size_t n_rows,
                         size_t dim, float *x, bd_err *err) BD_MUST_CHECK;

#endif
