/* Uneven inputs: ranks that have run out of data follow the others. Over NCCL:
 * test_ring_nccl_comm.c.
 */
#include "tests/util/ring_join.h"
#include "tests/util/ring_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void uneven_join(void **state)
{
    (void)state;
    ring_everywhere(ring_join_uneven, NULL);
    ring_everywhere(ring_join_with_no_sync, NULL);
}

static void uneven_join_options(void **state)
{
    (void)state;
    bool by_active[] = {false, true};
    ring_everywhere(ring_join_buffers, &by_active[0]);
    ring_everywhere(ring_join_buffers, &by_active[1]);
    ring_everywhere(ring_join_throws, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uneven_join),
        cmocka_unit_test(uneven_join_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
