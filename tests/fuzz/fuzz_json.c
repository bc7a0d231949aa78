/* Any bytes: as a JSON document (refused or walked), and as a string that must be written as JSON
 * that reads back. */
#include "base/json.h"
#include "base/mem.h"

#include "tests/fuzz/fuzz_input.h"

#include <string.h>

static void walk(const bd_json_doc *doc)
{
    double f;
    const char *s;
    for (size_t i = 0; i < bd_json_len(doc, "") && i < 16; i++) {
        char path[320];
        const char *key = bd_json_key_at(doc, "", i);
        (void)snprintf(path, sizeof path, "%s/0", key == NULL ? "0" : key);
        (void)bd_json_get_f64(doc, path, &f);
        (void)bd_json_get_str(doc, path, &s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    bd_json_doc *doc = NULL;
    bd_err err = BD_ERR_INIT;
    if (bd_json_parse((const char *)bytes, n_bytes, "input", &doc, &err) == BD_OK) {
        walk(doc);
        bd_json_free(doc);
    } else if (err.code != BD_E_DATA) {
        abort();
    }
    char *text = malloc(n_bytes + 1);
    memcpy(text, bytes, n_bytes);
    text[n_bytes] = '\0';
    bd_json j;
    bd_json_init(&j);
    bd_json_str(&j, text);
    const char *json = bd_json_text(&j), *back = NULL;
    doc = NULL;
    if (bd_json_parse(json, strlen(json), "own", &doc, &err) != BD_OK ||
        !bd_json_get_str(doc, "", &back)) {
        abort();
    }
    bd_json_free(doc);
    bd_json_deinit(&j);
    free(text);
    return 0;
}
