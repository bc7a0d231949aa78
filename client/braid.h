/* braid.h - train through Braid's parameter servers from your own training loop.
 *
 * This header is longer than 250 lines: it is the manual of the C library.
 *
 * Link:      pkg-config --cflags --libs braid     or find_package(braid), target braid::braid
 * Tables:    an embedding table is named; row r of it is dim float32 numbers, r any 64-bit number.
 *            A row that was never pushed to reads as its initial value, a pure function of the
 *            table's (seed, name) and the row's key; only pushes create rows.
 * A step:    braid_batch_new (ids) -> braid_forward (pooled rows) -> your model and its backward ->
 *            braid_backward (gradient of the pooled rows) -> braid_step (rows change).
 *            Gradients live in a braid_context: several batches, several backwards and gradient
 *            accumulation over micro-batches add up there; braid_step applies the table's
 *            optimiser once to each row.
 * Jobs:      rows change inside a job only. Opening a job fences every older one: its later pushes
 *            fail with BRAID_E_FENCED. async (default): a step is applied when it arrives, and
 *            braid_step returns once it is journaled; world 1 needs no set-up, its first step opens
 *            the job. sync: the steps of all `world` ranks are summed in rank order and applied
 *            once, when the last rank's has come; rank 0 calls braid_job_open and hands the epoch
 *            to the others (by MPI, torch.distributed, a file), who call braid_job_join.
 *            bounded: as async, but the rows of step t are those after every rank's step
 *            t - 1 - staleness at least: a rank that runs ahead waits in its forward. Set-up as in
 *            sync.
 * Threads:   every function from any thread. Network calls on one client take turns, except that
 *            braid_batch_new and the waiting half of braid_forward run beside them. A batch or
 *            context is used by one thread at a time, except braid_backward on different batches.
 *            Connect after fork, not before.
 * Ownership: what you pass in is copied or used during the call only. Objects you get are freed by
 *            their own function; a client must outlive its batches, contexts and exports, not its
 *            references.
 * Errors:    functions return BRAID_OK (0) or a negative BRAID_E_ code, and fill *err (may be NULL)
 *            with one line naming the culprit. Outputs are then untouched. A server that restarts
 *            is waited for up to ps_wait_ms; nothing is applied twice.
 * Versions:  structs that start with `size` may grow: set it with the _INIT macro. Within one
 *            BRAID_ABI_VERSION nothing else changes.
 */
#ifndef BRAID_H
#define BRAID_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BRAID_ABI_VERSION 1
/* A struct that is all zero but for its size. */
#ifdef __cplusplus
#define BRAID_SIZED(type) \
    {                     \
        sizeof(type)      \
    }
#else
#define BRAID_SIZED(type)    \
    {                        \
        .size = sizeof(type) \
    }
#endif
#define BRAID_API __attribute__((visibility("default")))

/* ---- errors ---- */
enum {
    BRAID_OK = 0,
    BRAID_E_INVALID = -1,         /* argument */
    BRAID_E_NOMEM = -2,           /* out of memory */
    BRAID_E_IO = -3,              /* disk or network failed */
    BRAID_E_TIMEOUT = -4,         /* deadline passed */
    BRAID_E_CANCELLED = -5,       /* given up by the caller */
    BRAID_E_UNAVAILABLE = -6,     /* a server could not be reached within ps_wait_ms */
    BRAID_E_PEER_LOST = -7,       /* another rank is gone */
    BRAID_E_NOT_FOUND = -8,       /* no such table or checkpoint */
    BRAID_E_EXISTS = -9,          /* is there already */
    BRAID_E_STATE = -10,          /* not allowed now */
    BRAID_E_MISMATCH = -11,       /* e.g. the table exists with another spec */
    BRAID_E_EXHAUSTED = -12,      /* slow down */
    BRAID_E_DATA = -13,           /* input data */
    BRAID_E_CORRUPT = -14,        /* bytes are not what they should be */
    BRAID_E_NUMERIC = -15,        /* a gradient is not finite */
    BRAID_E_MOVED = -16,          /* slots changed their server inside a step. Not while a cluster
                                     runs. sync: make the step anew; else: restore */
    BRAID_E_NEED_PARTS = -17,     /* handled inside */
    BRAID_E_FENCED = -18,         /* a newer job has been opened */
    BRAID_E_CLIENT_EXPIRED = -19, /* the server has dropped this client */
    BRAID_E_DENIED = -20,         /* permission */
    BRAID_E_UNSUPPORTED = -21,    /* by this version */
    BRAID_E_USAGE = -22,          /* usage */
    BRAID_E_ABORTED = -23,        /* by a peer */
    BRAID_E_INTERNAL = -24,       /* a bug of Braid */
    BRAID_E_LOST = -25,           /* a server lost rows (durability checkpoint): resume the job */
    BRAID_E_UNAUTHENTICATED = -26 /* no token, or one the server does not know */
};

