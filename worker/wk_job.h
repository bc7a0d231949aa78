/* worker/wk_job.h - the job file: one table of options for `braid-worker` and `braid run`.
 *
 * Layer:     worker.
 * Threads:   loaded at start by main; read-only afterwards.
 * Ownership: a wk_job owns every string in it (the options' arena) until wk_job_deinit.
 * Sources:   default < job file < environment (BRAID_<KEY>) < flags (base/option.h). A wrong key is
 *            BD_E_USAGE with the nearest right one.
 * Read next: wk_job_table.c (the table), data/wk_data.h (what data.* means), wk_train.h (train.*).
 */
#ifndef WK_JOB_H
#define WK_JOB_H

#include "base/option.h"

#include "rpc/rpc_security.h"

/* data.generate.*: what `braid run` plants (cli/cli_gen.h); the worker does not use it. */
typedef struct wk_job_generate {
    int64_t rows, test_rows, seed;
    int64_t cardinality, fields, rank;
    double zipf, linear, auc, ctr;
} wk_job_generate;

typedef struct wk_job_data {
    const char *format; /* "csv", "criteo", "ratings" */
    const char *train, *test;
    bd_str_list schema;    /* csv: "<column>:<kind>" in file order */
    const char *delimiter; /* "": the format's own */
    bool header;
    const char *missing; /* token that means "no value", besides the empty one */
    const char *comment; /* lines that begin with it are skipped; "": none */
    const char *split;   /* "files", "hash" */
    const char *label;   /* ratings, criteo: "value", ">8", ">=8" */
    const char *numeric; /* criteo: "log", "bucket_ln2" */
    const char *ids;     /* ratings: "number", "text" */
    const char *items;   /* ratings: side file of the items, "": none */
    int64_t items_column;
    const char *items_separator;
    bd_str_list first_n; /* ids of multi-valued fields: wk_data_load */
    int64_t max_bad_lines;
    int64_t max_rows; /* 0: all */
    wk_job_generate generate;
} wk_job_data;

typedef struct wk_job_model {
    const char *kind;
    int64_t dim;
    bd_str_list bottom, top; /* layer widths */
    bd_str_list combiner;    /* wk_model_config */
    double dropout;
    bool batch_norm;
    double embedding_init;
} wk_job_model;

typedef struct wk_job_train {
    int64_t batch; /* global: samples of one step over all workers */
    int64_t epochs;
    int64_t max_steps;   /* 0: no limit */
    const char *loss;    /* "bce", "mse" */
    const char *sampler; /* "exact", "distributed" */
    bool shuffle;
    const char *optimizer;
    const char *hyper; /* num_hyper_list_parse: further hyperparameters */
    double learning_rate, l2;
    const char *lr_schedule; /* "constant", "linear", "cosine", "step" */
    int64_t warmup_steps;
    int64_t lr_step; /* step schedule: epochs between the drops */
    double lr_gamma; /* step schedule: factor of a drop */
    double lr_final; /* linear, cosine: factor at the end */
    double clip_norm;
    int64_t eval_every; /* steps; 0: at the end of each epoch */
    int64_t early_stop_patience;
    int64_t checkpoint_every; /* steps; 0: only at the end */
    int64_t checkpoint_keep;
    bool checkpoint_at_end;
    int64_t log_every;
    const char *on_nonfinite; /* "stop", "skip" */
    int64_t max_skipped;
} wk_job_train;

/* Tables; empty or negative: the dense part's value. */
typedef struct wk_job_rows {
    const char *optimizer;
    const char *hyper; /* num_hyper_list_parse: further hyperparameters */
    const char *dtype; /* of the stored weights */
    double learning_rate, l2;
    const char *bad_gradient; /* cl_bad_gradient_parse */
    double max_gradient_norm;
    const char *admission, *eviction; /* num_rules_parse */
    const char *init_file;            /* {table} in it stands for a table's name; "": none */
} wk_job_rows;

/* What one process is told on its command line; not part of the job. */
typedef struct wk_job_process {
    rpc_security_options security;
    int64_t rank, world;
    const char *coordinator;
    const char *store; /* "": the coordinator's */
    const char *bind_host;
    const char *interface;
    const char *metrics_listen; /* "": no page */
    const char *resume;         /* "none", "auto", or a checkpoint's name */
    int64_t threads;            /* 0: cores of the host / world */
    const char *print_config;   /* "none", "text", "json" */
    const char *print_options;  /* "none", "markdown", "man" */
    bool dry_run;
    const char *predict; /* data file to score, "": train */
    const char *output;  /* of predict, "-": stdout */
} wk_job_process;

typedef struct wk_job {
    const char *name;
    int64_t seed, workers, servers;
    const char *run_dir; /* resolved: never empty after wk_job_load */
    const char *consistency;
    int64_t staleness;
    const char *durability;
    const char *on_server_exit;
    const char *progress; /* "auto", "bar", "lines", "none" */
    const char *log_level;
    const char *metrics_file; /* resolved */
    wk_job_model model;
    wk_job_data data;
    wk_job_train train;
    wk_job_rows embedding, bias;
    const char *ring_backend;
    int64_t ring_first_bucket_bytes, ring_bucket_bytes, ring_timeout_ms, ring_connections;
    bool ring_gradient_views, ring_static_graph, ring_broadcast_buffers, ring_log;
    const char *ring_compress;
    bool deterministic;
    int64_t trace; /* steps of the timeline */
    const char *ps_wire_rows, *ps_wire_grads, *ps_wire_codec;
    int64_t ps_wait_ms, ps_connect_wait_ms, ps_part_bytes;
    const char *ps_pooling;
    wk_job_process process;
    bd_options options; /* where each value came from */
} wk_job;

/* Reads defaults, the job file (argv's positional argument; may be absent), the environment and
 * flags. help_wanted: set when --help was among the flags (nothing else is read
 * then). BD_E_USAGE: one line naming the key. On failure job may still be deinit'ed. */
bd_status wk_job_load(wk_job *job, int argc, char **argv, bool *help_wanted,
                      bd_err *err) BD_MUST_CHECK;
/* The same from a file alone, path NULL: defaults. For tests and tools. */
bd_status wk_job_load_file(wk_job *job, const char *path, bd_err *err) BD_MUST_CHECK;
void wk_job_deinit(wk_job *job);
/* What no single row can check: batch against world, hash split against a test file, ... */
bd_status wk_job_check(wk_job *job, bd_err *err) BD_MUST_CHECK;
/* How long a ring operation may stand still: longer than a rank may wait for a server, so that the
 * error names the server and not a rank that waits for it. */
int64_t wk_job_ring_timeout_ms(const wk_job *job);

/* The rows of the job file (without the process's flags): docs/JOBS.md is made of them. */
const bd_opt *wk_job_table(size_t *n);
/* All rows, the process's flags at the end. */
const bd_opt *wk_job_all_options(size_t *n);

#endif
