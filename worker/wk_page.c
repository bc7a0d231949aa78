#include "worker/wk_page.h"

#include "base/clock.h"
#include "base/http.h"
#include "base/mem.h"
#include "base/metrics.h"

#include <math.h>

struct wk_page {
    bd_http *http;                   /* owned */
    int64_t phase_ns[WK_N_PHASES];   /* at the last step */
    uint64_t samples, skipped, sent; /* at the last step */
};

static const double seconds_bounds[] = BD_BOUNDS_SECONDS;

static bd_metric m_world = BD_METRIC_GAUGE("braid_worker_world", "ranks", "workers of the job");
static bd_metric m_rank = BD_METRIC_GAUGE("braid_worker_rank", "rank", "number of this worker");
static bd_metric m_steps = BD_METRIC_COUNTER("braid_worker_steps_total", "steps", "steps finished");
static bd_metric m_skipped = BD_METRIC_COUNTER("braid_worker_skipped_steps_total", "steps",
                                               "steps aborted: loss or gradient was not finite");
static bd_metric m_samples =
    BD_METRIC_COUNTER("braid_worker_samples_total", "samples", "samples trained, all ranks");
static bd_metric m_sent = BD_METRIC_COUNTER("braid_worker_ring_sent_bytes_total", "bytes",
                                            "sent to other workers by the ring");
static bd_metric m_last_step =
    BD_METRIC_GAUGE("braid_worker_last_step", "step", "number of the last step");
static bd_metric m_total =
    BD_METRIC_GAUGE("braid_worker_planned_steps", "steps", "number of the job's last step");
static bd_metric m_loss =
    BD_METRIC_GAUGE("braid_worker_loss", "loss", "mean loss of the last step, all ranks");
static bd_metric m_auc =
    BD_METRIC_GAUGE("braid_worker_eval_auc", "auc", "AUC of the last evaluation");
static bd_metric m_logloss =
    BD_METRIC_GAUGE("braid_worker_eval_logloss", "loss", "log loss of the last evaluation");
static bd_metric m_step_at = BD_METRIC_GAUGE("braid_worker_last_step_timestamp_seconds", "seconds",
                                             "end of the last step, since 1970");
static bd_metric m_checkpoint_at =
    BD_METRIC_GAUGE("braid_worker_last_checkpoint_timestamp_seconds", "seconds",
                    "end of the last checkpoint, since 1970; until the first one, the start");
static bd_metric m_checkpoints_lost =
    BD_METRIC_COUNTER("braid_worker_checkpoints_lost_total", "checkpoints",
                      "given up because a server was started again while it was written");
static bd_metric m_step_s = BD_METRIC_HISTOGRAM("braid_worker_step_seconds", "seconds",
                                                "one training step", seconds_bounds);
/* One histogram for each part of a step. */
static bd_metric m_phases[WK_N_PHASES] = {
#define BD_X(name, key, text)                                                          \
    BD_METRIC_HISTOGRAM("braid_worker_" key "_seconds", "seconds", "of a step: " text, \
                        seconds_bounds),
    WK_PHASE_MAP(BD_X)
#undef BD_X
};

static void register_all(void)
{
    bd_metric *const list[] = {
        &m_world, &m_rank, &m_steps, &m_skipped, &m_samples, &m_sent,          &m_last_step,
        &m_total, &m_loss, &m_auc,   &m_logloss, &m_step_at, &m_checkpoint_at, &m_checkpoints_lost,
        &m_step_s};
    bd_metrics_register(list, sizeof list / sizeof list[0]);
    for (int i = 0; i < WK_N_PHASES; i++) {
        bd_metric *phase = &m_phases[i];
        bd_metrics_register(&phase, 1);
    }
}

static double now_s(void)
{
    return (double)bd_wall_ns() * 1e-9;
}

bd_status wk_page_start(const wk_job *job, wk_page **out, bd_err *err)
{
    const char *listen = job->process.metrics_listen;
    *out = NULL;
    if (listen[0] == '\0') {
        return BD_OK;
    }
    wk_page *p = bd_calloc(1, sizeof *p);
    if (p == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "metrics page");
    }
    register_all();
    bd_metric_set(&m_world, (double)job->process.world);
    bd_metric_set(&m_rank, (double)job->process.rank);
    bd_metric_set(&m_step_at, now_s());
    bd_metric_set(&m_checkpoint_at, now_s());
    bd_metric_set(&m_auc, (double)NAN);
    bd_metric_set(&m_logloss, (double)NAN);
    bd_metric_set(&m_loss, (double)NAN);
    bd_status rc = bd_http_start(listen, NULL, NULL, &p->http, err);
    if (rc != BD_OK) {
        bd_free(p);
        return bd_err_wrap(err, "metrics_listen");
    }
    *out = p;
    return BD_OK;
}

void wk_page_stop(wk_page *p)
{
    if (p != NULL) {
        bd_http_stop(p->http);
        bd_free(p);
    }
}

void wk_page_step(wk_page *p, const wk_trainer *t, const wk_step_result *r, double seconds)
{
    if (p == NULL) {
        return;
    }
    uint64_t sent = ring_bytes_sent(t->ring);
    bd_metric_add(&m_steps, 1);
    bd_metric_add(&m_skipped, t->n_skipped - p->skipped);
    bd_metric_add(&m_samples, t->n_samples - p->samples);
    bd_metric_add(&m_sent, sent - p->sent);
    bd_metric_set(&m_last_step, (double)r->step);
    bd_metric_set(&m_total, (double)t->total_steps);
    bd_metric_set(&m_loss, r->loss);
    bd_metric_set(&m_step_at, now_s());
    bd_metric_observe(&m_step_s, seconds);
    for (int i = 0; i < WK_N_PHASES; i++) {
        bd_metric_observe(&m_phases[i], (double)(t->phase_ns[i] - p->phase_ns[i]) * 1e-9);
        p->phase_ns[i] = t->phase_ns[i];
    }
    p->skipped = t->n_skipped;
    p->samples = t->n_samples;
    p->sent = sent;
}

void wk_page_eval(wk_page *p, const wk_metrics *m)
{
    if (p != NULL) {
        bd_metric_set(&m_auc, m->auc);
        bd_metric_set(&m_logloss, m->logloss);
    }
}

void wk_page_checkpoint(wk_page *p)
{
    if (p != NULL) {
        bd_metric_set(&m_checkpoint_at, now_s());
    }
}

void wk_page_checkpoint_lost(wk_page *p)
{
    if (p != NULL) {
        bd_metric_add(&m_checkpoints_lost, 1);
    }
}
