/* The tape: order, hooks, accumulation, roots, user nodes, reachability, and failing allocations.
 */
#include "base/fault.h"
#include "base/mem.h"

#include "tests/util/tape_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    tp_device *dev;
    tp_tape *tape;
    tp_tensor *w[3]; /* [2 x 2] each */
    float x[4];
} fixture;

static int setup(void **state)
{
    static fixture f;
    static const size_t shape[] = {2, 2};
    f = (fixture){.x = {1, 2, 3, 4}};
    assert_int_equal(tp_device_new_cpu(1, &f.dev, NULL), BD_OK);
    assert_int_equal(tp_tape_new(f.dev, &f.tape, NULL), BD_OK);
    for (size_t i = 0; i < 3; i++) {
        char name[] = {'w', (char)('0' + (int)i), '\0'};
        f.w[i] = tc_param(f.dev, name, 2, shape, 5 + i);
    }
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < 3; i++) {
        tp_tensor_free(f->w[i]);
    }
    tp_tape_free(f->tape);
    tp_device_free(f->dev);
    return 0;
}

static tp_tensor *leaf(fixture *f, float *data, float *grad)
{
    tp_tensor *t = NULL;
    assert_int_equal(tp_tape_wrap(f->tape, 2, (size_t[]){2, 2}, data, true, grad, &t, NULL), BD_OK);
    return t;
}

static tp_tensor *linear(fixture *f, tp_tensor *x, tp_tensor *w)
{
    tp_tensor *out = NULL;
    assert_int_equal(tp_linear(f->tape, x, w, NULL, TP_ACT_NONE, &out, NULL), BD_OK);
    return out;
}

static void zero_grads(fixture *f)
{
    for (size_t i = 0; i < 3; i++) {
        tp_tensor_zero_grad(f->w[i]);
    }
}

/* ---- hooks ---- */

typedef struct trace {
    char text[128];
    bd_status fail_with;
    float seen; /* first gradient element when the hook ran */
} trace;

static bd_status on_ready(void *user, tp_tensor *t, tp_event ready, bd_err *err)
{
    trace *tr = user;
    assert_true(tp_event_is_done(t->dev, ready));
    size_t used = strlen(tr->text);
    (void)snprintf(tr->text + used, sizeof(tr->text) - used, "%s ",
                   t->name != NULL ? t->name : "leaf");
    tr->seen = tc_read(t->grad)[0];
    return tr->fail_with == BD_OK ? BD_OK : bd_err_set(err, tr->fail_with, "hook of %s", t->name);
}

static void hook_all(fixture *f, trace *tr)
{
    for (size_t i = 0; i < 3; i++) {
        tp_set_ready_hook(f->w[i], on_ready, tr);
    }
}

/* Last layer first, a weight before the input of its layer (it can leave while that is computed),
 * and a parameter used twice only after its first use (the last to be run). */
static void hooks_fire_once_in_the_order_of_backward(void **state)
{
    fixture *f = *state;
    trace tr = {0};
    hook_all(f, &tr);
    tp_tensor *x = leaf(f, f->x, NULL);
    tp_set_ready_hook(x, on_ready, &tr);
    tp_tensor *y = linear(f, linear(f, linear(f, x, f->w[0]), f->w[1]), f->w[2]);
    assert_int_equal(tp_backward(f->tape, y, NULL, NULL), BD_OK);
    assert_string_equal(tr.text, "w2 w1 w0 leaf ");

    tr = (trace){0};
    tp_tape_reset(f->tape);
    y = linear(f, linear(f, linear(f, leaf(f, f->x, NULL), f->w[0]), f->w[1]), f->w[0]);
    assert_int_equal(tp_backward(f->tape, y, NULL, NULL), BD_OK);
    assert_string_equal(tr.text, "w1 w0 ");
    assert_true(tr.seen == tc_read(f->w[0]->grad)[0]); /* it was final */
}

/* ---- parts ---- */

enum { WIDE_OUT = 40, WIDE_IN = 12, WIDE_N = 9 };

typedef struct wide {
    tp_tensor *w;
    float want[WIDE_OUT * WIDE_IN];
    size_t n_final; /* so far */
    int n_parts;
    bool is_right;
} wide;

static bd_status on_part(void *user, tp_tensor *t, size_t n_elems, tp_event ready, bd_err *err)
{
    wide *p = user;
    (void)err;
    p->is_right = p->is_right && t == p->w && tp_event_is_done(t->dev, ready) &&
                  n_elems > p->n_final && n_elems < t->n_elems;
    for (size_t k = 0; k < n_elems; k++) {
        p->is_right = p->is_right && tc_read(t->grad)[k] == p->want[k];
    }
    p->n_final = n_elems;
    p->n_parts++;
    return BD_OK;
}

