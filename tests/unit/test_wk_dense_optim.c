/* The dense optimiser: what is stepped and decayed, clipping, and the saved form. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/rand.h"

#include "worker/wk_dense_optim.h"

#include "tests/util/tape_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N_PARAMS = 3 };

typedef struct fixture {
    tp_device *dev;
    wk_model_param params[N_PARAMS]; /* weight, bias, buffer */
} fixture;

static int setup(void **state)
{
    static fixture f;
    static const size_t shape[] = {2, 3}, three[] = {3};
    assert_int_equal(tp_device_new_cpu(1, &f.dev, NULL), BD_OK);
    tp_tensor *w = tc_param(f.dev, "w", 2, shape, 1), *b = tc_param(f.dev, "b", 1, three, 2);
    tp_tensor *buffer = NULL;
    assert_int_equal(tp_tensor_new(f.dev, "mean", NUM_F32, 1, three, &buffer, NULL), BD_OK);
    f.params[0] = (wk_model_param){.name = "w", .value = w, .grad = w->grad, .decay = true};
    f.params[1] = (wk_model_param){.name = "b", .value = b, .grad = b->grad};
    f.params[2] = (wk_model_param){.name = "mean", .value = buffer};
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < N_PARAMS; i++) {
        tp_tensor_free(f->params[i].value);
    }
    tp_device_free(f->dev);
    return 0;
}

static wk_dense_optim *open_optim(fixture *f, const char *name, double l2, double clip_norm)
{
    wk_dense_optim *o = NULL;
    wk_dense_optim_config cfg = {.optimizer = name, .l2 = l2, .clip_norm = clip_norm};
    assert_int_equal(wk_dense_optim_new(f->params, N_PARAMS, &cfg, &o, NULL), BD_OK);
    return o;
}

static void set(tp_tensor *t, float v)
{
    for (size_t i = 0; i < t->n_elems; i++) {
        tp_f32(t)[i] = v;
    }
}

static void weights_decay_and_biases_do_not(void **state)
{
    fixture *f = *state;
    wk_dense_optim *o = open_optim(f, "sgd", 0.5, 0);
    set(f->params[0].value, 2);
    set(f->params[1].value, 2);
    set(f->params[2].value, 7);
    set(f->params[0].grad, 1);
    set(f->params[1].grad, 1);
    assert_int_equal(wk_dense_optim_step(o, 0.25f, 1, NULL, NULL), BD_OK);
    assert_true(tc_read(f->params[0].value)[5] == 2 - 0.25f * (1 + 0.5f * 2));
    assert_true(tc_read(f->params[1].value)[2] == 2 - 0.25f * 1);
    assert_true(tc_read(f->params[2].value)[0] == 7);
    assert_true(tc_read(f->params[0].grad)[0] == 1); /* a step leaves gradients alone */
    const bool used[] = {false, true, false};
    assert_int_equal(wk_dense_optim_step(o, 0.25f, 2, used, NULL), BD_OK);
    assert_true(tc_read(f->params[0].value)[5] == 1.5f);
    assert_true(tc_read(f->params[1].value)[2] == 1.75f - 0.25f * 2);
    wk_dense_optim_zero_grad(o);
    assert_true(tc_read(f->params[1].grad)[2] == 0);
    wk_dense_optim_free(o);
}

/* Decoupled decay, adamw's own or the one that all optimisers have, spares biases as l2 does. */
static void decoupled_decay_spares_biases(void **state)
{
    fixture *f = *state;
    static const char *optimizers[] = {"adamw", "sgd"}, *names[] = {"weight_decay"};
    static const double values[] = {0.5};
    for (size_t i = 0; i < 2; i++) {
        wk_dense_optim *o = NULL;
        wk_dense_optim_config cfg = {.optimizer = optimizers[i],
                                     .hyper_names = names,
                                     .hyper_values = values,
                                     .n_hypers = 1};
        assert_int_equal(wk_dense_optim_new(f->params, N_PARAMS, &cfg, &o, NULL), BD_OK);
        set(f->params[0].value, 2);
        set(f->params[1].value, 2);
        set(f->params[0].grad, 0);
        set(f->params[1].grad, 0);
        assert_int_equal(wk_dense_optim_step(o, 0.5f, 1, NULL, NULL), BD_OK);
        assert_true(tc_read(f->params[0].value)[5] == 1.5f);
        assert_true(tc_read(f->params[1].value)[2] == 2);
        wk_dense_optim_free(o);
    }
}

