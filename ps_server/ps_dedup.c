#include "ps_server/ps_dedup.h"

#include "base/mem.h"

#include "ps_server/ps_bytes.h"

#include <inttypes.h>
#include <string.h>

typedef struct above {
    uint64_t sequence;
    uint32_t n_parts;
    uint32_t n_done;
    uint64_t *bits; /* owned */
} above;

typedef struct client_state {
    uint64_t client;
    uint64_t watermark;
    above *above; /* owned; in no order */
    size_t n_above, cap_above;
} client_state;

struct ps_dedup {
    client_state *clients; /* owned; a job has few, and their order does not matter */
    size_t n_clients, cap_clients;
};

ps_dedup *ps_dedup_new(void)
{
    return bd_calloc(1, sizeof(ps_dedup));
}

void ps_dedup_clear(ps_dedup *d)
{
    for (size_t i = 0; i < d->n_clients; i++) {
        for (size_t k = 0; k < d->clients[i].n_above; k++) {
            bd_free(d->clients[i].above[k].bits);
        }
        bd_free(d->clients[i].above);
    }
    d->n_clients = 0;
}

void ps_dedup_free(ps_dedup *d)
{
    if (d != NULL) {
        ps_dedup_clear(d);
        bd_free(d->clients);
        bd_free(d);
    }
}

static client_state *find(const ps_dedup *d, uint64_t client)
{
    for (size_t i = 0; i < d->n_clients; i++) {
        if (d->clients[i].client == client) {
            return &d->clients[i];
        }
    }
    return NULL;
}

static above *find_above(const client_state *c, uint64_t sequence)
{
    for (size_t i = 0; c != NULL && i < c->n_above; i++) {
        if (c->above[i].sequence == sequence) {
            return &c->above[i];
        }
    }
    return NULL;
}

static bool bit(const above *a, uint32_t part)
{
    return (a->bits[part / 64] >> (part % 64) & 1) != 0;
}

bd_status ps_dedup_check(const ps_dedup *d, uint64_t client, uint64_t sequence, uint32_t part,
                         uint32_t n_parts, bool *done, bd_err *err)
{
    if (client == 0 || sequence == 0) {
        return bd_err_set(err, BD_E_INVALID,
                          "an async push needs a client id and a sequence (from 1), has %" PRIu64
                          " and %" PRIu64,
                          client, sequence);
    }
    if (n_parts == 0 || n_parts > PS_DEDUP_MAX_PARTS || part >= n_parts) {
        return bd_err_set(err, BD_E_INVALID,
                          "client %" PRIu64 " sequence %" PRIu64 ": part %u of %u (at most %u)",
                          client, sequence, part, n_parts, PS_DEDUP_MAX_PARTS);
    }
    const client_state *c = find(d, client);
    const above *a = find_above(c, sequence);
    *done = c != NULL && sequence <= c->watermark;
    if (*done || (a == NULL && (c == NULL || c->n_above < PS_DEDUP_MAX_ABOVE))) {
        return BD_OK;
    }
    if (a == NULL) {
        return bd_err_set(err, BD_E_EXHAUSTED,
                          "client %" PRIu64 ": sequence %" PRIu64 " while %zu after %" PRIu64
                          " are still open",
                          client, sequence, c->n_above, c->watermark);
    }
    if (a->n_parts != n_parts) {
        return bd_err_set(err, BD_E_MISMATCH,
                          "client %" PRIu64 " sequence %" PRIu64
                          ": this part says %u parts, an earlier one %u",
                          client, sequence, n_parts, a->n_parts);
    }
    *done = bit(a, part);
    return BD_OK;
}

static client_state *find_or_add(ps_dedup *d, uint64_t client)
{
    client_state *c = find(d, client);
    if (c == NULL && bd_grow(&d->clients, &d->cap_clients, d->n_clients + 1, sizeof *d->clients)) {
        c = &d->clients[d->n_clients++];
        *c = (client_state){.client = client};
    }
    return c;
}

static above *find_or_open(client_state *c, uint64_t sequence, uint32_t n_parts)
{
    above *a = find_above(c, sequence);
    if (a != NULL || !bd_grow(&c->above, &c->cap_above, c->n_above + 1, sizeof *c->above)) {
        return a;
    }
    uint64_t *bits = bd_calloc((n_parts + 63) / 64, sizeof *bits);
    if (bits == NULL) {
        return NULL;
    }
    a = &c->above[c->n_above++];
    *a = (above){.sequence = sequence, .n_parts = n_parts, .bits = bits};
    return a;
}

static void close_above(client_state *c, above *a)
{
    bd_free(a->bits);
    *a = c->above[--c->n_above];
}

/* The watermark moves over whole sequences. */
static void advance(client_state *c)
{
    for (above *a = find_above(c, c->watermark + 1); a != NULL && a->n_done == a->n_parts;
         a = find_above(c, c->watermark + 1)) {
        c->watermark++;
        close_above(c, a);
    }
}

