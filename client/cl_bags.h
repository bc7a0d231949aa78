/* client/cl_bags.h - lists of bags for pooling at the server, made from the ids of a batch.
 *
 * Layer:   client, private, pure part. Threads: any.
 * Format:  proto/braid/v1/parameter_server.proto (TableKeys): entries in the order of the distinct
 *          keys, those of one key in the order of the ids.
 * Cost:    O(ids), three passes.
 */
#ifndef CL_BAGS_H
#define CL_BAGS_H

#include "client/cl_part.h"
#include "client/client.h"

#define CL_BAG_SAME_KEY  0x80000000u
#define CL_BAG_MAX_BYTES ((size_t)32 << 20) /* of one message; more goes as rows */

typedef struct cl_bags {
    uint32_t n_bags; /* 0: not pooled at the server */
    bd_buf *entries; /* owned; uint32_t[n_ids] */
    bd_buf *weights; /* owned; float[n_ids]; NULL: all 1 */
    size_t *first;   /* owned, [n_servers + 1]: server s has entries [first[s], first[s + 1]) */
} cl_bags;

/* True when a lookup and a push of these bags send fewer bytes pooled at n_servers servers than row
 * by row, and fit their messages. */
bool cl_bags_pay(const cl_ids *ids, size_t n_unique, size_t n_servers);
bool cl_bags_fit(const cl_ids *ids);
/* BD_E_NOMEM; BD_E_INVALID for offsets that do not rise from 0 to n_ids. */
bd_status cl_bags_init(cl_bags *out, const cl_ids *ids, const cl_uniques *u, size_t n_servers,
                       bd_err *err) BD_MUST_CHECK;
void cl_bags_deinit(cl_bags *b);
/* Bytes of the messages that carry server s's part of it, one way. */
size_t cl_bags_part_bytes(const cl_bags *b, const cl_uniques *u, size_t server_idx, uint32_t dim);

#endif
