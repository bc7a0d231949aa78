#include "ps_server/ps_health.h"

#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_metrics.h"

#include <pthread.h>
#include <stdio.h>

struct ps_health {
    rpc_env *env;     /* owned; NULL: no port */
    rpc_server *port; /* owned */
    pthread_mutex_t lock;
    bool ready, draining;    /* under lock */
    char doing[96];          /* under lock; "": nothing was told since it was ready */
    char failed[256];        /* under lock; "": it has not */
    rpc_server *main_server; /* borrowed; under lock */
};

/* Tells the port and the main server. Under the lock, so that two changes cannot overtake each
 * other on their way out. */
static void publish_locked(ps_health *h)
{
    bool serving = h->ready && !h->draining && h->failed[0] == '\0';
    bd_metric_set(&ps_metric_ready, serving ? 1 : 0);
    bd_metric_set(&ps_metric_draining, h->draining ? 1 : 0);
    if (h->port != NULL) {
        rpc_server_set_serving(h->port, serving);
        (void)!rpc_server_set_service(h->port, "readiness", serving); /* known since start_port */
    }
    if (h->main_server != NULL) {
        rpc_server_set_serving(h->main_server, serving);
    }
}

static bd_status start_port(ps_health *h, const char *listen, bd_err *err)
{
    const rpc_env_options eo = {.n_queues = 1, .n_threads = 1, .n_workers = 1};
    const rpc_server_options so = {
        .listen = listen, .max_message_bytes = 4096, .allow_insecure = true};
    bd_status rc = rpc_env_new(&eo, &h->env, err);
    if (rc == BD_OK) {
        rc = rpc_server_new(h->env, &so, &h->port, err);
    }
    if (rc == BD_OK) {
        rc = rpc_server_set_service(h->port, "liveness", true);
    }
    if (rc == BD_OK) {
        rc = rpc_server_set_service(h->port, "readiness", false);
    }
    if (rc == BD_OK) {
        rc = rpc_server_start(h->port, err);
    }
    return rc;
}

bd_status ps_health_new(const char *listen, ps_health **out, bd_err *err)
{
    ps_health *h = bd_calloc(1, sizeof *h);
    if (h == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "health: no memory");
    }
    (void)pthread_mutex_init(&h->lock, NULL);
    bd_status rc = listen[0] != '\0' ? start_port(h, listen, err) : BD_OK;
    if (rc != BD_OK) {
        ps_health_free(h);
        return bd_err_wrap(err, "health port");
    }
    *out = h;
    return BD_OK;
}

int ps_health_port(const ps_health *h)
{
    return h->port != NULL ? rpc_server_port(h->port) : 0;
}

void ps_health_follow(ps_health *h, rpc_server *main_server)
{
    (void)pthread_mutex_lock(&h->lock);
    h->main_server = main_server;
    publish_locked(h);
    (void)pthread_mutex_unlock(&h->lock);
}

void ps_health_tell(void *health, const char *line)
{
    ps_health *h = health;
    (void)pthread_mutex_lock(&h->lock);
    (void)snprintf(h->doing, sizeof h->doing, "%s", line);
    (void)pthread_mutex_unlock(&h->lock);
}

void ps_health_set_ready(ps_health *h, bool ready)
{
    (void)pthread_mutex_lock(&h->lock);
    h->ready = ready;
    h->doing[0] = '\0';
    publish_locked(h);
    (void)pthread_mutex_unlock(&h->lock);
}

void ps_health_set_draining(ps_health *h, bool draining)
{
    (void)pthread_mutex_lock(&h->lock);
    bool changed = h->draining != draining;
    h->draining = draining;
    publish_locked(h);
    (void)pthread_mutex_unlock(&h->lock);
    if (changed) {
        BD_LOG(INFO, "drain asked for: while it lasts, not ready, and new jobs are refused",
               "draining", draining ? "yes" : "no");
    }
}

void ps_health_set_failed(ps_health *h, const char *why)
{
    (void)pthread_mutex_lock(&h->lock);
    bool first = h->failed[0] == '\0';
    if (first) {
        (void)snprintf(h->failed, sizeof h->failed, "failed: %s", why);
        publish_locked(h);
    }
    (void)pthread_mutex_unlock(&h->lock);
    if (first) {
        BD_LOG(ERROR, "not ready any more: check the disk and start the server again", "why", why);
    }
}

bool ps_health_is_draining(ps_health *h)
{
    (void)pthread_mutex_lock(&h->lock);
    bool draining = h->draining;
    (void)pthread_mutex_unlock(&h->lock);
    return draining;
}

bool ps_health_is_serving(void *health, char *reason, size_t n_reason)
{
    ps_health *h = health;
    (void)pthread_mutex_lock(&h->lock);
    bool ready = h->ready, failed = h->failed[0] != '\0';
    bool serving = ready && !h->draining && !failed;
    if (!serving) {
        (void)snprintf(reason, n_reason, "%s",
                       ready && failed       ? h->failed
                       : h->draining         ? "draining"
                       : h->doing[0] != '\0' ? h->doing
                                             : "starting or stopping");
    }
    (void)pthread_mutex_unlock(&h->lock);
    return serving;
}

void ps_health_free(ps_health *h)
{
    if (h == NULL) {
        return;
    }
    if (h->port != NULL) {
        rpc_server_free(h->port);
    }
    if (h->env != NULL) {
        rpc_env_free(h->env);
    }
    (void)pthread_mutex_destroy(&h->lock);
    bd_free(h);
}
