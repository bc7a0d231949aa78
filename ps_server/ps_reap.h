/* ps_server/ps_reap.h - eviction of rows that are on the disk only: which of them are looked at,
 * and when.
 *
 * Layer:   ps_server, the inside of a shard.
 * How:     the keeper goes through the stored rows of every table that has rules and rows away, a
 * batch at a time. Rows that a rule would take come into memory and are named to the commit thread,
 * which looks at them again with the next slice (ps_sweep.h) and evicts them as any other row:
 * journaled with a step, a tombstone after it. A rule that ranks first gets a pass that finds the
 * place below which rows are too many: from a sample, exact up to 64 Ki rows.
 * Pace:    PS_REAP_SCAN_ROWS every 20 ms that the keeper has nothing else to do, no batch
 * before the commit thread has had the last one's rows, and a rest as long as the pass after it. So
 * no thread that answers or applies reads the disk for it.
 * Threads: poll: keeper; plan: commit thread. A batch of rows is handed over by `ready`,
 * release/acquire, and back.
 * Memory:  4 MiB of rows and 1 MiB of samples a rule that ranks.
 */
#ifndef PS_REAP_H
#define PS_REAP_H

#include "ps_server/ps_record.h"
#include "ps_server/ps_shard.h"

#define PS_REAP_SCAN_ROWS 4096u

typedef struct ps_reap ps_reap;
ps_reap *ps_reap_new(void); /* NULL: no memory */
void ps_reap_free(ps_reap *r);

/* One batch, when it is time for one. Reads the store. BD_E_IO, BD_E_CORRUPT, BD_E_NOMEM: logged;
 * the pass begins anew. */
bd_status ps_reap_poll(ps_shard *s, bd_err *err) BD_MUST_CHECK;
/* A pass is under way: the next batch is due in PS_REAP_MS. Keeper. */
#define PS_REAP_MS 20
bool ps_reap_is_on(const ps_shard *s);
/* After ps_plan_build: rows that the rules take join the plan, of the record's slice and of the
 * disk. On failure the plan is dropped. */
bd_status ps_reap_plan(ps_shard *s, const ps_record *rec, bd_err *err) BD_MUST_CHECK;

#endif
