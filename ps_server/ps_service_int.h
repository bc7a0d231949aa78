/* ps_server/ps_service_int.h - one request in the server, from bytes to answer. */
#ifndef PS_SERVICE_INT_H
#define PS_SERVICE_INT_H

#include "base/arena.h"

#include "proto/px.h"
#include "proto/px_pack.h"
#include "ps_server/ps_metrics.h"
#include "ps_server/ps_scan.h"
#include "ps_server/ps_service.h"
#include "ps_server/ps_trail.h"

#include <pthread.h>
#include <stdatomic.h>

/* A stream a client has opened. Shared: the stream's events hold one reference, each call one. */
typedef struct ps_conn {
    ps_service *service;
    rpc_stream *stream; /* shared */
    bool may_train;     /* the caller's token allows pushes and commits, too */
    _Atomic uint32_t refs;
    _Atomic bool closed;
} ps_conn;

typedef struct ps_away ps_away; /* ps_service_away.c */
typedef struct ps_call ps_call;
struct ps_call {
    ps_service *service;
    rpc_req *req;  /* unary, or */
    ps_conn *conn; /* stream, with */
    uint64_t id;
    bd_chain body;
    bd_arena arena; /* decoded arrays */
    int64_t start_ns;
    bd_metric *timed; /* gets the time until the answer; NULL: control requests */
    ps_waiter waiter;
    ps_op op;
    px_lookup_request lookup;
    bd_buf **wire; /* owned buffers, [n_wire], in the arena: ps_service_wire.c */
    size_t n_wire;
    const uint64_t **keys; /* lookup: [n_tables] aligned keys, in the arena or the body */
    ps_bags *bags;         /* lookup: [n_tables], the same way */
    float **unpooled;      /* lookup: [n_tables], in the arena: rows of bags, till all are there */
    px_lookup_reply found; /* lookup: the answer in the making, in the arena */
    bd_buf *rows;          /* shared: lookup: its rows */
    ps_away *away;         /* in the arena: lookup: what is fetched; NULL: nothing */
    _Atomic unsigned n_fetches;
    ps_scan scan; /* export: into rows */
    size_t page_dim, page_state;
    ps_call *next; /* queue of the answering threads */
};

struct ps_service {
    ps_shard *shard;
    ps_coord *coord;
    ps_health *health;
    struct ps_autograd *_Atomic autograd; /* borrowed; NULL: none */
    char *instance;                       /* owned */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ps_call *first, *last; /* under lock: lookups to answer */
    size_t n_away;         /* under lock: lookups whose rows are being fetched */
    bool quit;             /* under lock */
    _Atomic uint64_t
        map_epoch;       /* requests by an older shard map are answered MOVED; 0: not known */
    _Atomic bool halted; /* some job is (release, after the two below) */
    uint64_t halt_epoch; /* under lock: the job that a bad gradient halted */
    bd_err halt_why;     /* under lock */
    ps_trail trail;      /* where lookups have found rows */
    pthread_t *threads;  /* owned */
    size_t n_threads;
};

/* ---- ps_service.c ---- */
ps_call *ps_call_new(ps_service *v, rpc_req *req); /* NULL: the request has been failed */
/* All of these end the call. */
void ps_call_fail(ps_call *c, const bd_err *err);
void ps_call_reply(ps_call *c, bd_chain *reply); /* unary */
void ps_call_reply_message(ps_call *c, const ProtobufCMessage *msg);
void ps_call_lookup_reply(ps_call *c, px_lookup_reply *r);
void ps_call_push_reply(ps_call *c, px_push_reply *r);
void ps_call_commit_reply(ps_call *c, px_commit_reply *r);
/* An answering thread will take it. */
void ps_service_hand_over(ps_service *v, ps_call *c);
/* Unpacks the body; on failure the call has been failed and NULL is returned. */
void *ps_call_unpack(ps_call *c, const ProtobufCMessageDescriptor *type);

/* ---- ps_service_data.c ---- */
void ps_start_lookup(ps_call *c, const px_lookup_request *r);
void ps_start_push(ps_call *c, const px_push_request *r);
void ps_start_commit(ps_call *c, const px_commit_request *r);
void ps_answer_lookup(ps_call *c);
void ps_on_lookup(void *service, rpc_req *req);
void ps_on_push(void *service, rpc_req *req);
void ps_on_commit(void *service, rpc_req *req);
bd_status ps_on_stream(void *service, rpc_stream *s, rpc_stream_events *ev, bd_err *err);

/* ---- ps_service_away.c: rows of a lookup that are on the disk ---- */
/* Fills out[n x dim] and notes what is away. Tables lock held. */
bd_status ps_away_read(ps_call *c, ps_table *t, const uint64_t *keys, size_t n, float *out,
                       bd_err *err);
/* Fetches what was noted, puts it where it belongs, and goes on with ps_answer_lookup on a fetch
 * thread. */
void ps_away_start(ps_call *c);
/* What came of it; tables lock held. BD_AGAIN: the tables were replaced meanwhile. */
bd_status ps_away_end(ps_call *c, bd_err *err);
void ps_away_drop(ps_call *c);

/* ---- ps_service_wire.c: rows in fewer bytes ---- */
/* BD_E_UNSUPPORTED names a dtype or codec that this server does not know. */
bd_status ps_wire_check_lookup(const px_lookup_request *r, bd_err *err);
/* Packs the tables of a reply as the lookup asks: replaces their rows. c->wire owns the bytes. */
bd_status ps_wire_pack_reply(ps_call *c, px_lookup_reply *r, bd_err *err);
/* Packed gradients of a push become plain ones, owned by c->wire. */
bd_status ps_wire_unpack_push(ps_call *c, const px_push_request *r, bd_err *err);
void ps_wire_drop(ps_call *c); /* frees what c->wire owns */

/* ---- ps_check.c: from the wire to a checked part ---- */
/* The arrays of r are copied; *out is owned by the caller (ps_part_free). */
bd_status ps_check_push(ps_service *v, const px_push_request *r, ps_part **out, bd_err *err);
bd_status ps_check_assign(ps_service *v, const px_assign_request *r, ps_part **out, float **state,
                          bd_err *err);
/* Fills c->keys. */
bd_status ps_check_lookup(ps_call *c, bd_err *err);

/* ---- ps_service_admin.c, ps_service_coord.c ---- */
bd_status ps_register_admin(ps_service *v, rpc_server *server);
/* ps_service_drain.c */
void ps_on_drain(void *service, rpc_req *req);
void ps_on_hot_keys(void *service, rpc_req *req);  /* ps_service_hot.c */
void ps_on_read_part(void *service, rpc_req *req); /* ps_service_part.c */
bd_status ps_register_coord(ps_service *v, rpc_server *server);

#endif
