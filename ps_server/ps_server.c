#include "ps_server/ps_server.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/http.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "base/rand.h"

#include "ps_server/ps_autograd.h"
#include "ps_server/ps_health.h"
#include "ps_server/ps_metrics.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_service.h"
#include "rpc/rpc_store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define STOP_GRACE_MS    5000
#define REGISTER_TRY_MS  1000
#define REGISTER_TELL_MS 10000
#define STORE_WAIT_MS    20000

struct ps_server {
    char *address;  /* owned */
    char *instance; /* owned; random per start */
    int lock_fd;
    ps_shard *shard;
    ps_coord *coord;  /* server 0, unless the store is etcd */
    rpc_store *store; /* of the others; NULL: coord */
    ps_service *service;
    ps_autograd *autograd;
    ps_health *health;
    rpc_env *env;
    rpc_server *rpc;
    bd_http *http;
};

static bd_status no_memory(bd_err *err)
{
    return bd_err_set(err, BD_E_NOMEM, "start: no memory");
}

/* ---- the folder ---- */
static bd_status make_dirs(const char *path, bd_err *err)
{
    char *copy = bd_strdup(path);
    if (copy == NULL) {
        return no_memory(err);
    }
    bd_status rc = BD_OK;
    for (char *p = copy + 1; rc == BD_OK && *p != '\0'; p++) {
        if (*p == '/') {
            *p = '\0';
            rc = ps_dir_make(copy, err);
            *p = '/';
        }
    }
    if (rc == BD_OK) {
        rc = ps_dir_make(path, err);
    }
    char *slash = strrchr(copy, '/');
    if (rc == BD_OK && slash != NULL && slash != copy) {
        bd_err ignored; /* a parent we may not read was not made by us */
        *slash = '\0';
        (void)!ps_dir_sync(copy, &ignored);
    }
    bd_free(copy);
    return rc;
}

/* One server a folder: a lock the kernel drops when the process ends, however it ends. */
static bd_status lock_folder(ps_server *s, const char *dir, bd_err *err)
{
    char *path = bd_strfmt("%s/LOCK", dir), pid[32] = "";
    if (path == NULL) {
        return no_memory(err);
    }
    bd_status rc = BD_OK;
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->lock_fd < 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "data folder %s cannot be written", dir);
    } else if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        ssize_t n = read(s->lock_fd, pid, sizeof pid - 1);
        pid[n > 0 ? strcspn(pid, "\n") : 0] = '\0';
        rc = bd_err_set(err, BD_E_EXISTS, "data folder %s is in use by another server (pid %s)",
                        dir, pid);
    } else {
        int n = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
        if (ftruncate(s->lock_fd, 0) != 0 || write(s->lock_fd, pid, (size_t)n) != n) {
            rc = bd_err_errno(err, BD_E_IO, errno, "data folder %s cannot be written", dir);
        }
    }
    bd_free(path);
    return rc;
}

/* ---- addresses ---- */
/* The host of "host:port", "[v6]:port" or "host"; *port gets the text after it or NULL. */
static char *split_host(const char *addr, const char **port)
{
    const char *colon = strrchr(addr, ':'), *bracket = strrchr(addr, ']');
    bool has_port = colon != NULL && (bracket == NULL || colon > bracket);
    size_t n = has_port ? (size_t)(colon - addr) : strlen(addr);
    *port = has_port ? colon + 1 : NULL;
    return bd_strfmt("%.*s", (int)n, addr);
}

/* Where clients reach us: the advertised or listened host with the bound port. */
static bd_status find_address(ps_server *s, const ps_options *opt, bd_err *err)
{
    const char *port = NULL, *wanted = opt->advertise[0] == '\0' ? opt->listen : opt->advertise;
    char name[256] = "";
    if (strncmp(opt->listen, "unix:", 5) == 0) {
        s->address = bd_strdup(opt->listen);
        return s->address == NULL ? no_memory(err) : BD_OK;
    }
    char *host = split_host(wanted, &port);
    if (host == NULL) {
        return no_memory(err);
    }
    bool wildcard = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "[::]") == 0 || host[0] == '\0';
    if (wildcard && gethostname(name, sizeof name - 1) != 0) {
        (void)snprintf(name, sizeof name, "localhost");
    }
    bool own_port = opt->advertise[0] == '\0' || port == NULL || strcmp(port, "0") == 0;
    s->address = own_port ? bd_strfmt("%s:%d", wildcard ? name : host, rpc_server_port(s->rpc))
                          : bd_strfmt("%s:%s", wildcard ? name : host, port);
    bd_free(host);
    return s->address == NULL ? no_memory(err) : BD_OK;
}

