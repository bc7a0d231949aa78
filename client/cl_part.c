#include "client/cl_part.h"

#include "base/assert.h"
#include "base/mem.h"
#include "base/rand.h"

#include "client/cl_bags.h"

#include <string.h>

uint32_t cl_slot_of(uint64_t key)
{
    return (uint32_t)(bd_mix64(key) >> 52);
}

/* ---- shard map ---- */
static void map_free(cl_map *m)
{
    for (size_t i = 0; m->addresses != NULL && i < m->n_servers; i++) {
        bd_free(m->addresses[i]);
    }
    bd_free(m->addresses);
    bd_free(m->first_bucket);
    bd_free(m);
}

cl_map *cl_map_ref(cl_map *m)
{
    atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void cl_map_unref(cl_map *m)
{
    if (m != NULL && atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) == 1) {
        map_free(m);
    }
}

bool cl_map_same_owners(const cl_map *a, const cl_map *b)
{
    return a->n_servers == b->n_servers && memcmp(a->owner, b->owner, sizeof a->owner) == 0;
}

/* Sorts the slots by owner: counting, so that slots of one owner keep their order. */
static void map_order(cl_map *m)
{
    for (uint32_t slot = 0; slot < CL_N_SLOTS; slot++) {
        m->first_bucket[m->owner[slot] + 1]++;
    }
    for (size_t s = 0; s < m->n_servers; s++) {
        m->first_bucket[s + 1] += m->first_bucket[s];
    }
    for (uint32_t slot = 0; slot < CL_N_SLOTS; slot++) {
        m->bucket_of[slot] = (uint16_t)m->first_bucket[m->owner[slot]]++;
    }
    memmove(m->first_bucket + 1, m->first_bucket, m->n_servers * sizeof *m->first_bucket);
    m->first_bucket[0] = 0;
}

bd_status cl_map_new(uint64_t epoch, const char *const *addresses, size_t n_servers,
                     const uint32_t *owner, size_t n_owner, cl_map **out, bd_err *err)
{
    if (n_servers == 0 || n_servers > CL_N_SLOTS || n_owner != CL_N_SLOTS) {
        return bd_err_set(err, BD_E_CORRUPT, "shard map: %zu servers, %zu slots (want 1 to %u, %u)",
                          n_servers, n_owner, CL_N_SLOTS, CL_N_SLOTS);
    }
    for (size_t slot = 0; slot < n_owner; slot++) {
        if (owner[slot] >= n_servers) {
            return bd_err_set(err, BD_E_CORRUPT, "shard map: slot %zu belongs to server %u of %zu",
                              slot, owner[slot], n_servers);
        }
    }
    cl_map *m = bd_calloc(1, sizeof *m);
    if (m == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "shard map");
    }
    atomic_init(&m->refs, 1);
    m->epoch = epoch;
    m->n_servers = n_servers;
    memcpy(m->owner, owner, sizeof m->owner);
    m->addresses = bd_calloc(n_servers, sizeof *m->addresses);
    m->first_bucket = bd_calloc(n_servers + 1, sizeof *m->first_bucket);
    bool ok = m->addresses != NULL && m->first_bucket != NULL;
    for (size_t i = 0; ok && i < n_servers; i++) {
        m->addresses[i] = bd_strdup(addresses[i]);
        ok = m->addresses[i] != NULL;
    }
    if (!ok) {
        map_free(m);
        return bd_err_set(err, BD_E_NOMEM, "shard map");
    }
    map_order(m);
    *out = m;
    return BD_OK;
}

/* ---- dedup ----
 * The ids are first put into their slots' buckets, by counting. What a key is compared with is then
 * its bucket: a dozen ids that lie side by side, where one table of hashes over all ids would be
 * larger than a core's caches. */
#define SMALL_BUCKET 48u   /* ids; in a larger one keys are found by hash */
#define SAMPLE_IDS   2048u /* at most; half of it is aimed at */

typedef struct dedup {
    const cl_map *map;   /* borrowed */
    const uint64_t *ids; /* borrowed [n_ids] */
    size_t n_ids;
    uint16_t *buckets; /* owned [n_ids]: of each id */
    uint32_t *order;   /* owned [n_ids]: ids by bucket, then as they came; NULL: not wanted */
    uint32_t *cells;   /* owned [n_cells]: a key's number + 1; NULL: none yet */
    size_t n_cells;
    uint64_t *keys;  /* [n_ids]: distinct ones */
    uint32_t *index; /* [n_ids] */
    size_t n_unique;
} dedup;

