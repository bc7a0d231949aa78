/* base/pages.h - memory for what is read at random by the gigabyte: pieces cut out of huge pages.
 *
 * A row or an index entry on 4 KiB pages costs a walk of the page tables besides its cache miss;
 * blocks of less than 2 MiB never get a huge page from the kernel. So pieces of all owners of the
 * process share aligned chunks of 2 MiB for which huge pages are asked (madvise; where the system
 * has none, small ones do as well).
 *
 * Layer:     base.
 * Threads:   any; one lock, for a few comparisons.
 * Ownership: a piece belongs to the caller until bd_pages_free with the size it was asked with.
 * Cost:      sizes are rounded up to pages of 4 KiB, of each chunk one page is the book-keeping. A
 *            chunk is resident as a whole from its first use; it goes back to the system when its
 *            last piece is freed. Pieces that do not fit a chunk get mappings of their own.
 * Faults:    as base/mem.h: counted as live blocks, and the n-th can be made to fail.
 */
#ifndef BD_PAGES_H
#define BD_PAGES_H

#include <stddef.h>

#define BD_PAGE_BYTES      ((size_t)4 << 10)
#define BD_HUGE_PAGE_BYTES ((size_t)2 << 20)

/* Aligned to BD_PAGE_BYTES, uninitialised. NULL: no memory. n_bytes > 0. */
void *bd_pages_alloc(size_t n_bytes) __attribute__((malloc));
void bd_pages_free(void *p, size_t n_bytes); /* NULL is fine */

/* Bytes mapped for pieces now: at least what they take. A statistic. */
size_t bd_pages_mapped_bytes(void);

#endif
