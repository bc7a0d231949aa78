#include "tape/cpu_int.h"

#include <math.h>

void tp_cpu_bce(tp_device *dev, const float *x, const float *target, size_t n, float factor,
                float *dx_unit, float *loss, double *loss_sum)
{
    (void)dev;
    double total = 0;
    for (size_t i = 0; i < n; i++) {
        double v = (double)x[i], t = (double)target[i];
        double e = exp(-fabs(v)); /* <= 1: nothing overflows */
        double p = v >= 0 ? 1.0 / (1.0 + e) : e / (1.0 + e);
        total += (v > 0 ? v : 0) - v * t + log1p(e);
        if (dx_unit != NULL) {
            dx_unit[i] = (float)(p - t);
        }
    }
    *loss_sum = total;
    *loss = (float)(total * (double)factor);
}

void tp_cpu_mse(tp_device *dev, const float *x, const float *target, size_t n, float factor,
                float *dx_unit, float *loss, double *loss_sum)
{
    (void)dev;
    double total = 0;
    for (size_t i = 0; i < n; i++) {
        double diff = (double)x[i] - (double)target[i];
        total += diff * diff;
        if (dx_unit != NULL) {
            dx_unit[i] = (float)(2 * diff);
        }
    }
    *loss_sum = total;
    *loss = (float)(total * (double)factor);
}

TP_SIMD void tp_cpu_loss_grad(tp_device *dev, const float *unit, const float *scalar, float factor,
                              float beta, float *dx, size_t n)
{
    (void)dev;
    float f = factor * scalar[0];
    for (size_t i = 0; i < n; i++) {
        float old = beta == 0 ? 0 : dx[i];
        dx[i] = old + unit[i] * f;
    }
}