/* y = x w^T or, twice, y = x w^T + x w^T. */
static void wide_backward(fixture *f, tp_tensor *w, bool twice)
{
    float x[WIDE_N * WIDE_IN];
    tp_tensor *in = NULL, *y = NULL, *z = NULL;
    for (size_t k = 0; k < (size_t)WIDE_N * WIDE_IN; k++) {
        x[k] = (float)(k % 7) - 3.0f; /* sums are exact in any order */
    }
    tp_tape_reset(f->tape);
    tp_tensor_zero_grad(w);
    assert_int_equal(
        tp_tape_wrap(f->tape, 2, (size_t[]){WIDE_N, WIDE_IN}, x, false, NULL, &in, NULL), BD_OK);
    assert_int_equal(tp_linear(f->tape, in, w, NULL, TP_ACT_NONE, &y, NULL), BD_OK);
    if (twice) {
        assert_int_equal(tp_linear(f->tape, in, w, NULL, TP_ACT_NONE, &z, NULL), BD_OK);
        assert_int_equal(tp_add(f->tape, y, z, &y, NULL), BD_OK);
    }
    assert_int_equal(tp_backward(f->tape, y, NULL, NULL), BD_OK);
}

/* A weight's gradient is told in growing parts from its begin, each final; of a parameter that is
 * used twice only while the last use adds to it. */
static void a_gradient_becomes_final_in_parts(void **state)
{
    fixture *f = *state;
    wide p = {.is_right = true};
    p.w = tc_param(f->dev, "wide", 2, (size_t[]){WIDE_OUT, WIDE_IN}, 3);
    for (int n = 1; n <= 2; n++) {
        tp_set_part_hook(p.w, NULL, NULL, 0);
        wide_backward(f, p.w, n == 2);
        memcpy(p.want, tc_read(p.w->grad), sizeof p.want);
        p.n_final = 0;
        p.n_parts = 0;
        tp_set_part_hook(p.w, on_part, &p, (size_t)5 * WIDE_IN);
        wide_backward(f, p.w, n == 2);
        assert_true(p.is_right);
        assert_int_equal(p.n_parts, 2); /* bands of 5, 10 and 25 rows */
        assert_int_equal(p.n_final, 15 * WIDE_IN);
        for (size_t k = 0; k < (size_t)WIDE_OUT * WIDE_IN; k++) {
            assert_true(tc_read(p.w->grad)[k] == p.want[k]);
        }
    }
    tp_tensor_free(p.w);
}

/* A parameter that the root does not depend on gets no hook and keeps its gradient. */
static void unreached_leaves_are_left_alone(void **state)
{
    fixture *f = *state;
    trace tr = {0};
    hook_all(f, &tr);
    tp_tensor *x = leaf(f, f->x, NULL);
    tp_tensor *used = linear(f, x, f->w[0]), *unused = linear(f, x, f->w[1]);
    tp_f32(f->w[1]->grad)[0] = 42;
    tp_reach(f->tape, &used, 1);
    assert_true(tp_is_reached(f->tape, f->w[0]));
    assert_true(tp_is_reached(f->tape, x));
    assert_true(tp_is_reached(f->tape, used));
    assert_false(tp_is_reached(f->tape, unused));
    assert_false(tp_is_reached(f->tape, f->w[1]));
    assert_false(tp_is_reached(f->tape, f->w[2]));
    assert_int_equal(tp_backward(f->tape, used, NULL, NULL), BD_OK);
    assert_string_equal(tr.text, "w0 ");
    assert_true(tc_read(f->w[1]->grad)[0] == 42);
    tp_tape_reset(f->tape);
    assert_false(tp_is_reached(f->tape, f->w[0]));
}

static void a_failing_hook_stops_backward(void **state)
{
    fixture *f = *state;
    trace tr = {.fail_with = BD_E_PEER_LOST};
    bd_err err;
    hook_all(f, &tr);
    tp_tensor *y = linear(f, linear(f, leaf(f, f->x, NULL), f->w[0]), f->w[1]);
    assert_int_equal(tp_backward(f->tape, y, NULL, &err), BD_E_PEER_LOST);
    assert_string_equal(err.text, "hook of w1");
    assert_string_equal(tr.text, "w1 ");
    /* and the tape goes on */
    tr = (trace){0};
    tp_tape_reset(f->tape);
    y = linear(f, leaf(f, f->x, NULL), f->w[0]);
    assert_int_equal(tp_backward(f->tape, y, NULL, &err), BD_OK);
    assert_string_equal(tr.text, "w0 ");
}

