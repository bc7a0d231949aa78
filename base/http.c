#include "base/http.h"

#include "base/mem.h"
#include "base/metrics.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct bd_http {
    struct MHD_Daemon *daemon; /* owned */
    bd_http_health health;
    void *user; /* borrowed */
    int port;
};

enum { MAX_CONNECTIONS = 16, TIMEOUT_S = 10, CONNECTION_BYTES = 16 << 10, REASON_BYTES = 256 };

static enum MHD_Result answer(struct MHD_Connection *c, unsigned code, const char *text)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(strlen(text), bd_unconst(text), MHD_RESPMEM_MUST_COPY);
    if (r == NULL) {
        return MHD_NO;
    }
    (void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; version=0.0.4");
    enum MHD_Result done = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return done;
}

static enum MHD_Result answer_metrics(struct MHD_Connection *c)
{
    char *text = bd_metrics_text();
    enum MHD_Result done = text == NULL ? answer(c, 503, "out of memory\n") : answer(c, 200, text);
    bd_free(text);
    return done;
}

static enum MHD_Result answer_health(const bd_http *h, struct MHD_Connection *c)
{
    char reason[REASON_BYTES] = "not healthy";
    if (h->health == NULL || h->health(h->user, reason, sizeof reason)) {
        return answer(c, 200, "ok\n");
    }
    char text[REASON_BYTES + 2];
    (void)snprintf(text, sizeof text, "%s\n", reason);
    return answer(c, 503, text);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **state)
{
    (void)version;
    (void)upload;
    static int seen; /* its address marks a request whose headers have been looked at */
    const bd_http *h = user;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        *upload_bytes = 0;
        return answer(c, 405, "only GET\n");
    }
    if (*state == NULL) {
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_bytes != 0) {
        return MHD_NO;
    }
    if (strcmp(url, "/metrics") == 0) {
        return answer_metrics(c);
    }
    if (strcmp(url, "/healthz") == 0) {
        return answer_health(h, c);
    }
    return answer(c, 404, "try /metrics or /healthz\n");
}

/* Splits "host:port" or "[v6]:port". */
static bool split_addr(const char *addr, char *host, size_t host_bytes, const char **port)
{
    const char *colon = strrchr(addr, ':');
    if (colon == NULL || colon == addr || colon[1] == '\0' ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1)) {
        return false;
    }
    size_t n = (size_t)(colon - addr);
    if (addr[0] == '[') {
        if (n < 3 || addr[n - 1] != ']') {
            return false;
        }
        addr++;
        n -= 2;
    }
    if (n >= host_bytes) {
        return false;
    }
    memcpy(host, addr, n);
    host[n] = '\0';
    *port = colon + 1;
    return true;
}

static void drop_log(void *user, const char *fmt, va_list ap)
{
    (void)user;
    (void)fmt;
    (void)ap;
}

/* libmicrohttpd 1.0 loses the reason why it cannot listen, so the address is tried before. */
static bd_status check_free(const char *addr, const struct addrinfo *to, bd_err *err)
{
    bd_status rc = BD_OK;
    int on = 1;
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return bd_err_errno(err, BD_E_IO, errno, "listen %s", addr);
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, to->ai_addr, to->ai_addrlen) != 0 || listen(fd, 1) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "listen %s", addr);
    }
    (void)close(fd);
    return rc;
}

static bd_status listen_on(bd_http *h, const char *addr, const struct addrinfo *to, bd_err *err)
{
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG;
    if (to->ai_family == AF_INET6) {
        flags |= MHD_USE_IPv6;
    }
    bd_status rc = check_free(addr, to, err);
    if (rc != BD_OK) {
        return rc;
    }
    errno = 0;
    h->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, drop_log, NULL,
        MHD_OPTION_SOCK_ADDR, to->ai_addr, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    if (h->daemon == NULL) {
        return bd_err_errno(err, BD_E_IO, errno, "listen %s", addr);
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
    h->port = info == NULL ? 0 : info->port;
    return BD_OK;
}

bd_status bd_http_start(const char *addr, bd_http_health health, void *user, bd_http **out,
                        bd_err *err)
{
    char host[256];
    const char *port;
    if (!split_addr(addr, host, sizeof host, &port)) {
        return bd_err_set(err, BD_E_USAGE, "\"%s\" is not host:port", addr);
    }
    bd_http *h = bd_calloc(1, sizeof *h);
    if (h == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "listen %s", addr);
    }
    h->health = health;
    h->user = user;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    bd_status rc;
    int gai = getaddrinfo(host, port, &hints, &found);
    if (gai != 0) {
        rc = bd_err_set(err, BD_E_IO, "listen %s: %s", addr, gai_strerror(gai));
    } else {
        rc = listen_on(h, addr, found, err);
        freeaddrinfo(found);
    }
    if (rc != BD_OK) {
        bd_free(h);
        return rc;
    }
    *out = h;
    return BD_OK;
}

int bd_http_port(const bd_http *h)
{
    return h->port;
}

void bd_http_stop(bd_http *h)
{
    if (h != NULL) {
        MHD_stop_daemon(h->daemon);
        bd_free(h);
    }
}
