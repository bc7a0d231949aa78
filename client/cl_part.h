/* client/cl_part.h - which key goes where: shard map, dedup, and the cut of a batch into parts.
 *
 * Layer:     client, private, pure part: no network, no clock, no locks.
 * Threads:   any; a cl_map is immutable and shared by counting.
 * Order:     distinct keys stand grouped by server, then by slot, then in the order of their first
 *            occurrence (ids that stay as they are: of the ids): a pure function of (ids, map), so
 *            that sums have a fixed order.
 * Cost:      O(ids) + 4096 a table; three passes, compares within a slot. Ids that stay as they are
 *            cost two passes and half as much.
 */
#ifndef CL_PART_H
#define CL_PART_H

#include "base/buf.h"
#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CL_N_SLOTS 4096u

/* The owner of every slot, and the order of slots that groups them by owner. */
typedef struct cl_map {
    _Atomic uint32_t refs;
    uint64_t epoch;
    size_t n_servers;
    char **addresses;               /* owned, [n_servers] */
    uint32_t owner[CL_N_SLOTS];     /* server index */
    uint16_t bucket_of[CL_N_SLOTS]; /* place of the slot when sorted by (owner, slot) */
    uint32_t *first_bucket;         /* owned, [n_servers + 1] */
} cl_map;

/* owner[4096], addresses[n_servers] as the coordinator sent them. BD_E_CORRUPT names what is
 * wrong; BD_E_NOMEM. One reference. */
bd_status cl_map_new(uint64_t epoch, const char *const *addresses, size_t n_servers,
                     const uint32_t *owner, size_t n_owner, cl_map **out,
                     bd_err *err) BD_MUST_CHECK;
cl_map *cl_map_ref(cl_map *m);
void cl_map_unref(cl_map *m); /* NULL is fine */
bool cl_map_same_owners(const cl_map *a, const cl_map *b);
uint32_t cl_slot_of(uint64_t key);

/* The distinct ids of one table, or all of them where few are repeated: then each has a key of its
 * own. */
typedef struct cl_uniques {
    bd_buf *keys; /* owned; uint64_t[n_unique], and room for the repeated ones */
    size_t n_unique;
    bool as_they_are;     /* n_unique == n_ids */
    uint32_t *index;      /* owned, [n_ids]: ids[i] == keys[index[i]] */
    size_t *server_first; /* owned, [n_servers + 1]: server s has keys [first[s], first[s+1]) */
} cl_uniques;

/* may_repeat: the ids stay as they are when there are CL_PART_MANY_IDS or more and, by a sample of
 * the slots, no more than one of CL_PART_FEW is a repeated one. BD_E_NOMEM; BD_E_INVALID for 2^32
 * ids or more. out untouched on failure. */
bd_status cl_uniques_init(cl_uniques *out, const cl_map *map, const uint64_t *ids, size_t n_ids,
                          bool may_repeat, bd_err *err) BD_MUST_CHECK;
#define CL_PART_MANY_IDS 4096u
#define CL_PART_FEW      16u
void cl_uniques_deinit(cl_uniques *u);

/* Rows [first_row, first_row + n_rows) of one table, all on one server. */
typedef struct cl_slice {
    size_t table_idx, first_row, n_rows;
} cl_slice;
/* One request: slices of one server. */
typedef struct cl_part {
    size_t server_idx;
    uint32_t part, n_parts; /* of this server */
    size_t first_slice, n_slices;
} cl_part;
/* Every server has at least one part (an empty one if it has no rows), parts in order of servers.
 */
typedef struct cl_plan {
    cl_slice *slices; /* owned */
    cl_part *parts;   /* owned */
    size_t n_slices, n_parts;
} cl_plan;

/* One table to be cut. */
typedef struct cl_cut {
    const cl_uniques *uniques;
    uint32_t dim;
    /* Pooled at the servers: stays in one piece. NULL or n_bags 0: not. */
    const struct cl_bags *bags;
} cl_cut;
/* Cuts tables into parts of about part_bytes (8 + 4 * dim bytes a row; at least one row a part;
 * bags stay in one piece): each server's bytes over the nearest whole number of parts, evenly, so a
 * part has at most 1.5 part_bytes and a row. BD_E_NOMEM. */
bd_status cl_plan_init(cl_plan *out, size_t n_servers, const cl_cut *tables, size_t n_tables,
                       size_t part_bytes, bd_err *err) BD_MUST_CHECK;
void cl_plan_deinit(cl_plan *p);

#endif
