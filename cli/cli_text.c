#include "cli/cli_text.h"

#include <string.h>

void cli_lines_init(cli_lines *l, void (*on_line)(void *user, const char *line, size_t n_bytes),
                    void *user)
{
    l->n_bytes = 0;
    l->on_line = on_line;
    l->user = user;
}

void cli_lines_end(cli_lines *l)
{
    if (l->n_bytes == 0) {
        return;
    }
    l->text[l->n_bytes] = '\0';
    size_t n = l->n_bytes;
    l->n_bytes = 0;
    l->on_line(l->user, l->text, n);
}

void cli_lines_feed(cli_lines *l, const char *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        if (bytes[i] == '\n' || bytes[i] == '\r') {
            cli_lines_end(l);
            continue;
        }
        if (l->n_bytes == CLI_LINE_BYTES) {
            cli_lines_end(l);
        }
        l->text[l->n_bytes++] = bytes[i];
    }
}

void cli_tail_add(cli_tail *t, const char *line, size_t n_bytes)
{
    char *to = t->lines[t->n_seen++ % CLI_TAIL_LINES];
    size_t n = n_bytes < CLI_TAIL_LINE_BYTES ? n_bytes : CLI_TAIL_LINE_BYTES - 1;
    memcpy(to, line, n);
    to[n] = '\0';
}

size_t cli_tail_count(const cli_tail *t)
{
    return t->n_seen < CLI_TAIL_LINES ? t->n_seen : CLI_TAIL_LINES;
}

const char *cli_tail_at(const cli_tail *t, size_t i)
{
    return t->lines[(t->n_seen - cli_tail_count(t) + i) % CLI_TAIL_LINES];
}

const char *cli_tail_error(const cli_tail *t)
{
    static const char mark[] = "error: ";
    for (size_t i = cli_tail_count(t); i > 0; i--) {
        const char *line = cli_tail_at(t, i - 1);
        if (strncmp(line, mark, sizeof mark - 1) == 0) {
            return line + sizeof mark - 1;
        }
    }
    return NULL;
}
