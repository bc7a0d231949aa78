/* The status list: every code has a name, a text and survives the wire. */
#include "base/err.h"
#include "base/status.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void every_code_has_its_own_name_and_text(void **state)
{
    (void)state;
    static const struct {
        int code;
        const char *name;
    } all[] = {
#define BD_X(name, num, text) {(num), #name},
        BD_STATUS_MAP(BD_X)
#undef BD_X
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_string_equal(bd_status_name(all[i].code), all[i].name);
        assert_int_equal(bd_status_known(all[i].code), all[i].code);
        assert_string_not_equal(bd_status_text(all[i].code), "unknown status");
    }
    assert_int_equal(bd_status_known(-9999), BD_E_INTERNAL);
    assert_string_equal(bd_status_name(77), "E_UNKNOWN");
}

static void wrapping_keeps_the_code_and_puts_context_first(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(bd_err_errno(&err, BD_E_IO, ENOENT, "open %s", "x"), BD_E_IO);
    assert_int_equal(bd_err_wrap(&err, "restore shard %d", 3), BD_E_IO);
    assert_string_equal(bd_err_text(&err), "restore shard 3: open x: No such file or directory");
}

static void text_longer_than_the_room_is_cut(void **state)
{
    (void)state;
    char big[2 * BD_ERR_TEXT_BYTES];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    bd_err err = BD_ERR_INIT;
    (void)bd_err_set(&err, BD_E_DATA, "%s", big);
    assert_int_equal(strlen(err.text), BD_ERR_TEXT_BYTES - 1);
    (void)bd_err_wrap(&err, "file");
    assert_int_equal(strlen(err.text), BD_ERR_TEXT_BYTES - 1);
    assert_int_equal(strncmp(err.text, "file: aaa", 9), 0);
}

static void a_text_is_one_line(void **state)
{
    (void)state;
    bd_err err = BD_ERR_INIT;
    (void)bd_err_set(&err, BD_E_DATA, "key \"%s\"", "a\nerror: b\x1b[31m\tc");
    assert_string_equal(err.text, "key \"a\\x0aerror: b\\x1b[31m\\x09c\"");
    (void)bd_err_wrap(&err, "x\ry");
    assert_string_equal(err.text, "x\\x0dy: key \"a\\x0aerror: b\\x1b[31m\\x09c\"");
}

static void the_first_error_wins(void **state)
{
    (void)state;
    bd_err first = BD_ERR_INIT, second = BD_ERR_INIT, kept = BD_ERR_INIT;
    (void)bd_err_set(&first, BD_E_IO, "one");
    (void)bd_err_set(&second, BD_E_DATA, "two");
    bd_err_keep_first(&kept, &first);
    bd_err_keep_first(&kept, &second);
    assert_int_equal(kept.code, BD_E_IO);
    assert_string_equal(kept.text, "one");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_own_name_and_text),
        cmocka_unit_test(wrapping_keeps_the_code_and_puts_context_first),
        cmocka_unit_test(text_longer_than_the_room_is_cut),
        cmocka_unit_test(a_text_is_one_line),
        cmocka_unit_test(the_first_error_wins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
