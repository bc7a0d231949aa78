/* The option table as text: the values with their sources, JSON, help and documentation. */
#include "base/assert.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/option_int.h"

#include <ctype.h>
#include <string.h>

static const char *type_name(const bd_opt *row)
{
    switch (row->type) {
    case BD_OPT_I64:
        return "whole number";
    case BD_OPT_F64:
        return "number";
    case BD_OPT_BOOL:
        return "true or false";
    case BD_OPT_STR:
        return "text";
    case BD_OPT_ENUM:
        return row->choices;
    case BD_OPT_BYTES:
        return "size";
    case BD_OPT_DURATION_MS:
        return "duration";
    case BD_OPT_LIST:
        return "list";
    default:
        return "?";
    }
}

/* YAML reads these bare as text; anything else is quoted. */
static bool is_plain(const char *s)
{
    if (*s == '\0' || *s == '-') {
        return false;
    }
    for (; *s != '\0'; s++) {
        if (!isalnum((unsigned char)*s) && strchr("_./+-", *s) == NULL) {
            return false;
        }
    }
    return true;
}

static void print_text(const char *s, FILE *out)
{
    if (is_plain(s)) {
        (void)fprintf(out, "%s", s);
        return;
    }
    bd_json j; /* a JSON string is a YAML string */
    bd_json_init(&j);
    bd_json_str(&j, s);
    const char *text = bd_json_text(&j);
    (void)fprintf(out, "%s", text == NULL ? "?" : text);
    bd_json_deinit(&j);
}

void bd_options_print(const bd_options *o, FILE *out)
{
    for (size_t i = 0; i < o->n; i++) {
        const bd_opt *row = &o->table[i];
        const struct bd_opt_source *s = &o->sources[i];
        if (s->rank == BD_OPT_UNSET) {
            (void)fprintf(out, "# %s: not set\n", row->key);
            continue;
        }
        (void)fprintf(out, "%s: ", row->key);
        if (row->type == BD_OPT_LIST) {
            const bd_str_list *list = bd_opt_field(o, row);
            (void)fprintf(out, "[");
            for (size_t k = 0; k < list->n; k++) {
                (void)fprintf(out, "%s", k == 0 ? "" : ", ");
                print_text(list->items[k], out);
            }
            (void)fprintf(out, "]");
        } else {
            print_text(s->text, out);
        }
        (void)fprintf(out, "  # %s\n", s->where);
    }
}

static void json_value(const bd_options *o, const bd_opt *row, bd_json *j)
{
    const void *field = bd_opt_field(o, row);
    switch (row->type) {
    case BD_OPT_I64:
    case BD_OPT_BYTES:
    case BD_OPT_DURATION_MS:
        bd_json_i64(j, *(const int64_t *)field);
        break;
    case BD_OPT_F64:
        bd_json_f64(j, *(const double *)field);
        break;
    case BD_OPT_BOOL:
        bd_json_bool(j, *(const bool *)field);
        break;
    case BD_OPT_STR:
    case BD_OPT_ENUM:
        bd_json_str(j, *(const char *const *)field);
        break;
    case BD_OPT_LIST: {
        const bd_str_list *list = field;
        bd_json_arr(j);
        for (size_t k = 0; k < list->n; k++) {
            bd_json_str(j, list->items[k]);
        }
        bd_json_arr_end(j);
        break;
    }
    default:
        break; /* init has refused other types */
    }
}

static bool same_start(const char *a, const char *b, size_t n)
{
    return strncmp(a, b, n) == 0;
}

/* True when an earlier row has the same key up to n bytes: its section is written already. */
static bool seen_before(const bd_options *o, size_t i, size_t n)
{
    for (size_t k = 0; k < i; k++) {
        if (same_start(o->table[k].key, o->table[i].key, n)) {
            return true;
        }
    }
    return false;
}

/* The members of the section that the first prefix_bytes of row `first`'s key name. Rows of one
 * section need not stand together. */
static void json_section(const bd_options *o, size_t first, size_t prefix_bytes, bd_json *j)
{
    const char *prefix = o->table[first].key;
    bd_json_obj(j);
    for (size_t i = first; i < o->n; i++) {
        const bd_opt *row = &o->table[i];
        if (!same_start(row->key, prefix, prefix_bytes)) {
            continue;
        }
        const char *rest = row->key + prefix_bytes;
        const char *dot = strchr(rest, '.');
        if (dot == NULL) {
            bd_json_key(j, rest);
            json_value(o, row, j);
            continue;
        }
        size_t n = (size_t)(dot + 1 - row->key);
        if (!seen_before(o, i, n)) {
            char name[BD_OPT_KEY_BYTES];
            (void)snprintf(name, sizeof name, "%.*s", (int)(dot - rest), rest);
            bd_json_key(j, name);
            json_section(o, i, n, j);
        }
    }
    bd_json_obj_end(j);
}

char *bd_options_json(const bd_options *o)
{
    bd_json j;
    bd_json_init(&j);
    if (o->n == 0) {
        bd_json_raw(&j, "{}");
    } else {
        json_section(o, 0, 0, &j);
    }
    return bd_json_take(&j);
}

static void print_bounds(const bd_opt *row, FILE *out)
{
    if (row->min != 0 || row->max != 0) {
        const char *unit = row->type == BD_OPT_BYTES         ? " bytes"
                           : row->type == BD_OPT_DURATION_MS ? " ms"
                                                             : "";
        (void)fprintf(out, "%.15g to %.15g%s", row->min, row->max, unit);
    }
}

void bd_options_help(const bd_opt *table, size_t n, FILE *out)
{
    for (size_t i = 0; i < n; i++) {
        const bd_opt *row = &table[i];
        (void)fprintf(out, "  --%s <%s>\n        %s", row->key, type_name(row), row->help);
        if (row->def == NULL) {
            (void)fprintf(out, " (required");
        } else {
            (void)fprintf(out, " (default \"%s\"", row->def);
        }
        if (row->min != 0 || row->max != 0) {
            (void)fprintf(out, ", ");
            print_bounds(row, out);
        }
        (void)fprintf(out, ")\n");
    }
}

static void print_cell(const char *s, FILE *out)
{
    for (; *s != '\0'; s++) {
        (void)fprintf(out, "%s%c", *s == '|' ? "\\" : "", *s);
    }
}

void bd_options_markdown(const bd_opt *table, size_t n, FILE *out)
{
    (void)fprintf(out, "| Key | Takes | Default | Bounds | Meaning |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++) {
        const bd_opt *row = &table[i];
        (void)fprintf(out, "| `%s` | ", row->key);
        print_cell(type_name(row), out);
        if (row->def == NULL) {
            (void)fprintf(out, " | required | ");
        } else if (*row->def == '\0') {
            (void)fprintf(out, " | empty | ");
        } else {
            (void)fprintf(out, " | `");
            print_cell(row->def, out);
            (void)fprintf(out, "` | ");
        }
        print_bounds(row, out);
        (void)fprintf(out, " | ");
        print_cell(row->help, out);
        (void)fprintf(out, " |\n");
    }
}

bd_status bd_options_show(const bd_options *o, bool json, FILE *out, bd_err *err)
{
    if (!json) {
        bd_options_print(o, out);
        return BD_OK;
    }
    char *text = bd_options_json(o);
    if (text == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "print_config");
    }
    (void)fprintf(out, "%s\n", text);
    bd_free(text);
    return BD_OK;
}
