/* Batch norm. Statistics are summed in double, in sample order. */
#include "tape/cpu_int.h"

#include <math.h>
#include <string.h>

static inline void set_running(const tp_bn_args *a, float *running, size_t j, double value)
{
    running[j] = (1.0f - a->momentum) * running[j] + a->momentum * (float)value;
}

TP_SIMD void tp_cpu_bn_stats(tp_device *dev, const tp_bn_args *a, const float *x,
                             float *running_mean, float *running_var, float *mean, float *inv_std)
{
    (void)dev;
    double *sum = a->work, *squares = a->work + a->c;
    double n = a->n > 0 ? (double)a->n : 1.0;
    memset(sum, 0, 2 * a->c * sizeof(double));
    for (size_t i = 0; i < a->n; i++) {
        for (size_t j = 0; j < a->c; j++) {
            sum[j] += (double)x[i * a->c + j];
        }
    }
    for (size_t i = 0; i < a->n; i++) {
        for (size_t j = 0; j < a->c; j++) {
            double dev_j = (double)x[i * a->c + j] - sum[j] / n;
            squares[j] += dev_j * dev_j;
        }
    }
    for (size_t j = 0; j < a->c; j++) {
        mean[j] = (float)(sum[j] / n);
        inv_std[j] = (float)(1.0 / sqrt(squares[j] / n + (double)a->eps));
        if (a->n >= 2) {
            set_running(a, running_mean, j, sum[j] / n);
            set_running(a, running_var, j, squares[j] / (n - 1));
        }
    }
}

void tp_cpu_bn_eval_stats(tp_device *dev, const tp_bn_args *a, const float *running_mean,
                          const float *running_var, float *mean, float *inv_std)
{
    (void)dev;
    for (size_t j = 0; j < a->c; j++) {
        mean[j] = running_mean[j];
        inv_std[j] = (float)(1.0 / sqrt((double)running_var[j] + (double)a->eps));
    }
}

TP_SIMD void tp_cpu_bn_apply(tp_device *dev, const tp_bn_args *a, const float *x, const float *mean,
                             const float *inv_std, const float *gamma, const float *beta, float *y)
{
    (void)dev;
    for (size_t i = 0; i < a->n; i++) {
        for (size_t j = 0; j < a->c; j++) {
            float hat = (x[i * a->c + j] - mean[j]) * inv_std[j];
            y[i * a->c + j] = hat * gamma[j] + beta[j];
        }
    }
}

static inline double hat_at(const tp_bn_grad_args *g, size_t c, size_t i, size_t j)
{
    return (double)((g->x[i * c + j] - g->mean[j]) * g->inv_std[j]);
}

/* sums[j] = sum of dy, sums[c + j] = sum of dy * x_hat, over samples. */
TP_SIMD static void grad_sums(const tp_bn_args *a, const tp_bn_grad_args *g, double *sums)
{
    size_t c = a->c;
    memset(sums, 0, 2 * c * sizeof(double));
    for (size_t i = 0; i < a->n; i++) {
        for (size_t j = 0; j < c; j++) {
            double dy = (double)g->dy[i * c + j];
            sums[j] += dy;
            sums[c + j] += dy * hat_at(g, c, i, j);
        }
    }
}

static void add_vector(float *out, const double *sums, size_t c)
{
    for (size_t j = 0; out != NULL && j < c; j++) {
        out[j] += (float)sums[j];
    }
}

/* With x_hat = (x - mean) * inv_std, through the statistics:
 * dx = gamma * inv_std * (dy - mean(dy) - x_hat * mean(dy * x_hat)). */
TP_SIMD void tp_cpu_bn_grad(tp_device *dev, const tp_bn_args *a, const tp_bn_grad_args *g)
{
    (void)dev;
    size_t c = a->c;
    double n = a->n > 0 ? (double)a->n : 1.0;
    grad_sums(a, g, a->work);
    add_vector(g->dbeta, a->work, c);
    add_vector(g->dgamma, a->work + c, c);
    for (size_t i = 0; g->dx != NULL && i < a->n; i++) {
        for (size_t j = 0; j < c; j++) {
            double pull = a->work[j] + hat_at(g, c, i, j) * a->work[c + j];
            double dy = (double)g->dy[i * c + j] - (g->through_stats ? pull / n : 0);
            double dx = (double)g->gamma[j] * (double)g->inv_std[j] * dy;
            g->dx[i * c + j] = (g->dx_beta == 0 ? 0 : g->dx[i * c + j]) + (float)dx;
        }
    }
}
