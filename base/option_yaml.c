/* A YAML file into the option table: nested keys are joined with dots. */
#include "base/mem.h"
#include "base/option_int.h"

#include <errno.h>
#include <string.h>
#include <yaml.h>

enum { MAX_NESTING = 16, MAX_LIST_ITEMS = 4096 };

typedef struct walk {
    bd_options *o;
    yaml_document_t *doc;
    const char *path;
    int load_no;
    bd_err *err;
} walk;

static const char *text_of(const yaml_node_t *node)
{
    return (const char *)node->data.scalar.value;
}

static int line_of(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

static bd_status refuse(const walk *w, const yaml_node_t *node, const char *key, const char *why)
{
    return bd_err_set(w->err, BD_E_USAGE, "%s:%d: %s: %s", w->path, line_of(node), key, why);
}

static bool is_duplicate(const walk *w, int row)
{
    const struct bd_opt_source *s = &w->o->sources[row];
    return s->load_no == w->load_no;
}

static bd_status put_sequence(walk *w, const yaml_node_t *node, int row, const char *where)
{
    const char *key = w->o->table[row].key;
    if (w->o->table[row].type != BD_OPT_LIST) {
        return refuse(w, node, key, "takes one value, not a list");
    }
    const yaml_node_item_t *first = node->data.sequence.items.start;
    size_t n = (size_t)(node->data.sequence.items.top - first);
    if (n > MAX_LIST_ITEMS) {
        return refuse(w, node, key, "has too many items");
    }
    const char **items = bd_calloc(n, sizeof *items);
    if (items == NULL) {
        return bd_err_set(w->err, BD_E_NOMEM, "%s", where);
    }
    bd_status rc = BD_OK;
    for (size_t i = 0; i < n && rc == BD_OK; i++) {
        const yaml_node_t *item = yaml_document_get_node(w->doc, first[i]);
        if (item == NULL || item->type != YAML_SCALAR_NODE) {
            rc = refuse(w, item == NULL ? node : item, key,
                        "is a list of plain values; a mapping or list inside it is not possible");
        } else {
            items[i] = text_of(item);
        }
    }
    if (rc == BD_OK) {
        rc = bd_opt_put_list(w->o, (size_t)row, items, n, BD_OPT_FROM_YAML, where, w->err);
    }
    bd_free(items);
    return rc;
}

static bool is_null(const yaml_node_t *node)
{
    const char *s = text_of(node);
    return node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (*s == '\0' || strcmp(s, "~") == 0 || strcmp(s, "null") == 0);
}

/* A value that is no mapping. */
static bd_status put_leaf(walk *w, const yaml_node_t *node, const char *key)
{
    char where[BD_ERR_TEXT_BYTES / 2];
    (void)snprintf(where, sizeof where, "%s:%d", w->path, line_of(node));
    int row = bd_opt_find(w->o, key);
    if (row < 0) {
        return bd_opt_unknown(w->o, where, key, w->err);
    }
    if (is_duplicate(w, row)) {
        return bd_err_set(w->err, BD_E_USAGE, "%s: %s: given twice (first at %s)", where, key,
                          w->o->sources[row].where);
    }
    if (node->type == YAML_SEQUENCE_NODE) {
        bd_status rc = put_sequence(w, node, row, where);
        if (rc != BD_OK) {
            return rc;
        }
    } else {
        if (is_null(node)) {
            return refuse(w, node, key, "has no value");
        }
        bd_status rc =
            bd_opt_put(w->o, (size_t)row, text_of(node), BD_OPT_FROM_YAML, where, w->err);
        if (rc != BD_OK) {
            return rc;
        }
    }
    w->o->sources[row].load_no = w->load_no;
    return BD_OK;
}

static bd_status put_mapping(walk *w, const yaml_node_t *node, const char *prefix, int depth);

static bd_status put_pair(walk *w, const yaml_node_pair_t *pair, const char *prefix, int depth)
{
    const yaml_node_t *key_node = yaml_document_get_node(w->doc, pair->key);
    const yaml_node_t *val_node = yaml_document_get_node(w->doc, pair->value);
    if (key_node->type != YAML_SCALAR_NODE) {
        return refuse(w, key_node, prefix, "a key must be a plain word");
    }
    char key[BD_OPT_KEY_BYTES];
    int n =
        snprintf(key, sizeof key, "%s%s%s", prefix, *prefix == '\0' ? "" : ".", text_of(key_node));
    if (n < 0 || (size_t)n >= sizeof key) {
        return refuse(w, key_node, prefix, "key is too long");
    }
    if (val_node->type != YAML_MAPPING_NODE) {
        return put_leaf(w, val_node, key);
    }
    if (bd_opt_find(w->o, key) >= 0) {
        return refuse(w, key_node, key, "takes a value, not a section");
    }
    return put_mapping(w, val_node, key, depth + 1);
}

/* The same section twice in one mapping, which the leaves alone would not show. */
static bd_status check_section_once(const walk *w, const yaml_node_t *node,
                                    const yaml_node_pair_t *pair, const char *prefix)
{
    const yaml_node_t *mine = yaml_document_get_node(w->doc, pair->key);
    for (const yaml_node_pair_t *p = node->data.mapping.pairs.start; p < pair; p++) {
        const yaml_node_t *other = yaml_document_get_node(w->doc, p->key);
        if (mine->type == YAML_SCALAR_NODE && other->type == YAML_SCALAR_NODE &&
            strcmp(text_of(mine), text_of(other)) == 0) {
            return bd_err_set(w->err, BD_E_USAGE, "%s:%d: %s%s%s: given twice (first at %s:%d)",
                              w->path, line_of(mine), prefix, *prefix == '\0' ? "" : ".",
                              text_of(mine), w->path, line_of(other));
        }
    }
    return BD_OK;
}

static bd_status put_mapping(walk *w, const yaml_node_t *node, const char *prefix, int depth)
{
    if (depth > MAX_NESTING) { /* also ends an alias that contains itself */
        return refuse(w, node, prefix, "is nested too deeply");
    }
    const yaml_node_pair_t *end = node->data.mapping.pairs.top;
    for (const yaml_node_pair_t *p = node->data.mapping.pairs.start; p < end; p++) {
        bd_status rc = check_section_once(w, node, p, prefix);
        if (rc == BD_OK) {
            rc = put_pair(w, p, prefix, depth);
        }
        if (rc != BD_OK) {
            return rc;
        }
    }
    return BD_OK;
}

static bd_status syntax_error(const yaml_parser_t *p, const char *path, bd_err *err)
{
    if (p->error == YAML_MEMORY_ERROR) {
        return bd_err_set(err, BD_E_NOMEM, "%s", path);
    }
    return bd_err_set(err, BD_E_USAGE, "%s:%d: not valid YAML: %s", path,
                      (int)p->problem_mark.line + 1, p->problem == NULL ? "?" : p->problem);
}

static bd_status load_document(bd_options *o, yaml_parser_t *parser, const char *path, bd_err *err)
{
    yaml_document_t doc;
    if (yaml_parser_load(parser, &doc) == 0) {
        return syntax_error(parser, path, err);
    }
    bd_status rc = BD_OK;
    int load_no = 0; /* one above every earlier load */
    for (size_t i = 0; i < o->n; i++) {
        load_no = o->sources[i].load_no > load_no ? o->sources[i].load_no : load_no;
    }
    walk w = {.o = o, .doc = &doc, .path = path, .load_no = load_no + 1, .err = err};
    const yaml_node_t *root = yaml_document_get_root_node(&doc);
    bool empty = root == NULL || (root->type == YAML_SCALAR_NODE && is_null(root));
    if (!empty && root->type != YAML_MAPPING_NODE) {
        rc = bd_err_set(err, BD_E_USAGE, "%s:%d: expected `key: value` lines", path, line_of(root));
    } else if (!empty) {
        rc = put_mapping(&w, root, "", 0);
    }
    yaml_document_delete(&doc);
    return rc;
}

/* A second document in the file would be ignored in silence. */
static bd_status check_single(yaml_parser_t *parser, const char *path, bd_err *err)
{
    yaml_document_t doc;
    if (yaml_parser_load(parser, &doc) == 0) {
        return syntax_error(parser, path, err);
    }
    const yaml_node_t *root = yaml_document_get_root_node(&doc);
    bd_status rc =
        root == NULL ? BD_OK
                     : bd_err_set(err, BD_E_USAGE, "%s:%d: a second document (---) is not allowed",
                                  path, line_of(root));
    yaml_document_delete(&doc);
    return rc;
}

bd_status bd_options_load_yaml(bd_options *o, const char *path, bd_err *err)
{
    bd_status rc = BD_OK;
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return bd_err_errno(err, BD_E_USAGE, errno, "open %s", path);
    }
    yaml_parser_t parser;
    if (yaml_parser_initialize(&parser) == 0) {
        rc = bd_err_set(err, BD_E_NOMEM, "%s", path);
        goto out;
    }
    yaml_parser_set_input_file(&parser, f);
    rc = load_document(o, &parser, path, err);
    if (rc == BD_OK) {
        rc = check_single(&parser, path, err);
    }
    yaml_parser_delete(&parser);
out:
    (void)fclose(f);
    return rc;
}
