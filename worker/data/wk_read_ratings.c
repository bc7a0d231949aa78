/* Ratings: user, item, rating[, time], by a delimiter of one or more bytes (`::`, tab, comma).
 *
 * Fields: user, item, and with data.items the bag item_tags. data.ids number: "0104257" and
 * "104257" are one item; a side file's items are normalised alike. An item that the side file does
 * not know has an empty bag. data.split hash looks at `user<TAB>item` as normalised.
 */
#include "base/mem.h"
#include "base/rand.h"
#include "base/reader.h"

#include "worker/data/wk_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_USER, FIELD_ITEM, FIELD_TAGS };

/* One item's values: tags[first .. first + n). */
typedef struct item_tags {
    uint64_t item; /* id of the normalised text */
    size_t first, n;
} item_tags;

typedef struct ratings {
    wk_reader base;
    const wk_job_data *cfg; /* borrowed */
    const char *delimiter;
    wk_label_rule label;
    bool numbers;
    item_tags *items; /* owned, sorted by item */
    size_t n_items, cap_items;
    uint64_t *tags; /* owned */
    size_t n_tags, cap_tags;
} ratings;

static void ratings_close(wk_reader *r)
{
    ratings *t = (ratings *)r;
    bd_free(t->items);
    bd_free(t->tags);
    wk_shape_deinit(&r->shape);
    bd_free(t);
}

static bd_status normalise(const ratings *r, const wk_line *line, wk_tok *t, const char *what,
                           bd_err *err)
{
    char quoted[64];
    if (t->n_bytes == 0) {
        return wk_line_bad(line, t->text, err, "%s is empty", what);
    }
    if (r->numbers && !wk_normalise_number(t)) {
        return wk_line_bad(line, t->text, err,
                           "%s: %s is not a number; data.ids text takes any text", what,
                           wk_quote(t, quoted, sizeof quoted));
    }
    return BD_OK;
}

static bd_status add_tags(ratings *r, uint64_t item, const char *text, bd_err *err)
{
    const char *separator = r->cfg->items_separator;
    item_tags it = {item, r->n_tags, 0};
    for (const char *p = text; *p != '\0';) {
        const char *end = strstr(p, separator);
        size_t n = end != NULL ? (size_t)(end - p) : strlen(p);
        if (n > 0) {
            if (!bd_grow(&r->tags, &r->cap_tags, r->n_tags + 1, sizeof *r->tags)) {
                return bd_err_set(err, BD_E_NOMEM, "tags of the items");
            }
            r->tags[r->n_tags++] = wk_token_id(p, n);
            it.n++;
        }
        p = end != NULL ? end + strlen(separator) : p + n;
    }
    if (!bd_grow(&r->items, &r->cap_items, r->n_items + 1, sizeof *r->items)) {
        return bd_err_set(err, BD_E_NOMEM, "tags of the items");
    }
    r->items[r->n_items++] = it;
    return BD_OK;
}

static bd_status parse_item(ratings *r, const wk_line *line, bd_err *err)
{
    wk_tok t[64];
    size_t column = (size_t)r->cfg->items_column;
    size_t n = wk_split(line->text, r->delimiter, t, 64);
    if (n < column || column > 64) {
        return wk_line_bad(line, NULL, err, "%zu columns, data.items_column is %zu", n, column);
    }
    bd_status rc = normalise(r, line, &t[0], "item", err);
    return rc == BD_OK ? add_tags(r, wk_token_id(t[0].text, t[0].n_bytes), t[column - 1].text, err)
                       : rc;
}

static int by_item(const void *a, const void *b)
{
    uint64_t x = ((const item_tags *)a)->item, y = ((const item_tags *)b)->item;
    return x < y ? -1 : x > y ? 1 : 0;
}

static bd_status load_items(ratings *r, bd_err *err)
{
    const char *path = r->cfg->items;
    bd_reader *file = NULL;
    wk_line line = {.path = path};
    bd_status rc = bd_reader_open(path, &file, err);
    while (rc == BD_OK) {
        rc = bd_reader_line(file, &line.text, &line.n_bytes, err);
        if (rc != BD_OK || line.text == NULL) {
            break;
        }
        line.number = bd_reader_line_no(file);
        if (line.n_bytes > 0 && !(r->cfg->header && line.number == 1)) {
            rc = parse_item(r, &line, err);
        }
    }
    bd_reader_close(file);
    if (rc == BD_OK && r->n_items == 0) {
        rc = bd_err_set(err, BD_E_DATA, "%s: no items", path);
    }
    if (rc == BD_OK) {
        qsort(r->items, r->n_items, sizeof *r->items, by_item);
    }
    for (size_t i = 1; rc == BD_OK && i < r->n_items; i++) {
        if (r->items[i].item == r->items[i - 1].item) {
            rc = bd_err_set(err, BD_E_DATA, "%s: an item is listed twice", path);
        }
    }
    return rc;
}

