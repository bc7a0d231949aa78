#include "base/man.h"

#include "base/exit_code.h"

#include <string.h>

enum { WRAP_COLUMNS = 66 }; /* escapes make lines longer */

#define MAN_DATE "2026-11-30" /* of the pages' form; their text is as old as the program */

/* One line of text. */
static void put_escaped(const char *s, size_t n, FILE *out)
{
    if (n > 0 && (s[0] == '.' || s[0] == '\'')) {
        (void)fputs("\\&", out);
    }
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\\') {
            (void)fputs("\\e", out);
        } else if (s[i] == '-') {
            (void)fputs("\\-", out);
        } else {
            (void)fputc(s[i], out);
        }
    }
}

static void put_line(const char *s, size_t n, FILE *out)
{
    put_escaped(s, n, out);
    (void)fputc('\n', out);
}

/* One line of text as several, broken at spaces. */
static void put_wrapped(const char *s, size_t n, FILE *out)
{
    while (n > WRAP_COLUMNS) {
        size_t cut = WRAP_COLUMNS;
        while (cut > 0 && s[cut] != ' ') {
            cut--;
        }
        if (cut == 0) { /* one long word */
            break;
        }
        put_line(s, cut, out);
        s += cut + 1;
        n -= cut + 1;
    }
    put_line(s, n, out);
}

void bd_man_section(const char *title, FILE *out)
{
    (void)fprintf(out, ".SH %s\n", title);
}

void bd_man_subsection(const char *title, FILE *out)
{
    (void)fputs(".SS ", out);
    put_line(title, strlen(title), out);
}

void bd_man_text(const char *paragraphs, FILE *out)
{
    bool first = true;
    for (const char *at = paragraphs; *at != '\0';) {
        size_t n = strcspn(at, "\n");
        if (n == 0) {
            (void)fputs(first ? "" : ".PP\n", out);
        } else {
            put_wrapped(at, n, out);
            first = false;
        }
        at += n + (at[n] == '\n');
    }
}

void bd_man_lines(const char *lines, FILE *out)
{
    (void)fputs(".nf\n", out);
    for (const char *at = lines; *at != '\0';) {
        size_t n = strcspn(at, "\n"), indent = strspn(at, " ");
        indent = indent < n ? indent : n;
        put_line(at + indent, n - indent, out);
        at += n + (at[n] == '\n');
    }
    (void)fputs(".fi\n", out);
}

static const char *value_name(const bd_opt *row)
{
    switch (row->type) {
    case BD_OPT_I64:
    case BD_OPT_F64:
        return "NUMBER";
    case BD_OPT_BOOL:
        return NULL;
    case BD_OPT_ENUM:
        return row->choices;
    case BD_OPT_BYTES:
        return "SIZE";
    case BD_OPT_DURATION_MS:
        return "DURATION";
    case BD_OPT_LIST:
        return "TEXT,...";
    default:
        return "TEXT";
    }
}

static void put_option(const bd_opt *row, FILE *out)
{
    const char *value = value_name(row);
    (void)fputs(".TP\n\\fB\\-\\-", out);
    for (const char *c = row->key; *c != '\0'; c++) {
        if (*c == '_') {
            (void)fputs("\\-", out);
        } else {
            (void)fputc(*c, out);
        }
    }
    (void)fputs("\\fR", out);
    if (value != NULL) {
        (void)fputs(" \\fI", out);
        put_escaped(value, strlen(value), out);
        (void)fputs("\\fR", out);
    }
    (void)fputc('\n', out);
    put_wrapped(row->help, strlen(row->help), out);
    if (row->def == NULL) {
        (void)fputs("Required.\n", out);
    } else if (row->def[0] != '\0' && row->type != BD_OPT_BOOL) {
        (void)fputs("Default: ", out);
        put_escaped(row->def, strlen(row->def), out);
        (void)fputs(".\n", out);
    }
}

void bd_man_options(const bd_opt *table, size_t n, FILE *out)
{
    for (size_t i = 0; i < n; i++) {
        put_option(&table[i], out);
    }
}

void bd_man_head(const bd_man *m, FILE *out)
{
    char upper[64];
    size_t n = strlen(m->name);
    for (size_t i = 0; i < n && i < sizeof upper; i++) {
        upper[i] =
            m->name[i] >= 'a' && m->name[i] <= 'z' ? (char)(m->name[i] - 'a' + 'A') : m->name[i];
    }
    (void)fputs(".TH ", out);
    put_escaped(upper, n < sizeof upper ? n : sizeof upper, out);
    (void)fprintf(out, " %s %s \"Braid %s\" Braid\n", m->section, MAN_DATE, BRAID_VERSION);
    bd_man_section("NAME", out);
    put_escaped(m->name, n, out);
    (void)fputs(" \\- ", out);
    put_line(m->summary, strlen(m->summary), out);
    bd_man_section("SYNOPSIS", out);
    bd_man_lines(m->synopsis, out);
    bd_man_section("DESCRIPTION", out);
    bd_man_text(m->description, out);
}

void bd_man_foot(const bd_man *m, FILE *out)
{
    static const struct {
        int code;
        const char *text;
    } rows[] = {
#define BD_X(name, code, text) {(code), (text)},
        BD_EXIT_MAP(BD_X)
#undef BD_X
    };
    bd_man_section("EXIT STATUS", out);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        (void)fprintf(out, ".TP\n%d\n", rows[i].code);
        put_line(rows[i].text, strlen(rows[i].text), out);
    }
    (void)fputs(".TP\n128+n\nended by signal n\n", out);
    bd_man_section("ENVIRONMENT", out);
    bd_man_text(m->environment != NULL
                    ? m->environment
                    : "Every option can be given as BRAID_<OPTION>, in upper case and with\n"
                      "underscores for dots and dashes; flags win.",
                out);
    bd_man_section("SEE ALSO", out);
    put_line(m->see_also, strlen(m->see_also), out);
}

void bd_man_page(const bd_man *m, const bd_opt *table, size_t n, FILE *out)
{
    bd_man_head(m, out);
    bd_man_section("OPTIONS", out);
    bd_man_options(table, n, out);
    bd_man_foot(m, out);
}
