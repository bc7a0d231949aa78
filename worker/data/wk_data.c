/* Loading: files to rows by the job's format, rows to compact arrays, arrays to batches. */
#include "worker/data/wk_data.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/reader.h"

#include "worker/data/wk_format.h"

#include <stdlib.h>
#include <string.h>

static const wk_format *const wk_formats[] = {&wk_format_csv, &wk_format_criteo,
                                              &wk_format_ratings};

/* ---- helpers of formats ---- */

bd_status wk_shape_init(wk_shape *s, size_t n_dense, size_t n_fields)
{
    s->field_names = bd_calloc(n_fields, sizeof *s->field_names);
    s->field_multi = bd_calloc(n_fields, sizeof *s->field_multi);
    if (s->field_names == NULL || s->field_multi == NULL) {
        bd_free(s->field_names);
        bd_free(s->field_multi);
        s->field_names = NULL;
        s->field_multi = NULL;
        return BD_E_NOMEM;
    }
    s->n_dense = n_dense;
    s->n_fields = n_fields;
    return BD_OK;
}

void wk_shape_deinit(wk_shape *s)
{
    for (size_t i = 0; s->field_names != NULL && i < s->n_fields; i++) {
        wk_free_text(s->field_names[i]);
    }
    bd_free(s->field_names);
    bd_free(s->field_multi);
}

bd_status wk_row_push_id(wk_row *row, uint64_t id)
{
    if (!bd_grow(&row->multi, &row->cap_multi, row->n_multi + 1, sizeof *row->multi)) {
        return BD_E_NOMEM;
    }
    row->multi[row->n_multi++] = id;
    return BD_OK;
}

/* ---- one row into a data set ---- */

static bd_status add_bag(wk_bags *bag, size_t row_idx, const uint64_t *ids, size_t n)
{
    if (!bd_grow(&bag->ids, &bag->cap_ids, bag->n_ids + n, sizeof *bag->ids) ||
        !bd_grow(&bag->ends, &bag->cap_ends, row_idx + 1, sizeof *bag->ends)) {
        return BD_E_NOMEM;
    }
    if (ids != NULL && n > 0) {
        memcpy(bag->ids + bag->n_ids, ids, n * sizeof *ids);
    }
    bag->n_ids += n;
    bag->ends[row_idx] = bag->n_ids;
    return BD_OK;
}

/* first_n [n_fields]: ids of a multi-valued field that are kept. */
static bd_status add_row(wk_dataset *set, const wk_shape *shape, const uint32_t *first_n,
                         const wk_row *row)
{
    size_t i = set->n, n_single = 0;
    const uint64_t *multi = row->multi;
    if (i >= UINT32_MAX || !bd_grow(&set->labels, &set->cap_labels, i + 1, sizeof *set->labels) ||
        !bd_grow(&set->dense, &set->cap_dense, (i + 1) * shape->n_dense, sizeof *set->dense) ||
        !bd_grow(&set->single, &set->cap_single, (i + 1) * set->n_single, sizeof *set->single)) {
        return BD_E_NOMEM;
    }
    for (size_t f = 0; f < shape->n_fields; f++) {
        if (!shape->field_multi[f]) {
            set->single[i * set->n_single + n_single++] = row->single[f];
            continue;
        }
        uint32_t n_kept = row->n_in_bag[f] < first_n[f] ? row->n_in_bag[f] : first_n[f];
        if (add_bag(&set->bags[f], i, multi, n_kept) != BD_OK) {
            return BD_E_NOMEM;
        }
        multi += row->n_in_bag[f];
    }
    set->labels[i] = row->label;
    if (shape->n_dense > 0) {
        memcpy(set->dense + i * shape->n_dense, row->dense, shape->n_dense * sizeof *set->dense);
    }
    set->n++;
    return BD_OK;
}

static bd_status dataset_init(wk_dataset *set, const wk_shape *shape)
{
    for (size_t f = 0; f < shape->n_fields; f++) {
        set->n_single += shape->field_multi[f] ? 0 : 1;
    }
    set->bags = bd_calloc(shape->n_fields, sizeof *set->bags);
    return set->bags != NULL ? BD_OK : BD_E_NOMEM;
}

static void dataset_deinit(wk_dataset *set, size_t n_fields)
{
    for (size_t f = 0; set->bags != NULL && f < n_fields; f++) {
        bd_free(set->bags[f].ids);
        bd_free(set->bags[f].ends);
    }
    bd_free(set->bags);
    bd_free(set->labels);
    bd_free(set->dense);
    bd_free(set->single);
}

/* ---- loading a file ---- */

typedef struct loader {
    const wk_job *job;
    wk_data *d;
    wk_row row;
    bool binary;       /* labels must be 0 or 1 */
    uint32_t *first_n; /* owned [n_fields]: ids of a multi-valued field that are kept */
} loader;

