/* JSON: what is written is valid and reads back the same; bad documents are refused with their
 * place. */
#include "base/fault.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"

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

static void containers_get_their_commas(void **state)
{
    (void)state;
    bd_json j;
    bd_json_init(&j);
    bd_json_obj(&j);
    bd_json_put_f64(&j, "auc", 0.5);
    bd_json_key(&j, "layers");
    bd_json_arr(&j);
    bd_json_i64(&j, -512);
    bd_json_arr(&j);
    bd_json_arr_end(&j);
    bd_json_obj(&j);
    bd_json_put_bool(&j, "x", true);
    bd_json_obj_end(&j);
    bd_json_null(&j);
    bd_json_arr_end(&j);
    bd_json_put_hex64(&j, "hash", 0xabcu);
    bd_json_put_u64(&j, "u", UINT64_MAX);
    bd_json_put_str(&j, "none", NULL);
    bd_json_obj_end(&j);
    assert_string_equal(bd_json_text(&j),
                        "{\"auc\":0.5,\"layers\":[-512,[],{\"x\":true},null],"
                        "\"hash\":\"0000000000000abc\",\"u\":18446744073709551615,\"none\":null}");
    bd_json_reset(&j);
    assert_string_equal(bd_json_text(&j), "");
    bd_json_deinit(&j);
}

static void strings_are_escaped_and_always_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"a\"b\\c\n\t\r\x01\x7f", "\"a\\\"b\\\\c\\n\\t\\r\\u0001\\u007f\""},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"x\xffy", "\"x\xef\xbf\xbdy\""},
        {"\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* surrogate */
        {"\xe2\x82", "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* cut */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bd_json j;
        bd_json_init(&j);
        bd_json_str(&j, cases[i].in);
        assert_string_equal(bd_json_text(&j), cases[i].out);
        bd_json_doc *doc = NULL;
        assert_int_equal(bd_json_parse(bd_json_text(&j), j.n_bytes, "t", &doc, NULL), BD_OK);
        bd_json_free(doc);
        bd_json_deinit(&j);
    }
}

static void doubles_read_back_the_same(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t bits = bd_rand_u64(3, 1, i);
        double v, back = 0;
        memcpy(&v, &bits, sizeof v);
        bd_json j;
        bd_json_init(&j);
        bd_json_f64(&j, v);
        const char *text = bd_json_text(&j);
        if (isfinite(v)) {
            back = strtod(text, NULL);
            assert_memory_equal(&v, &back, sizeof v);
        } else {
            assert_string_equal(text, "null");
        }
        bd_json_deinit(&j);
    }
    bd_json j;
    bd_json_init(&j);
    bd_json_f64(&j, 0.1);
    assert_string_equal(bd_json_text(&j), "0.1");
    bd_json_deinit(&j);
}

static void values_are_found_by_path(void **state)
{
    (void)state;
    const char *text = "{\"a\": {\"b.c\": [1, 2.5, \"x\", true]}, \"h\": \"00000000000000ff\"}";
    bd_json_doc *doc = NULL;
    assert_int_equal(bd_json_parse(text, strlen(text), "t", &doc, NULL), BD_OK);
    int64_t i = 0;
    double f = 0;
    bool b = false;
    uint64_t u = 0;
    const char *s = NULL;
    assert_true(bd_json_get_i64(doc, "a/b.c/0", &i) && i == 1);
    assert_true(bd_json_get_f64(doc, "a/b.c/0", &f) && f == 1);
    assert_true(bd_json_get_f64(doc, "a/b.c/1", &f) && f == 2.5);
    assert_true(bd_json_get_str(doc, "a/b.c/2", &s) && strcmp(s, "x") == 0);
    assert_true(bd_json_get_bool(doc, "a/b.c/3", &b) && b);
    assert_true(bd_json_get_hex64(doc, "h", &u) && u == 255);
    assert_false(bd_json_get_i64(doc, "a/b.c/1", &i));
    assert_false(bd_json_get_i64(doc, "a/b.c/9", &i));
    assert_false(bd_json_get_i64(doc, "a/b.c/x", &i));
    assert_false(bd_json_get_str(doc, "a/zz/q", &s));
    assert_false(bd_json_get_hex64(doc, "a/b.c/2", &u));
    assert_int_equal(bd_json_len(doc, "a/b.c"), 4);
    assert_int_equal(bd_json_len(doc, ""), 2);
    assert_int_equal(bd_json_len(doc, "h"), 0);
    assert_string_equal(bd_json_key_at(doc, "", 1), "h");
    assert_null(bd_json_key_at(doc, "", 2));
    assert_null(bd_json_key_at(doc, "h", 0));
    bd_json_free(doc);
}

static void bad_documents_name_their_place(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    bd_json_doc *doc = NULL;
    const char *bad = "{\"a\": 1,\n \"b\": }";
    assert_int_equal(bd_json_parse(bad, strlen(bad), "m.json", &doc, &err), BD_E_DATA);
    assert_int_equal(strncmp(err.text, "m.json:2:", 9), 0);
    const char *twice = "{\"a\":1,\"a\":2}";
    assert_int_equal(bd_json_parse(twice, strlen(twice), "m", &doc, &err), BD_E_DATA);
    assert_int_equal(bd_json_load("/nonexistent/m.json", &doc, &err), BD_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/m.json"));
    assert_int_not_equal(bd_json_load("/", &doc, &err), BD_OK); /* a directory */
    assert_null(doc);
}

static void a_file_round_trips(void **state)
{
    (void)state;
    char path[] = "/tmp/braid_test_json_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "[1,2]\n", 6), 6);
    (void)close(fd);
    bd_json_doc *doc = NULL;
    assert_int_equal(bd_json_load(path, &doc, NULL), BD_OK);
    assert_int_equal(bd_json_len(doc, ""), 2);
    bd_json_free(doc);
    (void)unlink(path);
}

static bd_status write_some(char **out)
{
    bd_json j;
    bd_json_init(&j);
    bd_json_obj(&j);
    for (int i = 0; i < 20; i++) {
        bd_json_put_str(&j, "key", "a value long enough to make it grow");
    }
    bd_json_obj_end(&j);
    *out = bd_json_take(&j);
    return *out == NULL ? BD_E_NOMEM : BD_OK;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    bd_status rc = BD_E_NOMEM;
    for (long nth = 0; rc != BD_OK; nth++) {
        char *text = NULL;
        bd_fault_fail_alloc(nth);
        rc = write_some(&text);
        bd_fault_fail_alloc(-1);
        bd_free(text);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
    bd_json_doc *doc = NULL;
    bd_fault_fail_alloc(0);
    assert_int_equal(bd_json_parse("[]", 2, "t", &doc, NULL), BD_E_NOMEM);
    bd_fault_fail_alloc(-1);
    assert_int_equal(bd_mem_live_blocks(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(containers_get_their_commas),
        cmocka_unit_test(strings_are_escaped_and_always_utf8),
        cmocka_unit_test(doubles_read_back_the_same),
        cmocka_unit_test(values_are_found_by_path),
        cmocka_unit_test(bad_documents_name_their_place),
        cmocka_unit_test(a_file_round_trips),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
