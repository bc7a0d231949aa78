/* Evaluation. */
#include "worker/wk_eval.h"

#include "base/mem.h"

#include "worker/data/wk_sampler.h"

#include <string.h>

bd_status wk_eval_gather(ring_comm *ring, const float *mine, size_t n_mine, size_t n_total,
                         float *all, bd_err *err)
{
    size_t world = (size_t)ring_world(ring), longest = (n_total + world - 1) / world;
    float *send = bd_calloc(longest + 1, sizeof *send);
    float *recv = bd_calloc(longest * world + 1, sizeof *recv);
    bd_status rc = BD_OK;
    if (send == NULL || recv == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "gather of %zu scores", n_total);
        goto out;
    }
    memcpy(send, mine, n_mine * sizeof *send);
    rc = ring_all_gather(ring, send, recv, longest, NUM_F32, "scores", NULL, err);
    for (size_t r = 0; rc == BD_OK && r < world; r++) {
        size_t first = 0, n = 0;
        wk_share(n_total, r, world, &first, &n);
        memcpy(all + first, recv + r * longest, n * sizeof *all);
    }
out:
    bd_free(send);
    bd_free(recv);
    return rc;
}

bd_status wk_eval(wk_net *net, const wk_dataset *set, ring_comm *ring, uint64_t after_step,
                  wk_metrics *out, bd_err *err)
{
    size_t first = 0, n = 0;
    bool binary = strcmp(net->job->train.loss, "bce") == 0;
    wk_share(set->n, (size_t)ring_rank(ring), (size_t)ring_world(ring), &first, &n);
    float *mine = bd_alloc((n + 1) * sizeof *mine);
    float *all = bd_alloc((set->n + 1) * sizeof *all);
    bd_status rc = mine != NULL && all != NULL
                       ? BD_OK
                       : bd_err_set(err, BD_E_NOMEM, "evaluation of %zu rows", set->n);
    if (rc == BD_OK) {
        rc = wk_net_scores(net, set, first, n, after_step, mine, err);
    }
    if (rc == BD_OK) {
        rc = wk_eval_gather(ring, mine, n, set->n, all, err);
    }
    if (rc == BD_OK) {
        rc = wk_metrics_compute(all, set->labels, set->n, binary, out, err);
    }
    bd_free(mine);
    bd_free(all);
    return rc;
}
