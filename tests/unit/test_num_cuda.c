/* Kernels against their scalar references, bit for bit. SKIP without CUDA or without a GPU. */
#include "base/num/reduce.h"

#include <stdio.h>

#define SKIPPED 77

#ifdef BRAID_HAVE_CUDA
#include "base/num/optim_cuda.h"
#include "base/num/reduce_cuda.h"
#include "base/rand.h"

#include <cuda_runtime_api.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const size_t all_sizes[] = {0, 1, 2, 255, 257, 100003, (1u << 20) + 3};
#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

/* Random bits: NaN, infinity and subnormals are among them. */
static void fill(void *buf, size_t n_bytes, uint64_t seed)
{
    uint8_t *b = buf;
    for (size_t i = 0; i < n_bytes; i++) {
        b[i] = (uint8_t)bd_mix64(seed + i);
    }
}

static bool is_nan(const void *buf, size_t i, num_dtype d)
{
    switch (d) {
    case NUM_F32:
        return isnan(((const float *)buf)[i]);
    case NUM_F64:
        return isnan(((const double *)buf)[i]);
    case NUM_F16:
        return isnan(num_f16_to_f32(((const uint16_t *)buf)[i]));
    case NUM_BF16:
        return isnan(num_bf16_to_f32(((const uint16_t *)buf)[i]));
    default:
        return false;
    }
}

static void same(const void *got, const void *want, size_t n, num_dtype d, const char *what)
{
    size_t size = num_dtype_bytes((int)d);
    for (size_t i = 0; i < n; i++) {
        const char *g = (const char *)got + i * size, *w = (const char *)want + i * size;
        if (memcmp(g, w, size) != 0 && !(is_nan(got, i, d) && is_nan(want, i, d))) {
            fail_msg("%s of %s: element %zu of %zu differs", what, num_dtype_name((int)d), i, n);
        }
    }
}

