/* ps_server/ps_mark.h - how far the journal got, kept beside it: a small file from which a start
 * sees that the journal's end is missing.
 *
 * Layer:   ps_server. Includes base/.
 * Why:     a log whose last records were cut off looks like one that was never longer. Records
 *          written in this boot of the machine must all be there (a killed process loses nothing
 *          that it has written); those that were synced must be there after a power loss as well.
 * Threads: one at a time (the journal's lock).
 * Cost:    one pwrite of 64 bytes a record; never synced (an older mark only promises less).
 *
 * Format, 64 bytes, little-endian: "BRMK", u32 version = 1, boot id[16], u64 n of the last record
 * written, u64 n of the last one synced, u64 XXH3-64 of the bytes before, zeros.
 */
#ifndef PS_MARK_H
#define PS_MARK_H

#include "base/err.h"

#include <stdint.h>

typedef struct ps_mark {
    int fd; /* -1: not open */
    uint8_t boot[16];
    uint64_t written_n, synced_n;
} ps_mark;

/* Opens or makes the file. *must_have: the journal must reach this record (0: nothing is known).
 * A mark that does not read is logged and known as nothing. BD_E_IO. */
bd_status ps_mark_open(const char *path, ps_mark *m, uint64_t *must_have,
                       bd_err *err) BD_MUST_CHECK;
/* A mark that cannot be written is left as it was. */
void ps_mark_written(ps_mark *m, uint64_t n);
void ps_mark_synced(ps_mark *m, uint64_t n);
/* Forgets all promises: the journal's end was cut on purpose. */
void ps_mark_reset(ps_mark *m);
void ps_mark_close(ps_mark *m);

#endif
