#include "cli/cli_datagen.h"

#include "base/clock.h"
#include "base/gzip.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_ROWS = 4096, MAX_THREADS = 64 };
/* Part of the fingerprint: a change of the model or of the text gets new cache folders. */
enum { FORMAT = 1 };

/* Where the planted truth of one part is kept, to measure it. */
typedef struct truth {
    double *probs; /* owned, [n] */
    bool *labels;  /* owned, [n] */
    size_t n;
} truth;

typedef struct block {
    pthread_t thread;
    const cli_gen *gen;
    cli_gen_part part;
    uint64_t first_row;
    size_t n_rows;
    char *text;         /* owned, [BLOCK_ROWS * CLI_GEN_ROW_BYTES] */
    size_t n_bytes;     /* of the text */
    bool compress;      /* as one gzip member */
    bd_buf *compressed; /* owned by the round */
    truth *truth;
} block;

static void *fill_block(void *user)
{
    block *b = user;
    b->n_bytes = 0;
    for (size_t i = 0; i < b->n_rows; i++) {
        cli_gen_row r;
        uint64_t row = b->first_row + i;
        cli_gen_make(b->gen, b->part, row, &r);
        b->n_bytes += cli_gen_format(&r, b->text + b->n_bytes);
        if (row < b->truth->n) {
            b->truth->probs[row] = r.prob;
            b->truth->labels[row] = r.label;
        }
    }
    if (b->compress) {
        b->compressed = bd_gzip_member(b->text, b->n_bytes);
    }
    return NULL;
}

/* Blocks of one round, each on its thread; a thread that cannot be made runs here. */
static void fill_round(block *blocks, size_t n)
{
    bool threaded[MAX_THREADS] = {false};
    for (size_t t = 1; t < n; t++) {
        threaded[t] = pthread_create(&blocks[t].thread, NULL, fill_block, &blocks[t]) == 0;
    }
    for (size_t t = 0; t < n; t++) {
        if (threaded[t]) {
            (void)pthread_join(blocks[t].thread, NULL);
        } else {
            (void)fill_block(&blocks[t]);
        }
    }
}

static bd_status write_block(FILE *file, const char *path, block *b, bd_err *err)
{
    const void *bytes = b->text;
    size_t n = b->n_bytes;
    if (b->compress && b->compressed == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "compress %s", path);
    }
    if (b->compress) {
        bytes = b->compressed->bytes;
        n = b->compressed->n_bytes;
    }
    bd_status rc = BD_OK;
    if (fwrite(bytes, 1, n, file) != n) {
        rc = bd_err_errno(err, BD_E_IO, errno, "write %s", path);
    }
    bd_buf_unref(b->compressed);
    b->compressed = NULL;
    return rc;
}

typedef struct writer {
    const cli_datagen_options *opt;
    const cli_gen *gen;
    block blocks[MAX_THREADS];
    size_t n_threads;
    int64_t rows_done;
    int64_t told_ns;
} writer;

static void tell(writer *w, bool now)
{
    int64_t at = bd_mono_ns();
    if (w->opt->on_progress != NULL && (now || at - w->told_ns > 2 * BD_NS_PER_S)) {
        w->told_ns = at;
        w->opt->on_progress(w->opt->user, w->rows_done, w->opt->rows + w->opt->test_rows);
    }
}

static bd_status write_rows(writer *w, FILE *file, const char *path, cli_gen_part part,
                            int64_t rows, truth *t, bd_err *err)
{
    size_t n_path = strlen(path);
    bool compress = n_path > 3 && strcmp(path + n_path - 3, ".gz") == 0;
    bd_status rc = BD_OK;
    for (int64_t first = 0; rc == BD_OK && first < rows;) {
        size_t n = 0;
        for (int64_t at = first; n < w->n_threads && at < rows; at += BLOCK_ROWS, n++) {
            block *b = &w->blocks[n];
            b->gen = w->gen;
            b->part = part;
            b->first_row = (uint64_t)at;
            b->n_rows = rows - at < BLOCK_ROWS ? (size_t)(rows - at) : BLOCK_ROWS;
            b->compress = compress;
            b->truth = t;
        }
        fill_round(w->blocks, n);
        for (size_t i = 0; i < n; i++) {
            bd_status one = write_block(file, path, &w->blocks[i], rc == BD_OK ? err : NULL);
            rc = rc == BD_OK ? one : rc;
            first += (int64_t)w->blocks[i].n_rows;
            w->rows_done += (int64_t)w->blocks[i].n_rows;
        }
        tell(w, false);
    }
    return rc;
}

