/* Readers: every trap of real files, and a bad line is named by file, line and column. */
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "worker/data/wk_data.h"
#include "worker/data/wk_parse.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path_a[] = "/tmp/braid_wk_data_a_XXXXXX";
static char path_b[] = "/tmp/braid_wk_data_b_XXXXXX";

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static wk_job job_of(const char *format)
{
    wk_job j = {
        .data = {.format = format,
                 .train = path_a,
                 .test = "",
                 .delimiter = "",
                 .missing = "",
                 .comment = "",
                 .split = "files",
                 .label = "value",
                 .numeric = "log",
                 .ids = "number",
                 .items = "",
                 .items_column = 3,
                 .items_separator = "|"},
        .train = {.loss = "bce"},
    };
    return j;
}

static void expect_error(const wk_job *j, bd_status code, const char *tail)
{
    wk_data d;
    bd_err err = BD_ERR_INIT;
    char want[512];
    long before = bd_mem_live_blocks();
    (void)snprintf(want, sizeof want, "%s%s", tail[0] == ':' ? path_a : "", tail);
    assert_int_equal(wk_data_load(j, &d, &err), code);
    assert_string_equal(bd_err_text(&err), want);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static uint64_t id(const char *s)
{
    return wk_token_id(s, strlen(s));
}

/* ---- csv ---- */

static const char *adult_like[] = {"age:bucket_ln2", "work:cat", "gain:numeric", "who:skip",
                                   "label:label(>50K|<=50K)"};

static wk_job adult_job(void)
{
    wk_job j = job_of("csv");
    j.data.schema = (bd_str_list){adult_like, 5};
    j.data.missing = "?";
    j.data.comment = "|";
    return j;
}

static void adult_traps_are_read_right(void **state)
{
    (void)state;
    wk_job j = adult_job();
    wk_data d;
    put(path_a, "|1x3 Cross validator\n39, State-gov, 2174, x, <=50K.\r\n 2,?, 0,x,>50K.\n\n"
                "90, Private , -1.5, x, >50K");
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    assert_int_equal(d.train.n, 3);
    assert_int_equal(d.shape->n_dense, 1);
    assert_int_equal(d.shape->n_fields, 2);
    assert_string_equal(d.shape->field_names[0], "age");
    assert_true(d.train.labels[0] == 0.0f && d.train.labels[1] == 1.0f &&
                d.train.labels[2] == 1.0f);
    assert_true(d.train.single[0] == id("13")); /* ln(40)^2 = 13.6 */
    assert_true(d.train.single[2] == id("2"));  /* small numbers stay */
    assert_true(d.train.single[4] == id("20")); /* ln(91)^2 = 20.3 */
    assert_true(d.train.single[1] == id("State-gov"));
    assert_true(d.train.single[3] == id("")); /* "?" is the missing value */
    assert_true(d.train.single[5] == id("Private"));
    assert_true(d.train.dense[0] == 2174.0f && d.train.dense[2] == -1.5f);
    wk_data_free(&d);
}

static void csv_quotes_and_bags(void **state)
{
    (void)state;
    const char *schema[] = {"tags:multi(;)", "t:cat", "y:label"};
    wk_job j = job_of("csv");
    wk_data d;
    j.data.schema = (bd_str_list){schema, 3};
    put(path_a, "a;b,\"x, \"\"y\"\"\",1\n,z,0\n;a;;c,z,0\n");
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    assert_int_equal(d.train.n, 3);
    assert_true(d.train.single[0] == id("x, \"y\""));
    const wk_bags *bag = &d.train.bags[0];
    assert_int_equal(bag->n_ids, 4);
    assert_int_equal(bag->ends[0], 2);
    assert_int_equal(bag->ends[1], 2); /* an empty bag */
    assert_true(bag->ids[2] == id("a") && bag->ids[3] == id("c"));

    const uint32_t rows[] = {2, 1, 0};
    wk_batch b = {0};
    bd_arena_init(&b.arena);
    assert_int_equal(wk_data_batch(&d, &d.train, rows, 3, 8, &b, NULL), BD_OK);
    assert_int_equal(b.n_global, 8);
    assert_int_equal(b.fields[0].n_ids, 4);
    assert_int_equal(b.fields[0].offsets[1], 2);
    assert_int_equal(b.fields[0].offsets[2], 2);
    assert_true(b.fields[0].ids[3] == id("b"));
    assert_true(b.fields[1].ids[2] == id("x, \"y\""));
    assert_int_equal(b.sample_idx[0], 2);
    assert_true(b.labels[2] == 1.0f);
    assert_int_equal(wk_data_batch(&d, &d.train, rows, 0, 8, &b, NULL), BD_OK);
    assert_int_equal(b.n, 0);
    assert_int_equal(b.fields[0].offsets[0], 0);
    bd_arena_deinit(&b.arena);
    wk_data_free(&d);
}

/* Every set keeps the first ids of a row's bag; a field's own number wins over that of all. */
static void only_the_first_ids_of_a_bag_are_read(void **state)
{
    (void)state;
    const char *schema[] = {"a:multi(;)", "b:multi(;)", "t:cat", "y:label"};
    const char *first_n[] = {"2", "b:1"};
    wk_job j = job_of("csv");
    j.data.schema = (bd_str_list){schema, 4};
    j.data.first_n = (bd_str_list){first_n, 2};
    j.data.test = path_b;
    put(path_a, "p;q;r,u;v,z,1\n,w,z,0\np,,z,0\n");
    put(path_b, "x;y;z,x;y;z,z,1\n");
    wk_data d;
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    const wk_bags *a = &d.train.bags[0], *b = &d.train.bags[1];
    assert_int_equal(a->n_ids, 3);
    assert_true(a->ids[0] == id("p") && a->ids[1] == id("q") && a->ids[2] == id("p"));
    assert_true(a->ends[0] == 2 && a->ends[1] == 2 && a->ends[2] == 3);
    assert_int_equal(b->n_ids, 2);
    assert_true(b->ids[0] == id("u") && b->ids[1] == id("w") && b->ends[2] == 2);
    assert_true(d.test.bags[0].n_ids == 2 && d.test.bags[1].n_ids == 1);
    wk_data_free(&d);
    assert_int_equal(wk_data_load_only(&j, path_b, &d, NULL), BD_OK); /* as predictions do */
    assert_true(d.test.bags[0].n_ids == 2 && d.test.bags[1].ids[0] == id("x"));
    wk_data_free(&d);

    first_n[1] = "a:0";
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    assert_true(d.test.bags[0].n_ids == 3 && d.test.bags[1].n_ids == 2);
    wk_data_free(&d);
    first_n[1] = "t:1";
    expect_error(&j, BD_E_USAGE, "data.first_n \"t:1\": field t has one value a sample");
    first_n[1] = "c:1";
    expect_error(&j, BD_E_USAGE, "data.first_n \"c:1\": the data has no such field");
    first_n[1] = "a:-1";
    expect_error(&j, BD_E_USAGE, "data.first_n \"a:-1\": say a number of ids, or field:number");
}

static void bad_csv_lines_are_named(void **state)
{
    (void)state;
    wk_job j = adult_job();
    put(path_a, "1,a,0,x,>50K\n1,a,0,x\n");
    expect_error(&j, BD_E_DATA, ":2:1: 4 columns, expected 5");
    put(path_a, "1,a,zero,x,>50K\n");
    expect_error(&j, BD_E_DATA, ":1:5: column gain: \"zero\" is not a number");
    put(path_a, "1,a,nan,x,>50K\n");
    expect_error(&j, BD_E_DATA, ":1:5: column gain: \"nan\" is not a number");
    put(path_a, "1,a,1e999,x,>50K\n");
    expect_error(&j, BD_E_DATA, ":1:5: column gain: \"1e999\" is not a number");
    put(path_a, "age,a,0,x,>50K\n"); /* a header read as data */
    expect_error(&j, BD_E_DATA, ":1:1: column age: \"age\" is not a number");
    put(path_a, "1,a,0,x,50K\n");
    expect_error(&j, BD_E_DATA, ":1:9: column label: \"50K\" is not a label");
    put(path_a, "\n\n");
    expect_error(&j, BD_E_DATA, ": no rows");
}

static void bad_schemas_are_usage_errors(void **state)
{
    (void)state;
    const char *typo[] = {"a:numric", "y:label"}, *none[] = {"a:cat"},
               *twice[] = {"a:cat", "a:cat", "y:label"};
    wk_job j = job_of("csv");
    put(path_a, "1,1\n");
    j.data.schema = (bd_str_list){typo, 2};
    expect_error(&j, BD_E_USAGE, "data.schema: \"a:numric\": unknown kind, did you mean numeric?");
    j.data.schema = (bd_str_list){none, 1};
    expect_error(&j, BD_E_USAGE, "data.schema: 0 columns of kind label, want one");
    j.data.schema = (bd_str_list){twice, 3};
    expect_error(&j, BD_E_USAGE, "data.schema: column \"a\" twice");
}

static void bad_lines_are_skipped_up_to_the_limit(void **state)
{
    (void)state;
    wk_job j = adult_job();
    wk_data d;
    bd_log_set_level(BD_LOG_ERROR);
    put(path_a, "1,a,0,x,>50K\n1,a\n2,b\n3,a,0,x,>50K\n");
    j.data.max_bad_lines = 2;
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    assert_int_equal(d.train.n, 2);
    assert_int_equal(d.n_bad_lines, 2);
    wk_data_free(&d);
    j.data.max_bad_lines = 1;
    expect_error(&j, BD_E_DATA, ":3:1: 2 columns, expected 5");
}

static void labels_of_bce_are_zero_or_one(void **state)
{
    (void)state;
    wk_job j = job_of("ratings");
    put(path_a, "1::2::8\n");
    expect_error(&j, BD_E_DATA,
                 ":1:1: label 8 is neither 0 nor 1, which train.loss bce needs; see data.label");
    j.train.loss = "mse";
    wk_data d;
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    assert_true(d.train.labels[0] == 8.0f);
    wk_data_free(&d);
}

/* ---- ratings ---- */

static void ratings_join_items_whatever_the_zeros(void **state)
{
    (void)state;
    wk_job j = job_of("ratings");
    wk_data d;
    put(path_a, "1::0104257::8::99\n2::104257::7::99\n2::5::9::1\n2::77::9::1\n");
    put(path_b, "0104257::Fant\303\264mas::Crime|Drama\n0000005::No genre::\n");
    j.data.items = path_b;
    j.data.label = ">=8";
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    assert_int_equal(d.shape->n_fields, 3);
    assert_true(d.shape->field_multi[2]);
    assert_true(d.train.single[1] == id("104257") && d.train.single[3] == id("104257"));
    assert_true(d.train.labels[0] == 1.0f && d.train.labels[1] == 0.0f);
    const wk_bags *tags = &d.train.bags[2];
    assert_int_equal(tags->ends[0], 2);
    assert_int_equal(tags->ends[1], 4);
    assert_int_equal(tags->ends[2], 4); /* listed without values */
    assert_int_equal(tags->ends[3], 4); /* not listed */
    assert_true(tags->ids[0] == id("Crime") && tags->ids[1] == id("Drama"));
    wk_data_free(&d);
}

static void hash_split_takes_a_tenth(void **state)
{
    (void)state;
    wk_job j = job_of("ratings");
    wk_data d;
    assert_int_equal(bd_fnv1a64("1\t1", 3) % 10, 6); /* the published vector */
    FILE *f = fopen(path_a, "w");
    int n_test = 0;
    for (int i = 1; i <= 2000; i++) {
        char key[32];
        int n = snprintf(key, sizeof key, "%d\t%d", i % 50, i);
        n_test += bd_fnv1a64(key, (size_t)n) % 10 == 0;
        (void)fprintf(f, "%03d\t%06d\t%d\n", i % 50, i, i % 2); /* zeros do not count */
    }
    assert_int_equal(fclose(f), 0);
    j.data.split = "hash";
    j.data.delimiter = "tab";
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    assert_int_equal(d.test.n, n_test);
    assert_int_equal(d.train.n, 2000 - n_test);
    assert_in_range(n_test, 150, 250);
    wk_data_free(&d);
}

static void bad_ratings_are_named(void **state)
{
    (void)state;
    wk_job j = job_of("ratings");
    j.data.label = ">=8";
    put(path_a, "user::item::rating\n");
    expect_error(&j, BD_E_DATA,
                 ":1:1: user: \"user\" is not a number; data.ids text takes any text");
    put(path_a, "1::2::x\n");
    expect_error(&j, BD_E_DATA, ":1:7: rating: \"x\" is not a number");
    put(path_a, "1::::3\n");
    expect_error(&j, BD_E_DATA, ":1:4: item is empty");
    put(path_a, "1::2\n");
    expect_error(&j, BD_E_DATA, ":1:1: 2 columns, expected user, item, rating[, time]");
    j.data.header = true;
    put(path_a, "user::item::rating\n1::2::9\n");
    wk_data d;
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    wk_data_free(&d);
    j.data.ids = "text";
    j.data.header = false;
    put(path_a, "u1::00i::9\n");
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    assert_true(d.train.single[1] == id("00i"));
    wk_data_free(&d);
}

/* ---- criteo ---- */

static void criteo_line(char *out, size_t cap, const char *label, const char *i1, const char *i2,
                        const char *c1, const char *last)
{
    int n = snprintf(out, cap, "%s\t%s\t%s", label, i1, i2);
    for (int i = 3; i <= 13; i++) {
        n += snprintf(out + n, cap - (size_t)n, "\t%d", i);
    }
    n += snprintf(out + n, cap - (size_t)n, "\t%s", c1);
    for (int i = 2; i <= 25; i++) {
        n += snprintf(out + n, cap - (size_t)n, "\t%08x", i);
    }
    (void)snprintf(out + n, cap - (size_t)n, "\t%s\n", last);
}

static void criteo_missing_and_negative_values(void **state)
{
    (void)state;
    wk_job j = job_of("criteo");
    wk_data d;
    char line[1024];
    criteo_line(line, sizeof line, "1", "", "-2", "5a9", ""); /* ends in a tab */
    put(path_a, line);
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    assert_int_equal(d.shape->n_dense, 13);
    assert_int_equal(d.shape->n_fields, 26);
    assert_true(d.train.dense[0] == 0.0f);
    assert_true(fabsf(d.train.dense[1] + logf(3.0f)) < 1e-6f);
    assert_true(fabsf(d.train.dense[2] - logf(4.0f)) < 1e-6f);
    assert_true(d.train.single[0] == id("5a9"));
    assert_true(d.train.single[25] == id(""));
    wk_data_free(&d);
    j.data.numeric = "bucket_ln2";
    assert_int_equal(wk_data_load(&j, &d, NULL), BD_OK);
    assert_int_equal(d.shape->n_dense, 0);
    assert_int_equal(d.shape->n_fields, 39);
    assert_string_equal(d.shape->field_names[13], "C1");
    assert_true(d.train.single[0] == id("") && d.train.single[1] == id("-2"));
    assert_true(d.train.single[13] == id("5a9"));
    wk_data_free(&d);
}

static void criteo_without_labels_is_recognised(void **state)
{
    (void)state;
    wk_job j = job_of("criteo");
    char line[1024];
    criteo_line(line, sizeof line, "1", "2", "3", "aa", "bb");
    put(path_a, line + 2); /* Kaggle's test.txt: no label column */
    expect_error(&j, BD_E_DATA, ":1:1: 39 columns, expected 40: is the label missing?");
    criteo_line(line, sizeof line, "1", "2", "5a9ed9b0", "aa", "bb");
    put(path_a, line);
    expect_error(&j, BD_E_DATA, ":1:5: column I2: \"5a9ed9b0\" is not a number");
}

/* ---- all formats ---- */

static void a_missing_file_is_named(void **state)
{
    (void)state;
    wk_job j = job_of("ratings");
    wk_data d;
    bd_err err = BD_ERR_INIT;
    j.data.train = "/no/such/file";
    assert_int_equal(wk_data_load(&j, &d, &err), BD_E_NOT_FOUND);
    assert_non_null(strstr(bd_err_text(&err), "/no/such/file"));
}

static void loading_survives_every_allocation_failure(void **state)
{
    (void)state;
    wk_job j = job_of("ratings");
    put(path_a, "1::2::1\n2::3::0\n10::7::1\n");
    put(path_b, "2::t::a|b\n");
    j.data.items = path_b;
    long before = bd_mem_live_blocks();
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        wk_data d;
        bd_err err = BD_ERR_INIT;
        bd_fault_fail_alloc(nth);
        rc = wk_data_load(&j, &d, &err);
        bd_fault_fail_alloc(-1);
        if (rc == BD_OK) {
            wk_data_free(&d);
        } else {
            assert_int_equal(rc, BD_E_NOMEM);
        }
        assert_int_equal(bd_mem_live_blocks(), before);
    }
}

