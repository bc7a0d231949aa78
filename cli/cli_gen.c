#include "cli/cli_gen.h"

#include "base/mem.h"
#include "base/rand.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Streams of the counter-based generator: what a draw is for. */
enum { STREAM_FACTORS = 0x10, STREAM_WEIGHTS = 0x11, STREAM_CALIBRATION = 3 };

/* The rows that init looks at to bring the parts of the score to scale. */
#define CALIBRATION_ROWS 20000

/* ---- draws of one row ---- */
typedef struct draws {
    uint64_t key, part, row;
    uint32_t block;
    uint32_t words[4];
    int used;
} draws;

static uint32_t draw_u32(draws *d)
{
    if (d->used == 4) {
        bd_philox(d->key, d->row, (d->part << 32) | d->block++, d->words);
        d->used = 0;
    }
    return d->words[d->used++];
}

static double draw_unit(draws *d)
{
    uint64_t high = (uint64_t)draw_u32(d) << 32;
    return bd_unit_f64(high | draw_u32(d));
}

static double draw_normal(draws *d)
{
    double u = 1.0 - draw_unit(d); /* (0, 1] */
    return sqrt(-2.0 * log(u)) * cos(2.0 * 3.14159265358979323846 * draw_unit(d));
}

/* ---- ids ---- */
/* Walker's alias table for the power law: each cell is one column of width 1/n. */
static bd_status make_cells(cli_gen *g, const double *p)
{
    size_t n = (size_t)g->spec.cardinality;
    uint32_t *order =
        bd_calloc(n, sizeof *order); /* small ones from the left, large from the right */
    double *height = bd_calloc(n, sizeof *height);
    g->cells = bd_calloc(n, sizeof *g->cells);
    bd_status rc = order == NULL || height == NULL || g->cells == NULL ? BD_E_NOMEM : BD_OK;
    if (rc != BD_OK) {
        goto out;
    }
    size_t n_small = 0, first_large = n;
    for (size_t i = 0; i < n; i++) {
        height[i] = p[i] * (double)n;
        g->cells[i] = (cli_gen_cell){.keep = 1.0f, .other = (uint32_t)i};
        if (height[i] < 1.0) {
            order[n_small++] = (uint32_t)i;
        } else {
            order[--first_large] = (uint32_t)i;
        }
    }
    while (n_small > 0 && first_large < n) {
        uint32_t small = order[--n_small], large = order[first_large];
        g->cells[small] = (cli_gen_cell){.keep = (float)height[small], .other = large};
        height[large] -= 1.0 - height[small];
        if (height[large] < 1.0) {
            first_large++;
            order[n_small++] = large;
        }
    }
out:
    bd_free(order);
    bd_free(height);
    return rc;
}

static uint32_t draw_rank(const cli_gen *g, draws *d)
{
    uint32_t at = (uint32_t)(((uint64_t)draw_u32(d) * (uint64_t)g->spec.cardinality) >> 32);
    float u = bd_unit_f32(draw_u32(d));
    return u < g->cells[at].keep ? at : g->cells[at].other;
}

