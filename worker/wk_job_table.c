/* The option table of a job: keys, defaults, bounds and help; docs/JOBS.md and the man page come from it. */
#include "rpc/rpc_security_opt.h"
#include "worker/wk_job.h"

#include <stddef.h>
#include <string.h>

#define AT(field)  offsetof(wk_job, field)
#define SEC(field) offsetof(wk_job, process.security.field)

static const bd_opt wk_job_rows_table[] = {
    {"name", BD_OPT_STR, AT(name), "job", 0, 0, NULL,
     "Name of the job: letters, digits, dot, dash, underscore."},
    {"seed", BD_OPT_I64, AT(seed), "1", 0, 4294967295.0, NULL,
     "Seed of every random choice: initial weights, sample order, dropout."},
    {"workers", BD_OPT_I64, AT(workers), "1", 1, 1024, NULL,
     "Worker processes; their dense gradients are summed by ring allreduce."},
    {"servers", BD_OPT_I64, AT(servers), "1", 0, 1024, NULL,
     "Parameter servers; 0 keeps the tables inside a single worker."},
    {"run_dir", BD_OPT_STR, AT(run_dir), "", 0, 0, NULL,
     "Folder of logs, metrics and checkpoints; empty: runs/<name>."},
    {"consistency", BD_OPT_ENUM, AT(consistency), "sync", 0, 0, "sync|async|bounded",
     "sync: one model, whatever the number of workers; async: rows change as pushes arrive; "
     "bounded: async within `staleness` steps."},
    {"staleness", BD_OPT_I64, AT(staleness), "1", 0, 1000, NULL,
     "bounded: steps a worker may run ahead of the slowest one."},
    {"durability", BD_OPT_ENUM, AT(durability), "journal", 0, 0, "checkpoint|journal|sync",
     "What an answered step survives. checkpoint: an orderly stop; losing a server ends the job, "
     "which goes on from its last checkpoint. journal: a killed server. sync: a power loss."},
    {"on_server_exit", BD_OPT_ENUM, AT(on_server_exit), "restart", 0, 0, "restart|fail",
     "What the launcher does when a server dies: start it again, or end the run."},
    {"deterministic", BD_OPT_BOOL, AT(deterministic), "false", 0, 0, NULL,
     "Dense gradients are summed in rank order, whatever the bucket sizes and the algorithm."},
    {"trace", BD_OPT_I64, AT(trace), "0", 0, 100000, NULL,
     "Steps of the timeline that each rank writes to <run_dir>/trace-rank<r>.json for "
     "chrome://tracing or Perfetto."},
    {"progress", BD_OPT_ENUM, AT(progress), "auto", 0, 0, "auto|bar|lines|none",
     "Progress of rank 0; auto: a bar on a terminal, lines elsewhere."},
    {"log_level", BD_OPT_ENUM, AT(log_level), "warn", 0, 0, "debug|info|warn|error",
     "Lowest level of log lines on stderr."},
    {"metrics_file", BD_OPT_STR, AT(metrics_file), "", 0, 0, NULL,
     "One JSON object per line; empty: <run_dir>/metrics.jsonl."},

    {"model.kind", BD_OPT_STR, AT(model.kind), "dlrm", 0, 0, NULL,
     "dlrm, wide_deep, deepfm, dcn_v2, mlp or mf."},
    {"model.dim", BD_OPT_I64, AT(model.dim), "16", 0, 65536, NULL,
     "Elements of an embedding; mf: number of factors, 0 for biases only."},
    {"model.bottom", BD_OPT_LIST, AT(model.bottom), "", 0, 0, NULL,
     "dlrm: widths of the layers over the numeric columns; the last one equals model.dim."},
    {"model.top", BD_OPT_LIST, AT(model.top), "64,32", 0, 0, NULL,
     "Widths of the hidden layers; the output of width 1 is added."},
    {"model.combiner", BD_OPT_LIST, AT(model.combiner), "", 0, 0, NULL,
     "How embeddings of multi-valued fields are pooled: sum, mean, sqrtn (sum / sqrt(n)) or max "
     "(of "
     "each element) for all of them, or `field:how` for one, the last that fits; empty: sum (mf: "
     "mean). One-element tables are not asked. data.first_n bounds how many ids there are."},
    {"model.dropout", BD_OPT_F64, AT(model.dropout), "0", 0, 0.95, NULL,
     "Share of hidden activations set to zero in training."},
    {"model.batch_norm", BD_OPT_BOOL, AT(model.batch_norm), "false", 0, 0, NULL,
     "Batch normalisation after each hidden layer of model.top."},
    {"model.embedding_init", BD_OPT_F64, AT(model.embedding_init), "0", 0, 100, NULL,
     "Rows start uniform in [-x, x]; 0: 1/sqrt(dim)."},

    {"data.format", BD_OPT_ENUM, AT(data.format), "csv", 0, 0, "csv|criteo|ratings",
     "criteo: label, 13 integers, 26 hex categories, tabs; csv: by data.schema; ratings: user, "
     "item, rating[, time]."},
    {"data.train", BD_OPT_STR, AT(data.train), "", 0, 0, NULL, "Training file, plain or .gz."},
    {"data.test", BD_OPT_STR, AT(data.test), "", 0, 0, NULL,
     "Test file, plain or .gz; empty: no evaluation, or data.split."},
    {"data.split", BD_OPT_ENUM, AT(data.split), "files", 0, 0, "files|hash",
     "hash: a row of data.train is a test row when FNV-1a-64 of `user<TAB>item` (other formats: of "
     "the line) modulo 10 is 0."},
    {"data.schema", BD_OPT_LIST, AT(data.schema), "", 0, 0, NULL,
     "csv: one `name:kind` per column, in order; kinds: numeric, log, bucket_ln2, cat, "
     "multi(<separator>), label(<rule>), skip."},
    {"data.delimiter", BD_OPT_STR, AT(data.delimiter), "", 0, 0, NULL,
     "Between columns, 1 to 8 bytes, `tab` for a tab; empty: comma (csv), tab (criteo), `::` "
     "(ratings)."},
    {"data.header", BD_OPT_BOOL, AT(data.header), "false", 0, 0, NULL,
     "The first line of each file holds column names."},
    {"data.missing", BD_OPT_STR, AT(data.missing), "", 0, 0, NULL,
     "Token that means `no value`, besides the empty one."},
    {"data.comment", BD_OPT_STR, AT(data.comment), "", 0, 0, NULL,
     "Lines that begin with this text are skipped; empty: none."},
    {"data.label", BD_OPT_STR, AT(data.label), "value", 0, 0, NULL,
     "criteo and ratings: `value` takes the number as it is, `>x` and `>=x` make it 1 or 0."},
    {"data.numeric", BD_OPT_ENUM, AT(data.numeric), "log", 0, 0, "log|bucket_ln2",
     "criteo's integers: log: sign(x) ln(1 + |x|) as number; bucket_ln2: a category of "
     "int(ln(x + 1)^2), small x as they are."},
    {"data.ids", BD_OPT_ENUM, AT(data.ids), "number", 0, 0, "number|text",
     "ratings: number drops leading zeros of user and item ids and refuses other text."},
    {"data.items", BD_OPT_STR, AT(data.items), "", 0, 0, NULL,
     "ratings: file that gives each item a multi-valued field `item_tags`; same delimiter."},
    {"data.items_column", BD_OPT_I64, AT(data.items_column), "3", 2, 1000, NULL,
     "Column of data.items that holds the values, counted from 1."},
    {"data.items_separator", BD_OPT_STR, AT(data.items_separator), "|", 0, 0, NULL,
     "Between the values of data.items_column."},
    {"data.first_n", BD_OPT_LIST, AT(data.first_n), "", 0, 0, NULL,
     "Of a multi-valued field only the first so many ids of each sample are read: a number for all "
     "of them, or `field:number` for one, the last that fits; 0 or empty: all."},
    {"data.max_bad_lines", BD_OPT_I64, AT(data.max_bad_lines), "0", 0, 9e15, NULL,
     "Bad lines are counted and skipped; one more than this ends the job."},
    {"data.max_rows", BD_OPT_I64, AT(data.max_rows), "0", 0, 9e15, NULL,
     "Rows read from each file; 0: all."},
    {"data.generate.rows", BD_OPT_I64, AT(data.generate.rows), "0", 0, 1e12, NULL,
     "Rows that `braid run` generates before it starts (`braid datagen` says how); 0: the data "
     "exists already."},
    {"data.generate.test_rows", BD_OPT_I64, AT(data.generate.test_rows), "0", 0, 1e12, NULL,
     "Test rows that it generates."},
    {"data.generate.cardinality", BD_OPT_I64, AT(data.generate.cardinality), "100", 2, 2147483648.0,
     NULL, "Ids of each of the 26 categorical columns."},
    {"data.generate.zipf", BD_OPT_F64, AT(data.generate.zipf), "1.05", 0, 10, NULL,
     "Exponent of the power law of the ids."},
    {"data.generate.fields", BD_OPT_I64, AT(data.generate.fields), "4", 2, 26, NULL,
     "Categorical columns that interact in the planted model."},
    {"data.generate.rank", BD_OPT_I64, AT(data.generate.rank), "2", 1, 16, NULL,
     "Factors per id of those columns."},
    {"data.generate.linear", BD_OPT_F64, AT(data.generate.linear), "0.8", 0, 1, NULL,
     "Share of the score's variance that is additive, so that a linear model can learn it."},
    {"data.generate.auc", BD_OPT_F64, AT(data.generate.auc), "0.82", 0.51, 0.99, NULL,
     "AUC of the planted model itself."},
    {"data.generate.ctr", BD_OPT_F64, AT(data.generate.ctr), "0.25", 0.001, 0.999, NULL,
     "Share of positive labels."},
    {"data.generate.seed", BD_OPT_I64, AT(data.generate.seed), "1", 0, 4294967295.0, NULL,
     "Seed of the generated data."},

    {"train.batch", BD_OPT_I64, AT(train.batch), "256", 1, 16777216, NULL,
     "Samples of one step over all workers."},
    {"train.epochs", BD_OPT_I64, AT(train.epochs), "1", 1, 1000000, NULL,
     "Passes over the training data."},
    {"train.max_steps", BD_OPT_I64, AT(train.max_steps), "0", 0, 9e15, NULL,
     "Ends training after so many steps; 0: no limit."},
    {"train.loss", BD_OPT_ENUM, AT(train.loss), "bce", 0, 0, "bce|mse",
     "bce: labels 0 and 1; mse: labels are values."},
    {"train.sampler", BD_OPT_ENUM, AT(train.sampler), "exact", 0, 0, "exact|distributed",
     "exact: every row once an epoch, the same batches for any number of workers; distributed: the "
     "index arithmetic of PyTorch's DistributedSampler, which repeats rows to fill up."},
    {"train.shuffle", BD_OPT_BOOL, AT(train.shuffle), "true", 0, 0, NULL,
     "A new order each epoch."},
    {"train.optimizer", BD_OPT_STR, AT(train.optimizer), "adagrad", 0, 0, NULL,
     "Optimiser of the dense part: a name in docs/OPTIMIZERS.md."},
    {"train.hyper", BD_OPT_STR, AT(train.hyper), "", 0, 0, NULL,
     "More hyperparameters of the dense optimiser, as \"beta1=0.8, weight_decay=0.01\"; names and "
     "bounds: docs/OPTIMIZERS.md."},
    {"train.learning_rate", BD_OPT_F64, AT(train.learning_rate), "0.05", 0, 1000, NULL,
     "Of the dense part, before the schedule."},
    {"train.l2", BD_OPT_F64, AT(train.l2), "0", 0, 1000, NULL,
     "L2 penalty on dense weights: l2 * w is added to the gradient."},
    {"train.lr_schedule", BD_OPT_ENUM, AT(train.lr_schedule), "constant", 0, 0,
     "constant|linear|cosine|step",
     "Factor on all learning rates over the steps; linear and cosine fall to train.lr_final."},
    {"train.warmup_steps", BD_OPT_I64, AT(train.warmup_steps), "0", 0, 9e15, NULL,
     "Steps over which the factor rises to 1."},
    {"train.lr_step", BD_OPT_I64, AT(train.lr_step), "1", 1, 1e9, NULL,
     "Epochs between the drops of the step schedule."},
    {"train.lr_gamma", BD_OPT_F64, AT(train.lr_gamma), "0.5", 0, 1, NULL,
     "Factor of one drop of the step schedule."},
    {"train.lr_final", BD_OPT_F64, AT(train.lr_final), "0", 0, 1, NULL,
     "Last factor of the linear and cosine schedules."},
    {"train.clip_norm", BD_OPT_F64, AT(train.clip_norm), "0", 0, 1e9, NULL,
     "Dense gradients are scaled down to this global L2 norm; 0: never. Rows are not: their "
     "gradients "
     "are on their way before any rank knows the norm, and only a server has their sum."},
    {"train.eval_every", BD_OPT_I64, AT(train.eval_every), "0", 0, 9e15, NULL,
     "Steps between evaluations; 0: at the end of each epoch."},
    {"train.early_stop_patience", BD_OPT_I64, AT(train.early_stop_patience), "0", 0, 1000000, NULL,
     "Training ends after so many evaluations without a better AUC (mse: RMSE); 0: never."},
    {"train.checkpoint_every", BD_OPT_I64, AT(train.checkpoint_every), "0", 0, 9e15, NULL,
     "Steps between checkpoints; 0: only at the end."},
    {"train.checkpoint_keep", BD_OPT_I64, AT(train.checkpoint_keep), "3", 1, 1000, NULL,
     "Checkpoints that are kept; older ones are deleted."},
    {"train.checkpoint_at_end", BD_OPT_BOOL, AT(train.checkpoint_at_end), "true", 0, 0, NULL,
     "A checkpoint after the last step."},
    {"train.log_every", BD_OPT_I64, AT(train.log_every), "50", 1, 1e9, NULL,
     "Steps between lines of progress and of metrics_file."},
    {"train.on_nonfinite", BD_OPT_ENUM, AT(train.on_nonfinite), "stop", 0, 0, "stop|skip",
     "A step whose loss or gradient is not finite: end the job, or abort the step and count it."},
    {"train.max_skipped", BD_OPT_I64, AT(train.max_skipped), "100", 0, 9e15, NULL,
     "on_nonfinite skip: one more skipped step than this ends the job."},

    {"embedding.optimizer", BD_OPT_STR, AT(embedding.optimizer), "", 0, 0, NULL,
     "Optimiser of the tables: a name in docs/OPTIMIZERS.md; empty: train.optimizer."},
    {"embedding.hyper", BD_OPT_STR, AT(embedding.hyper), "", 0, 0, NULL,
     "More hyperparameters of the tables' optimiser, as \"eps=1e-6, clip_norm=1\"."},
    {"embedding.dtype", BD_OPT_ENUM, AT(embedding.dtype), "f32", 0, 0, "f32|f16|bf16|i8",
     "How tables store embeddings; updates round less than f32 stochastically. Optimiser state "
     "stays f32."},
    {"embedding.learning_rate", BD_OPT_F64, AT(embedding.learning_rate), "-1", -1, 1000, NULL,
     "Of the embeddings, before the schedule; negative: train.learning_rate."},
    {"embedding.l2", BD_OPT_F64, AT(embedding.l2), "0", 0, 1000, NULL,
     "L2 penalty on the rows a step touches: l2 * w is added to a row's gradient."},
    {"embedding.bad_gradient", BD_OPT_ENUM, AT(embedding.bad_gradient), "reject", 0, 0,
     "reject|drop_row|clip|halt",
     "What servers do with a row's gradient that is not finite or longer than max_gradient_norm: "
     "refuse the push (the job ends, naming table and key), leave the row out, scale it to the "
     "norm, or refuse this push and every later one. `braid table describe` counts them."},
    {"embedding.max_gradient_norm", BD_OPT_F64, AT(embedding.max_gradient_norm), "0", 0, 1e30, NULL,
     "Largest L2 norm of one embedding's gradient in one push; 0: no limit; clip needs one."},
    {"embedding.admission", BD_OPT_STR, AT(embedding.admission), "", 0, 0, NULL,
     "Which pushes of a new key make its row: a rule of docs/RULES.md, as \"frequency(count=3)\"; "
     "empty: all. Also for the one-element tables. `braid table describe` counts the others."},
    {"embedding.eviction", BD_OPT_STR, AT(embedding.eviction), "", 0, 0, NULL,
     "Which rows go away while training goes on: up to four rules of docs/RULES.md, as "
     "\"ttl(steps=100000); lru(max_rows=1e8)\"; empty: none. Also for the one-element tables."},
    {"embedding.init_file", BD_OPT_STR, AT(embedding.init_file), "", 0, 0, NULL,
     "Rows that new tables begin with: a .tsv or .npy as `braid table export` writes them, read by "
     "worker 0; {table} stands for the table's name, and a table without such a file has none. "
     "Keys "
     "that are not in it start as model.embedding_init says."},
    {"bias.optimizer", BD_OPT_STR, AT(bias.optimizer), "", 0, 0, NULL,
     "Optimiser of the one-element tables (biases, wide part); empty: embedding.optimizer."},
    {"bias.hyper", BD_OPT_STR, AT(bias.hyper), "", 0, 0, NULL,
     "More hyperparameters for the one-element tables; with bias.optimizer empty as well: "
     "embedding.hyper."},
    {"bias.learning_rate", BD_OPT_F64, AT(bias.learning_rate), "-1", -1, 1000, NULL,
     "Of the one-element tables; negative: embedding.learning_rate."},
    {"bias.l2", BD_OPT_F64, AT(bias.l2), "-1", -1, 1000, NULL,
     "L2 penalty on the one-element tables; negative: embedding.l2."},
    {"bias.max_gradient_norm", BD_OPT_F64, AT(bias.max_gradient_norm), "-1", -1, 1e30, NULL,
     "The same limit for the one-element tables; negative: embedding.max_gradient_norm."},

    {"ring.first_bucket", BD_OPT_BYTES, AT(ring_first_bucket_bytes), "1MiB", 1, 1099511627776.0,
     NULL, "Size of the first gradient bucket of the allreduce."},
    {"ring.bucket", BD_OPT_BYTES, AT(ring_bucket_bytes), "25MiB", 1, 1099511627776.0, NULL,
     "Size of the other gradient buckets."},
    {"ring.backend", BD_OPT_ENUM, AT(ring_backend), "auto", 0, 0, "auto|tcp|shm|nccl",
     "How ranks exchange dense gradients: shm through memory of one host, tcp over the network, "
     "nccl "
     "on CUDA devices (one a rank, in builds with NCCL); auto finds out which ranks share a host."},
    {"ring.gradient_views", BD_OPT_BOOL, AT(ring_gradient_views), "true", 0, 0, NULL,
     "Dense gradients live in the buckets, so that nothing is copied."},
    {"ring.static_graph", BD_OPT_BOOL, AT(ring_static_graph), "false", 0, 0, NULL,
     "Every step uses the same dense parameters as the first one; another use is an error."},
    {"ring.compress", BD_OPT_ENUM, AT(ring_compress), "none", 0, 0, "none|f16|bf16",
     "Dense gradients travel in 16 bits: half the bytes, a rounded sum."},
    {"ring.broadcast_buffers", BD_OPT_BOOL, AT(ring_broadcast_buffers), "true", 0, 0, NULL,
     "Running means of batch norm are rank 0's before each step."},
    {"ring.log", BD_OPT_BOOL, AT(ring_log), "true", 0, 0, NULL,
     "Each rank keeps a record of its reducer in <run_dir>/reducer-rank<r>.json."},
    {"ring.connections", BD_OPT_I64, AT(ring_connections), "1", 1, 16, NULL,
     "Parallel connections between two hosts' ranks; more than one where one does not fill the "
     "link."},
    {"ring.timeout", BD_OPT_DURATION_MS, AT(ring_timeout_ms), "60s", 100, 86400000, NULL,
     "How long a rank waits for the others before it gives up; raised to ps.wait and 15 s where "
     "there "
     "are servers, so that a rank which waits for one is not taken for lost."},
    {"ps.wait", BD_OPT_DURATION_MS, AT(ps_wait_ms), "120s", 100, 86400000, NULL,
     "How long a lost server is waited for."},
    {"ps.wire_rows", BD_OPT_ENUM, AT(ps_wire_rows), "f32", 0, 0, "f32|f16|bf16|i8",
     "How looked-up rows travel: rounded to nearest, i8 with a scale per row."},
    {"ps.wire_grads", BD_OPT_ENUM, AT(ps_wire_grads), "f32", 0, 0, "f32|f16|bf16|i8",
     "How gradients of rows travel."},
    {"ps.wire_codec", BD_OPT_ENUM, AT(ps_wire_codec), "none", 0, 0, "none|lz4|zstd",
     "What compresses both on their way; pays on links slower than about 0.5 GB/s."},
    {"ps.connect_wait", BD_OPT_DURATION_MS, AT(ps_connect_wait_ms), "8s", 100, 86400000, NULL,
     "How long the servers may take to come up."},
    {"ps.part", BD_OPT_BYTES, AT(ps_part_bytes), "1MiB", 4096, 4194304, NULL,
     "Requests to a server are split at about this size."},
    {"ps.pooling", BD_OPT_ENUM, AT(ps_pooling), "auto", 0, 0, "auto|client|server",
     "async and bounded: where bags of several ids are summed; auto: where fewer bytes are sent "
     "for "
     "it."},
};