static void dedup_deinit(dedup *d)
{
    bd_free(d->buckets);
    bd_free(d->order);
    bd_free(d->cells);
}

/* n[b] = ids in bucket b; returns the most that one has. */
static uint32_t dedup_count(dedup *d, uint32_t *n)
{
    uint32_t most = 0;
    for (size_t i = 0; i < d->n_ids; i++) {
        d->buckets[i] = d->map->bucket_of[bd_mix64(d->ids[i]) >> 52];
        n[d->buckets[i]]++;
    }
    for (uint32_t b = 0; b < CL_N_SLOTS; b++) {
        most = n[b] > most ? n[b] : most;
    }
    return most;
}

/* From counts to where each bucket begins. */
static void sum_up(uint32_t *n)
{
    uint32_t before = 0;
    for (uint32_t b = 0; b < CL_N_SLOTS; b++) {
        uint32_t in_b = n[b];
        n[b] = before;
        before += in_b;
    }
}

/* Of the keys of a few buckets, all of whose ids are looked at, few are there twice. */
static bool has_few_repeats(const dedup *d)
{
    uint16_t cells[2 * SAMPLE_IDS] = {0};
    uint64_t keys[SAMPLE_IDS];
    size_t every = 1, n = 0, n_repeated = 0;
    while (every < CL_N_SLOTS / 64 && d->n_ids / (2 * every) >= SAMPLE_IDS / 2) {
        every *= 2;
    }
    for (size_t i = 0; i < d->n_ids && n < SAMPLE_IDS; i++) {
        if ((d->buckets[i] & (every - 1)) != 0) {
            continue;
        }
        uint64_t key = d->ids[i];
        size_t cell = (size_t)bd_mix64(key) & (2 * SAMPLE_IDS - 1);
        while (cells[cell] != 0 && keys[cells[cell] - 1] != key) {
            cell = (cell + 1) & (2 * SAMPLE_IDS - 1);
        }
        n_repeated += cells[cell] != 0;
        keys[n++] = key;
        cells[cell] = (uint16_t)n;
    }
    return n_repeated * CL_PART_FEW <= n;
}

/* All ids by bucket, then as they came. */
static void place_as_they_are(dedup *d, uint32_t *ends, size_t *server_first)
{
    const uint16_t *buckets = d->buckets;
    const uint64_t *ids = d->ids;
    for (size_t i = 0, n = d->n_ids; i < n; i++) {
        uint32_t at = ends[buckets[i]]++;
        d->index[i] = at;
        d->keys[at] = ids[i];
    }
    for (size_t s = 0; s < d->map->n_servers; s++) {
        uint32_t b = d->map->first_bucket[s + 1];
        server_first[s + 1] = b == 0 ? 0 : ends[b - 1];
    }
    d->n_unique = d->n_ids;
}

/* Puts the ids in order; ends[b], where bucket b begins, becomes where it ends. */
static void dedup_place(dedup *d, uint32_t *ends)
{
    const uint16_t *buckets = d->buckets;
    uint32_t *order = d->order; /* alone: what is written all over the place is to be little */
    for (size_t i = 0, n = d->n_ids; i < n; i++) {
        order[ends[buckets[i]]++] = (uint32_t)i;
    }
}

/* The ids at [at, end) of the order are one bucket. */
static void dedup_small(dedup *d, size_t at, size_t end)
{
    size_t first = d->n_unique;
    uint64_t seen = 0; /* bits of the hashes of the bucket's distinct keys */
    for (; at < end; at++) {
        uint64_t key = d->ids[d->order[at]], bit = 1ull << (bd_mix64(key) & 63);
        size_t k = (seen & bit) != 0 ? first : d->n_unique;
        while (k < d->n_unique && d->keys[k] != key) {
            k++;
        }
        if (k == d->n_unique) {
            d->keys[d->n_unique++] = key;
            seen |= bit;
        }
        d->index[d->order[at]] = (uint32_t)k;
    }
}

