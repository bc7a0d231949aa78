#include "base/err.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#undef bd_err_set /* the analyser's */

/* One line, whatever a file or a peer put into it. */
static void keep(bd_err *err, const char text[BD_ERR_TEXT_BYTES])
{
    size_t n = 0;
    for (const char *c = text; *c != '\0'; c++) {
        bool control = (unsigned char)*c < 0x20 || *c == 0x7f;
        size_t room = BD_ERR_TEXT_BYTES - n;
        if (room <= (control ? 4u : 1u)) {
            break;
        }
        if (control) {
            n += (size_t)snprintf(err->text + n, room, "\\x%02x", (unsigned)*c);
        } else {
            err->text[n++] = *c;
        }
    }
    err->text[n] = '\0';
}

bd_status bd_err_set(bd_err *err, bd_status code, const char *fmt, ...)
{
    if (err != NULL) {
        char text[BD_ERR_TEXT_BYTES]; /* an argument may point into err->text */
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        err->code = code;
        keep(err, text);
    }
    return code;
}

bd_status bd_err_wrap(bd_err *err, const char *fmt, ...)
{
    if (err == NULL) {
        return BD_E_INTERNAL;
    }
    char text[BD_ERR_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof text) {
        (void)snprintf(text + n, sizeof text - (size_t)n, ": %s", bd_err_text(err));
    }
    keep(err, text);
    return err->code;
}

bd_status bd_err_errno(bd_err *err, bd_status code, int errno_value, const char *fmt, ...)
{
    if (err != NULL) {
        char text[BD_ERR_TEXT_BYTES];
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n < sizeof text) {
            char reason[128];
            /* GNU strerror_r: thread-safe, returns the text (maybe not in `reason`). */
            (void)snprintf(text + n, sizeof text - (size_t)n, ": %s",
                           strerror_r(errno_value, reason, sizeof reason));
        }
        err->code = code;
        keep(err, text);
    }
    return code;
}

const char *bd_err_text(const bd_err *err)
{
    if (err == NULL) {
        return "";
    }
    return err->text[0] != '\0' ? err->text : bd_status_text(err->code);
}

void bd_err_keep_first(bd_err *dst, const bd_err *src)
{
    if (dst != NULL && src != NULL && dst->code == BD_OK) {
        *dst = *src;
    }
}
