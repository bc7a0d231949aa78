/* tests/util/ring_ranks.h - runs one function on every rank of a group: threads of this process,
 * over memory, over tcp on loopback through shared memory, or
 * as two or three pretended hosts (RANKS_HIER).
 *
 * The function runs outside cmocka's thread, so it reports with RANK_CHECK instead of assert_*;
 * ring_ranks_run then fails the test in cmocka's thread, naming the rank, file and line. */
#ifndef TESTS_RING_RANKS_H
#define TESTS_RING_RANKS_H

#include "base/kv.h"

#include "ring/ring.h"

#include <stdbool.h>

typedef enum ranks_backend {
    RANKS_MEM,
    RANKS_TCP,
    RANKS_SHM,
    RANKS_HIER,
    RANKS_OTHER /* ring_ranks_set_other */
} ranks_backend;

typedef bd_status (*ranks_join_fn)(bd_kv *kv, int rank, int world, const ring_options *opt,
                                   ring_comm **out, bd_err *err);
/* A backend that is not in every build. name: static; count_live: what its fakes hold, NULL or 0
 * after each group. ring_on_every_backend and ring_everywhere then run on this one alone. */
void ring_ranks_set_other(const char *name, ranks_join_fn join_fn, long (*count_live)(void));
bool ring_ranks_has_other(void);

const char *ranks_backend_name(ranks_backend b);

typedef struct rank_test {
    ring_comm *comm;
    int rank;
    int world;
    void *arg;
    bool keep_comm; /* the function has freed comm itself */
    char failure[400];
} rank_test;

typedef void (*rank_fn)(rank_test *t);

/* Returns from the function when cond is false. */
#define RANK_CHECK(t, cond)                                    \
    do {                                                       \
        if (!(cond)) {                                         \
            rank_failed((t), __FILE__, __LINE__, #cond, NULL); \
            return;                                            \
        }                                                      \
    } while (0)
#define RANK_OK(t, call, err)                                   \
    do {                                                        \
        if ((call) != BD_OK) {                                  \
            rank_failed((t), __FILE__, __LINE__, #call, (err)); \
            return;                                             \
        }                                                       \
    } while (0)

void rank_failed(rank_test *t, const char *file, int line, const char *what, const bd_err *err);

/* Builds the group, runs fn on each rank in its own thread, frees the group, asserts that no rank
 * failed. opt NULL: a fresh group with a timeout of 20 s. */
void ring_ranks_run(ranks_backend backend, int world, const ring_options *opt, rank_fn fn,
                    void *arg);

/* A network namespace and an address in it. */
typedef struct ranks_host {
    char netns[64];
    char address[64];
} ranks_host;

/* From now on the ranks run on these hosts (borrowed; n 0: in the caller's namespace, on loopback):
 * RANKS_TCP rank by rank, RANKS_HIER neighbours together on two hosts, of an odd world on three,
 * which are then told apart by their namespaces. */
void ring_ranks_use_hosts(const ranks_host *hosts, int n);
/* Where a rank runs: an index, or -1 without hosts. */
int ring_ranks_host_of(ranks_backend backend, int rank, int world);

/* Waits for all ranks (not a collective: works on failed groups too). */
void rank_meet(rank_test *t);

/* The time limit of what comes now, for a test in which it passes; all ranks call it. They have
 * joined and met with the 20 s of any other test, since a busy machine starts threads late. */
void rank_limit(rank_test *t, int64_t limit_ms);

#endif
