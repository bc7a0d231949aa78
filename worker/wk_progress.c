/* Progress for people and for programs. */
#include "worker/wk_progress.h"

#include "base/clock.h"
#include "base/json.h"

#include "worker/wk_file.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

enum { BAR_WIDTH = 30 };

bd_status wk_progress_init(wk_progress *p, const wk_job *job, FILE *out, bool quiet, bd_err *err)
{
    bool on = !quiet && strcmp(job->progress, "none") != 0;
    memset(p, 0, sizeof *p);
    p->out = on ? out : NULL;
    p->bar = p->out != NULL && (strcmp(job->progress, "bar") == 0 ||
                                (strcmp(job->progress, "auto") == 0 && isatty(fileno(out)) == 1));
    p->log_every = job->train.log_every;
    if (quiet) {
        return BD_OK;
    }
    bd_status rc = wk_make_dirs(job->run_dir, err);
    if (rc != BD_OK) {
        return rc;
    }
    p->metrics = fopen(job->metrics_file, "ae");
    return p->metrics != NULL
               ? BD_OK
               : bd_err_errno(err, BD_E_IO, errno, "metrics_file: open %s", job->metrics_file);
}

void wk_progress_deinit(wk_progress *p)
{
    if (p->drawn) {
        (void)fputc('\n', p->out);
    }
    if (p->metrics != NULL) {
        (void)fclose(p->metrics);
    }
    memset(p, 0, sizeof *p);
}

void wk_progress_say(wk_progress *p, const char *fmt, ...)
{
    va_list ap;
    if (p->out == NULL) {
        return;
    }
    if (p->drawn) {
        (void)fputs("\r\033[K", p->out);
        p->drawn = false;
    }
    va_start(ap, fmt);
    (void)vfprintf(p->out, fmt, ap);
    va_end(ap);
    (void)fputc('\n', p->out);
    (void)fflush(p->out);
}

static void begin_line(bd_json *j, const char *type, uint64_t step, uint64_t epoch)
{
    bd_json_init(j);
    bd_json_obj(j);
    bd_json_put_str(j, "type", type);
    bd_json_put_f64(j, "time", round((double)bd_wall_ns() * 1e-6) * 1e-3);
    bd_json_put_u64(j, "step", step);
    bd_json_put_u64(j, "epoch", epoch + 1);
}

static void end_line(wk_progress *p, bd_json *j)
{
    bd_json_obj_end(j);
    if (p->metrics != NULL && bd_json_text(j) != NULL) {
        (void)fprintf(p->metrics, "%s\n", bd_json_text(j));
        (void)fflush(p->metrics); /* a reader may follow the file */
    }
    bd_json_deinit(j);
}

void wk_progress_start(wk_progress *p, const wk_trainer *t)
{
    p->start_ns = p->last_ns = bd_mono_ns();
    p->total_steps = t->total_steps;
    p->steps_per_epoch = t->steps_per_epoch;
    p->last_samples = t->n_samples;
}

static void draw_bar(wk_progress *p, const wk_trainer *t, const wk_step_result *r)
{
    char bar[BAR_WIDTH + 1];
    int64_t now = bd_mono_ns();
    double done = (double)r->step / (double)p->total_steps;
    double seconds = (double)(now - p->start_ns) * 1e-9;
    int full = (int)(done * BAR_WIDTH);
    for (int i = 0; i < BAR_WIDTH; i++) {
        bar[i] = i < full ? '#' : '.';
    }
    bar[BAR_WIDTH] = '\0';
    (void)fprintf(p->out, "\r\033[K[%s] step %llu/%llu epoch %llu  loss %.4f  %.0f samples/s", bar,
                  (unsigned long long)r->step, (unsigned long long)p->total_steps,
                  (unsigned long long)r->epoch + 1, r->loss,
                  (double)t->n_samples / (seconds > 0 ? seconds : 1));
    (void)fflush(p->out);
    p->drawn = true;
}