static bool dedup_large(dedup *d, size_t at, size_t end)
{
    size_t n_cells = 16;
    while (n_cells < 2 * (end - at)) {
        n_cells *= 2;
    }
    if (n_cells > d->n_cells) {
        bd_free(d->cells);
        d->cells = bd_alloc(n_cells * sizeof *d->cells);
        d->n_cells = d->cells == NULL ? 0 : n_cells;
    }
    if (d->cells == NULL) {
        return false;
    }
    memset(d->cells, 0, n_cells * sizeof *d->cells);
    for (; at < end; at++) {
        uint64_t key = d->ids[d->order[at]];
        size_t cell = (size_t)bd_mix64(key) & (n_cells - 1);
        while (d->cells[cell] != 0 && d->keys[d->cells[cell] - 1] != key) {
            cell = (cell + 1) & (n_cells - 1);
        }
        if (d->cells[cell] == 0) {
            d->keys[d->n_unique] = key;
            d->cells[cell] = (uint32_t)++d->n_unique;
        }
        d->index[d->order[at]] = d->cells[cell] - 1;
    }
    return true;
}

static bool dedup_distinct(dedup *d, uint32_t *ends, size_t *server_first)
{
    bool ok = true;
    uint32_t at = 0, b = 0;
    d->order = bd_alloc(d->n_ids * sizeof *d->order);
    if (d->order == NULL) {
        return false;
    }
    dedup_place(d, ends);
    for (size_t s = 0; s < d->map->n_servers; s++) {
        server_first[s] = d->n_unique;
        for (; b < d->map->first_bucket[s + 1] && ok; at = ends[b++]) {
            if (ends[b] - at <= SMALL_BUCKET) {
                dedup_small(d, at, ends[b]);
            } else {
                ok = dedup_large(d, at, ends[b]);
            }
        }
    }
    server_first[d->map->n_servers] = d->n_unique;
    return ok;
}

static bool dedup_run(dedup *d, bool may_repeat, cl_uniques *u)
{
    uint32_t ends[CL_N_SLOTS] = {0};
    uint32_t most = dedup_count(d, ends);
    sum_up(ends);
    u->as_they_are =
        may_repeat && d->n_ids >= CL_PART_MANY_IDS && most <= SMALL_BUCKET && has_few_repeats(d);
    if (u->as_they_are) {
        place_as_they_are(d, ends, u->server_first);
        return true;
    }
    return dedup_distinct(d, ends, u->server_first);
}

bd_status cl_uniques_init(cl_uniques *out, const cl_map *map, const uint64_t *ids, size_t n_ids,
                          bool may_repeat, bd_err *err)
{
    cl_uniques u = {0};
    dedup d = {.map = map, .ids = ids, .n_ids = n_ids};
    bd_status rc = BD_E_NOMEM;
    if (n_ids >= UINT32_MAX) {
        return bd_err_set(err, BD_E_INVALID, "%zu ids of one table in a batch", n_ids);
    }
    u.index = d.index = bd_alloc(n_ids * sizeof *u.index);
    u.server_first = bd_calloc(map->n_servers + 1, sizeof *u.server_first);
    u.keys = bd_buf_new(n_ids * sizeof(uint64_t));
    d.buckets = bd_alloc(n_ids * sizeof *d.buckets);
    if (u.index == NULL || u.server_first == NULL || u.keys == NULL || d.buckets == NULL) {
        goto out;
    }
    d.keys = (uint64_t *)(void *)u.keys->bytes;
    if (!dedup_run(&d, may_repeat, &u)) {
        goto out;
    }
    u.n_unique = d.n_unique;
    *out = u;
    u = (cl_uniques){0};
    rc = BD_OK;
out:
    dedup_deinit(&d);
    cl_uniques_deinit(&u);
    return rc == BD_OK ? rc : bd_err_set(err, rc, "dedup of %zu ids", n_ids);
}

void cl_uniques_deinit(cl_uniques *u)
{
    bd_buf_unref(u->keys);
    bd_free(u->index);
    bd_free(u->server_first);
    *u = (cl_uniques){0};
}

/* ---- plan ---- */
typedef struct planner {
    cl_plan plan;
    size_t cap_slices, cap_parts;
    size_t part_bytes;
    size_t used_bytes; /* of the part being filled */
} planner;

static size_t row_bytes_of(uint32_t dim)
{
    return sizeof(uint64_t) + (size_t)dim * sizeof(float);
}

static bool start_part(planner *p, size_t server_idx, uint32_t part)
{
    void *parts = p->plan.parts;
    if (!bd_grow(&parts, &p->cap_parts, p->plan.n_parts + 1, sizeof *p->plan.parts)) {
        return false;
    }
    p->plan.parts = parts;
    p->plan.parts[p->plan.n_parts++] =
        (cl_part){.server_idx = server_idx, .part = part, .first_slice = p->plan.n_slices};
    p->used_bytes = 0;
    return true;
}

