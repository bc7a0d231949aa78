#include "rpc/rpc_status.h"

#include <stdint.h>
#include <string.h>

/* gRPC's codes, as in the public protocol (also in grpc/status.h, which the fake does not need). */
enum {
    G_OK = 0,
    G_CANCELLED = 1,
    G_INVALID_ARGUMENT = 3,
    G_DEADLINE_EXCEEDED = 4,
    G_NOT_FOUND = 5,
    G_ALREADY_EXISTS = 6,
    G_PERMISSION_DENIED = 7,
    G_RESOURCE_EXHAUSTED = 8,
    G_FAILED_PRECONDITION = 9,
    G_ABORTED = 10,
    G_UNIMPLEMENTED = 12,
    G_INTERNAL = 13,
    G_UNAVAILABLE = 14,
    G_DATA_LOSS = 15,
    G_UNAUTHENTICATED = 16
};

int rpc_status_to_grpc(bd_status code)
{
    switch (code) {
    case BD_OK:
        return G_OK;
    case BD_E_CANCELLED:
        return G_CANCELLED;
    case BD_E_INVALID:
    case BD_E_DATA:
    case BD_E_NUMERIC:
    case BD_E_USAGE:
        return G_INVALID_ARGUMENT;
    case BD_E_TIMEOUT:
        return G_DEADLINE_EXCEEDED;
    case BD_E_NOT_FOUND:
        return G_NOT_FOUND;
    case BD_E_EXISTS:
        return G_ALREADY_EXISTS;
    case BD_E_DENIED:
        return G_PERMISSION_DENIED;
    case BD_E_NOMEM:
    case BD_E_EXHAUSTED:
        return G_RESOURCE_EXHAUSTED;
    case BD_E_STATE:
    case BD_E_MISMATCH:
    case BD_E_MOVED:
    case BD_E_NEED_PARTS:
    case BD_E_FENCED:
    case BD_E_CLIENT_EXPIRED:
        return G_FAILED_PRECONDITION;
    case BD_E_PEER_LOST:
    case BD_E_ABORTED:
        return G_ABORTED;
    case BD_E_UNSUPPORTED:
        return G_UNIMPLEMENTED;
    case BD_AGAIN:
    case BD_E_UNAVAILABLE:
        return G_UNAVAILABLE;
    case BD_E_CORRUPT:
    case BD_E_LOST:
        return G_DATA_LOSS;
    case BD_E_UNAUTHENTICATED:
        return G_UNAUTHENTICATED;
    case BD_E_IO:
    case BD_E_INTERNAL:
    default:
        return G_INTERNAL;
    }
}

bd_status rpc_status_from_grpc(int grpc_code)
{
    static const bd_status map[] = {
        BD_OK,          BD_E_CANCELLED,       BD_E_INTERNAL,    BD_E_INVALID,   BD_E_TIMEOUT,
        BD_E_NOT_FOUND, BD_E_EXISTS,          BD_E_DENIED,      BD_E_EXHAUSTED, BD_E_STATE,
        BD_E_ABORTED,   BD_E_INVALID,         BD_E_UNSUPPORTED, BD_E_INTERNAL,  BD_E_UNAVAILABLE,
        BD_E_CORRUPT,   BD_E_UNAUTHENTICATED,
    };
    const int n = (int)(sizeof map / sizeof map[0]);
    return grpc_code >= 0 && grpc_code < n ? map[grpc_code] : BD_E_INTERNAL;
}

bd_status rpc_status_parse(const char *text, size_t n)
{
    size_t i = n > 0 && text[0] == '-' ? 1 : 0;
    int value = 0;
    if (i == n || n > 6) {
        return BD_E_INTERNAL;
    }
    for (size_t k = i; k < n; k++) {
        if (text[k] < '0' || text[k] > '9') {
            return BD_E_INTERNAL;
        }
        value = value * 10 + (text[k] - '0');
    }
    bd_status code = bd_status_known(i == 1 ? -value : value);
    return code < 0 ? code : BD_E_INTERNAL; /* a trailer only comes with a failure */
}

void rpc_escape(char *out, size_t cap, const void *bytes, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    const uint8_t *in = bytes;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        bool plain = in[i] >= 0x20 && in[i] <= 0x7e;
        if (k + (plain ? 1 : 4) + 1 > cap) {
            break;
        }
        if (plain) {
            out[k++] = (char)in[i];
        } else {
            out[k++] = '\\';
            out[k++] = 'x';
            out[k++] = hex[in[i] >> 4];
            out[k++] = hex[in[i] & 15];
        }
    }
    out[k] = '\0';
}

bool rpc_target_is_local(const char *target)
{
    static const char *const hosts[] = {"localhost", "[::1]", "::1"};
    if (strncmp(target, "unix:", 5) == 0) {
        return true;
    }
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        size_t n = strlen(hosts[i]);
        if (strncmp(target, hosts[i], n) == 0 && (target[n] == '\0' || target[n] == ':')) {
            return true;
        }
    }
    if (strncmp(target, "127.", 4) != 0) {
        return false;
    }
    /* A name such as 127.example.org is not an address. */
    size_t n = strspn(target, "0123456789.");
    return target[n] == '\0' || target[n] == ':';
}
