/* Connect, jobs, errors, versions. */
#include "base/log.h"
#include "base/mem.h"

#include "client/abi/abi_int.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#define BRAID_AGAIN BD_AGAIN /* never returned: it is not in the header */
#define BD_X(name, num, text) \
    _Static_assert((int)BRAID_##name == (int)BD_##name, "braid.h and base/status.h must agree");
BD_STATUS_MAP(BD_X)
#undef BD_X
_Static_assert(sizeof(braid_error) == 512, "part of the ABI");

#define KEPT_BLOCK_BYTES (32 << 20) /* glibc's largest threshold for mmap */

static pthread_once_t log_once = PTHREAD_ONCE_INIT;
static pthread_once_t heap_once = PTHREAD_ONCE_INIT;

const char *braid_version(void)
{
    return BRAID_VERSION;
}

int braid_abi_version(void)
{
    return BRAID_ABI_VERSION;
}

const char *braid_status_name(int status)
{
    return bd_status_name(status);
}

const char *braid_status_text(int status)
{
    return bd_status_text(status);
}

/* A library is quiet unless its user wants otherwise. */
static void default_log_level(void)
{
    bd_log_set_level(BD_LOG_WARN);
}

/* Process-wide, so only when asked for; glibc locks inside. */
static void keep_heap(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES); /* NOLINT(concurrency-mt-unsafe) */
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 30);          /* NOLINT(concurrency-mt-unsafe) */
}

int braid_log_level(const char *level)
{
    int l = level != NULL ? bd_log_level_parse(level) : -1;
    (void)pthread_once(&log_once, default_log_level);
    if (l < 0) {
        return BRAID_E_INVALID;
    }
    bd_log_set_level((bd_log_level)l);
    return BRAID_OK;
}

int abi_done(bd_status rc, const bd_err *from, braid_error *to)
{
    if (to != NULL) {
        to->status = rc;
        (void)snprintf(to->text, sizeof to->text, "%s",
                       rc == BD_OK             ? ""
                       : from->text[0] == '\0' ? bd_status_text(rc)
                                               : from->text);
    }
    return rc;
}

bd_status abi_take_options(void *to, size_t to_bytes, const void *from, const char *what,
                           bd_err *err)
{
    size_t size = 0;
    if (from == NULL) {
        (void)bd_err_set(err, BD_E_INVALID, "%s: NULL", what);
        return BD_E_INVALID;
    }
    memcpy(&size, from, sizeof size);
    if (size < 2 * sizeof size || size > 4096) {
        (void)bd_err_set(err, BD_E_INVALID, "%s: size %zu (start from the _INIT macro)", what,
                         size);
        return BD_E_INVALID;
    }
    for (size_t i = to_bytes; i < size; i++) {
        if (((const unsigned char *)from)[i] != 0) {
            (void)bd_err_set(err, BD_E_UNSUPPORTED,
                             "%s: an option of a newer header than this library, %s", what,
                             BRAID_VERSION);
            return BD_E_UNSUPPORTED;
        }
    }
    memset(to, 0, to_bytes);
    memcpy(to, from, size < to_bytes ? size : to_bytes);
    return BD_OK;
}

static bd_status check_options(braid_options *o, bd_err *err)
{
    o->world = o->world == 0 ? 1 : o->world;
    if (o->coordinator == NULL || o->coordinator[0] == '\0') {
        return bd_err_set(err, BD_E_INVALID, "connect: no coordinator (host:port of server 0)");
    }
    if (o->world < 1 || o->rank < 0 || o->rank >= o->world) {
        return bd_err_set(err, BD_E_INVALID, "connect: rank %d of world %d", o->rank, o->world);
    }
    if (o->consistency < BRAID_ASYNC || o->consistency > BRAID_BOUNDED) {
        return bd_err_set(err, BD_E_INVALID, "connect: consistency %d", o->consistency);
    }
    if (o->staleness < 0 || (o->staleness != 0 && o->consistency != BRAID_BOUNDED)) {
        return bd_err_set(err, BD_E_INVALID, "connect: staleness %lld of consistency %d",
                          (long long)o->staleness, o->consistency);
    }
    if (o->steps_in_flight < 0 || o->steps_in_flight > 1 ||
        (o->steps_in_flight == 1 && o->consistency == BRAID_SYNC)) {
        return bd_err_set(err, BD_E_INVALID, "connect: steps_in_flight %d of consistency %d",
                          o->steps_in_flight, o->consistency);
    }
    if (o->reduce != BRAID_REDUCE_SUM && o->reduce != BRAID_REDUCE_MEAN) {
        return bd_err_set(err, BD_E_INVALID, "connect: reduce %d", o->reduce);
    }
    if (o->pooling < BRAID_POOL_AUTO || o->pooling > BRAID_POOL_SERVER) {
        return bd_err_set(err, BD_E_INVALID, "connect: pooling %d", o->pooling);
    }
    return BD_OK;
}

static cl_consistency consistency_of(int c)
{
    return c == BRAID_SYNC ? CL_SYNC : c == BRAID_BOUNDED ? CL_BOUNDED : CL_ASYNC;
}

