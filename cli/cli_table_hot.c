/* `braid table hot` on running servers: what each of them says, the hottest of all first. */
#include "base/mem.h"

#include "cli/cli_cmd_table.h"

#include <inttypes.h>
#include <stdlib.h>

static bd_status ask(table_call *c, size_t server, uint32_t table_id, Braid__V1__HotKeysReply **out,
                     bd_err *err)
{
    Braid__V1__HotKeysRequest req;
    ProtobufCMessage *reply = NULL;
    braid__v1__hot_keys_request__init(&req);
    req.table_id = table_id;
    req.max_keys = (uint32_t)c->flags->top;
    bd_status rc = cli_admin_ask(&c->admin, server, "/braid.v1.ParameterServer/HotKeys", &req.base,
                                 &braid__v1__hot_keys_reply__descriptor, &reply, err);
    *out = (void *)reply;
    return rc;
}

typedef struct hot_list {
    Braid__V1__HotKey *items; /* owned */
    size_t n, cap;
    uint64_t pushes;
} hot_list;

static int hottest_first(const void *a, const void *b)
{
    const Braid__V1__HotKey *x = a, *y = b;
    if (x->pushes != y->pushes) {
        return x->pushes < y->pushes ? 1 : -1;
    }
    return x->key < y->key ? -1 : x->key > y->key;
}

static bd_status gather(table_call *c, uint32_t table_id, hot_list *h, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < c->admin.n_servers && rc == BD_OK; i++) {
        Braid__V1__HotKeysReply *r = NULL;
        rc = ask(c, i, table_id, &r, err);
        if (rc == BD_OK && !bd_grow(&h->items, &h->cap, h->n + r->n_keys + 1, sizeof *h->items)) {
            rc = bd_err_set(err, BD_E_NOMEM, "table: no memory");
        }
        for (size_t k = 0; rc == BD_OK && k < r->n_keys; k++) {
            h->items[h->n++] = *r->keys[k]; /* numbers alone */
        }
        h->pushes += rc == BD_OK ? r->pushes : 0;
        px_unpacked_free((void *)r);
    }
    if (h->n > 1) {
        qsort(h->items, h->n, sizeof *h->items, hottest_first);
    }
    return rc;
}

static void print(table_call *c, const hot_list *h, size_t n, bd_json *j)
{
    if (!c->json) {
        (void)fprintf(c->out, "%-22s %12s %8s %12s\n", "key", "pushes", "share", "last step");
    }
    for (size_t i = 0; i < n; i++) {
        char key[32];
        const Braid__V1__HotKey *k = &h->items[i];
        double share = h->pushes == 0 ? 0 : (double)k->pushes / (double)h->pushes;
        (void)snprintf(key, sizeof key, "%" PRIu64, k->key);
        if (c->json) {
            bd_json_obj(j);
            bd_json_put_str(j, "key", key);
            bd_json_put_u64(j, "frequency", k->pushes);
            bd_json_put_f64(j, "share", share);
            bd_json_put_u64(j, "last_step", k->last_step);
            bd_json_obj_end(j);
        } else {
            (void)fprintf(c->out, "%-22s %12" PRIu64 " %7.3f%% %12" PRIu64 "\n", key, k->pushes,
                          100 * share, k->last_step);
        }
    }
}

bd_status cli_table_hot(table_call *c, const table_list *l, bd_err *err)
{
    const Braid__V1__TableInfo *t = NULL;
    hot_list h = {0};
    bd_json j;
    bd_status rc = cli_table_find(l, c->words[0], &t, err);
    if (rc == BD_OK) {
        rc = gather(c, t->table_id, &h, err);
    }
    if (rc != BD_OK) {
        bd_free(h.items);
        return rc;
    }
    bd_json_init(&j);
    bd_json_arr(&j);
    print(c, &h, h.n < (size_t)c->flags->top ? h.n : (size_t)c->flags->top, &j);
    bd_json_arr_end(&j);
    rc = c->json ? cli_table_print_json(c->out, &j, err) : BD_OK;
    bd_json_deinit(&j);
    bd_free(h.items);
    return rc;
}
