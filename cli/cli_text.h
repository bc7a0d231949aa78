/* cli/cli_text.h - what children write: cutting it into lines, and keeping the last of them.
 *
 * Layer:     cli (pure part).
 * Threads:   one owner thread.
 * Ownership: plain structs with their room inside; nothing to free.
 */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include <stddef.h>

enum { CLI_LINE_BYTES = 16384, CLI_TAIL_LINES = 20, CLI_TAIL_LINE_BYTES = 512 };

/* Cuts a byte stream at LF and CR; empty lines are dropped, a line above CLI_LINE_BYTES comes in
 * pieces. */
typedef struct cli_lines {
    char text[CLI_LINE_BYTES + 1];
    size_t n_bytes;
    void (*on_line)(void *user, const char *line, size_t n_bytes); /* line is terminated */
    void *user;
} cli_lines;

void cli_lines_init(cli_lines *l, void (*on_line)(void *user, const char *line, size_t n_bytes),
                    void *user);
void cli_lines_feed(cli_lines *l, const char *bytes, size_t n_bytes);
/* The last line, when it has no end. */
void cli_lines_end(cli_lines *l);

/* The last CLI_TAIL_LINES lines; longer ones are cut. */
typedef struct cli_tail {
    char lines[CLI_TAIL_LINES][CLI_TAIL_LINE_BYTES];
    size_t n_seen;
} cli_tail;

void cli_tail_add(cli_tail *t, const char *line, size_t n_bytes);
size_t cli_tail_count(const cli_tail *t);
/* i-th of them, oldest first. */
const char *cli_tail_at(const cli_tail *t, size_t i);
/* The last line that begins with "error: ", without these words; NULL when there is none. */
const char *cli_tail_error(const cli_tail *t);

#endif
