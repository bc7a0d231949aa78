/* Gradients that are not finite or too long: what each policy makes of them. */
#include "ps_server/ps_policy.h"
#include "ps_server/ps_table.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "braid/v1/parameter_server.pb-c.h"

enum { DIM = 3, N = 4 };

static ps_spec spec_of(ps_policy policy, float most)
{
    return (ps_spec){.name = "t", .dim = DIM, .policy = policy, .max_grad_norm = most};
}

/* Keys 10 to 13; the rows of 11 and 13 are bad. */
static const float given[N * DIM] = {1, 2, 2, 0, NAN, 1, -1, 0, 0, -INFINITY, 3, 4};

typedef struct outcome {
    bd_status rc;
    uint64_t keys[N];
    float grads[N * DIM];
    size_t n;
    ps_bad bad;
    bd_err err;
} outcome;

static outcome apply(ps_policy policy, float most)
{
    outcome o = {.keys = {10, 11, 12, 13}, .n = N};
    ps_spec s = spec_of(policy, most);
    memcpy(o.grads, given, sizeof given);
    o.rc = ps_policy_apply(&s, o.keys, o.grads, &o.n, &o.bad, &o.err);
    return o;
}

static void refusals_name_key_and_value(void **state)
{
    (void)state;
    for (int p = PS_POLICY_REJECT; p <= PS_POLICY_HALT; p += PS_POLICY_HALT - PS_POLICY_REJECT) {
        outcome o = apply((ps_policy)p, 0);
        assert_int_equal(o.rc, BD_E_NUMERIC);
        assert_string_equal(bd_err_text(&o.err),
                            "table \"t\": the gradient of key 11 element 1 is nan");
        assert_int_equal(o.bad.key, 11);
        o = apply((ps_policy)p, 2.5f);
        assert_string_equal(bd_err_text(&o.err),
                            "table \"t\": the gradient of key 10 has norm 3, more than 2.5");
        assert_true(o.bad.key == 10 && o.bad.n_rows == 1);
    }
}

static void dropped_rows_leave_the_others(void **state)
{
    (void)state;
    outcome o = apply(PS_POLICY_DROP_ROW, 0);
    assert_int_equal(o.rc, BD_OK);
    assert_true(o.n == 2 && o.keys[0] == 10 && o.keys[1] == 12);
    assert_memory_equal(o.grads, given, DIM * sizeof(float));
    assert_memory_equal(o.grads + DIM, given + (size_t)2 * DIM, DIM * sizeof(float));
    assert_true(o.bad.n_rows == 2 && o.bad.key == 11);
    o = apply(PS_POLICY_DROP_ROW, 0.5f); /* all */
    assert_true(o.rc == BD_OK && o.n == 0 && o.bad.n_rows == N);
}

static void clipped_rows_are_as_long_as_allowed(void **state)
{
    (void)state;
    outcome o = apply(PS_POLICY_CLIP, 1.5f);
    const float want[N * DIM] = {0.5f, 1, 1, 0, 0, 1, -1, 0, 0};
    assert_true(o.rc == BD_OK && o.n == N && o.bad.n_rows == 3);
    assert_memory_equal(o.grads, want, (size_t)3 * DIM * sizeof(float));
    double norm = 0; /* of (-1.5, 3, 4), scaled */
    for (size_t e = 9; e < 12; e++) {
        norm += (double)o.grads[e] * (double)o.grads[e];
    }
    assert_true(fabs(sqrt(norm) - 1.5) < 1e-6 && o.grads[9] < 0);
    assert_true(fabs((double)o.grads[10] / (double)o.grads[9] + 2) < 1e-5);
}

/* The largest finite gradients have a finite norm; a limit is met exactly. */
static void finite_gradients_pass(void **state)
{
    (void)state;
    float g[DIM] = {FLT_MAX, -FLT_MAX, FLT_MAX};
    uint64_t key = 1;
    size_t n = 1;
    ps_bad bad;
    ps_spec s = spec_of(PS_POLICY_REJECT, 0);
    assert_int_equal(ps_policy_apply(&s, &key, g, &n, &bad, NULL), BD_OK);
    float at[DIM] = {1, 2, 2};
    s.max_grad_norm = 3;
    assert_int_equal(ps_policy_apply(&s, &key, at, &n, &bad, NULL), BD_OK);
    n = 0;
    assert_int_equal(ps_policy_apply(&s, &key, at, &n, &bad, NULL), BD_OK);
    assert_int_equal(bad.n_rows, 0);
}

static bd_status parse(int policy, double most, ps_spec *s, bd_err *err)
{
    Braid__V1__TableSpec m;
    char name[] = "t", none[] = "";
    braid__v1__table_spec__init(&m);
    m.name = name;
    m.initializer = none;
    m.optimizer = none;
    m.dim = DIM;
    m.bad_gradient = (Braid__V1__BadGradient)policy;
    m.max_gradient_norm = most;
    return ps_spec_parse(&m, s, err);
}

static void specs_carry_the_policy(void **state)
{
    (void)state;
    ps_spec s, back;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(parse(0, 0, &s, &err), BD_OK);
    assert_int_equal(s.policy, PS_POLICY_REJECT);
    assert_int_equal(parse(3, 2.5, &s, &err), BD_OK);
    bd_buf *packed = ps_spec_pack(&s);
    assert_int_equal(ps_spec_unpack(packed->bytes, packed->n_bytes, &back, &err), BD_OK);
    bd_buf_unref(packed);
    assert_int_equal(ps_spec_same(&s, &back, &err), BD_OK);
    assert_true(back.policy == PS_POLICY_CLIP && back.max_grad_norm == 2.5f);
    back.policy = PS_POLICY_HALT;
    assert_int_equal(ps_spec_same(&s, &back, &err), BD_E_MISMATCH);
    assert_string_equal(bd_err_text(&err), "table \"t\" exists with bad_gradient clip, not halt");
    back = s;
    back.max_grad_norm = 3;
    assert_int_equal(ps_spec_same(&s, &back, &err), BD_E_MISMATCH);
    assert_int_equal(parse(5, 0, &s, &err), BD_E_INVALID);
    assert_int_equal(parse(-1, 0, &s, &err), BD_E_INVALID);
    assert_int_equal(parse(1, (double)NAN, &s, &err), BD_E_INVALID);
    assert_int_equal(parse(1, -1, &s, &err), BD_E_INVALID);
    assert_int_equal(parse(3, 0, &s, &err), BD_E_INVALID);
    assert_string_equal(bd_err_text(&err),
                        "table \"t\": bad_gradient clip needs a max_gradient_norm");
}

/* Counted for the table, with the key: what ListTables shows. */
static void tables_count_them(void **state)
{
    (void)state;
    ps_spec s;
    uint64_t key = 1;
    assert_int_equal(parse(2, 0, &s, NULL), BD_OK);
    ps_table *t = ps_table_new(&s, NULL);
    assert_int_equal(ps_table_n_bad(t, &key), 0);
    ps_table_count_bad(t, 2, UINT64_MAX);
    ps_table_count_bad(t, 1, 0);
    assert_int_equal(ps_table_n_bad(t, &key), 3);
    assert_int_equal(key, 0);
    ps_table_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_name_key_and_value),
        cmocka_unit_test(dropped_rows_leave_the_others),
        cmocka_unit_test(clipped_rows_are_as_long_as_allowed),
        cmocka_unit_test(finite_gradients_pass),
        cmocka_unit_test(specs_carry_the_policy),
        cmocka_unit_test(tables_count_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
