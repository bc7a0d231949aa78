/* cli/cli_datagen.h - planted click data as files, and what is known about it.
 *
 * Layer:     cli.
 * Threads:   one caller; rows are made by `threads` threads, whose number changes no byte.
 * Ownership: strings in the options are borrowed during the call.
 * Files:     each is written under a temporary name and renamed when it is whole;
 *            <train_path>.meta.json comes last, so it says that the others are complete.
 */
#ifndef CLI_DATAGEN_H
#define CLI_DATAGEN_H

#include "cli/cli_gen.h"

typedef struct cli_datagen_options {
    cli_gen_spec spec;
    int64_t rows, test_rows;
    const char *train_path; /* ".gz" at the end: compressed */
    const char *test_path;  /* used when test_rows > 0 */
    int threads;            /* >= 1 */
    /* Told every two seconds, and at the end; may be NULL. */
    void (*on_progress)(void *user, int64_t rows_done, int64_t rows_all);
    void *user;
} cli_datagen_options;

typedef struct cli_datagen_result {
    double bayes_auc; /* of the planted probabilities on the test part, else on the train part */
    double bayes_logloss; /* the same */
    double ctr;           /* share of clicks there */
    uint64_t fingerprint; /* cli_datagen_fingerprint of the options */
} cli_datagen_result;

/* BD_E_USAGE names an option out of range, BD_E_IO a file. On failure no half file stays. */
bd_status cli_datagen(const cli_datagen_options *opt, cli_datagen_result *out,
                      bd_err *err) BD_MUST_CHECK;
/* <train_path>.meta.json, owned by the caller (bd_free); NULL: no memory. */
char *cli_datagen_meta_path(const char *train_path);
/* Reads the result back. BD_E_NOT_FOUND when the data is not there (or not whole). */
bd_status cli_datagen_meta(const char *train_path, cli_datagen_result *out,
                           bd_err *err) BD_MUST_CHECK;
/* A number for everything that decides the bytes of the files: names a cache folder. */
uint64_t cli_datagen_fingerprint(const cli_datagen_options *opt);

#endif