/* ---- accumulation ---- */

static void backward_twice_adds_up(void **state)
{
    fixture *f = *state;
    float once_w[4], once_x[4];
    tp_tensor *x = leaf(f, f->x, NULL);
    tp_tensor *y = linear(f, linear(f, x, f->w[0]), f->w[1]);
    assert_int_equal(tp_backward(f->tape, y, NULL, NULL), BD_OK);
    memcpy(once_w, tc_read(f->w[0]->grad), sizeof(once_w));
    memcpy(once_x, tc_read(x->grad), sizeof(once_x));
    assert_int_equal(tp_backward(f->tape, y, NULL, NULL), BD_OK);
    for (size_t i = 0; i < 4; i++) {
        assert_true(tc_read(f->w[0]->grad)[i] == 2 * once_w[i]);
        assert_true(tc_read(x->grad)[i] == 2 * once_x[i]);
    }
    /* and over tapes, until somebody zeroes it */
    tp_tape_reset(f->tape);
    y = linear(f, linear(f, leaf(f, f->x, NULL), f->w[0]), f->w[1]);
    assert_int_equal(tp_backward(f->tape, y, NULL, NULL), BD_OK);
    assert_true(tc_read(f->w[0]->grad)[0] == 2 * once_w[0] + once_w[0]);
    zero_grads(f);
    assert_true(tc_read(f->w[0]->grad)[0] == 0);
}

static void several_roots_are_one_backward(void **state)
{
    fixture *f = *state;
    trace tr = {0};
    float one[4], sum[4];
    static const float seed_a[] = {1, 0, 0, 2}, seed_b[] = {0, 3, -1, 0};
    tp_tensor *x = leaf(f, f->x, NULL);
    tp_tensor *h = linear(f, x, f->w[0]), *a = linear(f, h, f->w[1]), *b = linear(f, h, f->w[2]);
    assert_int_equal(tp_backward(f->tape, a, seed_a, NULL), BD_OK);
    assert_int_equal(tp_backward(f->tape, b, seed_b, NULL), BD_OK);
    memcpy(one, tc_read(f->w[0]->grad), sizeof(one));
    zero_grads(f);
    hook_all(f, &tr);
    assert_int_equal(tp_backward_roots(f->tape, (tp_tensor *[]){a, b},
                                       (const float *[]){seed_a, seed_b}, 2, NULL),
                     BD_OK);
    memcpy(sum, tc_read(f->w[0]->grad), sizeof(sum));
    for (size_t i = 0; i < 4; i++) {
        assert_true(sum[i] - one[i] < 1e-5f && one[i] - sum[i] < 1e-5f);
    }
    assert_string_equal(tr.text, "w2 w1 w0 ");
}

static void a_leaf_may_be_the_root(void **state)
{
    fixture *f = *state;
    trace tr = {0};
    hook_all(f, &tr);
    static const float seed[] = {1, 2, 3, 4};
    assert_int_equal(tp_backward_roots(f->tape, (tp_tensor *[]){f->w[0], f->w[0]},
                                       (const float *[]){seed, seed}, 2, NULL),
                     BD_OK);
    assert_true(tc_read(f->w[0]->grad)[3] == 8);
    assert_string_equal(tr.text, "w0 ");
}

static void gradients_go_where_they_are_bound(void **state)
{
    fixture *f = *state;
    float bucket[4] = {0}, rows_grad[4] = {9, 9, 9, 9}, want[4];
    tp_tensor *y = linear(f, leaf(f, f->x, NULL), f->w[0]);
    assert_int_equal(tp_backward(f->tape, y, NULL, NULL), BD_OK);
    memcpy(want, tc_read(f->w[0]->grad), sizeof(want));
    tp_param_bind_grad(f->w[0], bucket);
    tp_tape_reset(f->tape);
    y = linear(f, leaf(f, f->x, rows_grad), f->w[0]);
    assert_int_equal(tp_backward(f->tape, y, NULL, NULL), BD_OK);
    assert_memory_equal(bucket, want, sizeof(want));
    assert_true(rows_grad[0] == tc_read(f->w[0])[0] + tc_read(f->w[0])[2]); /* 9 is overwritten */
    tp_param_bind_grad(f->w[0], NULL);
    assert_memory_equal(tc_read(f->w[0]->grad), want, sizeof(want));
}

