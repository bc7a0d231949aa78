#include "tests/util/ring_model.h"

#include "base/mem.h"
#include "base/rand.h"

const size_t model_sizes[N_PARAMS] = {300, 1, 5000, 17, 0, 20000, 64};
const char *const model_names[N_PARAMS] = {"fc0.w", "fc0.b", "fc1.w", "fc1.b",
                                           "empty", "fc2.w", "fc2.b"};

void model_init(model *m)
{
    for (size_t i = 0; i < N_PARAMS; i++) {
        m->own[i] = bd_calloc(model_sizes[i] + 1, sizeof(float));
        m->grads[i] = m->own[i];
        m->params[i] = (ring_param){model_names[i], model_sizes[i], NUM_F32, m->grads[i]};
    }
}

void model_deinit(model *m)
{
    for (size_t i = 0; i < N_PARAMS; i++) {
        bd_free(m->own[i]);
    }
}

const ring_reducer_options model_buckets = {.first_bucket_bytes = 100, .bucket_bytes = 20000};

float model_grad(int rank, int step, size_t i, size_t k)
{
    return (float)(bd_rand_u64((uint64_t)step, (uint64_t)rank * 100 + i, k) % 17) - 8.0f;
}

void model_fill(model *m, int rank, int step, size_t i)
{
    for (size_t k = 0; k < model_sizes[i]; k++) {
        m->grads[i][k] = model_grad(rank, step, i, k);
    }
}

bool model_is_sum(const model *m, int world, int step, size_t i)
{
    for (size_t k = 0; k < model_sizes[i]; k++) {
        float want = 0;
        for (int r = 0; r < world; r++) {
            want += model_grad(r, step, i, k);
        }
        if (m->grads[i][k] != want) {
            return false;
        }
    }
    return true;
}

void model_shuffle(size_t *order, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        order[i] = i;
    }
    for (size_t i = n; i > 1; i--) {
        size_t j = bd_rand_u64(seed, 0, i) % i;
        size_t x = order[j];
        order[j] = order[i - 1];
        order[i - 1] = x;
    }
}

bool model_step(ring_reducer *r, model *m, rank_test *t, int step, const size_t *order)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc = ring_reducer_prepare(r, true, &err);
    for (size_t k = 0; rc == BD_OK && k < N_PARAMS; k++) {
        size_t i = order != NULL ? order[k] : N_PARAMS - 1 - k;
        model_fill(m, t->rank, step, i);
        rc = ring_reducer_ready_at(r, i, m->grads[i], &err);
    }
    rc = rc == BD_OK ? ring_reducer_finish(r, &err) : rc;
    if (rc != BD_OK) {
        rank_failed(t, __FILE__, __LINE__, "step", &err);
    }
    return rc == BD_OK;
}

void model_bind(void *user, size_t i, void *grad)
{
    model *m = user;
    m->grads[i] = grad != NULL ? grad : m->own[i];
}

bool model_new_reducer(rank_test *t, model *m, const ring_reducer_options *opt, ring_reducer **r)
{
    bd_err err = BD_ERR_INIT;
    model_init(m);
    if (ring_reducer_new(t->comm, m->params, N_PARAMS, opt, r, &err) != BD_OK) {
        rank_failed(t, __FILE__, __LINE__, "ring_reducer_new", &err);
        return false;
    }
    return true;
}

bool model_all_sums(const model *m, int world, int step)
{
    bool ok = true;
    for (size_t i = 0; i < N_PARAMS; i++) {
        ok = ok && model_is_sum(m, world, step, i);
    }
    return ok;
}

void ring_on_every_backend(int world, rank_fn fn, void *arg)
{
    static const ranks_backend backends[] = {RANKS_MEM, RANKS_TCP, RANKS_SHM, RANKS_HIER};
    if (ring_ranks_has_other()) {
        ring_ranks_run(RANKS_OTHER, world, NULL, fn, arg);
        return;
    }
    for (size_t b = 0; b < sizeof backends / sizeof backends[0]; b++) {
        if (backends[b] != RANKS_HIER || world > 2) { /* else it is one of the others */
            ring_ranks_run(backends[b], world, NULL, fn, arg);
        }
    }
}

void ring_everywhere(rank_fn fn, void *arg)
{
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
        ring_on_every_backend(worlds[w], fn, arg);
    }
}
