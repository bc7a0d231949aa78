/* ps_server/ps_order.h - changed rows in the order in which the store keeps them.
 *
 * Layer:   ps_server, pure.
 * Threads: any.
 * Cost:    two passes over 24 bytes an entry where keys are spread over their bits, sorting within
 *          the cache after them; entries themselves are read once, to list them.
 */
#ifndef PS_ORDER_H
#define PS_ORDER_H

#include "base/err.h"

#include "ps_server/ps_table.h"

/* One entry where it lies. */
typedef struct ps_ref {
    uint64_t key; /* a copy: sorting must not go to the entries */
    uint32_t table_id;
    uint32_t value_bytes;
    const uint8_t *at; /* key, value */
} ps_ref;

/* ps_order_entries - all entries by table and key. *refs: owned, [n]; it points into the items.
 * BD_E_NOMEM. */
bd_status ps_order_entries(const ps_entries *items, size_t n_items, ps_ref **refs, size_t *n,
                           bd_err *err) BD_MUST_CHECK;

#endif
