/* rpc/rpc_ag_int.h - contexts, records and gradient slots of distributed autograd.
 *
 * Layer:  rpc, private to rpc_ag_*.c.
 * Files:  rpc_ag_node.c the node, its modules and map of contexts; rpc_ag_client.c clients;
 * rpc_ag_ctx.c what one context holds; rpc_ag_grad.c gradients and the optimiser step;
 * rpc_ag_wire.c messages; rpc_ag_server.c the service; rpc_ag_run.c modules; rpc_ag_caller.c calls
 * to peers; rpc_ag_fan.c what goes to several; rpc_ag_strand.c strands; rpc_rref*.c references.
 * Locks:  ag->lock, then nothing. module lock, then ctx->lock. Never held over a call or a module's
 *         function, except the module's own lock (shared).
 * Life:   a context is counted: one reference by the map until it ends, one by rpc_ag_begin's
 *         handle, one by each handler that works on it. Records die with it.
 */
#ifndef RPC_AG_INT_H
#define RPC_AG_INT_H

#include "base/err.h"

#include "rpc/rpc_ag_wire_int.h"
#include "rpc/rpc_int.h"

#define AG_SERVICE        "/braid.v1.Autograd/"
#define AG_MAX_BYTES      ((size_t)256 << 20) /* of one message */
#define AG_DEADLINE_MS    60000
#define AG_CONTROL_MS     3000 /* cleanup and failure notices */
#define AG_ENDED_MAX      1024 /* ended contexts remembered one by one, per client */
#define AG_LAST_REPLIES   8    /* answers of fused calls kept for their retries, per client */
#define AG_FORGET_LEASES  10   /* a client without contexts is forgotten after so many leases */
#define AG_EXPIRED_MAX    (1u << 20) /* expired clients remembered; older ones are forgotten */
#define AG_CONTEXT_SLOTS  256        /* hash heads */
#define AG_NAME_MAX_BYTES 128
#define AG_RREF_SLOTS     256                /* hash heads of values and of handles */
#define AG_REPLAY_BYTES   ((size_t)64 << 20) /* of messages kept by one context */

typedef struct ag_value ag_value; /* rpc_rref_int.h */
typedef struct ag_flow ag_flow;

struct rpc_ag_peer {
    rpc_ag *ag;
    char *name;      /* owned */
    rpc_channel *ch; /* borrowed */
    rpc_ag_peer *next;
};

typedef struct ag_module {
    const rpc_module *m;   /* borrowed */
    pthread_rwlock_t lock; /* forward and backward shared, step alone */
    float **state;         /* owned: optimiser state of each parameter, row by row */
    bool stored;           /* its parameters are the store's */
    struct ag_module *next;
} ag_module;

/* What is known of a client, whether it has contexts now or not. */
typedef struct ag_client {
    uint64_t id;
    size_t n_live;        /* contexts here */
    size_t n_forks;       /* live forks of values here */
    int64_t last_ns;      /* its last message */
    uint64_t ended_below; /* every context up to here has ended */
    uint64_t *ended;      /* owned, sorted: ended ones above */
    size_t n_ended, cap_ended;
    struct {
        uint64_t number, sequence;
        bd_chain reply;
    } last[AG_LAST_REPLIES];
    size_t next_last;
    struct ag_client *next;
} ag_client;

/* Gradient of one parameter in one context. */
typedef struct ag_grad {
    ag_module *module;
    size_t param_idx;
    uint64_t tag;
    bool tagged;
    float *values;             /* owned: dense all, sparse n_rows x dim */
    size_t n_rows, cap_values; /* sparse */
    uint64_t *rows;            /* owned */
    size_t cap_rows;
    uint32_t *index; /* owned: open addressing, position + 1, 0 empty */
    size_t n_index;  /* power of two */
    struct ag_grad *next;
} ag_grad;

