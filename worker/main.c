/* braid-worker: one rank of a training job. Usually started by `braid run`. */
#include "base/build_info.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "base/man.h"
#include "base/mem.h"

#include "rpc/rpc.h"
#include "tape/blas.h"
#include "worker/wk_run.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static volatile sig_atomic_t stop_signal;

/* The first signal ends after the current step, with a checkpoint; the second one at once. */
static void on_signal(int sig)
{
    if (stop_signal != 0) {
        (void)signal(sig, SIG_DFL);
        (void)raise(sig);
    }
    stop_signal = sig;
}

static void catch_signals(void)
{
    struct sigaction act = {.sa_handler = on_signal};
    (void)sigemptyset(&act.sa_mask);
    act.sa_flags = SA_RESTART;
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigaction(SIGINT, &act, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

static const char synopsis[] =
    "braid-worker JOB.yaml [--set key=value]... [--rank R --world N]\n"
    "             [--coordinator HOST:PORT] [--run-dir DIR] [--resume auto|NAME]\n"
    "             [--dry-run] [--predict FILE --output FILE]\n"
    "             [--print-config text|json]\n";

static void print_help(void)
{
    size_t n = 0;
    const bd_opt *table = wk_job_all_options(&n);
    (void)printf("usage: %s\n", synopsis);
    bd_options_help(table, n, stdout);
}

/* docs/JOBS.md is made of the job's keys, without the flags of one process; docs/man of all. */
static void print_options(bool man)
{
    size_t n = 0;
    const bd_man page = {
        .name = "braid-worker",
        .section = "1",
        .summary = "one rank of a Braid training job",
        .synopsis = synopsis,
        .description =
            "Trains a recommender model as one of several ranks: the dense part is averaged "
            "between\n"
            "them, the embedding tables are on parameter servers. Usually started by \"braid "
            "run\"\n"
            "(one host) or \"braid launch\" (many hosts). JOB.yaml has the keys below, without\n"
            "the dashes; rank 0 ends with one line on stdout, RESULT and a JSON object.\n"
            "\n"
            "SIGTERM or SIGINT: ends after the step with a checkpoint; a second one at once.",
        .environment =
            "Every option can be given as BRAID_<OPTION>, in upper case and with underscores for\n"
            "dots and dashes; flags win. Rank, world and coordinator are also read from RANK,\n"
            "WORLD_SIZE, PET_NODE_RANK, PET_NNODES, JOB_COMPLETION_INDEX, MASTER_ADDR with\n"
            "MASTER_PORT, PET_MASTER_ADDR with PET_MASTER_PORT.\n"
            "OPENBLAS_CORETYPE names the kernels of matrix products; where it is not set and "
            "OpenBLAS\n"
            "does not know the CPU, the worker sets it and starts itself again.",
        .see_also = "braid(1), braid-ps(8)"};
    const bd_opt *table = man ? wk_job_all_options(&n) : wk_job_table(&n);
    if (man) {
        bd_man_page(&page, table, n, stdout);
    } else {
        bd_options_markdown(table, n, stdout);
    }
}

static bd_status train(const wk_run_options *opt, bd_err *err)
{
    char *result = NULL;
    bool stopped = false;
    bd_status rc = wk_run_train(opt, &result, &stopped, err);
    if (rc == BD_OK && result != NULL) {
        (void)printf("RESULT %s\n", result);
    }
    bd_free(result);
    if (!stopped) {
        stop_signal = 0; /* came after the last step: the job is done */
    }
    return rc;
}

static bd_status run(wk_job *job, bd_err *err)
{
    char who[32];
    const wk_run_options opt = {job, stdout, &stop_signal};
    if (strcmp(job->process.print_options, "none") != 0) {
        print_options(strcmp(job->process.print_options, "man") == 0);
        return BD_OK;
    }
    bd_status rc = wk_job_check(job, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (strcmp(job->process.print_config, "none") != 0) {
        return bd_options_show(&job->options, strcmp(job->process.print_config, "json") == 0,
                               stdout, err);
    }
    (void)snprintf(who, sizeof who, "worker-%lld", (long long)job->process.rank);
    bd_log_set_who(who);
    bd_log_set_level((bd_log_level)bd_log_level_parse(job->log_level));
    if (job->process.dry_run) {
        return wk_run_dry(&opt, err);
    }
    if (job->process.predict[0] != '\0') {
        return wk_run_predict(&opt, err);
    }
    catch_signals();
    return train(&opt, err);
}

int main(int argc, char **argv)
{
    wk_job job;
    bool help = false;
    tp_blas_start(argv);
    rpc_tune_process();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--version") == 0) {
            (void)printf("%s\n", bd_build_line("braid-worker"));
            return BD_EXIT_OK;
        }
    }
    bd_err err = BD_ERR_INIT;
    bd_status rc = wk_job_load(&job, argc, argv, &help, &err);
    if (rc == BD_OK && help) {
        print_help();
    } else if (rc == BD_OK) {
        rc = run(&job, &err);
    }
    wk_job_deinit(&job);
    if (rc != BD_OK) {
        (void)fprintf(stderr, "error: %s\n", bd_err_text(&err));
        return bd_exit_code(rc);
    }
    return stop_signal != 0 ? 128 + (int)stop_signal : BD_EXIT_OK;
}
