/* The loop over steps. */
#include "worker/wk_train.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "worker/wk_eval.h"

#include <math.h>
#include <string.h>

#define LAST_TRIES 5 /* of the last checkpoint: servers do not keep dying */

typedef struct run {
    const wk_train_env *env;
    const wk_job *job;
    wk_trainer trainer;
    wk_ckpt ckpt; /* counters that a checkpoint keeps */
    wk_ckpt open; /* rank 0: the one whose rows are being written; dense NULL: none */
    uint64_t open_epoch;
    wk_train_result *out;
    uint64_t first_step; /* the last one before this process's */
    bool early_stop;
} run;

static bool due(int64_t every, uint64_t step)
{
    return every > 0 && step % (uint64_t)every == 0;
}

/* Larger is better. */
static double quality(const wk_job *job, const wk_metrics *m)
{
    return strcmp(job->train.loss, "bce") == 0 ? m->auc : -m->rmse;
}

/* ---- evaluation and early stop ---- */

static bd_status evaluate(run *r, const wk_step_result *s, bd_err *err)
{
    wk_metrics m;
    bd_status rc =
        wk_eval(r->env->net, &r->env->data->test, r->env->ring, r->trainer.committed, &m, err);
    if (rc != BD_OK) {
        return rc;
    }
    double q = quality(r->job, &m);
    bool better = isnan(r->ckpt.best) || q > r->ckpt.best;
    r->ckpt.best = better ? q : r->ckpt.best;
    r->ckpt.n_worse = better ? 0 : r->ckpt.n_worse + 1;
    r->out->metrics = m;
    wk_progress_eval(r->env->progress, s->step, s->epoch, &m);
    wk_page_eval(r->env->page, &m);
    int64_t patience = r->job->train.early_stop_patience;
    if (patience > 0 && r->ckpt.n_worse >= patience) {
        r->early_stop = true;
        wk_progress_say(r->env->progress, "early stop: %lld evaluations without gain",
                        (long long)r->ckpt.n_worse);
    }
    return BD_OK;
}

static bool eval_due(const run *r, uint64_t step)
{
    if (r->env->data->test.n == 0) {
        return false;
    }
    return r->job->train.eval_every > 0 ? due(r->job->train.eval_every, step)
                                        : step % r->trainer.steps_per_epoch == 0;
}

/* ---- checkpoints ---- */

/* The checkpoint that is on its way, when there is one and its rows are down (wait: until they
 * are): its last files, and older ones go. */
static bd_status settle(run *r, bool wait, bd_err *err)
{
    bool done = false;
    char name[sizeof r->open.name];
    uint64_t step = r->open.step;
    if (r->open.dense == NULL) {
        return BD_OK;
    }
    memcpy(name, r->open.name, sizeof name);
    bd_status rc = wk_ckpt_finish(&r->open, &r->trainer, r->job->run_dir, wait, &done, err);
    if (rc == BD_OK && done) {
        rc =
            wk_ckpt_prune(&r->trainer, r->job->run_dir, (size_t)r->job->train.checkpoint_keep, err);
    }
    if (rc == BD_OK && done) {
        wk_progress_checkpoint(r->env->progress, step, r->open_epoch, name);
        wk_page_checkpoint(r->env->page);
    }
    return rc;
}

/* The same between steps: a cut that a restarted server lost costs that checkpoint, not the job. */
static bd_status settle_or_do_without(run *r, bool wait, bd_err *err)
{
    bd_status rc = settle(r, wait, err);
    if (rc != BD_E_NOT_FOUND) {
        return rc;
    }
    BD_LOG(WARN, "checkpoint lost, the next one follows", "why", bd_err_text(err));
    wk_page_checkpoint_lost(r->env->page);
    return BD_OK;
}

