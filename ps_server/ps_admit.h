/* ps_server/ps_admit.h - admission: which pushes of keys that have no row make one.
 *
 * Layer:   ps_server (pure). Threads: any.
 * Meaning: a gradient of a key that has no row and is not admitted is dropped and counted; the key
 *          goes on reading as its initial value. A key that has a row is never asked about.
 * Memory:  what a policy remembers of keys without a row lies in rows of a hidden table beside the
 *          table (ps_spec_hidden): within the budget, on the disk, in checkpoints and restores as
 *          other rows are. A filter row's key has the slot of the keys it knows, so that the same
 *          keys are admitted on any number of servers.
 * Replay:  what was decided is journaled (ps_sift.h), not decided again.
 *
 * Adding one: its file, its line in ps_admit.c, its test in tests/unit/test_ps_admit.c.
 */
#ifndef PS_ADMIT_H
#define PS_ADMIT_H

#include "ps_server/ps_rule.h"
#include "ps_server/ps_types.h"

typedef struct ps_admit_ask {
    const double *param;
    uint64_t key;
    uint64_t table_key; /* num_init_key: the table's part of randomness */
    uint64_t draw;      /* the same at every retry of a push: its step, or its client's sequence */
    const uint32_t *words; /* the filter row of the key; NULL: there is none yet */
} ps_admit_ask;

typedef struct ps_admit {
    ps_rule_form form;
    /* All NULL or 0 for a policy that remembers nothing. */
    size_t filter_words; /* of a filter row */
    /* The key of the filter row that knows `key`. */
    uint64_t (*filter_key)(const double *param, uint64_t key);
    /* Counts a push of `key` that was dropped. Order of calls: none matters. */
    void (*note)(const double *param, uint32_t *words, uint64_t key);
    /* After the notes of one record. May be NULL. */
    void (*age)(const double *param, uint32_t *words);
    bool own_rows; /* a filter row knows one key alone and goes away when that is admitted */
    /* Steps without a push after which such a row goes away; 0: never. */
    uint64_t (*forget_steps)(const double *param);

    bool (*admit)(const ps_admit_ask *ask); /* NULL: always */
} ps_admit;

extern const ps_admit ps_admit_all, ps_admit_frequency, ps_admit_sketch, ps_admit_probability;

const ps_admit *ps_admit_find(const char *name); /* NULL: none is called so */
const ps_admit *ps_admit_at(size_t i);           /* NULL past the end: for help and tests */

#endif
