/* Reading JSON: jansson behind paths. */
#include "base/json.h"
#include "base/mem.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bd_json_doc {
    json_t *root; /* owned */
};

/* jansson's own texts for a failure of memory and of the input. */
static bd_status translate(const json_error_t *e, const char *where, bd_err *err)
{
    if (json_error_code(e) == json_error_out_of_memory) {
        return bd_err_set(err, BD_E_NOMEM, "%s", where);
    }
    return bd_err_set(err, BD_E_DATA, "%s:%d:%d: not valid JSON: %s", where, e->line, e->column,
                      e->text);
}

static bd_status wrap_root(json_t *root, const json_error_t *e, const char *where,
                           bd_json_doc **out, bd_err *err)
{
    if (root == NULL) {
        return translate(e, where, err);
    }
    bd_json_doc *doc = bd_alloc(sizeof *doc);
    if (doc == NULL) {
        json_decref(root);
        return bd_err_set(err, BD_E_NOMEM, "%s", where);
    }
    doc->root = root;
    *out = doc;
    return BD_OK;
}

enum { DECODE_FLAGS = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY };

bd_status bd_json_parse(const char *text, size_t n_bytes, const char *where, bd_json_doc **out,
                        bd_err *err)
{
    json_error_t e;
    json_t *root = json_loadb(text, n_bytes, DECODE_FLAGS, &e);
    return wrap_root(root, &e, where, out, err);
}

bd_status bd_json_load(const char *path, bd_json_doc **out, bd_err *err)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return bd_err_errno(err, errno == ENOENT ? BD_E_NOT_FOUND : BD_E_IO, errno, "open %s",
                            path);
    }
    json_error_t e;
    json_t *root = json_loadf(f, DECODE_FLAGS, &e);
    bd_status rc;
    if (ferror(f) != 0) {
        json_decref(root);
        rc = bd_err_set(err, BD_E_IO, "read %s", path);
    } else {
        rc = wrap_root(root, &e, path, out, err);
    }
    (void)fclose(f);
    return rc;
}

void bd_json_free(bd_json_doc *doc)
{
    if (doc != NULL) {
        json_decref(doc->root);
        bd_free(doc);
    }
}

static const json_t *child(const json_t *node, const char *name)
{
    if (json_is_object(node)) {
        return json_object_get(node, name);
    }
    char *end = NULL;
    unsigned long i = strtoul(name, &end, 10);
    if (!json_is_array(node) || *name < '0' || *name > '9' || *end != '\0') {
        return NULL;
    }
    return json_array_get(node, i);
}

static const json_t *at(const bd_json_doc *doc, const char *path)
{
    const json_t *node = doc->root;
    while (*path != '\0' && node != NULL) {
        char name[256];
        size_t n = strcspn(path, "/");
        if (n >= sizeof name) {
            return NULL;
        }
        memcpy(name, path, n);
        name[n] = '\0';
        node = child(node, name);
        path += n + (path[n] == '/' ? 1 : 0);
    }
    return node;
}

bool bd_json_get_str(const bd_json_doc *doc, const char *path, const char **out)
{
    const json_t *v = at(doc, path);
    if (!json_is_string(v)) {
        return false;
    }
    *out = json_string_value(v);
    return true;
}

bool bd_json_get_i64(const bd_json_doc *doc, const char *path, int64_t *out)
{
    const json_t *v = at(doc, path);
    if (!json_is_integer(v)) {
        return false;
    }
    *out = json_integer_value(v);
    return true;
}

bool bd_json_get_f64(const bd_json_doc *doc, const char *path, double *out)
{
    const json_t *v = at(doc, path);
    if (!json_is_number(v)) {
        return false;
    }
    *out = json_number_value(v);
    return true;
}

bool bd_json_get_bool(const bd_json_doc *doc, const char *path, bool *out)
{
    const json_t *v = at(doc, path);
    if (!json_is_boolean(v)) {
        return false;
    }
    *out = json_is_true(v);
    return true;
}

bool bd_json_get_hex64(const bd_json_doc *doc, const char *path, uint64_t *out)
{
    const char *s;
    if (!bd_json_get_str(doc, path, &s) || strlen(s) != 16 || strspn(s, "0123456789abcdef") != 16) {
        return false;
    }
    *out = strtoull(s, NULL, 16);
    return true;
}

size_t bd_json_len(const bd_json_doc *doc, const char *path)
{
    const json_t *v = at(doc, path);
    return json_is_array(v) ? json_array_size(v) : json_is_object(v) ? json_object_size(v) : 0;
}

const char *bd_json_key_at(const bd_json_doc *doc, const char *path, size_t i)
{
    json_t *v = bd_unconst(at(doc, path)); /* jansson's iterators take no const */
    void *it = json_is_object(v) ? json_object_iter(v) : NULL;
    for (; it != NULL && i > 0; i--) {
        it = json_object_iter_next(v, it);
    }
    return it == NULL ? NULL : json_object_iter_key(it);
}
