/* DDP's log record (DDPLoggingData), and the times of a step. */
#include "base/rand.h"

#include "ring/ring_reducer_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALWAYS_SAMPLED 10

enum { FORWARD, BACKWARD, COMM, OVERLAP };

void ring_reducer_set_log_rate(ring_reducer *r, int64_t n)
{
    r->stats.rate = n >= 1 ? n : 1;
}

bool ring_reducer_log_due(ring_reducer *r)
{
    static const int64_t counts[] = {10, 20, 50, 100, 500, 800, 1000};
    ring_reducer_stats *s = &r->stats;
    if (s->n_emitted == sizeof counts / sizeof counts[0] || s->n_sampled < counts[s->n_emitted]) {
        return false;
    }
    s->n_emitted++;
    return true;
}

const ring_step_times *ring_reducer_times(const ring_reducer *r)
{
    return &r->times;
}

const ring_piece_times *ring_reducer_piece_times(const ring_reducer *r, size_t *n_pieces)
{
    *n_pieces = r->n_piece_times;
    return r->piece_times;
}

static size_t param_bytes(const ring_param *p)
{
    return p->n_elems * num_dtype_bytes((int)p->dtype);
}

void ring_reducer_log_step(ring_reducer *r)
{
    ring_reducer_stats *s = &r->stats;
    const ring_step_times *t = &r->times;
    uint64_t hash = bd_hash64(r->is_used_global, r->n_params * sizeof *r->is_used_global, 0);
    s->used_changed = s->used_changed || (s->n_steps > 0 && hash != s->used_hash);
    s->used_hash = hash;
    s->unused_bytes = 0;
    for (size_t i = 0; i < r->n_params; i++) {
        s->unused_bytes += r->is_used_global[i] ? 0 : param_bytes(&r->params[i]);
    }
    s->n_steps++;
    if (s->n_steps > ALWAYS_SAMPLED && s->n_steps % s->rate != 0) {
        return;
    }
    int64_t comm_end = t->last_done_ns < t->finish_ns ? t->last_done_ns : t->finish_ns;
    bool has_overlap = t->first_launch_ns != 0 && comm_end > t->first_launch_ns;
    s->last[FORWARD] = t->forward_ns != 0 ? t->backward_ns - t->forward_ns : 0;
    s->last[BACKWARD] = t->finish_ns - t->backward_ns;
    s->last[COMM] = r->comm_ns;
    s->last[OVERLAP] = has_overlap ? comm_end - t->first_launch_ns : 0;
    s->forward_ns += (double)s->last[FORWARD];
    s->backward_ns += (double)s->last[BACKWARD];
    s->comm_ns += (double)s->last[COMM];
    s->overlap_ns += (double)s->last[OVERLAP];
    s->n_sampled++;
}

/* ---- the record ---- */

static void put_sizes(bd_json *j, const char *key, const size_t *sizes, size_t n)
{
    bd_json_key(j, key);
    bd_json_arr(j);
    for (size_t i = 0; i < n; i++) {
        bd_json_u64(j, sizes[i]);
    }
    bd_json_arr_end(j);
}

static void put_limits(bd_json *j, const char *key, const ring_reducer *r)
{
    const size_t limits[] = {r->opt.first_bucket_bytes, r->opt.bucket_bytes};
    put_sizes(j, key, limits, 2);
}

static void put_dtypes(bd_json *j, const ring_reducer *r)
{
    bd_json_key(j, "dtypes");
    bd_json_arr(j);
    for (size_t i = 0; i < r->n_params; i++) {
        bool seen = false;
        for (size_t k = 0; k < i; k++) {
            seen = seen || r->params[k].dtype == r->params[i].dtype;
        }
        if (!seen) {
            bd_json_str(j, num_dtype_name((int)r->params[i].dtype));
        }
    }
    bd_json_arr_end(j);
}

/* What steers transport and threads from outside; unset ones are null. */
static void put_env(bd_json *j)
{
    static const char *const names[] = {
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCH_DISTRIBUTED_DEBUG",
        "CUDA_VISIBLE_DEVICES",
        "NCCL_SOCKET_IFNAME",
        "NCCL_NTHREADS",
        "NCCL_DEBUG",
        "NCCL_IB_TIMEOUT",
        "GLOO_SOCKET_IFNAME",
        "GLOO_DEVICE_TRANSPORT",
        "BRAID_SIMD",
        "OPENBLAS_NUM_THREADS",
    };
    bd_json_key(j, "env");
    bd_json_obj(j);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *v = getenv(names[i]); // NOLINT(concurrency-mt-unsafe): nobody calls setenv
        bd_json_put_str(j, names[i], v);
    }
    bd_json_obj_end(j);
}