static bd_status set_up(braid_client *c, const braid_options *o, bd_err *err)
{
    const rpc_security_options security = {.ca_file = o->tls_ca,
                                           .cert_file = o->tls_cert,
                                           .key_file = o->tls_key,
                                           .server_name = o->tls_server_name,
                                           .token_file = o->token_file};
    rpc_env_options env = {.n_queues = 2, .n_threads = 1, .n_workers = 1, .security = &security};
    cl_options opt = {.coordinator = o->coordinator,
                      .name = o->name,
                      .connect_wait_ms = o->connect_wait_ms,
                      .ps_wait_ms = o->ps_wait_ms,
                      .part_bytes = o->part_bytes,
                      .pooling = (cl_pooling)o->pooling, /* the same numbers */
                      .wire_rows = o->wire_rows,
                      .wire_grads = o->wire_grads,
                      .wire_codec = o->wire_codec,
                      .push_ahead = o->steps_in_flight == 1};
    c->job =
        (cl_job){.rank = o->rank, .world = o->world, .consistency = consistency_of(o->consistency)};
    c->staleness = (uint64_t)o->staleness;
    c->is_ahead = o->steps_in_flight == 1;
    c->next_step = o->next_step == 0 ? 1 : o->next_step;
    c->grad_scale = o->reduce == BRAID_REDUCE_MEAN ? 1.0f / (float)o->world : 1.0f;
    if (o->restore != NULL) {
        c->restore = bd_strdup(o->restore);
        if (c->restore == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "connect");
        }
    }
    bd_status rc = rpc_env_new(&env, &c->env, err);
    return rc == BD_OK ? cl_client_new(c->env, &opt, &c->cl, err) : rc;
}

int braid_connect(const braid_options *options, braid_client **client, braid_error *err)
{
    braid_options o;
    bd_err e = BD_ERR_INIT;
    braid_client *c = NULL;
    (void)pthread_once(&log_once, default_log_level);
    bd_status rc = abi_take_options(&o, sizeof o, options, "braid_options", &e);
    if (rc == BD_OK) {
        rc = check_options(&o, &e);
    }
    if (rc == BD_OK) {
        c = bd_calloc(1, sizeof *c);
        if (c == NULL) {
            (void)bd_err_set(&e, BD_E_NOMEM, "connect");
            return abi_done(BD_E_NOMEM, &e, err);
        }
        (void)pthread_mutex_init(&c->lock, NULL);
        if (o.keep_heap != 0) {
            (void)pthread_once(&heap_once, keep_heap);
        }
        rc = set_up(c, &o, &e);
    }
    if (rc != BD_OK) {
        braid_close(c);
        return abi_done(rc, &e, err);
    }
    *client = c;
    return abi_done(BD_OK, &e, err);
}

void braid_close(braid_client *client)
{
    if (client == NULL) {
        return;
    }
    bd_err e = BD_ERR_INIT;
    if (client->cl != NULL && abi_wait(client, &e) != BD_OK) {
        BD_LOG(WARN, "the last step was not applied", "why", bd_err_text(&e));
    }
    abi_rrefs_free(client);
    cl_client_free(client->cl);
    if (client->env != NULL) {
        rpc_env_free(client->env);
    }
    abi_tables_free(client);
    bd_free(client->restore);
    (void)pthread_mutex_destroy(&client->lock);
    bd_free(client);
}

size_t braid_n_servers(const braid_client *client)
{
    return cl_client_n_servers(client->cl);
}

uint64_t abi_last_step(const braid_client *c)
{
    return c->next_step - 1;
}

uint64_t abi_after_step(const braid_client *c)
{
    uint64_t last = abi_last_step(c);
    if (c->job.epoch == 0 || c->job.consistency == CL_ASYNC) {
        return 0;
    }
    return c->job.consistency == CL_SYNC ? last : last > c->staleness ? last - c->staleness : 0;
}

uint64_t braid_last_step(braid_client *client)
{
    (void)pthread_mutex_lock(&client->lock);
    uint64_t step = abi_last_step(client);
    (void)pthread_mutex_unlock(&client->lock);
    return step;
}

bd_status abi_enter_job(braid_client *c, bd_err *err)
{
    cl_job job = c->job;
    if (job.epoch != 0) {
        return BD_OK;
    }
    if (job.rank != 0) {
        return bd_err_set(err, BD_E_STATE,
                          "rank %d is in no job: braid_job_join with the epoch of rank 0",
                          job.rank);
    }
    bd_status rc = cl_job_next_epoch(c->cl, &job.epoch, err);
    if (rc == BD_OK) {
        rc = cl_job_open(c->cl, &job, c->restore, c->next_step, err);
    }
    if (rc == BD_OK) {
        cl_job_join(c->cl, &job);
        c->job = job;
    }
    return rc;
}

int braid_job_open(braid_client *client, uint64_t *epoch, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    (void)pthread_mutex_lock(&client->lock);
    bd_status rc = client->job.rank == 0
                       ? abi_enter_job(client, &e)
                       : bd_err_set(&e, BD_E_STATE, "rank %d cannot open a job, only rank 0",
                                    client->job.rank);
    if (rc == BD_OK && epoch != NULL) {
        *epoch = client->job.epoch;
    }
    (void)pthread_mutex_unlock(&client->lock);
    return abi_done(rc, &e, err);
}

int braid_job_join(braid_client *client, uint64_t epoch, braid_error *err)
{
    bd_err e = BD_ERR_INIT;
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&client->lock);
    if (epoch == 0) {
        rc = bd_err_set(&e, BD_E_INVALID, "job epoch 0");
    } else if (client->job.epoch != 0) {
        rc = bd_err_set(&e, BD_E_STATE, "already in job epoch %llu",
                        (unsigned long long)client->job.epoch);
    } else {
        client->job.epoch = epoch;
        cl_job_join(client->cl, &client->job);
    }
    (void)pthread_mutex_unlock(&client->lock);
    return abi_done(rc, &e, err);
}
