/* ring/ring_engine.h - runs one operation after the other on one rank: frame checks, holding back
 * frames of ranks that are ahead, failure and its spreading, time limits. No sockets, no threads.
 *
 * Layer:     ring (pure part): events in, effects out through ring_transport and on_done.
 * Threads:   every function on the communicator's own thread; bytes_sent is read from any.
 * Ownership: plain struct inside its communicator; ring_engine_deinit frees what it allocated.
 *
 * Failure: the first error ends the engine. It tells every rank why (ABORT), those tell the others,
 * once each; so all ranks report the same reason. A rank that ends in order says GOODBYE with the
 * number of operations it completed: it is lost only for operations after that.
 * A failure has a place in the order of operations: ABORT says which one was the first not to
 * complete. A rank that is still before it has all frames it needs from the ranks that are past
 * theirs, or will get them, so it completes what they completed and fails where they failed: a
 * later failure never takes back a result that another rank has. A lost rank is an error only where
 * something is missing from it.
 *
 * Time limit: an operation that got no frame for timeout_ms asks all ranks where they are (PROBE).
 * Ranks that are not heard, or run no operation and have not begun this one, are named in
 * BD_E_TIMEOUT. A rank that runs an earlier operation waits for a culprit itself. One that holds
 * our frames cannot read our question, but it runs into its own time limit: its question is an
 * answer. A rank that waits in another part of the larger group says so, unasked when it holds
 * frames for half a time limit, and gets half a time limit more: it will name who keeps it there.
 */
#ifndef RING_ENGINE_H
#define RING_ENGINE_H

#include "base/clock.h"
#include "base/err.h"

#include "ring/ring_algo.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What carries frames between ranks: memory or tcp. Called on the communicator's thread. */
typedef struct ring_transport ring_transport;
struct ring_transport {
    /* Sends one frame to peer over one of its lanes, in the lane's order. BD_OK: payload is no
     * longer needed. BD_AGAIN: it is until ring_engine_on_sent. Control frames' payload is always
     * copied (never BD_AGAIN). A broken connection is not an error here: its reader reports it,
     * with the reason if there is one. */
    bd_status (*send)(ring_transport *t, int peer, int lane, const ring_frame *f,
                      const void *payload, bd_err *err);
    /* The group has failed: forget data frames that are not on their way, read no more payload into
     * operations' memory. True: no frame borrows memory any more; else ring_engine_on_quiet follows
     * within a bounded time. */
    bool (*quiesce)(ring_transport *t);
};

typedef enum ring_verdict {
    RING_TAKE, /* read the payload into *dst, then call ring_engine_on_payload */
    RING_HOLD, /* of a later operation: offer again after the next start */
    RING_STOP  /* the group has failed: discard what this peer sends */
} ring_verdict;

/* A peer may be reached over several lanes (connections): each keeps its own order. Segments of
 * large operations are spread over them; lane 0 carries everything else. */
typedef struct ring_lane {
    ring_frame frame; /* the one whose payload is being read */
    char text[BD_ERR_TEXT_BYTES];
} ring_lane;

typedef struct ring_peer {
    bool has_failed; /* said ABORT */
    bool gone;       /* said GOODBYE after gone_at operations, or closed */
    uint64_t gone_at;
    int64_t heard_ns; /* last PROBE or STATE of the peer; what it said: */
    uint64_t heard_seq;
    bool was_running;
    bool was_elsewhere; /* in another part of the larger group */
    uint64_t held_seq;  /* newest operation of which we held back a frame of it */
} ring_peer;

/* A send or a recv: runs beside the operation. Lives in the caller's memory until on_p2p_done. */
typedef struct ring_p2p ring_p2p;
struct ring_p2p {
    const ring_op *op; /* borrowed: in for a send, out for a recv */
    ring_p2p *next;
    uint64_t n_left;  /* send: frames the transport still holds */
    uint32_t segment; /* recv: the next one */
    int64_t progress_ns;
};

struct ring_engine {
    int rank;
    int world;
    int n_lanes;       /* to each peer */
    const int *labels; /* borrowed: what ranks are called in errors; NULL: by their numbers */
    uint64_t group_hash;
    uint64_t epoch;
    _Atomic int64_t timeout_ns; /* the own thread may look at any time */
    const bd_clock *clock;      /* borrowed */
    ring_transport *transport;  /* borrowed; NULL only when world == 1 */
    void (*on_done)(void *user, bd_status rc, const bd_err *err);
    void (*on_p2p_done)(void *user, ring_p2p *p, bd_status rc, const bd_err *err);
    /* Of an engine that is part of a larger group: the operations which that one completed and
     * began; NULL: it is none. ABORT carries it to the others' on_failed. */
    const _Atomic uint64_t *_Atomic outer_done;    /* borrowed */
    const _Atomic uint64_t *_Atomic outer_started; /* borrowed; more than done: it runs one */
    void *user;

