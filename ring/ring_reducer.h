/* ring/ring_reducer.h - DistributedDataParallel's reducer: gradients of many parameters, averaged
 * in buckets while backward still runs.
 *
 * Layer:     ring. Knows nothing of the tape: the owner of the graph calls ring_reducer_ready from
 *            its gradient hooks.
 * Threads:   all of it from one thread (the one that runs forward and backward).
 * Contract:  buckets are filled in reverse parameter order, first 1 MiB, then 25 MiB (close-after
 *            thresholds, never mixing dtypes), and launched strictly in index order on every rank.
 *            A bucket of twice its threshold or more (a large parameter) travels in pieces of about
 *            the threshold, each launched when its elements are final (ring_reducer_ready_upto).
 *            The bucket order is rebuilt once, at the end of the first synchronised step, from the
 *            order in which rank 0 saw gradients become ready. A parameter unused on this rank
 *            contributes zeros; one unused on all ranks keeps its gradient untouched. A parameter
 *            that did not become ready and is not declared unused is an error at the end of the
 *            same backward, on all ranks, naming it.
 * Errors:    a wrong call in a backward (ready twice, a replaced gradient, a changed graph) fails
 *            there and is kept: the owner stops its backward, still calls ring_reducer_finish, and
 *            that gives the same BD_E_STATE on all ranks, naming rank and parameter. Gradients are
 *            to be zeroed then; the reducer and the group go on. A failure of the group itself
 *            (BD_E_PEER_LOST, ..) ends both.
 * Scale:     the reducer sums. Braid's gradients are already divided by the global count; `scale`
 *            multiplies every gradient on its way into the bucket for others (1/world: DDP's mean).
 * Read next: ring/ring_reducer_log.h (what it measures), docs/REDUCER.md.
 */
#ifndef RING_REDUCER_H
#define RING_REDUCER_H

#include "ring/ring.h"

typedef struct ring_reducer ring_reducer;

typedef struct ring_param {
    const char *name; /* borrowed for the reducer's life; part of the manifest check */
    size_t n_elems;
    num_dtype dtype;
    void *grad; /* borrowed: n_elems, where backward accumulates the local gradient, and where the
                   reduced gradient is found after finish. May be NULL with options.bind */
} ring_param;

/* Where the gradient of parameter param_idx lives from now on; NULL: the reducer ends, use your own
 * memory. What was in the old place is in the new one. */
typedef void (*ring_bind_fn)(void *user, size_t param_idx, void *grad);

typedef struct ring_reducer_options {
    size_t first_bucket_bytes; /* 0: 1 MiB */
    size_t bucket_bytes;       /* 0: 25 MiB */
    bool find_unused;          /* parameters may go unused without being declared */
    float scale;               /* 0: 1 */
    /* Gradients live in the buckets: nothing is copied. Called for every parameter by
     * ring_reducer_new, after a rebuild or ring_reducer_layout_load, and with NULL by
     * ring_reducer_free. NULL: gradients are copied into buckets and back. */
    ring_bind_fn bind;
    void *bind_user;
    /* Every step uses each parameter as often as the first one did (more than once is legal): the
     * first step counts, a later difference is an error on all ranks. Unused parameters need not be
     * declared, and those unused on all ranks are never sent. Their contribution is taken (as
     * zeros) in ring_reducer_prepare. */
    bool static_graph;
    /* Sums are taken in rank order, in f32 for f16 and bf16, so that they depend neither on bucket
     * sizes nor on the collective's algorithm. As many bytes as a ring, half of them after
     * backward. */
    bool deterministic;
    const char *compress; /* NULL or "none"; "f16", "bf16": f32 buckets travel as such, scaled
                             before they are rounded; results are widened again */
    /* Uneven inputs (ring_reducer_join_step): scale counts the ranks that have data instead of all:
     * it is multiplied by world / n_active. */
    bool divide_by_active;
    bool join_throws;           /* the first rank without data ends the loop on all of them */
    const char *name, *backend; /* of the model and the transport, for the log; borrowed */
} ring_reducer_options;

/* Collective. Compares the manifests (count, names, dtypes, sizes, options) of all ranks:
 * BD_E_MISMATCH names the first difference, on all ranks. params are copied. */
bd_status ring_reducer_new(ring_comm *c, const ring_param *params, size_t n_params,
                           const ring_reducer_options *opt, ring_reducer **out,
                           bd_err *err) BD_MUST_CHECK;
void ring_reducer_free(ring_reducer *r);

/* ---- a step ---- */

/* Before each backward. sync false (no_sync): hooks only record use; gradients stay local and the
 * next synchronised backward reduces the accumulated sum. */
bd_status ring_reducer_prepare(ring_reducer *r, bool sync, bd_err *err) BD_MUST_CHECK;
/* Points the reducer at other gradient memory (gradients of another context); sizes must match.
 * Only between finish and prepare. grads[i] belongs to parameter i. With `bind` they are copied
 * as without, and the views are scratch meanwhile; grads NULL: back to the views. */
void ring_reducer_bind(ring_reducer *r, void *const *grads);
/* Gradient i is final. Twice in one backward: BD_E_STATE naming the parameter. Launches every
 * bucket that is now complete and next in order. */
bd_status ring_reducer_ready(ring_reducer *r, size_t param_idx, bd_err *err) BD_MUST_CHECK;
/* The first n_elems elements of gradient i are final, and the rest will be: ring_reducer_ready
 * follows. Pieces of its bucket that are complete by that are launched. May be called again with
 * more. With a comm hook, which sees whole buckets, nothing happens. */
