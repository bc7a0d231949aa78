#include "base/log.h"
#include "base/mem.h"
#include "base/num/dtype.h"
#include "base/rand.h"

#include "client/cl_int.h"
#include "proto/px_rows.h"

#include <errno.h>
#include <sys/random.h>

#define CONNECT_WAIT_MS 30000
#define PS_WAIT_MS      120000
#define PART_BYTES      ((size_t)1 << 20)

static int64_t or_default(int64_t v, int64_t def)
{
    return v > 0 ? v : def;
}

uint64_t cl_client_random(cl_client *c)
{
    return bd_rand_u64(c->op_seed, 0,
                       atomic_fetch_add_explicit(&c->n_ops, 1, memory_order_relaxed));
}

static bd_status set_wire(cl_client *c, const cl_options *opt, bd_err *err)
{
    const char *codec = opt->wire_codec != NULL ? opt->wire_codec : "none";
    const char *names[2] = {opt->wire_rows, opt->wire_grads};
    int32_t *to[2] = {&c->wire_rows, &c->wire_grads};
    for (int i = 0; i < 2; i++) {
        const char *name = names[i] != NULL ? names[i] : "f32";
        int dtype = num_dtype_parse(name);
        *to[i] = dtype == NUM_F32 ? 0 : px_dtype_wire(dtype); /* the plain form says nothing */
        if (*to[i] < 0) {
            return bd_err_set(err, BD_E_UNSUPPORTED,
                              "rows do not travel as \"%.32s\"; f32, f16, bf16, i8 do", name);
        }
    }
    c->wire_codec = num_codec_parse(codec);
    return c->wire_codec >= 0
               ? BD_OK
               : bd_err_set(err, BD_E_UNSUPPORTED,
                            "codec \"%.32s\" is not known; there are none, lz4, zstd", codec);
}

static bd_status setup(cl_client *c, const cl_options *opt, bd_err *err)
{
    c->connect_wait_ms = or_default(opt->connect_wait_ms, CONNECT_WAIT_MS);
    c->ps_wait_ms = or_default(opt->ps_wait_ms, PS_WAIT_MS);
    c->part_bytes = opt->part_bytes > 0 ? opt->part_bytes : PART_BYTES;
    c->pooling = opt->pooling;
    c->push_ahead = opt->push_ahead;
    bd_status rc = set_wire(c, opt, err);
    if (rc != BD_OK) {
        return rc;
    }
    c->name = bd_strdup(opt->name != NULL ? opt->name : "client");
    c->borrows = cl_borrows_new();
    c->pool = cl_pool_new();
    if (c->name == NULL || c->borrows == NULL || c->pool == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "client");
    }
    /* Op ids must differ between processes and starts; unlike the model's numbers, they are no
     * function of a seed. */
    if (getrandom(&c->op_seed, sizeof c->op_seed, 0) != (ssize_t)sizeof c->op_seed) {
        return bd_err_errno(err, BD_E_IO, errno, "getrandom");
    }
    c->store_apart = rpc_store_is_etcd(opt->coordinator);
    const rpc_store_options store = {.wait_ms = c->connect_wait_ms, .allow_insecure = true};
    return rpc_store_open(c->env, opt->coordinator, &store, &c->store, err);
}

bd_status cl_client_new(rpc_env *env, const cl_options *opt, cl_client **out, bd_err *err)
{
    cl_client *c = bd_calloc(1, sizeof *c);
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "client");
    }
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_mutex_init(&c->push_lock, NULL);
    c->env = env;
    bd_status rc = setup(c, opt, err);
    if (rc == BD_OK) {
        rc = c->store->client_id(c->store, rpc_store_op_id(), c->name, &c->id, err);
    }
    if (rc == BD_OK) {
        rc = cl_map_refresh(c, 0, c->connect_wait_ms, err);
        if (rc == BD_E_TIMEOUT) {
            rc = bd_err_wrap(err, "not all servers have registered");
        }
    }
    if (c->store != NULL) {
        c->store->wait_ms = c->ps_wait_ms;
    }
    if (rc == BD_OK) {
        c->sequences = bd_calloc(c->n_servers, sizeof *c->sequences);
        rc = c->sequences != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "client");
    }
    if (rc != BD_OK) {
        cl_client_free(c);
        return rc;
    }
    *out = c;
    return BD_OK;
}

void cl_client_free(cl_client *c)
{
    bd_err err = BD_ERR_INIT;
    if (c == NULL) {
        return;
    }
    cl_batch_deinit(&c->commit);
    cl_push_deinit(c);
    cl_links_free(c);
    if (c->borrows != NULL && cl_borrows_wait(c->borrows, &err) != BD_OK) {
        BD_LOG(ERROR, "client ends", "why", bd_err_text(&err));
    }
    cl_borrows_unref(c->borrows);
    cl_pool_unref(c->pool);
    rpc_store_free(c->store);
    cl_map_unref(c->map);
    bd_free(c->sequences);
    bd_free(c->name);
    (void)pthread_mutex_destroy(&c->push_lock);
    (void)pthread_mutex_destroy(&c->lock);
    bd_free(c);
}

bd_kv *cl_client_kv(cl_client *c)
{
    return c->store->kv;
}

uint64_t cl_client_id(const cl_client *c)
{
    return c->id;
}

size_t cl_client_n_servers(const cl_client *c)
{
    return c->n_servers;
}

cl_job cl_client_job(cl_client *c)
{
    (void)pthread_mutex_lock(&c->lock);
    cl_job job = c->job;
    (void)pthread_mutex_unlock(&c->lock);
    return job;
}

void cl_job_join(cl_client *c, const cl_job *job)
{
    (void)pthread_mutex_lock(&c->lock);
    c->job = *job;
    (void)pthread_mutex_unlock(&c->lock);
}
