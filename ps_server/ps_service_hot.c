/* HotKeys: the keys of a running server that were pushed most. */
#include "base/mem.h"

#include "ps_server/ps_hot.h"
#include "ps_server/ps_service_int.h"

#include "braid/v1/parameter_server.pb-c.h"

#define DEFAULT_KEYS 20u

static void answer(ps_call *c, const ps_hot *h)
{
    Braid__V1__HotKeysReply r;
    bd_err err;
    braid__v1__hot_keys_reply__init(&r);
    Braid__V1__HotKey *keys = bd_arena_calloc(&c->arena, h->n + 1, sizeof *keys);
    r.keys = bd_arena_calloc(&c->arena, h->n + 1, sizeof(Braid__V1__HotKey *));
    if (keys == NULL || r.keys == NULL) {
        (void)bd_err_set(&err, BD_E_NOMEM, "hot keys: no memory");
        ps_call_fail(c, &err);
        return;
    }
    for (size_t i = 0; i < h->n; i++) {
        braid__v1__hot_key__init(&keys[i]);
        keys[i].key = h->items[i].key;
        keys[i].pushes = h->items[i].freq;
        keys[i].last_step = h->items[i].last_step;
        r.keys[r.n_keys++] = &keys[i];
    }
    r.n_rows = h->n_rows;
    r.pushes = h->pushes;
    ps_call_reply_message(c, &r.base);
}

void ps_on_hot_keys(void *service, rpc_req *req)
{
    ps_call *c = ps_call_new(service, req);
    Braid__V1__HotKeysRequest *m =
        c == NULL ? NULL : ps_call_unpack(c, &braid__v1__hot_keys_request__descriptor);
    if (m == NULL) {
        return;
    }
    ps_hot h = {0};
    bd_err err;
    uint32_t id = m->table_id, most = m->max_keys == 0 ? DEFAULT_KEYS : m->max_keys;
    px_unpacked_free(&m->base);
    bd_status rc =
        most > PS_HOT_MAX
            ? bd_err_set(&err, BD_E_INVALID, "hot keys: %u of them, at most %u", most, PS_HOT_MAX)
            : BD_OK;
    if (rc == BD_OK && !ps_hot_init(&h, most)) {
        rc = bd_err_set(&err, BD_E_NOMEM, "hot keys: no memory");
    }
    if (rc == BD_OK) {
        const ps_tables *ts = ps_shard_lock_tables(c->service->shard);
        ps_table *t = ps_tables_find(ts, id);
        rc = t == NULL || ps_table_spec(t)->hidden != PS_NOT_HIDDEN
                 ? bd_err_set(&err, BD_E_NOT_FOUND, "no table with id %u", id)
                 : BD_OK;
        if (rc == BD_OK) {
            ps_table_hot(t, &h);
        }
        ps_shard_unlock_tables(c->service->shard);
    }
    if (rc == BD_OK) {
        ps_hot_sort(&h);
        answer(c, &h);
    } else {
        ps_call_fail(c, &err);
    }
    ps_hot_deinit(&h);
}
