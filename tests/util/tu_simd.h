/* tests/util/tu_simd.h - runs a test program a second time without SIMD, so that the portable
 * kernels are tested on every machine. */
#ifndef TU_SIMD_H
#define TU_SIMD_H

/* For the end of main: starts the program again with BRAID_SIMD=off when n_failed is 0 and it was
 * not off. Returns the exit status. */
int tu_run_with_and_without_simd(char **argv, int n_failed);

#endif
