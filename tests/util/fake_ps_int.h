/* tests/util/fake_ps_int.h - what the two halves of the fake share: the cluster (fake_ps.c) and what
 * a server does with the requests of a stream (fake_ps_stream.c).
 */
#ifndef FAKE_PS_INT_H
#define FAKE_PS_INT_H

#include "base/buf.h"

#include "rpc/rpc_store.h"

#include "tests/util/fake_ps.h"

#include <pthread.h>

enum { MAX_SERVERS = 4, MAX_TABLES = 8, MAX_DIM = 64, MAX_HELD = 8, N_SLOTS = 4096 };

typedef struct row {
    struct row *next;
    uint32_t table_id;
    uint64_t key;
    float w[MAX_DIM];
} row;

/* One staged part, gradients copied. */
typedef struct part {
    struct part *next;
    uint32_t rank, idx, n_parts;
    size_t n_rows;
    row *grads; /* owned array */
} part;

typedef struct applied {
    struct applied *next;
    uint64_t client_id, sequence;
} applied;

typedef struct table {
    uint32_t id, dim;
    char name[64];
} table;

/* A request that is not answered yet. */
typedef struct held {
    void *stream;
    bd_chain msg;
} held;

typedef struct server {
    fake_ps *f;
    size_t idx;
    char address[64];
    rpc_server *rpc; /* NULL: killed */
    row *rows;
    part *staged;
    uint64_t staged_step, committed, epoch;
    uint32_t world;
    int consistency;
    applied *applied;
    int n_fail, n_ignore;
    bd_status fail_rc;
    held held[MAX_HELD];
    int n_held, n_hold; /* requests that wait, and how many are to; 0: none */
} server;

struct fake_ps {
    rpc_env *env;
    size_t n_servers;
    server servers[MAX_SERVERS];
    pthread_mutex_t lock; /* everything below and the servers' state */
    rpc_store store;      /* what is served: memory's, but for the map */
    rpc_store *memory;    /* owned */
    uint64_t map_epoch;
    size_t map_servers; /* that the map has */
    uint32_t owner[N_SLOTS];
    table tables[MAX_TABLES];
    size_t n_tables;
    bool duplicate;
    fake_ps_counts counts;
};

/* All of these with the lock held. */
row *fake_make_row(server *s, uint32_t table_id, uint64_t key);
void fake_read_row(server *s, uint32_t table_id, uint64_t key, float *w, size_t dim);
server *fake_owner_of(fake_ps *f, uint64_t key);
void fake_drop_staged(server *s);
/* user: the server. */
bd_status fake_on_stream(void *user, rpc_stream *rpc, rpc_stream_events *ev, bd_err *err);

#endif
