/* The option table: every source, every type, and each wrong input refused with its culprit. */
#include "base/fault.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/option.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct config {
    int64_t batch, memory_bytes, wait_ms;
    double rate;
    bool shuffle;
    const char *path, *mode, *must;
    bd_str_list columns;
} config;

static const bd_opt table[] = {
    {"train.batch", BD_OPT_I64, offsetof(config, batch), "1k", 1, 1e6, NULL, "samples in a step"},
    {"train.rate", BD_OPT_F64, offsetof(config, rate), "0.01", 0, 10, NULL, "learning rate"},
    {"ps.memory", BD_OPT_BYTES, offsetof(config, memory_bytes), "1GiB", 1, 1e15, NULL, "budget"},
    {"train.shuffle", BD_OPT_BOOL, offsetof(config, shuffle), "true", 0, 0, NULL, "order"},
    {"data.path", BD_OPT_STR, offsetof(config, path), "", 0, 0, NULL, "where the data is"},
    {"mode", BD_OPT_ENUM, offsetof(config, mode), "sync", 0, 0, "sync|async", "when rows change"},
    {"data.columns", BD_OPT_LIST, offsetof(config, columns), "", 0, 0, NULL, "names"},
    {"ps.wait_time", BD_OPT_DURATION_MS, offsetof(config, wait_ms), "10s", 0, 0, NULL, "patience"},
    {"must", BD_OPT_STR, offsetof(config, must), NULL, 0, 0, NULL, "something needed"},
};
enum { N_ROWS = sizeof table / sizeof table[0] };

typedef struct fixture {
    config c;
    bd_options o;
    bd_err err;
    char path[64];
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state = f;
    return bd_options_init(&f->o, table, N_ROWS, &f->c, &f->err) == BD_OK ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    bd_options_deinit(&f->o);
    if (f->path[0] != '\0') {
        (void)unlink(f->path);
    }
    free(f);
    return 0;
}

static bd_status load(fixture *f, const char *yaml)
{
    if (f->path[0] == '\0') {
        (void)snprintf(f->path, sizeof f->path, "/tmp/braid_test_option_XXXXXX");
        int fd = mkstemp(f->path);
        assert_true(fd >= 0);
        (void)close(fd);
    }
    FILE *out = fopen(f->path, "w");
    assert_non_null(out);
    assert_true(fputs(yaml, out) >= 0);
    assert_int_equal(fclose(out), 0);
    return bd_options_load_yaml(&f->o, f->path, &f->err);
}

/* The error is one line that holds `part`; the file's own name stands for FILE at its start. */
static void refused(fixture *f, const char *yaml, const char *part)
{
    assert_int_equal(load(f, yaml), BD_E_USAGE);
    char want[512];
    bool at_line = strncmp(part, "FILE", 4) == 0;
    (void)snprintf(want, sizeof want, "%s%s", at_line ? f->path : "", at_line ? part + 4 : part);
    if (strstr(f->err.text, want) == NULL) {
        print_error("got:  %s\nwant: %s\n", f->err.text, want);
    }
    assert_non_null(strstr(f->err.text, want));
    assert_null(strchr(f->err.text, '\n'));
}

static void defaults_are_read_as_a_user_writes_them(void **state)
{
    fixture *f = *state;
    assert_int_equal(f->c.batch, 1000);
    assert_int_equal(f->c.memory_bytes, 1 << 30);
    assert_int_equal(f->c.wait_ms, 10000);
    assert_true(f->c.rate == 0.01 && f->c.shuffle && f->c.columns.n == 0);
    assert_string_equal(f->c.mode, "sync");
    assert_string_equal(f->c.path, "");
    assert_null(f->c.must);
    assert_int_equal(bd_options_check(&f->o, &f->err), BD_E_USAGE);
    assert_string_equal(f->err.text, "must: is required (something needed)");
}

static void yaml_fills_every_type(void **state)
{
    fixture *f = *state;
    assert_int_equal(load(f, "# job\n"
                             "train: {batch: 2k, rate: 1e-3, shuffle: off}\n"
                             "ps:\n  memory: 64KiB\n  wait_time: 5m\n"
                             "data:\n  path: \"a, b\"\n  columns:\n    - x\n    - \"y,z\"\n"
                             "mode: async\nmust: here\n"),
                     BD_OK);
    assert_int_equal(f->c.batch, 2000);
    assert_true(f->c.rate == 1e-3 && !f->c.shuffle);
    assert_int_equal(f->c.memory_bytes, 65536);
    assert_int_equal(f->c.wait_ms, 300000);
    assert_string_equal(f->c.path, "a, b");
    assert_int_equal(f->c.columns.n, 2);
    assert_string_equal(f->c.columns.items[1], "y,z");
    assert_string_equal(f->c.mode, "async");
    assert_int_equal(bd_options_check(&f->o, &f->err), BD_OK);
    assert_int_equal(load(f, ""), BD_OK);
    assert_int_equal(load(f, "data.columns: a, b ,c\n"), BD_OK); /* dotted keys, comma lists */
    assert_int_equal(f->c.columns.n, 3);
    assert_string_equal(f->c.columns.items[1], "b");
}

