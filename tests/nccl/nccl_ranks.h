/* tests/nccl/nccl_ranks.h - a group of ranks, threads with a device each, over ring_nccl: on the
 * fakes of tests/fakes, on those of an older NCCL, and on the real libraries. */
#ifndef TESTS_NCCL_RANKS_H
#define TESTS_NCCL_RANKS_H

#include "ring/ring_nccl.h"

#ifdef NCCL_VERSION_CODE
#include "tests/fakes/fake_gpu.h"
#endif

#include <cuda_runtime_api.h>

#include <pthread.h>

#define MAX_WORLD 5
#define N_OF(a)   (sizeof(a) / sizeof((a)[0]))

typedef struct node node;
typedef void (*node_fn)(node *t);

struct node {
    ring_nccl *n;
    int rank;
    int world;
    bd_kv *kv;
    ring_nccl_options opt;
    int64_t limit_ms; /* of setup */
    node_fn fn;
    void *arg;
    cudaStream_t compute;
    pthread_barrier_t *meet;
    bd_err err; /* for the test to look at when all ranks have ended */
    bd_status rc;
    char failure[600];
    pthread_t thread;
};

void nccl_failed(node *t, int line, const char *what, const bd_err *err);

#define CHECK(t, cond)                               \
    do {                                             \
        if (!(cond)) {                               \
            nccl_failed((t), __LINE__, #cond, NULL); \
            return;                                  \
        }                                            \
    } while (0)
#define OK(t, call)                                  \
    do {                                             \
        bd_err err = BD_ERR_INIT;                    \
        if ((call) != BD_OK) {                       \
            nccl_failed((t), __LINE__, #call, &err); \
            return;                                  \
        }                                            \
    } while (0)
#define CUDA(t, call) CHECK(t, (call) == cudaSuccess)

/* Ranks there are devices for, at most MAX_WORLD. */
int nccl_top_world(void);

typedef struct setup {
    int world;
    int n_present; /* 0: all; else only ranks below it */
    bool control;
    bool no_join;       /* fn joins by itself */
    bool tolerant;      /* a failed join is in rc and err, not the test's failure */
    int64_t timeout_ms; /* of the rendezvous, too; 0: 20 s */
    int64_t
        limit_ms; /* > 0: of what comes once all have joined: a busy machine starts threads late */
    int64_t stop_ms;
    bd_kv *kv; /* NULL: a fresh one in memory */
    void *arg;
} setup;

/* Runs fn on each rank; nodes[world] gets what they left. */
void nccl_run(const setup *s, node_fn fn, node *nodes);

/* Element i of rank r: small, so that products and 8-bit sums of 5 ranks stay exact. */
double nccl_input_at(int r, size_t i);
void nccl_store(void *buf, size_t i, num_dtype d, double v);
/* Device memory with `who`'s elements from `first` on. */
void *nccl_filled(int who, size_t first, size_t n, num_dtype d);

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool is_open;
    void *kept; /* what a communicator that did not stop may still write to */
} gate;

/* Blocks until it is open; a host function of a stream. */
void gate_pass(void *arg);
void gate_open(gate *g);

/* All ranks ended with rc and one text, which contains part. */
void nccl_one_cause(const node *nodes, int world, bd_status rc, const char *part);

/* What ranks run: rank 1 issues another operation; one that goes well; the stream of one hangs. */
void nccl_disagree(node *t);
void nccl_once(node *t);
void nccl_compute_hangs(node *t);

#endif
