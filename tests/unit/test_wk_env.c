/* Rank, world and coordinator as Kubernetes, torchrun and TrainJobs give them. */
#include "worker/wk_env.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct var {
    const char *name, *value;
} var;

static const char *get(void *user, const char *name)
{
    for (const var *v = user; v->name != NULL; v++) {
        if (strcmp(v->name, name) == 0) {
            return v->value;
        }
    }
    return NULL;
}

/* rank, world, coordinator: "" where nothing is said. */
static void expect(var *vars, const char *rank, const char *world, const char *coordinator)
{
    wk_env e;
    bd_err err = BD_ERR_INIT;
    bd_status rc = wk_env_read(get, vars, &e, &err);
    if (rc != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
    assert_string_equal(e.rank.text, rank);
    assert_string_equal(e.world.text, world);
    assert_string_equal(e.coordinator.text, coordinator);
    assert_int_equal(e.rank.from != NULL, rank[0] != '\0');
}

static void each_launcher_is_understood(void **state)
{
    (void)state;
    expect((var[]){{0}}, "", "", "");
    expect((var[]){{"JOB_COMPLETION_INDEX", "3"}, {0}}, "3", "", "");
    expect((var[]){{"RANK", "1"},
                   {"WORLD_SIZE", "4"},
                   {"LOCAL_RANK", "1"},
                   {"MASTER_ADDR", "host-0"},
                   {"MASTER_PORT", "29500"},
                   {0}},
           "1", "4", "host-0:29500");
    expect((var[]){{"PET_NNODES", "2"},
                   {"PET_NPROC_PER_NODE", "1"},
                   {"PET_NODE_RANK", "1"},
                   {"PET_MASTER_ADDR", "job-node-0-0.job"},
                   {"PET_MASTER_PORT", "29400"},
                   {0}},
           "1", "2", "job-node-0-0.job:29400");
    expect((var[]){{"PET_NNODES", "2"},
                   {"PET_NPROC_PER_NODE", "4"},
                   {"PET_NODE_RANK", "1"},
                   {"LOCAL_RANK", "3"},
                   {0}},
           "7", "8", "");
    expect((var[]){{"PET_NNODES", "3"}, {"PET_NPROC_PER_NODE", "gpu"}, {0}}, "", "3", "");
    expect((var[]){{"PET_NNODES", "2"}, {"PET_NPROC_PER_NODE", "8"}, {"PET_NODE_RANK", "1"}, {0}},
           "1", "2", "");
}

static void the_more_exact_variable_wins(void **state)
{
    (void)state;
    expect((var[]){{"RANK", "5"},
                   {"WORLD_SIZE", "8"},
                   {"PET_NNODES", "2"},
                   {"PET_NODE_RANK", "1"},
                   {"JOB_COMPLETION_INDEX", "0"},
                   {"MASTER_ADDR", "a"},
                   {"MASTER_PORT", "1"},
                   {"PET_MASTER_ADDR", "b"},
                   {"PET_MASTER_PORT", "2"},
                   {0}},
           "5", "8", "a:1");
    expect((var[]){{"PET_NODE_RANK", "1"}, {"JOB_COMPLETION_INDEX", "0"}, {0}}, "1", "", "");
    expect((var[]){{"RANK", ""}, {"WORLD_SIZE", ""}, {"JOB_COMPLETION_INDEX", "2"}, {0}}, "2", "",
           "");
}

static void wrong_variables_are_named(void **state)
{
    static const struct {
        var vars[4];
        const char *says;
    } rows[] = {
        {{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, "environment RANK: \"one\" is not a number"},
        {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "environment RANK"},
        {{{"RANK", "0"}}, "environment RANK is set, but not WORLD_SIZE"},
        {{{"WORLD_SIZE", "2"}}, "environment WORLD_SIZE is set, but not RANK"},
        {{{"MASTER_ADDR", "a"}}, "environment MASTER_ADDR is set, but not MASTER_PORT"},
        {{{"PET_MASTER_PORT", "1"}}, "environment PET_MASTER_PORT is set, but not PET_MASTER_ADDR"},
        {{{"PET_NNODES", "2:4"}}, "environment PET_NNODES: \"2:4\" is a range"},
        {{{"JOB_COMPLETION_INDEX", "99999"}}, "environment JOB_COMPLETION_INDEX"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        wk_env e;
        bd_err err = BD_ERR_INIT;
        var vars[4];
        memcpy(vars, rows[i].vars, sizeof vars);
        assert_int_equal(wk_env_read(get, vars, &e, &err), BD_E_USAGE);
        if (strstr(bd_err_text(&err), rows[i].says) == NULL) {
            fail_msg("row %zu: %s", i, bd_err_text(&err));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_launcher_is_understood),
        cmocka_unit_test(the_more_exact_variable_wins),
        cmocka_unit_test(wrong_variables_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
