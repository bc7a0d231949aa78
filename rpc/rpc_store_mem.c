/* The store of one process: bd_kv_mem with a memory of op ids. */
#include "base/mem.h"

#include "rpc/rpc_store_int.h"

#include <pthread.h>

enum { N_MEMOS = 4096 };

typedef struct memo {
    uint64_t op_id;
    int64_t result;
} memo;

typedef struct mem_store {
    rpc_store store; /* first: the pointers are the same */
    pthread_mutex_t lock;
    memo memos[N_MEMOS]; /* a ring; under lock */
    size_t n_memos;
} mem_store;

static mem_store *of(rpc_store *s)
{
    return (mem_store *)(void *)s;
}

static const memo *find_locked(const mem_store *m, uint64_t op_id)
{
    for (size_t i = 0; i < N_MEMOS; i++) {
        if (m->memos[i].op_id == op_id) {
            return &m->memos[i];
        }
    }
    return NULL;
}

static void keep_locked(mem_store *m, uint64_t op_id, int64_t result)
{
    m->memos[m->n_memos++ % N_MEMOS] = (memo){op_id, result};
}

static bd_status mem_add(rpc_store *s, uint64_t op_id, const char *key, int64_t by, int64_t *after,
                         bd_err *err)
{
    mem_store *m = of(s);
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&m->lock);
    const memo *known = find_locked(m, op_id);
    if (known != NULL) {
        *after = known->result;
    } else {
        rc = s->kv->add(s->kv, key, by, after, err);
    }
    if (known == NULL && rc == BD_OK) {
        keep_locked(m, op_id, *after);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static bd_status mem_swap(rpc_store *s, uint64_t op_id, const char *key, const char *expected,
                          const char *desired, bool *swapped, bd_err *err)
{
    mem_store *m = of(s);
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&m->lock);
    const memo *known = find_locked(m, op_id);
    if (known != NULL) {
        *swapped = known->result != 0;
    } else {
        rc = s->kv->compare_set(s->kv, key, expected, desired, swapped, err);
    }
    if (known == NULL && rc == BD_OK) {
        keep_locked(m, op_id, *swapped);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return rc;
}

static void mem_free(rpc_store *s)
{
    bd_kv_mem_free(s->kv);
    (void)pthread_mutex_destroy(&of(s)->lock);
    bd_free(s);
}

rpc_store *rpc_store_mem(void)
{
    mem_store *m = bd_calloc(1, sizeof *m);
    bd_kv *kv = m == NULL ? NULL : bd_kv_mem_new();
    if (kv == NULL) {
        bd_free(m);
        return NULL;
    }
    (void)pthread_mutex_init(&m->lock, NULL);
    m->store = (rpc_store){.kv = kv, .add_once = mem_add, .swap_once = mem_swap, .free = mem_free};
    rpc_store_over_kv(&m->store);
    return &m->store;
}
