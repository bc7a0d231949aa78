/* cli/cli_bench_keys.h - which rows a benchmark asks for: uniform, or by a power law.
 *
 * Layer:     cli. Pure: no allocation, any thread.
 * Source:    Zipf by rejection-inversion (Hoermann and Derflinger, "Rejection-inversion to generate
 *            variates from monotone discrete distributions", ACM TOMACS 1996): O(1) time and memory
 *            for any number of rows, under 1.2 tries a number.
 */
#ifndef CLI_BENCH_KEYS_H
#define CLI_BENCH_KEYS_H

#include <stdint.h>

typedef struct cli_bench_keys {
    uint64_t n_rows;
    double exponent; /* of the power law; 0: uniform */
    double h_first, h_last, squeeze;
} cli_bench_keys;

/* P(row r) ~ 1 / (r + 1)^exponent over rows 0 .. n_rows - 1. n_rows >= 1, exponent >= 0. */
void cli_bench_keys_init(cli_bench_keys *k, uint64_t n_rows, double exponent);
/* A row: a pure function of (k, stream, index). */
uint64_t cli_bench_keys_row(const cli_bench_keys *k, uint64_t stream, uint64_t index);
/* The key of a row: distinct rows have distinct keys, spread over all 64 bits. */
uint64_t cli_bench_key(uint64_t row);

#endif