static bd_status loader_init(loader *ld, const wk_job *job, wk_data *d)
{
    const wk_shape *s = d->shape;
    ld->job = job;
    ld->d = d;
    ld->binary = strcmp(job->train.loss, "bce") == 0;
    ld->row.dense = bd_calloc(s->n_dense, sizeof *ld->row.dense);
    ld->row.single = bd_calloc(s->n_fields, sizeof *ld->row.single);
    ld->row.n_in_bag = bd_calloc(s->n_fields, sizeof *ld->row.n_in_bag);
    ld->first_n = bd_calloc(s->n_fields, sizeof *ld->first_n);
    if (ld->row.dense == NULL || ld->row.single == NULL || ld->row.n_in_bag == NULL ||
        ld->first_n == NULL) {
        return BD_E_NOMEM;
    }
    return BD_OK;
}

static void loader_deinit(loader *ld)
{
    bd_free(ld->row.dense);
    bd_free(ld->row.single);
    bd_free(ld->row.multi);
    bd_free(ld->row.n_in_bag);
    bd_free(ld->first_n);
}

/* The multi-valued field that text[n_bytes] names. */
static bd_status multi_field(const wk_shape *s, const char *text, size_t n_bytes, size_t *out,
                             bd_err *err)
{
    for (size_t f = 0; f < s->n_fields; f++) {
        if (strlen(s->field_names[f]) != n_bytes || memcmp(s->field_names[f], text, n_bytes) != 0) {
            continue;
        }
        *out = f;
        return s->field_multi[f] ? BD_OK
                                 : bd_err_set(err, BD_E_USAGE,
                                              "data.first_n \"%.64s\": field %s has one value a "
                                              "sample",
                                              text, s->field_names[f]);
    }
    return bd_err_set(err, BD_E_USAGE, "data.first_n \"%.64s\": the data has no such field", text);
}

static bd_status set_first_n(loader *ld, bd_err *err)
{
    const wk_shape *s = ld->d->shape;
    const bd_str_list *list = &ld->job->data.first_n;
    for (size_t f = 0; f < s->n_fields; f++) {
        ld->first_n[f] = UINT32_MAX;
    }
    for (size_t i = 0; i < list->n; i++) {
        const char *text = list->items[i], *colon = strrchr(text, ':');
        const char *digits = colon == NULL ? text : colon + 1;
        size_t n_digits = strlen(digits), one = 0;
        if (n_digits == 0 || n_digits > 9 || strspn(digits, "0123456789") != n_digits) {
            return bd_err_set(err, BD_E_USAGE,
                              "data.first_n \"%.64s\": say a number of ids, or field:number", text);
        }
        uint32_t n = (uint32_t)strtoul(digits, NULL, 10);
        bd_status rc =
            colon == NULL ? BD_OK : multi_field(s, text, (size_t)(colon - text), &one, err);
        if (rc != BD_OK) {
            return rc;
        }
        for (size_t f = 0; f < s->n_fields; f++) {
            bool meant = colon == NULL || f == one;
            ld->first_n[f] = !meant ? ld->first_n[f] : n == 0 ? UINT32_MAX : n;
        }
    }
    return BD_OK;
}

static bd_status parse_row(loader *ld, const wk_line *line, bd_err *err)
{
    wk_row *row = &ld->row;
    wk_reader *r = ld->d->reader;
    row->n_multi = 0;
    memset(row->n_in_bag, 0, ld->d->shape->n_fields * sizeof *row->n_in_bag);
    bd_status rc = r->format->parse(r, line, row, err);
    if (rc == BD_OK && ld->binary && row->label != 0.0f && row->label != 1.0f) {
        rc = wk_line_bad(line, NULL, err,
                         "label %g is neither 0 nor 1, which train.loss bce needs; see data.label",
                         (double)row->label);
    }
    return rc;
}

static bd_status on_bad_line(loader *ld, const bd_err *why)
{
    wk_data *d = ld->d;
    d->n_bad_lines++;
    if (d->n_bad_lines > (uint64_t)ld->job->data.max_bad_lines) {
        return BD_E_DATA;
    }
    BD_LOG(WARN, "bad line skipped; see data.max_bad_lines", "reason", bd_err_text(why), "skipped",
           d->n_bad_lines);
    return BD_OK;
}

static bool is_skipped(const wk_job_data *cfg, const wk_line *line)
{
    size_t n = strlen(cfg->comment);
    return line->n_bytes == 0 || (cfg->header && line->number == 1) ||
           (n > 0 && strncmp(line->text, cfg->comment, n) == 0);
}

