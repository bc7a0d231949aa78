#include "base/num/cpu.h"

#include <stdlib.h>
#include <string.h>
#if NUM_X86
#include <cpuid.h>
#endif

_Atomic int num_cpu_level;

#if NUM_X86
/* F16C by hand: clang 14 does not know the name in __builtin_cpu_supports. Its operating system
 * condition (the upper register halves are saved) is the one of AVX2. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
}
#endif

static bool wanted(void)
{
    const char *env = getenv("BRAID_SIMD"); // NOLINT(concurrency-mt-unsafe): nobody calls setenv
    return env == NULL || strcmp(env, "off") != 0;
}

int num_cpu_detect(void)
{
    int level = 1;
#if NUM_X86
    __builtin_cpu_init();
    if (wanted() && __builtin_cpu_supports("avx2") && has_f16c()) {
        level = 2;
    }
#else
    (void)wanted();
#endif
    atomic_store_explicit(&num_cpu_level, level, memory_order_relaxed);
    return level;
}
