/* Token rules shared by the formats. */
#include "worker/data/wk_parse.h"

#include "base/mem.h"
#include "base/rand.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t wk_split(char *text, const char *delimiter, wk_tok *toks, size_t cap)
{
    size_t n = 0, n_delim = strlen(delimiter);
    for (char *p = text;; n++) {
        char *end = n_delim == 1 ? strchr(p, delimiter[0]) : strstr(p, delimiter);
        size_t n_bytes = end != NULL ? (size_t)(end - p) : strlen(p);
        if (n < cap) {
            toks[n] = (wk_tok){p, n_bytes};
        }
        if (end == NULL) {
            return n + 1;
        }
        *end = '\0';
        p = end + n_delim;
    }
}

/* A quoted column, unescaped in place; returns what follows the closing quote. */
static char *unquote(char *p, wk_tok *tok)
{
    char *to = p;
    char *from = p + 1;
    for (; *from != '\0'; from++) {
        if (*from == '"') {
            if (from[1] != '"') {
                from++;
                break;
            }
            from++;
        }
        *to++ = *from;
    }
    *tok = (wk_tok){p, (size_t)(to - p)};
    return from;
}

size_t wk_split_csv(char *text, const char *delimiter, wk_tok *toks, size_t cap)
{
    size_t n = 0, n_delim = strlen(delimiter);
    for (char *p = text;; n++) {
        wk_tok tok;
        while (*p == ' ') {
            p++;
        }
        bool quoted = *p == '"';
        char *rest = quoted ? unquote(p, &tok) : p;
        char *end = n_delim == 1 ? strchr(rest, delimiter[0]) : strstr(rest, delimiter);
        if (!quoted) {
            tok = (wk_tok){p, end != NULL ? (size_t)(end - p) : strlen(p)};
            while (tok.n_bytes > 0 && tok.text[tok.n_bytes - 1] == ' ') {
                tok.n_bytes--;
            }
        }
        if (end != NULL) {
            *end = '\0';
        }
        tok.text[tok.n_bytes] = '\0';
        if (n < cap) {
            toks[n] = tok;
        }
        if (end == NULL) {
            return n + 1;
        }
        p = end + n_delim;
    }
}

const char *wk_delimiter(const char *option, const char *def)
{
    if (option[0] == '\0') {
        return def;
    }
    return strcmp(option, "tab") == 0 || strcmp(option, "\\t") == 0 ? "\t" : option;
}

uint64_t wk_token_id(const char *text, size_t n_bytes)
{
    return bd_hash64(text, n_bytes, 0);
}

/* Most columns are short integers; strtod costs ten times as much. */
static bool parse_short_int(const wk_tok *t, double *out)
{
    size_t i = t->text[0] == '-' ? 1 : 0;
    int64_t v = 0;
    if (t->n_bytes <= i || t->n_bytes > 15) {
        return false;
    }
    for (size_t k = i; k < t->n_bytes; k++) {
        if (t->text[k] < '0' || t->text[k] > '9') {
            return false;
        }
        v = v * 10 + (t->text[k] - '0');
    }
    *out = (double)(i == 1 ? -v : v);
    return true;
}

bool wk_parse_f64(const wk_tok *t, double *out)
{
    char *end = NULL;
    double v;
    if (parse_short_int(t, out)) {
        return true;
    }
    if (t->n_bytes == 0 || strchr("+-.0123456789", t->text[0]) == NULL) {
        return false; /* strtod would take blanks, "inf" and "nan" */
    }
    v = strtod(t->text, &end);
    if (end != t->text + t->n_bytes || !isfinite(v) || strpbrk(t->text, "xXpP") != NULL) {
        return false;
    }
    *out = v;
    return true;
}

bool wk_normalise_number(wk_tok *t)
{
    if (t->n_bytes == 0 || strspn(t->text, "0123456789") != t->n_bytes) {
        return false;
    }
    while (t->n_bytes > 1 && t->text[0] == '0') {
        t->text++;
        t->n_bytes--;
    }
    return true;
}

float wk_log_transform(double x)
{
    return (float)(x < 0 ? -log1p(-x) : log1p(x));
}

