/* client/cl_call.h - requests in flight: what one is, and a batch of them that is waited for
 * together.
 *
 * Layer:     client, private. Threads and locks: cl_int.h.
 * Ownership: a batch owns its calls; bulk of a request is borrowed until its answer, bulk of an
 * answer belongs to the call until the waiter has handled it.
 */
#ifndef CL_CALL_H
#define CL_CALL_H

#include "base/arena.h"
#include "base/err.h"

#include "client/cl_retry.h"
#include "client/client.h"
#include "proto/px.h"

#include <pthread.h>

typedef struct cl_batch cl_batch;
typedef struct cl_call cl_call;
typedef struct cl_tube cl_tube;
typedef struct cl_link cl_link;

/* ---- one request to one server, sent until it is answered (cl_call.c) ---- */
typedef enum cl_kind { CL_LOOKUP = 1, CL_PUSH, CL_COMMIT, CL_CONTROL } cl_kind;

typedef enum cl_call_state {
    CL_IDLE = 0, /* not to be sent yet */
    CL_DUE,      /* to be sent at trouble.next_try_ns by the waiter */
    CL_SENT,     /* an env thread will end it */
    CL_ARRIVED,  /* rc, reply or err are in */
    CL_SETTLED,  /* handled */
} cl_call_state;

struct cl_call {
    cl_batch *batch;
    cl_kind kind;
    size_t server_idx;
    /* request */
    union {
        px_lookup_request lookup;
        px_push_request push;
        px_commit_request commit;
    } body;
    const char *method;      /* CL_CONTROL: full name */
    bd_chain bytes;          /* CL_CONTROL: owned, shared by every try */
    uint64_t after_parts_of; /* step whose parts NEED_PARTS asks for */
    cl_call *then; /* a later call of the batch, idle: an env thread sends it when this one's answer
                      is in; NULL: none */
    /* this try; under the batch lock */
    cl_call_state state;
    bool cancelled;
    bd_status rc;
    bd_err err;
    bool is_taken;       /* the batch's on_take had the answer; rc and err are what it said */
    bd_chain reply;      /* owned; bulk of `got` lies in it */
    bd_arena arena;      /* of `got` */
    px_stream_reply got; /* decoded answer, except CL_CONTROL */
    bool is_decoded;
    rpc_call *unary; /* owned while CL_SENT over a unary call */
    cl_tube *tube;   /* while CL_SENT over a stream */
    uint64_t stream_id;
    cl_call *next_pending; /* under the tube lock */
    /* waiter's */
    cl_trouble trouble;
    cl_link *link;   /* of the last try */
    int64_t sent_ns; /* its start */
};

/* Takes a good answer where it arrives, on an env thread: no locks, no waiting. An error ends the
 * wait for the batch. The bulk of `got` is gone afterwards. */
typedef bd_status (*cl_take_fn)(void *user, cl_call *call, const px_stream_reply *got, bd_err *err);

/* Calls that are waited for together. */
struct cl_batch {
    cl_client *c;
    cl_call *calls; /* owned, [n_calls] */
    size_t n_calls;
    cl_take_fn on_take; /* NULL: answers are kept for the waiter */
    void *take_user;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* CLOCK_MONOTONIC */
    size_t n_sending;       /* under lock: env threads that send a `then` */
    bool is_cancelled;      /* under lock: no `then` is sent any more */
    bool is_init;
};

/* n_calls zeroed calls. BD_E_NOMEM. */
bd_status cl_batch_init(cl_batch *b, cl_client *c, size_t n_calls, bd_err *err) BD_MUST_CHECK;
/* Gives up what is open (waits for the env threads to let go) and frees. Zeroed batches are fine.
 */
void cl_batch_deinit(cl_batch *b);
/* Sends a call the first time; an error shows in the wait. Never blocks. */
void cl_call_send(cl_call *call);
/* For an answer that came well, in the waiter's thread; an error ends the wait. */
typedef bd_status (*cl_answer_fn)(void *user, cl_call *call, bd_err *err);
/* Until every call that was sent is settled; idle ones are left alone. Retries, refreshes the map
 * and sends parts as needed. After an error the rest is given up. on_answer may be NULL. */
bd_status cl_batch_wait(cl_batch *b, cl_answer_fn on_answer, void *user, bd_err *err) BD_MUST_CHECK;
void cl_batch_cancel(cl_batch *b);
/* Env threads: ends a try. reply and arena are moved from (NULL: none). */
void cl_call_arrive(cl_call *call, bd_status rc, const bd_err *err, bd_chain *reply,
                    bd_arena *arena, const px_stream_reply *got);

#endif
