/* base/num/cpu.h - which SIMD versions this processor (and its operating system) can run.
 *
 * Layer:   base/num. Threads: any; the answer is found once and never changes.
 * Use:     a kernel is written as `attribute NUM_AVX2` beside its portable twin and picked by
 *          num_cpu_has_avx2(). BRAID_SIMD=off in the environment answers false, which a support
 *          engineer uses to rule the SIMD versions out.
 */
#ifndef NUM_CPU_H
#define NUM_CPU_H

#include <stdatomic.h>
#include <stdbool.h>

#if defined(__x86_64__)
#define NUM_X86 1
/* No fma on purpose: a fused multiply-add rounds once and would differ from the reference. */
#define NUM_AVX2 __attribute__((target("avx2,f16c")))
#else
#define NUM_X86 0
#endif

extern _Atomic int
    num_cpu_level; /* 0 not asked yet, 1 portable, 2 AVX2; the same for every writer */
int num_cpu_detect(void);

/* AVX2 and F16C. A load and a compare: it is asked for every row of an optimiser step. */
static inline bool num_cpu_has_avx2(void)
{
    int level = atomic_load_explicit(&num_cpu_level, memory_order_relaxed);
    return (level != 0 ? level : num_cpu_detect()) == 2;
}

#endif
