/* torchrun's command line in our options: its forms of values, its flags, what is refused. */
#include "base/mem.h"

#include "cli/cli_torch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_WORDS = 16 };

typedef struct flags {
    const char *nnodes, *rdzv_conf, *redirects, *module, *tls_ca;
    int64_t node_rank, join_timeout, last_call, monitor_interval;
    bool standalone;
} flags;

#define AT(field) offsetof(flags, field)

static const bd_opt table[] = {
    {"nnodes", BD_OPT_STR, AT(nnodes), "1", 0, 0, NULL, "Hosts."},
    {"node_rank", BD_OPT_I64, AT(node_rank), "-1", -1, 65535, NULL, "Place."},
    {"rdzv_conf", BD_OPT_STR, AT(rdzv_conf), "", 0, 0, NULL, "More."},
    {"standalone", BD_OPT_BOOL, AT(standalone), "false", 0, 0, NULL, "Alone."},
    {"join_timeout", BD_OPT_DURATION_MS, AT(join_timeout), "600s", 100, 86400000, NULL, "Join."},
    {"last_call", BD_OPT_DURATION_MS, AT(last_call), "30s", 0, 86400000, NULL, "Last."},
    {"monitor_interval", BD_OPT_DURATION_MS, AT(monitor_interval), "5s", 400, 3600000, NULL,
     "Beat."},
    {"redirects", BD_OPT_STR, AT(redirects), "0", 0, 0, NULL, "Files."},
    {"module", BD_OPT_STR, AT(module), "", 0, 0, NULL, "Module."},
    {"tls_ca", BD_OPT_STR, AT(tls_ca), "", 0, 0, NULL, "File."},
};

typedef struct parsed {
    bd_options o;
    flags f;
    char *text, *words[MAX_WORDS];
    int n_words, n_own;
    bool module_next;
    bd_status rc;
    bd_err err;
} parsed;

/* The words of a line behind "launch". */
static void parse(parsed *p, const char *line)
{
    *p = (parsed){.text = bd_strdup(line), .err = BD_ERR_INIT};
    char name[] = "launch", *rest = p->text;
    p->words[p->n_words++] = name;
    for (char *w = strsep(&rest, " "); w != NULL && *w != '\0'; w = strsep(&rest, " ")) {
        p->words[p->n_words++] = w;
    }
    assert_int_equal(bd_options_init(&p->o, table, sizeof table / sizeof table[0], &p->f, NULL),
                     BD_OK);
    p->n_own = cli_torch_count_own(&p->o, p->n_words, p->words);
    p->rc = cli_torch_load(&p->o, p->n_own, p->words, &p->module_next, &p->err);
    p->words[0] = NULL;
}

static void done(parsed *p)
{
    bd_options_deinit(&p->o);
    bd_free(p->text);
}

static void is_fine(parsed *p, const char *line)
{
    parse(p, line);
    if (p->rc != BD_OK) {
        fail_msg("%s: %s", line, bd_err_text(&p->err));
    }
}

static void is_refused(const char *line, const char *why)
{
    parsed p;
    parse(&p, line);
    assert_int_equal(p.rc, BD_E_USAGE);
    if (strstr(bd_err_text(&p.err), why) == NULL) {
        fail_msg("%s: \"%s\" does not say \"%s\"", line, bd_err_text(&p.err), why);
    }
    done(&p);
}

static void a_number_alone_is_in_seconds(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int64_t ms;
    } cases[] = {
        {"--monitor-interval 5 p", 5000},
        {"--monitor_interval=2.5 p", 2500},
        {"--monitor-interval 0.1 p", 400}, /* torchrun's default: our least */
        {"--monitor-interval 700ms p", 700},
        {"--monitor-interval=1m p", 60000},
        {"--nnodes 1:4 p", 5000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        parsed p;
        is_fine(&p, cases[i].line);
        assert_int_equal(p.f.monitor_interval, cases[i].ms);
        assert_string_equal(p.words[p.n_own], "p");
        done(&p);
    }
    is_refused("--monitor-interval -1 p", "monitor_interval");
    is_refused("--monitor-interval soon p", "monitor_interval");
    is_refused("--monitor-interval 4000 p", "monitor_interval");
    is_refused("--monitor-interval 300ms p", "monitor_interval");
    is_refused("--join-timeout 5 p", "join_timeout"); /* ours: with its unit */
}

