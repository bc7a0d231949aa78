/* cli/cli_gen.h - the planted click model: rows of Criteo's shape whose best reachable AUC is
 * known.
 *
 * Layer:     cli (pure part): no files, no clock.
 * Threads:   cli_gen_row, cli_gen_format from any thread; init and deinit alone.
 * Ownership: the model owns its tables until cli_gen_deinit.
 * Promise:   row i of a part is a pure function of (spec, part, i): any chunking over threads gives
 *            the same bytes.
 *
 * The model. A row has 13 counts and 26 categorical ids. Ids of each field follow a power law,
 * P(rank r) ~ 1 / r^zipf over `cardinality` ranks. The click probability is sigmoid(s) with
 *
 *   s = intercept + scale * ( sqrt(1 - linear) * I + sqrt(linear) * L )
 *   I = sum over pairs of the first `fields` fields of <v_f(id_f), v_g(id_g)>,  v of `rank` numbers
 *   L = sum of a bias per id (every field) and of a weight times log(1 + count) (every count)
 *
 * v is centred over the power law, so that I has no main effect: nothing additive, and so no
 * logistic regression, sees any of it. I and L are brought to variance 1; intercept and scale are
 * then searched so that the mean probability is `ctr` and the model's own AUC is `auc`.
 */
#ifndef CLI_GEN_H
#define CLI_GEN_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLI_GEN_COUNTS = 13, CLI_GEN_CATS = 26, CLI_GEN_MAX_RANK = 16 };
/* No row is longer as text: label, counts of up to 11 and ids of 8 characters, separators. */
enum { CLI_GEN_ROW_BYTES = 2 + CLI_GEN_COUNTS * 12 + CLI_GEN_CATS * 9 + 1 };

typedef struct cli_gen_spec {
    uint64_t seed;
    int64_t cardinality; /* ids of each field, [2, 2^31] */
    double zipf;         /* exponent, >= 0 */
    int64_t fields;      /* that interact, [2, 26] */
    int64_t rank;        /* of the interactions, [1, 16] */
    double linear;       /* share of the score's variance that is additive, [0, 1] */
    double auc;          /* of the planted model, (0.5, 1) */
    double ctr;          /* mean click probability, (0, 1) */
} cli_gen_spec;

typedef enum cli_gen_part { CLI_GEN_TRAIN = 1, CLI_GEN_TEST = 2 } cli_gen_part;

typedef struct cli_gen_row {
    bool label;
    double prob;                    /* the planted click probability */
    int32_t counts[CLI_GEN_COUNTS]; /* valid where not missing */
    bool missing[CLI_GEN_COUNTS];
    uint32_t ranks[CLI_GEN_CATS];  /* [0, cardinality): 0 is the most frequent id */
    uint32_t tokens[CLI_GEN_CATS]; /* the id as written; distinct ranks of a field differ */
} cli_gen_row;

typedef struct cli_gen_cell { /* of an alias table */
    float keep;               /* probability to stay */
    uint32_t other;
} cli_gen_cell;

typedef struct cli_gen {
    cli_gen_spec spec;
    cli_gen_cell *cells; /* owned, [cardinality]: one draw for one id */
    float *factors;      /* owned, [fields x cardinality x rank], centred */
    double weights[CLI_GEN_COUNTS];
    double inter_scale, linear_mean, linear_scale; /* to variance 1 */
    double intercept, scale;
} cli_gen;

/* Allocates fields * cardinality * rank floats and calibrates (about 50 ms). BD_E_USAGE names the
 * option out of range; BD_E_NOMEM; BD_E_NUMERIC when `auc` cannot be reached. */
bd_status cli_gen_init(cli_gen *g, const cli_gen_spec *spec, bd_err *err) BD_MUST_CHECK;
void cli_gen_deinit(cli_gen *g);
void cli_gen_make(const cli_gen *g, cli_gen_part part, uint64_t i, cli_gen_row *out);
/* One line "label TAB counts TAB ids LF" into text[CLI_GEN_ROW_BYTES]; returns its length. */
size_t cli_gen_format(const cli_gen_row *r, char *text);

/* cli_auc - area under the ROC curve of scores against labels, ties count half; -1 when one class
 * is absent, -2 when out of memory. O(n log n). */
double cli_auc(const double *scores, const bool *labels, size_t n);

#endif
