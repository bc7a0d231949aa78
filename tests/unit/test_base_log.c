/* Log lines: one line each, whatever is in the values; JSON is JSON; a flood is limited and
 * counted. */
#include "base/json.h"
#include "base/log.h"

#include <fcntl.h>
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

static int ends[2]; /* a pipe: log lines come out of ends[0] */
static char text[1 << 16];

static int setup(void **state)
{
    (void)state;
    if (pipe2(ends, O_NONBLOCK) != 0) {
        return -1;
    }
    bd_log_set_fd(ends[1]);
    bd_log_set_who("ps-0");
    bd_log_set_json(false);
    bd_log_set_level(BD_LOG_INFO);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bd_log_set_fd(2);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return 0;
}

/* What was logged since the last call; *n_lines counts it. */
static const char *logged(int *n_lines)
{
    ssize_t n = read(ends[0], text, sizeof text - 1);
    text[n < 0 ? 0 : n] = '\0';
    *n_lines = 0;
    for (const char *c = text; *c != '\0'; c++) {
        *n_lines += *c == '\n' ? 1 : 0;
    }
    return text;
}

static void a_line_holds_time_level_who_event_and_pairs(void **state)
{
    (void)state;
    int n = 0;
    BD_LOG(INFO, "push applied", "worker", 1, "step", UINT64_MAX, "rate", 0.5, "ok", (bool)true,
           "name", "plain");
    const char *line = logged(&n);
    assert_int_equal(n, 1);
    assert_int_equal(line[4], '-');
    assert_int_equal(line[10], 'T');
    assert_int_equal(line[23], 'Z');
    assert_string_equal(line + 24, " INFO ps-0 push applied worker=1 step=18446744073709551615 "
                                   "rate=0.5 ok=true name=plain\n");
}

static void bytes_of_a_peer_cannot_forge_a_line(void **state)
{
    (void)state;
    int n = 0;
    BD_LOG(WARN, "odd name", "name", "x\nINFO ok=\"1\" \x1b[31m\xff", "empty", "", "null",
           (const char *)NULL);
    const char *line = logged(&n);
    assert_int_equal(n, 1);
    assert_string_equal(line + 24, " WARN ps-0 odd name name=\"x\\u000aINFO ok=\\\"1\\\" "
                                   "\\u001b[31m\xef\xbf\xbd\" empty=\"\" null=(null)\n");
}

static void levels_below_the_threshold_are_silent(void **state)
{
    (void)state;
    int n = 0;
    BD_LOG(DEBUG, "hidden", "a", 1);
    (void)logged(&n);
    assert_int_equal(n, 0);
    bd_log_set_level(BD_LOG_ERROR);
    BD_LOG(WARN, "hidden", "a", 1);
    BD_LOG(ERROR, "shown", "a", 1);
    assert_non_null(strstr(logged(&n), "shown"));
    assert_int_equal(n, 1);
    assert_int_equal(bd_log_level_parse("warn"), BD_LOG_WARN);
    assert_int_equal(bd_log_level_parse("loud"), -1);
}

static void json_lines_are_json_even_when_cut(void **state)
{
    (void)state;
    static char huge[10000];
    memset(huge, '\n', sizeof huge - 1);
    bd_log_set_json(true);
    BD_LOG(INFO, "say \"hi\"", "s", "a\"b", "nan", (double)NAN, "f", 1.5f, "i", -3, "b", false);
    BD_LOG(INFO, "long", "a", huge, "b", huge, "c", huge, "d", 7);
    int n = 0;
    const char *line = logged(&n);
    assert_int_equal(n, 2);
    const char *end = strchr(line, '\n');
    bd_json_doc *doc = NULL;
    assert_int_equal(bd_json_parse(line, (size_t)(end - line), "line", &doc, NULL), BD_OK);
    const char *s = NULL;
    double f = 0;
    assert_true(bd_json_get_str(doc, "event", &s) && strcmp(s, "say \"hi\"") == 0);
    assert_true(bd_json_get_str(doc, "who", &s) && strcmp(s, "ps-0") == 0);
    assert_true(bd_json_get_str(doc, "s", &s) && strcmp(s, "a\"b") == 0);
    assert_true(bd_json_get_str(doc, "nan", &s) && strcmp(s, "nan") == 0);
    assert_true(bd_json_get_f64(doc, "f", &f) && f == 1.5);
    bd_json_free(doc);
    doc = NULL;
    assert_int_equal(bd_json_parse(end + 1, strlen(end + 1), "line", &doc, NULL), BD_OK);
    assert_true(bd_json_get_str(doc, "a", &s) && strlen(s) > 100);
    bd_json_free(doc);
}

static void flood(bd_log_site *site, bd_log_level level, int n)
{
    const char *keys[] = {"i"};
    for (int i = 0; i < n; i++) {
        bd_log_val v = bd_log_i(i);
        bd_log_emit(site, level, "flood", 1, keys, &v);
    }
}

static void a_flood_is_limited_and_counted(void **state)
{
    (void)state;
    int n = 0;
    bd_log_site site = {0}, loud = {0};
    flood(&site, BD_LOG_INFO, 100);
    (void)logged(&n);
    /* 20 in a window; a test that a second boundary cuts in two sees 40 at most */
    assert_true(n >= 20 && n <= 40);
    site.window_start_ns -= 2000000000; /* the pause is over */
    int n_before = n;
    flood(&site, BD_LOG_INFO, 1);
    const char *line = logged(&n);
    char want[32];
    (void)snprintf(want, sizeof want, " lines_dropped=%d\n", 100 - n_before);
    assert_non_null(strstr(line, want));
    flood(&loud, BD_LOG_ERROR, 100);
    (void)logged(&n);
    assert_int_equal(n, 100);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_line_holds_time_level_who_event_and_pairs),
        CASE(bytes_of_a_peer_cannot_forge_a_line),
        CASE(levels_below_the_threshold_are_silent),
        CASE(json_lines_are_json_even_when_cut),
        CASE(a_flood_is_limited_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