uint64_t wk_bucket_ln2_id(double x)
{
    char text[32];
    double bucket = trunc(x);
    if (x > 2) {
        double l = log(x + 1);
        bucket = trunc(l * l);
    }
    if (bucket == 0) {
        bucket = 0; /* no negative zero */
    }
    int n = snprintf(text, sizeof text, "%.0f", bucket < -1e15 ? -1e15 : bucket);
    return wk_token_id(text, (size_t)n);
}

static bool threshold(const char *text, double *out)
{
    char copy[64];
    wk_tok t = {copy, strlen(text)};
    if (t.n_bytes >= sizeof copy) {
        return false;
    }
    memcpy(copy, text, t.n_bytes + 1);
    return wk_parse_f64(&t, out);
}

bd_status wk_label_rule_parse(const char *text, wk_label_rule *out, bd_err *err)
{
    wk_label_rule r = {.kind = WK_LABEL_TEXT};
    const char *bar = strchr(text, '|');
    size_t n_pos = bar != NULL ? (size_t)(bar - text) : strlen(text);
    if (text[0] == '\0' || strcmp(text, "value") == 0) {
        r.kind = WK_LABEL_VALUE;
    } else if (text[0] == '>' && text[1] == '=' && threshold(text + 2, &r.threshold)) {
        r.kind = WK_LABEL_GE;
    } else if (text[0] == '>' && threshold(text + 1, &r.threshold)) {
        r.kind = WK_LABEL_GT;
    } else if (n_pos == 0 || n_pos >= sizeof r.positive ||
               (bar != NULL && strlen(bar + 1) >= sizeof r.negative)) {
        return bd_err_set(err, BD_E_USAGE,
                          "label rule \"%.64s\": want value, >x, >=x, text or text|text", text);
    } else {
        memcpy(r.positive, text, n_pos);
        memcpy(r.negative, bar != NULL ? bar + 1 : "", bar != NULL ? strlen(bar + 1) : 0);
    }
    *out = r;
    return BD_OK;
}

static bool text_label(const wk_label_rule *rule, const wk_tok *t, float *out)
{
    size_t n = t->n_bytes;
    if (n > 1 && t->text[n - 1] == '.') {
        n--;
    }
    bool positive = strlen(rule->positive) == n && memcmp(rule->positive, t->text, n) == 0;
    bool negative = rule->negative[0] == '\0' ||
                    (strlen(rule->negative) == n && memcmp(rule->negative, t->text, n) == 0);
    *out = positive ? 1.0f : 0.0f;
    return n > 0 && (positive || negative);
}

bool wk_label(const wk_label_rule *rule, const wk_tok *t, float *out)
{
    double x;
    if (rule->kind == WK_LABEL_TEXT) {
        return text_label(rule, t, out);
    }
    if (!wk_parse_f64(t, &x)) {
        return false;
    }
    switch (rule->kind) {
    case WK_LABEL_GT:
        *out = x > rule->threshold ? 1.0f : 0.0f;
        break;
    case WK_LABEL_GE:
        *out = x >= rule->threshold ? 1.0f : 0.0f;
        break;
    default:
        *out = (float)x;
        break;
    }
    return true;
}

void wk_free_text(const char *s)
{
    union {
        const char *in;
        char *out;
    } u = {s};
    bd_free(u.out);
}

const char *wk_quote(const wk_tok *t, char *buf, size_t buf_bytes)
{
    size_t n = 0, shown = t->n_bytes < 40 ? t->n_bytes : 40;
    buf[n++] = '"';
    for (size_t i = 0; i < shown && n + 8 < buf_bytes; i++) {
        unsigned char c = (unsigned char)t->text[i];
        buf[n++] = c >= 0x20 && c != 0x7f ? (char)c : '?';
    }
    memcpy(buf + n, shown < t->n_bytes ? "...\"" : "\"", shown < t->n_bytes ? 5 : 2);
    return buf;
}

bd_status wk_line_bad(const wk_line *line, const char *at, bd_err *err, const char *fmt, ...)
{
    char text[BD_ERR_TEXT_BYTES];
    size_t column = at != NULL ? (size_t)(at - line->text) + 1 : 1;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return bd_err_set(err, BD_E_DATA, "%s:%" PRIu64 ":%zu: %s", line->path, line->number, column,
                      text);
}
