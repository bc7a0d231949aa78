/* ps_server/ps_budget.h - how much memory a server may use, and what of it goes to what.
 *
 * Layer:   ps_server. Threads: any; the counters are atomic.
 * Split:   of a budget B (docs/OPERATIONS.md says it to operators): memtables of RocksDB B/16 (two
 * of B/64 in each of the two instances), block cache with index and filter blocks B/20, staged
 *          gradients B/16, copies of rows on their way to the disk B/32, answers and the program
 *          itself 48 MiB + B/32; the rest, about three quarters, holds rows and their index. Each
 * of the small parts has a floor and a ceiling (ps_budget.c). Promise: rows stop growing when their
 * part is used up, and also when the process as a whole reaches B (ps_budget_watch); what does not
 * fit stays on the disk.
 */
#ifndef PS_BUDGET_H
#define PS_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ps_budget {
    size_t total_bytes;           /* 0: no limit, nothing is ever moved out */
    size_t rows_bytes;            /* slabs and indexes */
    size_t memtable_bytes;        /* of one memtable; 0: RocksDB's part has no limit */
    size_t cache_bytes;           /* block cache of the row store */
    size_t stage_bytes;           /* parts not committed */
    size_t group_bytes;           /* rows copied at a time by a write-back */
    _Atomic size_t used_bytes;    /* slabs and indexes now */
    _Atomic size_t dirty_bytes;   /* of them: changed rows */
    _Atomic size_t blocked_bytes; /* changed rows that were to leave since a write-back */
    _Atomic uint64_t n_moved_out; /* rows that left for others */
    _Atomic bool full;            /* the process has reached total_bytes */
} ps_budget;

/* total_bytes 0: no limit. */
void ps_budget_init(ps_budget *b, size_t total_bytes);
/* A budget of fewer bytes has no room for rows. */
#define PS_BUDGET_MIN_BYTES (128u << 20)

/* All take NULL, which is no limit. take: false when the rows' part is used up; nothing taken. */
bool ps_budget_take(ps_budget *b, size_t bytes);
void ps_budget_force(ps_budget *b, size_t bytes);
void ps_budget_give(ps_budget *b, size_t bytes);
static inline bool ps_budget_limits(const ps_budget *b)
{
    return b != NULL && b->total_bytes != 0;
}

/* Looks at the process's resident bytes; over the budget the allocator gives back what it keeps,
 * and if that is not enough, `full` is set. */
void ps_budget_watch(ps_budget *b);
/* Resident bytes of this process; 0 when /proc is not there. */
size_t ps_budget_resident_bytes(void);

#endif
