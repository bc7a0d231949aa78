/* client/client.h - a trainer's view of the parameter servers.
 *
 * Layer:     client (base, proto, rpc).
 * Threads:   calls on one cl_client from one thread at a time, except cl_client_kv (any thread) and
 *            the waits. Network work runs on the rpc_env's threads.
 * Sharding:  key -> slot (top 12 bits of bd_mix64(key)) -> server, by the coordinator's shard map.
 * A MOVED answer refreshes the map and repeats; the user never sees it. Failure:   a server that
 * cannot be reached is waited for up to options.ps_wait_ms; then BD_E_UNAVAILABLE names it. Nothing
 * is applied twice (proto/braid/v1/parameter_server.proto). Order:     (sync) every sum has a fixed
 * order: samples within a rank here, ranks at the server.
 */
#ifndef CL_CLIENT_H
#define CL_CLIENT_H

#include "base/err.h"
#include "base/kv.h"

#include "rpc/rpc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cl_client cl_client;

typedef enum cl_consistency { CL_SYNC = 1, CL_ASYNC = 2, CL_BOUNDED = 3 } cl_consistency;

/* Where bags (cl_ids.offsets) are summed. AUTO: where fewer bytes are sent for it. */
typedef enum cl_pooling { CL_POOL_AUTO = 0, CL_POOL_CLIENT, CL_POOL_SERVER } cl_pooling;

typedef struct cl_options {
    const char *coordinator; /* rpc_store.h: "host:port" of server 0, or "etcd://host:port,..." */
    const char *name;        /* for logs, e.g. "worker-1"; copied */
    int64_t
        connect_wait_ms; /* until the coordinator answers and the shard map is whole, 0: 30,000 */
    int64_t ps_wait_ms;  /* how long a lost server is waited for, 0: 120,000 */
    size_t part_bytes;   /* requests are split at about this size, 0: 1 MiB */
    cl_pooling pooling;
    /* How rows and gradients travel: dtype f32 (also NULL), f16, bf16, i8 (rounded to nearest; i8
     * with a scale per row); codec none (also NULL), lz4, zstd. For links slower than 1 GB/s. */
    const char *wire_rows, *wire_grads, *wire_codec;
    /* Async and bounded: gradients are copied when they are given, and need no cl_push_wait: the
     * next push waits for this one, and is told of its failure. One is on its way at a time. */
    bool push_ahead;
} cl_options;

/* Connects, gets a client id and the shard map. */
bd_status cl_client_new(rpc_env *env, const cl_options *opt, cl_client **out,
                        bd_err *err) BD_MUST_CHECK;
void cl_client_free(cl_client *c);
bd_kv *cl_client_kv(cl_client *c); /* the coordinator's store; borrowed */
uint64_t cl_client_id(const cl_client *c);
size_t cl_client_n_servers(const cl_client *c);

/* ---- job ---- */
typedef struct cl_job {
    uint64_t epoch;
    int rank, world;
    cl_consistency consistency;
    uint64_t
        restore_epoch; /* open with a restore: the job that made it, 0: the newest of its name */
} cl_job;
/* Rank 0 only: tells every server (OpenJob). restore: checkpoint name or NULL. next_step >= 1. */
bd_status cl_job_open(cl_client *c, const cl_job *job, const char *restore, uint64_t next_step,
                      bd_err *err) BD_MUST_CHECK;
/* Every rank, after rank 0 has opened it: later requests carry this epoch and rank. */
void cl_job_join(cl_client *c, const cl_job *job);
/* The next unused job epoch of this cluster. */
bd_status cl_job_next_epoch(cl_client *c, uint64_t *epoch, bd_err *err) BD_MUST_CHECK;