typedef struct braid_error {
    int status;     /* BRAID_OK or BRAID_E_ */
    char text[508]; /* one line, terminated */
} braid_error;

/* "0.1.0"; static. */
BRAID_API const char *braid_version(void);
/* BRAID_ABI_VERSION of the library: must equal the header's. */
BRAID_API int braid_abi_version(void);
/* "E_TIMEOUT" and "deadline exceeded" for a code; static, never NULL. */
BRAID_API const char *braid_status_name(int status);
BRAID_API const char *braid_status_text(int status);
/* Least important log line printed on stderr by this process: "debug" "info" "warn" "error".
 * Default "warn". BRAID_E_INVALID for another word. */
BRAID_API int braid_log_level(const char *level);

/* ---- client ---- */
typedef struct braid_client braid_client;

enum { BRAID_ASYNC = 0, BRAID_SYNC = 1, BRAID_BOUNDED = 2 };
/* Where bags are summed in async: at the servers, or here. AUTO: where fewer bytes are sent for it.
 */
enum { BRAID_POOL_AUTO = 0, BRAID_POOL_CLIENT = 1, BRAID_POOL_SERVER = 2 };
enum {
    BRAID_REDUCE_SUM = 0, /* gradients of the ranks are summed */
    BRAID_REDUCE_MEAN = 1 /* and divided by world: for trainers whose loss is a mean over the rank's
                             own samples (PyTorch DDP) */
};

typedef struct braid_options {
    size_t size;             /* sizeof(braid_options) */
    const char *coordinator; /* "host:port" of server 0; required */
    const char *name;        /* in logs of the servers; NULL: "client" */
    int consistency;         /* BRAID_ASYNC, BRAID_SYNC or BRAID_BOUNDED */
    int reduce;              /* BRAID_REDUCE_ */
    int rank, world;         /* of your trainer; world 0 means 1 */
    int64_t connect_wait_ms; /* until all servers are there; 0: 30,000 */
    int64_t ps_wait_ms;      /* how long a lost server is waited for; 0: 120,000 */
    size_t part_bytes;       /* requests are split at about this size; 0: 1 MiB */
    const char *restore;     /* checkpoint that braid_job_open rolls the servers back to, or NULL */
    uint64_t next_step;      /* number of the job's first step; 0: 1 */
    int keep_heap; /* 1: large freed blocks stay in this process (mallopt), which bulk traffic needs
                      under glibc; 0: malloc is left alone */
    int pooling;   /* BRAID_POOL_ */
    /* NULL or "": not used. Files are read again when they change. */
    const char *tls_ca;   /* PEM file of the authorities of the servers' certificates: speak TLS */
    const char *tls_cert; /* PEM file of the own certificate, for servers that ask for one */
    const char *tls_key;  /* PEM file of its key */
    const char *tls_server_name; /* name the servers' certificates must have; default: the host */
    const char *token_file;      /* file with the token to show; without TLS to this host only */
    int64_t staleness;           /* bounded: steps that rows may lag behind, 0 or more */
    /* How rows and gradients travel, NULL: as they are. dtypes "f32", "f16", "bf16", "i8" (with a
     * scale a row), rounded to nearest; codecs "none", "lz4", "zstd". For links below 1 GB/s. */
    const char *wire_rows, *wire_grads, *wire_codec;
    int steps_in_flight; /* async, bounded. 0: braid_step returns when its step is applied. 1: when
                            the one before is, so that servers work while you go on; a failure is
                            told by the next braid_step or by braid_wait */
    int reserved;        /* 0 */
} braid_options;
#define BRAID_OPTIONS_INIT BRAID_SIZED(braid_options)

