/* base/num/init.h - the values that rows of embedding tables start with.
 *
 * Layer:   base/num. Pure: no allocation, any thread.
 * Promise: a row is a pure function of (seed, table name, key, parameters) and its element i does
 *          not depend on dim (but for xavier_*, whose default fan is dim). Servers and local tables
 *          both take it from here. The values never change: golden ones stand in
 *          tests/unit/test_num_init.c.
 *
 * Adding one: its functions and its line in base/num/init.c, its row in the test, `make docs`.
 */
#ifndef NUM_INIT_H
#define NUM_INIT_H

#include "base/err.h"
#include "base/num/hyper.h"

#include <stddef.h>
#include <stdint.h>

#define NUM_INIT_MAX_PARAMS 3

typedef struct num_init {
    const char *name;
    const char *help;        /* one line */
    const num_hyper *params; /* [n_params] */
    size_t n_params;
    /* NULL, or what is wrong with parameters that are each within their bounds. NULL: no check. */
    const char *(*wrong)(const float *param);
    /* Use num_init_row. k: num_init_key. */
    void (*fill)(const float *param, uint64_t k, uint64_t key, float *out, size_t dim);
} num_init;

/* NULL for an unknown name. */
const num_init *num_init_find(const char *name);
/* i-th initialiser, NULL past the end: for help and tests. */
const num_init *num_init_at(size_t i);

/* Fills param[NUM_INIT_MAX_PARAMS] from names and values, defaults for the rest, 0 behind them.
 * BD_E_INVALID names the unknown or out-of-bounds one; param is unchanged then. */
bd_status num_init_params(const num_init *in, const char *const *names, const double *values,
                          size_t n, float *param, bd_err *err) BD_MUST_CHECK;

/* The table's part of a row's randomness. */
uint64_t num_init_key(uint64_t seed, const char *table_name);

/* Writes the weights (out[dim]) that row `key` starts with. */
void num_init_row(const num_init *in, const float *param, uint64_t table_key, uint64_t key,
                  float *out, size_t dim);

#endif
