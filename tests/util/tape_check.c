#include "tests/util/tape_check.h"

#include "base/rand.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define STEP 0x1p-6f

const float *tc_read(const tp_tensor *t)
{
    const void *host = NULL;
    bd_err err;
    if (tp_read(t, &host, &err) != BD_OK) {
        fail_msg("%s", err.text);
    }
    return host;
}

tp_tensor *tc_param(tp_device *dev, const char *name, int n_dims, const size_t *dims, uint64_t seed)
{
    tp_tensor *t = NULL;
    bd_err err;
    if (tp_param_new(dev, name, n_dims, dims, &t, &err) != BD_OK) {
        fail_msg("%s", err.text);
    }
    bd_rand_uniform(seed, 1, 0, -1.0f, 1.0f, tp_f32(t), t->n_elems);
    return t;
}

typedef struct check {
    const char *what;
    tc_build_fn build;
    const void *arg;
    tp_device *dev;
    tp_tape *tape;
    tp_tensor *in[TC_MAX_INPUTS];
    size_t n_in;
    float r[4096]; /* weights of the outputs */
} check;

static tp_tensor *run(check *c)
{
    tp_tensor *out = NULL;
    bd_err err;
    tp_tape_reset(c->tape);
    if (c->build(c->tape, c->in, c->arg, &out, &err) != BD_OK) {
        fail_msg("%s: %s", c->what, err.text);
    }
    assert_true(out->n_elems <= sizeof(c->r) / sizeof(c->r[0]));
    return out;
}

static double weighted_sum(check *c)
{
    bool old = tp_tape_set_grad(c->tape, false);
    tp_tensor *out = run(c);
    const float *y = tc_read(out);
    double total = 0;
    for (size_t i = 0; i < out->n_elems; i++) {
        total += (double)y[i] * (double)c->r[i];
    }
    (void)tp_tape_set_grad(c->tape, old);
    return total;
}

static double central(check *c, float *x)
{
    float keep = *x;
    *x = keep + STEP;
    double up = weighted_sum(c);
    *x = keep - STEP;
    double down = weighted_sum(c);
    *x = keep;
    return (up - down) / (2.0 * (double)STEP);
}

static void keep_gap(tp_tensor *t, float gap)
{
    float *x = tp_f32(t);
    for (size_t i = 0; i < t->n_elems; i++) {
        x[i] += x[i] >= 0 ? gap : -gap;
    }
}

void tc_check(const char *what, tc_build_fn build, const void *arg, const tc_input *inputs,
              size_t n_inputs, double tolerance)
{
    static check c; /* large */
    bd_err err;
    c = (check){.what = what, .build = build, .arg = arg, .n_in = n_inputs};
    assert_true(n_inputs <= TC_MAX_INPUTS);
    assert_int_equal(tp_device_new_cpu(1, &c.dev, &err), BD_OK);
    assert_int_equal(tp_tape_new(c.dev, &c.tape, &err), BD_OK);
    bd_rand_uniform(99, 7, 0, -1.0f, 1.0f, c.r, sizeof(c.r) / sizeof(c.r[0]));
    for (size_t i = 0; i < n_inputs; i++) {
        c.in[i] = tc_param(c.dev, what, inputs[i].n_dims, inputs[i].dims, 11 + i);
        keep_gap(c.in[i], inputs[i].gap);
    }
    tp_tensor *out = run(&c);
    if (tp_backward(c.tape, out, c.r, &err) != BD_OK) {
        fail_msg("%s: backward: %s", what, err.text);
    }
    for (size_t i = 0; i < n_inputs; i++) {
        for (size_t k = 0; k < c.in[i]->n_elems; k++) {
            double want = central(&c, tp_f32(c.in[i]) + k);
            double got = (double)tc_read(c.in[i]->grad)[k];
            if (!(fabs(got - want) <= tolerance * (1 + fabs(want)))) {
                fail_msg("%s: input %zu element %zu: backward %.6f, central difference %.6f", what,
                         i, k, got, want);
            }
        }
    }
    for (size_t i = 0; i < n_inputs; i++) {
        tp_tensor_free(c.in[i]);
    }
    tp_tape_free(c.tape);
    tp_device_free(c.dev);
}
