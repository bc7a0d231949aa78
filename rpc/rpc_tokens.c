#include "rpc/rpc_tokens.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define SPACE " \t\r"

static bd_status fill_secret(rpc_token *t, const char *text, size_t n)
{
    if (n < RPC_TOKEN_MIN_BYTES || n > RPC_TOKEN_MAX_BYTES) {
        return BD_E_INVALID;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] <= ' ' || text[i] > '~') {
            return BD_E_INVALID;
        }
    }
    memset(t->secret, 0, sizeof t->secret);
    t->secret[0] = (uint8_t)n;
    memcpy(t->secret + 1, text, n);
    return BD_OK;
}

/* The next word of the line, or an empty one. */
static const char *next_word(const char **at, const char *end, size_t *n)
{
    const char *p = *at;
    while (p < end && strchr(SPACE, *p) != NULL) {
        p++;
    }
    const char *start = p;
    while (p < end && strchr(SPACE, *p) == NULL) {
        p++;
    }
    *n = (size_t)(p - start);
    *at = p;
    return start;
}

static bool scope_from(const char *word, size_t n, rpc_scope *out)
{
    for (int s = RPC_SCOPE_READ; s <= RPC_SCOPE_ADMIN; s++) {
        const char *name = rpc_scope_name((rpc_scope)s);
        if (strlen(name) == n && strncmp(name, word, n) == 0) {
            *out = (rpc_scope)s;
            return true;
        }
    }
    return false;
}

static bd_status parse_line(const char *path, int line_no, const char *line, const char *end,
                            rpc_token *out, bd_err *err)
{
    size_t n_name, n_scope, n_token, n_rest;
    const char *at = line;
    const char *name = next_word(&at, end, &n_name);
    const char *scope = next_word(&at, end, &n_scope);
    const char *token = next_word(&at, end, &n_token);
    (void)next_word(&at, end, &n_rest);
    if (n_token == 0 || n_rest != 0) {
        return bd_err_set(err, BD_E_USAGE, "%s:%d: a line is `name scope token`", path, line_no);
    }
    if (n_name >= sizeof out->name) {
        return bd_err_set(err, BD_E_USAGE, "%s:%d: the name has more than %zu bytes", path, line_no,
                          sizeof out->name - 1);
    }
    *out = (rpc_token){0};
    memcpy(out->name, name, n_name);
    if (!scope_from(scope, n_scope, &out->scope)) {
        return bd_err_set(err, BD_E_USAGE, "%s:%d: the second word is not read, train or admin",
                          path, line_no);
    }
    if (fill_secret(out, token, n_token) != BD_OK) {
        return bd_err_set(err, BD_E_USAGE, "%s:%d: the token must have %d to %d printable bytes",
                          path, line_no, RPC_TOKEN_MIN_BYTES, RPC_TOKEN_MAX_BYTES);
    }
    return BD_OK;
}

static bool is_blank(const char *line, const char *end)
{
    line += strspn(line, SPACE);
    return line >= end || *line == '#';
}

static size_t count_lines(const char *text)
{
    size_t n = 1;
    for (; *text != '\0'; text++) {
        n += *text == '\n' ? 1 : 0;
    }
    return n;
}

bd_status rpc_tokens_parse(const char *path, const char *text, rpc_tokens **out, bd_err *err)
{
    size_t n_lines = count_lines(text);
    n_lines = n_lines < RPC_TOKENS_MAX ? n_lines : RPC_TOKENS_MAX;
    rpc_tokens *t = bd_calloc(1, sizeof *t + n_lines * sizeof t->items[0]);
    if (t == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "%s: out of memory", path);
    }
    atomic_init(&t->refs, 1);
    bd_status rc = BD_OK;
    const char *line = text;
    for (int no = 1; rc == BD_OK && *line != '\0'; no++) {
        const char *end = line + strcspn(line, "\n");
        if (!is_blank(line, end)) {
            rc = t->n == n_lines ? bd_err_set(err, BD_E_USAGE, "%s:%d: more than %d tokens", path,
                                              no, RPC_TOKENS_MAX)
                                 : parse_line(path, no, line, end, &t->items[t->n], err);
            t->n++;
        }
        line = *end == '\n' ? end + 1 : end;
    }
    if (rc == BD_OK && t->n == 0) {
        rc = bd_err_set(err, BD_E_USAGE, "%s: holds no token", path);
    }
    if (rc != BD_OK) {
        rpc_tokens_unref(t);
        return rc;
    }
    *out = t;
    return BD_OK;
}

void rpc_tokens_unref(rpc_tokens *t)
{
    if (t != NULL && atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1) {
        explicit_bzero(t->items, t->n * sizeof t->items[0]);
        bd_free(t);
    }
}

/* 0 when equal; always reads all of both. */
static uint64_t difference(const uint8_t *a, const uint8_t *b)
{
    uint64_t d = 0;
    for (size_t i = 0; i <= RPC_TOKEN_MAX_BYTES; i += sizeof d) {
        uint64_t x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        d |= x ^ y;
        __asm__("" : "+r"(d)); /* no early end, however clever the compiler */
    }
    return d;
}

const rpc_token *rpc_tokens_find(const rpc_tokens *t, const char *token, size_t n)
{
    rpc_token asked;
    const rpc_token *found = NULL;
    if (fill_secret(&asked, token, n) != BD_OK) {
        return NULL;
    }
    for (size_t i = 0; i < t->n; i++) {
        found = difference(t->items[i].secret, asked.secret) == 0 ? &t->items[i] : found;
    }
    explicit_bzero(&asked, sizeof asked);
    return found;
}

bd_status rpc_token_parse_own(const char *path, char *text, bd_err *err)
{
    rpc_token check;
    size_t n;
    const char *at = text;
    const char *word = next_word(&at, text + strcspn(text, "\n"), &n);
    if (fill_secret(&check, word, n) != BD_OK) {
        return bd_err_set(err, BD_E_USAGE,
                          "%s: the first line must be a token of %d to %d printable bytes", path,
                          RPC_TOKEN_MIN_BYTES, RPC_TOKEN_MAX_BYTES);
    }
    explicit_bzero(&check, sizeof check);
    memmove(text, word, n);
    text[n] = '\0';
    return BD_OK;
}
