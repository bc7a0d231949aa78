/* tape/blas.h - which kernels OpenBLAS computes with.
 *
 * OpenBLAS names its kernels when it is loaded, from the CPU's family and model. A library that is
 * older than the CPU knows neither and takes the oldest kernels there are (SSE3): the same result,
 * three times slower (docs/PERFORMANCE.md). What the CPU can do is known all the same, and
 * OPENBLAS_CORETYPE in the environment decides, but only while the library is being loaded. So a
 * program that multiplies matrices starts itself again, once, with that variable set.
 *
 * Layer:   tape. Threads: any, except tp_blas_start.
 */
#ifndef TP_BLAS_H
#define TP_BLAS_H

#include <stdbool.h>

/* OpenBLAS's name of the kernels that this process uses, "SkylakeX" for instance. */
const char *tp_blas_kernels(void);

/* The kernels that a CPU with AVX2 and FMA (and the parts of AVX-512 that they use) should be given
 * instead of `kernels`; NULL: nothing better is known, or they need neither. */
const char *tp_blas_better(const char *kernels, bool avx2, bool avx512);

/* Call first in main, before there are threads or open files. Where better kernels are known it
 * replaces the process by the same program with OPENBLAS_CORETYPE set and does not return; where
 * the variable is set already, by the user or by this, or the program cannot be started again, it
 * returns and nothing has changed. The process id, argv and the environment stay. A tool that looks into
 * the process from outside (valgrind) does not follow: set the variable by hand for it. */
void tp_blas_start(char **argv);

#endif
