/* The hottest keys of many, in order, with ties by key, and the sums over all. */
#include "base/rand.h"

#include "ps_server/ps_hot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static int hottest_first(const void *a, const void *b)
{
    const ps_hot_key *x = a, *y = b;
    if (x->freq != y->freq) {
        return x->freq < y->freq ? 1 : -1;
    }
    return x->key < y->key ? -1 : x->key > y->key;
}

static void the_hottest_of_all(void **state)
{
    (void)state;
    enum { N = 3000 };
    static ps_hot_key all[N];
    for (size_t most = 1; most < (size_t)2 * N; most = 3 * most + 1) {
        ps_hot h;
        uint64_t pushes = 0;
        assert_true(ps_hot_init(&h, most));
        for (uint64_t i = 0; i < N; i++) {
            all[i] = (ps_hot_key){.key = bd_mix64(i),
                                  .last_step = i,
                                  .freq = (uint32_t)(bd_rand_u64(most, 1, i) % 500)};
            pushes += all[i].freq;
            ps_hot_offer(&h, &all[i]);
        }
        ps_hot_sort(&h);
        qsort(all, N, sizeof *all, hottest_first);
        assert_int_equal(h.n, most < N ? most : N);
        assert_int_equal(h.n_rows, N);
        assert_int_equal(h.pushes, pushes);
        for (size_t i = 0; i < h.n; i++) {
            assert_int_equal(h.items[i].key, all[i].key);
            assert_int_equal(h.items[i].last_step, all[i].last_step);
        }
        ps_hot_deinit(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_hottest_of_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
