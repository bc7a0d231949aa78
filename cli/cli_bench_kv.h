/* cli/cli_bench_kv.h - a bd_kv for processes that this one forks: a table in shared memory.
 *
 * Layer:     cli. Ownership: freed by the process that made it; children only use it.
 * Bounds:    keys to 127 bytes, values to 127, CLI_BENCH_KV_ENTRIES keys; more is BD_E_EXHAUSTED.
 */
#ifndef CLI_BENCH_KV_H
#define CLI_BENCH_KV_H

#include "base/kv.h"

#define CLI_BENCH_KV_ENTRIES 4096

/* NULL: no memory. */
bd_kv *cli_bench_kv_new(void);
void cli_bench_kv_free(bd_kv *kv);

#endif
