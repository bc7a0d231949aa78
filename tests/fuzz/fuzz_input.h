/* tests/fuzz/fuzz_input.h - the fuzzer's bytes as a file with a path. */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* Returns a descriptor to close; path gets a name that opens the bytes from their start. */
static inline int fuzz_file(const uint8_t *bytes, size_t n_bytes, char path[64])
{
    int fd = memfd_create("input", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, n_bytes) != (ssize_t)n_bytes) {
        abort();
    }
    (void)snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