static void the_global_norm_is_clipped(void **state)
{
    fixture *f = *state;
    wk_dense_optim *o = open_optim(f, "sgd", 0, 2), *free_norm = open_optim(f, "sgd", 0, 0);
    double sumsq = 0;
    set(f->params[0].grad, 1);  /* 6 */
    set(f->params[1].grad, -2); /* 12 */
    assert_int_equal(wk_dense_optim_grad_sumsq(o, &sumsq, NULL), BD_OK);
    assert_true(sumsq == 18);
    assert_true(wk_dense_optim_clip_factor(o, 16) == 0.5f);
    assert_true(wk_dense_optim_clip_factor(o, 4) == 1);
    assert_true(wk_dense_optim_clip_factor(o, (double)NAN) == 1);
    assert_true(wk_dense_optim_clip_factor(free_norm, 1e9) == 1);
    wk_dense_optim_free(o);
    wk_dense_optim_free(free_norm);
}

static void what_is_not_finite_is_named(void **state)
{
    fixture *f = *state;
    bd_err err;
    wk_dense_optim *o = open_optim(f, "sgd", 0, 0);
    set(f->params[0].grad, 1);
    set(f->params[1].grad, 1);
    assert_int_equal(wk_dense_optim_check_finite(o, &err), BD_OK);
    tp_f32(f->params[1].grad)[2] = INFINITY;
    assert_int_equal(wk_dense_optim_check_finite(o, &err), BD_E_NUMERIC);
    assert_string_equal(err.text, "gradient of b is inf at element 2");
    wk_dense_optim_free(o);
}

static void some_steps(fixture *f, wk_dense_optim *o, uint64_t first)
{
    for (uint64_t s = first; s < first + 3; s++) {
        for (size_t i = 0; i < 2; i++) {
            bd_rand_uniform(4, i, s, -1, 1, tp_f32(f->params[i].grad), f->params[i].grad->n_elems);
        }
        tp_f32(f->params[2].value)[0] += 1;
        assert_int_equal(wk_dense_optim_step(o, 0.1f, 0.5f, NULL, NULL), BD_OK);
    }
}

/* Saved, trained on, restored and trained again: the same bits, for every optimiser. */
static void save_and_restore_keep_every_bit(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; num_optim_at(i) != NULL; i++) {
        wk_dense_optim *o = open_optim(f, num_optim_at(i)->name, 0.01, 0);
        wk_dense_optim *other = open_optim(f, num_optim_at(i)->name, 0.01, 0);
        bd_buf *saved = NULL, *again = NULL;
        uint64_t at_save, at_end, hash;
        some_steps(f, o, 0);
        assert_int_equal(wk_dense_optim_save(o, &saved, NULL), BD_OK);
        assert_int_equal(wk_dense_optim_hash(o, &at_save, NULL), BD_OK);
        some_steps(f, o, 3);
        assert_int_equal(wk_dense_optim_hash(o, &at_end, NULL), BD_OK);
        assert_true(at_save != at_end);
        assert_int_equal(wk_dense_optim_restore(other, saved->bytes, saved->n_bytes, NULL), BD_OK);
        assert_int_equal(wk_dense_optim_hash(other, &hash, NULL), BD_OK);
        assert_true(hash == at_save);
        assert_int_equal(wk_dense_optim_save(other, &again, NULL), BD_OK);
        assert_int_equal(again->n_bytes, saved->n_bytes);
        assert_memory_equal(again->bytes, saved->bytes, saved->n_bytes);
        some_steps(f, other, 3);
        assert_int_equal(wk_dense_optim_hash(other, &hash, NULL), BD_OK);
        assert_true(hash == at_end);
        bd_buf_unref(saved);
        bd_buf_unref(again);
        wk_dense_optim_free(o);
        wk_dense_optim_free(other);
    }
}

/* Every cut and every flipped byte is refused, and then nothing has changed. */
static void broken_bytes_are_refused(void **state)
{
    fixture *f = *state;
    wk_dense_optim *o = open_optim(f, "adagrad", 0, 0);
    bd_buf *saved = NULL;
    uint64_t before, after;
    bd_err err;
    some_steps(f, o, 0);
    assert_int_equal(wk_dense_optim_save(o, &saved, NULL), BD_OK);
    some_steps(f, o, 3);
    assert_int_equal(wk_dense_optim_hash(o, &before, NULL), BD_OK);
    for (size_t n = 0; n < saved->n_bytes; n++) {
        assert_int_equal(wk_dense_optim_restore(o, saved->bytes, n, &err), BD_E_CORRUPT);
        saved->bytes[n] ^= 0x10;
        assert_int_equal(wk_dense_optim_restore(o, saved->bytes, saved->n_bytes, &err),
                         BD_E_CORRUPT);
        saved->bytes[n] ^= 0x10;
    }
    assert_int_equal(wk_dense_optim_hash(o, &after, NULL), BD_OK);
    assert_true(before == after);
    bd_buf_unref(saved);
    wk_dense_optim_free(o);
}

