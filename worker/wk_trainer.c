/* The training step. */
#include "worker/wk_trainer.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/num/vec.h"

#include "tape/ops.h"
#include "worker/wk_reducer.h"
#include "worker/wk_sched.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { PREFETCH_DEPTH = 3 };

/* What the flags reduction sums over the ranks. */
enum { FLAG_LOSS, FLAG_N, FLAG_BAD, FLAG_BAD_RANK, FLAG_STOP, N_FLAGS };

struct wk_hook {
    wk_trainer *t;
    size_t idx;
};

const char *wk_phase_name(int phase)
{
    static const char *const names[] = {
#define BD_X(name, key, text) key,
        WK_PHASE_MAP(BD_X)
#undef BD_X
    };
    return phase >= 0 && phase < WK_N_PHASES ? names[phase] : "?";
}

/* Books the time since *since to a phase. */
static void book(wk_trainer *t, wk_phase phase, int64_t *since)
{
    int64_t now = bd_mono_ns();
    t->phase_ns[phase] += now - *since;
    wk_trace_phase(t->trace, wk_phase_name((int)phase), *since, now);
    *since = now;
}

/* ---- hooks: gradients leave while backward still runs ---- */

static bd_status on_dense_ready(void *user, tp_tensor *leaf, tp_event ready, bd_err *err)
{
    struct wk_hook *h = user;
    bd_status rc = tp_event_wait(leaf->dev, ready, err);
    return rc == BD_OK ? ring_reducer_ready_at(h->t->reducer, h->idx, leaf->grad->data, err) : rc;
}

static bd_status on_dense_part(void *user, tp_tensor *leaf, size_t n_elems, tp_event ready,
                               bd_err *err)
{
    struct wk_hook *h = user;
    bd_status rc = tp_event_wait(leaf->dev, ready, err);
    return rc == BD_OK ? ring_reducer_ready_upto(h->t->reducer, h->idx, n_elems, err) : rc;
}

/* The leaf of a table's rows: its gradient goes into the context, and so to the servers. */
static bd_status on_rows_ready(void *user, tp_tensor *leaf, tp_event ready, bd_err *err)
{
    const struct wk_hook *h = user;
    wk_trainer *t = h->t;
    bd_status rc = tp_event_wait(leaf->dev, ready, err);
    if (rc != BD_OK) {
        return rc;
    }
    const float *grads = tp_f32(leaf->grad);
    if (!num_all_finite(grads, leaf->n_elems) && t->bad.code == BD_OK) {
        (void)bd_err_set(&t->bad, BD_E_NUMERIC, "gradient of table %s on rank %d is not finite",
                         t->net->tables[h->idx].name, ring_rank(t->ring));
    }
    return rpc_ag_recv_backward(t->rows[t->item->step % 2], h->idx, grads, leaf->n_elems, err);
}

static wk_strand *strand_of(wk_trainer *t, const wk_item *item)
{
    return &t->strands[item->step % 2];
}

/* ---- set-up ---- */

static bd_status init_reducer(wk_trainer *t, bd_err *err)
{
    const wk_net *net = t->net;
    size_t n = 0;
    /* alone, a worker sends nothing that could leave earlier */
    size_t part_elems =
        ring_world(t->ring) > 1 ? (size_t)t->job->ring_bucket_bytes / sizeof(float) : 0;
    for (size_t i = 0; i < net->n_params; i++) {
        if (net->params[i].grad != NULL) {
            t->dense_hooks[n] = (struct wk_hook){t, n};
            tp_set_ready_hook(net->params[i].value, on_dense_ready, &t->dense_hooks[n]);
            tp_set_part_hook(net->params[i].value, on_dense_part, &t->dense_hooks[n], part_elems);
            n++;
        }
    }
    bd_status rc = wk_reducer_new(t->job, t->net, t->ring, &t->reducer, err);
    return rc == BD_OK
               ? wk_trace_new(t->job->run_dir, ring_rank(t->ring), t->job->trace, &t->trace, err)
               : rc;
}