static void wrong_yaml_is_refused_with_its_line(void **state)
{
    fixture *f = *state;
    refused(f, "train:\n  batchsize: 3\n",
            "FILE:2: train.batchsize: unknown key, did you mean train.batch?");
    refused(f, "batch: 3\n", "FILE:1: batch: unknown key, did you mean train.batch?");
    refused(f, "qqqqqqqq: 3\n", "FILE:1: qqqqqqqq: unknown key");
    refused(f, "train:\n  batch: 1\n  rate: 1\n  batch: 2\n",
            "FILE:4: train.batch: given twice (first at");
    refused(f, "train: {batch: 1}\nmode: sync\ntrain: {rate: 1}\n", "FILE:3: train: given twice");
    refused(f, "train: {batch: 1}\ntrain.batch: 2\n", "FILE:2: train.batch: given twice");
    refused(f, "train:\n  batch: 0\n", "FILE:2: train.batch: \"0\" must be from 1 to 1000000");
    refused(f, "train:\n  batch: 12x\n", "is not a whole number (samples in a step)");
    refused(f, "train: {batch: 99999999999999999999}\n", "is too large");
    refused(f, "train: {batch: 9999999999999999g}\n", "is too large");
    refused(f, "train: {rate: fast}\n", "\"fast\" is not a number");
    refused(f, "train: {rate: nan}\n", "is not a number");
    refused(f, "train: {shuffle: maybe}\n", "is neither true nor false");
    refused(f, "ps: {memory: 64}\n", "is not a size with its unit");
    refused(f, "ps: {wait_time: 10}\n", "is not a duration with its unit");
    refused(f, "mode: asink\n", "mode: \"asink\" is not one of sync|async");
    refused(f, "mode: [sync, async]\n", "mode: takes one value, not a list");
    refused(f, "data:\n  columns:\n    - name: x\n",
            "FILE:3: data.columns: is a list of plain values");
    refused(f, "mode: {a: b}\n", "FILE:1: mode: takes a value, not a section");
    refused(f, "train: 5\n", "FILE:1: train: is a section, not a value");
    refused(f, "mode:\n", "FILE:1: mode: has no value");
    refused(f, "- a\n- b\n", "FILE:1: expected `key: value` lines");
    refused(f, "a: [1\nb: 2\n", "not valid YAML");
    refused(f, "mode: sync\n---\nmode: async\n", "a second document");
    refused(f, "train: &x\n  y: *x\n", "nested too deeply");
    refused(f, "? [a]\n: 1\n", "a key must be a plain word");
    assert_int_equal(bd_options_load_yaml(&f->o, "/nonexistent/job.yaml", &f->err), BD_E_USAGE);
    assert_string_equal(f->err.text, "open /nonexistent/job.yaml: No such file or directory");
}

static void a_refused_value_leaves_the_old_one(void **state)
{
    fixture *f = *state;
    assert_int_equal(bd_options_set(&f->o, "train.batch", "-1", "--set", &f->err), BD_E_USAGE);
    assert_int_equal(f->c.batch, 1000);
}

static void flags_beat_environment_beats_yaml_in_any_order(void **state)
{
    fixture *f = *state;
    char a0[] = "prog", a1[] = "job.yaml", a2[] = "--train.batch=7", a3[] = "--train.shuffle",
         a4[] = "--set", a5[] = "ps.memory=2MiB", a6[] = "--ps.wait-time", a7[] = "3s", a8[] = "--",
         a9[] = "--rest";
    char *argv[] = {a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, NULL};
    int argc = 10;
    assert_int_equal(bd_options_load_args(&f->o, &argc, argv, &f->err), BD_OK);
    assert_int_equal(argc, 3);
    assert_string_equal(argv[1], "job.yaml");
    assert_string_equal(argv[2], "--rest");
    assert_null(argv[3]);
    (void)setenv("BRAID_TRAIN_BATCH", "8", 1);
    (void)setenv("BRAID_TRAIN_RATE", "0.5", 1);
    assert_int_equal(bd_options_load_env(&f->o, &f->err), BD_OK);
    (void)unsetenv("BRAID_TRAIN_BATCH");
    (void)setenv("BRAID_TRAIN_RATE", "x", 1);
    assert_int_equal(bd_options_load_env(&f->o, &f->err), BD_E_USAGE);
    assert_non_null(strstr(f->err.text, "environment BRAID_TRAIN_RATE: train.rate: \"x\""));
    (void)unsetenv("BRAID_TRAIN_RATE");
    assert_int_equal(load(f, "train: {batch: 9, rate: 0.25}\nmode: async\n"), BD_OK);
    assert_int_equal(f->c.batch, 7);
    assert_true(f->c.rate == 0.5);
    assert_string_equal(f->c.mode, "async");
    assert_int_equal(f->c.memory_bytes, 2 << 20);
    assert_int_equal(f->c.wait_ms, 3000);
}

