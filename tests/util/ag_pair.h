/* tests/util/ag_pair.h - a trainer and two nodes with modules, over real gRPC on loopback.
 *
 *   linear (relu) on a, far_linear on b: w = [[1, 2], [3, 4], [-5, -6]], sgd 0.5
 *   bag on a: rows r = (r, 10 r), adagrad 1
 *   relay on a: asks far_linear; boom on b: fails in backward
 */
#ifndef AG_PAIR_H
#define AG_PAIR_H

#include "tests/util/ag_modules.h"

#define AP_TRAINER 7u
#define AP_NODE_A  100u
#define AP_NODE_B  101u

typedef struct ap_node {
    rpc_ag *ag;
    rpc_server *server;
    rpc_channel *ch; /* the way to it */
    char target[64];
} ap_node;

typedef struct ap_world {
    rpc_env *env;
    rpc_ag *trainer;
    rpc_channel *to_a, *to_b;
    rpc_ag_peer *a, *b;
    ap_node node_a, node_b;
    rpc_module *linear, *bag, *far_linear; /* linear and bag on a, far_linear on b */
    am_relay relay;                        /* on a */
    rpc_module boom;                       /* on b */
} ap_world;

/* For cmocka: *state is an ap_world; afterwards no node has a context. */
int ap_set_up(void **state);
int ap_tear_down(void **state);

rpc_ag_ctx *ap_begin(ap_world *w);
void ap_end(rpc_ag_ctx *ctx);
rpc_tensor ap_matrix(size_t rows, size_t cols, const float *v);
rpc_tensor ap_ints(size_t n, const int64_t *v);
rpc_ag_msg *ap_forward(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module, const rpc_tensor *in,
                       size_t n_in, rpc_tensor *out);
void ap_expect_floats(const float *got, const float *want, size_t n);
void ap_expect_param(rpc_ag *ag, const char *module, const float *want, size_t n);
rpc_ag_grads ap_gradients(rpc_ag_ctx *ctx, rpc_ag_peer *peer);
/* x = (1, 1): y = relu(3, 7, -11); gy = (1, 10, 100) reaches the two that are positive. */
extern const float ap_x11[2], ap_gy[3];
rpc_ag_msg *ap_one_backward(rpc_ag_ctx *ctx, rpc_ag_peer *peer, const char *module,
                            const float *want_dx, const rpc_ag_fused *fused);

#endif