/* MurmurHash3's 32-bit finaliser, a bijection: distinct ranks get distinct tokens. */
static uint32_t token_of(const cli_gen *g, size_t field, uint32_t rank)
{
    uint32_t x = rank ^ (uint32_t)bd_mix64(g->spec.seed ^ (field << 40));
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

/* ---- the score ---- */
static const float *factor(const cli_gen *g, size_t field, uint32_t rank)
{
    size_t at = field * (size_t)g->spec.cardinality + rank;
    return g->factors + at * (size_t)g->spec.rank;
}

/* Uniform with variance 1; the fields that interact have the larger biases. */
static double bias(const cli_gen *g, size_t field, uint32_t rank)
{
    uint64_t h = bd_mix64(bd_mix64(g->spec.seed ^ 0xb1a5u) ^ ((uint64_t)field << 32) ^ rank);
    double size = (int64_t)field < g->spec.fields ? 1.0 : 0.25;
    return size * 3.4641016151377544 * (bd_unit_f64(h) - 0.5);
}

/* Half of (square of the sum - sum of the squares), number by number. */
static double interaction(const cli_gen *g, const cli_gen_row *r)
{
    double total = 0.0;
    for (size_t k = 0; k < (size_t)g->spec.rank; k++) {
        double sum = 0.0, squares = 0.0;
        for (size_t f = 0; f < (size_t)g->spec.fields; f++) {
            double v = (double)factor(g, f, r->ranks[f])[k];
            sum += v;
            squares += v * v;
        }
        total += 0.5 * (sum * sum - squares);
    }
    return total;
}

/* A missing count counts as 0, a negative one too: what log(1 + max(x, 0)) readers see. */
static double linear(const cli_gen *g, const cli_gen_row *r)
{
    double total = 0.0;
    for (size_t f = 0; f < CLI_GEN_CATS; f++) {
        total += bias(g, f, r->ranks[f]);
    }
    for (size_t j = 0; j < CLI_GEN_COUNTS; j++) {
        int32_t x = r->missing[j] || r->counts[j] < 0 ? 0 : r->counts[j];
        total += g->weights[j] * log1p((double)x);
    }
    return total;
}

static double score(const cli_gen *g, double inter, double lin)
{
    double a = sqrt(1.0 - g->spec.linear) * g->inter_scale * inter;
    double b = sqrt(g->spec.linear) * g->linear_scale * (lin - g->linear_mean);
    return g->intercept + g->scale * (a + b);
}

/* Counts are log-normal, of another size and with another share of gaps in each column; the second
 * one has small negative values, as in Criteo's data. */
static void draw_counts(draws *d, cli_gen_row *r)
{
    for (size_t j = 0; j < CLI_GEN_COUNTS; j++) {
        double x = exp(0.5 * (double)(j % 5) + 1.2 * draw_normal(d));
        r->missing[j] = draw_unit(d) < 0.04 * (double)(j % 4);
        r->counts[j] = (int32_t)(x > 1e6 ? 1e6 : x);
        if (j == 1) {
            r->counts[j] -= 2;
        }
    }
}

static void draw_inputs(const cli_gen *g, draws *d, cli_gen_row *r)
{
    draw_counts(d, r);
    for (size_t f = 0; f < CLI_GEN_CATS; f++) {
        r->ranks[f] = draw_rank(g, d);
        r->tokens[f] = token_of(g, f, r->ranks[f]);
    }
}

static double sigmoid(double s)
{
    return 1.0 / (1.0 + exp(-s));
}

static draws draws_of_row(const cli_gen *g, uint64_t part, uint64_t i)
{
    return (draws){.key = bd_mix64(g->spec.seed), .part = part, .row = i, .used = 4};
}

void cli_gen_make(const cli_gen *g, cli_gen_part part, uint64_t i, cli_gen_row *out)
{
    draws d = draws_of_row(g, (uint64_t)part, i);
    draw_inputs(g, &d, out);
    out->prob = sigmoid(score(g, interaction(g, out), linear(g, out)));
    out->label = draw_unit(&d) < out->prob;
}

/* ---- set-up ---- */
static double *power_law(const cli_gen_spec *spec)
{
    size_t n = (size_t)spec->cardinality;
    double *p = bd_calloc(n, sizeof *p);
    double sum = 0.0;
    for (size_t i = 0; p != NULL && i < n; i++) {
        p[i] = pow((double)(i + 1), -spec->zipf);
        sum += p[i];
    }
    for (size_t i = 0; p != NULL && i < n; i++) {
        p[i] /= sum;
    }
    return p;
}

/* Equal length: each id speaks as loudly as any other. */
static void normalise(float *row, size_t rank)
{
    double squares = 0.0;
    for (size_t k = 0; k < rank; k++) {
        squares += (double)row[k] * (double)row[k];
    }
    for (size_t k = 0; k < rank && squares > 0.0; k++) {
        row[k] = (float)((double)row[k] / sqrt(squares));
    }
}

static void center(float *rows, const double *p, size_t n, size_t rank)
{
    double mean[CLI_GEN_MAX_RANK] = {0};
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < rank; k++) {
            mean[k] += p[i] * (double)rows[i * rank + k];
        }
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < rank; k++) {
            rows[i * rank + k] -= (float)mean[k];
        }
    }
}

