#include "ring/ring_address.h"

#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct prefix {
    int family; /* AF_UNSPEC: which is a name */
    uint8_t bytes[16];
    unsigned n_bits;
} prefix;

/* Length of the address in *bytes, 0 for another family. */
static size_t address_bytes(const struct sockaddr *a, uint8_t bytes[16])
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, a, sizeof v4);
        memcpy(bytes, &v4.sin_addr, 4);
        return 4;
    }
    if (a->sa_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, a, sizeof v6);
        memcpy(bytes, &v6.sin6_addr, 16);
        return 16;
    }
    return 0;
}

static bool is_in(const struct sockaddr *a, const prefix *p)
{
    uint8_t bytes[16];
    if (a->sa_family != p->family || address_bytes(a, bytes) == 0) {
        return false;
    }
    unsigned whole = p->n_bits / 8;
    unsigned rest = p->n_bits % 8;
    if (memcmp(bytes, p->bytes, whole) != 0) {
        return false;
    }
    return rest == 0 || ((bytes[whole] ^ p->bytes[whole]) >> (8 - rest)) == 0;
}

static bd_status parse_prefix(const char *which, prefix *p, bd_err *err)
{
    char host[INET6_ADDRSTRLEN];
    const char *slash = strchr(which, '/');
    size_t n = slash != NULL ? (size_t)(slash - which) : strlen(which);
    bool is_long = n >= sizeof host;
    *p = (prefix){.family = AF_UNSPEC};
    (void)snprintf(host, sizeof host, "%.*s", (int)(is_long ? 0 : n), which);
    if (inet_pton(AF_INET, host, p->bytes) == 1) {
        *p = (prefix){.family = AF_INET, .n_bits = 32};
        (void)inet_pton(AF_INET, host, p->bytes);
    } else if (inet_pton(AF_INET6, host, p->bytes) == 1) {
        p->family = AF_INET6;
        p->n_bits = 128;
    }
    if (slash == NULL) {
        return BD_OK;
    }
    char *end = NULL;
    unsigned long bits = strtoul(slash + 1, &end, 10);
    if (p->family == AF_UNSPEC || end == slash + 1 || *end != '\0' || bits > p->n_bits) {
        return bd_err_set(err, BD_E_INVALID, "interface %s: not an address prefix", which);
    }
    p->n_bits = (unsigned)bits;
    return BD_OK;
}

static bool is_link_local(const struct sockaddr *a)
{
    uint8_t b[16];
    return a->sa_family == AF_INET6 && address_bytes(a, b) == 16 && b[0] == 0xfe &&
           (b[1] & 0xc0) == 0x80;
}

static socklen_t size_of(const struct sockaddr *a)
{
    return a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static bool is_usable(const struct ifaddrs *i)
{
    return i->ifa_addr != NULL && (i->ifa_flags & IFF_UP) != 0 && !is_link_local(i->ifa_addr) &&
           (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

/* host without its port; false: cannot be said. */
static bool numeric(const struct sockaddr *a, char host[NI_MAXHOST])
{
    return getnameinfo(a, size_of(a), host, NI_MAXHOST, NULL, 0, NI_NUMERICHOST) == 0;
}

/* The first IPv4 one that passes, else the first IPv6 one. */
static const struct ifaddrs *find(const struct ifaddrs *all, const char *name, const prefix *p,
                                  unsigned flags_off)
{
    const struct ifaddrs *best = NULL;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (!is_usable(i) || (i->ifa_flags & flags_off) != 0) {
            continue;
        }
        bool fits = (name == NULL || strcmp(i->ifa_name, name) == 0) &&
                    (p == NULL || is_in(i->ifa_addr, p));
        bool is_better = best == NULL || (best->ifa_addr->sa_family == AF_INET6 &&
                                          i->ifa_addr->sa_family == AF_INET);
        best = fits && is_better ? i : best;
    }
    return best;
}

static bd_status none_found(const struct ifaddrs *all, const char *which, bd_err *err)
{
    char list[300] = "";
    char host[NI_MAXHOST];
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        size_t used = strlen(list);
        if (is_usable(i) && numeric(i->ifa_addr, host)) {
            (void)snprintf(list + used, sizeof list - used, "%s%s %s", used > 0 ? ", " : "",
                           i->ifa_name, host);
        }
    }
    return bd_err_set(err, BD_E_NOT_FOUND, "no interface %s with an address; there are: %s", which,
                      list[0] != '\0' ? list : "none");
}

bd_status ring_address_of(const char *which, char **out, bd_err *err)
{
    prefix p;
    char host[NI_MAXHOST];
    struct ifaddrs *all = NULL;
    bd_status rc = parse_prefix(which, &p, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (getifaddrs(&all) != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "addresses of this host");
    }
    bool is_name = p.family == AF_UNSPEC;
    const struct ifaddrs *best = find(all, is_name ? which : NULL, is_name ? NULL : &p, 0);
    if (best == NULL || !numeric(best->ifa_addr, host)) {
        rc = none_found(all, which, err);
    } else {
        *out = bd_strdup(host);
        rc = *out != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "address of %s", which);
    }
    freeifaddrs(all);
    return rc;
}

static bool is_any(const struct sockaddr *a)
{
    static const uint8_t zeros[16];
    uint8_t bytes[16];
    size_t n = address_bytes(a, bytes);
    return n > 0 && memcmp(bytes, zeros, n) == 0;
}

bd_status ring_address_text(const struct sockaddr *at, socklen_t at_bytes, char **out, bd_err *err)
{
    char host[NI_MAXHOST];
    char port[NI_MAXSERV];
    struct ifaddrs *all = NULL;
    int bad = getnameinfo(at, at_bytes, host, sizeof host, port, sizeof port,
                          NI_NUMERICHOST | NI_NUMERICSERV);
    if (bad != 0) {
        return bd_err_set(err, BD_E_IO, "own address: %s", gai_strerror(bad));
    }
    if (is_any(at) && getifaddrs(&all) == 0) {
        const prefix family = {.family = at->sa_family};
        bool is_v6 = at->sa_family == AF_INET6; /* listens for IPv4, too */
        const struct ifaddrs *best = find(all, NULL, is_v6 ? NULL : &family, IFF_LOOPBACK);
        best = best != NULL ? best : find(all, NULL, is_v6 ? NULL : &family, 0);
        bool known = best != NULL && numeric(best->ifa_addr, host);
        freeifaddrs(all);
        if (!known) {
            return bd_err_set(err, BD_E_NOT_FOUND, "this host has no address to advertise");
        }
    }
    *out = bd_strfmt(strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
    return *out != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "rendezvous");
}