/* The row's set: test for a tenth of the rows when the job splits by hash. */
static wk_dataset *choose_set(loader *ld, wk_dataset *whole)
{
    if (whole != NULL) {
        return whole;
    }
    return ld->row.split_hash % 10 == 0 ? &ld->d->test : &ld->d->train;
}

static bd_status load_line(loader *ld, wk_line *line, wk_dataset *whole, bd_err *err)
{
    bd_status rc;
    if (strcmp(ld->job->data.split, "hash") == 0) {
        ld->row.split_hash = bd_fnv1a64(line->text, line->n_bytes);
    }
    if (strlen(line->text) != line->n_bytes) {
        rc = wk_line_bad(line, line->text + strlen(line->text), err, "zero byte in a text file");
    } else {
        rc = parse_row(ld, line, err);
    }
    if (rc == BD_E_DATA) {
        return on_bad_line(ld, err);
    }
    if (rc == BD_OK) {
        rc = add_row(choose_set(ld, whole), ld->d->shape, ld->first_n, &ld->row);
        if (rc != BD_OK) {
            rc = bd_err_set(err, rc, "%s:%llu: no memory for the row", line->path,
                            (unsigned long long)line->number);
        }
    }
    return rc;
}

/* whole NULL: split by hash. */
static bd_status load_file(loader *ld, const char *path, wk_dataset *whole, bd_err *err)
{
    bd_reader *file = NULL;
    const wk_job_data *cfg = &ld->job->data;
    wk_line line = {.path = path};
    int64_t n_rows = 0;
    bd_status rc = bd_reader_open(path, &file, err);
    while (rc == BD_OK && (cfg->max_rows == 0 || n_rows < cfg->max_rows)) {
        rc = bd_reader_line(file, &line.text, &line.n_bytes, err);
        if (rc != BD_OK || line.text == NULL) {
            break;
        }
        line.number = bd_reader_line_no(file);
        if (!is_skipped(cfg, &line)) {
            ld->d->n_lines++;
            n_rows++;
            rc = load_line(ld, &line, whole, err);
        }
    }
    bd_reader_close(file);
    return rc;
}

static const wk_format *find_format(const char *name)
{
    for (size_t i = 0; i < sizeof wk_formats / sizeof wk_formats[0]; i++) {
        if (strcmp(wk_formats[i]->name, name) == 0) {
            return wk_formats[i];
        }
    }
    return NULL;
}

static bd_status open_data(const wk_job *job, wk_data *d, loader *ld, bd_err *err)
{
    const wk_format *format = find_format(job->data.format);
    memset(d, 0, sizeof *d);
    memset(ld, 0, sizeof *ld);
    if (format == NULL) {
        return bd_err_set(err, BD_E_USAGE, "data.format: unknown \"%.64s\"", job->data.format);
    }
    bd_status rc = format->open(job, &d->reader, err);
    if (rc != BD_OK) {
        return rc;
    }
    d->shape = &d->reader->shape;
    rc = dataset_init(&d->train, d->shape);
    if (rc == BD_OK) {
        rc = dataset_init(&d->test, d->shape);
    }
    if (rc == BD_OK) {
        rc = loader_init(ld, job, d);
    }
    return rc == BD_OK ? set_first_n(ld, err) : bd_err_set(err, rc, "data: no memory");
}

bd_status wk_data_load(const wk_job *job, wk_data *out, bd_err *err)
{
    loader ld;
    wk_data d;
    int64_t start_ns = bd_mono_ns();
    bool by_hash = strcmp(job->data.split, "hash") == 0;
    bd_status rc = open_data(job, &d, &ld, err);
    if (rc == BD_OK) {
        rc = load_file(&ld, job->data.train, by_hash ? NULL : &d.train, err);
    }
    if (rc == BD_OK && d.train.n == 0) {
        rc = bd_err_set(err, BD_E_DATA, "%s: no rows", job->data.train);
    }
    if (rc == BD_OK && job->data.test[0] != '\0') {
        rc = load_file(&ld, job->data.test, &d.test, err);
        if (rc == BD_OK && d.test.n == 0) {
            rc = bd_err_set(err, BD_E_DATA, "%s: no rows", job->data.test);
        }
    }
    loader_deinit(&ld);
    d.seconds = (double)(bd_mono_ns() - start_ns) * 1e-9;
    if (rc == BD_OK) {
        *out = d;
    } else {
        wk_data_free(&d);
    }
    return rc;
}

bd_status wk_data_load_only(const wk_job *job, const char *path, wk_data *out, bd_err *err)
{
    loader ld;
    wk_data d;
    bd_status rc = open_data(job, &d, &ld, err);
    if (rc == BD_OK) {
        rc = load_file(&ld, path, &d.test, err);
    }
    if (rc == BD_OK && d.test.n == 0) {
        rc = bd_err_set(err, BD_E_DATA, "%s: no rows", path);
    }
    loader_deinit(&ld);
    if (rc == BD_OK) {
        *out = d;
    } else {
        wk_data_free(&d);
    }
    return rc;
}