static void wrong_flags_are_refused(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *flag, *text;
    } cases[] = {
        {"--train.bach=1", "--train.bach: train.bach: unknown key, did you mean train.batch?"},
        {"--mode", "--mode: needs a value"},
        {"--set", "--set: needs a value"},
        {"--set=mode", "--set: \"mode\" is not key=value"},
        {"-x", "-x: unknown flag"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char a0[] = "prog", a1[64];
        (void)snprintf(a1, sizeof a1, "%s", cases[i].flag);
        char *argv[] = {a0, a1, NULL};
        int argc = 2;
        assert_int_equal(bd_options_load_args(&f->o, &argc, argv, &f->err), BD_E_USAGE);
        assert_string_equal(f->err.text, cases[i].text);
    }
}

static char *printed(void (*print)(const bd_options *o, FILE *out), const bd_options *o)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    print(o, out);
    (void)fclose(out);
    return text;
}

static void what_is_printed_loads_again(void **state)
{
    fixture *f = *state;
    assert_int_equal(load(f, "data: {path: \"a: #b\\n\", columns: [p, \"q r\"]}\nmust: x\n"),
                     BD_OK);
    char *text = printed(bd_options_print, &f->o);
    assert_non_null(strstr(text, "train.batch: 1k  # default\n"));
    char want[128];
    (void)snprintf(want, sizeof want, "data.columns: [p, \"q r\"]  # %s:1\n", f->path);
    assert_non_null(strstr(text, want));
    fixture again = {.path = ""};
    assert_int_equal(bd_options_init(&again.o, table, N_ROWS, &again.c, NULL), BD_OK);
    assert_int_equal(load(&again, text), BD_OK);
    assert_string_equal(again.c.path, "a: #b\n");
    assert_string_equal(again.c.columns.items[1], "q r");
    (void)unlink(again.path);
    bd_options_deinit(&again.o);
    free(text);
}

static void json_nests_the_sections(void **state)
{
    fixture *f = *state;
    assert_int_equal(bd_options_set(&f->o, "data.columns", "a,b", "--set", NULL), BD_OK);
    char *text = bd_options_json(&f->o);
    assert_string_equal(
        text,
        "{\"train\":{\"batch\":1000,\"rate\":0.01,\"shuffle\":true},"
        "\"ps\":{\"memory\":1073741824,\"wait_time\":10000},"
        "\"data\":{\"path\":\"\",\"columns\":[\"a\",\"b\"]},\"mode\":\"sync\",\"must\":null}");
    bd_free(text);
}

static void help_and_markdown(const bd_options *o, FILE *out)
{
    bd_options_help(o->table, o->n, out);
    bd_options_markdown(o->table, o->n, out);
}

static void help_names_every_row_twice(void **state)
{
    fixture *f = *state;
    char *text = printed(help_and_markdown, &f->o);
    for (size_t i = 0; i < N_ROWS; i++) {
        char flag[64], cell[64];
        (void)snprintf(flag, sizeof flag, "--%s <", table[i].key);
        (void)snprintf(cell, sizeof cell, "| `%s` |", table[i].key);
        assert_non_null(strstr(text, flag));
        assert_non_null(strstr(text, cell));
    }
    assert_non_null(strstr(text, "sync\\|async"));
    free(text);
}

static void nearest_finds_slips_and_refuses_strangers(void **state)
{
    (void)state;
    static const char *const words[] = {"sgd", "adagrad", "rowwise_adagrad", "adam"};
    assert_string_equal(bd_nearest("adagard", words, 4), "adagrad");
    assert_string_equal(bd_nearest("adma", words, 4), "adam");
    assert_string_equal(bd_nearest("sgd", words, 4), "sgd");
    assert_null(bd_nearest("momentum", words, 4));
    assert_null(bd_nearest("", words, 4));
}

static bd_status whole_life(const char *path)
{
    config c;
    bd_options o;
    bd_status rc = bd_options_init(&o, table, N_ROWS, &c, NULL);
    if (rc == BD_OK) {
        rc = bd_options_load_yaml(&o, path, NULL);
    }
    if (rc == BD_OK) {
        char *json = bd_options_json(&o);
        rc = json == NULL ? BD_E_NOMEM : BD_OK;
        bd_free(json);
    }
    bd_options_deinit(&o);
    return rc;
}

static void every_allocation_may_fail(void **state)
{
    fixture *f = *state;
    assert_int_equal(load(f, "data: {columns: [a, b], path: x}\nmode: async\nmust: y\n"), BD_OK);
    long before = bd_mem_live_blocks();
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        bd_fault_fail_alloc(nth);
        rc = whole_life(f->path);
        bd_fault_fail_alloc(-1);
        assert_true(rc == BD_OK || rc == BD_E_NOMEM);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(defaults_are_read_as_a_user_writes_them),
        CASE(yaml_fills_every_type),
        CASE(wrong_yaml_is_refused_with_its_line),
        CASE(a_refused_value_leaves_the_old_one),
        CASE(flags_beat_environment_beats_yaml_in_any_order),
        CASE(wrong_flags_are_refused),
        CASE(what_is_printed_loads_again),
        CASE(json_nests_the_sections),
        CASE(help_names_every_row_twice),
        CASE(nearest_finds_slips_and_refuses_strangers),
        CASE(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