static bd_status init_steps(wk_trainer *t, bd_err *err)
{
    const wk_job_train *cfg = &t->job->train;
    const wk_sampler_config sampler = {.n = t->data->train.n,
                                       .batch = (size_t)cfg->batch,
                                       .rank = (size_t)ring_rank(t->ring),
                                       .world = (size_t)ring_world(t->ring),
                                       .seed = (uint64_t)t->job->seed,
                                       .shuffle = cfg->shuffle,
                                       .distributed = strcmp(cfg->sampler, "distributed") == 0};
    bd_status rc = wk_sampler_init(&t->sampler, &sampler, err);
    if (rc != BD_OK) {
        return rc;
    }
    t->steps_per_epoch = wk_sampler_steps_per_epoch(&t->sampler);
    t->total_steps = t->steps_per_epoch * (uint64_t)cfg->epochs;
    if (cfg->max_steps > 0 && (uint64_t)cfg->max_steps < t->total_steps) {
        t->total_steps = (uint64_t)cfg->max_steps;
    }
    return BD_OK;
}

static bd_status init_ag(wk_trainer *t, const wk_trainer_config *cfg, bd_err *err)
{
    const rpc_ag_options opt = {.name = "trainer", .client_id = 1};
    t->ag = cfg->ag;
    if (t->ag != NULL) {
        return BD_OK;
    }
    bd_status rc = rpc_ag_new(NULL, &opt, &t->own_ag, err);
    t->ag = t->own_ag;
    return rc;
}

bd_status wk_trainer_init(wk_trainer *t, const wk_trainer_config *cfg, bd_err *err)
{
    const wk_net *net = cfg->net;
    const wk_job_train *train = &cfg->job->train;
    wk_dense_optim_config optim = {
        .optimizer = train->optimizer, .l2 = train->l2, .clip_norm = train->clip_norm};
    num_hyper_list hyper;
    memset(t, 0, sizeof *t);
    t->job = cfg->job;
    t->data = cfg->data;
    t->net = cfg->net;
    t->sparse = net->sparse;
    t->ring = cfg->ring;
    t->sync = strcmp(cfg->job->consistency, "sync") == 0 || cfg->job->servers == 0;
    t->dense_hooks = bd_calloc(net->n_params + 1, sizeof *t->dense_hooks);
    t->row_hooks = bd_calloc(net->n_tables + 1, sizeof *t->row_hooks);
    t->row_hook_users = bd_calloc(net->n_tables + 1, sizeof *t->row_hook_users);
    if (t->dense_hooks == NULL || t->row_hooks == NULL || t->row_hook_users == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "trainer");
    }
    for (size_t i = 0; i < net->n_tables; i++) {
        t->row_hooks[i] = (struct wk_hook){t, i};
        t->row_hook_users[i] = &t->row_hooks[i];
    }
    bd_status rc = init_ag(t, cfg, err);
    if (rc == BD_OK) {
        rc = init_steps(t, err);
    }
    if (rc == BD_OK) {
        rc = num_hyper_list_parse(train->hyper, &hyper, err);
    }
    if (rc == BD_OK) {
        optim.hyper_names = hyper.names;
        optim.hyper_values = hyper.values;
        optim.n_hypers = hyper.n;
        rc = wk_dense_optim_new(net->params, net->n_params, &optim, &t->optim, err);
    }
    return rc == BD_OK ? init_reducer(t, err) : rc;
}

static void close_strand(wk_strand *s)
{
    bd_err err = BD_ERR_INIT;
    if (wk_strand_close(s, &err) != BD_OK) {
        BD_LOG(WARN, "a step ended without its servers", "why", bd_err_text(&err));
    }
}

/* Before what the strands borrow goes: batches, lookups, the tape's gradients. */
static void close_strands(wk_trainer *t)
{
    close_strand(&t->strands[0]);
    close_strand(&t->strands[1]);
    rpc_ag_free(t->own_ag);
}

void wk_trainer_deinit(wk_trainer *t)
{
    close_strands(t);
    if (t->prefetch != NULL) {
        wk_prefetch_give_back(t->prefetch, t->item);
        wk_prefetch_give_back(t->prefetch, t->next);
        wk_prefetch_free(t->prefetch);
    }
    for (size_t i = 0; t->net != NULL && i < t->net->n_params; i++) {
        if (t->net->params[i].grad != NULL) {
            tp_set_ready_hook(t->net->params[i].value, NULL, NULL);
            tp_set_part_hook(t->net->params[i].value, NULL, NULL, 0);
        }
    }
    wk_trace_free(t->trace);
    if (t->reducer != NULL) {
        wk_reducer_log(t->job, t->reducer, ring_rank(t->ring), true);
        ring_reducer_free(t->reducer);
    }
    if (t->optim != NULL) {
        wk_dense_optim_free(t->optim);
    }
    wk_sampler_deinit(&t->sampler);
    bd_free(t->dense_hooks);
    bd_free(t->row_hooks);
    bd_free(t->row_hook_users);
    memset(t, 0, sizeof *t);
}

