/* ps_server/ps_diff.h - what changed between two checkpoints, table by table.
 *
 * Layer:   ps_server; reads checkpoints, for offline tools.
 * Cost:    one pass over both in key order; memory of one row. The numbers of servers may differ.
 */
#ifndef PS_DIFF_H
#define PS_DIFF_H

#include "ps_server/ps_catalog.h"

typedef struct ps_table_diff {
    char name[PS_MAX_NAME_BYTES + 1];
    uint64_t only_a, only_b; /* rows that the other lacks */
    uint64_t changed, same;  /* by weights and optimiser state */
    double largest;          /* |a - b| over the weights of changed rows */
    uint64_t largest_key;
    bool spec_differs; /* its rows are then not compared: all counted as changed */
} ps_table_diff;

/* *out: owned [*n] (bd_free). Parts that are missing or damaged: the error names them. */
bd_status ps_checkpoint_diff(const ps_checkpoint *a, const ps_checkpoint *b, ps_table_diff **out,
                             size_t *n, bd_err *err) BD_MUST_CHECK;

#endif
