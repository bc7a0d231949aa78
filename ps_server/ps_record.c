#include "ps_server/ps_record.h"

#include "base/mem.h"

#include "ps_server/ps_bytes.h"

#include <inttypes.h>
#include <string.h>

#define MAGIC          0x314a5242u /* "BRJ1" */
#define VERSION        1u
#define VERSION_BAGS   2u /* a section has bags: older servers refuse it */
#define VERSION_KEYS   3u /* a section has keys alone: older servers refuse it */
#define BAGS_BIT       (1ull << 63)
#define KEYS_BIT       (1ull << 62)
#define EVICT_BIT      (1ull << 61)
#define BAGS_BYTES     16u
#define SECTION_PIECES 11u /* a head, five arrays, each with its padding */

static size_t pad8(size_t n)
{
    return (n + 7) / 8 * 8;
}

static size_t n_values(const ps_section *s)
{
    if (s->kind != PS_SECTION_VALUES) {
        return 0;
    }
    return (s->bags.n_bags != 0 ? s->bags.n_bags : s->n_keys) * s->dim;
}

static size_t section_bytes(const ps_section *s)
{
    size_t n = PS_SECTION_HEADER_BYTES + s->n_keys * sizeof(uint64_t) +
               pad8(n_values(s) * sizeof(float)) + pad8(s->n_keys * s->state_elems * sizeof(float));
    if (s->bags.n_bags != 0) {
        size_t list = pad8(s->bags.n_entries * sizeof(uint32_t));
        n += BAGS_BYTES + list + (s->bags.weights != NULL ? list : 0);
    }
    return n;
}

size_t ps_record_bytes(const ps_record *r)
{
    size_t n = PS_RECORD_HEADER_BYTES;
    for (size_t i = 0; i < r->n_sections; i++) {
        n += section_bytes(&r->sections[i]);
    }
    return n;
}

static void add_piece(ps_pieces *p, const void *at, size_t n)
{
    p->items[p->n++] = (struct iovec){.iov_base = bd_unconst(at), .iov_len = n};
}

/* An array, and zeros up to the next multiple of 8. */
static void add_array(ps_pieces *p, const void *at, size_t n)
{
    static const uint8_t zeros[8];
    if (n != 0) {
        add_piece(p, at, n);
    }
    if (pad8(n) != n) {
        add_piece(p, zeros, pad8(n) - n);
    }
}

static void add_section(ps_pieces *p, const ps_section *s)
{
    const ps_bags *b = &s->bags;
    uint8_t *to = p->heads + p->n_heads;
    size_t n = PS_SECTION_HEADER_BYTES;
    ps_put_le32(to, s->rank);
    ps_put_le32(to + 4, s->part);
    ps_put_le32(to + 8, s->table_id);
    ps_put_le32(to + 12, s->dim);
    ps_put_le32(to + 16, s->state_elems);
    ps_put_le32(to + 20, s->time_s);
    ps_put_le64(to + 24, s->n_keys | (b->n_bags != 0 ? BAGS_BIT : 0) |
                             (s->kind != PS_SECTION_VALUES ? KEYS_BIT : 0) |
                             (s->kind == PS_SECTION_EVICTED ? EVICT_BIT : 0));
    if (b->n_bags != 0) {
        ps_put_le32(to + n, b->n_bags);
        ps_put_le32(to + n + 4, b->weights != NULL);
        ps_put_le64(to + n + 8, b->n_entries);
        n += BAGS_BYTES;
    }
    p->n_heads += n;
    add_piece(p, to, n);
    add_array(p, s->keys, s->n_keys * sizeof(uint64_t));
    add_array(p, s->values, n_values(s) * sizeof(float));
    add_array(p, s->state, s->n_keys * s->state_elems * sizeof(float));
    add_array(p, b->entries, b->n_entries * sizeof *b->entries);
    add_array(p, b->weights, b->weights == NULL ? 0 : b->n_entries * sizeof *b->weights);
}

static uint32_t version_of(const ps_record *r)
{
    uint32_t version = VERSION;
    for (size_t i = 0; i < r->n_sections; i++) {
        if (r->sections[i].kind != PS_SECTION_VALUES) {
            return VERSION_KEYS;
        }
        version = r->sections[i].bags.n_bags != 0 ? VERSION_BAGS : version;
    }
    return version;
}

/* XXH3 of the sections, seeded with XXH3 of the header whose checksum field is zero: no copy. */
static uint64_t checksum(const uint8_t *bytes, size_t n_bytes)
{
    uint8_t header[PS_RECORD_HEADER_BYTES];
    memcpy(header, bytes, sizeof header);
    ps_put_le64(header + 16, 0);
    return bd_hash64(bytes + sizeof header, n_bytes - sizeof header,
                     bd_hash64(header, sizeof header, 0));
}