/* Rank 0, after the last step: taken again when it is lost. */
static bd_status take_last(run *r, bd_err *err)
{
    bd_status rc = BD_E_NOT_FOUND;
    for (int i = 0; i < LAST_TRIES && rc == BD_E_NOT_FOUND; i++) {
        wk_ckpt_deinit(&r->open);
        r->open = r->ckpt;
        rc = wk_ckpt_begin(&r->open, &r->trainer, r->job->run_dir, err);
        if (rc == BD_OK) {
            rc = settle(r, true, err);
        }
    }
    return rc;
}

/* last: nothing comes after it that its rows could be written beside. */
static bd_status save(run *r, uint64_t step, uint64_t epoch, bool last, bd_err *err)
{
    bd_status rc = settle_or_do_without(r, true, err);
    if (rc != BD_OK) {
        return rc;
    }
    r->ckpt.step = step;
    r->ckpt.committed = r->trainer.committed;
    r->ckpt.n_skipped = r->trainer.n_skipped;
    r->ckpt.job_epoch = r->env->job_epoch;
    /* In sync no rank can commit a step without rank 0, so the cut is quiet by itself. */
    if (!r->trainer.sync) {
        rc = ring_barrier(r->env->ring, "checkpoint.begin", err);
    }
    if (rc == BD_OK && ring_rank(r->env->ring) == 0) {
        r->open_epoch = epoch;
        if (last || r->trainer.sparse->ops->checkpoint_cut == NULL) {
            rc = take_last(r, err);
        } else {
            r->open = r->ckpt; /* counters; it holds no memory */
            rc = wk_ckpt_begin(&r->open, &r->trainer, r->job->run_dir, err);
        }
    }
    if (rc == BD_OK && !r->trainer.sync) {
        rc = ring_barrier(r->env->ring, "checkpoint.end", err);
    }
    if (rc == BD_OK && ring_rank(r->env->ring) != 0) {
        wk_page_checkpoint(r->env->page); /* only rank 0 hears when it is whole */
    }
    return rc;
}

/* ---- the loop ---- */

static bd_status after_step(run *r, const wk_step_result *s, bool *go_on, bd_err *err)
{
    bd_status rc = BD_OK;
    bool last = s->step == r->trainer.total_steps;
    wk_progress_step(r->env->progress, &r->trainer, s);
    bool evaluates = eval_due(r, s->step) || (last && r->env->data->test.n > 0);
    bool saves = due(r->job->train.checkpoint_every, s->step);
    if (evaluates || saves || last || s->stop) {
        rc = wk_trainer_flush(&r->trainer, err);
    }
    if (rc == BD_OK && evaluates) {
        rc = evaluate(r, s, err);
    }
    r->out->stopped = s->stop && !last;
    *go_on = !last && !s->stop && !r->early_stop;
    bool at_end = !*go_on && r->job->train.checkpoint_at_end;
    if (rc == BD_OK && (saves || at_end || s->stop)) {
        rc = save(r, s->step, s->epoch, !*go_on, err);
    }
    return rc;
}

static bd_status run_steps(run *r, bd_err *err)
{
    bool more = true, go_on = true;
    bd_status rc = BD_OK;
    while (rc == BD_OK && go_on) {
        wk_step_result s = {0};
        int64_t start = bd_mono_ns();
        bool stop = r->env->stop != NULL && *r->env->stop != 0;
        rc = wk_trainer_step(&r->trainer, stop, &s, &more, err);
        if (rc != BD_OK || !more) {
            break;
        }
        double seconds = (double)(bd_mono_ns() - start) * 1e-9;
        r->out->train_seconds += seconds;
        wk_page_step(r->env->page, &r->trainer, &s, seconds);
        r->out->steps = s.step;
        r->out->last_loss = s.loss;
        rc = settle_or_do_without(r, false, err);
        if (rc == BD_OK) {
            rc = after_step(r, &s, &go_on, err);
        }
    }
    if (rc == BD_OK) {
        rc = settle_or_do_without(r, true, err);
    }
    wk_ckpt_deinit(&r->open); /* after a failure: it never becomes one */
    return rc;
}

