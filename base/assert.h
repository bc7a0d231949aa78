/* base/assert.h - BD_ASSERT for our own bugs (always on), BD_DASSERT for hot loops (debug builds).
 *
 * Never for bytes from the network, the disk, a config file or another rank: those are errors.
 */
#ifndef BD_ASSERT_H
#define BD_ASSERT_H

_Noreturn void bd_assert_fail(const char *file, int line, const char *expr);

#define BD_ASSERT(expr) ((expr) ? (void)0 : bd_assert_fail(__FILE__, __LINE__, #expr))
#ifdef NDEBUG
#define BD_DASSERT(expr) ((void)0)
#else
#define BD_DASSERT(expr) BD_ASSERT(expr)
#endif

#endif