static bd_status make_factors(cli_gen *g, const double *p)
{
    size_t n = (size_t)g->spec.cardinality, rank = (size_t)g->spec.rank;
    size_t fields = (size_t)g->spec.fields, total;
    if (!bd_mul_size(n * rank, fields, &total)) {
        return BD_E_NOMEM;
    }
    g->factors = bd_calloc(total, sizeof *g->factors);
    if (g->factors == NULL) {
        return BD_E_NOMEM;
    }
    for (size_t f = 0; f < fields; f++) {
        float *rows = g->factors + f * n * rank;
        for (size_t i = 0; i < n; i++) {
            bd_rand_normal(g->spec.seed, STREAM_FACTORS + (f << 8), i, 0.0f, 1.0f, rows + i * rank,
                           rank);
            normalise(rows + i * rank, rank);
        }
        center(rows, p, n, rank);
    }
    return BD_OK;
}

typedef struct scored {
    double score;
    bool label;
} scored;

static int by_score(const void *a, const void *b)
{
    double x = ((const scored *)a)->score, y = ((const scored *)b)->score;
    return (x > y) - (x < y);
}

double cli_auc(const double *scores, const bool *labels, size_t n)
{
    scored *all = bd_calloc(n == 0 ? 1 : n, sizeof *all);
    if (all == NULL) {
        return -2.0;
    }
    for (size_t i = 0; i < n; i++) {
        all[i] = (scored){.score = scores[i], .label = labels[i]};
    }
    qsort(all, n, sizeof *all, by_score);
    double n_pos = 0.0, n_neg = 0.0, wins = 0.0; /* positives above a negative */
    for (size_t i = 0; i < n;) {
        double pos = 0.0, neg = 0.0;
        size_t j = i;
        for (; j < n && !(all[j].score > all[i].score); j++) {
            pos += all[j].label ? 1.0 : 0.0;
            neg += all[j].label ? 0.0 : 1.0;
        }
        wins += pos * (n_neg + 0.5 * neg);
        n_pos += pos;
        n_neg += neg;
        i = j;
    }
    bd_free(all);
    return n_pos > 0.0 && n_neg > 0.0 ? wins / (n_pos * n_neg) : -1.0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Expected AUC of ascending scores z under s = intercept + scale * z; labels are not drawn. */
static double expected_auc(const double *z, size_t n, double intercept, double scale)
{
    double pos = 0.0, neg = 0.0, wins = 0.0;
    for (size_t i = 0; i < n; i++) {
        double p = sigmoid(intercept + scale * z[i]);
        wins += p * neg;
        pos += p;
        neg += 1.0 - p;
    }
    return wins / (pos * neg);
}

/* Newton's method from the last answer: the mean probability grows steadily with the intercept. */
static double intercept_for(const double *z, size_t n, double scale, double ctr, double from)
{
    for (int it = 0; it < 8; it++) {
        double mean = 0.0, slope = 0.0;
        for (size_t i = 0; i < n; i++) {
            double p = sigmoid(from + scale * z[i]);
            mean += p / (double)n;
            slope += p * (1.0 - p) / (double)n;
        }
        double step = (ctr - mean) / (slope > 1e-9 ? slope : 1e-9);
        from += step > 2.0 ? 2.0 : step < -2.0 ? -2.0 : step;
    }
    return from;
}

static bd_status find_scale(cli_gen *g, const double *z, size_t n, bd_err *err)
{
    double lo = 0.0, hi = 16.0;
    g->intercept = log(g->spec.ctr / (1.0 - g->spec.ctr));
    for (int it = 0; it < 24; it++) {
        g->scale = 0.5 * (lo + hi);
        g->intercept = intercept_for(z, n, g->scale, g->spec.ctr, g->intercept);
        *(expected_auc(z, n, g->intercept, g->scale) < g->spec.auc ? &lo : &hi) = g->scale;
    }
    double got = expected_auc(z, n, g->intercept, g->scale);
    if (!(fabs(got - g->spec.auc) < 1e-3)) {
        return bd_err_set(err, BD_E_NUMERIC,
                          "datagen: auc %g cannot be reached with ctr %g (%.4f is the most)",
                          g->spec.auc, g->spec.ctr, got);
    }
    return BD_OK;
}

static void moments(const double *x, size_t n, double *mean, double *stddev)
{
    double m = 0.0, v = 0.0;
    for (size_t i = 0; i < n; i++) {
        m += x[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        v += (x[i] - m) * (x[i] - m) / (double)n;
    }
    *mean = m;
    *stddev = sqrt(v);
}

static bd_status calibrate(cli_gen *g, bd_err *err)
{
    size_t n = CALIBRATION_ROWS;
    double *inter = bd_calloc(n, sizeof *inter), *lin = bd_calloc(n, sizeof *lin);
    bd_status rc = BD_OK;
    if (inter == NULL || lin == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "datagen: calibration");
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        cli_gen_row r;
        draws d = draws_of_row(g, STREAM_CALIBRATION, i);
        draw_inputs(g, &d, &r);
        inter[i] = interaction(g, &r);
        lin[i] = linear(g, &r);
    }
    double mean, stddev;
    moments(inter, n, &mean, &stddev);
    g->inter_scale = 1.0 / stddev;
    moments(lin, n, &mean, &stddev);
    g->linear_mean = mean;
    g->linear_scale = 1.0 / stddev;
    g->scale = 1.0;
    g->intercept = 0.0;
    for (size_t i = 0; i < n; i++) {
        inter[i] = score(g, inter[i], lin[i]);
    }
    qsort(inter, n, sizeof *inter, by_value);
    rc = find_scale(g, inter, n, err);
out:
    bd_free(inter);
    bd_free(lin);
    return rc;
}

static bd_status check_range(const char *name, double v, double min, double max, bd_err *err)
{
    if (v >= min && v <= max) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_USAGE, "datagen: %s is %g, must be in [%g, %g]", name, v, min, max);
}