/* ---- batches ---- */

/* Prefetch thread. */
static bd_status make_item(void *user, wk_item *item, bd_err *err)
{
    wk_trainer *t = user;
    wk_sample part;
    wk_sampler_at(&t->sampler, item->step - 1, &part);
    bd_status rc = wk_data_batch(t->data, &t->data->train, part.rows, part.n, part.n_global,
                                 &item->batch, err);
    return rc == BD_OK ? wk_net_prepare(t->net, &item->batch, &item->lookup, err) : rc;
}

static void drop_item(void *user, wk_item *item)
{
    const wk_trainer *t = user;
    if (item->lookup != NULL) {
        t->sparse->ops->lookup_free(item->lookup);
        item->lookup = NULL;
    }
}

/* The committed step a lookup for `step` waits for. */
static uint64_t lookup_after(const wk_trainer *t, uint64_t step)
{
    if (t->sync) {
        return t->committed;
    }
    uint64_t bound = (uint64_t)t->job->staleness + 1;
    return strcmp(t->job->consistency, "bounded") == 0 && step > bound ? step - bound : 0;
}

/* Takes the next batch, begins its context and sends its lookup. *item NULL: none left. */
static bd_status next_item(wk_trainer *t, wk_item **item, bd_err *err)
{
    bd_status rc = wk_prefetch_next(t->prefetch, item, err);
    if (rc != BD_OK || *item == NULL) {
        return rc;
    }
    uint64_t step = (*item)->step;
    wk_strand *s = strand_of(t, *item);
    rc = wk_strand_open(s, t->ag, t->sparse, step, t->sync, err);
    if (rc == BD_OK) {
        rc = wk_strand_lookup(s, (*item)->lookup, t->net->n_tables, lookup_after(t, step),
                              &t->rows[step % 2], err);
    }
    return rc;
}

bd_status wk_trainer_start(wk_trainer *t, uint64_t first_step, bd_err *err)
{
    uint64_t end = first_step > t->total_steps ? first_step : t->total_steps + 1;
    bd_status rc = wk_prefetch_new(first_step, end, PREFETCH_DEPTH, make_item, drop_item, t,
                                   &t->prefetch, err);
    return rc == BD_OK ? next_item(t, &t->item, err) : rc;
}

/* ---- the step ---- */

/* Names the first sample whose score is not finite, else the one with the largest score. */
static void blame_sample(wk_trainer *t, const wk_batch *b, tp_tensor *logits, double loss_sum)
{
    const void *host = NULL;
    size_t worst = 0;
    const float *score = tp_read(logits, &host, NULL) == BD_OK ? host : NULL;
    if (score == NULL || b->n == 0) {
        (void)bd_err_set(&t->bad, BD_E_NUMERIC, "loss on rank %d is %g", ring_rank(t->ring),
                         loss_sum);
        return;
    }
    for (size_t i = 0; i < b->n && isfinite(score[worst]); i++) {
        worst = !isfinite(score[i]) || fabsf(score[i]) > fabsf(score[worst]) ? i : worst;
    }
    (void)bd_err_set(&t->bad, BD_E_NUMERIC,
                     "loss on rank %d is %g: the score of sample %llu (label %g) is %g",
                     ring_rank(t->ring), loss_sum, (unsigned long long)b->sample_idx[worst],
                     (double)b->labels[worst], (double)score[worst]);
}

static bd_status forward(wk_trainer *t, const wk_item *item, tp_tensor **loss, double *loss_sum,
                         bd_err *err)
{
    const wk_batch *b = &item->batch;
    const wk_model_mode mode = {.train = true, .step = item->step};
    tp_tensor *logits = NULL, *sum = NULL;
    const void *host = NULL;
    float factor = 1.0f / (float)b->n_global;
    bd_status rc = ring_reducer_forward(t->reducer, true, err);
    if (rc == BD_OK) {
        rc = wk_net_forward(t->net, b, item->lookup, &mode, on_rows_ready, t->row_hook_users,
                            &logits, err);
    }
    if (rc == BD_OK) {
        rc = strcmp(t->job->train.loss, "bce") == 0
                 ? tp_bce_logits(t->net->tape, logits, b->labels, factor, loss, &sum, err)
                 : tp_mse(t->net->tape, logits, b->labels, factor, loss, &sum, err);
    }
    if (rc == BD_OK) {
        rc = tp_read(sum, &host, err);
    }
    if (rc == BD_OK) {
        *loss_sum = *(const double *)host;
        if (!isfinite(*loss_sum)) {
            blame_sample(t, b, logits, *loss_sum);
        }
    }
    return rc;
}

