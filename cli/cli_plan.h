/* cli/cli_plan.h - the texts that launchers leave in the store, and who is who in a round.
 *
 * Layer:   cli (pure part, but for cli_plan_free_port).
 * Threads: any.
 * Texts:   node: `arrival n_ranks node_rank port address host`; plan: `n_restarts`, then a line a
 *          node, in order; end: `kind n_restarts exit_code text`.
 */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "cli/cli_rdzv.h"

#include <stddef.h>

void cli_node_text(const cli_node *n, char *text, size_t n_bytes);
bool cli_node_parse(const char *text, cli_node *out);
/* Of the live nodes those that make the round, at most max_nodes, in the order of their ranks: of
 * two with one node_rank the one that came later (the other is a dead one whose lease runs on), and
 * of too many the later ones. Nodes with a wish come first, in its order; the others as they came.
 */
void cli_plan_choose(cli_plan *p, int max_nodes);
char *cli_plan_text(const cli_plan *p); /* owned; NULL: no memory */
/* arrival: whose place is p->me; -1 (also afterwards): nobody's. Ranks are dealt out. */
bd_status cli_plan_parse(const char *text, int64_t round, int arrival, cli_plan *out,
                         bd_err *err) BD_MUST_CHECK;
void cli_end_text(const cli_end *e, char *text, size_t n_bytes);
bd_status cli_end_parse(const char *text, cli_end *out, bd_err *err) BD_MUST_CHECK;
/* A TCP port that nobody listens on now, 0: none. */
int cli_plan_free_port(void);

#endif
