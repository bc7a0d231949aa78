/* worker/data/wk_parse.h - from text to numbers, ids and labels: what all formats share.
 *
 * Layer:   worker/data. Pure functions, any thread.
 * Ids:     a token's id is XXH3-64 of its bytes; the missing value is the id of the empty token.
 *          Tables are per field, so equal tokens of two fields do not meet.
 */
#ifndef WK_PARSE_H
#define WK_PARSE_H

#include "worker/data/wk_lines.h"

#include <stdint.h>

/* One column of a line; zero-terminated in place. */
typedef struct wk_tok {
    char *text;
    size_t n_bytes;
} wk_tok;

/* Cuts the line at each delimiter. At most cap tokens are stored; the return value counts all. */
size_t wk_split(char *text, const char *delimiter, wk_tok *toks, size_t cap);
/* The same for CSV: blanks around a column are dropped; "..." quotes, "" inside for one quote. */
size_t wk_split_csv(char *text, const char *delimiter, wk_tok *toks, size_t cap);
/* "tab" and "\t" mean a tab, "" the default; else the text itself. */
const char *wk_delimiter(const char *option, const char *def);

uint64_t wk_token_id(const char *text, size_t n_bytes);
/* A finite number and nothing else; false otherwise. */
bool wk_parse_f64(const wk_tok *t, double *out);
/* Digits only, without leading zeros, in place; false for other text. */
bool wk_normalise_number(wk_tok *t);
/* sign(x) ln(1 + |x|): never NaN. */
float wk_log_transform(double x);
/* The id of the bucket of x: int(ln(x + 1)^2) above 2, int(x) else. */
uint64_t wk_bucket_ln2_id(double x);

/* What makes a label. */
typedef struct wk_label_rule {
    enum { WK_LABEL_VALUE, WK_LABEL_GT, WK_LABEL_GE, WK_LABEL_TEXT } kind;
    double threshold;
    char positive[64], negative[64]; /* TEXT; negative "": everything else */
} wk_label_rule;

/* "value", ">x", ">=x", or text `positive` or `positive|negative`. BD_E_USAGE naming it. */
bd_status wk_label_rule_parse(const char *text, wk_label_rule *out, bd_err *err) BD_MUST_CHECK;
/* False: the token fits no label. A dot after a text label is dropped (UCI adult.test). */
bool wk_label(const wk_label_rule *rule, const wk_tok *t, float *out);

/* Frees an owned string that is kept as const. */
void wk_free_text(const char *s);

/* Printable copy of at most 40 bytes, in quotes; for error texts. buf holds >= 64 bytes. */
const char *wk_quote(const wk_tok *t, char *buf, size_t buf_bytes);

#endif