static bool add_slice(planner *p, cl_slice slice)
{
    void *slices = p->plan.slices;
    if (!bd_grow(&slices, &p->cap_slices, p->plan.n_slices + 1, sizeof *p->plan.slices)) {
        return false;
    }
    p->plan.slices = slices;
    p->plan.slices[p->plan.n_slices++] = slice;
    p->plan.parts[p->plan.n_parts - 1].n_slices++;
    return true;
}

/* Spreads rows of one table over the server's current part and as many further ones as it takes. */
static bool plan_rows(planner *p, cl_slice rest, size_t row_bytes)
{
    while (rest.n_rows > 0) {
        cl_part *part = &p->plan.parts[p->plan.n_parts - 1];
        /* Rounded up, so that parts come out even and none of a few rows is left over. */
        size_t room = p->used_bytes < p->part_bytes
                          ? (p->part_bytes - p->used_bytes + row_bytes - 1) / row_bytes
                          : 0;
        if (room == 0 && part->n_slices > 0) {
            if (!start_part(p, part->server_idx, part->part + 1)) {
                return false;
            }
            continue;
        }
        cl_slice now = rest;
        now.n_rows = room == 0 ? 1 : (room < rest.n_rows ? room : rest.n_rows);
        if (!add_slice(p, now)) {
            return false;
        }
        p->used_bytes += now.n_rows * row_bytes;
        rest.first_row += now.n_rows;
        rest.n_rows -= now.n_rows;
    }
    return true;
}

static bool is_pooled(const cl_cut *t)
{
    return t->bags != NULL && t->bags->n_bags > 0;
}

/* A pooled table is one slice: each part of it would bring all its bags. */
static bool plan_bags(planner *p, const cl_cut *t, cl_slice all, size_t server_idx)
{
    size_t bytes = cl_bags_part_bytes(t->bags, t->uniques, server_idx, t->dim);
    const cl_part *part = &p->plan.parts[p->plan.n_parts - 1];
    if (all.n_rows == 0) {
        return true;
    }
    if (part->n_slices > 0 && p->used_bytes + bytes > p->part_bytes &&
        !start_part(p, part->server_idx, part->part + 1)) {
        return false;
    }
    p->used_bytes += bytes;
    return add_slice(p, all);
}

/* The size of each of server s's parts, so that they are even: bytes over the nearest whole number
 * of parts. */
static size_t even_part_bytes(const cl_cut *tables, size_t n_tables, size_t s, size_t part_bytes)
{
    size_t bytes = 0;
    for (size_t t = 0; t < n_tables; t++) {
        const size_t *first = tables[t].uniques->server_first;
        bytes += is_pooled(&tables[t])
                     ? cl_bags_part_bytes(tables[t].bags, tables[t].uniques, s, tables[t].dim)
                     : (first[s + 1] - first[s]) * row_bytes_of(tables[t].dim);
    }
    size_t n = (bytes + part_bytes / 2) / part_bytes;
    return n > 0 ? (bytes + n - 1) / n : part_bytes;
}

bd_status cl_plan_init(cl_plan *out, size_t n_servers, const cl_cut *tables, size_t n_tables,
                       size_t part_bytes, bd_err *err)
{
    planner p = {0};
    bool ok = true;
    for (size_t s = 0; ok && s < n_servers; s++) {
        size_t first_part = p.plan.n_parts;
        p.part_bytes = even_part_bytes(tables, n_tables, s, part_bytes);
        ok = start_part(&p, s, 0);
        for (size_t t = 0; ok && t < n_tables; t++) {
            const size_t *first = tables[t].uniques->server_first;
            cl_slice rows = {t, first[s], first[s + 1] - first[s]};
            ok = is_pooled(&tables[t]) ? plan_bags(&p, &tables[t], rows, s)
                                       : plan_rows(&p, rows, row_bytes_of(tables[t].dim));
        }
        for (size_t i = first_part; i < p.plan.n_parts; i++) {
            p.plan.parts[i].n_parts = (uint32_t)(p.plan.n_parts - first_part);
        }
    }
    if (!ok) {
        cl_plan_deinit(&p.plan);
        return bd_err_set(err, BD_E_NOMEM, "plan of %zu tables", n_tables);
    }
    *out = p.plan;
    return BD_OK;
}

void cl_plan_deinit(cl_plan *p)
{
    bd_free(p->slices);
    bd_free(p->parts);
    *p = (cl_plan){0};
}
