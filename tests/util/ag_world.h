/* tests/util/ag_world.h - a trainer and three nodes with small modules, over memory (virtual time,
 * loss, repeats and reordering by a seed) or over gRPC on loopback.
 *
 *   trainer -> a, b, c; every node knows every other. On each of a, b, c:
 *     layer(x) = x w^T with w = {{1, 2}, {3, -1}}, sgd with rate 1
 *     echo(in...) = in..., nothing is recorded
 *   on a: bag; hop (asks b's layer), trips (asks b's back, which asks a's layer), loop (asks a's
 *   layer over the network), boom (fails in backward).
 * All numbers are small and whole, so results are exact.
 */
#ifndef AG_WORLD_H
#define AG_WORLD_H

#include "rpc/rpc_mem.h"
#include "rpc/rpc_rref.h"

#include "tests/util/ag_modules.h"

enum { AW_N = 2, AW_TRAINER = 1, AW_LEASE_MS = 30000, AW_MAX_CHANNELS = 16, AW_SEEDS = 60 };

typedef struct aw_node {
    const char *name;
    rpc_env *env;
    rpc_ag *ag;
    rpc_server *server;
    char target[64];
    rpc_module *layer;
    rpc_module echo;
} aw_node;

typedef struct aw_world {
    rpc_mem_net *net; /* NULL: gRPC */
    double loss;
    uint64_t seed;
    aw_node trainer, a, b, c;
    rpc_channel *ch[AW_MAX_CHANNELS];
    size_t n_ch;
    rpc_ag_peer *to_a, *to_b, *to_c; /* the trainer's */
    rpc_ag_peer *a_to_b, *a_to_c, *b_to_a, *b_to_c;
    rpc_module *bag, boom;
    am_relay hop, trips, loop, back;
    void *user; /* the test's modules, one block; freed after the nodes */
} aw_world;

extern const float aw_w0[AW_N * AW_N], aw_x1[AW_N], aw_g1[AW_N];

/* Starts it (loss and net set before) and checks at the end that nothing is left: contexts,
 * references, on any node, at once or, where messages were lost, after the lease. */
void aw_start(aw_world *w);
void aw_stop(aw_world *w);
/* The case in all worlds: quiet, lossy by AW_SEEDS seeds, gRPC. Checks for leaks of memory too. */
void aw_run(void (*fn)(aw_world *w));
/* Only over memory, by one seed. */
void aw_run_seed(void (*fn)(aw_world *w), uint64_t seed, double loss);
/* memory: time passes. */
void aw_pass_ms(aw_world *w, int64_t ms);
rpc_ag_peer *aw_peer(aw_world *w, const aw_node *from, const aw_node *to);

/* ---- what cases are made of ---- */
rpc_ag_ctx *aw_begin(aw_world *w);
void aw_end(rpc_ag_ctx *ctx); /* best effort under loss; aw_stop checks */
rpc_tensor aw_rows(size_t n, const float *v);
bd_status aw_ask(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module, size_t n, const float *x,
                 rpc_ag_result *out, bd_err *err);
/* gx[n x AW_N] gets the gradient of the input; NULL: there is none. */
bd_status aw_back(rpc_ag_msg *msg, size_t n, const float *g, float *gx, bd_err *err);
/* y = x w^T, or x w: forward and the input's gradient of layer. */
void aw_times(const float *x, bool transposed, float *y);
/* The gradient of `layer` that the context holds on a node is g^T x, times `factor`. */
void aw_expect_layer_grad(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const float *x, const float *g,
                          float factor);
void aw_must(bd_status rc, const bd_err *err);

#endif
