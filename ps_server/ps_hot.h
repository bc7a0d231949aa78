/* ps_server/ps_hot.h - the keys of a table that were pushed most: the best of all that are offered.
 *
 * Layer:   ps_server (pure). Threads: one at a time.
 * Exact:   every row knows how often it was pushed, so nothing is estimated and steady traffic pays
 *          nothing; a question costs a pass over the rows in memory.
 */
#ifndef PS_HOT_H
#define PS_HOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_HOT_MAX 10000u

typedef struct ps_hot_key {
    uint64_t key, last_step;
    uint32_t freq;
} ps_hot_key;

typedef struct ps_hot {
    ps_hot_key *items; /* owned [most]: a heap, the coldest of them first */
    size_t n, most;
    uint64_t n_rows, pushes; /* of all that were offered */
} ps_hot;

/* False: no memory. */
bool ps_hot_init(ps_hot *h, size_t most);
void ps_hot_deinit(ps_hot *h);
void ps_hot_offer(ps_hot *h, const ps_hot_key *k);
/* The hottest first; nothing is offered after that. */
void ps_hot_sort(ps_hot *h);

#endif
