/* cli/cli_rdzv.h - launchers on several hosts agree on who they are, and on what became of a round.
 *
 * Layer:     cli (base, rpc's store). No processes, no loop.
 * Threads:   a cli_rdzv has two of its own while it takes part in a round: one tells the store that
 *            this launcher lives, one watches the next launcher's sign of life. The functions block
 *            their caller; cli_rdzv_stop and cli_rdzv_post may come from any thread.
 * Rounds:    each start of all ranks is a round. Whoever arrives enters itself with a lease; who
 *            sees enough live entries writes the plan (the first one wins); all confirm it, and the
 *            ranks start. The first `end` that is written is the round's end, on every host: so the
 *            first failure of the job is the one that all name. A round with a failure is followed
 *            by another while there are restarts left.
 * Stale:     what a former job of this id has left (an end, a plan whose launchers are all dead,
 *            entries whose leases run out) leads to a new round, never into the old one.
 * Keys:      launch/<id>/round, launch/<id>/<round>/{n,node/<i>,plan,ready,done,end,left}
 */
#ifndef CLI_RDZV_H
#define CLI_RDZV_H

#include "base/err.h"

#include "rpc/rpc_store.h"

#include <stdbool.h>
#include <stdint.h>

enum { CLI_RDZV_HOST_BYTES = 256, CLI_RDZV_TEXT_BYTES = 640, CLI_RDZV_MAX_NODES = 1024 };

typedef struct cli_rdzv_options {
    const char *id;
    int min_nodes, max_nodes;
    int n_ranks;         /* this host's */
    int node_rank;       /* wish, -1: none */
    const char *host;    /* name, for people */
    const char *address; /* where this host's ranks can be reached */
    int max_restarts;
    int64_t join_ms;      /* how long the others may take to come */
    int64_t last_call_ms; /* elastic: how long after min_nodes more are waited for */
    int64_t beat_ms;      /* between signs of life; three missed ones and a launcher is lost */
} cli_rdzv_options;

typedef struct cli_node {
    int arrival, n_ranks, first_rank, node_rank, port;
    char address[CLI_RDZV_HOST_BYTES], host[CLI_RDZV_HOST_BYTES];
} cli_node;

typedef struct cli_plan {
    int64_t round;
    int n_restarts;  /* rounds that failed before this one */
    cli_node *nodes; /* owned, [n_nodes]; ranks of nodes[0] come first, its port is free there */
    int n_nodes, me, world;
} cli_plan;
void cli_plan_deinit(cli_plan *p);

typedef enum cli_end_kind {
    CLI_END_OK,    /* every rank ended well */
    CLI_END_RETRY, /* a failure, and another round */
    CLI_END_FINAL, /* a failure, and no more */
    CLI_END_AGAIN  /* nobody's fault: others join, or never confirmed */
} cli_end_kind;
typedef struct cli_end {
    cli_end_kind kind;
    int n_restarts; /* counting this one */
    int exit_code;  /* of the first failure; 128 + n: signal n */
    char text[CLI_RDZV_TEXT_BYTES];
} cli_end;

typedef struct cli_rdzv cli_rdzv;
/* store and the options' strings are borrowed. */
bd_status cli_rdzv_new(rpc_store *store, const cli_rdzv_options *opt, cli_rdzv **out,
                       bd_err *err) BD_MUST_CHECK;
/* Until a round has begun with this launcher in it. BD_E_TIMEOUT says who came; BD_E_CANCELLED:
 * stopped. A plan of an earlier round must be deinit'ed first. */
bd_status cli_rdzv_join(cli_rdzv *r, cli_plan *out, bd_err *err) BD_MUST_CHECK;
/* Until the round's end is written. */
bd_status cli_rdzv_wait_end(cli_rdzv *r, const cli_plan *p, cli_end *out,
                            bd_err *err) BD_MUST_CHECK;
/* A failure here: RETRY while there are restarts left and may_retry, else FINAL. The first one of
 * all hosts counts. */
bd_status cli_rdzv_post(cli_rdzv *r, const cli_plan *p, int exit_code, bool may_retry,
                        const char *text, bd_err *err) BD_MUST_CHECK;
/* This host's ranks have all ended well. */
bd_status cli_rdzv_done(cli_rdzv *r, const cli_plan *p, bd_err *err) BD_MUST_CHECK;
/* The last thing: this launcher needs the store no more. wait: until no other does (a few seconds
 * at most), for whoever serves it. */
void cli_rdzv_leave(cli_rdzv *r, const cli_plan *p, bool wait);
/* From now on a store that does not answer is waited for a moment only. */
void cli_rdzv_hurry(cli_rdzv *r);
void cli_rdzv_stop(cli_rdzv *r); /* blocked functions return BD_E_CANCELLED within a second */
void cli_rdzv_free(cli_rdzv *r); /* NULL is fine */

#endif