bd_status ring_reducer_ready_upto(ring_reducer *r, size_t param_idx, size_t n_elems,
                                  bd_err *err) BD_MUST_CHECK;
/* The same for callers that know where the gradient is: another place than the reducer's is
 * BD_E_STATE (somebody replaced the gradient, so that its sum would be lost). */
bd_status ring_reducer_ready_at(ring_reducer *r, size_t param_idx, const void *grad,
                                bd_err *err) BD_MUST_CHECK;
/* Declares parameter i unused in this backward. */
bd_status ring_reducer_unused(ring_reducer *r, size_t param_idx, bd_err *err) BD_MUST_CHECK;
/* This rank's backward cannot go on: finish will tell all ranks why. */
void ring_reducer_fail(ring_reducer *r, const bd_err *why);
/* End of backward: waits for the buckets and puts the sums into the gradients. */
bd_status ring_reducer_finish(ring_reducer *r, bd_err *err) BD_MUST_CHECK;
/* used[i] (n_params) after finish: parameter i was used on some rank. */
const bool *ring_reducer_used(const ring_reducer *r);

/* ---- buffers ---- */

/* What a model keeps beside parameters, such as running means. */
typedef struct ring_buffer {
    const char *name; /* borrowed for the reducer's life */
    void *data;       /* borrowed likewise */
    size_t n_elems;
    num_dtype dtype;
} ring_buffer;

/* Collective, once, before the first step. From then on ring_reducer_forward comes before every
 * forward that a backward follows. BD_E_MISMATCH as in ring_reducer_new. */
bd_status ring_reducer_set_buffers(ring_reducer *r, const ring_buffer *buffers, size_t n_buffers,
                                   bd_err *err) BD_MUST_CHECK;
/* Begin of a forward. With sync and buffers: gives everybody the buffers of rank 0 (uneven inputs:
 * of the highest rank that has data). A second one before backward would change in place what the
 * first forward may need: BD_E_STATE, nothing is sent. sync must be what prepare will be told.
 * Without buffers it only takes the time. */
bd_status ring_reducer_forward(ring_reducer *r, bool sync, bd_err *err) BD_MUST_CHECK;

/* Forgets a forward that comes to no backward (it failed, or was for its values only). */
void ring_reducer_reset(ring_reducer *r);

/* ---- uneven inputs ---- */

/* A rank that still has data calls ring_reducer_join_step(r, true, ..) before each step; one that
 * has none calls it with false, takes part in the collectives of the others with zeros (shadow
 * step, done inside), and repeats until *n_active is 0. join_throws: BD_E_STATE on all ranks,
 * naming the lowest rank that has no data, as soon as one has none and another has. */
bd_status ring_reducer_join_step(ring_reducer *r, bool has_data, int *n_active,
                                 bd_err *err) BD_MUST_CHECK;
/* After the loop: the highest rank of the last step that anybody had data for. */
int ring_reducer_join_last(const ring_reducer *r);
/* Collective, after the loop: everybody gets that rank's tensors (parameters, buffers, ..). */
bd_status ring_reducer_join_end(ring_reducer *r, const ring_buffer *tensors, size_t n_tensors,
                                bd_err *err) BD_MUST_CHECK;

/* ---- comm hooks ---- */

/* A bucket as a hook sees it. */
typedef struct ring_grad_bucket {
    ring_comm *comm;
    size_t idx, n_buckets;
    bool is_last; /* idx + 1 == n_buckets: launched last */
    num_dtype dtype;
    void *data; /* n_elems gradients, not scaled; the result goes here */
    size_t n_elems;
    float scale; /* multiply by it before summing, so that narrow types do not overflow */
    const size_t *params, *offsets_elems; /* [n_params] */
    size_t n_params;
} ring_grad_bucket;

/* Replaces the sum of a bucket. All ranks call start for bucket 0, 1, .. and then finish for bucket
 * 0, 1, ..; both may issue collectives, the same ones on every rank. finish is called for every
 * started bucket, also after an error. An error of a hook on one rank leaves the others waiting, so
 * that the owner must ring_abort. */
typedef struct ring_hook {
    const char *name; /* borrowed; part of the manifest check */
    void *user;       /* borrowed for the reducer's life */
    bd_status (*start)(void *user, const ring_grad_bucket *b, void **state, bd_err *err);
    bd_status (*finish)(void *user, const ring_grad_bucket *b, void *state, bd_err *err);
    /* Buckets were rebuilt: state kept by bucket index is void. NULL: of no interest. */
    void (*on_layout)(void *user);
} ring_hook;

/* Collective, once, before the first step, not together with `compress` or `deterministic`. */
bd_status ring_reducer_set_hook(ring_reducer *r, const ring_hook *hook, bd_err *err) BD_MUST_CHECK;

/* ---- buckets ---- */

/* The launch order of the last backward and the buckets, for tests and logs. */
size_t ring_reducer_n_buckets(const ring_reducer *r);
/* Parameter indices of bucket b, in bucket order. */
const size_t *ring_reducer_bucket(const ring_reducer *r, size_t b, size_t *n_params);
/* Bucket layout as text for a checkpoint, and back (collective; all ranks pass the same text). */
bd_status ring_reducer_layout_save(const ring_reducer *r, char **text, bd_err *err) BD_MUST_CHECK;
bd_status ring_reducer_layout_load(ring_reducer *r, const char *text, bd_err *err) BD_MUST_CHECK;

/* Nanoseconds of the last step: waiting in finish, and from first launch to last completion. */
int64_t ring_reducer_wait_ns(const ring_reducer *r);
int64_t ring_reducer_comm_ns(const ring_reducer *r);

#endif
