/* braid-ps: one parameter server. `braid-ps --help` lists its options. */
#include "base/build_info.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "base/man.h"
#include "base/mem.h"

#include "ps_server/ps_offline.h"
#include "ps_server/ps_server.h"
#include "rpc/rpc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool has_flag(int argc, char **argv, const char *flag)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], flag) == 0) {
            return true;
        }
    }
    return false;
}

static int fail(const bd_err *err)
{
    (void)fprintf(stderr, "error: %s\n", bd_err_text(err));
    return bd_exit_code(err->code);
}

/* Tells whoever started us that we serve. */
static bd_status say_ready(const ps_options *opt, const char *address, bd_err *err)
{
    char line[320];
    if (opt->ready_fd < 0) {
        return BD_OK;
    }
    int n = snprintf(line, sizeof line, "READY %s\n", address);
    ssize_t w = write((int)opt->ready_fd, line, (size_t)n);
    if (w != n) {
        return bd_err_errno(err, BD_E_IO, w < 0 ? errno : EIO, "write to ready_fd %d",
                            (int)opt->ready_fd);
    }
    if (opt->ready_fd > STDERR_FILENO) {
        (void)close((int)opt->ready_fd);
    }
    return BD_OK;
}

/* Serves until a signal says stop. The signals were blocked before any thread was made. */
static bd_status run(const ps_options *opt, const sigset_t *signals, bd_err *err)
{
    ps_server *server = NULL;
    bd_status rc = ps_server_start(opt, &server, err);
    if (rc != BD_OK) {
        return rc;
    }
    bd_status ready = say_ready(opt, ps_server_address(server), err);
    if (ready == BD_OK) {
        int sig = 0;
        (void)sigwait(signals, &sig);
        BD_LOG(INFO, "stopping", "signal", sig);
    }
    bd_err stop_err = BD_ERR_INIT;
    rc = ps_server_stop(server, &stop_err);
    if (ready == BD_OK && rc != BD_OK) {
        *err = stop_err;
    }
    return ready != BD_OK ? ready : rc;
}

static bd_status load(bd_options *o, int *argc, char **argv, bd_err *err)
{
    bd_status rc = bd_options_load_env(o, err);
    if (rc == BD_OK) {
        rc = bd_options_load_args(o, argc, argv, err);
    }
    if (rc == BD_OK && *argc > 1) {
        rc = bd_err_set(err, BD_E_USAGE, "unexpected argument \"%s\" (see --help)", argv[1]);
    }
    return rc == BD_OK ? bd_options_check(o, err) : rc;
}

static const char synopsis[] =
    "braid-ps --data-dir DIR [options]\n"
    "       braid-ps --offline ckpt|table VERB ... (see `braid help ckpt`, `braid help table`)\n";

/* docs/man/braid-ps.8 */
static void print_man(void)
{
    const bd_man page = {
        .name = "braid-ps",
        .section = "8",
        .summary = "parameter server of Braid",
        .synopsis = synopsis,
        .description =
            "Owns sharded embedding tables: serves lookups over gRPC, applies gradients beside "
            "the\n"
            "data, and keeps all of it in RocksDB in its data folder. What it has answered "
            "survives\n"
            "kill -9 (durability journal). Server 0 is also the cluster's coordinator, unless the\n"
            "cluster's state is in etcd (store).\n"
            "\n"
            "SIGTERM or SIGINT: finishes what is open, writes back, ends with 0.\n"
            "\n"
            "With --offline as the first word it works on what stopped servers have left; "
            "braid(1)\n"
            "calls it so for ckpt and table.",
        .see_also = "braid(1), braid-worker(1)"};
    bd_man_page(&page, ps_option_table, ps_n_options, stdout);
}

int main(int argc, char **argv)
{
    ps_options opt = {0};
    bd_options o;
    bd_err err = BD_ERR_INIT;
    sigset_t signals;
    char who[32];

    rpc_tune_process();
    if (has_flag(argc, argv, "--version")) {
        (void)printf("%s\n", bd_build_line("braid-ps"));
        return BD_EXIT_OK;
    }
    if (has_flag(argc, argv, "--help")) {
        (void)printf("usage: %s\n", synopsis);
        bd_options_help(ps_option_table, ps_n_options, stdout);
        return BD_EXIT_OK;
    }
    if (argc == 3 && strcmp(argv[1], "--print-options") == 0 && strcmp(argv[2], "man") == 0) {
        print_man();
        return BD_EXIT_OK;
    }
    if (argc > 1 && strcmp(argv[1], "--offline") == 0) {
        return ps_offline_main(argc, argv);
    }
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    bd_status rc = bd_options_init(&o, ps_option_table, ps_n_options, &opt, &err);
    if (rc == BD_OK) {
        rc = load(&o, &argc, argv, &err);
    }
    if (rc == BD_OK) {
        (void)snprintf(who, sizeof who, "ps-%lld", (long long)opt.index);
        bd_log_set_who(who);
        bd_log_set_level((bd_log_level)bd_log_level_parse(opt.log_level));
        bd_log_set_json(opt.log_json);
        rc = strcmp(opt.print_config, "none") != 0
                 ? bd_options_show(&o, strcmp(opt.print_config, "json") == 0, stdout, &err)
                 : run(&opt, &signals, &err);
    }
    bd_options_deinit(&o);
    return rc == BD_OK ? BD_EXIT_OK : fail(&err);
}
