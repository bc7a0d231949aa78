#include "base/num/hyper.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static char *skip_blanks(char *at)
{
    return at + strspn(at, " \t");
}

/* "name = number" at `at`, ended by a NUL: adds it. */
static bool add(num_hyper_list *l, char *at)
{
    char *eq = strchr(at, '='), *end = NULL;
    if (eq == NULL || l->n == NUM_HYPER_LIST_MAX) {
        return false;
    }
    char *name_end = eq;
    while (name_end > at && strchr(" \t", name_end[-1]) != NULL) {
        name_end--;
    }
    double value = strtod(eq + 1, &end);
    if (name_end == at || end == eq + 1 || *skip_blanks(end) != '\0') {
        return false;
    }
    *name_end = '\0';
    l->names[l->n] = at;
    l->values[l->n++] = value;
    return true;
}

bd_status num_hyper_list_parse(const char *text, num_hyper_list *out, bd_err *err)
{
    size_t n_bytes = strlen(text);
    out->n = 0;
    if (n_bytes >= sizeof out->text) {
        return bd_err_set(err, BD_E_INVALID, "more than %zu characters of hyperparameters",
                          sizeof out->text - 1);
    }
    memcpy(out->text, text, n_bytes + 1);
    char *at = skip_blanks(out->text);
    while (*at != '\0') {
        char *comma = strchr(at, ',');
        if (comma != NULL) {
            *comma = '\0';
        }
        if (!add(out, at)) {
            return bd_err_set(err, BD_E_INVALID, "\"%.64s\" is not name=number", at);
        }
        if (comma == NULL) {
            break;
        }
        at = skip_blanks(comma + 1);
    }
    return BD_OK;
}

/* One rule: text[0, n_bytes), without blanks around it. */
static bd_status add_rule(num_rules *r, const char *text, size_t n_bytes, bd_err *err)
{
    char list[NUM_HYPER_LIST_BYTES];
    const char *open = memchr(text, '(', n_bytes);
    size_t n_name = open == NULL ? n_bytes : (size_t)(open - text);
    size_t n_list = open == NULL ? 0 : n_bytes - n_name - 1;
    bool closed = open == NULL || (n_list > 0 && text[n_bytes - 1] == ')');
    if (n_name == 0 || n_name >= sizeof r->names[0] || n_list >= sizeof list || !closed) {
        return bd_err_set(err, BD_E_INVALID, "\"%.*s\" is not a rule like name(number=1)",
                          (int)(n_bytes < 64 ? n_bytes : 64), text);
    }
    if (r->n == NUM_RULES_MAX) {
        return bd_err_set(err, BD_E_INVALID, "more than %d rules", NUM_RULES_MAX);
    }
    memcpy(r->names[r->n], text, n_name);
    r->names[r->n][n_name] = '\0';
    list[0] = '\0';
    if (n_list > 0) {
        memcpy(list, open + 1, n_list - 1);
        list[n_list - 1] = '\0';
    }
    bd_status rc = num_hyper_list_parse(list, &r->params[r->n], err);
    if (rc != BD_OK) {
        return bd_err_wrap(err, "%s", r->names[r->n]);
    }
    r->n++;
    return BD_OK;
}

bd_status num_rules_parse(const char *text, num_rules *out, bd_err *err)
{
    bd_status rc = BD_OK;
    out->n = 0;
    for (const char *at = text == NULL ? "" : text; *at != '\0' && rc == BD_OK;) {
        size_t n = strcspn(at, ";"), before = strspn(at, " \t");
        const char *next = at[n] == '\0' ? at + n : at + n + 1;
        size_t end = n;
        while (end > before && strchr(" \t", at[end - 1]) != NULL) {
            end--;
        }
        if (end > before || at[n] == ';') {
            rc = add_rule(out, at + (before < end ? before : end), end > before ? end - before : 0,
                          err);
        }
        at = next;
    }
    return rc;
}