void wk_data_free(wk_data *d)
{
    size_t n_fields = d->shape != NULL ? d->shape->n_fields : 0;
    dataset_deinit(&d->train, n_fields);
    dataset_deinit(&d->test, n_fields);
    if (d->reader != NULL) {
        d->reader->format->close(d->reader);
    }
    memset(d, 0, sizeof *d);
}

/* ---- batches ---- */

static bool alloc_batch(const wk_shape *s, size_t n, wk_batch *b)
{
    b->sample_idx = bd_arena_calloc(&b->arena, n + 1, sizeof *b->sample_idx);
    b->labels = bd_arena_calloc(&b->arena, n + 1, sizeof *b->labels);
    b->dense = bd_arena_calloc(&b->arena, n * s->n_dense + 1, sizeof *b->dense);
    b->fields = bd_arena_calloc(&b->arena, s->n_fields, sizeof *b->fields);
    return b->sample_idx != NULL && b->labels != NULL && b->dense != NULL && b->fields != NULL;
}

static size_t bag_start(const wk_bags *bag, uint32_t row)
{
    return row == 0 ? 0 : (size_t)bag->ends[row - 1];
}

static bool fill_multi(const wk_bags *bag, const uint32_t *rows, size_t n, bd_arena *a,
                       wk_field_ids *f)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        total += (size_t)bag->ends[rows[i]] - bag_start(bag, rows[i]);
    }
    f->ids = bd_arena_alloc(a, (total + 1) * sizeof *f->ids);
    f->offsets = bd_arena_alloc(a, (n + 1) * sizeof *f->offsets);
    if (f->ids == NULL || f->offsets == NULL || total > UINT32_MAX) {
        return false;
    }
    f->n_ids = 0;
    for (size_t i = 0; i < n; i++) {
        size_t from = bag_start(bag, rows[i]);
        size_t n_ids = (size_t)bag->ends[rows[i]] - from;
        f->offsets[i] = (uint32_t)f->n_ids;
        memcpy(f->ids + f->n_ids, bag->ids + from, n_ids * sizeof *f->ids);
        f->n_ids += n_ids;
    }
    f->offsets[n] = (uint32_t)f->n_ids;
    return true;
}

static bool fill_single(const wk_shape *s, const wk_dataset *set, const uint32_t *rows, size_t n,
                        wk_batch *b)
{
    uint32_t *offsets = bd_arena_alloc(&b->arena, (n + 1) * sizeof *offsets);
    size_t k = 0;
    if (offsets == NULL) {
        return false;
    }
    for (size_t i = 0; i <= n; i++) {
        offsets[i] = (uint32_t)i;
    }
    for (size_t f = 0; f < s->n_fields; f++) {
        if (s->field_multi[f]) {
            continue;
        }
        uint64_t *ids = bd_arena_alloc(&b->arena, (n + 1) * sizeof *ids);
        if (ids == NULL) {
            return false;
        }
        for (size_t i = 0; i < n; i++) {
            ids[i] = set->single[(size_t)rows[i] * set->n_single + k];
        }
        b->fields[f] = (wk_field_ids){ids, offsets, n};
        k++;
    }
    return true;
}

bd_status wk_data_batch(const wk_data *d, const wk_dataset *set, const uint32_t *rows, size_t n,
                        size_t n_global, wk_batch *b, bd_err *err)
{
    const wk_shape *s = d->shape;
    bd_arena_reset(&b->arena);
    b->n = n;
    b->n_global = n_global;
    b->n_dense = s->n_dense;
    b->n_fields = s->n_fields;
    if (!alloc_batch(s, n, b) || !fill_single(s, set, rows, n, b)) {
        return bd_err_set(err, BD_E_NOMEM, "batch of %zu samples", n);
    }
    for (size_t i = 0; i < n; i++) {
        b->sample_idx[i] = rows[i];
        b->labels[i] = set->labels[rows[i]];
        if (s->n_dense > 0) {
            memcpy(b->dense + i * s->n_dense, set->dense + (size_t)rows[i] * s->n_dense,
                   s->n_dense * sizeof *b->dense);
        }
    }
    for (size_t f = 0; f < s->n_fields; f++) {
        if (s->field_multi[f] && !fill_multi(&set->bags[f], rows, n, &b->arena, &b->fields[f])) {
            return bd_err_set(err, BD_E_NOMEM, "batch of %zu samples", n);
        }
    }
    return BD_OK;
}