/* ---- recording ---- */

static void nothing_is_recorded_without_need(void **state)
{
    fixture *f = *state;
    tp_tensor *c = NULL, *y = NULL;
    bd_err err;
    assert_int_equal(tp_tape_wrap(f->tape, 2, (size_t[]){2, 2}, f->x, false, NULL, &c, NULL),
                     BD_OK);
    assert_int_equal(tp_relu(f->tape, c, &y, NULL), BD_OK);
    assert_int_equal(tp_tape_n_nodes(f->tape), 0);
    assert_int_equal(tp_backward(f->tape, y, NULL, &err), BD_E_STATE);
    assert_true(tp_tape_set_grad(f->tape, false));
    y = linear(f, c, f->w[0]);
    assert_int_equal(tp_tape_n_nodes(f->tape), 0);
    assert_false(y->requires_grad);
    assert_false(tp_tape_set_grad(f->tape, true));
    y = linear(f, c, f->w[0]);
    assert_int_equal(tp_tape_n_nodes(f->tape), 1);
    assert_int_equal(tp_backward(f->tape, y, NULL, &err), BD_OK);
    assert_null(c->grad); /* a constant costs no gradient */
}

/* ---- user nodes ---- */

typedef struct doubler {
    int n_runs;
    bool second_had_grad;
    bd_status fail_with;
} doubler;

/* out[0] = 2 * in, out[1] = -in */
static bd_status doubler_backward(void *user, tp_tape *tape, tp_tensor *const *in, size_t n_in,
                                  tp_tensor *const *out, size_t n_out, bd_err *err)
{
    doubler *d = user;
    float g[4] = {0};
    assert_int_equal(n_out, 2);
    d->n_runs++;
    d->second_had_grad = out[1]->grad != NULL;
    if (d->fail_with != BD_OK) {
        return bd_err_set(err, d->fail_with, "peer 3 is gone");
    }
    for (size_t i = 0; i < 4; i++) {
        g[i] += out[0]->grad == NULL ? 0 : 2 * tc_read(out[0]->grad)[i];
        g[i] -= out[1]->grad == NULL ? 0 : tc_read(out[1]->grad)[i];
    }
    return n_in == 0 ? BD_OK : tp_grad_add(tape, in[0], g, err);
}

static void user_nodes_take_part(void **state)
{
    fixture *f = *state;
    doubler d = {0};
    bd_err err;
    tp_tensor *x = leaf(f, f->x, NULL), *out[2], *sum = NULL, *late = NULL;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(tp_tape_tensor(f->tape, 2, (size_t[]){2, 2}, false, &out[i], NULL), BD_OK);
        for (size_t k = 0; k < 4; k++) {
            tp_f32(out[i])[k] = i == 0 ? 2 * f->x[k] : -f->x[k];
        }
    }
    tp_custom_node node = {.name = "remote",
                           .in = &x,
                           .n_in = 1,
                           .out = out,
                           .n_out = 2,
                           .backward = doubler_backward,
                           .user = &d};
    assert_int_equal(tp_custom(f->tape, &node, &err), BD_OK);
    assert_int_equal(tp_custom(f->tape, &node, &err), BD_E_STATE);
    assert_int_equal(tp_mul(f->tape, out[0], out[1], &sum, &err), BD_OK); /* -2 x^2 */
    assert_int_equal(tp_backward(f->tape, sum, NULL, &err), BD_OK);
    assert_true(d.second_had_grad);
    for (size_t i = 0; i < 4; i++) {
        assert_true(tc_read(x->grad)[i] == -4 * f->x[i]);
    }
    assert_int_equal(tp_relu(f->tape, out[0], &late, &err), BD_OK);
    assert_int_equal(tp_backward(f->tape, late, NULL, &err), BD_OK);
    assert_false(d.second_had_grad); /* nothing depended on it this time */
    assert_int_equal(d.n_runs, 2);
    d.fail_with = BD_E_UNAVAILABLE;
    assert_int_equal(tp_backward(f->tape, sum, NULL, &err), BD_E_UNAVAILABLE);
    assert_string_equal(err.text, "remote: peer 3 is gone");
}

/* A node without inputs stands for something received: its backward runs all the same. */
static void a_source_node_runs(void **state)
{
    fixture *f = *state;
    doubler d = {0};
    tp_tensor *out[2];
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(
            tp_tape_wrap(f->tape, 2, (size_t[]){2, 2}, f->x, false, NULL, &out[i], NULL), BD_OK);
    }
    tp_custom_node node = {
        .name = "recv", .out = out, .n_out = 2, .backward = doubler_backward, .user = &d};
    assert_int_equal(tp_custom(f->tape, &node, NULL), BD_OK);
    tp_tensor *y = linear(f, out[0], f->w[0]);
    assert_int_equal(tp_backward(f->tape, y, NULL, NULL), BD_OK);
    assert_int_equal(d.n_runs, 1);
}