/* Writes path under a temporary name, and renames it when all of it is there. */
static bd_status write_part(writer *w, const char *path, cli_gen_part part, int64_t rows, truth *t,
                            bd_err *err)
{
    bd_status rc = BD_OK;
    FILE *file = NULL;
    char *temp = bd_strfmt("%s.tmp-%ld", path, (long)getpid());
    if (temp == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "write %s", path);
    }
    file = fopen(temp, "wb");
    if (file == NULL) {
        rc = bd_err_errno(err, BD_E_IO, errno, "create %s", path);
        goto out;
    }
    rc = write_rows(w, file, path, part, rows, t, err);
    if (fclose(file) != 0 && rc == BD_OK) {
        rc = bd_err_errno(err, BD_E_IO, errno, "write %s", path);
    }
    if (rc == BD_OK && rename(temp, path) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "rename %s to %s", temp, path);
    }
    if (rc != BD_OK) {
        (void)unlink(temp);
    }
out:
    bd_free(temp);
    return rc;
}

char *cli_datagen_meta_path(const char *train_path)
{
    return bd_strfmt("%s.meta.json", train_path);
}

static void put_meta(bd_json *j, const cli_datagen_options *opt, const cli_datagen_result *r)
{
    const cli_gen_spec *s = &opt->spec;
    bd_json_obj(j);
    bd_json_put_i64(j, "format", FORMAT);
    bd_json_put_f64(j, "bayes_auc", r->bayes_auc);
    bd_json_put_f64(j, "bayes_logloss", r->bayes_logloss);
    bd_json_put_f64(j, "ctr", r->ctr);
    bd_json_put_hex64(j, "fingerprint", r->fingerprint);
    bd_json_put_str(j, "measured_on", opt->test_rows > 0 ? "test" : "train");
    bd_json_put_i64(j, "rows", opt->rows);
    bd_json_put_i64(j, "test_rows", opt->test_rows);
    bd_json_put_u64(j, "seed", s->seed);
    bd_json_put_i64(j, "cardinality", s->cardinality);
    bd_json_put_f64(j, "zipf", s->zipf);
    bd_json_put_i64(j, "fields", s->fields);
    bd_json_put_i64(j, "rank", s->rank);
    bd_json_put_f64(j, "linear", s->linear);
    bd_json_put_f64(j, "planted_auc", s->auc);
    bd_json_put_f64(j, "planted_ctr", s->ctr);
    bd_json_obj_end(j);
}

static bd_status write_meta(const cli_datagen_options *opt, const cli_datagen_result *r,
                            bd_err *err)
{
    bd_status rc = BD_OK;
    FILE *file = NULL;
    bd_json j;
    bd_json_init(&j);
    put_meta(&j, opt, r);
    const char *text = bd_json_text(&j);
    char *path = cli_datagen_meta_path(opt->train_path);
    if (text == NULL || path == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "write %s.meta.json", opt->train_path);
        goto out;
    }
    file = fopen(path, "w");
    if (file == NULL || fprintf(file, "%s\n", text) < 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "write %s", path);
    }
    if (file != NULL && fclose(file) != 0 && rc == BD_OK) {
        rc = bd_err_errno(err, BD_E_IO, errno, "write %s", path);
    }
out:
    bd_free(path);
    bd_json_deinit(&j);
    return rc;
}

bd_status cli_datagen_meta(const char *train_path, cli_datagen_result *out, bd_err *err)
{
    bd_json_doc *doc = NULL;
    cli_datagen_result r = {0};
    char *path = cli_datagen_meta_path(train_path);
    bd_status rc = path == NULL ? bd_err_set(err, BD_E_NOMEM, "read %s.meta.json", train_path)
                                : bd_json_load(path, &doc, err);
    if (rc == BD_OK && !(bd_json_get_f64(doc, "bayes_auc", &r.bayes_auc) &&
                         bd_json_get_f64(doc, "bayes_logloss", &r.bayes_logloss) &&
                         bd_json_get_f64(doc, "ctr", &r.ctr) &&
                         bd_json_get_hex64(doc, "fingerprint", &r.fingerprint))) {
        rc = bd_err_set(err, BD_E_DATA,
                        "%s: bayes_auc, bayes_logloss, ctr or fingerprint is missing", path);
    }
    if (rc == BD_OK) {
        *out = r;
    }
    bd_json_free(doc);
    bd_free(path);
    return rc;
}