/* Callee's record of one forward: a send node in PyTorch's words. */
typedef struct ag_node {
    uint64_t caller_id, message_id;
    ag_module *module; /* NULL: a value was fetched */
    void *saved;       /* owned; NULL: no backward can follow */
    size_t n_in, n_out;
    rpc_tensor out[RPC_MODULE_MAX_IO]; /* shapes only, buf NULL */
    bool busy;                         /* its forward or a backward runs */
    bd_chain forward_reply;            /* for a retry; dropped when the first backward comes */
    uint64_t last_sequence;
    bd_chain last_reply; /* for a retry of the same backward */
    ag_flow *flow;       /* of the value that was fetched, or kept here; the context's */
    bool kept;           /* its outputs are flow's value */
    bool shared;         /* its backward reaches values with other users */
    uint64_t wave;       /* the last one that announced its backward */
    bool announced;      /* and it has not come */
    rpc_tensor collect[RPC_MODULE_MAX_IO]; /* kept: gradients of inputs until the maker asks */
    rpc_rref *held[RPC_MODULE_MAX_IO];     /* references in forward_reply: as long as that */
    struct ag_node *next;
} ag_node;

/* A message of a call, kept for a node that starts anew (rpc_ag_replay.c). */
typedef struct ag_sent {
    const char *method; /* static */
    bd_chain body;
    struct ag_sent *next;
} ag_sent;

/* Caller's record: a receive node. */
struct rpc_ag_msg {
    rpc_ag_ctx *ctx;
    rpc_ag_peer *peer;     /* NULL: a strand's */
    rpc_ag_strand *strand; /* borrowed; NULL: a peer's */
    void *strand_call;     /* the strand's own word for it */
    uint64_t message_id;
    size_t n_in, n_out;
    rpc_tensor in[RPC_MODULE_MAX_IO];  /* shapes and requires_grad; buf NULL */
    rpc_tensor out[RPC_MODULE_MAX_IO]; /* shapes */
    ag_flow *flow;                     /* a value of this node was used; peer and strand NULL */
    const ag_node *parent;             /* whose module made the call; NULL: none */
    bool shared;                       /* as in the reply */
    bool remote;                       /* the outputs stayed there */
    uint64_t wave;                     /* as ag_node */
    bool announced;
    bool no_replay; /* what was sent is not kept, or means something else in another process */
    ag_sent *sent, **sent_end;
    rpc_ag_msg *next;
};

typedef struct ag_reached {
    rpc_ag_peer *peer;
    bool ended;        /* by a fused call */
    uint64_t instance; /* of its process, as it first answered; 0: it has not */
} ag_reached;

/* A strand of a context: told its decision once, waited for once. */
typedef struct ag_strand {
    rpc_ag_strand *strand; /* borrowed */
    bool decided, settled;
    struct ag_strand *next;
} ag_strand;

/* A wave that is being passed on: a repeat of the message must not answer before it is through. */
typedef struct ag_reaching {
    uint64_t caller_id, sequence;
    struct ag_reaching *next;
} ag_reaching;

typedef struct ag_slot {
    size_t slot, n_elems;
    float *grad; /* owned */
    struct ag_slot *next;
} ag_slot;

struct rpc_ag_ctx {
    rpc_ag *ag;
    uint64_t client_id, number;
    _Atomic int refs;
    rpc_ag_ctx *map_next; /* under ag->lock */
    pthread_mutex_t lock; /* guards the fields below */
    bool ended, failed;
    bd_err failure;
    ag_node *nodes;
    rpc_ag_msg *msgs;
    ag_grad *grads;
    ag_slot *slots;
    ag_strand *strands; /* the owner's thread alone */
    ag_flow *flows;
    size_t n_making;       /* references that are being made */
    rpc_wait *made;        /* posted when that falls to zero; set by rpc_ag_end */
    ag_reaching *reaching; /* on the stacks of those who pass waves on */
    ag_reached *reached;   /* owned */
    size_t n_reached, cap_reached;
    rpc_ag_vote vote; /* with votes: of the step */
    bool votes;
    size_t sent_bytes;      /* kept for replays */
    uint64_t step_sequence; /* last one begun */
    uint64_t step_caller;
    bool stepping;  /* gradients are being applied here: none may come in */
    bool step_open; /* until the nodes behind this one are done too */
};

