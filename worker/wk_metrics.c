/* Metrics over gathered scores. */
#include "worker/wk_metrics.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bits whose unsigned order is the order of the floats, -0 and +0 alike. */
static uint32_t ordered_bits(float x)
{
    uint32_t u;
    float y = x == 0.0f ? 0.0f : x;
    memcpy(&u, &y, sizeof u);
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* keys: ordered score << 1 | positive, sorted. Pairs in order, counted twice to keep ties whole. */
static double auc_of_sorted(const uint64_t *keys, size_t n)
{
    double twice = 0;
    uint64_t neg_below = 0, n_pos = 0;
    for (size_t i = 0; i < n;) {
        uint64_t pos = 0, neg = 0, score = keys[i] >> 1;
        for (; i < n && keys[i] >> 1 == score; i++) {
            pos += keys[i] & 1;
            neg += 1 - (keys[i] & 1);
        }
        twice += (double)pos * (2.0 * (double)neg_below + (double)neg);
        neg_below += neg;
        n_pos += pos;
    }
    if (n_pos == 0 || neg_below == 0) {
        return (double)NAN;
    }
    return twice / (2.0 * (double)n_pos * (double)neg_below);
}

bd_status wk_auc(const float *scores, const float *labels, size_t n, double *auc, bd_err *err)
{
    uint64_t *keys = bd_calloc(n + 1, sizeof *keys);
    if (keys == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "AUC of %zu scores", n);
    }
    for (size_t i = 0; i < n; i++) {
        keys[i] = (uint64_t)ordered_bits(scores[i]) << 1 | (labels[i] > 0.5f ? 1u : 0u);
    }
    qsort(keys, n, sizeof *keys, by_number);
    *auc = auc_of_sorted(keys, n);
    bd_free(keys);
    return BD_OK;
}

/* -ln(sigmoid(+-z)) without overflow. */
static double bce(double z, double y)
{
    return (z > 0 ? z : 0) - z * y + log1p(exp(-fabs(z)));
}

static double entropy(double p)
{
    return p <= 0 || p >= 1 ? 0 : -p * log(p) - (1 - p) * log(1 - p);
}

static double probability(double z)
{
    return z >= 0 ? 1 / (1 + exp(-z)) : exp(z) / (1 + exp(z));
}

static void binary_sums(const float *scores, const float *labels, size_t n, wk_metrics *m)
{
    double loss = 0, right = 0, squares = 0, predicted = 0, positive = 0, count = (double)n;
    for (size_t i = 0; i < n; i++) {
        double z = (double)scores[i], y = (double)labels[i], p = probability(z);
        loss += bce(z, y);
        right += (z > 0) == (y > 0.5) ? 1 : 0;
        squares += (p - y) * (p - y);
        predicted += p;
        positive += y > 0.5 ? 1 : 0;
    }
    m->n_positive = (uint64_t)positive;
    m->logloss = loss / count;
    m->accuracy = right / count;
    m->rmse = sqrt(squares / count);
    m->norm_entropy = m->logloss / entropy(positive / count);
    m->calibration = predicted / positive;
}

static void value_sums(const float *scores, const float *labels, size_t n, wk_metrics *m)
{
    double squares = 0, predicted = 0, actual = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)scores[i] - (double)labels[i];
        squares += d * d;
        predicted += (double)scores[i];
        actual += (double)labels[i];
    }
    m->rmse = sqrt(squares / (double)n);
    m->calibration = predicted / actual;
    m->auc = m->logloss = m->accuracy = m->norm_entropy = (double)NAN;
}

bd_status wk_metrics_compute(const float *scores, const float *labels, size_t n, bool binary,
                             wk_metrics *out, bd_err *err)
{
    wk_metrics m = {.n = n};
    bd_status rc = BD_OK;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(scores[i])) {
            return bd_err_set(err, BD_E_NUMERIC, "evaluation: the score of row %zu is %g", i,
                              (double)scores[i]);
        }
    }
    if (binary) {
        binary_sums(scores, labels, n, &m);
        rc = wk_auc(scores, labels, n, &m.auc, err);
    } else {
        value_sums(scores, labels, n, &m);
    }
    if (rc == BD_OK) {
        *out = m;
    }
    return rc;
}