static void put_header(const ps_record *r, uint8_t *out)
{
    memset(out, 0, PS_RECORD_HEADER_BYTES);
    ps_put_le32(out, MAGIC);
    ps_put_le32(out + 4, version_of(r) | (uint32_t)r->kind << 16);
    ps_put_le64(out + 8, ps_record_bytes(r));
    ps_put_le32(out + 24, r->seq.generation);
    ps_put_le32(out + 28, (uint32_t)r->n_sections);
    ps_put_le64(out + 32, r->seq.n);
    ps_put_le64(out + 40, r->job_epoch);
    ps_put_le64(out + 48, r->step);
    ps_put_f64(out + 56, r->lr_scale);
    ps_put_le64(out + 64, r->client_id);
    ps_put_le64(out + 72, r->sequence);
    ps_put_le32(out + 80, r->part);
    ps_put_le32(out + 84, r->n_parts);
    ps_put_le64(out + 88, r->before_n);
}

bd_status ps_record_pieces(const ps_record *r, ps_pieces *p)
{
    p->n = 0;
    p->n_heads = PS_RECORD_HEADER_BYTES;
    if (!bd_grow(&p->items, &p->cap, 1 + r->n_sections * SECTION_PIECES, sizeof *p->items) ||
        !bd_grow(&p->heads, &p->cap_heads,
                 PS_RECORD_HEADER_BYTES + r->n_sections * (PS_SECTION_HEADER_BYTES + BAGS_BYTES),
                 1)) {
        return BD_E_NOMEM;
    }
    put_header(r, p->heads);
    add_piece(p, p->heads, PS_RECORD_HEADER_BYTES);
    for (size_t i = 0; i < r->n_sections; i++) {
        add_section(p, &r->sections[i]);
    }
    p->hash =
        bd_hash64_pieces(p->items + 1, p->n - 1, bd_hash64(p->heads, PS_RECORD_HEADER_BYTES, 0));
    ps_put_le64(p->heads + 16, p->hash);
    return BD_OK;
}

void ps_pieces_deinit(ps_pieces *p)
{
    bd_free(p->items);
    bd_free(p->heads);
    *p = (ps_pieces){0};
}

/* Takes n elements of size bytes at *at, if they are there. */
static const uint8_t *take_array(const uint8_t **at, const uint8_t *end, size_t n, size_t size)
{
    size_t bytes = 0;
    if (!bd_mul_size(n, size, &bytes) || bytes > SIZE_MAX - 7 ||
        pad8(bytes) > (size_t)(end - *at)) {
        return NULL;
    }
    const uint8_t *p = *at;
    *at += pad8(bytes);
    return p;
}

/* The head of a section's bags, where it says that it has some. */
static bool take_bags_head(const uint8_t **at, const uint8_t *end, ps_section *s, bool *weighted)
{
    if ((s->n_keys & BAGS_BIT) == 0) {
        return true;
    }
    const uint8_t *h = take_array(at, end, BAGS_BYTES, 1);
    if (h == NULL) {
        return false;
    }
    s->n_keys &= ~BAGS_BIT;
    s->bags.n_bags = ps_get_le32(h);
    s->bags.n_entries = ps_get_le64(h + 8);
    *weighted = ps_get_le32(h + 4) != 0;
    return s->bags.n_bags != 0;
}

static bool take_bags(const uint8_t **at, const uint8_t *end, ps_bags *b, bool weighted)
{
    if (b->n_bags == 0) {
        return true;
    }
    const uint8_t *e = take_array(at, end, b->n_entries, sizeof *b->entries);
    const uint8_t *w = weighted && e != NULL ? take_array(at, end, b->n_entries, 4) : NULL;
    b->entries = (const uint32_t *)(const void *)e;
    b->weights = (const float *)(const void *)w;
    return e != NULL && (w != NULL || !weighted);
}

