#include "ps_server/ps_tables.h"

#include "base/mem.h"

void ps_tables_deinit(ps_tables *ts)
{
    for (size_t i = 0; i < ts->n; i++) {
        ps_table_free(ts->items[i]);
    }
    bd_free(ts->items);
    *ts = (ps_tables){.budget = ts->budget};
}

ps_table *ps_tables_find(const ps_tables *ts, uint32_t id)
{
    for (size_t i = 0; i < ts->n; i++) { /* tens of tables: a scan beats a hash */
        if (ps_table_spec(ts->items[i])->id == id) {
            return ts->items[i];
        }
    }
    return NULL;
}

static ps_table *add_one(ps_tables *ts, const ps_spec *spec)
{
    ps_table *t = bd_grow(&ts->items, &ts->cap, ts->n + 1, sizeof *ts->items)
                      ? ps_table_new(spec, spec->hidden == PS_HIDDEN_COUNTS ? NULL : ts->budget)
                      : NULL;
    if (t != NULL) {
        ts->items[ts->n++] = t;
    }
    return t;
}

bd_status ps_tables_add(ps_tables *ts, const ps_spec *spec, bd_err *err)
{
    ps_spec hidden;
    ps_table *t = add_one(ts, spec);
    bool ok = t != NULL;
    for (int kind = PS_HIDDEN_FILTER; kind < PS_N_HIDDEN && ok; kind++) {
        if (ps_spec_hidden(spec, (ps_hidden)kind, &hidden)) {
            ps_table *h = add_one(ts, &hidden);
            ps_table_set_hidden(t, (ps_hidden)kind, h);
            ok = h != NULL;
        }
    }
    if (!ok) {
        if (t != NULL) {
            ps_tables_drop_last(ts);
        }
        return bd_err_set(err, BD_E_NOMEM, "table \"%s\": no memory", spec->name);
    }
    return BD_OK;
}

void ps_tables_drop_last(ps_tables *ts)
{
    bool hidden = true;
    while (hidden) {
        ps_table *t = ts->items[--ts->n];
        hidden = ps_table_spec(t)->hidden != PS_NOT_HIDDEN;
        ps_table_free(t);
    }
}

static bool is_hidden(const ps_table *t)
{
    return ps_table_spec(t)->hidden != PS_NOT_HIDDEN;
}

uint64_t ps_tables_n_rows(const ps_tables *ts)
{
    uint64_t n = 0;
    for (size_t i = 0; i < ts->n; i++) {
        n += is_hidden(ts->items[i]) ? 0 : ps_table_n_rows(ts->items[i]);
    }
    return n;
}

uint64_t ps_tables_n_away(const ps_tables *ts)
{
    uint64_t n = 0;
    for (size_t i = 0; i < ts->n; i++) {
        n += is_hidden(ts->items[i]) ? 0 : ps_table_n_away(ts->items[i]);
    }
    return n;
}

uint64_t ps_tables_hash(const ps_tables *ts, uint64_t *n_rows)
{
    uint64_t sum = 0, n = 0;
    *n_rows = 0;
    for (size_t i = 0; i < ts->n; i++) {
        if (!is_hidden(ts->items[i])) {
            sum += ps_table_hash(ts->items[i], &n);
            *n_rows += n;
        }
    }
    return sum;
}
