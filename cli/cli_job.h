/* cli/cli_job.h - the resolved job as `braid-worker --print-config json` gives it.
 *
 * Layer:     cli; libuv through cli_proc.
 * Threads:   one owner thread; loading blocks.
 * Ownership: cli_job_deinit frees; strings got from it are borrowed until then.
 * Why:       the worker owns the table of a job's keys, so the launcher asks it, and a wrong key is
 *            the worker's error, passed on as it is.
 */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include "base/json.h"

#include "cli/cli_gen.h"

typedef struct cli_args { /* a growing argv; zero-initialise */
    char **items;         /* owned, with the strings; NULL at the end */
    size_t n, cap;
    bool failed; /* out of memory somewhere */
} cli_args;

void cli_args_add(cli_args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cli_args_deinit(cli_args *a);
/* Takes `--set key=value` and `--set=key=value` out of argv into sets ("key=value" each). */
bd_status cli_args_take_sets(cli_args *sets, int *argc, char **argv, bd_err *err) BD_MUST_CHECK;

typedef struct cli_job {
    char *text;       /* owned: the JSON */
    bd_json_doc *doc; /* owned */
} cli_job;

/* Runs the worker. On failure err is the worker's own line, and *exit_code its exit code (else the
 * code that fits the status). path: NULL for a job from --set alone. */
bd_status cli_job_load(cli_job *job, const char *worker_bin, const char *path, const cli_args *sets,
                       int *exit_code, bd_err *err) BD_MUST_CHECK;
void cli_job_deinit(cli_job *job);
/* Values by path ("data/generate/rows"); the fallback when the job has no such key. */
int64_t cli_job_i64(const cli_job *job, const char *path, int64_t fallback);
double cli_job_f64(const cli_job *job, const char *path, double fallback);
const char *cli_job_str(const cli_job *job, const char *path, const char *fallback);
/* data.generate.* */
cli_gen_spec cli_job_gen_spec(const cli_job *job);

#endif
