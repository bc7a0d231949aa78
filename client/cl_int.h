/* client/cl_int.h - what the files of client/ share: the client, its links, and requests in flight.
 *
 * Layer:   client, private.
 *
 * Thread model of cl_client
 *   threads    the user's (one at a time; waits may run on others), env threads (answers)
 *   field            written by           read by         protected by
 *   map, links       map refresh          all             lock; links live until the client goes
 *   job              cl_job_join          all             lock
 *   cl_call          its waiter; env      its waiter      batch lock
 *   lane, tube       senders; env         env             send_lock (opening, order of messages),
 *                                                         tube lock (calls that wait for answers)
 *   push             push_*, commit       resend          push_lock (setup, tear-down, resend)
 *   lock order push_lock > send_lock > tube lock > batch lock; client lock is taken last and alone
 *   blocking   env threads put rows in place (cl_take_fn), send the next part, and hand answers
 * over; all decisions are taken by the waiting thread
 */
#ifndef CL_INT_H
#define CL_INT_H

#include "base/arena.h"
#include "base/err.h"

#include "client/cl_bags.h"
#include "client/cl_call.h"
#include "client/cl_part.h"
#include "client/cl_pool.h"
#include "client/cl_retry.h"
#include "client/cl_stats.h"
#include "client/client.h"
#include "proto/px.h"
#include "proto/px_pack.h"
#include "rpc/rpc_store.h"

#include <pthread.h>
#include <stdatomic.h>

#define CL_SERVICE "/braid.v1.ParameterServer/"

typedef struct cl_borrows cl_borrows;

/* ---- links: one for each server address (cl_link.c) ---- */
enum { CL_LANE_LOOKUP = 0, CL_LANE_PUSH = 1, CL_N_LANES };

typedef struct cl_lane {
    pthread_mutex_t send_lock;
    cl_tube *tube; /* under send_lock; NULL: no stream open */
} cl_lane;

typedef struct cl_link cl_link;
struct cl_link {
    cl_link *older; /* of the same client: also those whose address has changed */
    char *address;  /* owned */
    char *name;     /* owned; "ps-1 (127.0.0.1:7001)" */
    rpc_channel *channel;
    cl_lane lanes[CL_N_LANES];
    cl_stats *stats;             /* lives as long as the process */
    _Atomic int64_t next_log_ns; /* of "waiting for a server" */
    _Atomic bool is_down;
    _Atomic int64_t down_since_ns; /* of the first request that was not answered */
    _Atomic int64_t up_ns;         /* end of the last outage; 0: none yet */
};

/* cl_stream.c: sends over the lane's stream, opening it when needed. */
bd_status cl_stream_send(cl_lane *lane, cl_link *link, cl_call *call, bd_err *err) BD_MUST_CHECK;
/* True: the call is out of the tube and will not arrive. False: its answer is being delivered. */
bool cl_stream_forget(cl_tube *tube, cl_call *call);
void cl_lane_init(cl_lane *lane);
/* Ends the lane's stream with all that waits in it; the next send opens another. */
void cl_lane_cut(cl_lane *lane);
/* Drops the lane's stream; the channel's end ends it. */
void cl_lane_deinit(cl_lane *lane);
void cl_tube_unref(cl_tube *tube); /* NULL is fine */

/* ---- client ---- */
typedef struct cl_push {
    bool is_active; /* between begin and tear-down */
    bool is_ended;  /* all tables given */
    uint64_t step;
    cl_batch batch; /* one call a part */
    size_t n_tables, n_given;
    px_table_grads *slices; /* owned; entries of the calls' tables */
    size_t *slice_tables;   /* owned; table index of each of them */
    size_t *slice_rows;     /* owned; first row of each of them */
    bd_buf **packed;        /* owned, [n_slices]; gradients that travel packed, else NULL */
    size_t n_slices;
    size_t *waits_for; /* owned, [n_parts]: tables' slices not given yet */
    bd_buf **keys;     /* owned references, [n_tables] */
    bd_buf **grads;    /* owned, [n_tables]; NULL: not given yet */
    bd_buf **lists;    /* owned references, [2 n_tables]: entries and weights of bags, or NULL */
    size_t *n_rows;    /* owned, [n_tables] */
    uint32_t *dims;    /* owned */
} cl_push;