/* Puts the checkpoint into the trainer; the first step to run comes after it. */
static bd_status restore(run *r, bd_err *err)
{
    wk_ckpt *c = r->env->from;
    bd_status rc = wk_ckpt_broadcast(c, r->env->ring, err);
    if (rc == BD_OK) {
        rc = wk_ckpt_apply(c, &r->trainer, err);
    }
    if (rc == BD_OK) {
        r->ckpt.step = r->out->steps = r->first_step = c->step;
        r->ckpt.best = c->best;
        r->ckpt.n_worse = c->n_worse;
    }
    return rc;
}

/* A run that is killed before its first checkpoint must be able to start over on the same servers,
 * so step 0 is one. */
static bd_status save_start(run *r, bd_err *err)
{
    return r->job->train.checkpoint_every > 0 ? save(r, 0, 0, true, err) : BD_OK;
}

static bd_status finish(run *r, bd_err *err)
{
    wk_train_result *out = r->out;
    uint64_t dense = 0, rows = 0;
    bd_status rc = ring_barrier(r->env->ring, "end", err);
    if (rc == BD_OK) {
        rc = wk_dense_optim_hash(r->trainer.optim, &dense, err);
    }
    if (rc == BD_OK && ring_rank(r->env->ring) == 0) {
        rc = r->trainer.sparse->ops->param_hash(r->trainer.sparse, &rows, &out->n_rows, err);
    }
    out->param_hash = bd_mix64(dense ^ bd_mix64(rows));
    out->best = strcmp(r->job->train.loss, "bce") == 0 ? r->ckpt.best : -r->ckpt.best;
    out->n_samples = r->trainer.n_samples;
    out->n_skipped = r->trainer.n_skipped;
    out->n_dense = wk_net_dense_elems(r->env->net);
    memcpy(out->phase_ns, r->trainer.phase_ns, sizeof out->phase_ns);
    wk_progress_end(r->env->progress, &r->trainer, out->steps - r->first_step, out->train_seconds);
    return rc;
}

/* A run resumed at its very end still reports metrics. */
static bd_status evaluate_unchanged(run *r, bd_err *err)
{
    const wk_step_result s = {.step = r->ckpt.step,
                              .epoch = r->ckpt.step / r->trainer.steps_per_epoch};
    return r->out->metrics.n == 0 && r->env->data->test.n > 0 ? evaluate(r, &s, err) : BD_OK;
}

bd_status wk_train(const wk_train_env *env, wk_train_result *out, bd_err *err)
{
    const wk_trainer_config config = {env->job, env->data, env->net, env->ring, env->ag};
    run r = {.env = env, .job = env->job, .out = out, .ckpt = {.best = (double)NAN}};
    memset(out, 0, sizeof *out);
    bd_status rc = wk_trainer_init(&r.trainer, &config, err);
    if (rc == BD_OK) {
        rc = env->resumed ? restore(&r, err) : save_start(&r, err);
    }
    if (rc == BD_OK) {
        wk_progress_start(env->progress, &r.trainer);
        r.trainer.committed = env->resumed ? env->from->committed : 0;
        rc = wk_trainer_start(&r.trainer, r.ckpt.step + 1, err);
    }
    if (rc == BD_OK) {
        rc = run_steps(&r, err);
    }
    if (rc == BD_OK && !out->stopped) {
        rc = evaluate_unchanged(&r, err);
    }
    if (rc == BD_OK) {
        rc = finish(&r, err);
    }
    if (rc != BD_OK) {
        bd_err why = err != NULL ? *err : (bd_err){.code = rc};
        ring_abort(env->ring, &why); /* first: the others learn at once */
    }
    wk_trainer_deinit(&r.trainer);
    wk_ckpt_deinit(&r.ckpt);
    return rc;
}
