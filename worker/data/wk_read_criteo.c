/* Criteo: label, 13 integers, 26 categories, separated by tabs; an empty column is a missing value.
 *
 * data.numeric log: the integers are numbers sign(x) ln(1 + |x|), a missing one is 0 (a present 0
 * is 0 too: the set's own convention). bucket_ln2: they become 13 more categorical fields, where
 * missing is a token of its own. Categories are hashed as text, whatever their length.
 */
#include "base/mem.h"
#include "base/rand.h"

#include "worker/data/wk_format.h"

#include <string.h>

enum { N_INTS = 13, N_CATS = 26, N_COLUMNS = 1 + N_INTS + N_CATS };

typedef struct criteo {
    wk_reader base;
    const char *delimiter;
    const char *missing;
    wk_label_rule label;
    bool buckets; /* integers are categories */
} criteo;

static void criteo_close(wk_reader *r)
{
    wk_shape_deinit(&r->shape);
    bd_free(r);
}

static bd_status name_fields(wk_shape *s, bool buckets)
{
    for (size_t i = 0; i < s->n_fields; i++) {
        size_t n_ints = buckets ? N_INTS : 0;
        s->field_names[i] =
            i < n_ints ? bd_strfmt("I%zu", i + 1) : bd_strfmt("C%zu", i - n_ints + 1);
        if (s->field_names[i] == NULL) {
            return BD_E_NOMEM;
        }
    }
    return BD_OK;
}

static bd_status criteo_open(const wk_job *job, wk_reader **out, bd_err *err)
{
    const wk_job_data *cfg = &job->data;
    criteo *c = bd_calloc(1, sizeof *c);
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "criteo reader");
    }
    c->base.format = &wk_format_criteo;
    c->delimiter = wk_delimiter(cfg->delimiter, "\t");
    c->missing = cfg->missing;
    c->buckets = strcmp(cfg->numeric, "bucket_ln2") == 0;
    bd_status rc = wk_label_rule_parse(cfg->label, &c->label, err);
    if (rc == BD_OK) {
        rc = wk_shape_init(&c->base.shape, c->buckets ? 0 : N_INTS,
                           c->buckets ? N_INTS + N_CATS : N_CATS);
        if (rc == BD_OK) {
            rc = name_fields(&c->base.shape, c->buckets);
        }
        if (rc != BD_OK) {
            rc = bd_err_set(err, rc, "criteo reader: no memory");
        }
    }
    if (rc != BD_OK) {
        criteo_close(&c->base);
        return rc;
    }
    *out = &c->base;
    return BD_OK;
}

static bool is_missing(const criteo *c, const wk_tok *t)
{
    return t->n_bytes == 0 || (c->missing[0] != '\0' && strcmp(t->text, c->missing) == 0);
}

static bd_status parse_int_column(const criteo *c, const wk_line *line, const wk_tok *t, size_t i,
                                  wk_row *row, bd_err *err)
{
    char quoted[64];
    double x = 0;
    bool missing = is_missing(c, t);
    if (!missing && !wk_parse_f64(t, &x)) {
        return wk_line_bad(line, t->text, err, "column I%zu: %s is not a number", i + 1,
                           wk_quote(t, quoted, sizeof quoted));
    }
    if (c->buckets) {
        row->single[i] = missing ? wk_token_id("", 0) : wk_bucket_ln2_id(x);
    } else {
        row->dense[i] = missing ? 0.0f : wk_log_transform(x);
    }
    return BD_OK;
}

static bd_status criteo_parse(wk_reader *r, const wk_line *line, wk_row *row, bd_err *err)
{
    criteo *c = (criteo *)r;
    char quoted[64];
    wk_tok t[N_COLUMNS];
    bd_status rc = BD_OK;
    size_t n = wk_split(line->text, c->delimiter, t, N_COLUMNS);
    if (n != N_COLUMNS) {
        return wk_line_bad(line, NULL, err, "%zu columns, expected %d%s", n, N_COLUMNS,
                           n == N_COLUMNS - 1 ? ": is the label missing?" : "");
    }
    if (!wk_label(&c->label, &t[0], &row->label)) {
        return wk_line_bad(line, t[0].text, err, "label: %s is not a label",
                           wk_quote(&t[0], quoted, sizeof quoted));
    }
    for (size_t i = 0; i < N_INTS && rc == BD_OK; i++) {
        rc = parse_int_column(c, line, &t[1 + i], i, row, err);
    }
    for (size_t i = 0; i < N_CATS && rc == BD_OK; i++) {
        const wk_tok *cat = &t[1 + N_INTS + i];
        row->single[(c->buckets ? N_INTS : 0) + i] =
            is_missing(c, cat) ? wk_token_id("", 0) : wk_token_id(cat->text, cat->n_bytes);
    }
    return rc;
}

const wk_format wk_format_criteo = {"criteo", criteo_open, criteo_parse, criteo_close};