/* ---- registration ---- */
typedef struct local_call {
    ps_coord_op op;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done; /* under lock */
} local_call;

static void on_local_done(ps_coord_op *op)
{
    local_call *c = (local_call *)(void *)op;
    (void)pthread_mutex_lock(&c->lock);
    c->done = true;
    (void)pthread_cond_signal(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

static bd_status register_here(ps_server *s, const ps_options *opt, bd_err *err)
{
    local_call c = {.op = {.kind = PS_COORD_REGISTER,
                           .done = on_local_done,
                           .index = 0,
                           .n_servers = (uint32_t)opt->servers,
                           .address = s->address}};
    (void)pthread_mutex_init(&c.lock, NULL);
    (void)pthread_cond_init(&c.changed, NULL);
    ps_coord_post(s->coord, &c.op);
    (void)pthread_mutex_lock(&c.lock);
    while (!c.done) {
        (void)pthread_cond_wait(&c.changed, &c.lock);
    }
    (void)pthread_mutex_unlock(&c.lock);
    (void)pthread_cond_destroy(&c.changed);
    (void)pthread_mutex_destroy(&c.lock);
    if (c.op.rc == BD_OK) {
        ps_service_set_map_epoch(s->service, c.op.id);
    } else if (err != NULL) {
        *err = c.op.err;
    }
    return c.op.rc;
}

/* main blocks these signals and takes them only when we serve; a start that waits for others must
 * not outlast them. */
static bool asked_to_stop(void)
{
    sigset_t pending;
    (void)sigemptyset(&pending);
    (void)sigpending(&pending);
    return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
}

static bd_status try_register(ps_server *s, const ps_options *opt, bd_err *err)
{
    uint64_t epoch = 0;
    const rpc_server_entry e = {.index = (uint32_t)opt->index,
                                .n_servers = (uint32_t)opt->servers,
                                .address = s->address,
                                .instance = s->instance};
    bd_status rc = s->store->register_server(s->store, &e, &epoch, err);
    if (rc == BD_OK) {
        ps_service_set_map_epoch(s->service, epoch);
    }
    return rc;
}

static bool may_come(bd_status rc)
{
    return rc == BD_E_UNAVAILABLE || rc == BD_E_TIMEOUT;
}

static bool has_store(const ps_options *opt)
{
    return opt->store != NULL && opt->store[0] != '\0';
}

static const char *store_url(const ps_options *opt)
{
    return has_store(opt) ? opt->store : opt->coordinator;
}

static void tell_who_is_missing(const ps_options *opt, int64_t waited_ms, const bd_err *err)
{
    BD_LOG(WARN, "waiting for server 0, the coordinator", "address", store_url(opt), "seconds",
           waited_ms / 1000, "error", bd_err_text(err));
}

/* Server 0 may come minutes later (its pod is being placed, its journal replayed, its name not yet
 * in DNS): tries until register_wait is over and says now and then who is missing. */
static bd_status register_there(ps_server *s, const ps_options *opt, bd_err *err)
{
    int64_t start_ms = bd_mono_ns() / BD_NS_PER_MS, told_ms = start_ms, left_ms;
    bd_status rc;
    do {
        int64_t now_ms = bd_mono_ns() / BD_NS_PER_MS;
        left_ms = opt->register_wait - (now_ms - start_ms);
        s->store->wait_ms = left_ms > REGISTER_TRY_MS ? REGISTER_TRY_MS : left_ms;
        rc = try_register(s, opt, err);
        if (may_come(rc) && asked_to_stop()) {
            rc = bd_err_set(err, BD_E_CANCELLED, "stopped before the coordinator answered");
        } else if (may_come(rc) && now_ms - told_ms >= REGISTER_TELL_MS) {
            told_ms = now_ms;
            tell_who_is_missing(opt, now_ms - start_ms, err);
        }
    } while (may_come(rc) && left_ms > REGISTER_TRY_MS);
    s->store->wait_ms = STORE_WAIT_MS;
    return rc == BD_OK ? rc : bd_err_wrap(err, "register at %s", store_url(opt));
}

/* ---- start ---- */
/* The budget of memory: the option, or what the control group leaves. 0: none. */
static bd_status find_budget(const ps_options *opt, size_t *bytes, bd_err *err)
{
    *bytes = (size_t)opt->memory_budget;
    if (*bytes == 0) {
        *bytes = bd_cgroup_memory_bytes("") / 5 * 4;
    }
    if (*bytes != 0 && *bytes < PS_BUDGET_MIN_BYTES) {
        return bd_err_set(
            err, BD_E_INVALID,
            "memory_budget (or four fifths of the control group's limit) is %zu bytes; "
            "a server needs at least %u",
            *bytes, PS_BUDGET_MIN_BYTES);
    }
    if (*bytes != 0) {
        BD_LOG(INFO, "memory is limited: rows that do not fit stay on the disk", "bytes", *bytes);
    }
    return BD_OK;
}

static bd_status open_parts(ps_server *s, const ps_options *opt, bd_err *err)
{
    const ps_progress progress = {.tell = ps_health_tell, .user = s->health};
    ps_shard_options so = {.data_dir = opt->data_dir,
                           .restore_from = opt->restore_from,
                           .index = (uint32_t)opt->index,
                           .n_servers = (uint32_t)opt->servers,
                           .journal_cap_bytes = (size_t)opt->journal_cap,
                           .stage_bytes = (size_t)opt->staged_limit,
                           .bound_wait_ms = opt->bound_wait,
                           .keep_tombstones = (size_t)opt->keep_tombstones,
                           .progress = &progress,
                           .salvage = opt->salvage};
    ps_service_options vo = {.instance = s->instance, .health = s->health};
    bd_status rc = find_budget(opt, &so.memory_bytes, err);
    if (rc == BD_OK) {
        rc = ps_shard_open(&so, &s->shard, err);
    }
    ps_health_tell(s->health, "its rows are there; the cluster does not know it yet");
    if (rc == BD_OK && opt->index == 0 && !has_store(opt)) {
        rc = ps_coord_new(ps_shard_journal(s->shard), so.n_servers, &s->coord, err);
    }
    if (rc == BD_OK) {
        rc = ps_shard_start(s->shard, err);
    }
    if (rc == BD_OK) {
        rc = ps_service_new(&vo, s->shard, s->coord, &s->service, err);
    }
    return rc;
}

static bd_status serve_autograd(ps_server *s, const ps_options *opt, bd_err *err)
{
    ps_autograd_options ao = {.index = (uint32_t)opt->index, .lease_ms = opt->autograd_lease};
    bd_status rc = ps_autograd_new(s->env, s->service, s->shard, &ao, &s->autograd, err);
    if (rc != BD_OK) {
        return rc;
    }
    ps_service_set_autograd(s->service, s->autograd);
    rc = ps_autograd_serve(s->autograd, s->rpc);
    return rc == BD_OK ? BD_OK : bd_err_set(err, rc, "register the services");
}

/* Where the cluster's state is, when not here. What etcd keeps, every server gives to clients that
 * only know a server. */
static bd_status open_store(ps_server *s, const ps_options *opt, bd_err *err)
{
    const rpc_store_options so = {.wait_ms = STORE_WAIT_MS, .allow_insecure = opt->allow_insecure};
    bd_status rc = rpc_store_open(s->env, store_url(opt), &so, &s->store, err);
    return rc == BD_OK && has_store(opt) ? rpc_store_serve(s->rpc, s->store, err) : rc;
}

static bd_status serve(ps_server *s, const ps_options *opt, bd_err *err)
{
    rpc_security_options sec = opt->security;
    sec.require_client_cert =
        opt->tls_client_auth != NULL && strcmp(opt->tls_client_auth, "require") == 0;
    sec.allow_insecure = opt->allow_insecure;
    /* Lookups are answered on the queues' threads, so their number follows the cores (rpc keeps it
     * within its limits); the other half is the journal's, the keeper's and the kernel's. */
    int queues = bd_cpus() / 2;
    rpc_env_options eo = {
        .n_queues = queues > 0 ? queues : 1, .n_workers = (int)opt->threads, .security = &sec};
    rpc_server_options ro = {
        .listen = opt->listen,
        .allow_insecure = opt->allow_insecure,
        .limits = {.max_connections = opt->max_connections > 0 ? (int)opt->max_connections : -1,
                   .max_bytes = (size_t)opt->max_bytes_in_flight,
                   .max_requests_per_s = opt->max_requests_per_second}};
    bd_status rc = rpc_env_new(&eo, &s->env, err);
    if (rc == BD_OK) {
        rc = rpc_server_new(s->env, &ro, &s->rpc, err);
    }
    if (rc == BD_OK) {
        ps_shard_set_env(s->shard, s->env, opt->allow_insecure);
        rc = ps_service_register(s->service, s->rpc, err);
    }
    if (rc == BD_OK && s->coord == NULL) {
        rc = open_store(s, opt, err);
    }
    if (rc == BD_OK) {
        rc = serve_autograd(s, opt, err);
    }
    if (rc == BD_OK) {
        rc = rpc_server_start(s->rpc, err);
    }
    if (rc == BD_OK) {
        rc = find_address(s, opt, err);
    }
    if (rc == BD_OK && opt->metrics_listen[0] != '\0') {
        const ps_metrics_limits limits = {opt->data_dir, opt->journal_cap,
                                          (int64_t)ps_shard_stage_bytes(s->shard)};
        ps_metrics_register(&limits);
    }
    return rc;
}

static bd_status check_options(const ps_options *opt, bd_err *err)
{
    if (opt->index >= opt->servers) {
        return bd_err_set(err, BD_E_USAGE, "index %" PRId64 " of %" PRId64 " servers", opt->index,
                          opt->servers);
    }
    if (has_store(opt) && !rpc_store_is_etcd(opt->store)) {
        return bd_err_set(err, BD_E_USAGE, "store \"%.200s\": not etcd://HOST:PORT[,HOST:PORT...]",
                          opt->store);
    }
    if (opt->index != 0 && store_url(opt)[0] == '\0') {
        return bd_err_set(err, BD_E_USAGE,
                          "coordinator: server %" PRId64 " needs the address of server 0",
                          opt->index);
    }
    return BD_OK;
}

bd_status ps_server_start(const ps_options *opt, ps_server **out, bd_err *err)
{
    bd_err ignored;
    bd_status rc = check_options(opt, err);
    if (rc != BD_OK) {
        return rc;
    }
    ps_server *s = bd_calloc(1, sizeof *s);
    if (s == NULL) {
        return no_memory(err);
    }
    s->lock_fd = -1;
    s->instance = bd_strfmt("%016" PRIx64, bd_mix64((uint64_t)bd_wall_ns() ^ (uint64_t)getpid()));
    rc = s->instance == NULL ? no_memory(err) : make_dirs(opt->data_dir, err);
    if (rc == BD_OK) {
        rc = lock_folder(s, opt->data_dir, err);
    }
    if (rc == BD_OK) { /* before the rows are loaded, which may take long */
        rc = ps_health_new(opt->health_listen, &s->health, err);
    }
    if (rc == BD_OK && opt->metrics_listen[0] != '\0') {
        rc = bd_http_start(opt->metrics_listen, ps_health_is_serving, s->health, &s->http, err);
    }
    if (rc == BD_OK) {
        rc = open_parts(s, opt, err);
    }
    if (rc == BD_OK) {
        rc = serve(s, opt, err);
    }
    if (rc == BD_OK) {
        rc = s->coord != NULL ? register_here(s, opt, err) : register_there(s, opt, err);
    }
    if (rc != BD_OK) {
        (void)!ps_server_stop(s, &ignored);
        return rc;
    }
    ps_metrics_update(s->shard); /* ready: then the page tells of the rows that were loaded */
    ps_health_follow(s->health, s->rpc);
    ps_health_set_ready(s->health, true);
    BD_LOG(INFO, "serving", "address", s->address, "index", opt->index, "servers", opt->servers,
           "instance", s->instance);
    *out = s;
    return BD_OK;
}

const char *ps_server_address(const ps_server *s)
{
    return s->address;
}

bd_status ps_server_stop(ps_server *s, bd_err *err)
{
    bd_status rc = BD_OK;
    if (s->health != NULL) {
        ps_health_set_ready(s->health, false);
        ps_health_follow(s->health, NULL);
    }
    if (s->shard != NULL) {
        rc = ps_shard_stop(s->shard, err); /* answers the parked, refuses the new, writes back */
    }
    if (s->coord != NULL) {
        ps_coord_stop(s->coord);
    }
    bd_http_stop(s->http);
    if (s->rpc != NULL) {
        rpc_server_stop(s->rpc, STOP_GRACE_MS);
        rpc_server_free(s->rpc);
    }
    rpc_store_free(s->store);
    ps_service_free(s->service);
    ps_autograd_free(s->autograd);
    if (s->env != NULL) {
        rpc_env_free(s->env);
    }
    ps_coord_free(s->coord);
    ps_shard_close(s->shard);
    ps_health_free(s->health);
    if (s->lock_fd >= 0) {
        (void)close(s->lock_fd);
    }
    bd_free(s->address);
    bd_free(s->instance);
    bd_free(s);
    return rc;
}