static bd_status measure(const truth *t, cli_datagen_result *out, bd_err *err)
{
    double loss = 0.0, clicks = 0.0;
    for (size_t i = 0; i < t->n; i++) {
        loss -= log(t->labels[i] ? t->probs[i] : 1.0 - t->probs[i]);
        clicks += t->labels[i] ? 1.0 : 0.0;
    }
    double auc = cli_auc(t->probs, t->labels, t->n);
    if (auc < -1.5) {
        return bd_err_set(err, BD_E_NOMEM, "datagen: measure the planted AUC");
    }
    if (auc < 0.0) {
        return bd_err_set(err, BD_E_USAGE,
                          "datagen: %zu rows hold one class only: ask for more of them", t->n);
    }
    *out = (cli_datagen_result){
        .bayes_auc = auc, .bayes_logloss = loss / (double)t->n, .ctr = clicks / (double)t->n};
    return BD_OK;
}

static bd_status writer_init(writer *w, const cli_datagen_options *opt, const cli_gen *gen)
{
    *w = (writer){.opt = opt, .gen = gen, .told_ns = bd_mono_ns()};
    w->n_threads = (size_t)(opt->threads < 1 ? 1 : opt->threads);
    w->n_threads = w->n_threads > MAX_THREADS ? MAX_THREADS : w->n_threads;
    for (size_t t = 0; t < w->n_threads; t++) {
        w->blocks[t].text = bd_alloc((size_t)BLOCK_ROWS * CLI_GEN_ROW_BYTES);
        if (w->blocks[t].text == NULL) {
            return BD_E_NOMEM;
        }
    }
    return BD_OK;
}

static void writer_deinit(writer *w)
{
    for (size_t t = 0; t < w->n_threads; t++) {
        bd_free(w->blocks[t].text);
    }
}

static bd_status check(const cli_datagen_options *opt, bd_err *err)
{
    if (opt->rows < 1 || opt->test_rows < 0) {
        return bd_err_set(err, BD_E_USAGE,
                          "datagen: rows is %" PRId64 " and test_rows is %" PRId64
                          ", must be at least 1 and 0",
                          opt->rows, opt->test_rows);
    }
    if (opt->test_rows > 0 && strcmp(opt->train_path, opt->test_path) == 0) {
        return bd_err_set(err, BD_E_USAGE, "datagen: %s is the train and the test file",
                          opt->train_path);
    }
    return BD_OK;
}

bd_status cli_datagen(const cli_datagen_options *opt, cli_datagen_result *out, bd_err *err)
{
    cli_gen gen = {0};
    writer *w = NULL;
    truth known = {0}, unknown = {0};
    bd_status rc = check(opt, err);
    if (rc == BD_OK) {
        rc = cli_gen_init(&gen, &opt->spec, err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    bool has_test = opt->test_rows > 0;
    known.n = (size_t)(has_test ? opt->test_rows : opt->rows);
    known.probs = bd_calloc(known.n, sizeof *known.probs);
    known.labels = bd_calloc(known.n, sizeof *known.labels);
    w = bd_calloc(1, sizeof *w);
    if (w == NULL || known.probs == NULL || known.labels == NULL ||
        writer_init(w, opt, &gen) != BD_OK) {
        rc = bd_err_set(err, BD_E_NOMEM, "datagen: %zu rows to measure", known.n);
        goto out;
    }
    rc =
        write_part(w, opt->train_path, CLI_GEN_TRAIN, opt->rows, has_test ? &unknown : &known, err);
    if (rc == BD_OK && has_test) {
        rc = write_part(w, opt->test_path, CLI_GEN_TEST, opt->test_rows, &known, err);
    }
    if (rc == BD_OK) {
        rc = measure(&known, out, err);
    }
    if (rc == BD_OK) {
        out->fingerprint = cli_datagen_fingerprint(opt);
    }
    if (rc == BD_OK) {
        tell(w, true);
        rc = write_meta(opt, out, err);
    }
out:
    if (w != NULL) {
        writer_deinit(w);
    }
    bd_free(w);
    bd_free(known.probs);
    bd_free(known.labels);
    cli_gen_deinit(&gen);
    return rc;
}

uint64_t cli_datagen_fingerprint(const cli_datagen_options *opt)
{
    const cli_gen_spec *s = &opt->spec;
    char text[512];
    int n = snprintf(text, sizeof text,
                     "%d %" PRId64 " %" PRId64 " %" PRIu64 " %" PRId64 " %a %" PRId64 " %" PRId64
                     " %a %a %a",
                     FORMAT, opt->rows, opt->test_rows, s->seed, s->cardinality, s->zipf, s->fields,
                     s->rank, s->linear, s->auc, s->ctr);
    return bd_hash64(text, (size_t)n, 0);
}