static const bd_opt wk_process_table[] = {
    {"rank", BD_OPT_I64, AT(process.rank), "0", 0, 1023, NULL,
     "This worker's number; unset: from RANK, PET_NODE_RANK or JOB_COMPLETION_INDEX, if set."},
    {"world", BD_OPT_I64, AT(process.world), "0", 0, 1024, NULL,
     "Workers of the run; 0: from WORLD_SIZE or PET_NNODES, if set, else the job's `workers`."},
    {"coordinator", BD_OPT_STR, AT(process.coordinator), "", 0, 0, NULL,
     "host:port of server 0; unset: MASTER_ADDR:MASTER_PORT or PET_MASTER_ADDR:PET_MASTER_PORT, if "
     "set."},
    {"store", BD_OPT_STR, AT(process.store), "", 0, 0, NULL,
     "Where the cluster keeps its state, as the servers were told: "
     "etcd://HOST:PORT[,HOST:PORT...][/PREFIX], instead of coordinator."},
    RPC_SECURITY_ROWS(SEC),
    RPC_ETCD_ROWS(SEC),
    {"bind_host", BD_OPT_STR, AT(process.bind_host), "127.0.0.1", 0, 0, NULL,
     "Address or host name this worker listens on for the ring."},
    {"interface", BD_OPT_STR, AT(process.interface), "", 0, 0, NULL,
     "Network interface for the ring, instead of bind_host: its name, or a prefix of its address "
     "(10.1.0.0/16)."},
    {"metrics_listen", BD_OPT_STR, AT(process.metrics_listen), "", 0, 0, NULL,
     "host:port of this worker's /metrics page; empty: none."},
    {"resume", BD_OPT_STR, AT(process.resume), "none", 0, 0, NULL,
     "none, auto (the newest whole checkpoint, if any), or a checkpoint's name."},
    {"threads", BD_OPT_I64, AT(process.threads), "0", 0, 1024, NULL,
     "Threads of this process's matrix products; 0: the host's cores divided by `workers`."},
    {"print_config", BD_OPT_ENUM, AT(process.print_config), "none", 0, 0, "none|text|json",
     "Prints the resolved job, checked, and ends."},
    {"print_options", BD_OPT_ENUM, AT(process.print_options), "none", 0, 0, "none|markdown|man",
     "Prints the table of a job's keys, or the manual page, and ends; needs no job file."},
    {"dry_run", BD_OPT_BOOL, AT(process.dry_run), "false", 0, 0, NULL,
     "Checks the job, reads the data, runs one batch, and ends; needs no server."},
    {"predict", BD_OPT_STR, AT(process.predict), "", 0, 0, NULL,
     "Scores this file with the checkpoint named by --resume (auto by default) and ends."},
    {"output", BD_OPT_STR, AT(process.output), "-", 0, 0, NULL,
     "predict: file of one probability a line; -: stdout."},
};

enum {
    N_JOB = sizeof wk_job_rows_table / sizeof wk_job_rows_table[0],
    N_PROCESS = sizeof wk_process_table / sizeof wk_process_table[0]
};

const bd_opt *wk_job_table(size_t *n)
{
    *n = N_JOB;
    return wk_job_rows_table;
}

const bd_opt *wk_job_all_options(size_t *n)
{
    static bd_opt all[N_JOB + N_PROCESS]; /* the same bytes whoever fills it first */
    memcpy(all, wk_job_rows_table, sizeof wk_job_rows_table);
    memcpy(all + N_JOB, wk_process_table, sizeof wk_process_table);
    *n = N_JOB + N_PROCESS;
    return all;
}