/* ---- tables ---- */
typedef struct cl_param {
    const char *name;
    double value;
} cl_param;
typedef enum cl_bad_gradient {
    CL_BAD_REJECT, /* the push fails with BD_E_NUMERIC naming table and key */
    CL_BAD_DROP_ROW,
    CL_BAD_CLIP, /* to max_gradient_norm, which must be set */
    CL_BAD_HALT  /* the push fails, and every later one of the job */
} cl_bad_gradient;
/* "reject" (also NULL and ""), "drop_row", "clip", "halt"; false: none of them. */
bool cl_bad_gradient_parse(const char *name, cl_bad_gradient *out);
typedef struct cl_table_spec {
    const char *name;
    uint32_t dim;
    const char *dtype;       /* of the stored weights: f32 (also NULL), f16, bf16, i8 */
    const char *initializer; /* base/num/init.h */
    const cl_param *init_params;
    size_t n_init_params;
    /* .tsv or .npy (base/rows_file.h) of rows that a table without any begins with; keys that are
     * not in it start as initializer says. Read here, by one client of a job. NULL, "": none. */
    const char *init_file;
    bool init_by_other; /* another rank does it: wait until it has */
    uint64_t seed;
    const char *optimizer; /* base/num/optim.h */
    const cl_param *opt_params;
    size_t n_opt_params;
    cl_bad_gradient bad_gradient; /* of rows that are not finite or longer than the norm */
    double max_gradient_norm;     /* of one row in one push; 0: no limit */
    const char *admission;  /* one rule of num_rules_parse, "frequency(count=3)"; NULL, "": all */
    const char *eviction;   /* up to four, "ttl(steps=10000); lru(max_rows=1e6)"; NULL, "": none */
    const char *durability; /* checkpoint, journal (also NULL), sync */
} cl_table_spec;
/* Creates on all servers, or finds an equal one. BD_E_MISMATCH names the field that differs. */
bd_status cl_table_create(cl_client *c, const cl_table_spec *spec, uint32_t *table_id,
                          bd_err *err) BD_MUST_CHECK;

/* ---- lookup ---- */
typedef struct cl_ids {
    uint32_t table_id;
    uint32_t dim;
    const uint64_t *ids; /* [n_ids], any order, repeats welcome; borrowed until the wait */
    size_t n_ids;
    /* Bags that may be summed at the servers (never in a sync job); borrowed as well. NULL: rows.
     */
    const uint32_t *offsets; /* [n_bags + 1] bag b has ids [offsets[b], offsets[b + 1]) */
    size_t n_bags;
    const float *weights; /* [n_ids]; NULL: all 1 */
} cl_ids;
/* One table's part of an answer. All arrays belong to the cl_rows, but for those of the cl_ids.
 * Pooled (offsets not NULL): row b is the sum of weight x row over bag b, servers in their order,
 * and what is pushed are the gradients of the bags. Else row i is that of keys[i]. */
typedef struct cl_table_rows {
    uint32_t table_id;
    uint32_t dim;
    size_t n_unique;
    const uint64_t *keys;  /* [n_unique] distinct (pooled: a few may not be), by server and slot */
    const uint32_t *index; /* [n_ids] ids[i] == keys[index[i]] */
    float *rows;           /* [n_rows x dim] */
    size_t n_rows;         /* n_unique; pooled: the bags */
    const uint32_t *offsets; /* [n_rows + 1]; NULL: not pooled */
    const float *weights;    /* [n_ids]; NULL: all 1 */
} cl_table_rows;
/* Pooled rows only: row_grads[n_unique x dim] = gradients of the keys from those of the bags. */
void cl_table_rows_expand(const cl_table_rows *t, const float *bag_grads, float *row_grads);
typedef struct cl_rows cl_rows;

/* Only the local half: dedup and partition, no network; for a prefetch thread (any thread). */
bd_status cl_rows_prepare(cl_client *c, const cl_ids *tables, size_t n_tables, cl_rows **out,
                          bd_err *err) BD_MUST_CHECK;