/* ---- memory ---- */

static bd_status step(fixture *f, bd_err *err)
{
    tp_tensor *x = NULL, *y = NULL, *z = NULL, *loss = NULL;
    static const float labels[] = {0, 1};
    tp_tape_reset(f->tape);
    bd_status rc = tp_tape_wrap(f->tape, 2, (size_t[]){2, 2}, f->x, true, NULL, &x, err);
    if (rc == BD_OK) {
        rc = tp_linear(f->tape, x, f->w[0], NULL, TP_ACT_RELU, &y, err);
    }
    if (rc == BD_OK) {
        rc = tp_dot_interact(f->tape, (tp_tensor *[]){x, y}, 2, &z, err);
    }
    if (rc == BD_OK) {
        rc = tp_concat(f->tape, (tp_tensor *[]){z, x}, 2, &z, err);
    }
    if (rc == BD_OK) {
        rc = tp_slice(f->tape, z, 2, 1, &z, err);
    }
    if (rc == BD_OK) {
        rc = tp_bce_logits(f->tape, z, labels, 0.5f, &loss, NULL, err);
    }
    return rc == BD_OK ? tp_backward(f->tape, loss, NULL, err) : rc;
}

static void a_steady_loop_does_not_allocate(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(step(f, NULL), BD_OK);
    }
    bd_fault_fail_alloc(0); /* the next allocation would fail */
    bd_status rc = BD_OK;
    for (int i = 0; rc == BD_OK && i < 2000; i++) {
        rc = step(f, NULL);
    }
    bd_fault_fail_alloc(-1);
    assert_int_equal(rc, BD_OK);
}

/* Each allocation of a first step may fail; the tape is as good as new afterwards. */
static void every_allocation_may_fail(void **state)
{
    fixture *f = *state;
    float want[4];
    assert_int_equal(step(f, NULL), BD_OK);
    memcpy(want, tc_read(f->w[0]->grad), sizeof(want));
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        long before = bd_mem_live_blocks();
        tp_tape *fresh = NULL, *old = f->tape;
        bd_err err;
        bd_fault_fail_alloc(nth);
        rc = tp_tape_new(f->dev, &fresh, &err);
        if (rc == BD_OK) {
            f->tape = fresh;
            rc = step(f, &err);
            bd_fault_fail_alloc(-1);
            zero_grads(f);
            assert_int_equal(step(f, &err), BD_OK);
            assert_memory_equal(tc_read(f->w[0]->grad), want, sizeof(want));
            f->tape = old;
        }
        tp_tape_free(fresh);
        assert_int_equal(bd_mem_live_blocks(), before);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
        assert_true(nth < 1000);
    }
    bd_fault_fail_alloc(-1);
}

static void tensors_survive_allocation_failures(void **state)
{
    fixture *f = *state;
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        long before = bd_mem_live_blocks();
        tp_tensor *t = NULL;
        bd_fault_fail_alloc(nth);
        rc = tp_param_new(f->dev, "p", 1, (size_t[]){3}, &t, NULL);
        bd_fault_fail_alloc(-1);
        tp_tensor_free(t);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
    tp_tensor *t = NULL;
    size_t huge[] = {SIZE_MAX / 2, 3};
    assert_int_equal(tp_tensor_new(f->dev, NULL, NUM_F32, 2, huge, &t, NULL), BD_E_INVALID);
    assert_int_equal(tp_tensor_new(f->dev, NULL, NUM_F32, 0, huge, &t, NULL), BD_E_INVALID);
    assert_null(t);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(hooks_fire_once_in_the_order_of_backward),
        TEST(a_gradient_becomes_final_in_parts),
        TEST(unreached_leaves_are_left_alone),
        TEST(a_failing_hook_stops_backward),
        TEST(backward_twice_adds_up),
        TEST(several_roots_are_one_backward),
        TEST(a_leaf_may_be_the_root),
        TEST(gradients_go_where_they_are_bound),
        TEST(nothing_is_recorded_without_need),
        TEST(user_nodes_take_part),
        TEST(a_source_node_runs),
        TEST(a_steady_loop_does_not_allocate),
        TEST(every_allocation_may_fail),
        TEST(tensors_survive_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