static bd_status check(const cli_gen_spec *s, bd_err *err)
{
    const struct {
        const char *name;
        double v, min, max;
    } ranges[] = {
        {"cardinality", (double)s->cardinality, 2, 2147483648.0},
        {"zipf", s->zipf, 0, 10},
        {"fields", (double)s->fields, 2, CLI_GEN_CATS},
        {"rank", (double)s->rank, 1, CLI_GEN_MAX_RANK},
        {"linear", s->linear, 0, 1},
        {"auc", s->auc, 0.51, 0.99},
        {"ctr", s->ctr, 0.001, 0.999},
    };
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < sizeof ranges / sizeof ranges[0]; i++) {
        rc = check_range(ranges[i].name, ranges[i].v, ranges[i].min, ranges[i].max, err);
    }
    return rc;
}

bd_status cli_gen_init(cli_gen *g, const cli_gen_spec *spec, bd_err *err)
{
    *g = (cli_gen){.spec = *spec};
    double *p = NULL;
    bd_status rc = check(spec, err);
    if (rc != BD_OK) {
        return rc;
    }
    for (size_t j = 0; j < CLI_GEN_COUNTS; j++) {
        g->weights[j] = 0.5 * (bd_unit_f64(bd_rand_u64(spec->seed, STREAM_WEIGHTS, j)) - 0.5);
    }
    p = power_law(spec);
    if (p == NULL || make_cells(g, p) != BD_OK || make_factors(g, p) != BD_OK) {
        rc = bd_err_set(err, BD_E_NOMEM, "datagen: %" PRId64 " ids in each field",
                        spec->cardinality);
        goto out;
    }
    rc = calibrate(g, err);
out:
    bd_free(p);
    if (rc != BD_OK) {
        cli_gen_deinit(g);
    }
    return rc;
}

void cli_gen_deinit(cli_gen *g)
{
    bd_free(g->cells);
    bd_free(g->factors);
    g->cells = NULL;
    g->factors = NULL;
}

/* ---- text ---- */
static char *put_i32(char *at, int32_t v)
{
    char digits[12];
    size_t n = 0;
    uint32_t u = v < 0 ? 0u - (uint32_t)v : (uint32_t)v;
    do {
        digits[n++] = (char)('0' + u % 10);
        u /= 10;
    } while (u > 0);
    if (v < 0) {
        *at++ = '-';
    }
    while (n > 0) {
        *at++ = digits[--n];
    }
    return at;
}

static char *put_hex32(char *at, uint32_t v)
{
    for (int shift = 28; shift >= 0; shift -= 4) {
        *at++ = "0123456789abcdef"[(v >> shift) & 15u];
    }
    return at;
}

size_t cli_gen_format(const cli_gen_row *r, char *text)
{
    char *at = text;
    *at++ = r->label ? '1' : '0';
    for (size_t j = 0; j < CLI_GEN_COUNTS; j++) {
        *at++ = '\t';
        at = r->missing[j] ? at : put_i32(at, r->counts[j]);
    }
    for (size_t f = 0; f < CLI_GEN_CATS; f++) {
        *at++ = '\t';
        at = put_hex32(at, r->tokens[f]);
    }
    *at++ = '\n';
    return (size_t)(at - text);
}
