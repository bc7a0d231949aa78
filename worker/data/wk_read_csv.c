/* CSV by a schema: one `name:kind` per column, in file order.
 *
 * Kinds: numeric (as it is), log (sign(x) ln(1 + |x|)), bucket_ln2 (a category of int(ln(x + 1)^2),
 * small x as they are), cat, multi(<separator>), label(<rule>), skip. A missing number is 0 in
 * numeric and log columns and a token of its own in bucket_ln2 ones.
 */
#include "base/mem.h"
#include "base/option.h"

#include "worker/data/wk_format.h"

#include <string.h>

typedef enum column_kind {
    COL_NUMERIC,
    COL_LOG,
    COL_BUCKET,
    COL_CAT,
    COL_MULTI,
    COL_LABEL,
    COL_SKIP
} column_kind;

static const char *const kind_names[] = {"numeric", "log",   "bucket_ln2", "cat",
                                         "multi",   "label", "skip"};

typedef struct column {
    column_kind kind;
    const char *name; /* owned */
    size_t slot;      /* index among the dense columns, or field index */
    char separator[9];
} column;

typedef struct csv {
    wk_reader base;
    const char *delimiter, *missing; /* borrowed from the job */
    wk_label_rule label;
    column *cols; /* owned */
    size_t n_cols;
    wk_tok *toks; /* owned, [n_cols] */
} csv;

static void csv_close(wk_reader *r)
{
    csv *c = (csv *)r;
    for (size_t i = 0; c->cols != NULL && i < c->n_cols; i++) {
        wk_free_text(c->cols[i].name);
    }
    bd_free(c->cols);
    bd_free(c->toks);
    wk_shape_deinit(&r->shape);
    bd_free(c);
}

/* kind: "multi(|)"; the part in brackets goes to arg. */
static bd_status parse_kind(const char *item, const char *kind, column *col, char *arg,
                            size_t arg_bytes, bd_err *err)
{
    char word[32];
    const size_t n_kinds = sizeof kind_names / sizeof kind_names[0];
    size_t n = strcspn(kind, "("), n_kind = strlen(kind);
    arg[0] = '\0';
    if (n >= sizeof word || (kind[n] == '(' && kind[n_kind - 1] != ')') ||
        n_kind - n >= arg_bytes) {
        return bd_err_set(err, BD_E_USAGE, "data.schema: \"%.80s\": want name:kind or name:kind(x)",
                          item);
    }
    memcpy(word, kind, n);
    word[n] = '\0';
    if (kind[n] == '(') {
        memcpy(arg, kind + n + 1, n_kind - n - 2);
        arg[n_kind - n - 2] = '\0';
    }
    for (size_t i = 0; i < n_kinds; i++) {
        if (strcmp(kind_names[i], word) == 0) {
            col->kind = (column_kind)i;
            return BD_OK;
        }
    }
    const char *near = bd_nearest(word, kind_names, n_kinds);
    return bd_err_set(err, BD_E_USAGE, "data.schema: \"%.80s\": unknown kind%s%s%s", item,
                      near != NULL ? ", did you mean " : "", near != NULL ? near : "",
                      near != NULL ? "?" : "");
}

static bd_status parse_column(csv *c, const char *item, column *col, bd_err *err)
{
    char arg[160];
    const char *colon = strchr(item, ':');
    if (colon == NULL || colon == item) {
        return bd_err_set(err, BD_E_USAGE, "data.schema: \"%.80s\": want name:kind", item);
    }
    bd_status rc = parse_kind(item, colon + 1, col, arg, sizeof arg, err);
    if (rc != BD_OK) {
        return rc;
    }
    col->name = bd_strfmt("%.*s", (int)(colon - item), item);
    if (col->name == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "csv reader");
    }
    if (col->kind == COL_LABEL) {
        return wk_label_rule_parse(arg, &c->label, err);
    }
    if (col->kind == COL_MULTI) {
        if (strlen(arg) >= sizeof col->separator) {
            return bd_err_set(err, BD_E_USAGE, "data.schema: \"%.80s\": separator too long", item);
        }
        memcpy(col->separator, arg[0] != '\0' ? arg : "|", strlen(arg[0] != '\0' ? arg : "|") + 1);
    }
    return BD_OK;
}

static bd_status parse_schema(csv *c, const bd_str_list *schema, bd_err *err)
{
    size_t n_dense = 0, n_fields = 0, n_labels = 0;
    bd_status rc = BD_OK;
    for (size_t i = 0; i < schema->n && rc == BD_OK; i++) {
        column *col = &c->cols[i];
        rc = parse_column(c, schema->items[i], col, err);
        if (rc != BD_OK) {
            break;
        }
        n_labels += col->kind == COL_LABEL ? 1 : 0;
        if (col->kind == COL_NUMERIC || col->kind == COL_LOG) {
            col->slot = n_dense++;
        } else if (col->kind != COL_LABEL && col->kind != COL_SKIP) {
            col->slot = n_fields++;
        }
    }
    if (rc == BD_OK && n_labels != 1) {
        rc = bd_err_set(err, BD_E_USAGE, "data.schema: %zu columns of kind label, want one",
                        n_labels);
    }
    if (rc == BD_OK && wk_shape_init(&c->base.shape, n_dense, n_fields) != BD_OK) {
        rc = bd_err_set(err, BD_E_NOMEM, "csv reader");
    }
    return rc;
}

