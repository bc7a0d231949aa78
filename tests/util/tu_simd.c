#include "tests/util/tu_simd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int tu_run_with_and_without_simd(char **argv, int n_failed)
{
    const char *simd = getenv("BRAID_SIMD");
    if (n_failed != 0 || (simd != NULL && strcmp(simd, "off") == 0)) {
        return n_failed;
    }
    if (setenv("BRAID_SIMD", "off", 1) == 0) {
        (void)fflush(NULL);
        (void)execv("/proc/self/exe", argv);
    }
    perror("run without SIMD");
    return 1;
}
