/* base/mem.h - heap memory that is counted and can be made to fail.
 *
 * Layer:     base.
 * Threads:   all functions from any thread.
 * Ownership: blocks are freed with bd_free (NULL is fine).
 * Faults:    every allocation asks bd_fault_alloc_fails() (base/fault.h), so that tests can fail
 * the n-th one; bd_mem_live_blocks() must return to its start value afterwards.
 */
#ifndef BD_MEM_H
#define BD_MEM_H

#include <stdbool.h>
#include <stddef.h>

#define BD_CACHE_LINE_BYTES 64

/* Returns NULL when out of memory. n_bytes == 0 gives a valid unique pointer. */
void *bd_alloc(size_t n_bytes) __attribute__((malloc));
/* n * size zeroed bytes; NULL on overflow or out of memory. */
void *bd_calloc(size_t n, size_t size_bytes) __attribute__((malloc));
/* Like realloc: on NULL the old block is untouched and still owned by the caller. */
void *bd_realloc(void *p, size_t n_bytes);
/* align: power of two >= sizeof(void *). Freed with bd_free. */
void *bd_alloc_aligned(size_t align_bytes, size_t n_bytes) __attribute__((malloc));
/* For arrays of megabytes that are used again and again: on huge pages where the system gives them
 * (an advice to the kernel; small ones do as well). Freed with bd_free. */
void *bd_alloc_huge(size_t n_bytes) __attribute__((malloc));
void bd_free(void *p);
char *bd_strdup(const char *s);
/* printf into a new owned string; NULL when out of memory. */
char *bd_strfmt(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Blocks allocated and not yet freed in this process. */
long bd_mem_live_blocks(void);
/* For memory that comes from elsewhere and counts as blocks, too (base/pages.h). */
void bd_mem_count_blocks(long more);

/* The same pointer without const, for foreign functions that do not write but take no const. */
void *bd_unconst(const void *p);

/* bd_mul_size, bd_add_size - *out = a op b; false (and *out untouched) on overflow. For sizes that
 * come from outside. */
bool bd_mul_size(size_t a, size_t b, size_t *out);
bool bd_add_size(size_t a, size_t b, size_t *out);

/* bd_grow - room for at least `need` elements of size_bytes each in a growing array; doubles. items
 * is the address of the pointer to the array, of any element type (read and written by memcpy, so
 * no aliasing rule is bent); *cap its capacity. False when out of memory (array untouched). */
bool bd_grow(void *items, size_t *cap, size_t need, size_t size_bytes);

#endif
