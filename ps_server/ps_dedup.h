/* ps_server/ps_dedup.h - which pushes of which client have been applied (async).
 *
 * Layer:     ps_server (pure). Threads: one caller at a time (the shard's core lock).
 * State:     per client a watermark (every sequence up to it is done) and the sequences above it
 * with the parts of each that are done. A client that leaves no gaps has an empty set. Format of a
 * client's fact ("client/<16 hex digits>"), little-endian: u64 watermark, u32 n, u32 zero, then n
 * times: u64 sequence, u32 parts, u32 zero, u64 done bits[(parts + 63) / 64].
 * Contexts:  steps of autograd contexts are kept apart from pushes by PS_DEDUP_CONTEXT in the
 * client's id; their sequence is the context's number. Contexts that end without a step leave gaps,
 * so only PS_DEDUP_MAX_GAPS numbers are kept above the watermark: it then jumps, and older numbers
 *            count as done. A mark of this kind is not taken back.
 */
#ifndef PS_DEDUP_H
#define PS_DEDUP_H

#include "base/err.h"

#include "ps_server/ps_types.h"

#define PS_DEDUP_CONTEXT   (1ull << 63)
#define PS_DEDUP_MAX_GAPS  256u
#define PS_DEDUP_MAX_ABOVE 4096u /* open sequences of one client */
#define PS_DEDUP_MAX_PARTS 4096u /* parts of one sequence (async) */

typedef struct ps_dedup ps_dedup;

ps_dedup *ps_dedup_new(void);
void ps_dedup_free(ps_dedup *d);
void ps_dedup_clear(ps_dedup *d);

/* *done: this part was applied before. BD_E_INVALID for a part outside its parts or sequence 0;
 * BD_E_MISMATCH when the sequence was pushed with another number of parts; BD_E_EXHAUSTED when the
 * client leaves too many gaps. */
bd_status ps_dedup_check(const ps_dedup *d, uint64_t client, uint64_t sequence, uint32_t part,
                         uint32_t n_parts, bool *done, bd_err *err) BD_MUST_CHECK;
/* Marks a part done that ps_dedup_check let pass. BD_E_NOMEM: not marked. */
bd_status ps_dedup_mark(ps_dedup *d, uint64_t client, uint64_t sequence, uint32_t part,
                        uint32_t n_parts) BD_MUST_CHECK;
/* Takes the last mark back (its record could not be written). */
void ps_dedup_unmark(ps_dedup *d, uint64_t client, uint64_t sequence, uint32_t part,
                     uint32_t n_parts);

/* The client's fact; NULL: no memory. ps_dedup_load reads one back: BD_E_CORRUPT, BD_E_NOMEM. */
bd_buf *ps_dedup_pack(const ps_dedup *d, uint64_t client);
bd_status ps_dedup_load(ps_dedup *d, uint64_t client, const uint8_t *bytes, size_t n_bytes,
                        bd_err *err) BD_MUST_CHECK;
/* Every client, for a checkpoint: i from 0; false past the end. */
bool ps_dedup_at(const ps_dedup *d, size_t i, uint64_t *client);

#endif
