/* `braid datagen`: planted click data as files. */
#include "base/cgroup.h"
#include "base/exit_code.h"
#include "base/json.h"
#include "base/mem.h"

#include "cli/cli_cmd.h"
#include "cli/cli_datagen.h"

#include <inttypes.h>
#include <string.h>

typedef struct datagen_flags {
    int64_t rows, test_rows, seed, cardinality, fields, rank, threads;
    double zipf, linear, auc, ctr;
    const char *out, *test_out, *format;
} datagen_flags;

#define AT(field) offsetof(datagen_flags, field)

static const bd_opt table[] = {
    {"rows", BD_OPT_I64, AT(rows), "1m", 1, 1e12, NULL, "Rows of the training file."},
    {"test_rows", BD_OPT_I64, AT(test_rows), "0", 0, 1e12, NULL, "Rows of the test file."},
    {"out", BD_OPT_STR, AT(out), NULL, 0, 0, NULL,
     "Training file; compressed when it ends in .gz. <out>.meta.json says what is planted in it."},
    {"test_out", BD_OPT_STR, AT(test_out), "", 0, 0, NULL, "Test file."},
    {"seed", BD_OPT_I64, AT(seed), "1", 0, 4294967295.0, NULL, "Seed of everything."},
    {"cardinality", BD_OPT_I64, AT(cardinality), "100", 2, 2147483648.0, NULL,
     "Ids of each of the 26 categorical columns."},
    {"zipf", BD_OPT_F64, AT(zipf), "1.05", 0, 10, NULL, "Exponent of the power law of the ids."},
    {"fields", BD_OPT_I64, AT(fields), "4", 2, CLI_GEN_CATS, NULL,
     "Categorical columns that interact."},
    {"rank", BD_OPT_I64, AT(rank), "2", 1, CLI_GEN_MAX_RANK, NULL,
     "Factors per id of those columns."},
    {"linear", BD_OPT_F64, AT(linear), "0.8", 0, 1, NULL,
     "Share of the score's variance that a linear model can learn."},
    {"auc", BD_OPT_F64, AT(auc), "0.82", 0.51, 0.99, NULL, "AUC of the planted model itself."},
    {"ctr", BD_OPT_F64, AT(ctr), "0.25", 0.001, 0.999, NULL, "Share of positive labels."},
    {"threads", BD_OPT_I64, AT(threads), "0", 0, 64, NULL,
     "Threads that make rows, 0: one per core. The number changes no byte."},
    {"format", BD_OPT_ENUM, AT(format), "table", 0, 0, "table|json",
     "How the result is printed; also -o. table: a line RESULT {...}; json: the object alone."},
};

static void on_progress(void *user, int64_t done, int64_t all)
{
    const cli_io *io = user;
    (void)fprintf(io->err, "[datagen] %" PRId64 " of %" PRId64 " rows\n", done, all);
}

static bd_status print_result(const cli_io *io, const datagen_flags *f, const cli_datagen_result *r,
                              bd_err *err)
{
    bd_json j;
    bd_json_init(&j);
    bd_json_obj(&j);
    bd_json_put_f64(&j, "bayes_auc", r->bayes_auc);
    bd_json_put_f64(&j, "bayes_logloss", r->bayes_logloss);
    bd_json_put_f64(&j, "ctr", r->ctr);
    bd_json_put_i64(&j, "rows", f->rows);
    bd_json_put_i64(&j, "test_rows", f->test_rows);
    bd_json_put_str(&j, "out", f->out);
    bd_json_put_str(&j, "test_out", f->test_out);
    bd_json_obj_end(&j);
    const char *text = bd_json_text(&j);
    (void)fprintf(io->err, "[datagen] nobody can reach more than AUC %.4f on these rows\n",
                  r->bayes_auc);
    if (text != NULL) {
        cli_cmd_print_result(io, f->format, text);
    }
    bd_json_deinit(&j);
    return text != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "datagen: result");
}

static bd_status generate(const datagen_flags *f, const cli_io *io, bd_err *err)
{
    cli_io shown = *io;
    cli_datagen_options opt = {.spec = {.seed = (uint64_t)f->seed,
                                        .cardinality = f->cardinality,
                                        .zipf = f->zipf,
                                        .fields = f->fields,
                                        .rank = f->rank,
                                        .linear = f->linear,
                                        .auc = f->auc,
                                        .ctr = f->ctr},
                               .rows = f->rows,
                               .test_rows = f->test_rows,
                               .train_path = f->out,
                               .test_path = f->test_out,
                               .threads = f->threads > 0 ? (int)f->threads : bd_cpus(),
                               .on_progress = on_progress,
                               .user = &shown};
    cli_datagen_result r;
    if (f->test_rows > 0 && f->test_out[0] == '\0') {
        return bd_err_set(err, BD_E_USAGE, "datagen: --test-rows needs --test-out");
    }
    bd_status rc = cli_datagen(&opt, &r, err);
    return rc == BD_OK ? print_result(io, f, &r, err) : rc;
}

static bd_status run(int argc, char **argv, const cli_io *io, int *exit_code, bd_err *err)
{
    datagen_flags f = {0};
    bd_options o;
    *exit_code = BD_EXIT_OK;
    bd_status rc = bd_options_init(&o, table, sizeof table / sizeof table[0], &f, err);
    if (rc != BD_OK) {
        return rc;
    }
    rc = cli_cmd_parse(&o, &argc, argv, NULL, NULL, err);
    if (rc == BD_OK) {
        rc = generate(&f, io, err);
    }
    bd_options_deinit(&o);
    return rc;
}

const cli_cmd cli_cmd_datagen = {
    .name = "datagen",
    .usage = "--out FILE [--rows N] [--test-rows N --test-out FILE] ...",
    .help = "Writes click data from a planted model and says the best AUC anyone can reach on it.",
    CLI_OPTIONS(table),
    .run = run};