static void put_construction(bd_json *j, const ring_reducer *r)
{
    size_t total = 0;
    for (size_t i = 0; i < r->n_params; i++) {
        total += param_bytes(&r->params[i]);
    }
    bd_json_put_str(j, "module_name", r->opt.name);
    bd_json_put_i64(j, "world_size", ring_world(r->comm));
    bd_json_put_i64(j, "rank", ring_rank(r->comm));
    bd_json_put_bool(j, "is_multi_device_module", false);
    bd_json_put_u64(j, "num_parameter_tensors", r->n_params);
    bd_json_put_u64(j, "total_parameter_size_bytes", total);
    put_dtypes(j, r);
    put_sizes(j, "bucket_sizes", r->stats.initial_bytes, r->stats.n_initial);
    put_limits(j, "initial_bucket_size_limits", r);
    bd_json_key(j, "device_ids"); /* one device per rank, which the tape owns */
    bd_json_arr(j);
    bd_json_arr_end(j);
    bd_json_key(j, "output_device");
    bd_json_null(j);
    bd_json_put_bool(j, "broadcast_buffers", r->n_buffers > 0);
    bd_json_put_bool(j, "has_sync_bn", false);
    bd_json_put_u64(j, "bucket_cap_bytes", r->opt.bucket_bytes);
    bd_json_put_bool(j, "find_unused_parameters", r->opt.find_unused);
    bd_json_put_bool(j, "gradient_as_bucket_view", r->opt.bind != NULL);
    bd_json_put_str(j, "backend_name", r->opt.backend);
    bd_json_put_bool(j, "static_graph", r->opt.static_graph);
    bd_json_put_bool(j, "deterministic", r->opt.deterministic);
    bd_json_put_str(j, "comm_hook", r->hook.name != NULL ? r->hook.name : r->opt.compress);
    bd_json_put_bool(j, "join_uneven_inputs", r->stats.has_join);
    bd_json_put_i64(j, "transport_threads", ring_world(r->comm) > 1 ? 1 : 0);
    put_env(j);
}

static void put_rebuilt(bd_json *j, const ring_reducer *r)
{
    bd_json_put_bool(j, "has_rebuilt_buckets", r->has_rebuilt);
    bd_json_key(j, "rebuilt_bucket_sizes");
    bd_json_arr(j);
    for (size_t b = 0; r->has_rebuilt && b < r->plan.n_buckets; b++) {
        const ring_bucket *k = &r->buckets[b];
        bd_json_u64(j, k->n_elems * num_dtype_bytes((int)k->dtype));
    }
    bd_json_arr_end(j);
    put_limits(j, "rebuilt_bucket_size_limits", r);
    bd_json_key(j, "rebuilt_per_bucket_param_indices");
    bd_json_arr(j);
    for (size_t b = 0; r->has_rebuilt && b < r->plan.n_buckets; b++) {
        bd_json_arr(j);
        for (size_t k = r->plan.starts[b]; k < r->plan.starts[b + 1]; k++) {
            bd_json_u64(j, r->plan.params[k]);
        }
        bd_json_arr_end(j);
    }
    bd_json_arr_end(j);
}

static void put_times(bd_json *j, const ring_reducer *r)
{
    const ring_reducer_stats *s = &r->stats;
    const ring_step_times *t = &r->times;
    double n = s->n_sampled > 0 ? (double)s->n_sampled : 1;
    bd_json_put_i64(j, "forward_compute_time_ns", s->last[FORWARD]);
    bd_json_put_i64(j, "backward_compute_time_ns", s->last[BACKWARD]);
    bd_json_put_i64(j, "backward_comm_time_ns", s->last[COMM]);
    bd_json_put_i64(j, "backward_compute_comm_overlap_time_ns", s->last[OVERLAP]);
    bd_json_put_f64(j, "avg_forward_compute_time_ns", s->forward_ns / n);
    bd_json_put_f64(j, "avg_backward_compute_time_ns", s->backward_ns / n);
    bd_json_put_f64(j, "avg_backward_comm_time_ns", s->comm_ns / n);
    bd_json_put_f64(j, "avg_backward_compute_comm_overlap_time_ns", s->overlap_ns / n);
    bd_json_put_i64(j, "forward_compute_time_start_ns", t->forward_ns);
    bd_json_put_i64(j, "backward_compute_time_start_ns", t->backward_ns);
    bd_json_put_i64(j, "backward_compute_time_end_ns", t->finish_ns);
    bd_json_put_i64(j, "backward_comm_time_start_ns", t->first_launch_ns);
    bd_json_put_i64(j, "backward_comm_time_end_ns", t->last_done_ns);
}

void ring_reducer_log(const ring_reducer *r, bd_json *j)
{
    const ring_reducer_stats *s = &r->stats;
    bd_json_obj(j);
    put_construction(j, r);
    bd_json_put_i64(j, "iteration", s->n_steps);
    bd_json_put_i64(j, "sampled_iterations", s->n_sampled);
    bd_json_put_u64(j, "unused_parameter_size_bytes", s->unused_bytes);
    put_rebuilt(j, r);
    put_sizes(j, "prev_iteration_grad_ready_order_indices", r->ready_order, r->n_ready_order);
    put_times(j, r);
    bd_json_put_bool(j, "can_set_static_graph", s->n_steps > 0 && !s->used_changed);
    bd_json_put_u64(j, "bytes_sent", ring_bytes_sent(r->comm));
    bd_json_put_str(j, "error", s->error.code != BD_OK ? bd_err_text(&s->error) : NULL);
    bd_json_obj_end(j);
}
