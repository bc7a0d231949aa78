#include "base/json.h"

#include "base/assert.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bd_json_init(bd_json *j)
{
    *j = (bd_json){0};
}

void bd_json_deinit(bd_json *j)
{
    bd_free(j->text);
    *j = (bd_json){0};
}

void bd_json_reset(bd_json *j)
{
    char *text = j->text;
    size_t cap = j->cap_bytes;
    *j = (bd_json){.text = text, .cap_bytes = cap};
    if (text != NULL) {
        text[0] = '\0';
    }
}

static void put_bytes(bd_json *j, const char *s, size_t n)
{
    size_t need;
    void *text = j->text;
    if (j->failed || !bd_add_size(j->n_bytes, n + 1, &need) ||
        !bd_grow(&text, &j->cap_bytes, need, 1)) {
        j->failed = true;
        return;
    }
    j->text = text;
    memcpy(j->text + j->n_bytes, s, n);
    j->n_bytes += n;
    j->text[j->n_bytes] = '\0';
}

static void put_text(bd_json *j, const char *s)
{
    put_bytes(j, s, strlen(s));
}

/* Comma before the second and later items; nothing behind a key. */
static void before_item(bd_json *j)
{
    uint64_t bit = (uint64_t)1 << (j->depth & 63);
    if (!j->after_key && j->depth > 0 && (j->has_items & bit) != 0) {
        put_text(j, ",");
    }
    j->has_items |= bit;
    j->after_key = false;
}

static void open_container(bd_json *j, const char *bracket)
{
    BD_ASSERT(j->depth + 1 < BD_JSON_MAX_DEPTH);
    before_item(j);
    put_text(j, bracket);
    j->depth++;
    j->has_items &= ~((uint64_t)1 << j->depth);
}

static void close_container(bd_json *j, const char *bracket)
{
    BD_ASSERT(j->depth > 0 && !j->after_key);
    j->depth--;
    put_text(j, bracket);
}

void bd_json_obj(bd_json *j)
{
    open_container(j, "{");
}

void bd_json_obj_end(bd_json *j)
{
    close_container(j, "}");
}

void bd_json_arr(bd_json *j)
{
    open_container(j, "[");
}

void bd_json_arr_end(bd_json *j)
{
    close_container(j, "]");
}

size_t bd_utf8_bytes(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) {
        return 1;
    }
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4) {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool bad = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
               (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return bad ? 0 : n;
}

static void put_escaped_char(bd_json *j, unsigned char c)
{
    char esc[8];
    switch (c) {
    case '"':
        put_text(j, "\\\"");
        break;
    case '\\':
        put_text(j, "\\\\");
        break;
    case '\n':
        put_text(j, "\\n");
        break;
    case '\t':
        put_text(j, "\\t");
        break;
    case '\r':
        put_text(j, "\\r");
        break;
    default:
        (void)snprintf(esc, sizeof esc, "\\u%04x", c);
        put_text(j, esc);
        break;
    }
}

static void put_string(bd_json *j, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    put_text(j, "\"");
    while (*s != '\0') {
        const unsigned char *run = s; /* bytes that go out as they are */
        size_t n = bd_utf8_bytes((const char *)s);
        while (*s >= 0x20 && *s != '"' && *s != '\\' && *s != 0x7f && n > 0) {
            s += n;
            n = bd_utf8_bytes((const char *)s);
        }
        put_bytes(j, (const char *)run, (size_t)(s - run));
        if (*s == '\0') {
            break;
        }
        if (n == 0) {
            put_text(j, "\xef\xbf\xbd");
        } else {
            put_escaped_char(j, *s);
        }
        s++;
    }
    put_text(j, "\"");
}

void bd_json_key(bd_json *j, const char *key)
{
    BD_ASSERT(!j->after_key && j->depth > 0);
    before_item(j);
    put_string(j, key);
    put_text(j, ":");
    j->after_key = true;
}

void bd_json_str(bd_json *j, const char *v)
{
    before_item(j);
    if (v == NULL) {
        put_text(j, "null");
    } else {
        put_string(j, v);
    }
}

void bd_json_raw(bd_json *j, const char *json)
{
    before_item(j);
    put_text(j, json);
}

void bd_json_i64(bd_json *j, int64_t v)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRId64, v);
    bd_json_raw(j, text);
}

void bd_json_u64(bd_json *j, uint64_t v)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRIu64, v);
    bd_json_raw(j, text);
}

void bd_json_f64(bd_json *j, double v)
{
    char text[40];
    if (!isfinite(v)) {
        bd_json_raw(j, "null");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) {
            break;
        }
    }
    bd_json_raw(j, text);
}

void bd_json_bool(bd_json *j, bool v)
{
    bd_json_raw(j, v ? "true" : "false");
}

void bd_json_null(bd_json *j)
{
    bd_json_raw(j, "null");
}

void bd_json_put_str(bd_json *j, const char *key, const char *v)
{
    bd_json_key(j, key);
    bd_json_str(j, v);
}

void bd_json_put_i64(bd_json *j, const char *key, int64_t v)
{
    bd_json_key(j, key);
    bd_json_i64(j, v);
}

void bd_json_put_u64(bd_json *j, const char *key, uint64_t v)
{
    bd_json_key(j, key);
    bd_json_u64(j, v);
}

void bd_json_put_f64(bd_json *j, const char *key, double v)
{
    bd_json_key(j, key);
    bd_json_f64(j, v);
}

void bd_json_put_bool(bd_json *j, const char *key, bool v)
{
    bd_json_key(j, key);
    bd_json_bool(j, v);
}

void bd_json_put_hex64(bd_json *j, const char *key, uint64_t v)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%016" PRIx64, v);
    bd_json_put_str(j, key, text);
}

const char *bd_json_text(const bd_json *j)
{
    if (j->failed) {
        return NULL;
    }
    return j->text == NULL ? "" : j->text;
}

char *bd_json_take(bd_json *j)
{
    char *text = NULL;
    if (!j->failed) {
        text = j->text == NULL ? bd_strdup("") : j->text;
        j->text = NULL;
    }
    bd_json_deinit(j);
    return text;
}
