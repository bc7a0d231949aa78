/* The plan of who sends what: pure, so checked for every small world. */
#include "ring/ring_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Every element belongs to exactly one chunk, in order, for every small world. */
static void spans_tile_the_vector(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 9; world++) {
        for (size_t n = 0; n <= 40; n++) {
            size_t next = 0;
            for (uint32_t c = 0; c < world; c++) {
                ring_span s;
                assert_int_equal(ring_plan_span(n, world, c, &s), BD_OK);
                assert_int_equal(s.first_elem, next);
                next += s.elems;
            }
            assert_int_equal(next, n);
        }
    }
    ring_span untouched = {7, 7};
    assert_int_equal(ring_plan_span(5, 0, 0, &untouched), BD_E_INVALID);
    assert_int_equal(ring_plan_span(5, 2, 2, &untouched), BD_E_INVALID);
    assert_int_equal(untouched.elems, 7);
}

static void segments_tile_the_span_and_an_empty_span_has_one(void **state)
{
    (void)state;
    for (size_t n = 0; n <= 20; n++) {
        for (size_t seg = 1; seg <= 7; seg++) {
            ring_span span = {100, n};
            size_t next = 100;
            uint32_t count = ring_plan_n_segments(&span, seg);
            assert_true(count >= 1);
            for (uint32_t s = 0; s < count; s++) {
                ring_span got = ring_plan_segment(&span, seg, s);
                assert_int_equal(got.first_elem, next);
                assert_true(got.elems <= seg && (got.elems > 0 || n == 0));
                next += got.elems;
            }
            assert_int_equal(next, 100 + n);
        }
    }
}

/* What a rank sends at step t + 1 is what it got from its left at step t, and after world - 1 steps
 * a chunk has been everywhere. */
static void chunks_go_round_the_ring(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 9; world++) {
        for (uint32_t r = 0; r < world; r++) {
            uint32_t left = (r + world - 1) % world;
            for (uint32_t t = 0; t < 2 * world; t++) {
                assert_int_equal(ring_plan_chunk(r, world, t + 1), ring_plan_chunk(left, world, t));
            }
        }
    }
}

/* Both trees reach every rank once, from its parent, for every root. */
static void trees_reach_everybody_once(void **state)
{
    (void)state;
    for (int world = 1; world <= 17; world++) {
        for (int root = 0; root < world; root++) {
            for (int chain = 0; chain <= 1; chain++) {
                int n_edges = 0;
                for (int r = 0; r < world; r++) {
                    for (int i = 0; ring_plan_child(r, world, root, chain, i) >= 0; i++) {
                        int kid = ring_plan_child(r, world, root, chain, i);
                        assert_int_equal(ring_plan_parent(kid, world, root, chain), r);
                        n_edges++;
                    }
                }
                assert_int_equal(n_edges, world - 1);
                assert_int_equal(ring_plan_parent(root, world, root, chain), -1);
            }
        }
    }
}

static void binomial_tree_is_logarithmic(void **state)
{
    (void)state;
    assert_int_equal(ring_plan_child(0, 8, 0, 0, 0), 4);
    assert_int_equal(ring_plan_child(0, 8, 0, 0, 1), 2);
    assert_int_equal(ring_plan_child(0, 8, 0, 0, 2), 1);
    assert_int_equal(ring_plan_child(0, 8, 0, 0, 3), -1);
    assert_int_equal(ring_plan_child(4, 8, 0, 0, 0), 6);
    assert_int_equal(ring_plan_parent(7, 8, 0, 0), 6);
    assert_int_equal(ring_plan_rounds(1), 0);
    assert_int_equal(ring_plan_rounds(2), 1);
    assert_int_equal(ring_plan_rounds(5), 3);
    assert_int_equal(ring_plan_rounds(8), 3);
    assert_int_equal(ring_plan_rounds(9), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_tile_the_vector),
        cmocka_unit_test(segments_tile_the_span_and_an_empty_span_has_one),
        cmocka_unit_test(chunks_go_round_the_ring),
        cmocka_unit_test(trees_reach_everybody_once),
        cmocka_unit_test(binomial_tree_is_logarithmic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