static bd_status init_shape(ratings *r, bd_err *err)
{
    static const char *const names[] = {"user", "item", "item_tags"};
    wk_shape *s = &r->base.shape;
    const size_t n_fields = r->cfg->items[0] != '\0' ? 3 : 2;
    bd_status rc = wk_shape_init(s, 0, n_fields);
    for (size_t i = 0; rc == BD_OK && i < n_fields; i++) {
        s->field_names[i] = bd_strdup(names[i]);
        s->field_multi[i] = i == FIELD_TAGS;
        rc = s->field_names[i] != NULL ? BD_OK : BD_E_NOMEM;
    }
    return rc == BD_OK ? BD_OK : bd_err_set(err, rc, "ratings reader: no memory");
}

static bd_status ratings_open(const wk_job *job, wk_reader **out, bd_err *err)
{
    ratings *r = bd_calloc(1, sizeof *r);
    if (r == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "ratings reader");
    }
    r->base.format = &wk_format_ratings;
    r->cfg = &job->data;
    r->delimiter = wk_delimiter(job->data.delimiter, "::");
    r->numbers = strcmp(job->data.ids, "number") == 0;
    bd_status rc = wk_label_rule_parse(job->data.label, &r->label, err);
    if (rc == BD_OK) {
        rc = init_shape(r, err);
    }
    if (rc == BD_OK && r->base.shape.n_fields == 3) {
        rc = load_items(r, err);
    }
    if (rc != BD_OK) {
        ratings_close(&r->base);
        return rc;
    }
    *out = &r->base;
    return BD_OK;
}

static bd_status push_tags(ratings *r, uint64_t item, wk_row *row)
{
    item_tags key = {.item = item};
    const item_tags *it =
        bsearch(&key, r->items, r->n_items, sizeof *r->items, by_item); /* NULL: unknown item */
    for (size_t i = 0; it != NULL && i < it->n; i++) {
        bd_status rc = wk_row_push_id(row, r->tags[it->first + i]);
        if (rc != BD_OK) {
            return rc;
        }
        row->n_in_bag[FIELD_TAGS]++;
    }
    return BD_OK;
}

static uint64_t split_hash(const wk_tok *user, const wk_tok *item)
{
    char text[256];
    if (user->n_bytes + item->n_bytes + 1 >= sizeof text) { /* no published split has such ids */
        return bd_fnv1a64(user->text, user->n_bytes) ^ bd_fnv1a64(item->text, item->n_bytes);
    }
    memcpy(text, user->text, user->n_bytes);
    text[user->n_bytes] = '\t';
    memcpy(text + user->n_bytes + 1, item->text, item->n_bytes);
    return bd_fnv1a64(text, user->n_bytes + 1 + item->n_bytes);
}

static bd_status ratings_parse(wk_reader *base, const wk_line *line, wk_row *row, bd_err *err)
{
    ratings *r = (ratings *)base;
    char quoted[64];
    wk_tok t[4];
    size_t n = wk_split(line->text, r->delimiter, t, 4);
    if (n != 3 && n != 4) {
        return wk_line_bad(line, NULL, err, "%zu columns, expected user, item, rating[, time]", n);
    }
    bd_status rc = normalise(r, line, &t[0], "user", err);
    if (rc == BD_OK) {
        rc = normalise(r, line, &t[1], "item", err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    if (!wk_label(&r->label, &t[2], &row->label)) {
        return wk_line_bad(line, t[2].text, err, "rating: %s is not a number",
                           wk_quote(&t[2], quoted, sizeof quoted));
    }
    row->single[FIELD_USER] = wk_token_id(t[0].text, t[0].n_bytes);
    row->single[FIELD_ITEM] = wk_token_id(t[1].text, t[1].n_bytes);
    row->split_hash = split_hash(&t[0], &t[1]);
    return r->base.shape.n_fields == 3 ? push_tags(r, row->single[FIELD_ITEM], row) : BD_OK;
}

const wk_format wk_format_ratings = {"ratings", ratings_open, ratings_parse, ratings_close};
