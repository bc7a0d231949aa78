/* base/json.h - writing JSON piece by piece, and reading small JSON documents.
 *
 * Layer:     base; jansson (reading) stays behind this header.
 * Threads:   one owner thread for each writer or document.
 * Ownership: a writer owns its text until bd_json_take; strings got from a document are borrowed
 *            until bd_json_free.
 * Errors:    a writer remembers that memory ran out, so that a caller checks once, at the end.
 */
#ifndef BD_JSON_H
#define BD_JSON_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writing --------------------------------------------------------------------------------------
 *
 *   bd_json j;
 *   bd_json_init(&j);
 *   bd_json_obj(&j);
 *   bd_json_put_f64(&j, "auc", auc);
 *   bd_json_key(&j, "layers");
 *   bd_json_arr(&j);
 *   bd_json_i64(&j, 512);
 *   bd_json_arr_end(&j);
 *   bd_json_obj_end(&j);
 *   const char *text = bd_json_text(&j);  NULL: no memory
 *   bd_json_deinit(&j);
 */
enum { BD_JSON_MAX_DEPTH = 64 };

typedef struct bd_json {
    char *text; /* owned */
    size_t n_bytes, cap_bytes;
    uint64_t has_items; /* bit d: the container at depth d needs a comma before its next item */
    int depth;
    bool after_key, failed;
} bd_json;

void bd_json_init(bd_json *j);
void bd_json_deinit(bd_json *j);
/* Empties it and keeps the memory: for one line after the other. */
void bd_json_reset(bd_json *j);

void bd_json_obj(bd_json *j);
void bd_json_obj_end(bd_json *j);
void bd_json_arr(bd_json *j);
void bd_json_arr_end(bd_json *j);
void bd_json_key(bd_json *j, const char *key);
/* Bytes that are not UTF-8 become U+FFFD, so that the text is always valid. NULL writes null. */
void bd_json_str(bd_json *j, const char *v);
void bd_json_i64(bd_json *j, int64_t v);
/* Readers with doubles lose bits above 2^53: write hashes and keys as strings. */
void bd_json_u64(bd_json *j, uint64_t v);
/* Shortest form that reads back as the same double; NaN and infinities become null. */
void bd_json_f64(bd_json *j, double v);
void bd_json_bool(bd_json *j, bool v);
void bd_json_null(bd_json *j);
/* Text that is JSON already. */
void bd_json_raw(bd_json *j, const char *json);

/* Key and value in one call. */
void bd_json_put_str(bd_json *j, const char *key, const char *v);
void bd_json_put_i64(bd_json *j, const char *key, int64_t v);
void bd_json_put_u64(bd_json *j, const char *key, uint64_t v);
void bd_json_put_f64(bd_json *j, const char *key, double v);
void bd_json_put_bool(bd_json *j, const char *key, bool v);
/* "0123456789abcdef": 16 hex digits as a string. */
void bd_json_put_hex64(bd_json *j, const char *key, uint64_t v);

/* The text so far, terminated; NULL when memory ran out. Borrowed until the next call. */
const char *bd_json_text(const bd_json *j);
/* The text becomes the caller's (bd_free) and the writer empty; NULL when memory ran out. */
char *bd_json_take(bd_json *j);

/* Length of the UTF-8 sequence that terminated text starts with; 0 when it starts with none
 * (overlong forms, surrogates and numbers above U+10FFFF are none). */
size_t bd_utf8_bytes(const char *text);

/* Reading -------------------------------------------------------------------------------------- */
typedef struct bd_json_doc bd_json_doc;

/* where: names the document in errors (a path). BD_E_DATA with where:line:column; BD_E_NOMEM. */
bd_status bd_json_parse(const char *text, size_t n_bytes, const char *where, bd_json_doc **out,
                        bd_err *err) BD_MUST_CHECK;
/* BD_E_NOT_FOUND for a missing file, BD_E_IO for another failure of reading it. */
bd_status bd_json_load(const char *path, bd_json_doc **out, bd_err *err) BD_MUST_CHECK;
void bd_json_free(bd_json_doc *doc); /* NULL is fine */

/* Values by path: keys and array indices joined by '/', "" is the document: "tables/0/name".
 * False when nothing is there or it has another type; *out is then untouched. */
bool bd_json_get_str(const bd_json_doc *doc, const char *path, const char **out);
bool bd_json_get_i64(const bd_json_doc *doc, const char *path, int64_t *out);
bool bd_json_get_f64(const bd_json_doc *doc, const char *path, double *out); /* also of integers */
bool bd_json_get_bool(const bd_json_doc *doc, const char *path, bool *out);
/* A string of 16 hex digits, as bd_json_put_hex64 writes it. */
bool bd_json_get_hex64(const bd_json_doc *doc, const char *path, uint64_t *out);
/* Items of the array or object at path; 0 when there is none. */
size_t bd_json_len(const bd_json_doc *doc, const char *path);
/* i-th key of the object at path, in the order of the text; NULL past the end. O(i). */
const char *bd_json_key_at(const bd_json_doc *doc, const char *path, size_t i);

#endif
