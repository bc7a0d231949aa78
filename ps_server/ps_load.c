/* Rows come from the store into memory at a start or a restore: see ps_shard_int.h. */
#include "base/clock.h"
#include "base/log.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_shard_int.h"

#include <inttypes.h>
#include <stdio.h>

#define LOG_EVERY_NS    (2 * BD_NS_PER_S)
#define TELL_EVERY_ROWS 65536

typedef struct loader {
    const ps_tables *tables;
    const ps_progress *progress; /* NULL: nobody asks */
    uint64_t n;
    int64_t logged_ns;
} loader;

static void tell_loaded(const loader *l)
{
    char line[64];
    if (l->progress != NULL) {
        (void)snprintf(line, sizeof line, "loading rows: %" PRIu64 " so far", l->n);
        l->progress->tell(l->progress->user, line);
    }
}

static bd_status load_row(void *user, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                          size_t value_bytes, bd_err *err)
{
    loader *l = user;
    if (key_bytes != PS_ENTRY_KEY_BYTES) {
        return bd_err_set(err, BD_E_CORRUPT, "a stored row has a key of %zu bytes", key_bytes);
    }
    ps_table *t = ps_tables_find(l->tables, ps_get_be32(key));
    if (t == NULL) {
        return bd_err_set(err, BD_E_CORRUPT, "a stored row belongs to unknown table %u",
                          ps_get_be32(key));
    }
    l->n++;
    if (l->n % TELL_EVERY_ROWS == 0) {
        tell_loaded(l);
    }
    if (l->n % 4096 == 0 && bd_mono_ns() - l->logged_ns > LOG_EVERY_NS) {
        l->logged_ns = bd_mono_ns();
        BD_LOG(INFO, "loading rows", "rows", l->n);
    }
    return ps_table_load(t, key, key_bytes, value, value_bytes, err);
}

/* Tables that do not fit memory together share it by what each would need; else those with the first
 * ids would have all of it. */
static void share_memory(ps_store *store, const ps_tables *ts)
{
    double sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < ts->n; i++) {
            ps_table *t = ts->items[i];
            if (!ps_table_is_limited(t)) { /* of none, or one that is always in memory */
                continue;
            }
            uint64_t stored = ps_store_table_bytes(store, ps_table_spec(t)->id);
            double need = (double)stored / (double)(PS_ENTRY_KEY_BYTES + ps_table_value_bytes(t)) *
                          (double)ps_table_memory_bytes(t);
            double has = (double)ts->budget->rows_bytes;
            sum += pass == 0 ? need : 0;
            if (pass == 1 && sum > has) {
                ps_table_limit_load(t, (size_t)(has * need / sum));
            }
        }
    }
}

bd_status ps_load_rows(ps_store *store, const ps_tables *ts, const ps_progress *progress,
                       bd_err *err)
{
    loader l = {.tables = ts, .progress = progress, .logged_ns = bd_mono_ns()};
    tell_loaded(&l);
    share_memory(store, ts);
    return ps_store_each(store, load_row, &l, err);
}