static bd_status backward(wk_trainer *t, const wk_item *item, tp_tensor *loss, double lr_factor,
                          bd_err *err)
{
    wk_strand *s = strand_of(t, item);
    wk_dense_optim_zero_grad(t->optim);
    bd_status rc = ring_reducer_prepare(t->reducer, true, err);
    if (rc == BD_OK) {
        rc = wk_strand_backward(s, true, lr_factor, err);
    }
    if (rc == BD_OK) {
        rc = tp_backward(t->net->tape, loss, NULL, err);
    }
    return rc == BD_OK ? wk_strand_push(s, err) : rc;
}

/* Sums the flags over the ranks; res gets loss, count and decision. */
static bd_status vote(wk_trainer *t, const wk_item *item, double loss_sum, bool stop,
                      wk_step_result *res, bd_err *err)
{
    bool bad = t->bad.code != BD_OK;
    double flags[N_FLAGS] = {
        [FLAG_LOSS] = bad ? 0 : loss_sum, [FLAG_N] = (double)item->batch.n,
        [FLAG_BAD] = bad ? 1 : 0,         [FLAG_BAD_RANK] = bad ? ring_rank(t->ring) : 0,
        [FLAG_STOP] = stop ? 1 : 0,
    };
    bd_status rc = ring_allreduce(t->ring, flags, N_FLAGS, NUM_F64, NUM_SUM, "flags", NULL, err);
    if (rc != BD_OK) {
        return rc;
    }
    res->n = (uint64_t)flags[FLAG_N];
    res->loss = flags[FLAG_LOSS] / flags[FLAG_N];
    res->stop = flags[FLAG_STOP] > 0;
    res->committed = flags[FLAG_BAD] == 0; /* exact: small whole numbers */
    if (!res->committed && !bad) {
        (void)bd_err_set(&t->bad, BD_E_NUMERIC, "rank %d reports a value that is not finite",
                         (int)(flags[FLAG_BAD_RANK] / flags[FLAG_BAD]));
    }
    return BD_OK;
}

/* The reduced dense gradients are the same on all ranks, so all come to the same answer. */
static bd_status check_dense(wk_trainer *t, double *sumsq, bd_err *err)
{
    bd_status rc = wk_dense_optim_grad_sumsq(t->optim, sumsq, err);
    if (rc == BD_OK && !isfinite(*sumsq) && t->bad.code == BD_OK) {
        rc = wk_dense_optim_check_finite(t->optim, &t->bad) == BD_E_NUMERIC ? BD_OK : rc;
        if (t->bad.code == BD_OK) { /* finite elements whose squares overflow */
            (void)bd_err_set(&t->bad, BD_E_NUMERIC, "norm of the dense gradient is not finite");
        }
    }
    return rc;
}

/* A step that may not change the model. */
static bd_status refuse(wk_trainer *t, uint64_t step, bd_err *err)
{
    t->n_skipped++;
    if (strcmp(t->job->train.on_nonfinite, "stop") == 0 ||
        t->n_skipped > (uint64_t)t->job->train.max_skipped) {
        return bd_err_set(err, BD_E_NUMERIC, "step %llu: %s", (unsigned long long)step,
                          bd_err_text(&t->bad));
    }
    BD_LOG(WARN, "step skipped; a lower learning rate or train.clip_norm may help", "step", step,
           "reason", bd_err_text(&t->bad), "skipped", t->n_skipped);
    return BD_OK;
}

/* Everything that must be in before anything changes: buckets, pushes, flags. */
static bd_status gather_step(wk_trainer *t, const wk_item *item, double loss_sum, bool stop,
                             wk_step_result *res, double *sumsq, int64_t *clock, bd_err *err)
{
    bd_status rc = ring_reducer_finish(t->reducer, err);
    if (rc == BD_OK) {
        rc = check_dense(t, sumsq, err);
    }
    book(t, WK_PHASE_ALLREDUCE, clock);
    if (rc == BD_OK) {
        rc = wk_strand_push_wait(strand_of(t, item), err);
    }
    book(t, WK_PHASE_PUSH, clock);
    if (rc == BD_OK) {
        strand_of(t, item)->voted = true; /* from here on another rank may commit */
        rc = vote(t, item, loss_sum, stop, res, err);
    }
    book(t, WK_PHASE_FLAGS, clock);
    return rc;
}