struct cl_client {
    rpc_env *env;
    char *name; /* owned */
    int64_t connect_wait_ms, ps_wait_ms;
    size_t part_bytes;
    cl_pooling pooling;
    int32_t wire_rows, wire_grads, wire_codec; /* as the wire numbers them */
    rpc_store *store;                          /* owned */
    bool store_apart;                          /* not in server 0: there when that is away */
    uint64_t id;
    uint64_t op_seed;
    _Atomic uint64_t n_ops;
    pthread_mutex_t lock;
    size_t n_servers;    /* set once */
    cl_map *map;         /* under lock */
    cl_link **links;     /* owned array, [n_servers]; under lock */
    cl_link *all_links;  /* under lock */
    cl_job job;          /* under lock */
    uint64_t *sequences; /* owned, [n_servers]: last one used (async) */
    pthread_mutex_t push_lock;
    cl_push push;
    cl_batch commit;
    uint64_t commit_step; /* 0: none open */
    double lr_scale;      /* async */
    bool push_ahead;      /* async: set once */
    cl_pool *pool;        /* shared: memory of looked-up rows */
    cl_borrows *borrows;  /* gradient arrays the transport may still read */
};

cl_map *cl_client_map(cl_client *c);                      /* one reference for the caller */
cl_link *cl_client_link(cl_client *c, size_t server_idx); /* borrowed */
cl_job cl_client_job(cl_client *c);
uint64_t cl_client_random(cl_client *c); /* for op ids and jitter */
/* Fetches a map newer than `newer_than`; without one within wait_ms the present one stays. */
bd_status cl_map_refresh(cl_client *c, uint64_t newer_than, int64_t wait_ms,
                         bd_err *err) BD_MUST_CHECK;
void cl_links_free(cl_client *c);
void cl_links_cut(cl_client *c, int lane); /* that lane of every link */

cl_link *cl_link_new(rpc_env *env, const char *name, const char *address, bd_err *err);
void cl_link_free(cl_link *link); /* ends what is open on it */

/* A control call to every server at once. replies[n_servers]: px_unpacked_free each; NULLs on
 * failure. */
bd_status cl_ask_all(cl_client *c, const char *method, const ProtobufCMessage *request,
                     const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **replies,
                     bd_err *err) BD_MUST_CHECK;
/* A request of sent_ns has not been answered: counts the outage, and says now and then that the
 * server is waited for. */
void cl_link_down(cl_link *link, int64_t sent_ns, const cl_trouble *t, const bd_err *why);
/* A server has answered. */
void cl_link_up(cl_link *link);
/* cl_job.c: the same with room for the replies, which cl_replies_free frees (NULL is fine). */
bd_status cl_ask_each(cl_client *c, const char *method, const ProtobufCMessage *req,
                      const ProtobufCMessageDescriptor *type, ProtobufCMessage ***out,
                      bd_err *err) BD_MUST_CHECK;
void cl_replies_free(cl_client *c, ProtobufCMessage **replies);
/* cl_fill.c: the rows of spec->init_file, if there is one, stand in the table when it returns.
 * BD_E_NOT_FOUND, BD_E_DATA, BD_E_MISMATCH name the file; BD_E_TIMEOUT: the other rank does not. */
bd_status cl_table_fill(cl_client *c, const cl_table_spec *spec, uint32_t table_id,
                        bd_err *err) BD_MUST_CHECK;

/* cl_borrow.c: the caller's arrays wrapped as buffers. NULL: no memory. */
cl_borrows *cl_borrows_new(void);
void cl_borrows_unref(cl_borrows *b); /* NULL is fine */
bd_buf *cl_borrow(cl_borrows *b, const float *values, size_t n);
bool cl_borrows_any(cl_borrows *b); /* some are out */
/* Until nothing refers to the arrays any more. BD_E_INTERNAL after 10 s. */
bd_status cl_borrows_wait(cl_borrows *b, bd_err *err) BD_MUST_CHECK;

/* cl_rows.c, for cl_push.c */
const cl_plan *cl_rows_plan(const cl_rows *r);
const cl_map *cl_rows_map(const cl_rows *r);
size_t cl_rows_n_tables(const cl_rows *r);
bd_buf *cl_rows_keys(const cl_rows *r, size_t table_idx);
/* References to the buffers of entries and weights, or NULLs. */
void cl_rows_ref_lists(const cl_rows *r, size_t table_idx, bd_buf *lists[2]);
/* What a request to this server says of the table's bags. */
void cl_rows_bags(const cl_rows *r, size_t table_idx, size_t server_idx, uint32_t *n_bags,
                  px_bulk *entries, px_bulk *weights);

/* Sends the parts of `step` to one server again and waits for the answers. Nothing to do when that
 * step has no parts any more. */
bd_status cl_push_resend(cl_client *c, size_t server_idx, uint64_t step, bd_err *err) BD_MUST_CHECK;
void cl_push_deinit(cl_client *c);

#endif