    ring_p2p *p2p;      /* open ones, in the order they were started */
    ring_peer *peers;   /* owned, world */
    ring_lane *lanes;   /* owned, world * n_lanes */
    const ring_op *op;  /* running, NULL: none */
    ring_run run;       /* of op */
    uint64_t seq;       /* of the running or the next operation */
    uint64_t n_started; /* changes when held frames may be offered again */
    uint8_t *scratch;   /* owned */
    size_t scratch_bytes;
    bd_err failure;      /* code BD_OK: none */
    bd_err pending;      /* a failure from operation pending_at on; code BD_OK: none */
    uint64_t pending_at; /* > seq */
    uint64_t outer_at;   /* of failure: the larger group's first operation that it ends; 0: the
                            next one that starts, those that run find out for themselves */
    bool draining;       /* failed, but frames still borrow memory */
    bool has_left;       /* said GOODBYE: nothing is sent any more */
    bool is_probing;
    int64_t tell_at_ns; /* when it says that it is elsewhere, unasked; INT64_MAX: not */
    bool has_waited_on; /* the same for ranks that wait elsewhere */
    bool has_deferred; /* gave ranks that are behind one more grace: they know the culprit better */
    int64_t progress_ns;    /* when the operation last moved */
    int64_t probe_until_ns; /* when is_probing */
    int64_t heard_since_ns; /* when is_probing: older words do not count */
    _Atomic uint64_t bytes_sent;
};

static inline int ring_engine_label(const ring_engine *e, int rank)
{
    return e->labels != NULL ? e->labels[rank] : rank;
}

static inline ring_lane *ring_engine_lane(const ring_engine *e, int peer, int lane)
{
    return &e->lanes[(size_t)peer * (size_t)e->n_lanes + (size_t)lane];
}

/* Fields rank .. user are set. */
bd_status ring_engine_init(ring_engine *e, bd_err *err) BD_MUST_CHECK;
/* Before the first operation. n_lanes >= 1. */
bd_status ring_engine_set_lanes(ring_engine *e, int n_lanes, bd_err *err) BD_MUST_CHECK;
void ring_engine_deinit(ring_engine *e);

/* Neither running nor failed: may start the next operation. */
bool ring_engine_is_idle(const ring_engine *e);
/* Begins op; the end, however it comes, is on_done (perhaps before this returns). */
void ring_engine_start(ring_engine *e, const ring_op *op);

ring_verdict ring_engine_on_header(ring_engine *e, int peer, int lane, const ring_frame *f,
                                   void **dst);
void ring_engine_on_payload(ring_engine *e, int peer, int lane);
/* A frame to peer for which send said BD_AGAIN is out; op: its kind of operation. */
void ring_engine_on_sent(ring_engine *e, int peer, int op);
/* Begins a send or recv; not after a failure. The end is on_p2p_done (perhaps before this returns).
 */
void ring_engine_start_p2p(ring_engine *e, ring_p2p *p);
void ring_engine_on_quiet(ring_engine *e);
/* The connection to peer has ended; nothing more will come from it. The group fails with the first
 * operation that lacks something from it. */
void ring_engine_on_peer_lost(ring_engine *e, int peer, const char *why);
/* Ends everything with this error, and tells the others. The first one wins. */
void ring_engine_fail(ring_engine *e, const bd_err *why);
/* Orderly end: says GOODBYE, or fails an operation that still runs. */
void ring_engine_goodbye(ring_engine *e);

/* When ring_engine_on_tick must be called next; INT64_MAX: no need. */
int64_t ring_engine_deadline_ns(const ring_engine *e);
void ring_engine_on_tick(ring_engine *e);

/* Between ring_engine.c and ring_engine_p2p.c. */
/* One frame of op; as ring_transport.send. */
bd_status ring_engine_send_op(ring_engine *e, const ring_op *op, int peer, int lane, uint32_t step,
                              uint32_t segment, const void *payload, size_t n_bytes, bd_err *err);
bool ring_engine_p2p_sent(ring_engine *e, int peer);
ring_verdict ring_engine_p2p_header(ring_engine *e, int peer, const ring_frame *f, void **dst);
void ring_engine_p2p_payload(ring_engine *e, int peer);
void ring_engine_p2p_fail(ring_engine *e);
/* Ends those with this peer, which does nothing more, while an operation goes on. */
void ring_engine_p2p_give_up(ring_engine *e, int peer, const bd_err *why);
int64_t ring_engine_p2p_deadline_ns(const ring_engine *e);
void ring_engine_p2p_tick(ring_engine *e, int64_t now);

#endif