/* Sends one request per server with all tables in it. after_step: see LookupRequest; 0: none. */
bd_status cl_rows_fetch(cl_rows *r, uint64_t after_step, bd_err *err) BD_MUST_CHECK;
bd_status cl_rows_wait(cl_rows *r, bd_err *err) BD_MUST_CHECK;
const cl_table_rows *cl_rows_table(const cl_rows *r, size_t i);
void cl_rows_free(cl_rows *r);

/* ---- push and commit ---- */
/* Pushes the gradients of the rows of a lookup: grads[i] is [n_rows x dim] for its table i,
 * borrowed until the commit of that step has answered. Every server gets a part, possibly an empty
 * one. Starts and returns. */
bd_status cl_push_start(cl_client *c, uint64_t step, const cl_rows *r, float *const *grads,
                        bd_err *err) BD_MUST_CHECK;
/* The same, table by table as backward makes them ready: push_begin, push_table for each, push_end.
 */
bd_status cl_push_begin(cl_client *c, uint64_t step, const cl_rows *r, bd_err *err) BD_MUST_CHECK;
bd_status cl_push_table(cl_client *c, size_t table_idx, const float *grads,
                        bd_err *err) BD_MUST_CHECK;
bd_status cl_push_end(cl_client *c, bd_err *err) BD_MUST_CHECK;
/* Async and bounded: the factor on the learning rate that later pushes carry (0: 1). */
void cl_set_lr_scale(cl_client *c, double lr_scale);
/* Until every server has staged (sync) or applied and journaled (async) this client's parts. */
bd_status cl_push_wait(cl_client *c, bd_err *err) BD_MUST_CHECK;
/* Sync. Tells every server the decision and waits for the answers; sends parts again to a server
 * that lost them. After BD_OK the step is applied and journaled everywhere. */
bd_status cl_commit(cl_client *c, uint64_t step, bool commit, double lr_scale,
                    bd_err *err) BD_MUST_CHECK;
/* The same in two halves, to overlap it with other work. */
bd_status cl_commit_start(cl_client *c, uint64_t step, bool commit, double lr_scale,
                          bd_err *err) BD_MUST_CHECK;
bd_status cl_commit_wait(cl_client *c, bd_err *err) BD_MUST_CHECK;
/* Gives up the open push and commit, whatever their state, without waiting for servers; gradient
 * arrays are the caller's again on BD_OK. abort_step: (sync) tells the servers, best effort, that
 * this step is off; only while no rank can have decided to commit it. 0: says nothing. */
bd_status cl_push_drop(cl_client *c, uint64_t abort_step, bd_err *err) BD_MUST_CHECK;

/* ---- the rest ---- */
/* Sum over the servers of the order-free row hash. */
bd_status cl_param_hash(cl_client *c, uint64_t *hash, uint64_t *n_rows, bd_err *err) BD_MUST_CHECK;
/* Freezes a checkpoint on every server. */
bd_status cl_checkpoint(cl_client *c, const char *name, uint64_t step, bd_err *err) BD_MUST_CHECK;
/* The same while training goes on: cut, between two steps, returns as soon as every server holds
 * the rows of this moment; poll then says whether they are written (*done; wait: not before they
 * are), with the error when that failed. BD_E_NOT_FOUND: a server was started since the cut, which
 * is lost; nothing else is, take another of a later step. */
bd_status cl_checkpoint_cut(cl_client *c, const char *name, uint64_t step,
                            bd_err *err) BD_MUST_CHECK;
bd_status cl_checkpoint_poll(cl_client *c, const char *name, uint64_t step, bool wait, bool *done,
                             bd_err *err) BD_MUST_CHECK;
bd_status cl_checkpoint_delete(cl_client *c, const char *name, bd_err *err) BD_MUST_CHECK;
/* Writes rows (and state, or NULL) as they are: for tests and imports. */
bd_status cl_assign(cl_client *c, uint32_t table_id, uint32_t dim, const uint64_t *keys,
                    const float *rows, const float *state, size_t n, bd_err *err) BD_MUST_CHECK;

#endif