/* The context's step, or its end without one. 0 would mean "not set" (rpc_ag_step). */
static bd_status decide_context(const wk_strand *s, const wk_step_result *res, bd_err *err)
{
    double scale = res->lr_factor > 0 ? res->lr_factor : DBL_MIN;
    return res->committed ? rpc_ag_step_start(s->ctx, scale, err) : rpc_ag_abort_start(s->ctx, err);
}

/* COMMIT or ABORT, (sync) the next lookup, the dense step, in this order so that they overlap. */
static bd_status decide(wk_trainer *t, const wk_item *item, wk_step_result *res, double sumsq,
                        int64_t *clock, bd_err *err)
{
    wk_strand *s = strand_of(t, item);
    double lr = t->job->train.learning_rate * res->lr_factor;
    float clip = wk_dense_optim_clip_factor(t->optim, sumsq);
    bd_status rc = decide_context(s, res, err);
    if (!res->committed && rc == BD_OK) {
        rc = refuse(t, item->step, err);
    }
    t->committed = res->committed ? item->step : t->committed;
    book(t, WK_PHASE_COMMIT, clock);
    if (rc == BD_OK && t->sync) {
        rc = next_item(t, &t->next, err);
    }
    book(t, WK_PHASE_READ, clock);
    if (rc == BD_OK && res->committed) {
        rc = wk_dense_optim_step(t->optim, (float)lr, clip, NULL, err);
    }
    book(t, WK_PHASE_OPTIMIZER, clock);
    if (rc == BD_OK) {
        rc = rpc_ag_settle(s->ctx, err);
    }
    if (rc == BD_OK) {
        rc = wk_strand_close(s, err);
    }
    book(t, WK_PHASE_COMMIT, clock);
    return rc;
}

/* The context fails with the step: what it has reached is told, and nothing more is pushed. It is
 * ended in deinit, for item and gradients stay until then. */
static bd_status fail_step(wk_trainer *t, const wk_item *item, bd_status rc, const bd_err *own,
                           bd_err *err)
{
    bd_err why = *own;
    why.code = rc;
    wk_strand_fail(strand_of(t, item), &why);
    if (err != NULL) {
        *err = why;
    }
    return rc;
}

static bd_status run_step(wk_trainer *t, wk_item *item, bool stop, wk_step_result *res, bd_err *err)
{
    tp_tensor *loss = NULL;
    double loss_sum = 0, sumsq = 0;
    int64_t clock = bd_mono_ns();
    bd_status rc = wk_strand_wait(strand_of(t, item), err);
    book(t, WK_PHASE_LOOKUP, &clock);
    if (rc == BD_OK && !t->sync) { /* it need not see this step: its rows come meanwhile */
        rc = next_item(t, &t->next, err);
        book(t, WK_PHASE_READ, &clock);
    }
    if (rc == BD_OK) {
        rc = forward(t, item, &loss, &loss_sum, err);
    }
    book(t, WK_PHASE_FORWARD, &clock);
    if (rc == BD_OK) {
        rc = backward(t, item, loss, res->lr_factor, err);
    }
    book(t, WK_PHASE_BACKWARD, &clock);
    if (rc == BD_OK) {
        rc = gather_step(t, item, loss_sum, stop, res, &sumsq, &clock, err);
    }
    return rc == BD_OK ? decide(t, item, res, sumsq, &clock, err) : rc;
}

bd_status wk_trainer_step(wk_trainer *t, bool stop, wk_step_result *res, bool *more, bd_err *err)
{
    wk_item *item = t->item;
    bd_err own = BD_ERR_INIT;
    *more = item != NULL;
    if (item == NULL) {
        return BD_OK;
    }
    t->bad = (bd_err)BD_ERR_INIT;
    res->step = item->step;
    res->epoch = (item->step - 1) / t->steps_per_epoch;
    res->lr_factor = wk_lr_factor(&t->job->train, item->step, t->total_steps, t->steps_per_epoch);
    bd_status rc = run_step(t, item, stop, res, &own);
    if (rc != BD_OK) {
        return fail_step(t, item, rc, &own, err);
    }
    t->n_samples += res->n;
    wk_trace_step(t->trace, res->step, t->reducer);
    wk_reducer_log(t->job, t->reducer, ring_rank(t->ring), false);
    tp_tape_reset(t->net->tape); /* the tape points into the item */
    wk_prefetch_give_back(t->prefetch, item);
    t->item = t->next;
    t->next = NULL;
    return BD_OK;
}

bd_status wk_trainer_flush(wk_trainer *t, bd_err *err)
{
    return t->sync ? BD_OK : t->sparse->ops->push_wait(t->sparse, err);
}
