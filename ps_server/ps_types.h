/* ps_server/ps_types.h - the few words every part of the server speaks: slots, sequences, parts.
 *
 * Layer:   ps_server (pure). Plain data; no functions that block or allocate.
 * Read next: ps_table.h (rows), ps_step.h (the commit protocol), ps_record.h (journal format).
 */
#ifndef PS_TYPES_H
#define PS_TYPES_H

#include "base/buf.h"
#include "base/rand.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_N_SLOTS          4096u
#define PS_N_STRIPES        64u
#define PS_MAX_DIM          65536u
#define PS_MAX_NAME_BYTES   128u
#define PS_MAX_WORLD        65536u
#define PS_MAX_PARTS        65536u
#define PS_MAX_REQUEST_KEYS (1u << 20)

/* Who is told how far a long start is: one line, as a person reads it, without an end of line. Called
 * on the thread that starts, often; must not block. */
typedef struct ps_progress {
    void (*tell)(void *user, const char *line);
    void *user;
} ps_progress;

/* key -> slot: the top 12 bits of mix64(key). Public: clients partition by it. mixed =
 * bd_mix64(key). */
static inline uint32_t ps_slot_of_mixed(uint64_t mixed)
{
    return (uint32_t)(mixed >> 52);
}
static inline uint32_t ps_slot_of_key(uint64_t key)
{
    return ps_slot_of_mixed(bd_mix64(key));
}
/* Keys grouped by slot are grouped by stripe as well. mixed = bd_mix64(key). */
static inline uint32_t ps_stripe_of_mixed(uint64_t mixed)
{
    return (uint32_t)(mixed >> 58);
}
static inline uint32_t ps_stripe_of_key(uint64_t key)
{
    return ps_stripe_of_mixed(bd_mix64(key));
}

/* Position of a record in the journal. n never goes back, also across starts and restores, so it
 * alone orders; the generation says which start of the server wrote it. n 0: before any record. */
typedef struct ps_seqno {
    uint32_t generation;
    uint64_t n;
} ps_seqno;

typedef enum ps_durability {
    PS_DURABILITY_CHECKPOINT = 1,
    PS_DURABILITY_JOURNAL = 2,
    PS_DURABILITY_SYNC = 3
} ps_durability;

typedef enum ps_consistency { PS_SYNC = 1, PS_ASYNC = 2, PS_BOUNDED = 3 } ps_consistency;

/* Which keys are summed into which bag (ps_bags.h). All zero: no bags. */
typedef struct ps_bags {
    uint32_t n_bags;
    size_t n_entries;
    const uint32_t *entries; /* [n_entries] */
    const float *weights;    /* [n_entries]; NULL: all 1 */
} ps_bags;

/* Gradients of one table inside a part. Arrays are aligned and stay valid as long as the part. */
typedef struct ps_grads {
    uint32_t table_id;
    uint32_t dim;
    size_t n_keys;
    const uint64_t *keys; /* [n_keys] distinct */
    const float *grads;   /* [n_keys x dim], with bags [n_bags x dim] */
    ps_bags bags;
    bd_buf *own;   /* shared: memory of grads when it is not the part's; may be NULL */
    bd_buf *found; /* shared: u32[n_keys] where rows may be (ps_trail.h); NULL: no idea */
} ps_grads;

/* One pushed part, checked. The core owns it while it is staged; then it moves on to the commit
 * thread, which frees it. */
typedef struct ps_part ps_part;
struct ps_part {
    ps_part *next; /* link of the batch it is in */
    uint64_t job_epoch;
    uint64_t step;
    uint32_t rank;
    uint32_t part, n_parts;
    uint64_t client_id, sequence; /* async, bounded */
    double lr_scale;              /* async, bounded */
    size_t n_bytes;               /* keys and gradients, for the limits */
    size_t n_tables;
    ps_grads *tables; /* owned [n_tables] */
    bd_buf *keep;     /* shared: the memory the arrays lie in; may be NULL */
};

void ps_part_free(ps_part *p); /* this one only; NULL is fine */
void ps_part_free_list(ps_part *first);

#endif
