/* Any bytes as a job file: refused with one line, or loaded and printed again. */
#include "base/mem.h"
#include "base/option.h"

#include "tests/fuzz/fuzz_input.h"

#include <string.h>

typedef struct config {
    int64_t count, bytes, ms;
    double number;
    bool flag;
    const char *text, *word;
    bd_str_list list;
} config;

static const bd_opt table[] = {
    {"a.count", BD_OPT_I64, offsetof(config, count), "1", 0, 100, NULL, "count"},
    {"a.bytes", BD_OPT_BYTES, offsetof(config, bytes), "1B", 0, 0, NULL, "size"},
    {"a.b.ms", BD_OPT_DURATION_MS, offsetof(config, ms), "1s", 0, 0, NULL, "time"},
    {"number", BD_OPT_F64, offsetof(config, number), "1", 0, 0, NULL, "number"},
    {"flag", BD_OPT_BOOL, offsetof(config, flag), "true", 0, 0, NULL, "flag"},
    {"a.text", BD_OPT_STR, offsetof(config, text), "", 0, 0, NULL, "text"},
    {"word", BD_OPT_ENUM, offsetof(config, word), "x", 0, 0, "x|y", "word"},
    {"list", BD_OPT_LIST, offsetof(config, list), "", 0, 0, NULL, "list"},
};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    char path[64];
    config c;
    bd_options o;
    bd_err err = BD_ERR_INIT;
    long before = bd_mem_live_blocks();
    int fd = fuzz_file(bytes, n_bytes, path);
    if (bd_options_init(&o, table, sizeof table / sizeof table[0], &c, &err) != BD_OK) {
        abort();
    }
    if (bd_options_load_yaml(&o, path, &err) == BD_OK) {
        char *json = bd_options_json(&o);
        bd_free(json);
    } else if (err.code != BD_E_USAGE || strchr(err.text, '\n') != NULL) {
        abort();
    }
    bd_options_deinit(&o);
    (void)close(fd);
    if (bd_mem_live_blocks() != before) {
        abort();
    }
    return 0;
}
