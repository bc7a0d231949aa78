/* base/num/hyper.h - a named number with a default and bounds: the row of which checks, help and
 * docs of optimisers and initialisers are made; lists of them, and rules made of them, as text.
 * Layer: base/num. Pure: no allocation, any thread.
 */
#ifndef NUM_HYPER_H
#define NUM_HYPER_H

#include "base/err.h"

#include <stddef.h>

typedef struct num_hyper {
    const char *name;
    double def, min, max;
    const char *help;
} num_hyper;

/* Names and values of a text like "beta1=0.8, eps=1e-6". The names lie in `text`: do not copy. */
#define NUM_HYPER_LIST_MAX   16
#define NUM_HYPER_LIST_BYTES 512
typedef struct num_hyper_list {
    size_t n;
    const char *names[NUM_HYPER_LIST_MAX];
    double values[NUM_HYPER_LIST_MAX];
    char text[NUM_HYPER_LIST_BYTES];
} num_hyper_list;

/* Fills out from text (empty: an empty list). BD_E_INVALID shows the part that is not name=number.
 */
bd_status num_hyper_list_parse(const char *text, num_hyper_list *out, bd_err *err) BD_MUST_CHECK;

/* Rules with numbers, as "ttl(steps=1000); lru(max_rows=1e6)": a name, its numbers if any in
 * parentheses, semicolons between. */
#define NUM_RULES_MAX 4
typedef struct num_rules {
    size_t n;
    char names[NUM_RULES_MAX][64];
    num_hyper_list params[NUM_RULES_MAX];
} num_rules;

/* Fills out from text (NULL or empty: none). BD_E_INVALID shows the part that is wrong. */
bd_status num_rules_parse(const char *text, num_rules *out, bd_err *err) BD_MUST_CHECK;

#endif
