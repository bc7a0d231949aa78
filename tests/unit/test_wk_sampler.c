/* Samplers: PyTorch's index arithmetic bit for bit, and the exact one: each row once an epoch, the
 * same global batches for any world. Golden permutations were made with NumPy's MT19937 and the
 * algorithm of torch.randperm; the first one is what torch 2 prints for
 * torch.manual_seed(0); torch.randperm(10). */
#include "base/mem.h"

#include "worker/data/wk_sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void mt19937_gives_the_standard_numbers(void **state)
{
    (void)state;
    wk_mt19937 g;
    uint32_t last = 0;
    wk_mt19937_seed(&g, 5489);
    assert_int_equal(wk_mt19937_next(&g), 3499211612u);
    assert_int_equal(wk_mt19937_next(&g), 581869302u);
    assert_int_equal(wk_mt19937_next(&g), 3890346734u);
    for (int i = 3; i < 10000; i++) {
        last = wk_mt19937_next(&g);
    }
    assert_int_equal(last, 4123659995u); /* the C++ standard's own check of mt19937 */
}

static void randperm_equals_torch(void **state)
{
    (void)state;
    static const uint32_t seed0[] = {4, 1, 7, 5, 3, 9, 0, 8, 6, 2};
    static const uint32_t seed1[] = {2, 12, 11, 13, 10, 6, 0, 8, 16, 9, 14, 4, 3, 7, 15, 5, 1};
    static const uint32_t seed12345[] = {8, 2, 5, 4, 1, 6, 3, 9, 0, 7, 10};
    uint32_t p[17];
    wk_randperm(0, 10, p);
    assert_memory_equal(p, seed0, sizeof seed0);
    wk_randperm(1, 17, p);
    assert_memory_equal(p, seed1, sizeof seed1);
    wk_randperm(12345, 11, p);
    assert_memory_equal(p, seed12345, sizeof seed12345);
    wk_randperm(7, 1, p);
    assert_int_equal(p[0], 0);
    wk_randperm(7, 0, p); /* touches nothing */
}

/* len(DistributedSampler) for all small cases, from its formula written with real division. */
static void distributed_length_follows_torch(void **state)
{
    (void)state;
    assert_int_equal(wk_distributed_len(10, 3, false), 4);
    assert_int_equal(wk_distributed_len(10, 3, true), 3);
    assert_int_equal(wk_distributed_len(9, 3, true), 3);
    assert_int_equal(wk_distributed_len(2, 3, true), 0);
    assert_int_equal(wk_distributed_len(2, 3, false), 1);
    assert_int_equal(wk_distributed_len(0, 3, false), 0);
    assert_int_equal(wk_distributed_len(11, 4, true), 2);
}

static void distributed_pads_from_the_head_and_strides(void **state)
{
    (void)state;
    static const uint32_t perm[] = {4, 1, 7, 5, 3, 9, 0, 8, 6, 2};
    static const uint32_t rank2[] = {7, 9, 6, 1}; /* 10 rows, world 3: padded with 4, 1 */
    static const uint32_t rank0[] = {4, 5, 0, 2};
    static const uint32_t dropped[] = {7, 9, 6};
    uint32_t out[8];
    wk_distributed_indices(perm, 10, 2, 3, false, out);
    assert_memory_equal(out, rank2, sizeof rank2);
    wk_distributed_indices(perm, 10, 0, 3, false, out);
    assert_memory_equal(out, rank0, sizeof rank0);
    wk_distributed_indices(perm, 10, 2, 3, true, out);
    assert_memory_equal(out, dropped, sizeof dropped);
    static const uint32_t two[] = {1, 0};
    wk_distributed_indices(two, 2, 4, 5, false, out); /* pad longer than the data: it repeats */
    assert_int_equal(out[0], 1);
}

static void shares_tile_the_whole(void **state)
{
    (void)state;
    for (size_t world = 1; world <= 7; world++) {
        for (size_t total = 0; total <= 30; total++) {
            size_t next = 0;
            for (size_t r = 0; r < world; r++) {
                size_t first = 0, n = 0;
                wk_share(total, r, world, &first, &n);
                assert_int_equal(first, next);
                assert_true(n == total / world || n == total / world + 1);
                next += n;
            }
            assert_int_equal(next, total);
        }
    }
}