/* Over the oldest gap, when contexts have left too many. */
static void jump(client_state *c)
{
    while (c->n_above > PS_DEDUP_MAX_GAPS) {
        uint64_t oldest = UINT64_MAX;
        for (size_t i = 0; i < c->n_above; i++) {
            oldest = c->above[i].sequence < oldest ? c->above[i].sequence : oldest;
        }
        c->watermark = oldest - 1;
        advance(c);
    }
}

bd_status ps_dedup_mark(ps_dedup *d, uint64_t client, uint64_t sequence, uint32_t part,
                        uint32_t n_parts)
{
    client_state *c = find_or_add(d, client);
    above *a = c == NULL ? NULL : find_or_open(c, sequence, n_parts);
    if (a == NULL) {
        return BD_E_NOMEM;
    }
    a->bits[part / 64] |= 1ull << (part % 64);
    a->n_done++;
    advance(c);
    if ((client & PS_DEDUP_CONTEXT) != 0) {
        jump(c);
    }
    return BD_OK;
}

void ps_dedup_unmark(ps_dedup *d, uint64_t client, uint64_t sequence, uint32_t part,
                     uint32_t n_parts)
{
    client_state *c = find(d, client);
    if ((client & PS_DEDUP_CONTEXT) != 0) {
        return; /* its context has failed with the push: nobody asks again */
    }
    /* The watermark moved past this sequence: everything from it up is reopened as done but this
     * part. Only the last mark is taken back, so what lies between is complete. */
    while (c->watermark >= sequence) {
        uint64_t seq = c->watermark--;
        uint32_t parts = seq == sequence ? n_parts : 1;
        above *a = find_or_open(c, seq, parts);
        if (a == NULL) {
            return; /* no memory: the client's push stays marked; it was answered with the error */
        }
        memset(a->bits, 0xff, (parts + 63) / 64 * sizeof *a->bits);
        a->n_done = parts;
    }
    above *a = find_above(c, sequence);
    a->bits[part / 64] &= ~(1ull << (part % 64));
    a->n_done--;
}

bd_buf *ps_dedup_pack(const ps_dedup *d, uint64_t client)
{
    const client_state *c = find(d, client);
    size_t n = 16;
    for (size_t i = 0; c != NULL && i < c->n_above; i++) {
        n += 16 + (c->above[i].n_parts + 63) / 64 * 8;
    }
    bd_buf *b = bd_buf_new(n);
    if (b == NULL) {
        return NULL;
    }
    memset(b->bytes, 0, n);
    ps_put_le64(b->bytes, c == NULL ? 0 : c->watermark);
    ps_put_le32(b->bytes + 8, c == NULL ? 0 : (uint32_t)c->n_above);
    uint8_t *to = b->bytes + 16;
    for (size_t i = 0; c != NULL && i < c->n_above; i++) {
        const above *a = &c->above[i];
        ps_put_le64(to, a->sequence);
        ps_put_le32(to + 8, a->n_parts);
        to += 16;
        for (uint32_t w = 0; w < (a->n_parts + 63) / 64; w++, to += 8) {
            ps_put_le64(to, a->bits[w]);
        }
    }
    return b;
}

/* One open sequence; returns the bytes it took, 0 when damaged. */
static size_t load_above(client_state *c, const uint8_t *p, size_t left, bd_status *rc)
{
    uint32_t n_parts = left < 16 ? 0 : ps_get_le32(p + 8);
    size_t words = (n_parts + 63) / 64;
    if (n_parts == 0 || n_parts > PS_DEDUP_MAX_PARTS || left < 16 + words * 8) {
        return 0;
    }
    above *a = find_or_open(c, ps_get_le64(p), n_parts);
    if (a == NULL) {
        *rc = BD_E_NOMEM;
        return 0;
    }
    for (size_t w = 0; w < words; w++) {
        a->bits[w] = ps_get_le64(p + 16 + w * 8);
        a->n_done += (uint32_t)__builtin_popcountll(a->bits[w]);
    }
    return 16 + words * 8;
}

bd_status ps_dedup_load(ps_dedup *d, uint64_t client, const uint8_t *bytes, size_t n_bytes,
                        bd_err *err)
{
    bd_status rc = BD_E_CORRUPT;
    client_state *c = find_or_add(d, client);
    uint32_t n = n_bytes < 16 ? 0 : ps_get_le32(bytes + 8);
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "dedup state: no memory");
    }
    size_t at = 16;
    if (n_bytes >= 16) {
        c->watermark = ps_get_le64(bytes);
        for (uint32_t i = 0; i < n && at < n_bytes; i++) {
            size_t took = load_above(c, bytes + at, n_bytes - at, &rc);
            if (took == 0) {
                break;
            }
            at += took;
        }
    }
    if (at != n_bytes || c->n_above != n) {
        return bd_err_set(err, rc, "dedup state of client %" PRIu64 " is damaged", client);
    }
    return BD_OK;
}

bool ps_dedup_at(const ps_dedup *d, size_t i, uint64_t *client)
{
    if (i >= d->n_clients) {
        return false;
    }
    *client = d->clients[i].client;
    return true;
}
