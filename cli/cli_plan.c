#include "cli/cli_plan.h"

#include "base/mem.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *const kinds[] = {"ok", "retry", "final", "again"};

void cli_node_text(const cli_node *n, char *text, size_t n_bytes)
{
    (void)snprintf(text, n_bytes, "%d %d %d %d %s %s", n->arrival, n->n_ranks, n->node_rank,
                   n->port, n->address, n->host);
}

static bool take_int(const char **at, int *out)
{
    char *end = NULL;
    long v = strtol(*at, &end, 10);
    bool ok = end != *at && *end == ' ' && v >= -1 && v <= 1 << 20;
    *out = (int)v;
    *at = ok ? end + 1 : *at;
    return ok;
}

static bool take_word(const char **at, char out[CLI_RDZV_HOST_BYTES])
{
    size_t n = strcspn(*at, " \n");
    bool ok = n > 0 && n < CLI_RDZV_HOST_BYTES;
    if (ok) {
        memcpy(out, *at, n);
        out[n] = '\0';
        *at += n + ((*at)[n] == ' ');
    }
    return ok;
}

static bool take_node(const char **at, cli_node *out)
{
    *out = (cli_node){0};
    return take_int(at, &out->arrival) && take_int(at, &out->n_ranks) &&
           take_int(at, &out->node_rank) && take_int(at, &out->port) &&
           take_word(at, out->address) && take_word(at, out->host) && out->arrival >= 0 &&
           out->n_ranks > 0;
}

bool cli_node_parse(const char *text, cli_node *out)
{
    return take_node(&text, out) && *text == '\0';
}

static int compare_nodes(const void *a, const void *b)
{
    const cli_node *x = a, *y = b;
    int wish_x = x->node_rank < 0 ? INT32_MAX : x->node_rank;
    int wish_y = y->node_rank < 0 ? INT32_MAX : y->node_rank;
    return wish_x != wish_y ? (wish_x < wish_y ? -1 : 1) : x->arrival - y->arrival;
}

void cli_plan_choose(cli_plan *p, int max_nodes)
{
    int n = 0;
    for (int i = 0; i < p->n_nodes; i++) { /* they stand in the order of arrival */
        bool replaced = false;
        for (int k = i + 1; k < p->n_nodes && p->nodes[i].node_rank >= 0; k++) {
            replaced = replaced || p->nodes[k].node_rank == p->nodes[i].node_rank;
        }
        if (!replaced) {
            p->nodes[n++] = p->nodes[i];
        }
    }
    if (n > max_nodes) {
        memmove(p->nodes, p->nodes + (n - max_nodes), (size_t)max_nodes * sizeof *p->nodes);
        n = max_nodes;
    }
    p->n_nodes = n;
    if (n > 1) {
        qsort(p->nodes, (size_t)n, sizeof *p->nodes, compare_nodes);
    }
}

char *cli_plan_text(const cli_plan *p)
{
    char *text = bd_strfmt("%d", p->n_restarts);
    for (int i = 0; text != NULL && i < p->n_nodes; i++) {
        char line[2 * CLI_RDZV_HOST_BYTES + 64];
        cli_node_text(&p->nodes[i], line, sizeof line);
        char *longer = bd_strfmt("%s\n%s", text, line);
        bd_free(text);
        text = longer;
    }
    return text;
}

bd_status cli_plan_parse(const char *text, int64_t round, int arrival, cli_plan *out, bd_err *err)
{
    char *end = NULL;
    int n_lines = 0;
    *out = (cli_plan){.round = round, .me = -1};
    out->n_restarts = (int)strtol(text, &end, 10);
    for (const char *c = end; *c != '\0'; c++) {
        n_lines += *c == '\n';
    }
    bool ok = end != text && n_lines > 0 && n_lines <= CLI_RDZV_MAX_NODES;
    out->nodes = ok ? bd_calloc((size_t)n_lines, sizeof *out->nodes) : NULL;
    if (ok && out->nodes == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "rendezvous");
    }
    const char *at = end;
    while (ok && *at == '\n') {
        cli_node *n = &out->nodes[out->n_nodes];
        at++;
        ok = take_node(&at, n);
        n->first_rank = out->world;
        out->world += ok ? n->n_ranks : 0;
        out->me = ok && n->arrival == arrival ? out->n_nodes : out->me;
        out->n_nodes += ok;
    }
    if (!ok || *at != '\0') {
        cli_plan_deinit(out);
        return bd_err_set(err, BD_E_CORRUPT, "the plan of round %" PRId64 " is not one", round);
    }
    return BD_OK;
}

void cli_plan_deinit(cli_plan *p)
{
    bd_free(p->nodes);
    *p = (cli_plan){.me = -1};
}

void cli_end_text(const cli_end *e, char *text, size_t n_bytes)
{
    (void)snprintf(text, n_bytes, "%s %d %d %s", kinds[e->kind], e->n_restarts, e->exit_code,
                   e->text);
}

bd_status cli_end_parse(const char *text, cli_end *out, bd_err *err)
{
    size_t n = strcspn(text, " ");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const char *at = text + n + 1;
        if (n == strlen(kinds[i]) && memcmp(text, kinds[i], n) == 0 && text[n] == ' ') {
            *out = (cli_end){.kind = (cli_end_kind)i};
            if (take_int(&at, &out->n_restarts) && take_int(&at, &out->exit_code)) {
                (void)snprintf(out->text, sizeof out->text, "%s", at);
                return BD_OK;
            }
        }
    }
    return bd_err_set(err, BD_E_CORRUPT, "\"%.64s\" is not the end of a round", text);
}

int cli_plan_free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_ANY)}};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;
    if (fd >= 0 && bind(fd, (const struct sockaddr *)(const void *)&a, n) == 0 &&
        getsockname(fd, (struct sockaddr *)(void *)&a, &n) == 0) {
        port = ntohs(a.sin_port);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return port;
}
