/* client/abi/abi_int.h - what the files of the C library share.
 *
 * Layer:   client, private.
 *
 * Thread model of braid_client
 *   field             written by          protected by
 *   cl (calls on it)  any                 lock, except prepare and the wait of a lookup
 *   job, next_step    open, join, step    lock
 *   tables            create, open        lock; a table lives as long as the client
 *   ag, peers, rrefs  making, freeing     lock; never held over a wait for a server
 *   lock order: a context's lock before the client's lock
 */
#ifndef ABI_INT_H
#define ABI_INT_H

#include "client/braid.h"
#include "client/client.h"
#include "rpc/rpc_rref.h"

#include <pthread.h>
#include <stdatomic.h>

struct braid_table {
    braid_client *c;
    braid_table *next; /* of the client */
    char *name;        /* owned */
    uint32_t id, dim;
    uint64_t state_elems;
};

struct braid_client {
    rpc_env *env;  /* owned */
    cl_client *cl; /* owned */
    pthread_mutex_t lock;
    cl_job job;         /* epoch 0: not in a job yet */
    uint64_t next_step; /* number of the step to come */
    bool is_stuck;      /* a step that other ranks wait for has failed half-way */
    uint64_t staleness; /* bounded */
    bool is_ahead;      /* steps_in_flight 1 */
    float grad_scale;   /* 1 / world with BRAID_REDUCE_MEAN */
    char *restore;      /* owned; NULL: none */
    braid_table *tables;
    rpc_ag *ag;          /* owned; NULL: no reference yet */
    rpc_ag_peer **peers; /* owned array, [n_servers]; NULLs: not called yet */
    braid_rref *rrefs;   /* all that are open */
};

/* Everything a batch asks of one table. */
typedef struct abi_group {
    const braid_table *table;
    uint64_t *ids; /* owned, [n_ids] of all its features, one after the other */
    size_t n_ids;
    size_t n_bags;     /* of all its features */
    bool may_pool;     /* async, and some feature has bags */
    bool has_max;      /* some feature's bags are no sums: pooled here */
    uint32_t *offsets; /* owned, [n_bags + 1]; NULL unless may_pool */
    float *weights;    /* owned, [n_ids]; NULL: no feature has weights */
} abi_group;

typedef struct abi_feature {
    size_t group_idx;
    size_t first_id;  /* in the group's ids */
    size_t first_bag; /* in the group's bags */
    size_t n_ids, n_bags;
    size_t *offsets; /* owned, [n_bags + 1]; NULL: one id a bag */
    float *weights;  /* owned, [n_ids]; NULL: 1 */
    int mode;
} abi_feature;

struct braid_batch {
    braid_client *c;
    _Atomic uint32_t refs;
    abi_feature *features; /* owned, [n_features] */
    size_t n_features;
    abi_group *groups; /* owned, [n_groups] */
    size_t n_groups;
    cl_rows *rows; /* owned; table i of it is group i */
    bool is_fetched;
    uint64_t fetched_after;     /* last step when the fetch was sent */
    _Atomic bool in_a_backward; /* its keys must not be grouped anew */
};

/* Sets *err and returns its status. */
int abi_done(bd_status rc, const bd_err *from, braid_error *to);
/* Copies the caller's struct of an older, equal or newer header into *to of `to_bytes`. */
bd_status abi_take_options(void *to, size_t to_bytes, const void *from, const char *what,
                           bd_err *err) BD_MUST_CHECK;

/* Client lock held. Until this client's steps are applied. */
bd_status abi_wait(braid_client *c, bd_err *err) BD_MUST_CHECK;
/* Client lock held. Opens the job of a world-1 or rank-0 client that is in none. */
bd_status abi_enter_job(braid_client *c, bd_err *err) BD_MUST_CHECK;
uint64_t abi_last_step(const braid_client *c);
/* What a lookup sent now must see; 0: nothing in particular. */
uint64_t abi_after_step(const braid_client *c);

bd_status abi_batch_new(braid_client *c, const braid_feature *features, size_t n, braid_batch **out,
                        bd_err *err) BD_MUST_CHECK;
bd_status abi_forward(braid_batch *b, float *const *out, bd_err *err) BD_MUST_CHECK;
/* Pooled rows of every feature; the rows are in. */
void abi_pool_forward(const braid_batch *b, float *const *out);
/* Adds the row gradients of group i to grads[n_unique x dim]. */
void abi_pool_backward(const braid_batch *b, size_t group_idx, const float *const *grad_out,
                       float scale, float *grads);
bd_status abi_backward(braid_context *x, braid_batch *b, const float *const *grad_out,
                       bd_err *err) BD_MUST_CHECK;
bd_status abi_step(braid_context *x, double lr_scale, bd_err *err) BD_MUST_CHECK;
void abi_tables_free(braid_client *c);
/* Closing: references that were not freed can be no more than freed afterwards. */
void abi_rrefs_free(braid_client *c);

#endif
