/* tests/util/ag_rref_kit.h - modules that take, keep and give references, for cases in ag_world.h.
 *
 * Layer: tests.
 *
 * Modules of every node, besides the world's:
 *   use        y = the value of in[0].rref, fetched       use_local  the same, as its owner
 *   both, mul  y = sum of two fetches of it               lazy       fetches twice, uses one
 *   pass       asks c's `use`
 *   hold, held, drop   keeps in[0].rref, answers with its value, lets go
 *   give       a reference to in[0] here                  give_far   one made by b's layer(in[0])
 *   same       gives in[0].rref back                      bad        identity; fails in backward
 */
#ifndef TU_AG_RREF_KIT_H
#define TU_AG_RREF_KIT_H

#include "rpc/rpc_rref_int.h"

#include "tests/util/ag_world.h"

enum { RK_N_MODULES = 13, RK_N_NODES = 3 };

typedef struct rk_module {
    rpc_module module;
    struct rk_kit *kit;
    aw_node *node;
    _Atomic int n_backward;
} rk_module;

typedef struct rk_kit {
    aw_world *w;
    rk_module mods[RK_N_NODES][RK_N_MODULES];
    rpc_rref *held[RK_N_NODES];
} rk_kit;

/* Registers the modules at a, b and c and makes w->user the kit, which the world frees after its
 * nodes. */
void rk_start(aw_world *w);
/* How often a module of node 0, 1 or 2 (a, b, c) has gone backward. */
int rk_runs_of(const rk_kit *k, size_t node, const char *name);

/* ---- what cases are made of ---- */
/* The value of module(x), made and kept at `on`. */
rpc_rref *rk_make(rpc_ag_ctx *ctx, rpc_ag_peer *on, const char *module, const float *x);
/* module(reference), which must work. */
rpc_ag_result rk_ask_with(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module, rpc_rref *r);
/* factor * want[AW_N], exactly. */
void rk_expect_row(const rpc_tensor *t, const float *want, float factor);
void rk_expect_holds(rpc_rref *r, const float *want);
rpc_rref_counts rk_counts(const aw_node *n);

#endif
