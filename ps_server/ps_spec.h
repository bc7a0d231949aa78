/* ps_server/ps_spec.h - what a table is: dim, initial rows, optimiser; checked once, then constant.
 *
 * Layer:   ps_server. Threads: pure functions; a spec is read-only after ps_spec_parse.
 * Formats: a spec travels and is stored as the message braid.v1.TableSpec.
 * Promise: a row's first value is a pure function of (seed, name, key, element): the same on every
 *          server, in any order of arrival, and again after a restart.
 */
#ifndef PS_SPEC_H
#define PS_SPEC_H

#include "base/err.h"
#include "base/num/init.h"
#include "base/num/row_codec.h"

#include "ps_server/ps_admit.h"
#include "ps_server/ps_evict.h"
#include "ps_server/ps_types.h"

struct Braid__V1__TableSpec; /* protobuf-c's */

typedef enum ps_policy {
    PS_POLICY_REJECT = 1,
    PS_POLICY_DROP_ROW,
    PS_POLICY_CLIP,
    PS_POLICY_HALT
} ps_policy;

#define PS_MAX_EVICTS 4
typedef struct ps_eviction {
    const ps_evict *rule; /* borrowed: static */
    double param[PS_RULE_MAX_PARAMS];
} ps_eviction;

/* Hidden tables hold what rules remember, as rows that go wherever other rows go: within the
 * budget, to the disk, into checkpoints. Their spec follows from their table's; they are in no
 * list, sum or hash of tables. */
typedef enum ps_hidden {
    PS_NOT_HIDDEN,
    PS_HIDDEN_FILTER, /* filter rows of admission (ps_admit.h) */
    PS_HIDDEN_COUNTS, /* a row a slot: u64 gradients filtered, u64 rows evicted */
    PS_N_HIDDEN
} ps_hidden;

typedef struct ps_spec {
    char name[PS_MAX_NAME_BYTES + 1];
    uint32_t id; /* ps_table_id(name) */
    uint32_t dim;
    int dtype;            /* of the stored weights (num_dtype) */
    const num_init *init; /* borrowed: static */
    float init_param[NUM_INIT_MAX_PARAMS];
    uint64_t seed;
    const num_optim *opt; /* borrowed: static */
    float hyper[NUM_OPTIM_MAX_HYPER];
    ps_durability durability;
    ps_policy policy;      /* ps_policy.h */
    float max_grad_norm;   /* 0: no limit */
    const ps_admit *admit; /* borrowed: static */
    double admit_param[PS_RULE_MAX_PARAMS];
    size_t n_evicts;
    ps_eviction evicts[PS_MAX_EVICTS];
    ps_hidden hidden;
    size_t weight_words; /* 4-byte words of the stored weights: dim for f32 */
    size_t state_elems;  /* f32 elements of optimiser state behind them */
    uint64_t name_hash;  /* bd_hash64(name), part of the parameter hash */
    uint64_t init_key;   /* num_init_key */
} ps_spec;

/* ps_table_id - never 0. */
uint32_t ps_table_id(const char *name);

/* ps_name_ok - 1..128 of [A-Za-z0-9_.-], not starting with a dot (names become folder names). */
bool ps_name_ok(const char *name);

/* ps_spec_parse - checks a spec from the network and fills out. BD_E_INVALID (BD_E_UNSUPPORTED for
 * row types not built) names the field. Does not keep anything of msg. */
bd_status ps_spec_parse(const struct Braid__V1__TableSpec *msg, ps_spec *out,
                        bd_err *err) BD_MUST_CHECK;

/* ps_spec_same - BD_OK, or BD_E_MISMATCH naming the first field that differs and both values. */
bd_status ps_spec_same(const ps_spec *have, const ps_spec *want, bd_err *err) BD_MUST_CHECK;

/* ps_spec_pack - the message as bytes, every field explicit (defaults included), so that the
 * defaults of a later version do not change a stored table. NULL: no memory. */
bd_buf *ps_spec_pack(const ps_spec *s);
bd_status ps_spec_unpack(const void *bytes, size_t n_bytes, ps_spec *out,
                         bd_err *err) BD_MUST_CHECK;

/* ps_spec_hidden - the spec of the table's hidden table of this kind; false: it has none. A hidden
 * table has its table's name and durability, and an id of its own. */
bool ps_spec_hidden(const ps_spec *s, ps_hidden kind, ps_spec *out);
/* The same by id. */
bool ps_spec_owns(const ps_spec *s, uint32_t table_id, ps_spec *out);
/* Pushes of keys that have no row have to be asked about. */
bool ps_spec_sifts(const ps_spec *s);

/* ps_spec_row - writes the weights (out[dim]) a row starts with, rounded as they are stored. */
void ps_spec_row(const ps_spec *s, uint64_t key, float *out);

#endif