static void long_ids_stay_apart(void **state)
{
    (void)state;
    wk_tok a = {(char[]){"6221888200042590280"}, 19}, b = {(char[]){"6221888200042590208"}, 19};
    assert_true(wk_normalise_number(&a) && wk_normalise_number(&b));
    assert_true(wk_token_id(a.text, a.n_bytes) != wk_token_id(b.text, b.n_bytes));
    wk_tok zero = {(char[]){"000"}, 3};
    assert_true(wk_normalise_number(&zero));
    assert_string_equal(zero.text, "0");
}

static int make_files(void **state)
{
    (void)state;
    int a = mkstemp(path_a), b = mkstemp(path_b);
    return a >= 0 && b >= 0 && close(a) == 0 && close(b) == 0 ? 0 : -1;
}

static int remove_files(void **state)
{
    (void)state;
    return unlink(path_a) == 0 && unlink(path_b) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adult_traps_are_read_right),
        cmocka_unit_test(csv_quotes_and_bags),
        cmocka_unit_test(only_the_first_ids_of_a_bag_are_read),
        cmocka_unit_test(bad_csv_lines_are_named),
        cmocka_unit_test(bad_schemas_are_usage_errors),
        cmocka_unit_test(bad_lines_are_skipped_up_to_the_limit),
        cmocka_unit_test(labels_of_bce_are_zero_or_one),
        cmocka_unit_test(ratings_join_items_whatever_the_zeros),
        cmocka_unit_test(hash_split_takes_a_tenth),
        cmocka_unit_test(bad_ratings_are_named),
        cmocka_unit_test(criteo_missing_and_negative_values),
        cmocka_unit_test(criteo_without_labels_is_recognised),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(loading_survives_every_allocation_failure),
        cmocka_unit_test(long_ids_stay_apart),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
