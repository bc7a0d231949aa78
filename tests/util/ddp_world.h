/* tests/util/ddp_world.h - trainers of distributed data parallel that call modules on another node.
 *
 * DW_TRAINERS threads, each with a tape, an autograd node and a rank of an in-memory ring. The
 * modules `emb`, `net`, `layer1` are on a node worker0: over gRPC all trainers share one; in
 * memory, where one thread moves a network, each has a worker0 and a network of its own, with
 * virtual time, and loses, repeats and reorders messages by a seed.
 */
#ifndef DDP_WORLD_H
#define DDP_WORLD_H

#include "ring/ring_reducer.h"
#include "rpc/rpc_autograd.h"
#include "rpc/rpc_mem.h"
#include "tape/tape.h"

#include "tests/util/ring_ranks.h"

enum { NUM_EM_ROW = 2, D_SPARSE = 3, D_DENSE = 2, D_HID = 3, D_OUT = 1, DW_TRAINERS = 4 };

/* worker0. */
typedef struct dw_node {
    rpc_mem_net *net; /* NULL: gRPC */
    rpc_env *env;
    rpc_ag *ag;
    rpc_server *server;
    char target[64];
    rpc_module *emb, *net_module, *layer1;
} dw_node;

typedef struct dw_world {
    dw_node nodes[DW_TRAINERS]; /* over gRPC the first alone */
    size_t n;
} dw_world;

typedef struct dw_trainer {
    rank_test *t;
    rpc_env *env; /* owned when it is not worker0's */
    rpc_ag *ag;
    rpc_channel *ch;
    rpc_ag_peer *peer;
    tp_device *dev;
    tp_tape *tape;
    tp_tensor *params[2]; /* local ones; owned */
    size_t n_params;
    ring_reducer *reducer; /* NULL: no DDP */
    size_t first_ddp;      /* params[first_ddp..] are in the reducer */
    bool find_unused;      /* before dw_wrap_ddp */
    bd_err err;
} dw_trainer;

/* Runs fn on all ranks: over gRPC, and in memory for several seeds. Checks that worker0 has no
 * context and no memory is left. */
void dw_run(void (*fn)(rank_test *t));

bd_status dw_trainer_start(dw_trainer *tr, rank_test *t);
void dw_trainer_stop(dw_trainer *tr);
bd_status dw_add_param(dw_trainer *tr, const char *name, size_t rows, size_t cols);
/* Wraps params[first..] in DDP: gradients are averaged over the trainers. */
bd_status dw_wrap_ddp(dw_trainer *tr, size_t first);
/* Points parameters and reducer at the gradients of a context (NULL: the plain ones, zeroed). */
bd_status dw_bind_grads(dw_trainer *tr, rpc_ag_ctx *ctx);
bd_status dw_backward(dw_trainer *tr, tp_tensor *loss);
const float *dw_grad_of(const dw_trainer *tr, size_t i);

/* Node of the trainer itself: calls to it go over the network too. */
typedef struct dw_self {
    rpc_server *server;
    rpc_channel *ch;
    rpc_ag_peer *peer;
    rpc_module *module;
} dw_self;
bd_status dw_self_start(dw_trainer *tr, dw_self *s, rpc_module *module);
void dw_self_stop(dw_self *s);

bool dw_equal(const float *a, const float *b, size_t n);
bool dw_all_zero(const float *v, size_t n);
/* All ones, but -1 in the corner. */
void dw_fill_weights(float *w, size_t n);
/* Small whole numbers: all sums are exact, whatever the order. */
void dw_fill_whole(float *w, size_t n, uint64_t seed, uint64_t stream);

#endif