struct rpc_ag {
    rpc_env *env;
    char *name; /* owned */
    uint64_t client_id;
    uint64_t instance; /* another one in each process */
    int64_t deadline_ms;
    _Atomic uint64_t next_id; /* messages and sequences */
    pthread_mutex_t lock;     /* guards the fields below */
    rpc_wait *quiet;          /* posted when n_notices falls to zero; set by rpc_ag_free */
    uint64_t next_number;
    rpc_ag_ctx *map[AG_CONTEXT_SLOTS];
    size_t n_contexts;
    ag_client *clients;
    uint64_t *expired; /* owned, sorted: clients whose lease is over */
    size_t n_expired, cap_expired;
    const rpc_ag_store *store; /* borrowed; NULL: none. Set before the server starts */
    ag_module *modules;
    rpc_ag_peer *peers;
    int n_notices; /* calls in flight that nobody waits for: of failures, forks, deletes */
    bool closing;
    ag_value *values[AG_RREF_SLOTS];
    rpc_rref *rrefs[AG_RREF_SLOTS];
    size_t n_values, n_forks, n_rrefs;
};

struct rpc_grad_sink {
    rpc_ag_ctx *ctx;
    ag_module *module;
};

/* ---- rpc_ag_node.c ---- */
ag_module *ag_module_find(rpc_ag *ag, const char *name); /* NULL: none */
/* The context with a new reference. create: make it when it is new here. BD_E_CLIENT_EXPIRED,
 * BD_E_STATE (has ended), BD_E_NOT_FOUND (only without create), BD_E_NOMEM. */
bd_status ag_ctx_get(rpc_ag *ag, uint64_t client_id, uint64_t number, bool create, rpc_ag_ctx **out,
                     bd_err *err) BD_MUST_CHECK;
/* Marks (client, number) as ended and takes it out of the map: NULL when it was not there, else the
 * map's reference. */
rpc_ag_ctx *ag_ctx_take(rpc_ag *ag, uint64_t client_id, uint64_t number);
void ag_ctx_unref(rpc_ag_ctx *ctx);
rpc_ag_peer *ag_peer_find_locked(rpc_ag *ag, const char *name);
/* A call that nobody waits for: rpc_ag_free does. begin: false when it has begun. */
bool ag_notice_begin(rpc_ag *ag);
void ag_notice_end(rpc_ag *ag);

/* ---- rpc_ag_ctx.c ---- */
rpc_ag_ctx *ag_ctx_new(rpc_ag *ag, uint64_t client_id, uint64_t number); /* refs 1; NULL: memory */
void ag_ctx_destroy(rpc_ag_ctx *ctx);
bd_status ag_ctx_check_locked(const rpc_ag_ctx *ctx, bd_err *err);
/* Notes that the context lives on peer too. */
bd_status ag_ctx_reach(rpc_ag_ctx *ctx, rpc_ag_peer *peer, bd_err *err) BD_MUST_CHECK;
/* Peers it has reached and that have not ended it; NULL with *n 0, or out of memory with *n > 0. */
rpc_ag_peer **ag_ctx_peers(rpc_ag_ctx *ctx, size_t *n);
ag_node *ag_node_find_locked(rpc_ag_ctx *ctx, uint64_t caller_id, uint64_t message_id);
void ag_node_free(ag_node *node);
/* A new busy record for this message, owned by the context. When the message has come before: its
 * answer is added to reply and *out is NULL; BD_E_UNAVAILABLE while that one still runs, BD_E_STATE
 * when its answer is gone. So a forward runs once, however often and late it arrives. */
bd_status ag_node_claim(rpc_ag_ctx *ctx, uint64_t caller_id, uint64_t message_id, ag_node **out,
                        bd_chain *reply, bd_err *err) BD_MUST_CHECK;
/* The forward behind a claimed record failed: it may be tried again. */
void ag_node_drop(rpc_ag_ctx *ctx, ag_node *node);

#endif
