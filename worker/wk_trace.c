#include "worker/wk_trace.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include "ring/ring_reducer_log.h"
#include "worker/wk_file.h"

#include <stdio.h>
#include <string.h>

enum { ROW_TRAINING, ROW_BUCKETS, ROW_WAITS };

struct wk_trace {
    char *run_dir; /* owned */
    int rank;
    int64_t n_left; /* steps still to record */
    bd_json j;
    bool is_written;
};

static void name_row(wk_trace *t, const char *what, int tid, const char *name)
{
    bd_json_obj(&t->j);
    bd_json_put_str(&t->j, "name", what);
    bd_json_put_str(&t->j, "ph", "M");
    bd_json_put_i64(&t->j, "pid", t->rank);
    bd_json_put_i64(&t->j, "tid", tid);
    bd_json_key(&t->j, "args");
    bd_json_obj(&t->j);
    bd_json_put_str(&t->j, "name", name);
    bd_json_obj_end(&t->j);
    bd_json_obj_end(&t->j);
}

bd_status wk_trace_new(const char *run_dir, int rank, int64_t n_steps, wk_trace **out, bd_err *err)
{
    char name[32];
    *out = NULL;
    if (n_steps == 0) {
        return BD_OK;
    }
    wk_trace *t = bd_calloc(1, sizeof *t);
    char *dir = bd_strdup(run_dir);
    if (t == NULL || dir == NULL) {
        bd_free(t);
        bd_free(dir);
        return bd_err_set(err, BD_E_NOMEM, "trace");
    }
    t->run_dir = dir;
    t->rank = rank;
    t->n_left = n_steps;
    bd_json_init(&t->j);
    bd_json_obj(&t->j);
    bd_json_put_str(&t->j, "displayTimeUnit", "ms");
    bd_json_key(&t->j, "otherData");
    bd_json_obj(&t->j);
    bd_json_put_i64(&t->j, "wall_minus_mono_ns", bd_wall_ns() - bd_mono_ns());
    bd_json_obj_end(&t->j);
    bd_json_key(&t->j, "traceEvents");
    bd_json_arr(&t->j);
    (void)snprintf(name, sizeof name, "rank %d", rank);
    name_row(t, "process_name", ROW_TRAINING, name);
    name_row(t, "thread_name", ROW_TRAINING, "training");
    name_row(t, "thread_name", ROW_BUCKETS, "buckets");
    name_row(t, "thread_name", ROW_WAITS, "waits");
    *out = t;
    return BD_OK;
}

static void write_file(wk_trace *t)
{
    bd_err err = BD_ERR_INIT;
    bd_status rc = BD_E_NOMEM;
    t->is_written = true;
    bd_json_arr_end(&t->j);
    bd_json_obj_end(&t->j);
    const char *text = bd_json_text(&t->j);
    char *path = bd_strfmt("%s/trace-rank%d.json", t->run_dir, t->rank);
    if (path != NULL && text != NULL) {
        rc = wk_make_dirs(t->run_dir, &err);
        rc = rc == BD_OK ? wk_write_bytes(path, text, strlen(text), &err) : rc;
    }
    if (rc != BD_OK) {
        BD_LOG(WARN, "the timeline was not written; `trace: 0` does without", "why",
               bd_err_text(&err));
    }
    bd_free(path);
    bd_json_deinit(&t->j);
}

void wk_trace_free(wk_trace *t)
{
    if (t == NULL) {
        return;
    }
    if (!t->is_written) {
        write_file(t);
    }
    bd_free(t->run_dir);
    bd_free(t);
}

static void begin_event(wk_trace *t, const char *name, int row, int64_t start_ns, int64_t end_ns)
{
    bd_json_obj(&t->j);
    bd_json_put_str(&t->j, "name", name);
    bd_json_put_str(&t->j, "ph", "X");
    bd_json_put_f64(&t->j, "ts", (double)start_ns * 1e-3);
    bd_json_put_f64(&t->j, "dur", (double)(end_ns - start_ns) * 1e-3);
    bd_json_put_i64(&t->j, "pid", t->rank);
    bd_json_put_i64(&t->j, "tid", row);
}

void wk_trace_phase(wk_trace *t, const char *name, int64_t start_ns, int64_t end_ns)
{
    if (t == NULL || t->n_left == 0) {
        return;
    }
    begin_event(t, name, ROW_TRAINING, start_ns, end_ns);
    bd_json_obj_end(&t->j);
}

static void piece_event(wk_trace *t, const ring_piece_times *b, uint64_t step, bool wait)
{
    char name[40];
    int64_t start = wait ? b->wait_start_ns : b->launch_ns;
    int64_t end = wait ? b->wait_end_ns : b->done_ns;
    (void)snprintf(name, sizeof name, "%s %zu", wait ? "wait" : "bucket", b->bucket);
    begin_event(t, name, wait ? ROW_WAITS : ROW_BUCKETS, start, end);
    bd_json_key(&t->j, "args");
    bd_json_obj(&t->j);
    bd_json_put_u64(&t->j, "step", step);
    bd_json_put_u64(&t->j, "piece", b->piece);
    bd_json_put_u64(&t->j, "bytes", b->n_bytes);
    bd_json_obj_end(&t->j);
    bd_json_obj_end(&t->j);
}

void wk_trace_step(wk_trace *t, uint64_t step, const ring_reducer *r)
{
    size_t n = 0;
    if (t == NULL || t->n_left == 0) {
        return;
    }
    const ring_piece_times *b = ring_reducer_piece_times(r, &n);
    for (size_t i = 0; i < n; i++) {
        if (b[i].launch_ns != 0) { /* one that nobody uses is never launched */
            piece_event(t, &b[i], step, false);
            piece_event(t, &b[i], step, true);
        }
    }
    if (--t->n_left == 0) {
        write_file(t);
    }
}
