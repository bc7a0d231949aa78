/* ps_server/ps_tables.h - the tables of a server by id, and how a journal record changes them.
 *
 * Layer:     ps_server (memory only).
 * Threads:   find and at from any thread that holds the shard's tables lock for reading; add, plan
 *            and apply by the commit thread (add under the lock for writing).
 * Sums:      a step's gradients are summed per key in the order of the record's sections (rank,
 * then part), then each key gets one optimiser step: the same bits live and at replay. Cost: one
 * section a table: no copy. More: one hash probe a key and one copy of the sums.
 */
#ifndef PS_TABLES_H
#define PS_TABLES_H

#include "ps_server/ps_fetch.h"
#include "ps_server/ps_record.h"
#include "ps_server/ps_table.h"

typedef struct ps_tables {
    ps_table **items; /* owned */
    size_t n, cap;
    ps_budget *budget; /* borrowed; NULL: none. Set before the first table is added */
} ps_tables;

void ps_tables_deinit(ps_tables *ts);
ps_table *ps_tables_find(const ps_tables *ts, uint32_t id); /* NULL: none */
/* The table and its hidden ones behind it (ps_spec_hidden). */
bd_status ps_tables_add(ps_tables *ts, const ps_spec *spec, bd_err *err) BD_MUST_CHECK;
/* The last one that was added, with its hidden ones. */
void ps_tables_drop_last(ps_tables *ts);
/* Sums know no hidden tables. */
uint64_t ps_tables_n_rows(const ps_tables *ts);
uint64_t ps_tables_n_away(const ps_tables *ts); /* on the disk only */
/* ps_tables_share - memory for rows goes from the stripes that have most of it, of any table, to
 * those that lacked some at the last ps_table_hold; rows that have not changed since they were last
 * written leave for it. The thread that applies; nothing is held. False: what they lacked could not
 * be given. */
bool ps_tables_share(const ps_tables *ts);
uint64_t ps_tables_hash(const ps_tables *ts, uint64_t *n_rows);

/* What one record does: for each table its distinct keys with summed gradients. Reusable. */
typedef struct ps_plan ps_plan;
ps_plan *ps_plan_new(void);
void ps_plan_free(ps_plan *p);

/* Where a plan reads rows that are away; NULL (also without the call): no row ever is. Borrowed. */
void ps_plan_set_fetch(ps_plan *p, ps_fetch_pool *fetch);

/* ps_plan_build - sums rec's sections and brings the rows into memory, where they stay until the
 * plan is applied or dropped; rec's arrays are borrowed until then. Waits for the disk when rows
 * are away. Errors: BD_E_NOT_FOUND (table), BD_E_MISMATCH (dim), BD_E_NOMEM, BD_E_IO, BD_E_CORRUPT,
 * BD_E_EXHAUSTED (ps_table_hold); rows unchanged, none held. decided (replay): the record's own
 * sections say what admission dropped and eviction took; else admission is asked here. */
bd_status ps_plan_build(ps_plan *p, const ps_record *rec, const ps_tables *ts, bool decided,
                        bd_err *err) BD_MUST_CHECK;
struct ps_sweep_more;
/* ps_plan_sweep - after ps_plan_build: rows that eviction takes in slice `turn` of each table, and
 * of `more` (ps_sweep.h; NULL: none), and that the record does not push join the plan. On failure
 * the plan is dropped. */
bd_status ps_plan_sweep(ps_plan *p, const ps_tables *ts, uint64_t turn, const ps_evict_now *now,
                        const struct ps_sweep_more *more, bd_err *err) BD_MUST_CHECK;
/* ps_plan_journal - makes the record's sections say what the rules decided: of a table that lost
 * gradients the sums that are left, and keys alone. They lie in the plan until the next build.
 * BD_E_NOMEM: the record is unchanged. */
bd_status ps_plan_journal(ps_plan *p, ps_record *rec, const ps_tables *ts,
                          bd_err *err) BD_MUST_CHECK;
/* Lets go of what was built. */
void ps_plan_drop(ps_plan *p);
/* Cannot fail. */
void ps_plan_apply(ps_plan *p, const ps_record *rec);

#endif
