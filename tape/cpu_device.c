#include "base/mem.h"

#include "tape/cpu_int.h"

#include <string.h>

static void *cpu_alloc(tp_device *dev, size_t n_bytes)
{
    (void)dev;
    return bd_alloc_aligned(BD_CACHE_LINE_BYTES, n_bytes);
}

static void cpu_free(tp_device *dev, void *p)
{
    (void)dev;
    bd_free(p);
}

static void cpu_copy(tp_device *dev, void *dst, const void *src, size_t n_bytes)
{
    (void)dev;
    if (n_bytes > 0) {
        memcpy(dst, src, n_bytes);
    }
}

static void cpu_zero(tp_device *dev, void *dst, size_t n_bytes)
{
    (void)dev;
    if (n_bytes > 0) {
        memset(dst, 0, n_bytes);
    }
}

static bd_status cpu_wait(tp_device *dev, bd_err *err)
{
    (void)dev;
    (void)err;
    return BD_OK;
}

static tp_event cpu_record(tp_device *dev)
{
    (void)dev;
    return (tp_event){0};
}

static bool cpu_event_done(tp_device *dev, tp_event ev)
{
    (void)dev;
    (void)ev;
    return true;
}

static bd_status cpu_host_view(tp_device *dev, const void *p, size_t n_bytes, const void **host,
                               bd_err *err)
{
    (void)dev;
    (void)n_bytes;
    (void)err;
    *host = p;
    return BD_OK;
}

static void cpu_destroy(tp_device *dev)
{
    bd_free(dev);
}

static const tp_ops cpu_ops = {
    .name = "cpu",
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .wait = cpu_wait,
    .record = cpu_record,
    .event_done = cpu_event_done,
    .host_view = cpu_host_view,
    .destroy = cpu_destroy,
    .gemm = tp_cpu_gemm,
    .bias_act = tp_cpu_bias_act,
    .bias_act_grad = tp_cpu_bias_act_grad,
    .act = tp_cpu_act,
    .act_grad = tp_cpu_act_grad,
    .axpby = tp_cpu_axpby,
    .mul = tp_cpu_mul,
    .fill = tp_cpu_fill,
    .fill_from = tp_cpu_fill_from,
    .sum = tp_cpu_sum,
    .copy2d = tp_cpu_copy2d,
    .cross = tp_cpu_cross,
    .dot_interact = tp_cpu_dot_interact,
    .dot_interact_grad = tp_cpu_dot_interact_grad,
    .fm2 = tp_cpu_fm2,
    .fm2_grad = tp_cpu_fm2_grad,
    .dropout = tp_cpu_dropout,
    .bn_stats = tp_cpu_bn_stats,
    .bn_eval_stats = tp_cpu_bn_eval_stats,
    .bn_apply = tp_cpu_bn_apply,
    .bn_grad = tp_cpu_bn_grad,
    .bag = tp_cpu_bag,
    .bag_grad = tp_cpu_bag_grad,
    .bce = tp_cpu_bce,
    .mse = tp_cpu_mse,
    .loss_grad = tp_cpu_loss_grad,
};

bd_status tp_device_new_cpu(int n_threads, tp_device **out, bd_err *err)
{
    if (n_threads < 1) {
        return bd_err_set(err, BD_E_INVALID, "cpu device: %d threads", n_threads);
    }
    tp_device *dev = bd_calloc(1, sizeof(*dev));
    if (dev == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "cpu device: out of memory");
    }
    dev->ops = &cpu_ops;
    dev->n_threads = n_threads;
    tp_cpu_blas_threads(n_threads);
    *out = dev;
    return BD_OK;
}