/* Connects to all servers of the cluster. Changes nothing there.
 * Errors: INVALID (options), UNAVAILABLE (after connect_wait_ms), TIMEOUT (not all servers have
 * registered), UNSUPPORTED (options of a newer header, a wire form), NOMEM. Blocks. */
BRAID_API int braid_connect(const braid_options *options, braid_client **client, braid_error *err);
/* Ends it; NULL is fine. A step in flight is waited for (its failure is logged), one that has not
 * returned is not. */
BRAID_API void braid_close(braid_client *client);
BRAID_API size_t braid_n_servers(const braid_client *client);
/* Last finished step of the job as this client knows it; next_step - 1 at first. */
BRAID_API uint64_t braid_last_step(braid_client *client);

/* Rank 0: opens a job with the client's consistency and world on all servers, and joins it.
 * *epoch (may be NULL) names it. Fences older jobs. Again: the same epoch.
 * Errors: STATE (rank is not 0), NOT_FOUND (restore), UNAVAILABLE. Blocks. */
BRAID_API int braid_job_open(braid_client *client, uint64_t *epoch, braid_error *err);
/* Other ranks: takes part in the job that rank 0 opened. INVALID: epoch 0; STATE: in a job already.
 */
BRAID_API int braid_job_join(braid_client *client, uint64_t epoch, braid_error *err);

/* ---- tables ---- */
typedef struct braid_table braid_table; /* belongs to the client; never freed by you */

typedef struct braid_param {
    const char *name;
    double value;
} braid_param;

typedef struct braid_table_options {
    size_t size;             /* sizeof(braid_table_options) */
    const char *name;        /* 1..128 of [A-Za-z0-9_.-]; required */
    uint32_t dim;            /* elements of a row, 1..65536 */
    const char *initializer; /* "uniform", "normal", "constant"...; required. With its parameters in
                                the text, "normal(mean=0, stddev=0.3)", or in init_params */
    const braid_param *init_params;
    size_t n_init_params;
    uint64_t seed; /* of the initialiser */
    const char
        *optimizer; /* "sgd", "adagrad", "rowwise_adagrad", "adam"...; NULL: "adagrad". With its
                              parameters in the text, "adagrad(learning_rate=0.05)", or in
                              opt_params; docs/OPTIMIZERS.md */
    const braid_param *opt_params; /* e.g. {"learning_rate", 0.05} */
    size_t n_opt_params;
    const char *dtype; /* of the stored weights: "f32" (NULL), "f16", "bf16", "i8"; rows travel and
                          are handed out as float32 whatever it is */
    const char *bad_gradient; /* what the servers do with a row's gradient that is not finite or
                                 longer than max_gradient_norm: "reject" (NULL): the push fails
                                 with NUMERIC naming table and key; "drop_row"; "clip": scaled to
                                 the norm, which must be set, NaN as 0; "halt": as reject, and so
                                 does every later push of the job. Counted for each table */
    double max_gradient_norm; /* L2, of one row in one push; 0: no limit */
    const char *admission;    /* which pushes of a new key make its row: "frequency(count=3)",
                                 "sketch(count=3, bytes=64e6)", "probability(p=0.1)"; NULL: all. The
                                 others are dropped and counted; the key reads as new */
    const char *eviction;     /* which rows go away while training goes on: up to four rules, as
                                 "ttl(steps=100000); lru(max_rows=1e8)"; NULL: none. docs/RULES.md */
    const char *durability;   /* what an answered step survives: "checkpoint": an orderly stop;
                                 "journal" (NULL): a killed server; "sync": a power loss */
    const char *init_file;    /* FILE.tsv or FILE.npy of `braid table export` (FILE.keys.npy,
                                 FILE.rows.npy), read by this process: a table without any row begins
                                 with its rows, other keys as initializer says. Rank 0 reads it, other
                                 ranks wait. NOT_FOUND, DATA, MISMATCH (dim) name the file */
} braid_table_options;
#define BRAID_TABLE_OPTIONS_INIT BRAID_SIZED(braid_table_options)

