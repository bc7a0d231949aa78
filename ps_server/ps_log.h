/* ps_server/ps_log.h - the journal's records in files of their own: appended, synced, read back,
 * and dropped from the front a file at a time.
 *
 * Layer:     ps_server; files only, no RocksDB. Above: ps_journal.h, which knows what frames mean.
 * Threads:   append, roll: one thread at a time. sync, drop_before: any thread, also while another
 *            appends. each, drop_from: nobody else is in the log.
 * Why:       a record in RocksDB is copied into a batch, a log, a memtable and a file, and merged,
 *            before it is forgotten; here it is written once from where it lies
 *            (docs/adr/0005-records-in-a-log-of-their-own.md).
 * Atomic:    a frame is whole or not there. One that could not be written is cut off again before
 *            the next; one whose answer got lost may be there, and says whose it is.
 *            A thread of its own starts the writing of what was appended and removes old files.
 * Cost:      append: one pwritev. sync: one fdatasync for each file written since the last.
 *
 * Files: <folder>/<segment number, 12 digits>.records, numbers without a gap. Each holds frames,
 * little-endian, padded to 8 bytes:
 *      0  u32  magic "BRLF"           4  u32  version 1
 *      8  u64  number of the segment
 *     16  u64  n: position in the journal; grows
 *     24  u64  n of the frame before it; 0: there was none
 *     32  u64  bytes of facts
 *     40  u64  bytes of the record; 0: none
 *     48  u64  the record's own checksum; 0: none
 *     56  u64  XXH3-64 of the facts, seeded with the XXH3-64 of this header with 0 here
 *     64  facts (ps_facts.h), record (ps_record.h)
 */
#ifndef PS_LOG_H
#define PS_LOG_H

#include "base/err.h"

#include "ps_server/ps_record.h"

#define PS_LOG_FRAME_BYTES   64u
#define PS_LOG_SEGMENT_BYTES (64u << 20) /* after so many the next file begins */

typedef struct ps_log ps_log;

/* Borrowed during the call. */
typedef struct ps_frame {
    uint64_t n;
    const uint8_t *facts; /* [facts_bytes], a multiple of 8 */
    size_t facts_bytes;
    const uint8_t *record; /* [record_bytes]; 8-byte aligned; NULL: none */
    size_t record_bytes;
} ps_frame;
typedef bd_status (*ps_frame_fn)(void *user, const ps_frame *f, bd_err *err);

/* ps_log_open - reads every file from number `first` on (0: from the first there is) and hands over
 * its whole frames; a frame that is not whole ends the log. Older files are removed. read_only:
 * nothing is made, cut or removed. BD_E_CORRUPT: file `first` is missing; BD_E_IO, BD_E_NOMEM, what
 * fn returned. */
bd_status ps_log_open(const char *folder, uint64_t first, bool read_only, ps_frame_fn fn,
                      void *user, ps_log **out, bd_err *err) BD_MUST_CHECK;
/* Waits until what was dropped is removed. NULL is fine. */
void ps_log_close(ps_log *l);

/* After the last whole frame there are bytes, and whole frames among them: no power loss needs to
 * leave such a thing. */
bool ps_log_has_island(const ps_log *l);

/* ps_log_append - facts: packed; record: NULL for none. On failure (BD_E_IO, BD_E_NOMEM) nothing
 * has changed. */
bd_status ps_log_append(ps_log *l, uint64_t n, const uint8_t *facts, size_t facts_bytes,
                        const ps_pieces *record, bd_err *err) BD_MUST_CHECK;
/* What was appended before the call is on the disk. BD_E_IO: nobody knows what is. */
bd_status ps_log_sync(ps_log *l, bd_err *err) BD_MUST_CHECK;

/* ps_log_each - the frames again. BD_E_CORRUPT names one that is no longer whole. */
bd_status ps_log_each(ps_log *l, ps_frame_fn fn, void *user, bd_err *err) BD_MUST_CHECK;

/* ps_log_first_needed - the number of the first file with a frame >= n, which no later append goes
 * before. *more: there are older ones. The number is to be kept (for the next open) before
 * ps_log_drop_before removes them. */
uint64_t ps_log_first_needed(ps_log *l, uint64_t n, bool *more);
void ps_log_drop_before(ps_log *l, uint64_t segment_no);
/* The next frame begins a new file, and this is its number. */
uint64_t ps_log_roll(ps_log *l);
/* Salvage: cuts off the frames from n on. */
bd_status ps_log_drop_from(ps_log *l, uint64_t n, bd_err *err) BD_MUST_CHECK;

#endif
