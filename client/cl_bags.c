#include "client/cl_bags.h"

#include "base/mem.h"
#include "base/num/vec.h"

#include <string.h>

static size_t pooled_bytes(const cl_ids *ids, size_t n_unique, size_t n_servers)
{
    size_t entry = sizeof(uint32_t) + (ids->weights != NULL ? sizeof(float) : 0);
    return n_unique * sizeof(uint64_t) + ids->n_ids * entry +
           n_servers * ids->n_bags * ids->dim * sizeof(float);
}

bool cl_bags_fit(const cl_ids *ids)
{
    return ids->n_bags > 0 && ids->n_bags < CL_BAG_SAME_KEY &&
           pooled_bytes(ids, ids->n_ids, 1) <= CL_BAG_MAX_BYTES;
}

bool cl_bags_pay(const cl_ids *ids, size_t n_unique, size_t n_servers)
{
    /* Keys and entries go both ways of a step, once with the lookup and once with the push, and so
     * do rows: the comparison of one way is that of both. */
    size_t rows = n_unique * (sizeof(uint64_t) + ids->dim * sizeof(float));
    return pooled_bytes(ids, n_unique, n_servers) < rows;
}

static bool are_bags(const cl_ids *ids)
{
    bool ok = ids->offsets[0] == 0 && ids->offsets[ids->n_bags] == ids->n_ids;
    for (size_t b = 0; b < ids->n_bags; b++) {
        ok = ok && ids->offsets[b] <= ids->offsets[b + 1];
    }
    return ok;
}

/* Each id has a key, and so an entry, of its own. */
static void fill_as_they_are(cl_bags *b, const cl_ids *ids, const cl_uniques *u, size_t n_servers)
{
    uint32_t *entries = (uint32_t *)(void *)b->entries->bytes;
    float *weights = b->weights == NULL ? NULL : (float *)(void *)b->weights->bytes;
    for (size_t bag = 0; bag < ids->n_bags; bag++) {
        for (size_t i = ids->offsets[bag]; i < ids->offsets[bag + 1]; i++) {
            entries[u->index[i]] = (uint32_t)bag;
        }
    }
    for (size_t i = 0; weights != NULL && i < ids->n_ids; i++) {
        weights[u->index[i]] = ids->weights[i];
    }
    memcpy(b->first, u->server_first, (n_servers + 1) * sizeof *b->first);
}

/* next[u] becomes the end of key u's entries. */
static void fill(cl_bags *b, const cl_ids *ids, const cl_uniques *u, uint32_t *next)
{
    uint32_t *entries = (uint32_t *)(void *)b->entries->bytes;
    float *weights = b->weights == NULL ? NULL : (float *)(void *)b->weights->bytes;
    for (size_t bag = 0; bag < ids->n_bags; bag++) {
        for (size_t i = ids->offsets[bag]; i < ids->offsets[bag + 1]; i++) {
            uint32_t at = next[u->index[i]]++;
            entries[at] = (uint32_t)bag;
            if (weights != NULL) {
                weights[at] = ids->weights[i];
            }
        }
    }
    uint32_t first = 0;
    for (size_t k = 0; k < u->n_unique; k++) {
        for (uint32_t e = first + 1; e < next[k]; e++) {
            entries[e] |= CL_BAG_SAME_KEY;
        }
        first = next[k];
    }
}

/* next[u] = first entry of key u; b->first by server. */
static void count(cl_bags *b, const cl_ids *ids, const cl_uniques *u, size_t n_servers,
                  uint32_t *next)
{
    for (size_t i = 0; i < ids->n_ids; i++) {
        next[u->index[i]]++;
    }
    uint32_t before = 0;
    size_t key = 0;
    for (size_t s = 0; s < n_servers; s++) {
        b->first[s] = before;
        for (; key < u->server_first[s + 1]; key++) {
            uint32_t n = next[key];
            next[key] = before;
            before += n;
        }
    }
    b->first[n_servers] = before;
}

bd_status cl_bags_init(cl_bags *out, const cl_ids *ids, const cl_uniques *u, size_t n_servers,
                       bd_err *err)
{
    if (!are_bags(ids)) {
        return bd_err_set(err, BD_E_INVALID,
                          "table %u: offsets of %zu bags do not rise from 0 to %zu", ids->table_id,
                          ids->n_bags, ids->n_ids);
    }
    cl_bags b = {.n_bags = (uint32_t)ids->n_bags};
    uint32_t *next = u->as_they_are ? NULL : bd_calloc(u->n_unique, sizeof *next);
    b.entries = bd_buf_new(ids->n_ids * sizeof(uint32_t));
    b.weights = ids->weights == NULL ? NULL : bd_buf_new(ids->n_ids * sizeof(float));
    b.first = bd_calloc(n_servers + 1, sizeof *b.first);
    bool ok = (next != NULL || u->as_they_are) && b.entries != NULL && b.first != NULL &&
              (b.weights != NULL || ids->weights == NULL);
    if (ok && u->as_they_are) {
        fill_as_they_are(&b, ids, u, n_servers);
        *out = b;
    } else if (ok) {
        count(&b, ids, u, n_servers, next);
        fill(&b, ids, u, next);
        *out = b;
    } else {
        cl_bags_deinit(&b);
    }
    bd_free(next);
    return ok ? BD_OK : bd_err_set(err, BD_E_NOMEM, "%zu bags of %zu ids", ids->n_bags, ids->n_ids);
}

void cl_bags_deinit(cl_bags *b)
{
    bd_buf_unref(b->entries);
    bd_buf_unref(b->weights);
    bd_free(b->first);
    *b = (cl_bags){0};
}

size_t cl_bags_part_bytes(const cl_bags *b, const cl_uniques *u, size_t server_idx, uint32_t dim)
{
    size_t keys = u->server_first[server_idx + 1] - u->server_first[server_idx];
    size_t entry = sizeof(uint32_t) + (b->weights != NULL ? sizeof(float) : 0);
    return keys * sizeof(uint64_t) + (b->first[server_idx + 1] - b->first[server_idx]) * entry +
           b->n_bags * (size_t)dim * sizeof(float);
}

/* ---- for those who keep gradients by key ---- */
void cl_table_rows_expand(const cl_table_rows *t, const float *bag_grads, float *row_grads)
{
    memset(row_grads, 0, t->n_unique * t->dim * sizeof *row_grads);
    for (size_t bag = 0; bag < t->n_rows; bag++) {
        for (size_t i = t->offsets[bag]; i < t->offsets[bag + 1]; i++) {
            num_axpy(row_grads + (size_t)t->index[i] * t->dim,
                     t->weights == NULL ? 1.0f : t->weights[i], bag_grads + bag * t->dim, t->dim);
        }
    }
}
