/* ps_server/ps_coord_int.h - what the two files of the coordinator's core share.
 *
 *   ps_coord_core.c   ops and ticks in, answers out: who waits, what a term's end does
 *   ps_coord_facts.c  keys, terms and answers of ops: the map in memory, the facts that it is kept by
 *
 * Layer, threads and ownership: ps_coord.h.
 */
#ifndef PS_COORD_INT_H
#define PS_COORD_INT_H

#include "ps_server/ps_coord.h"

#define PS_COORD_BUCKETS 4096u

typedef struct ps_coord_entry {
    struct ps_coord_entry *next;
    char *key;      /* owned */
    uint8_t *value; /* owned */
    size_t n_bytes;
    uint32_t ttl_ms;  /* 0: stays */
    int64_t until_ns; /* 0: the term begins with the next tick */
} ps_coord_entry;

/* What an op with this id was answered. */
typedef struct ps_coord_memo {
    uint64_t op_id, order, result;
} ps_coord_memo;

struct ps_coord_core {
    ps_coord_entry *buckets[PS_COORD_BUCKETS];
    size_t bytes;
    size_t n_leases;      /* entries that run out */
    ps_coord_memo *memos; /* owned ring of PS_COORD_OPS by order */
    uint64_t next_order;
    uint64_t last_client;
    uint64_t map_epoch;
    uint32_t n_servers;
    char **servers;   /* owned [n_servers]; NULL: not registered */
    uint32_t n_stale; /* facts name so many servers (0: as many as there are, or fewer): the next
                       * address makes a new map without them */
    ps_coord_op *parked;
    ps_coord_write_fn write;
    void *user;
};

/* The link that leads to the key's entry, or to NULL at the end of its chain. */
ps_coord_entry **ps_coord_find(ps_coord_core *c, const char *key);

/* What the op with this id was answered; NULL: it is new (or 0: it has no id), or too long ago. */
const ps_coord_memo *ps_coord_find_memo(const ps_coord_core *c, uint64_t op_id);

/* Each writes its facts first, those of the op's answer with them, and changes nothing when that fails.
 *   store     op->key = val[n] for op->ttl_ms; the op's answer is `result`
 *   erase     the key is gone; that it was not there is no error
 *   remember  the op's answer and one more fact, or NULL; sync: on the disk when it returns */
bd_status ps_coord_store(ps_coord_core *c, ps_coord_op *op, const void *val, size_t n,
                         uint64_t result);
bd_status ps_coord_erase(ps_coord_core *c, const char *key, bd_err *err);
bd_status ps_coord_remember(ps_coord_core *c, ps_coord_op *op, const ps_fact *fact, bool sync,
                            uint64_t result);

void ps_coord_clear(ps_coord_core *c); /* frees all entries */

#endif
