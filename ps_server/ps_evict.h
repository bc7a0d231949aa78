/* ps_server/ps_evict.h - eviction: which rows go away for good while training goes on.
 *
 * Layer:   ps_server (pure). Threads: any.
 * Meaning: an evicted key reads as if it had never been pushed, and comes back, through admission,
 * as a new row. It leaves a tombstone (ps_table.h) in the next write-back. Pace:    a rule looks at
 * one of `every` slices of the table a step (async: at a pace of its own), so a whole pass takes
 * `every` steps. A slice is the rows whose mixed key ends in its number: the same on every server,
 * at every start. Exact:   what goes is decided before a step is applied, from the rows as the step
 * before left them, among rows that the step does not push, and journaled with the step
 * (ps_sweep.h): the same rows go after a restart, a retry or a restore. When a row that is on the
 * disk only is found depends on time (ps_reap.h). Rules that count rows
 * (max_rows) do it for each server's share of the slots and each slice by itself.
 *
 * Adding one: its file, its line in ps_evict.c, its test in tests/unit/test_ps_evict.c.
 */
#ifndef PS_EVICT_H
#define PS_EVICT_H

#include "ps_server/ps_rule.h"
#include "ps_server/ps_types.h"

/* A row as a rule sees it. */
typedef struct ps_evict_row {
    uint64_t key;
    uint32_t freq; /* pushes since it came */
    uint32_t last_time;
    uint64_t last_step;
    const float *weights; /* [dim]; NULL unless wants_weights */
    size_t dim;
} ps_evict_row;

typedef struct ps_evict_now {
    uint64_t step;
    uint32_t time_s; /* seconds since 1970 */
    double share;    /* of all slots, this server's */
} ps_evict_now;

typedef struct ps_evict {
    ps_rule_form form;
    size_t every_at; /* which number is `every`: steps for a whole pass */
    bool wants_weights;
    /* Does it go? Or NULL: */
    bool (*goes)(const double *param, const ps_evict_row *row, const ps_evict_now *now);
    /* of more than max_rows (number max_rows_at) those of the least rank go; ties: the lesser key
     */
    uint64_t (*rank)(const double *param, const ps_evict_row *row, const ps_evict_now *now);
    size_t max_rows_at;
} ps_evict;

extern const ps_evict ps_evict_ttl, ps_evict_lru, ps_evict_lfu, ps_evict_norm, ps_evict_score;

const ps_evict *ps_evict_find(const char *name); /* NULL: none is called so */
const ps_evict *ps_evict_at(size_t i);           /* NULL past the end: for help and tests */

/* What every rule has as its last number. */
#define PS_EVICT_EVERY                                                                  \
    {                                                                                   \
        "every", 1024, 1, 1048576, "steps for a whole pass, rounded up to a power of 2" \
    }
/* That number, rounded. */
uint64_t ps_evict_every(const ps_evict *e, const double *param);
/* How many rows this server may keep, and how many of them a slice. */
uint64_t ps_evict_most(const ps_evict *e, const double *param, const ps_evict_now *now);
uint64_t ps_evict_quota(const ps_evict *e, const double *param, const ps_evict_now *now,
                        uint64_t slice);

#endif
