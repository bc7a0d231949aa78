/* Children's output: lines whatever the pieces, and the last of them. */
#include "cli/cli_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct seen {
    char text[4 * CLI_LINE_BYTES];
    size_t n_lines, longest;
} seen;

static void on_line(void *user, const char *line, size_t n_bytes)
{
    seen *s = user;
    assert_int_equal(strlen(line), n_bytes);
    size_t n = strlen(s->text);
    (void)snprintf(s->text + n, sizeof s->text - n, "%s|", line);
    s->n_lines++;
    s->longest = n_bytes > s->longest ? n_bytes : s->longest;
}

static void the_pieces_of_the_stream_do_not_matter(void **state)
{
    (void)state;
    static const char stream[] = "one\ntwo\r\n\nbar 1%\rbar 2%\rlast";
    for (size_t piece = 1; piece <= sizeof stream; piece++) {
        cli_lines *l = malloc(sizeof *l);
        seen *s = calloc(1, sizeof *s);
        assert_true(l != NULL && s != NULL);
        cli_lines_init(l, on_line, s);
        for (size_t at = 0; at < sizeof stream - 1; at += piece) {
            size_t left = sizeof stream - 1 - at;
            cli_lines_feed(l, stream + at, left < piece ? left : piece);
        }
        assert_string_equal(s->text, "one|two|bar 1%|bar 2%|");
        cli_lines_end(l);
        cli_lines_end(l);
        assert_string_equal(s->text, "one|two|bar 1%|bar 2%|last|");
        free(l);
        free(s);
    }
}

static void a_line_without_an_end_comes_in_bounded_pieces(void **state)
{
    (void)state;
    cli_lines *l = malloc(sizeof *l);
    seen *s = calloc(1, sizeof *s);
    char chunk[1000];
    assert_true(l != NULL && s != NULL);
    memset(chunk, 'x', sizeof chunk);
    cli_lines_init(l, on_line, s);
    for (int i = 0; i < 40; i++) {
        cli_lines_feed(l, chunk, sizeof chunk);
    }
    cli_lines_end(l);
    assert_int_equal(s->longest, CLI_LINE_BYTES);
    assert_int_equal(s->n_lines, 3);
    assert_int_equal(strlen(s->text), 40 * sizeof chunk + 3);
    free(l);
    free(s);
}

static void the_tail_keeps_the_last_lines_in_order(void **state)
{
    (void)state;
    static cli_tail t;
    assert_int_equal(cli_tail_count(&t), 0);
    assert_null(cli_tail_error(&t));
    for (int i = 0; i < 3 * CLI_TAIL_LINES + 1; i++) {
        char line[32];
        int n = snprintf(line, sizeof line, "%d", i);
        cli_tail_add(&t, line, (size_t)n);
        int first = i < CLI_TAIL_LINES ? 0 : i - CLI_TAIL_LINES + 1;
        assert_int_equal(strtol(cli_tail_at(&t, 0), NULL, 10), first);
        assert_string_equal(cli_tail_at(&t, cli_tail_count(&t) - 1), line);
    }
    cli_tail_add(&t, "error: first", 12);
    cli_tail_add(&t, "error: second", 13);
    cli_tail_add(&t, "an error: not at the start", 26);
    assert_string_equal(cli_tail_error(&t), "second");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pieces_of_the_stream_do_not_matter),
        cmocka_unit_test(a_line_without_an_end_comes_in_bounded_pieces),
        cmocka_unit_test(the_tail_keeps_the_last_lines_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