/* A block whose checksum is right but whose lengths lie. */
static void lying_lengths_are_refused(void **state)
{
    fixture *f = *state;
    wk_dense_optim *o = open_optim(f, "adagrad", 0, 0);
    bd_buf *saved = NULL;
    bd_err err;
    assert_int_equal(wk_dense_optim_save(o, &saved, NULL), BD_OK);
    for (size_t at = 8; at < saved->n_bytes - 8; at++) {
        uint8_t keep = saved->bytes[at];
        saved->bytes[at] = 0xff;
        uint64_t sum = bd_hash64(saved->bytes, saved->n_bytes - 8, 0);
        memcpy(saved->bytes + saved->n_bytes - 8, &sum, 8);
        bd_status rc = wk_dense_optim_restore(o, saved->bytes, saved->n_bytes, &err);
        assert_true(rc == BD_OK || rc == BD_E_CORRUPT || rc == BD_E_MISMATCH);
        saved->bytes[at] = keep;
    }
    bd_buf_unref(saved);
    wk_dense_optim_free(o);
}

static void another_model_is_refused_by_name(void **state)
{
    fixture *f = *state;
    wk_dense_optim *o = open_optim(f, "adagrad", 0, 0), *sgd = open_optim(f, "sgd", 0, 0);
    wk_dense_optim *other = NULL;
    bd_buf *saved = NULL;
    bd_err err;
    wk_model_param params[N_PARAMS];
    wk_dense_optim_config cfg = {.optimizer = "adagrad"};
    memcpy(params, f->params, sizeof(params));
    params[1].name = "c";
    assert_int_equal(wk_dense_optim_new(params, N_PARAMS, &cfg, &other, NULL), BD_OK);
    assert_int_equal(wk_dense_optim_save(o, &saved, NULL), BD_OK);
    assert_int_equal(wk_dense_optim_restore(sgd, saved->bytes, saved->n_bytes, &err),
                     BD_E_MISMATCH);
    assert_string_equal(err.text, "dense optimiser is sgd, saved is adagrad");
    assert_int_equal(wk_dense_optim_restore(other, saved->bytes, saved->n_bytes, &err),
                     BD_E_MISMATCH);
    assert_string_equal(err.text, "dense parameter c: saved is b");
    bd_buf_unref(saved);
    wk_dense_optim_free(o);
    wk_dense_optim_free(sgd);
    wk_dense_optim_free(other);
}

static void bad_settings_are_refused(void **state)
{
    fixture *f = *state;
    wk_dense_optim *o = NULL;
    bd_err err;
    wk_dense_optim_config cfg = {.optimizer = "adagard"};
    assert_int_equal(wk_dense_optim_new(f->params, N_PARAMS, &cfg, &o, &err), BD_E_INVALID);
    assert_string_equal(err.text, "unknown optimiser adagard");
    cfg = (wk_dense_optim_config){.optimizer = "sgd", .l2 = -1};
    assert_int_equal(wk_dense_optim_new(f->params, N_PARAMS, &cfg, &o, &err), BD_E_INVALID);
    assert_null(o);
}

static void every_allocation_may_fail(void **state)
{
    fixture *f = *state;
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        wk_dense_optim *o = NULL;
        bd_buf *saved = NULL;
        long before = bd_mem_live_blocks();
        wk_dense_optim_config cfg = {.optimizer = "adam"};
        bd_fault_fail_alloc(nth);
        rc = wk_dense_optim_new(f->params, N_PARAMS, &cfg, &o, NULL);
        if (rc == BD_OK) {
            rc = wk_dense_optim_save(o, &saved, NULL);
        }
        bd_fault_fail_alloc(-1);
        bd_buf_unref(saved);
        wk_dense_optim_free(o);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(weights_decay_and_biases_do_not), TEST(decoupled_decay_spares_biases),
        TEST(the_global_norm_is_clipped),      TEST(what_is_not_finite_is_named),
        TEST(save_and_restore_keep_every_bit), TEST(broken_bytes_are_refused),
        TEST(lying_lengths_are_refused),       TEST(another_model_is_refused_by_name),
        TEST(bad_settings_are_refused),        TEST(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
