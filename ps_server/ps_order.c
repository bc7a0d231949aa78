#include "ps_server/ps_order.h"

#include "base/mem.h"

#include "ps_server/ps_bytes.h"

#include <string.h>

#define DIGIT_BITS   11u
#define DIGITS       (1u << DIGIT_BITS)
#define TABLE_PASSES 3u  /* 32 bits */
#define FEW_REFS     24u /* sorted by insertion */

static void list_entries(const ps_entries *items, size_t n_items, ps_ref *refs)
{
    size_t at = 0;
    for (size_t i = 0; i < n_items; i++) {
        for (size_t k = 0; k < items[i].n; k++) {
            const uint8_t *e = items[i].bytes + k * (PS_ENTRY_KEY_BYTES + items[i].value_bytes);
            bool dead = (ps_get_le32(e + PS_ENTRY_KEY_BYTES) & PS_ENTRY_DEAD) != 0;
            refs[at++] = (ps_ref){ps_get_be64(e + 4), items[i].table_id,
                                  dead ? PS_ENTRY_META_BYTES : (uint32_t)items[i].value_bytes, e};
        }
    }
}

static unsigned table_digit(const ps_ref *r, unsigned pass)
{
    return (r->table_id >> (pass * DIGIT_BITS)) % DIGITS;
}

/* By table, least significant digit first; a digit that all share costs no move. The refs are then
 * in a or in b: returns which. */
static ps_ref *sort_tables(ps_ref *a, ps_ref *b, size_t n)
{
    for (unsigned pass = 0; pass < TABLE_PASSES; pass++) {
        size_t at[DIGITS] = {0};
        for (size_t i = 0; i < n; i++) {
            at[table_digit(&a[i], pass)]++;
        }
        if (n == 0 || at[table_digit(&a[0], pass)] == n) {
            continue;
        }
        for (size_t d = 0, sum = 0; d < DIGITS; d++) {
            size_t here = at[d];
            at[d] = sum;
            sum += here;
        }
        for (size_t i = 0; i < n; i++) {
            b[at[table_digit(&a[i], pass)]++] = a[i];
        }
        ps_ref *other = a;
        a = b;
        b = other;
    }
    return a;
}

static void insert_sorted(const ps_ref *from, ps_ref *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ps_ref r = from[i]; /* from may be to */
        size_t k = i;
        for (; k > 0 && to[k - 1].key > r.key; k--) {
            to[k] = to[k - 1];
        }
        to[k] = r;
    }
}

/* By key; the sorted refs are in a, or in b if `into_b`; the other one is used up. Most significant
 * digit first: the parts are soon so small that they stay in the cache. */
static void sort_keys(ps_ref *a, ps_ref *b, size_t n, bool into_b)
{
    uint32_t at[DIGITS + 1];
    uint64_t differ = 0;
    for (size_t i = 0; i < n; i++) {
        differ |= a[i].key ^ a[0].key;
    }
    if (n <= FEW_REFS || differ == 0) {
        insert_sorted(a, into_b ? b : a, n);
        return;
    }
    unsigned top = 64u - (unsigned)__builtin_clzll(differ), bits = 5;
    while (bits < DIGIT_BITS && ((size_t)1 << bits) < n) {
        bits++; /* about one a digit, if they are spread evenly */
    }
    bits = bits < top ? bits : top;
    unsigned shift = top - bits, mask = (1u << bits) - 1;
    memset(at, 0, (mask + 2) * sizeof *at);
    for (size_t i = 0; i < n; i++) {
        at[((a[i].key >> shift) & mask) + 1]++;
    }
    for (unsigned d = 0; d < mask; d++) {
        at[d + 1] += at[d];
    }
    for (size_t i = 0; i < n; i++) {
        b[at[(a[i].key >> shift) & mask]++] = a[i];
    }
    for (size_t d = 0, from = 0; d <= mask; from = at[d++]) { /* at[d]: where digit d ends now */
        if (at[d] > from) {
            sort_keys(b + from, a + from, at[d] - from, !into_b);
        }
    }
}

/* By table and key. The sorted refs are in a or in b: returns which. */
static ps_ref *sort_refs(ps_ref *a, ps_ref *b, size_t n)
{
    ps_ref *sorted = sort_tables(a, b, n), *other = sorted == a ? b : a;
    for (size_t from = 0, to = 0; from < n; from = to) {
        while (to < n && sorted[to].table_id == sorted[from].table_id) {
            to++;
        }
        sort_keys(sorted + from, other + from, to - from, false);
    }
    return sorted;
}

bd_status ps_order_entries(const ps_entries *items, size_t n_items, ps_ref **refs, size_t *n,
                           bd_err *err)
{
    *n = 0;
    for (size_t i = 0; i < n_items; i++) {
        *n += items[i].n;
    }
    ps_ref *a = bd_alloc_huge((*n + 1) * sizeof *a), *b = bd_alloc_huge((*n + 1) * sizeof *b);
    if (a == NULL || b == NULL) {
        bd_free(a);
        bd_free(b);
        return bd_err_set(err, BD_E_NOMEM, "write rows: no memory");
    }
    list_entries(items, n_items, a);
    *refs = sort_refs(a, b, *n);
    bd_free(*refs == a ? b : a);
    return BD_OK;
}
