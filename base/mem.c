#include "base/mem.h"

#include "base/fault.h"
#include "base/pages.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic long live_blocks; /* statistics only: relaxed */

static void *counted(void *p)
{
    if (p != NULL) {
        atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    }
    return p;
}

void *bd_alloc(size_t n_bytes)
{
    return bd_fault_alloc_fails() ? NULL : counted(malloc(n_bytes == 0 ? 1 : n_bytes));
}

/* Sizes in this range are zeroed by writing: jemalloc's calloc zeroes a block that was used before by
 * giving its pages back to the kernel, and each of them then costs one fault, or two when it is read
 * first. Larger blocks may be meant to be touched in part only. */
#define WRITE_ZEROS_FROM_BYTES ((size_t)16 << 10)
#define WRITE_ZEROS_TO_BYTES   ((size_t)4 << 20)

void *bd_calloc(size_t n, size_t size_bytes)
{
    size_t total;
    if (!bd_mul_size(n, size_bytes, &total) || bd_fault_alloc_fails()) {
        return NULL;
    }
    if (total < WRITE_ZEROS_FROM_BYTES || total > WRITE_ZEROS_TO_BYTES) {
        return counted(calloc(1, total == 0 ? 1 : total));
    }
    void *p = counted(malloc(total));
    return p == NULL ? NULL : memset(p, 0, total);
}

void *bd_realloc(void *p, size_t n_bytes)
{
    if (bd_fault_alloc_fails()) {
        return NULL;
    }
    void *q = realloc(p, n_bytes == 0 ? 1 : n_bytes);
    return p == NULL ? counted(q) : q;
}

void *bd_alloc_aligned(size_t align_bytes, size_t n_bytes)
{
    void *p = NULL;
    if (bd_fault_alloc_fails() ||
        posix_memalign(&p, align_bytes, n_bytes == 0 ? align_bytes : n_bytes) != 0) {
        return NULL;
    }
    return counted(p);
}

void *bd_alloc_huge(size_t n_bytes)
{
    size_t bytes;
    if (n_bytes < BD_HUGE_PAGE_BYTES) {
        return bd_alloc_aligned(BD_CACHE_LINE_BYTES, n_bytes);
    }
    if (!bd_add_size(n_bytes, BD_HUGE_PAGE_BYTES - 1, &bytes)) {
        return NULL;
    }
    bytes = bytes / BD_HUGE_PAGE_BYTES * BD_HUGE_PAGE_BYTES;
    void *p = bd_alloc_aligned(BD_HUGE_PAGE_BYTES, bytes);
    if (p != NULL) {
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    }
    return p;
}

void bd_free(void *p)
{
    if (p != NULL) {
        atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
        free(p);
    }
}

char *bd_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = bd_alloc(n);
    return copy == NULL ? NULL : memcpy(copy, s, n);
}

char *bd_strfmt(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = n < 0 ? NULL : bd_alloc((size_t)n + 1);
    if (text != NULL) {
        va_start(ap, fmt);
        (void)vsnprintf(text, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    return text;
}

void bd_mem_count_blocks(long more)
{
    atomic_fetch_add_explicit(&live_blocks, more, memory_order_relaxed);
}

long bd_mem_live_blocks(void)
{
    return atomic_load_explicit(&live_blocks, memory_order_relaxed);
}

void *bd_unconst(const void *p)
{
    void *q;
    memcpy(&q, &p, sizeof q); /* a cast would need a detour over integers */
    return q;
}

bool bd_mul_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

bool bd_add_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

bool bd_grow(void *items, size_t *cap, size_t need, size_t size_bytes)
{
    if (need <= *cap) {
        return true;
    }
    size_t want = *cap < 8 ? 8 : *cap;
    while (want < need) {
        if (want > SIZE_MAX / 2) {
            return false;
        }
        want *= 2;
    }
    size_t n_bytes;
    if (!bd_mul_size(want, size_bytes, &n_bytes)) {
        return false;
    }
    void *old;
    memcpy(&old, items, sizeof old);
    void *grown = bd_realloc(old, n_bytes);
    if (grown == NULL) {
        return false;
    }
    memcpy(items, &grown, sizeof grown);
    *cap = want;
    return true;
}