/* Creates the table on all servers, or finds an equal one.
 * Errors: INVALID (names the option), MISMATCH (exists and differs: names the field), UNAVAILABLE.
 * Blocks. */
BRAID_API int braid_table_create(braid_client *client, const braid_table_options *options,
                                 braid_table **table, braid_error *err);
/* Finds a table by name. NOT_FOUND. Blocks. */
BRAID_API int braid_table_open(braid_client *client, const char *name, braid_table **table,
                               braid_error *err);
BRAID_API const char *braid_table_name(const braid_table *table);
BRAID_API uint32_t braid_table_dim(const braid_table *table);
/* Elements of optimiser state beside each row. */
BRAID_API uint64_t braid_table_state_elems(const braid_table *table);

/* Reads rows: out[n x dim], row i for keys[i]; repeats welcome. Changes nothing. NOT_FOUND: the
 * table has gone (a restore). Blocks for one round trip. */
BRAID_API int braid_lookup(braid_table *table, const uint64_t *keys, size_t n, float *out,
                           braid_error *err);
/* A whole step from row gradients: grads[n x dim]; those of equal keys are summed first. The same
 * as a context with one braid_context_add and braid_step. Blocks until applied. */
BRAID_API int braid_push(braid_table *table, const uint64_t *keys, size_t n, const float *grads,
                         double lr_scale, braid_error *err);
/* Writes rows as they are: rows[n x dim], state[n x state_elems] or NULL (untouched for rows that
 * exist). Distinct keys. Outside the step protocol: for imports. NUMERIC: a number is not finite.
 * Blocks until applied. */
BRAID_API int braid_assign(braid_table *table, const uint64_t *keys, size_t n, const float *rows,
                           const float *state, braid_error *err);

/* Walks over all rows of a table, server by server, keys growing within each.
 *   with_state  1: optimiser state too
 * Training may go on meanwhile: each page is consistent, the whole is not; stop for a snapshot. */
typedef struct braid_export braid_export;
BRAID_API int braid_export_open(braid_table *table, int with_state, braid_export **cursor,
                                braid_error *err);
/* The next page: keys[n], rows[n x dim], state[n x state_elems] (NULL without), valid until the
 * next call. *n 0: the end. Blocks for one round trip. */
BRAID_API int braid_export_next(braid_export *cursor, const uint64_t **keys, const float **rows,
                                const float **state, size_t *n, braid_error *err);
BRAID_API void braid_export_close(braid_export *cursor); /* NULL is fine */

/* ---- forward, backward, step ---- */
enum {
    BRAID_SUM = 0,
    BRAID_MEAN = 1,  /* the sum over the number of ids */
    BRAID_SQRTN = 2, /* the sum over its square root */
    BRAID_MAX = 3    /* element by element; the gradient goes to the first id that has it */
};

/* Bags of ids of one table, as torch.nn.EmbeddingBag has them. */
typedef struct braid_feature {
    braid_table *table;
    const uint64_t *ids;    /* [n_ids] */
    size_t n_ids;           /* below 2^32 - 1 for all features of one table together */
    const int64_t *offsets; /* [n_bags]: bag b is ids[offsets[b] .. offsets[b + 1]), the last one up
                               to n_ids; offsets[0] is 0. NULL: every id is a bag of its own */
    size_t n_bags;          /* with offsets NULL: n_ids, or 0 for it */
    const float *weights;   /* [n_ids] factors, only with BRAID_SUM; NULL: 1 */
    int mode;               /* BRAID_SUM, ...; an empty bag is zeros */
    int first_n;            /* of each bag only the first so many ids count; 0: all */
} braid_feature;