static void log_train(wk_progress *p, const wk_trainer *t, const wk_step_result *r)
{
    bd_json j;
    int64_t now = bd_mono_ns();
    double seconds = (double)(now - p->last_ns) * 1e-9;
    double rate = (double)(t->n_samples - p->last_samples) / (seconds > 0 ? seconds : 1);
    double loss = p->loss_n > 0 ? p->loss_sum / (double)p->loss_n : (double)NAN;
    begin_line(&j, "train", r->step, r->epoch);
    bd_json_put_f64(&j, "loss", loss);
    bd_json_put_f64(&j, "lr_factor", r->lr_factor);
    bd_json_put_f64(&j, "samples_per_s", rate);
    bd_json_put_u64(&j, "skipped", t->n_skipped);
    for (int i = 0; i < WK_N_PHASES; i++) {
        char key[32];
        (void)snprintf(key, sizeof key, "%s_ms", wk_phase_name(i));
        bd_json_put_f64(&j, key,
                        round((double)(t->phase_ns[i] - p->last_phase_ns[i]) * 1e-3) * 1e-3);
    }
    end_line(p, &j);
    if (!p->bar) {
        wk_progress_say(p, "step %llu/%llu  epoch %llu  loss %.5f  lr x%.3g  %.0f samples/s",
                        (unsigned long long)r->step, (unsigned long long)p->total_steps,
                        (unsigned long long)r->epoch + 1, loss, r->lr_factor, rate);
    }
    memcpy(p->last_phase_ns, t->phase_ns, sizeof p->last_phase_ns);
    p->last_ns = now;
    p->last_samples = t->n_samples;
    p->loss_sum = 0;
    p->loss_n = 0;
}

void wk_progress_step(wk_progress *p, const wk_trainer *t, const wk_step_result *r)
{
    if (p->metrics == NULL && p->out == NULL) {
        return;
    }
    if (r->committed) {
        p->loss_sum += r->loss * (double)r->n;
        p->loss_n += r->n;
    }
    bool last = r->step == p->total_steps;
    if (r->step % (uint64_t)p->log_every == 0 || last) {
        log_train(p, t, r);
    }
    if (p->bar && (last || r->step % 16 == 0)) {
        draw_bar(p, t, r);
    }
}

void wk_progress_eval(wk_progress *p, uint64_t step, uint64_t epoch, const wk_metrics *m)
{
    bd_json j;
    if (p->metrics == NULL && p->out == NULL) {
        return;
    }
    begin_line(&j, "eval", step, epoch);
    bd_json_put_u64(&j, "rows", m->n);
    bd_json_put_f64(&j, "auc", m->auc);
    bd_json_put_f64(&j, "logloss", m->logloss);
    bd_json_put_f64(&j, "accuracy", m->accuracy);
    bd_json_put_f64(&j, "rmse", m->rmse);
    bd_json_put_f64(&j, "norm_entropy", m->norm_entropy);
    bd_json_put_f64(&j, "calibration", m->calibration);
    end_line(p, &j);
    if (isnan(m->auc)) {
        wk_progress_say(p, "eval  step %llu  epoch %llu  rmse %.5f", (unsigned long long)step,
                        (unsigned long long)epoch + 1, m->rmse);
    } else {
        wk_progress_say(p, "eval  step %llu  epoch %llu  auc %.5f  logloss %.5f  accuracy %.4f",
                        (unsigned long long)step, (unsigned long long)epoch + 1, m->auc, m->logloss,
                        m->accuracy);
    }
}

void wk_progress_checkpoint(wk_progress *p, uint64_t step, uint64_t epoch, const char *name)
{
    bd_json j;
    if (p->metrics == NULL && p->out == NULL) {
        return;
    }
    begin_line(&j, "checkpoint", step, epoch);
    bd_json_put_str(&j, "name", name);
    end_line(p, &j);
    wk_progress_say(p, "checkpoint %s", name);
}

void wk_progress_end(wk_progress *p, const wk_trainer *t, uint64_t n_steps, double seconds)
{
    double steps = n_steps > 0 ? (double)n_steps : 1, booked = 0;
    static const char *const texts[] = {
#define BD_X(name, key, text) text,
        WK_PHASE_MAP(BD_X)
#undef BD_X
    };
    wk_progress_say(p, "time per step   ms       share  (%llu steps)", (unsigned long long)n_steps);
    for (int i = 0; i < WK_N_PHASES; i++) {
        double s = (double)t->phase_ns[i] * 1e-9;
        booked += s;
        wk_progress_say(p, "%-14s %7.3f  %5.1f %%  %s", wk_phase_name(i), s * 1e3 / steps,
                        100 * s / (seconds > 0 ? seconds : 1), texts[i]);
    }
    wk_progress_say(p, "%-14s %7.3f  %5.1f %%", "other", (seconds - booked) * 1e3 / steps,
                    100 * (seconds - booked) / (seconds > 0 ? seconds : 1));
    wk_progress_say(p, "%-14s %7.3f", "all", seconds * 1e3 / steps);
}
