/* ring/ring_tcp_int.h - the tcp backend's parts, and its faults for tests.
 *
 *   ring_tcp_io.c     frames over one connection: reading into place, writing in order
 *   ring_tcp_drive.c  who makes the progress: the caller of a blocking operation, else the thread
 *   ring_tcp.c        life and closing
 *
 * Thread model of ring_tcp
 *   threads    callers (wake, stop, drive), the communicator's own thread
 *   driver     whoever is ring_comm.driver owns the connections and the engine; the role changes
 *              under the communicator's lock only. A blocking call takes it when nothing else is
 *              open, so that a small operation needs no change of threads; the own thread has it
 *              while asynchronous operations are open, and watches the connections when no caller
 *              came for a while (peers ask and fail at any time)
 *   waiting    a caller looks again and again for up to 50 us when the ranks of this host fit its
 *              cores, else gives its core away between looks, up to 200 us and while it comes back
 *              soon; then it sleeps in poll; the thread only polls
 *   blocking   ring_tcp_new until all ranks are there or the timeout
 *   shutdown   GOODBYE to all, half-close, wait for the other half up to 1 s, close, join
 *   failure    data not yet on its way is dropped, ABORT follows what is; a connection whose data
 *              does not leave within 200 ms is closed, so that no caller's memory stays borrowed
 *   overload   a peer that is ahead is not read until its operation starts here (tcp slows it
 *              down); operations in which all ranks send alike hold back what would only pile up in
 *              the buffers of this host's loopback (RING_TCP_LEAD_BYTES)
 */
#ifndef RING_TCP_INT_H
#define RING_TCP_INT_H

#include "ring/ring_comm_int.h"

#include <poll.h>

#define RING_TCP_STAGE_BYTES 16384
/* Moved at most before the other direction has its turn. */
#define RING_TCP_TURN_BYTES ((size_t)256 << 10)
/* What a rank may have sent more than it has received, to ranks of its own host. Loopback is
 * fastest while what is under way fits the cache and no receive window ever closes: 2 to 2.5 times
 * the bandwidth (docs/adr/0003). */
#define RING_TCP_LEAD_BYTES ((size_t)128 << 10)
/* With socket buffers of this size, which not every host grants, and a core for each rank, twice
 * as much is faster still; four times is in some runs the other regime. */
#define RING_TCP_BUFFER_BYTES ((size_t)1 << 20)

/* One frame to send. */
typedef struct ring_out ring_out;
struct ring_out {
    ring_out *next;
    uint8_t header[RING_FRAME_BYTES];
    const uint8_t *payload; /* borrowed from the operation, or text below */
    size_t n_bytes;         /* of the payload */
    size_t n_done;          /* of header and payload together */
    bool is_data;
    bool is_paced;
    uint8_t op;
    uint8_t text[BD_ERR_TEXT_BYTES];
};

typedef enum ring_read_mode { RING_READ_HEADER, RING_READ_PAYLOAD, RING_READ_SINK } ring_read_mode;

typedef struct ring_tcp ring_tcp;

typedef struct ring_conn {
    int fd;          /* owned; -1: closed */
    ring_tcp *owner; /* borrowed */
    int peer;
    int lane;
    bool is_local; /* the peer is on this host */

    ring_read_mode mode;
    bool is_held; /* the staged header is of a later operation; not reading */
    uint64_t held_at;
    bool is_paced; /* the payload being read counts for the lead */
    uint8_t *dst;  /* borrowed: where the payload goes */
    size_t dst_left;
    size_t stage_at; /* unread bytes are stage[stage_at, stage_end) */
    size_t stage_end;
    uint8_t stage[RING_TCP_STAGE_BYTES];

    ring_out *head; /* owned; the head may be partly out */
    ring_out *tail;
    ring_out *spare; /* owned: nodes to use again */
    bool is_full;    /* the socket takes no more for now */
    bool is_broken;  /* a write failed: nothing is sent any more, the reader reports */
    bool has_shut;
} ring_conn;

struct ring_tcp {
    ring_backend backend; /* first: the pointers are the same */
    ring_comm *comm;      /* borrowed: it outlives its backend */
    int n_conns;
    ring_conn *conns;      /* owned, world * n_lanes; those to the own rank are closed */
    struct pollfd *polled; /* owned, n_conns + 1: the thread's */
    struct pollfd *looked; /* owned, n_conns + 1: the driver's */
    pthread_t thread;
    int kick_fd;   /* owned, eventfd: wakes the thread */
    int wake_fd;   /* owned, eventfd: wakes a caller that drives */
    bool may_spin; /* the ranks of this host fit its cores */
    int n_sober;   /* waits of callers that do not yield first */
    bool is_draining;
    bool is_closing;
    int64_t bound_ns;       /* of draining and of closing; INT64_MAX: none */
    uint64_t pace_seq;      /* the operation that is paced: */
    uint64_t pace_out;      /* payload bytes sent */
    uint64_t pace_in;       /* and received */
    bool is_unpaced;        /* no more: somebody has asked who is there */
    uint64_t lead_bytes;    /* > 0; tests make it small */
    _Atomic bool is_frozen; /* test: as under SIGSTOP */
    _Atomic bool must_die;  /* test: as under SIGKILL */
    uint8_t sink[65536];
};

/* ring_tcp_io.c, by the driver. */
/* ring_transport.send for this connection. */
bd_status ring_conn_send(ring_conn *c, const ring_frame *f, const void *payload,
                         bd_err *err) BD_MUST_CHECK;
/* One turn of writing what is queued, of reading what is there; true when bytes moved. */
bool ring_conn_write(ring_conn *c);
bool ring_conn_read(ring_conn *c);
/* What poll shall look for; 0: nothing. */
short ring_conn_events(const ring_conn *c);
/* Forgets data frames that are not on their way; true when none is. */
bool ring_conn_quiesce(ring_conn *c);
bool ring_conn_has_data_out(const ring_conn *c);
/* Discards everything that comes from now on. */
void ring_conn_sink(ring_conn *c);
/* Offers a held frame again if an operation has started since; true when it did. */
bool ring_conn_unhold(ring_conn *c);
/* Half-closes as soon as nothing is left to write. */
void ring_conn_shut(ring_conn *c);
void ring_conn_close(ring_conn *c);
void ring_conn_deinit(ring_conn *c);

/* ring_tcp_drive.c */
/* ring_backend.drive and .wake; the thread's main function. */
void ring_tcp_drive(ring_backend *b, const ring_work *w);
void ring_tcp_wake(ring_backend *b);
void *ring_tcp_main(void *arg);

/* ring_tcp.c, by the driver. */
/* A bound was reached: connections that still hold data of operations (closing: all) end. */
void ring_tcp_on_bound(ring_tcp *t);
void ring_tcp_begin_close(ring_tcp *t);
bool ring_tcp_any_open(const ring_tcp *t);
/* The faults below, where they take effect. */
void ring_tcp_die(ring_tcp *t);

/* Makes c a communicator over connected sockets (tcp or unix), n_lanes per rank, those to rank r
 * from r * n_lanes on; those it takes over become -1. c was made with as many lanes. */
bd_status ring_tcp_attach(ring_comm *c, int *fds, bd_err *err) BD_MUST_CHECK;

/* Faults, from any thread. */
/* The rank neither reads nor begins anything any more; its sockets stay open. */
void ring_tcp_test_stop(ring_comm *c);
/* All sockets of the rank are reset. */
void ring_tcp_test_kill(ring_comm *c);

#endif
