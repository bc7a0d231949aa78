#include "cli/cli_bench_keys.h"

#include "base/rand.h"

#include <math.h>
#include <stdbool.h>

#define NEAR_0 1e-8

/* (e^x - 1) / x and log(1 + x) / x, with their limits at 0. */
static double expm1_ratio(double x)
{
    return fabs(x) > NEAR_0 ? expm1(x) / x : 1.0 + x / 2.0;
}
static double log1p_ratio(double x)
{
    return fabs(x) > NEAR_0 ? log1p(x) / x : 1.0 - x / 2.0;
}

/* The integral of x^-s from 1, and its inverse. */
static double integral(double s, double x)
{
    double l = log(x);
    return expm1_ratio((1.0 - s) * l) * l;
}
static double inverse(double s, double y)
{
    double t = y * (1.0 - s);
    return exp(log1p_ratio(t < -1.0 ? -1.0 : t) * y);
}
static double weight(double s, double x)
{
    return exp(-s * log(x));
}

void cli_bench_keys_init(cli_bench_keys *k, uint64_t n_rows, double exponent)
{
    *k = (cli_bench_keys){.n_rows = n_rows, .exponent = exponent};
    if (exponent > 0) {
        k->h_first = integral(exponent, 1.5) - 1.0;
        k->h_last = integral(exponent, (double)n_rows + 0.5);
        k->squeeze = 2.0 - inverse(exponent, integral(exponent, 2.5) - weight(exponent, 2.0));
    }
}

uint64_t cli_bench_keys_row(const cli_bench_keys *k, uint64_t stream, uint64_t index)
{
    if (k->exponent <= 0) {
        return bd_rand_u64(1, stream, index) % k->n_rows;
    }
    for (uint64_t attempt = 0;; attempt++) {
        double u01 = bd_unit_f64(bd_rand_u64(2 + attempt, stream, index));
        double u = k->h_last + u01 * (k->h_first - k->h_last);
        double x = inverse(k->exponent, u);
        double r = floor(x + 0.5);
        r = r < 1.0 ? 1.0 : r > (double)k->n_rows ? (double)k->n_rows : r;
        bool is_inside = r - x <= k->squeeze;
        if (is_inside || u >= integral(k->exponent, r + 0.5) - weight(k->exponent, r)) {
            return (uint64_t)r - 1;
        }
    }
}

uint64_t cli_bench_key(uint64_t row)
{
    return bd_mix64(row);
}