/* Collects the global batch of a step: the ranks' parts one after the other. */
static size_t global_batch(size_t n, size_t batch, size_t world, uint64_t step, uint32_t *out)
{
    size_t total = 0;
    for (size_t r = 0; r < world; r++) {
        wk_sampler s;
        wk_sample part;
        assert_int_equal(
            wk_sampler_init(&s, &(wk_sampler_config){n, batch, r, world, 42, true, false}, NULL),
            BD_OK);
        wk_sampler_at(&s, step, &part);
        memcpy(out + total, part.rows, part.n * sizeof *out);
        total += part.n;
        if (r + 1 == world) {
            assert_int_equal(total, part.n_global);
        }
        wk_sampler_deinit(&s);
    }
    return total;
}

static void exact_batches_do_not_depend_on_the_world(void **state)
{
    (void)state;
    enum { N = 103, BATCH = 10, STEPS = 22 }; /* two epochs of 11 steps, the last ones short */
    uint32_t one[BATCH], many[BATCH];
    for (uint64_t step = 0; step < STEPS; step++) {
        size_t n = global_batch(N, BATCH, 1, step, one);
        assert_int_equal(n, step % 11 == 10 ? 3 : 10);
        for (size_t world = 2; world <= 12; world += 5) {
            assert_int_equal(global_batch(N, BATCH, world, step, many), n);
            assert_memory_equal(one, many, n * sizeof *one);
        }
    }
}

static void exact_epoch_has_each_row_once_in_a_new_order(void **state)
{
    (void)state;
    enum { N = 57 };
    wk_sampler s;
    wk_sample part;
    uint32_t first_rows[2] = {0, 0};
    assert_int_equal(wk_sampler_init(&s, &(wk_sampler_config){N, 8, 0, 1, 1, true, false}, NULL),
                     BD_OK);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        int seen[N] = {0};
        for (uint64_t i = 0; i < wk_sampler_steps_per_epoch(&s); i++) {
            wk_sampler_at(&s, epoch * wk_sampler_steps_per_epoch(&s) + i, &part);
            assert_int_equal(part.epoch, epoch);
            assert_int_equal(part.step_in_epoch, i);
            first_rows[epoch] = i == 0 ? part.rows[0] * 64 + part.rows[1] : first_rows[epoch];
            for (size_t k = 0; k < part.n; k++) {
                seen[part.rows[k]]++;
            }
        }
        for (size_t k = 0; k < N; k++) {
            assert_int_equal(seen[k], 1);
        }
    }
    assert_int_not_equal(first_rows[0], first_rows[1]);
    wk_sampler_deinit(&s);
}

static void any_step_can_be_entered_directly(void **state)
{
    (void)state;
    wk_sampler a, b;
    wk_sample x, y;
    assert_int_equal(wk_sampler_init(&a, &(wk_sampler_config){50, 7, 1, 3, 9, true, true}, NULL),
                     BD_OK);
    assert_int_equal(wk_sampler_init(&b, &(wk_sampler_config){50, 7, 1, 3, 9, true, true}, NULL),
                     BD_OK);
    for (uint64_t s = 0; s <= 20; s++) {
        wk_sampler_at(&a, s, &x);
    }
    wk_sampler_at(&b, 20, &y); /* as after a resume */
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.rows, y.rows, x.n * sizeof *x.rows);
    wk_sampler_deinit(&a);
    wk_sampler_deinit(&b);
}

static void bad_sizes_and_lost_memory_are_errors(void **state)
{
    (void)state;
    wk_sampler s;
    bd_err err = BD_ERR_INIT;
    long before = bd_mem_live_blocks();
    assert_int_equal(wk_sampler_init(&s, &(wk_sampler_config){0, 1, 0, 1, 0, true, false}, &err),
                     BD_E_INVALID);
    assert_int_equal(wk_sampler_init(&s, &(wk_sampler_config){5, 1, 2, 2, 0, true, false}, &err),
                     BD_E_INVALID);
    assert_int_equal(
        wk_sampler_init(&s, &(wk_sampler_config){(size_t)UINT32_MAX, 1, 0, 1, 0, true, false},
                        &err),
        BD_E_INVALID);
    assert_int_equal(bd_mem_live_blocks(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mt19937_gives_the_standard_numbers),
        cmocka_unit_test(randperm_equals_torch),
        cmocka_unit_test(distributed_length_follows_torch),
        cmocka_unit_test(distributed_pads_from_the_head_and_strides),
        cmocka_unit_test(shares_tile_the_whole),
        cmocka_unit_test(exact_batches_do_not_depend_on_the_world),
        cmocka_unit_test(exact_epoch_has_each_row_once_in_a_new_order),
        cmocka_unit_test(any_step_can_be_entered_directly),
        cmocka_unit_test(bad_sizes_and_lost_memory_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
