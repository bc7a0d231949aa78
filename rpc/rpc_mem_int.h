/* rpc/rpc_mem_int.h - the in-memory network. Layer: rpc, private to rpc_mem_*.c. One thread. */
#ifndef RPC_MEM_INT_H
#define RPC_MEM_INT_H

#include "rpc/rpc_gate.h"
#include "rpc/rpc_int.h"
#include "rpc/rpc_mem.h"

typedef struct mem_env mem_env;
typedef struct mem_server mem_server;
typedef struct mem_stream mem_stream;

typedef struct mem_event {
    int64_t at_ns;
    uint64_t seq; /* equal times: in the order they were made */
    void (*fn)(void *user);
    void *user;
} mem_event;

struct rpc_mem_net {
    bd_clock_virtual clock;
    rpc_mem_options opt;
    uint64_t n_draws; /* counter of the random stream */
    mem_event *heap;
    size_t n, cap;
    uint64_t seq;
    int depth; /* inside events */
    mem_server *servers;
    mem_env *envs;
    int next_port;
    bool freeing;
};

struct mem_env {
    rpc_env base;
    rpc_mem_net *net;
    char *name; /* owned */
    bool killed;
    mem_env **cut; /* owned: nodes it cannot talk to */
    size_t n_cut, cap_cut;
    mem_env *next;
};

typedef struct mem_channel {
    rpc_channel base;
    char *target; /* owned */
} mem_channel;

struct mem_server {
    rpc_server base;
    char *listen; /* owned: the bound address */
    int port;
    size_t max_message_bytes;
    bool bound;
    struct mem_req *requests; /* open ones */
    mem_stream *streams;
    mem_server *next;
};

/* One try of a call, kept by its events: one reference each. */
typedef struct mem_flight {
    int refs;
    rpc_mem_net *net;
    rpc_call *call;  /* borrowed; NULL: the try is over */
    mem_env *client; /* where it comes from */
    mem_env *node;   /* where it arrived */
    int64_t deadline_ns;
    bd_chain body;      /* shared buffers */
    char *target;       /* owned */
    const char *method; /* owned, behind target */
    bool cancelled;
    bd_status end_rc; /* answer on its way, or why it broke */
    bd_chain reply;
    bd_err end_err;
} mem_flight;

typedef struct mem_req {
    rpc_req base;
    mem_flight *flight; /* shared */
    mem_server *server; /* NULL: stopped meanwhile */
    struct mem_req *prev, *next;
} mem_req;

extern const rpc_transport mem_transport;

mem_env *mem_env_of(const rpc_env *env);
bool mem_can_talk(const mem_env *a, const mem_env *b);
/* Whether the next message is lost. */
bool mem_draw(rpc_mem_net *net, double share);
int64_t mem_delay_ns(rpc_mem_net *net);
int64_t mem_now(const rpc_mem_net *net);
bd_status mem_at(rpc_mem_net *net, int64_t at_ns, void (*fn)(void *user), void *user);
void mem_trace(rpc_mem_net *net, const char *what, const char *from, const char *to,
               const char *method);
mem_server *mem_server_find(rpc_mem_net *net, const char *address);

/* rpc_gate_authenticate with the token that the client's node has. */
bd_status mem_authenticate(const mem_env *client, mem_server *s, const rpc_method *m,
                           rpc_scope *scope, bd_err *err) BD_MUST_CHECK;

/* ---- flights (rpc_mem.c) ---- */
void mem_flight_unref(mem_flight *f);
/* The answer (or failure) sets out for the client. reply moved. */
void mem_flight_answer(mem_flight *f, bd_status rc, bd_chain *reply, const char *text);

/* ---- servers (rpc_mem_server.c) ---- */
bd_status mem_server_new(rpc_env *env, const rpc_server_options *opt, rpc_server **out,
                         bd_err *err);
bd_status mem_server_start(rpc_server *base, bd_err *err);
int mem_server_port(const rpc_server *s);
void mem_server_stop(rpc_server *base, int64_t grace_ms);
void mem_server_destroy(rpc_server *base);
/* Gone without a word: kill. */
void mem_server_kill(mem_server *s);
void mem_req_arrive(mem_flight *f, mem_server *s);
bool mem_req_cancelled(rpc_req *req);
int64_t mem_req_ms_left(rpc_req *req);
void mem_req_reply(rpc_req *req, bd_chain *reply);
void mem_req_fail(rpc_req *req, bd_status code, const char *text);

/* ---- streams (rpc_mem_stream.c) ---- */
bd_status mem_stream_open(rpc_channel *ch, const char *method, const rpc_stream_events *ev,
                          rpc_stream **out, bd_err *err);
bd_status mem_stream_send(rpc_stream *base, bd_chain *msg, bd_err *err);
void mem_stream_finish(rpc_stream *base);
void mem_stream_cancel(rpc_stream *base);
void mem_stream_destroy(rpc_stream *base);
/* Breaks a server's stream: both ends hear of it. */
void mem_stream_break(mem_stream *s);

#endif
