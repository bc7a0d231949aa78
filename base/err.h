/* base/err.h - the error trail: a code and one line of text, wrapped on the way up.
 *
 * Layer:     base.
 * Threads:   a bd_err belongs to one caller; no locks.
 * Ownership: plain struct on the caller's stack, nothing to free. Every function takes NULL for
 * "the caller does not want the text". Use:       filled where the failure happens (bd_err_set),
 * prefixed where context is added (bd_err_wrap), logged once where it is handled.
 */
#ifndef BD_ERR_H
#define BD_ERR_H

#include "base/status.h"

#define BD_ERR_TEXT_BYTES 512

typedef struct bd_err {
    bd_status code;
    char text[BD_ERR_TEXT_BYTES]; /* always terminated; cut at the end when too long */
} bd_err;

#define BD_ERR_INIT               \
    {                             \
        .code = BD_OK, .text = "" \
    }

/* Control characters in a text become "\x0a" and the like: what came from a file or a peer cannot
 * start a second line. */

/* bd_err_set - records code and text (printf format) and returns code, so that a failing function
 * can end with `return bd_err_set(err, BD_E_IO, "open %s: %s", path, ...)`. Overwrites what was
 * there. */
bd_status bd_err_set(bd_err *err, bd_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __clang_analyzer__
/* The analyser of clang-tidy looks at one file at a time: it is told what comes back. */
/* NOLINTNEXTLINE(readability-identifier-naming) */
#define bd_err_set(err, code, ...) ((void)bd_err_set((err), (code), __VA_ARGS__), (code))
#endif

/* bd_err_wrap - puts "<prefix>: " before the text; the code stays. Returns the code. */
bd_status bd_err_wrap(bd_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* bd_err_errno - bd_err_set with ": <strerror(errno_value)>" after the text. */
bd_status bd_err_errno(bd_err *err, bd_status code, int errno_value, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* bd_err_text - the text, or the code's own text when none was set. Never NULL. */
const char *bd_err_text(const bd_err *err);

/* bd_err_keep_first - copies src to dst only when dst holds no error yet: the first error wins. */
void bd_err_keep_first(bd_err *dst, const bd_err *src);

#endif
