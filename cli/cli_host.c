#include "cli/cli_host.h"

#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int cli_host_gpus(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/driver/nvidia/gpus");
    // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
    for (const struct dirent *e = dir == NULL ? NULL : readdir(dir); e != NULL;
         e = readdir(dir)) { // NOLINT(concurrency-mt-unsafe)
        n += e->d_name[0] != '.';
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return n;
}

bd_status cli_host_split(const char *endpoint, int default_port, char *host, size_t n_host,
                         int *port, bd_err *err)
{
    const char *bracket = strrchr(endpoint, ']'), *colon = strrchr(endpoint, ':');
    bool has_port =
        colon != NULL && (bracket == NULL ? strchr(endpoint, ':') == colon : colon > bracket);
    size_t n = has_port ? (size_t)(colon - endpoint) : strlen(endpoint);
    char *end = NULL;
    long number = has_port ? strtol(colon + 1, &end, 10) : default_port;
    if (n > 1 && endpoint[0] == '[' && endpoint[n - 1] == ']') {
        endpoint++;
        n -= 2;
    }
    if (n == 0 || n >= n_host || (has_port && (end == colon + 1 || *end != '\0')) || number < 0 ||
        number > 65535) {
        return bd_err_set(err, BD_E_USAGE, "\"%.200s\" is not HOST:PORT", endpoint);
    }
    memcpy(host, endpoint, n);
    host[n] = '\0';
    *port = (int)number;
    return BD_OK;
}

static bd_status resolve(const char *endpoint, struct addrinfo **out, bd_err *err)
{
    char host[256], service[16];
    int port = 0;
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    bd_status rc = cli_host_split(endpoint, 0, host, sizeof host, &port, err);
    if (rc != BD_OK) {
        return rc;
    }
    (void)snprintf(service, sizeof service, "%d", port > 0 ? port : 9);
    int e = getaddrinfo(host, service, &hints, out);
    return e == 0 ? BD_OK : bd_err_set(err, BD_E_UNAVAILABLE, "%s: %s", endpoint, gai_strerror(e));
}

bd_status cli_host_address_to(const char *endpoint, char *out, size_t n_out, bd_err *err)
{
    struct addrinfo *all = NULL;
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    bd_status rc = resolve(endpoint, &all, err);
    bool found = false;
    for (const struct addrinfo *a = all; rc == BD_OK && a != NULL && !found; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* connecting sends nothing */
        n = sizeof own;
        found = fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
                getsockname(fd, (struct sockaddr *)(void *)&own, &n) == 0 &&
                getnameinfo((const struct sockaddr *)(const void *)&own, n, out, (socklen_t)n_out,
                            NULL, 0, NI_NUMERICHOST) == 0;
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    if (all != NULL) {
        freeaddrinfo(all);
    }
    return rc != BD_OK || found
               ? rc
               : bd_err_set(err, BD_E_UNAVAILABLE, "%s: no way leads there", endpoint);
}

bool cli_host_is_own(const char *endpoint)
{
    struct addrinfo *all = NULL;
    bd_err ignored = BD_ERR_INIT;
    bool own = false;
    bd_status rc = resolve(endpoint, &all, &ignored);
    for (const struct addrinfo *a = all; rc == BD_OK && a != NULL && !own; a = a->ai_next) {
        /* Only an own address can be bound; of a datagram port, which nobody else listens on. */
        int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        struct sockaddr_storage at = {0};
        memcpy(&at, a->ai_addr, a->ai_addrlen);
        if (a->ai_family == AF_INET || a->ai_family == AF_INET6) {
            memset((char *)&at + sizeof(sa_family_t), 0, 2); /* port 0, in both families */
        }
        own = fd >= 0 && bind(fd, (const struct sockaddr *)(const void *)&at, a->ai_addrlen) == 0;
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    if (all != NULL) {
        freeaddrinfo(all);
    }
    return own;
}

char *cli_host_program(const char *name)
{
    char *rest = NULL, *found = NULL;
    if (strchr(name, '/') != NULL) {
        return access(name, X_OK) == 0 ? bd_strdup(name) : NULL;
    }
    const char *path = getenv("PATH"); // NOLINT(concurrency-mt-unsafe): before any thread
    char *copy = bd_strdup(path != NULL ? path : "/usr/local/bin:/usr/bin:/bin");
    for (char *dir = copy == NULL ? NULL : strtok_r(copy, ":", &rest); dir != NULL && found == NULL;
         dir = strtok_r(NULL, ":", &rest)) {
        found = bd_strfmt("%s/%s", dir, name);
        if (found != NULL && access(found, X_OK) != 0) {
            bd_free(found);
            found = NULL;
        }
    }
    bd_free(copy);
    return found;
}