typedef struct braid_batch braid_batch;     /* ids of one forward pass, copied and deduplicated */
typedef struct braid_context braid_context; /* gradients on their way to one step */

/* Groups and deduplicates the ids of n features; no network, so a prefetch thread can do it.
 * Features may share a table. INVALID names the feature. */
BRAID_API int braid_batch_new(braid_client *client, const braid_feature *features, size_t n,
                              braid_batch **batch, braid_error *err);
/* Asks for the rows and returns; braid_forward takes them. Optional: to overlap the round trip with
 * other work. The rows are those after the last step this client has finished. */
BRAID_API int braid_batch_fetch(braid_batch *batch, braid_error *err);
/* NULL is fine. A context that has seen it keeps what it needs. */
BRAID_API void braid_batch_free(braid_batch *batch);
/* Distinct rows the batch asks for; with bags that the servers pool, and few ids that are repeated,
 * all of its ids. */
BRAID_API size_t braid_batch_unique(const braid_batch *batch);

/* Pooled rows: out[i] is [n_bags x dim] of feature i, written. One request a server for all
 * features, unless braid_batch_fetch has sent it (sync: before the last step: it is sent again). A
 * second forward of a batch asks anew. STATE: the batch has been through backward.
 * Blocks for the round trip; O(ids x dim). */
BRAID_API int braid_forward(braid_batch *batch, float *const *out, braid_error *err);
/* Takes the gradients of the pooled rows, grad_out[i] [n_bags x dim] of feature i (NULL: none),
 * into the context as row gradients, one a distinct row. No network. INVALID: of another client. */
BRAID_API int braid_backward(braid_context *context, braid_batch *batch,
                             const float *const *grad_out, braid_error *err);

BRAID_API int braid_context_new(braid_client *client, braid_context **context, braid_error *err);
BRAID_API void braid_context_free(braid_context *context); /* NULL is fine; drops gradients */
/* Row gradients without pooling: grads[n x dim]; those of equal keys are summed. No network. */
BRAID_API int braid_context_add(braid_context *context, braid_table *table, const uint64_t *keys,
                                size_t n, const float *grads, braid_error *err);

/* Applies the context's gradients: each row's are summed (in the order they came), pushed, and the
 * table's optimiser runs once. The context is empty afterwards and can be used again. lr_scale
 * multiplies the tables' learning rates (0 means 1).
 *   async  returns when every server has journaled and applied it (steps_in_flight 1: the step
 *          before); no gradients: nothing is sent
 *   bounded  the same, but every rank must step, with gradients or without
 *   sync   every rank must step, with gradients or without; returns when the step of all ranks is
 *          applied. To skip a step, skip it on all ranks (braid_context_clear).
 * Errors: NUMERIC names table and key of a gradient that is not finite: nothing was sent, the
 * context keeps its gradients. FENCED, UNAVAILABLE, MISMATCH (lr_scale of the ranks)...: in sync
 * and bounded with more than one rank the client can step no more (STATE): connect again and
 * restore. */
BRAID_API int braid_step(braid_context *context, double lr_scale, braid_error *err);
/* Until the steps that have returned are applied; for steps_in_flight 1, before a checkpoint of all
 * ranks or a look at what was learnt (braid_checkpoint, braid_param_hash and braid_export_open do
 * it themselves, for this client). Errors: those of braid_step. Blocks. */
BRAID_API int braid_wait(braid_client *client, braid_error *err);
/* Drops the gradients. */
BRAID_API void braid_context_clear(braid_context *context);

