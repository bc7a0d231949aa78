/* base/man.h - manual pages from the tables that flags and help come from.
 *
 * Layer:   base. Threads: any.
 * Format:  man(7), as mandoc and groff read it without a warning. Plain texts go in; what man would
 *          take for a request or an escape is escaped here.
 */
#ifndef BD_MAN_H
#define BD_MAN_H

#include "base/option.h"

#include <stdio.h>

typedef struct bd_man {
    const char *name, *section, *summary;
    const char *synopsis;    /* a line each */
    const char *description; /* paragraphs, an empty line between them */
    const char *environment; /* as description; NULL: every option as BRAID_<KEY> */
    const char *see_also;
} bd_man;

/* Up to the description. */
void bd_man_head(const bd_man *m, FILE *out);
void bd_man_section(const char *title, FILE *out);    /* .SH */
void bd_man_subsection(const char *title, FILE *out); /* .SS */
void bd_man_text(const char *paragraphs, FILE *out);
/* Lines as they are. */
void bd_man_lines(const char *lines, FILE *out);
void bd_man_options(const bd_opt *table, size_t n, FILE *out);
/* Exit status, environment, see also. */
void bd_man_foot(const bd_man *m, FILE *out);
/* A page of nothing but the above. */
void bd_man_page(const bd_man *m, const bd_opt *table, size_t n, FILE *out);

#endif
