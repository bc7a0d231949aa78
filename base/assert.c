#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

/* The one place below main that ends the process: a broken invariant is worse than a dead process.
 */
_Noreturn void bd_assert_fail(const char *file, int line, const char *expr)
{
    (void)fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, expr);
    abort();
}
