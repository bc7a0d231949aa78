/* ps_server/ps_facts.h - small facts of the server on their way: packed into frames of the log, and
 * the newest of each that is in the log alone.
 *
 * Layer:     ps_server (pure). Includes base/.
 * Threads:   none of its own; the journal's lock guards it.
 * Ownership: names and values are copied.
 * Bytes:     a fact is u32 LE bytes of its name, u32 LE bytes of its value (2^32 - 1: removed), the
 *            name, the value; facts follow each other, and zeros up to a multiple of 8. A name has
 *            at least one byte, so a zero length ends the list.
 */
#ifndef PS_FACTS_H
#define PS_FACTS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A fact to set (val != NULL) or to remove. Borrowed. */
typedef struct ps_fact {
    char area; /* 'M' the server's or 'C' the coordinator's */
    const char *name;
    const void *val;
    size_t val_bytes;
} ps_fact;

size_t ps_facts_packed_bytes(const ps_fact *facts, size_t n);
void ps_facts_pack(const ps_fact *facts, size_t n, uint8_t *out);

typedef struct ps_facts_item {
    char *name;   /* owned */
    uint8_t *val; /* owned; NULL: removed */
    size_t val_bytes;
    uint64_t change; /* grows with every change */
} ps_facts_item;

/* In order of names. Zeroed: empty. */
typedef struct ps_facts {
    ps_facts_item *items; /* owned */
    size_t n, cap;
    uint64_t n_changes;
} ps_facts;

void ps_facts_deinit(ps_facts *f);
/* Copies of facts, that ps_facts_take puts in without a failure; room for them is made. BD_E_NOMEM:
 * nothing has changed. *copies: owned, given back by take or ps_facts_drop_copies. */
bd_status ps_facts_copy(ps_facts *f, const ps_fact *facts, size_t n,
                        ps_facts_item **copies) BD_MUST_CHECK;
void ps_facts_take(ps_facts *f, ps_facts_item *copies, size_t n);
void ps_facts_drop_copies(ps_facts_item *copies, size_t n);
/* What a frame holds. BD_E_CORRUPT, BD_E_NOMEM. */
bd_status ps_facts_unpack(ps_facts *f, const uint8_t *bytes, size_t n_bytes,
                          bd_err *err) BD_MUST_CHECK;
/* The first item whose name is not before this one. */
size_t ps_facts_at(const ps_facts *f, const char *name);
/* NULL: nothing is known here. */
const ps_facts_item *ps_facts_find(const ps_facts *f, const char *name);
/* Forgets the items that have not changed since change number `change`. */
void ps_facts_forget(ps_facts *f, uint64_t change);

#endif
