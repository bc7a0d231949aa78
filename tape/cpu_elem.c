/* Kernels that go element by element. Loops are kept apart per activation and beta, so that each
 * vectorises without a branch inside. */
#include "tape/cpu_int.h"

#include <math.h>
#include <string.h>

static float sigmoid1(float x)
{
    /* exp of a negative number only: no overflow on either side */
    float e = expf(-fabsf(x));
    return x >= 0 ? 1.0f / (1.0f + e) : e / (1.0f + e);
}

/* NaN stays NaN, as in every other op. */
static inline float relu1(float x)
{
    return x < 0 ? 0 : x;
}

TP_SIMD static void bias_relu(float *restrict y, const float *restrict b, size_t n, size_t c)
{
    for (size_t i = 0; i < n; i++) {
        float *restrict row = y + i * c;
        for (size_t j = 0; j < c; j++) {
            row[j] = relu1(row[j] + b[j]);
        }
    }
}

TP_SIMD static void bias_none(float *restrict y, const float *restrict b, size_t n, size_t c)
{
    for (size_t i = 0; i < n; i++) {
        float *restrict row = y + i * c;
        for (size_t j = 0; j < c; j++) {
            row[j] += b[j];
        }
    }
}

TP_SIMD static void relu_inplace(float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = relu1(y[i]);
    }
}

void tp_cpu_bias_act(tp_device *dev, float *y, const float *b, size_t n, size_t c, tp_act act)
{
    (void)dev;
    if (b != NULL && act == TP_ACT_RELU) {
        bias_relu(y, b, n, c);
        return;
    }
    if (b != NULL) {
        bias_none(y, b, n, c);
    }
    if (act == TP_ACT_RELU) {
        relu_inplace(y, n * c);
    }
    for (size_t i = 0; act == TP_ACT_SIGMOID && i < n * c; i++) {
        y[i] = sigmoid1(y[i]);
    }
}

TP_SIMD static void relu_grad_inplace(float *restrict g, const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        g[i] = y[i] > 0 ? g[i] : 0;
    }
}

TP_SIMD static void sigmoid_grad_inplace(float *restrict g, const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        g[i] *= y[i] * (1.0f - y[i]);
    }
}

TP_SIMD static void col_sums(const float *restrict g, float *restrict db, size_t n, size_t c)
{
    for (size_t i = 0; i < n; i++) {
        const float *restrict row = g + i * c;
        for (size_t j = 0; j < c; j++) {
            db[j] += row[j];
        }
    }
}

TP_SIMD static void relu_grad_sums(float *restrict g, const float *restrict y, float *restrict db,
                                   size_t n, size_t c)
{
    for (size_t i = 0; i < n; i++) {
        float *restrict row = g + i * c;
        const float *restrict yrow = y + i * c;
        for (size_t j = 0; j < c; j++) {
            float v = yrow[j] > 0 ? row[j] : 0;
            row[j] = v;
            db[j] += v;
        }
    }
}

void tp_cpu_bias_act_grad(tp_device *dev, float *g, const float *y, float *db, size_t n, size_t c,
                          tp_act act)
{
    (void)dev;
    if (act == TP_ACT_RELU && db != NULL) {
        relu_grad_sums(g, y, db, n, c);
        return;
    }
    if (act == TP_ACT_RELU) {
        relu_grad_inplace(g, y, n * c);
    } else if (act == TP_ACT_SIGMOID) {
        sigmoid_grad_inplace(g, y, n * c);
    }
    if (db != NULL) {
        col_sums(g, db, n, c);
    }
}

TP_SIMD static void relu_copy(const float *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = relu1(x[i]);
    }
}

void tp_cpu_act(tp_device *dev, const float *x, float *y, size_t n, tp_act act)
{
    (void)dev;
    if (act == TP_ACT_RELU) {
        relu_copy(x, y, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        y[i] = act == TP_ACT_SIGMOID ? sigmoid1(x[i]) : x[i];
    }
}

TP_SIMD void tp_cpu_act_grad(tp_device *dev, const float *dy, const float *y, float *dx, float beta,
                             size_t n, tp_act act)
{
    (void)dev;
    for (size_t i = 0; i < n; i++) {
        float slope = act == TP_ACT_RELU ? (float)(y[i] > 0) : y[i] * (1.0f - y[i]);
        slope = act == TP_ACT_NONE ? 1.0f : slope;
        float old = beta == 0 ? 0 : dx[i];
        dx[i] = old + dy[i] * slope;
    }
}

TP_SIMD static void axpy(float factor, const float *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] += factor * x[i];
    }
}

TP_SIMD static void scale_copy(float factor, const float *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = factor * x[i];
    }
}

void tp_cpu_axpby(tp_device *dev, float factor, const float *x, float beta, float *y, size_t n)
{
    (void)dev;
    if (beta != 0) {
        axpy(factor, x, y, n);
    } else {
        scale_copy(factor, x, y, n);
    }
}

TP_SIMD static void mul_add(const float *a, const float *b, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] += a[i] * b[i];
    }
}

TP_SIMD static void mul_copy(const float *a, const float *b, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = a[i] * b[i];
    }
}

void tp_cpu_mul(tp_device *dev, const float *a, const float *b, float beta, float *y, size_t n)
{
    (void)dev;
    if (beta != 0) {
        mul_add(a, b, y, n);
    } else {
        mul_copy(a, b, y, n);
    }
}

TP_SIMD void tp_cpu_fill(tp_device *dev, float value, float beta, float *y, size_t n)
{
    (void)dev;
    for (size_t i = 0; i < n; i++) {
        float old = beta == 0 ? 0 : y[i];
        y[i] = old + value;
    }
}

void tp_cpu_fill_from(tp_device *dev, const float *scalar, float factor, float beta, float *y,
                      size_t n)
{
    tp_cpu_fill(dev, factor * scalar[0], beta, y, n);
}

void tp_cpu_sum(tp_device *dev, const float *x, size_t n, float factor, float *out)
{
    (void)dev;
    double total = 0;
    for (size_t i = 0; i < n; i++) {
        total += (double)x[i];
    }
    out[0] = (float)(total * (double)factor);
}

TP_SIMD static void add_rows(const float *restrict src, size_t lds, float *restrict dst, size_t ldd,
                             size_t n, size_t c)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < c; j++) {
            dst[i * ldd + j] += src[i * lds + j];
        }
    }
}

void tp_cpu_copy2d(tp_device *dev, const float *src, size_t lds, float beta, float *dst, size_t ldd,
                   size_t n, size_t c)
{
    (void)dev;
    if (beta != 0) {
        add_rows(src, lds, dst, ldd, n, c);
        return;
    }
    for (size_t i = 0; i < n && c > 0; i++) {
        memcpy(dst + i * ldd, src + i * lds, c * sizeof(float));
    }
}

TP_SIMD void tp_cpu_cross(tp_device *dev, const float *x0, const float *z, const float *x, float *y,
                          size_t n)
{
    (void)dev;
    for (size_t i = 0; i < n; i++) {
        y[i] = x0[i] * z[i] + x[i];
    }
}
