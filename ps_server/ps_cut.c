/* Changed rows, taken at one moment: see ps_shard_int.h. */
#include "base/cgroup.h"
#include "base/mem.h"

#include "ps_server/ps_shard_int.h"

#include <string.h>

#define MAX_TAKERS 4u /* memory is what they share */

void ps_cut_deinit(ps_cut *cut)
{
    for (size_t i = 0; i < cut->n; i++) {
        ps_entries_deinit(&cut->items[i]);
    }
    bd_free(cut->items);
    *cut = (ps_cut){0};
}

void ps_cut_put_back(ps_shard *s, ps_cut *cut)
{
    const ps_tables *ts = ps_shard_lock_tables(s);
    for (size_t i = 0; i < cut->n; i++) {
        ps_table *t = ps_tables_find(ts, cut->items[i].table_id);
        if (t != NULL) {
            ps_table_put_back(t, &cut->items[i]);
        }
    }
    ps_shard_unlock_tables(s);
    ps_cut_deinit(cut);
}

bd_status ps_cut_take_stripe(ps_table *t, uint32_t stripe, bool cold_only, ps_cut *cut)
{
    if (!bd_grow(&cut->items, &cut->cap, cut->n + 1, sizeof *cut->items)) {
        return BD_E_NOMEM;
    }
    ps_entries *e = &cut->items[cut->n];
    bd_status rc = ps_table_take_dirty(t, stripe, cold_only, e);
    if (rc == BD_OK && e->n > 0) {
        cut->n++;
        cut->bytes += e->n * (PS_ENTRY_KEY_BYTES + e->value_bytes);
    }
    return rc;
}

/* ---- on several cores ---- */
typedef struct taker {
    const ps_tables *tables;
    _Atomic size_t *next; /* the first stripe of all tables that nobody takes */
    ps_cut part;
    bd_status rc;
    pthread_t thread;
} taker;

static void *take_stripes(void *user)
{
    taker *k = user;
    for (;;) {
        size_t i = atomic_fetch_add(k->next, 1);
        if (i >= k->tables->n * PS_N_STRIPES || k->rc != BD_OK) {
            return NULL;
        }
        k->rc = ps_cut_take_stripe(k->tables->items[i / PS_N_STRIPES], (uint32_t)(i % PS_N_STRIPES),
                                   false, &k->part);
    }
}

/* What the others took joins the cut; on failure it stays with them. */
static bd_status join_parts(ps_cut *cut, taker *takers, size_t n)
{
    size_t sum = cut->n;
    for (size_t i = 0; i < n; i++) {
        sum += takers[i].part.n;
    }
    if (!bd_grow(&cut->items, &cut->cap, sum + 1, sizeof *cut->items)) {
        return BD_E_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        ps_cut *p = &takers[i].part;
        if (p->n > 0) {
            memcpy(cut->items + cut->n, p->items, p->n * sizeof *p->items);
        }
        cut->n += p->n;
        cut->bytes += p->bytes;
        p->n = 0;
        ps_cut_deinit(p);
    }
    return BD_OK;
}

bd_status ps_cut_take(ps_shard *s, ps_cut *cut, bd_err *err)
{
    _Atomic size_t next = 0;
    taker takers[MAX_TAKERS] = {{0}};
    size_t cores = (size_t)bd_cpus(), n = 1;
    cut->applied_n = atomic_load_explicit(&s->applied_n, memory_order_acquire);
    cut->n_rows = ps_tables_n_rows(&s->tables);
    for (size_t i = 0; i < MAX_TAKERS; i++) {
        takers[i] = (taker){.tables = &s->tables, .next = &next, .rc = BD_OK};
    }
    while (n < MAX_TAKERS && n < cores &&
           pthread_create(&takers[n].thread, NULL, take_stripes, &takers[n]) == 0) {
        n++;
    }
    (void)take_stripes(&takers[0]); /* with nobody to help it takes all */
    for (size_t i = 1; i < n; i++) {
        (void)pthread_join(takers[i].thread, NULL);
    }
    bd_status rc = BD_OK;
    for (size_t i = 0; i < n; i++) {
        rc = rc == BD_OK ? takers[i].rc : rc;
    }
    bd_status joined = join_parts(cut, takers, n);
    rc = rc == BD_OK ? joined : rc;
    if (rc != BD_OK) {
        for (size_t i = 0; i < n; i++) { /* nothing, once they have joined */
            ps_cut_put_back(s, &takers[i].part);
        }
        ps_cut_put_back(s, cut);
        return bd_err_set(err, rc, "checkpoint: no memory for a copy of the changed rows");
    }
    return BD_OK;
}
