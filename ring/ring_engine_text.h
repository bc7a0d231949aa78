/* ring/ring_engine_text.h - the sentences an operator reads when ranks disagree or go missing.
 * Layer: ring (pure part). Threads: the communicator's thread. */
#ifndef RING_ENGINE_TEXT_H
#define RING_ENGINE_TEXT_H

#include "ring/ring_engine.h"

#define RING_OP_TEXT_BYTES 160

/* allreduce "fc1.weight" (seq 7, f32 x 1000, sum) */
void ring_op_text(const ring_op *op, uint64_t seq, char *out, size_t out_bytes);
/* BD_E_MISMATCH with both sides: what peer's frame says and what this rank runs. */
void ring_mismatch_text(const ring_engine *e, int peer, const ring_frame *f, bd_err *err);
/* BD_E_TIMEOUT: which ranks did not take part, by their answers to the PROBE. */
void ring_timeout_text(const ring_engine *e, bd_err *err);

#endif