static bool take_section(const uint8_t **at, const uint8_t *end, ps_section *s)
{
    const uint8_t *h = take_array(at, end, PS_SECTION_HEADER_BYTES, 1);
    size_t values = 0, state = 0;
    if (h == NULL) {
        return false;
    }
    *s = (ps_section){.rank = ps_get_le32(h),
                      .part = ps_get_le32(h + 4),
                      .table_id = ps_get_le32(h + 8),
                      .dim = ps_get_le32(h + 12),
                      .state_elems = ps_get_le32(h + 16),
                      .time_s = ps_get_le32(h + 20),
                      .n_keys = ps_get_le64(h + 24)};
    bool weighted = false;
    if (!take_bags_head(at, end, s, &weighted)) {
        return false;
    }
    if ((s->n_keys & KEYS_BIT) != 0) {
        s->kind = (s->n_keys & EVICT_BIT) != 0 ? PS_SECTION_EVICTED : PS_SECTION_FILTERED;
        s->n_keys &= ~(KEYS_BIT | EVICT_BIT);
    }
    size_t rows = s->kind != PS_SECTION_VALUES ? 0
                  : s->bags.n_bags != 0        ? s->bags.n_bags
                                               : s->n_keys;
    if (!bd_mul_size(rows, s->dim, &values) || !bd_mul_size(s->n_keys, s->state_elems, &state)) {
        return false;
    }
    const uint8_t *k = take_array(at, end, s->n_keys, sizeof(uint64_t));
    const uint8_t *v = k == NULL ? NULL : take_array(at, end, values, sizeof(float));
    const uint8_t *st = v == NULL ? NULL : take_array(at, end, state, sizeof(float));
    if (st == NULL) {
        return false;
    }
    s->keys = (const uint64_t *)(const void *)k;
    s->values = (const float *)(const void *)v;
    s->state = s->state_elems == 0 ? NULL : (const float *)(const void *)st;
    return take_bags(at, end, &s->bags, weighted);
}

static void take_header(const uint8_t *b, ps_record *r)
{
    *r = (ps_record){.kind = (ps_record_kind)(ps_get_le32(b + 4) >> 16),
                     .seq = {ps_get_le32(b + 24), ps_get_le64(b + 32)},
                     .job_epoch = ps_get_le64(b + 40),
                     .step = ps_get_le64(b + 48),
                     .lr_scale = ps_get_f64(b + 56),
                     .client_id = ps_get_le64(b + 64),
                     .sequence = ps_get_le64(b + 72),
                     .part = ps_get_le32(b + 80),
                     .n_parts = ps_get_le32(b + 84),
                     .before_n = ps_get_le64(b + 88),
                     .n_sections = ps_get_le32(b + 28)};
}

bd_status ps_record_check(const uint8_t *bytes, size_t n_bytes, bd_err *err)
{
    if (n_bytes < PS_RECORD_HEADER_BYTES || ps_get_le32(bytes) != MAGIC) {
        return bd_err_set(err, BD_E_CORRUPT, "journal record of %zu bytes has no header", n_bytes);
    }
    uint64_t n = ps_get_le64(bytes + 32);
    uint32_t version = ps_get_le32(bytes + 4) & 0xffffu, kind = ps_get_le32(bytes + 4) >> 16;
    if (version < VERSION || version > VERSION_KEYS || kind < PS_RECORD_STEP ||
        kind > PS_RECORD_ASSIGN) {
        return bd_err_set(err, BD_E_CORRUPT,
                          "journal record %" PRIu64 " has version %u kind %u; this server reads %u",
                          n, version, kind, VERSION_KEYS);
    }
    if (ps_get_le64(bytes + 8) != n_bytes) {
        return bd_err_set(err, BD_E_CORRUPT,
                          "journal record %" PRIu64 " says %" PRIu64 " bytes, has %zu", n,
                          ps_get_le64(bytes + 8), n_bytes);
    }
    if (checksum(bytes, n_bytes) != ps_get_le64(bytes + 16)) {
        return bd_err_set(err, BD_E_CORRUPT,
                          "journal record %" PRIu64 " fails its checksum: the disk lost data", n);
    }
    return BD_OK;
}

bd_status ps_record_decode(const uint8_t *bytes, size_t n_bytes, ps_record *out, bd_err *err)
{
    ps_record r;
    bd_status rc = ps_record_check(bytes, n_bytes, err);
    if (rc != BD_OK) {
        return rc;
    }
    take_header(bytes, &r);
    const uint8_t *at = bytes + PS_RECORD_HEADER_BYTES, *end = bytes + n_bytes;
    if (r.n_sections > n_bytes / PS_SECTION_HEADER_BYTES) {
        return bd_err_set(err, BD_E_CORRUPT, "journal record %" PRIu64 " says %zu sections",
                          r.seq.n, r.n_sections);
    }
    r.sections = bd_calloc(r.n_sections, sizeof *r.sections);
    if (r.sections == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "journal record %" PRIu64 ": no memory", r.seq.n);
    }
    for (size_t i = 0; i < r.n_sections; i++) {
        if (!take_section(&at, end, &r.sections[i])) {
            bd_free(r.sections);
            return bd_err_set(err, BD_E_CORRUPT,
                              "journal record %" PRIu64 ": section %zu passes its end", r.seq.n, i);
        }
    }
    *out = r;
    return BD_OK;
}
