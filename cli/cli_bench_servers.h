/* cli/cli_bench_servers.h - parameter servers of a benchmark: started, measured, ended.
 *
 * Layer:     cli.
 * Threads:   one owner thread.
 * Ownership: processes and their folder belong to the cli_bench_servers; _stop ends and removes
 *            them. A server whose benchmark dies is ended by the kernel (PR_SET_PDEATHSIG).
 */
#ifndef CLI_BENCH_SERVERS_H
#define CLI_BENCH_SERVERS_H

#include "base/err.h"
#include "base/option.h"

#include <sys/types.h>

#define CLI_BENCH_MAX_SERVERS 64

typedef struct cli_bench_servers {
    int n;
    pid_t pids[CLI_BENCH_MAX_SERVERS];
    char coordinator[128]; /* host:port of server 0 */
    char *dir;             /* owned; holds ps-<i> and ps-<i>.log */
} cli_bench_servers;

/* From here on SIGINT, SIGTERM and SIGHUP do not end the process, cli_bench_signo tells of them: what
 * the servers have written goes first. Children set their actions back (cli_bench_signals_default). */
void cli_bench_signals_watch(void);
void cli_bench_signals_default(void);
/* The signal that asked for the end; 0: none has. */
int cli_bench_signo(void);

/* Starts n braid-ps (beside this program) with their data in a fresh folder under `parent` and
 * waits until all of them serve. settings: "key=value" of braid-ps's options. The caller has not
 * started any thread. BD_E_IO, BD_E_USAGE with the last lines of the server's log. */
bd_status cli_bench_servers_start(cli_bench_servers *s, int n, const char *parent,
                                  const bd_str_list *settings, bd_err *err) BD_MUST_CHECK;
/* Peak resident memory of all of them since their start, bytes; 0 when not known. */
uint64_t cli_bench_servers_rss_bytes(const cli_bench_servers *s);
/* Ends what runs, after a signal at once; a zeroed struct is fine. BD_E_INTERNAL: a server did not
 * end well. */
bd_status cli_bench_servers_stop(cli_bench_servers *s, bd_err *err);

#endif
