/* cli/cli_bench.h - the benchmarks that `braid bench` has.
 *
 * Layer:     cli.
 * Threads:   the main thread; each rank or client is a process of its own, forked from it before
 *            any thread of gRPC exists.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli/cli_cmd.h"

extern const cli_cmd cli_bench_allreduce, cli_bench_ps;

#endif
