#include "tape/blas.h"
#include "tape/cpu_int.h"

#include <cblas.h>
#include <stddef.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

static const char variable[] = "OPENBLAS_CORETYPE";

void tp_cpu_blas_threads(int n_threads)
{
    openblas_set_num_threads(n_threads);
}

const char *tp_blas_kernels(void)
{
    return openblas_get_corename();
}

const char *tp_blas_better(const char *kernels, bool avx2, bool avx512)
{
    /* Of x86-64, those that use no AVX2. */
    static const char *const old[] = {"Prescott", "Core2",        "Penryn",      "Dunnington",
                                      "Nehalem",  "Atom",         "Nano",        "Opteron",
                                      "Athlon",   "Opteron_SSE3", "Barcelona",   "Bobcat",
                                      "Generic",  "Unknown",      "Sandybridge", "Bulldozer"};
    for (size_t i = 0; avx2 && i < sizeof old / sizeof *old; i++) {
        if (strcasecmp(kernels, old[i]) == 0) {
            return avx512 ? "SkylakeX" : "Haswell";
        }
    }
    return NULL;
}

#if defined(__x86_64__)
static const char *better_here(void)
{
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512cd");
    return tp_blas_better(tp_blas_kernels(), avx2, avx512);
}
#else
static const char *better_here(void)
{
    return NULL;
}
#endif

void tp_blas_start(char **argv)
{
    const char *better = better_here();
    if (better == NULL ||
        getenv(variable) != NULL ||         /* NOLINT(concurrency-mt-unsafe): one thread */
        setenv(variable, better, 0) != 0) { /* NOLINT(concurrency-mt-unsafe): one thread */
        return;
    }
    (void)execv("/proc/self/exe", argv);
}