/* ---- references: values that stay on their server ----
 * A server reads rows, or sums bags, and keeps the result; you hold a reference to it and fetch it
 * when you need it, as often as you like: the rows as they were, whatever was stepped since.
 * Nobody can call a client of this library, so this is all it can do: no values of its own, no
 * references as arguments, no gradients through them. Nodes that serve can: docs/AUTOGRAD.md.
 * Lease: a client that holds references and neither makes one nor calls braid_rref_keep_alive for
 * 60 s loses them (NOT_FOUND) and can make no more (CLIENT_EXPIRED): connect again. A server that
 * restarts has lost them, too: NOT_FOUND; one that comes back at another address is UNAVAILABLE
 * here until you connect again. Servers with tokens want scope `train`. */
typedef struct braid_rref braid_rref;

typedef struct braid_rref_options {
    size_t size;                  /* sizeof(braid_rref_options) */
    const braid_feature *feature; /* required; read during the call. Without offsets: one row an id.
                                     weights and first_n: none */
    uint32_t server;              /* index of the owner. All ids must be its: braid_key_server */
    uint32_t reserved;            /* 0 */
} braid_rref_options;
#define BRAID_RREF_OPTIONS_INIT BRAID_SIZED(braid_rref_options)

/* Asks the server and returns; *ref is yours, free it. Errors: INVALID (names option or key),
 * NOMEM. What the server finds wrong is told by braid_rref_to_here. Needs no job. */
BRAID_API int braid_rref_remote(braid_client *client, const braid_rref_options *options,
                                braid_rref **ref, braid_error *err);
/* The value: out[n_bags x dim], n_elems = n_bags * dim floats (else INVALID). Any thread, several
 * at once. Errors of the making: INVALID (offsets, or too many ids: ask in parts), MOVED (a slot
 * changed its server), CLIENT_EXPIRED, UNAVAILABLE or TIMEOUT after ps_wait_ms; of the fetch:
 * NOT_FOUND; STATE: the client is closed. All name the server. Blocks until it is made, and for a
 * round trip. */
BRAID_API int braid_rref_to_here(braid_rref *ref, float *out, size_t n_elems, braid_error *err);
/* The node that keeps it: "ps-" and the server's index. Lives as long as ref. */
BRAID_API const char *braid_rref_owner(const braid_rref *ref);
/* Gives it back; the server's memory goes. NULL is fine, and so is after braid_close, which gives
 * back what is left. Nobody may be in a call on it. Blocks until it is made; the word to the server
 * is sent and not waited for. */
BRAID_API void braid_rref_free(braid_rref *ref);
/* Tells all servers with references that this client is alive: at least once in 60 s while it keeps
 * some and makes none. CLIENT_EXPIRED: too late. Blocks for a round trip each. */
BRAID_API int braid_rref_keep_alive(braid_client *client, braid_error *err);
/* Index of the server that has this key's row, as far as this client knows; no network. */
BRAID_API uint32_t braid_key_server(const braid_client *client, uint64_t key);

/* ---- the rest ---- */
/* Freezes a checkpoint of all tables under this name (1..128 of [A-Za-z0-9_.-]) on every server.
 * sync: between steps, by one rank. Blocks. */
BRAID_API int braid_checkpoint(braid_client *client, const char *name, braid_error *err);
BRAID_API int braid_checkpoint_delete(braid_client *client, const char *name, braid_error *err);

/* Order-free hash over all rows and their state, equal for any number of servers; row count. */
BRAID_API int braid_param_hash(braid_client *client, uint64_t *hash, uint64_t *n_rows,
                               braid_error *err);

typedef struct braid_stat {
    uint32_t server; /* index */
    uint32_t reserved;
    const char *name; /* the server's metric */
    double value;
} braid_stat;
/* Numbers of all servers; *stats is freed by braid_stats_free. */
BRAID_API int braid_stats(braid_client *client, braid_stat **stats, size_t *n, braid_error *err);
BRAID_API void braid_stats_free(braid_stat *stats);

#ifdef __cplusplus
}
#endif

#endif