static void *on_device(const void *host, size_t n_bytes)
{
    void *dev = NULL;
    assert_int_equal(cudaMalloc(&dev, n_bytes + 64), cudaSuccess);
    assert_int_equal(cudaMemcpy(dev, host, n_bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return dev;
}

static void back(void *host, void *dev, size_t n_bytes)
{
    assert_int_equal(cudaMemcpy(host, dev, n_bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(cudaFree(dev), cudaSuccess);
}

static void one_reduction(size_t n, num_dtype d, num_reduce_op op)
{
    size_t n_bytes = n * num_dtype_bytes((int)d);
    char *acc = malloc(n_bytes + 1), *x = malloc(n_bytes + 1), *got = malloc(n_bytes + 1);
    bd_err err = BD_ERR_INIT;
    assert_true(acc != NULL && x != NULL && got != NULL);
    fill(acc, n_bytes, 1);
    fill(x, n_bytes, 1000000007);
    void *dev_acc = on_device(acc, n_bytes), *dev_x = on_device(x, n_bytes);
    bd_status want = num_reduce_ref(acc, x, n, d, op);
    assert_int_equal(num_reduce_cuda(dev_acc, dev_x, n, d, op, NULL, &err), want);
    if (want == BD_OK) {
        back(got, dev_acc, n_bytes);
        same(got, acc, n, d, num_reduce_op_name((int)op));
    } else {
        assert_int_equal(cudaFree(dev_acc), cudaSuccess);
    }
    back(got, dev_x, n_bytes);
    same(got, x, n, d, "the input");
    free(acc);
    free(x);
    free(got);
}

static void reductions_equal_their_reference(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_OF(all_sizes); s++) {
        for (int d = NUM_F32; d <= NUM_I8; d++) {
            for (int op = NUM_SUM; op <= NUM_BOR; op++) {
                one_reduction(all_sizes[s], (num_dtype)d, (num_reduce_op)op);
            }
        }
    }
}

static void scaling_equals_its_reference(void **state)
{
    (void)state;
    static const double factors[] = {0.5, 1.0 / 3, -7, 1e9};
    bd_err err = BD_ERR_INIT;
    for (size_t s = 0; s < N_OF(all_sizes); s++) {
        for (int d = NUM_F32; d <= NUM_I8; d++) {
            for (size_t f = 0; f < N_OF(factors); f++) {
                size_t n = all_sizes[s], n_bytes = n * num_dtype_bytes(d);
                char *want = malloc(n_bytes + 1), *got = malloc(n_bytes + 1);
                assert_true(want != NULL && got != NULL);
                fill(want, n_bytes, 5);
                void *dev = on_device(want, n_bytes);
                num_scale(want, n, (num_dtype)d, factors[f]);
                assert_int_equal(num_scale_cuda(dev, n, (num_dtype)d, factors[f], NULL, &err),
                                 BD_OK);
                back(got, dev, n_bytes);
                same(got, want, n, (num_dtype)d, "scale");
                free(want);
                free(got);
            }
        }
    }
    assert_int_equal(num_scale_cuda(NULL, 1, (num_dtype)99, 1, NULL, &err), BD_E_INVALID);
    assert_int_equal(num_reduce_cuda(NULL, NULL, 1, (num_dtype)99, NUM_SUM, NULL, &err),
                     BD_E_INVALID);
}

static void fill_floats(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)((double)(bd_mix64(seed + i) >> 11) * 0x1p-51 - 2.0);
    }
}

static void one_optimiser(const char *name, size_t dim)
{
    const num_optim *opt = num_optim_find(name);
    static const char *const keys[] = {"l2", "clip_value", "weight_decay"};
    float hyper[NUM_OPTIM_MAX_HYPER];
    bd_err err = BD_ERR_INIT;
    assert_non_null(opt);
    size_t n_state = opt->state_elems(dim);
    float *w = calloc(dim + 1, sizeof *w), *g = calloc(dim + 1, sizeof *g);
    float *state = calloc(n_state + 1, sizeof *state), *scratch = calloc(dim + 1, sizeof *scratch);
    assert_true(w != NULL && g != NULL && state != NULL && scratch != NULL);
    assert_int_equal(num_optim_hyper(opt, keys, (const double[]){0.001, 1.5, 0.1}, 3, hyper, &err),
                     BD_OK);
    opt->init(hyper, state, dim);
    fill_floats(w, dim, 3);
    float *dev_w = on_device(w, dim * sizeof *w);
    float *dev_state = on_device(state, n_state * sizeof *state);
    for (uint64_t step = 1; step <= 5; step++) {
        fill_floats(g, dim, step * 1000003);
        float *dev_g = on_device(g, dim * sizeof *g);
        num_optim_apply_ref(opt, hyper, w, state, g, dim, scratch);
        assert_int_equal(
            num_optim_step_cuda(opt, hyper, dev_w, dev_state, dev_g, dim, step, NULL, &err), BD_OK);
        back(scratch, dev_g, dim * sizeof *g);
    }
    float *got = calloc(dim + n_state + 1, sizeof *got);
    assert_non_null(got);
    back(got, dev_w, dim * sizeof *w);
    back(got + dim, dev_state, n_state * sizeof *state);
    same(got, w, dim, NUM_F32, name);
    same(got + dim, state, dim == 0 ? 0 : n_state, NUM_F32, name);
    free(w);
    free(g);
    free(state);
    free(scratch);
    free(got);
}

static void optimisers_equal_their_reference(void **state)
{
    (void)state;
    static const char *const names[] = {"sgd", "momentum", "adagrad", "rmsprop", "adam", "adamw"};
    for (size_t i = 0; i < N_OF(names); i++) {
        for (size_t s = 0; s < N_OF(all_sizes); s++) {
            one_optimiser(names[i], all_sizes[s]);
        }
    }
}

int main(void)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        (void)printf("SKIP: no GPU: %s\n", e != cudaSuccess ? cudaGetErrorString(e) : "0 devices");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_equal_their_reference),
        cmocka_unit_test(scaling_equals_its_reference),
        cmocka_unit_test(optimisers_equal_their_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    (void)printf("SKIP: built without CUDA\n");
    return SKIPPED;
}
#endif
