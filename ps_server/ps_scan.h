/* ps_server/ps_scan.h - all rows of a table when some are on the disk: hash and pages.
 *
 * Layer:   ps_server. The keeper's thread (PS_OP_HASH, PS_OP_PAGE).
 * How:     changed rows go down to the store first, which then has everything; one pass over it.
 * Rows that change meanwhile are seen as of some moment during the call.
 */
#ifndef PS_SCAN_H
#define PS_SCAN_H

#include "ps_server/ps_shard.h"

/* Rows with key >= from in key order. */
typedef struct ps_scan {
    uint32_t table_id;
    uint64_t from;
    size_t max_rows;
    ps_page page; /* the caller's arrays */
} ps_scan;

bd_status ps_scan_hash(ps_shard *s, uint64_t *hash, uint64_t *n_rows, bd_err *err) BD_MUST_CHECK;
/* BD_E_NOT_FOUND: no such table. */
bd_status ps_scan_page(ps_shard *s, ps_scan *scan, bd_err *err) BD_MUST_CHECK;

#endif
