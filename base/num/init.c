#include "base/num/init.h"

#include "base/option.h"
#include "base/rand.h"

#include <math.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))
#define ANY     -1e30, 1e30

/* ---- uniform ---- */
static const num_hyper uniform_params[] = {{"low", -0.05, ANY, "lower end"},
                                           {"high", 0.05, ANY, "upper end, not reached"}};

static const char *uniform_wrong(const float *p)
{
    return p[0] > p[1] ? "low is above high" : NULL;
}

static void uniform(const float *p, uint64_t k, uint64_t key, float *out, size_t dim)
{
    bd_rand_uniform(k, 0, key, p[0], p[1], out, dim);
}

/* ---- normal ---- */
static const num_hyper normal_params[] = {
    {"mean", 0, ANY, "centre"},
    {"stddev", 0.05, 0, 1e30, "standard deviation"},
};

static void normal(const float *p, uint64_t k, uint64_t key, float *out, size_t dim)
{
    bd_rand_normal(k, 0, key, p[0], p[1], out, dim);
}

/* A value beyond two deviations is drawn anew, each time from a stream of its own, so that element
 * i stays a pure function of (k, key, i). One draw in 22 is refused. */
static void truncated_normal(const float *p, uint64_t k, uint64_t key, float *out, size_t dim)
{
    enum { MAX_DRAWS = 32 };
    bd_rand_normal(k, 0, key, 0, 1, out, dim);
    for (size_t i = 0; i < dim; i++) {
        for (uint64_t draw = 1; fabsf(out[i]) > 2.0f && draw < MAX_DRAWS; draw++) {
            bd_rand_normal(k, draw, bd_mix64(key) + i, 0, 1, &out[i], 1);
        }
        float bounded = fmaxf(-2.0f, fminf(2.0f, out[i])); /* after 32 bad draws: 1 in 10^43 */
        out[i] = p[0] + p[1] * bounded;
    }
}

/* ---- constant ---- */
static const num_hyper constant_params[] = {{"value", 0, ANY, "of every element"}};

static void constant(const float *p, uint64_t k, uint64_t key, float *out, size_t dim)
{
    (void)k;
    (void)key;
    for (size_t i = 0; i < dim; i++) {
        out[i] = p[0];
    }
}

/* ---- xavier (Glorot and Bengio 2010) ---- */
static const num_hyper xavier_params[] = {
    {"gain", 1, 0, 1e6, "factor on the width"},
    {"fan_in", 0, 0, 1e12, "inputs of the layer; 0: dim"},
    {"fan_out", 0, 0, 1e12, "outputs of the layer; 0: dim"},
};

static double fans(const float *p, size_t dim)
{
    return (p[1] > 0 ? (double)p[1] : (double)dim) + (p[2] > 0 ? (double)p[2] : (double)dim);
}

static void xavier_uniform(const float *p, uint64_t k, uint64_t key, float *out, size_t dim)
{
    float width = (float)((double)p[0] * sqrt(6.0 / fans(p, dim)));
    bd_rand_uniform(k, 0, key, -width, width, out, dim);
}

static void xavier_normal(const float *p, uint64_t k, uint64_t key, float *out, size_t dim)
{
    float stddev = (float)((double)p[0] * sqrt(2.0 / fans(p, dim)));
    bd_rand_normal(k, 0, key, 0, stddev, out, dim);
}

static const num_init all[] = {
    {"uniform", "evenly between low and high", uniform_params, N_OF(uniform_params), uniform_wrong,
     uniform},
    {"normal", "mean + stddev * a standard normal", normal_params, N_OF(normal_params), NULL,
     normal},
    {"truncated_normal", "normal; values beyond two stddev are drawn again", normal_params,
     N_OF(normal_params), NULL, truncated_normal},
    {"constant", "value everywhere", constant_params, N_OF(constant_params), NULL, constant},
    {"xavier_uniform", "uniform within +- gain * sqrt(6 / (fan_in + fan_out))", xavier_params,
     N_OF(xavier_params), NULL, xavier_uniform},
    {"xavier_normal", "normal with stddev gain * sqrt(2 / (fan_in + fan_out))", xavier_params,
     N_OF(xavier_params), NULL, xavier_normal},
};

const num_init *num_init_at(size_t i)
{
    return i < N_OF(all) ? &all[i] : NULL;
}

const num_init *num_init_find(const char *name)
{
    for (size_t i = 0; i < N_OF(all); i++) {
        if (strcmp(all[i].name, name) == 0) {
            return &all[i];
        }
    }
    return NULL;
}

static bd_status put(const num_init *in, const char *name, double value, float *param, bd_err *err)
{
    const char *names[NUM_INIT_MAX_PARAMS];
    for (size_t i = 0; i < in->n_params; i++) {
        const num_hyper *h = &in->params[i];
        names[i] = h->name;
        if (strcmp(h->name, name) != 0) {
            continue;
        }
        if (!(value >= h->min && value <= h->max)) { /* a NaN is refused too */
            return bd_err_set(err, BD_E_INVALID, "%s: %s=%g must be from %g to %g", in->name, name,
                              value, h->min, h->max);
        }
        param[i] = (float)value;
        return BD_OK;
    }
    const char *meant = bd_nearest(name, names, in->n_params);
    return bd_err_set(err, BD_E_INVALID, "%s: unknown parameter %s%s%s%s", in->name, name,
                      meant == NULL ? "" : ", did you mean ", meant == NULL ? "" : meant,
                      meant == NULL ? "" : "?");
}

bd_status num_init_params(const num_init *in, const char *const *names, const double *values,
                          size_t n, float *param, bd_err *err)
{
    float filled[NUM_INIT_MAX_PARAMS] = {0};
    bd_status rc = BD_OK;
    for (size_t i = 0; i < in->n_params; i++) {
        filled[i] = (float)in->params[i].def;
    }
    for (size_t i = 0; i < n && rc == BD_OK; i++) {
        rc = put(in, names[i], values[i], filled, err);
    }
    const char *wrong = rc == BD_OK && in->wrong != NULL ? in->wrong(filled) : NULL;
    if (wrong != NULL) {
        rc = bd_err_set(err, BD_E_INVALID, "%s: %s", in->name, wrong);
    }
    if (rc == BD_OK) {
        memcpy(param, filled, sizeof filled);
    }
    return rc;
}

uint64_t num_init_key(uint64_t seed, const char *table_name)
{
    return bd_mix64(seed ^ bd_mix64(bd_hash64(table_name, strlen(table_name), 0)));
}

void num_init_row(const num_init *in, const float *param, uint64_t table_key, uint64_t key,
                  float *out, size_t dim)
{
    in->fill(param, table_key, key, out, dim);
}