static bd_status name_fields(csv *c, bd_err *err)
{
    wk_shape *s = &c->base.shape;
    for (size_t i = 0; i < c->n_cols; i++) {
        const column *col = &c->cols[i];
        if (col->kind != COL_BUCKET && col->kind != COL_CAT && col->kind != COL_MULTI) {
            continue;
        }
        s->field_multi[col->slot] = col->kind == COL_MULTI;
        s->field_names[col->slot] = bd_strdup(col->name);
        if (s->field_names[col->slot] == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "csv reader");
        }
        for (size_t f = 0; f < col->slot; f++) {
            if (strcmp(s->field_names[f], col->name) == 0) {
                return bd_err_set(err, BD_E_USAGE, "data.schema: column \"%.64s\" twice",
                                  col->name);
            }
        }
    }
    return BD_OK;
}

static bd_status csv_open(const wk_job *job, wk_reader **out, bd_err *err)
{
    const wk_job_data *cfg = &job->data;
    csv *c = bd_calloc(1, sizeof *c);
    bd_status rc = BD_OK;
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "csv reader");
    }
    c->base.format = &wk_format_csv;
    c->delimiter = wk_delimiter(cfg->delimiter, ",");
    c->missing = cfg->missing;
    c->n_cols = cfg->schema.n;
    c->cols = bd_calloc(c->n_cols, sizeof *c->cols);
    c->toks = bd_calloc(c->n_cols, sizeof *c->toks);
    if (c->cols == NULL || c->toks == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "csv reader");
    }
    if (rc == BD_OK) {
        rc = parse_schema(c, &cfg->schema, err);
    }
    if (rc == BD_OK) {
        rc = name_fields(c, err);
    }
    if (rc != BD_OK) {
        csv_close(&c->base);
        return rc;
    }
    *out = &c->base;
    return BD_OK;
}

static bd_status push_bag(const column *col, const wk_tok *t, wk_row *row)
{
    size_t n_sep = strlen(col->separator);
    for (const char *p = t->text; *p != '\0';) {
        const char *end = strstr(p, col->separator);
        size_t n = end != NULL ? (size_t)(end - p) : strlen(p);
        if (n > 0) {
            bd_status rc = wk_row_push_id(row, wk_token_id(p, n));
            if (rc != BD_OK) {
                return rc;
            }
            row->n_in_bag[col->slot]++;
        }
        p = end != NULL ? end + n_sep : p + n;
    }
    return BD_OK;
}

static bd_status not_a_number(const wk_line *line, const column *col, const wk_tok *t, bd_err *err)
{
    char quoted[64];
    return wk_line_bad(line, t->text, err, "column %.64s: %s is not a number", col->name,
                       wk_quote(t, quoted, sizeof quoted));
}

static bd_status parse_value(csv *c, const wk_line *line, const column *col, const wk_tok *t,
                             wk_row *row, bd_err *err)
{
    char quoted[64];
    double x = 0;
    bool missing = t->n_bytes == 0 || (c->missing[0] != '\0' && strcmp(t->text, c->missing) == 0);
    bool number = col->kind == COL_NUMERIC || col->kind == COL_LOG || col->kind == COL_BUCKET;
    if (number && !missing && !wk_parse_f64(t, &x)) {
        return not_a_number(line, col, t, err);
    }
    switch (col->kind) {
    case COL_NUMERIC:
        row->dense[col->slot] = (float)x;
        return BD_OK;
    case COL_LOG:
        row->dense[col->slot] = wk_log_transform(x);
        return BD_OK;
    case COL_BUCKET:
        row->single[col->slot] = missing ? wk_token_id("", 0) : wk_bucket_ln2_id(x);
        return BD_OK;
    case COL_CAT:
        row->single[col->slot] = missing ? wk_token_id("", 0) : wk_token_id(t->text, t->n_bytes);
        return BD_OK;
    case COL_MULTI:
        return missing ? BD_OK : push_bag(col, t, row);
    case COL_LABEL:
        if (wk_label(&c->label, t, &row->label)) {
            return BD_OK;
        }
        return wk_line_bad(line, t->text, err, "column %.64s: %s is not a label", col->name,
                           wk_quote(t, quoted, sizeof quoted));
    case COL_SKIP:
        break;
    }
    return BD_OK;
}

static bd_status csv_parse(wk_reader *r, const wk_line *line, wk_row *row, bd_err *err)
{
    csv *c = (csv *)r;
    bd_status rc = BD_OK;
    size_t n = wk_split_csv(line->text, c->delimiter, c->toks, c->n_cols);
    if (n != c->n_cols) {
        return wk_line_bad(line, NULL, err, "%zu columns, expected %zu", n, c->n_cols);
    }
    for (size_t i = 0; i < c->n_cols && rc == BD_OK; i++) {
        rc = parse_value(c, line, &c->cols[i], &c->toks[i], row, err);
    }
    return rc;
}

const wk_format wk_format_csv = {"csv", csv_open, csv_parse, csv_close};
