/* tests/util/tu_shard.h - a shard without network, spoken to by blocking calls from one thread.
 *
 * Gradients are a pure function of (rank, step or sequence), so two runs can be compared by hash.
 * A failure ends the process with a text: cmocka's own would go on in a child.
 */
#ifndef TU_SHARD_H
#define TU_SHARD_H

#include "ps_server/ps_shard.h"

#define TU_SHARD_DIM   4u
#define TU_SHARD_KEYS  ((size_t)30)
#define TU_SHARD_WORLD 2u

/* Ends the process unless rc is BD_OK. */
void tu_must(bd_status rc, const bd_err *err);

/* dir gets a new folder under /tmp; drop removes it with all it holds. */
void tu_dir_new(char dir[64]);
void tu_dir_drop(const char *dir);
void tu_dir_clear(const char *dir);

/* Opens and starts; *out NULL after a failure. opt->n_servers 0 means 1. */
bd_status tu_shard_open(const char *dir, const ps_shard_options *opt, ps_shard **out, bd_err *err);
ps_shard *tu_shard_must_open(const char *dir);
void tu_shard_close(ps_shard *s);

bd_status tu_call(ps_shard *s, ps_op *op);
/* A table of TU_SHARD_DIM with adagrad. */
uint32_t tu_table(ps_shard *s, const char *name, ps_durability d);
/* The same with rules (num_rules_parse; NULL: none) and sgd, rate 1, first rows 0. */
uint32_t tu_table_rules(ps_shard *s, const char *name, ps_durability d, const char *admission,
                        const char *eviction);
/* The same with rows of dim elements. */
uint32_t tu_table_wide(ps_shard *s, const char *name, uint32_t dim, ps_durability d,
                       const char *admission, const char *eviction);
/* The spec of tu_table_rules. */
ps_spec tu_rules_spec(const char *name, const char *admission, const char *eviction);
bd_status tu_open_job(ps_shard *s, const ps_job *job, const char *restore, bd_err *err);
bd_status tu_checkpoint(ps_shard *s, const char *name, uint64_t epoch, uint64_t step, bd_err *err);

/* One sync step of job epoch 1 and one rank, committed: gradient -1 for every number of keys[n]. */
void tu_push(ps_shard *s, uint32_t table, uint64_t step, const uint64_t *keys, size_t n);
/* The first weight of a key's row. */
float tu_weight(ps_shard *s, uint32_t table, uint64_t key);

/* The part of a rank's step for up to two tables (table2 0: one). */
ps_part *tu_part(uint32_t table, uint32_t table2, uint64_t epoch, uint64_t step, uint32_t rank);
/* One async push of client 7; *dup may be NULL. */
bd_status tu_push_async(ps_shard *s, uint32_t table, uint32_t table2, uint64_t seq, bool *dup,
                        bd_err *err);
/* n pushes from sequence `first` at once: the worst answer. */
bd_status tu_push_many(ps_shard *s, uint32_t table, uint64_t first, size_t n, bd_err *err);
bd_status tu_push_sync(ps_shard *s, uint32_t table, uint32_t table2, uint64_t step, uint32_t rank,
                       bd_err *err);
/* Blocks until the shard has finished w, whose `finish` is set here. */
bd_status tu_wait(ps_shard *s, ps_waiter *w);
bd_status tu_decide(ps_shard *s, uint64_t epoch, uint64_t step, ps_wait_kind kind, bd_err *err);
/* Sync steps first..last of job epoch 1, both ranks. */
void tu_train(ps_shard *s, uint32_t table, uint32_t table2, uint64_t first, uint64_t last);

uint64_t tu_hash(ps_shard *s);
ps_shard_stats tu_stats(ps_shard *s);

/* Runs this program again as `child` with the arguments (NULL-terminated) and returns its wait
 * status. */
int tu_child(const char *const args[]);

#endif
