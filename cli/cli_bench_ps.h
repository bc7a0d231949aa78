/* cli/cli_bench_ps.h - `braid bench ps`: what its parent and its client processes share.
 *
 * Layer:     cli, private to cli_bench_ps*.c.
 * Threads:   one process a client, forked before gRPC starts; they meet in bench_ps_shared.
 * Order:     for each size of the batch: every client gets ready, the first one checks values, all
 *            start together, the first one reports.
 */
#ifndef CLI_BENCH_PS_H
#define CLI_BENCH_PS_H

#include "base/err.h"
#include "base/option.h"

#include "cli/cli_bench_servers.h"
#include "cli/cli_launch.h"

#include <stdatomic.h>

#define BENCH_PS_MAX_CLIENTS 64
#define BENCH_PS_MAX_SIZES   16
#define BENCH_PS_MAX_SAMPLES 65536

typedef struct bench_ps_flags {
    const char *op, *dist, *durability, *dtype, *optimizer, *consistency;
    const char *coordinator, *data_dir;
    const char *wire_rows, *wire_grads, *codec;
    bd_str_list keys, ps_set;
    int64_t dim, rows, servers, clients, depth, spin_us;
    double zipf, seconds;
    bool json;
} bench_ps_flags;

/* What one client did at one size. */
typedef struct bench_ps_result {
    uint64_t rows;
    double seconds;
    uint32_t n_samples;
    float us[BENCH_PS_MAX_SAMPLES]; /* time of each batch */
} bench_ps_result;

typedef struct bench_ps_shared {
    _Atomic uint32_t arrived; /* clients that have come to their next meeting, over all of them */
    _Atomic uint32_t failed;
    _Atomic uint64_t n_steps; /* sync: of the timed run, the same for all */
    _Atomic uint64_t epoch;   /* of the job */
    _Atomic uint32_t table_id;
    bd_err errors[BENCH_PS_MAX_CLIENTS];
    bench_ps_result results[]; /* [clients] */
} bench_ps_shared;

typedef struct bench_ps {
    const bench_ps_flags *flags;
    const cli_io *io;
    cli_bench_servers servers; /* n 0: they are somebody else's */
    const char *coordinator;
    char table[64];
    size_t sizes[BENCH_PS_MAX_SIZES];
    size_t n_sizes, max_keys;
    size_t row_bytes;
    bench_ps_shared *shared;
} bench_ps;

/* The whole life of client `rank`, in its own process. */
bd_status bench_ps_client_run(const bench_ps *b, int rank, bd_err *err) BD_MUST_CHECK;
/* Prints the line of one size from the shared results. */
bd_status bench_ps_report(const bench_ps *b, size_t n_keys, bd_err *err) BD_MUST_CHECK;

#endif