static void rdzv_conf_sets_other_options(void **state)
{
    (void)state;
    parsed p;
    is_fine(&p, "--rdzv-conf join_timeout=7,last_call_timeout=3,rank=2,keep_alive_interval=9,"
                "cacert=/ca p");
    assert_int_equal(p.f.join_timeout, 7000);
    assert_int_equal(p.f.last_call, 3000);
    assert_int_equal(p.f.node_rank, 2);
    assert_int_equal(p.f.monitor_interval, 9000);
    assert_string_equal(p.f.tls_ca, "/ca");
    done(&p);
    is_fine(&p, "--rdzv_conf timeout=7,rank=2 --join-timeout 8s --node-rank 1 p");
    assert_int_equal(p.f.join_timeout, 8000); /* the option of that name wins */
    assert_int_equal(p.f.node_rank, 1);
    done(&p);
    is_refused("--rdzv-conf is_host=true p", "\"is_host\" has no meaning here");
    is_refused("--rdzv-conf timeout p", "\"timeout\" is not KEY=VALUE");
    is_refused("--rdzv-conf =5 p", "is not KEY=VALUE");
    is_refused("--rdzv-conf rank=x p", "node_rank");
}

static void what_changes_nothing_is_taken_and_the_rest_refused(void **state)
{
    (void)state;
    static const char *const fine[] = {
        "--start-method spawn p",         "--start_method=fork p",
        "--event-log-handler null p",     "--logs-specs=default p",
        "--start-method forkserver -- p", "--signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT p",
    };
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        parsed p;
        is_fine(&p, fine[i]);
        int at = p.n_own + (strcmp(p.words[p.n_own], "--") == 0);
        assert_string_equal(p.words[at], "p");
        done(&p);
    }
    is_refused("--start-method thread p", "start_method thread has no meaning here: ranks are");
    is_refused("--start-method", "start_method has no meaning here");
    is_refused("--run-path p", "run_path has no meaning here: a script runs in a python3");
    is_refused("--numa-binding node p", "numactl");
    is_refused("--virtual-local-rank p", "virtual_local_rank has no meaning");
    is_refused("--duplicate-stdout-filters x p", "local_ranks_filter");
    is_refused("--signals-to-handle SIGUSR1 p", "handed on");
    is_refused("--no-such-thing p", "no-such-thing");
    is_refused("--no_such_thing p", "no_such_thing");
}

static void m_is_a_flag_or_has_the_name(void **state)
{
    (void)state;
    parsed p;
    is_fine(&p, "-r 3 -m pkg.mod --nnodes 2");
    assert_string_equal(p.f.module, "pkg.mod");
    assert_string_equal(p.f.redirects, "3");
    assert_false(p.module_next);
    assert_string_equal(p.words[p.n_own], "--nnodes"); /* the module's */
    done(&p);
    is_fine(&p, "-m --nnodes 2 pkg.mod x");
    assert_string_equal(p.f.module, "");
    assert_true(p.module_next);
    assert_string_equal(p.f.nnodes, "2");
    assert_string_equal(p.words[p.n_own], "pkg.mod");
    done(&p);
    is_fine(&p, "--module pkg.mod --nnodes 2 x");
    assert_string_equal(p.f.module, "pkg.mod");
    assert_string_equal(p.words[p.n_own], "x");
    done(&p);
}

static void variables_have_the_same_forms(void **state)
{
    (void)state;
    static const char *const names[] = {"PET_MONITOR_INTERVAL", "PET_MODULE", "PET_STANDALONE",
                                        "PET_RDZV_CONF", "PET_START_METHOD"};
    static const char *const values[] = {"5", "1", "1", "last_call_timeout=4", "spawn"};
    parsed p;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(setenv(names[i], values[i], 1), 0);
    }
    is_fine(&p, "pkg.mod");
    assert_int_equal(p.f.monitor_interval, 5000);
    assert_int_equal(p.f.last_call, 4000);
    assert_true(p.f.standalone && p.module_next);
    done(&p);
    is_fine(&p, "--monitor-interval 6 pkg.mod");
    assert_int_equal(p.f.monitor_interval, 6000);
    done(&p);
    assert_int_equal(setenv("PET_START_METHOD", "thread", 1), 0);
    is_refused("p", "start_method thread has no meaning");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(unsetenv(names[i]), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_alone_is_in_seconds),
        cmocka_unit_test(rdzv_conf_sets_other_options),
        cmocka_unit_test(what_changes_nothing_is_taken_and_the_rest_refused),
        cmocka_unit_test(m_is_a_flag_or_has_the_name),
        cmocka_unit_test(variables_have_the_same_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
