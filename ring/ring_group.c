/* Groups of some ranks of a group: only the members take part in making one. */
#include "base/mem.h"

#include "ring/ring_comm_int.h"

#include <inttypes.h>
#include <stdlib.h>

bd_status ring_subgroup(bd_kv *kv, ring_comm *parent, const int *ranks, int n_ranks,
                        const char *name, ring_comm **out, bd_err *err)
{
    int own = -1;
    int world = ring_world(parent);
    for (int i = 0; i < n_ranks; i++) {
        bool twice = false;
        for (int k = 0; k < i; k++) {
            twice = twice || ranks[k] == ranks[i];
        }
        if (ranks[i] < 0 || ranks[i] >= world || twice) {
            return bd_err_set(err, BD_E_INVALID, "group %s/%s: rank %d of world %d%s",
                              parent->group, name, ranks[i], world, twice ? " comes twice" : "");
        }
        own = ranks[i] == ring_rank(parent) ? i : own;
    }
    if (own < 0) {
        return bd_err_set(err, BD_E_INVALID, "group %s/%s: rank %d is no member", parent->group,
                          name, ring_rank(parent));
    }
    char *group = bd_strfmt("%s/%s", parent->group, name);
    if (group == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "group %s/%s", parent->group, name);
    }
    ring_options opt = parent->options;
    opt.group = group;
    bd_status rc = ring_new(kv, own, n_ranks, &opt, out, err);
    bd_free(group);
    return rc;
}

typedef struct member {
    int64_t key;
    int rank;
} member;

static int by_key(const void *a, const void *b)
{
    const member *x = a;
    const member *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

bd_status ring_split(bd_kv *kv, ring_comm *parent, int64_t color, int64_t key, ring_comm **out,
                     bd_err *err)
{
    size_t world = (size_t)ring_world(parent);
    const int64_t mine[2] = {color, key};
    int64_t *all = bd_calloc(world, sizeof mine);
    member *members = bd_calloc(world, sizeof *members);
    int *ranks = bd_calloc(world, sizeof *ranks);
    char *name = NULL;
    int n = 0;
    bd_status rc = BD_OK;
    if (all == NULL || members == NULL || ranks == NULL) {
        rc = bd_err_set(err, BD_E_NOMEM, "split of group %s", parent->group);
        goto out;
    }
    rc = ring_all_gather(parent, mine, all, 2, NUM_I64, "ring_split", NULL, err);
    if (rc != BD_OK || color < 0) {
        goto out;
    }
    for (size_t r = 0; r < world; r++) {
        if (all[2 * r] == color) {
            members[n++] = (member){.key = all[2 * r + 1], .rank = (int)r};
        }
    }
    qsort(members, (size_t)n, sizeof *members, by_key);
    for (int i = 0; i < n; i++) {
        ranks[i] = members[i].rank;
    }
    name = bd_strfmt("split%" PRIu64 ".%" PRId64, parent->n_splits, color);
    rc = name == NULL ? bd_err_set(err, BD_E_NOMEM, "split of group %s", parent->group)
                      : ring_subgroup(kv, parent, ranks, n, name, out, err);
out:
    if (rc == BD_OK && color < 0) {
        *out = NULL;
    }
    parent->n_splits++;
    bd_free(all);
    bd_free(members);
    bd_free(ranks);
    bd_free(name);
    return rc;
}
