#include "ps_server/ps_facts.h"

#include "base/mem.h"

#include "ps_server/ps_bytes.h"

#include <string.h>

#define REMOVED UINT32_MAX

size_t ps_facts_packed_bytes(const ps_fact *facts, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += 8 + strlen(facts[i].name) + (facts[i].val == NULL ? 0 : facts[i].val_bytes);
    }
    return (sum + 7) / 8 * 8;
}

void ps_facts_pack(const ps_fact *facts, size_t n, uint8_t *out)
{
    size_t total = ps_facts_packed_bytes(facts, n);
    uint8_t *to = out;
    for (size_t i = 0; i < n; i++) {
        const ps_fact *f = &facts[i];
        size_t name = strlen(f->name), val = f->val == NULL ? 0 : f->val_bytes;
        ps_put_le32(to, (uint32_t)name);
        ps_put_le32(to + 4, f->val == NULL ? REMOVED : (uint32_t)val);
        memcpy(to + 8, f->name, name);
        if (val > 0) {
            memcpy(to + 8 + name, f->val, val);
        }
        to += 8 + name + val;
    }
    memset(to, 0, total - (size_t)(to - out));
}

void ps_facts_deinit(ps_facts *f)
{
    for (size_t i = 0; i < f->n; i++) {
        bd_free(f->items[i].name);
        bd_free(f->items[i].val);
    }
    bd_free(f->items);
    *f = (ps_facts){0};
}

size_t ps_facts_at(const ps_facts *f, const char *name)
{
    size_t lo = 0, hi = f->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (strcmp(f->items[mid].name, name) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

const ps_facts_item *ps_facts_find(const ps_facts *f, const char *name)
{
    size_t i = ps_facts_at(f, name);
    return i < f->n && strcmp(f->items[i].name, name) == 0 ? &f->items[i] : NULL;
}

void ps_facts_drop_copies(ps_facts_item *copies, size_t n)
{
    for (size_t i = 0; copies != NULL && i < n; i++) {
        bd_free(copies[i].name);
        bd_free(copies[i].val);
    }
    bd_free(copies);
}

static bool copy_one(ps_facts_item *to, const ps_fact *f)
{
    to->name = bd_strdup(f->name);
    if (f->val != NULL) {
        to->val = bd_alloc(f->val_bytes + 1);
        to->val_bytes = f->val_bytes;
    }
    if (to->name == NULL || (f->val != NULL && to->val == NULL)) {
        return false;
    }
    if (f->val != NULL && f->val_bytes > 0) {
        memcpy(to->val, f->val, f->val_bytes);
    }
    return true;
}

bd_status ps_facts_copy(ps_facts *f, const ps_fact *facts, size_t n, ps_facts_item **copies)
{
    ps_facts_item *c = bd_calloc(n + 1, sizeof *c);
    bool done = c != NULL && bd_grow(&f->items, &f->cap, f->n + n, sizeof *f->items);
    for (size_t i = 0; i < n && done; i++) {
        done = copy_one(&c[i], &facts[i]);
    }
    if (!done) {
        ps_facts_drop_copies(c, n);
        return BD_E_NOMEM;
    }
    *copies = c;
    return BD_OK;
}

void ps_facts_take(ps_facts *f, ps_facts_item *copies, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t at = ps_facts_at(f, copies[i].name);
        if (at < f->n && strcmp(f->items[at].name, copies[i].name) == 0) {
            bd_free(f->items[at].name);
            bd_free(f->items[at].val);
        } else {
            memmove(f->items + at + 1, f->items + at, (f->n - at) * sizeof *f->items);
            f->n++;
        }
        f->items[at] = copies[i];
        f->items[at].change = ++f->n_changes;
    }
    bd_free(copies);
}

static bd_status take_packed(ps_facts *f, const char *name_at, size_t name_bytes,
                             const uint8_t *val, size_t val_bytes)
{
    ps_facts_item *copies = NULL;
    char *name = bd_alloc(name_bytes + 1);
    bd_status rc = name == NULL ? BD_E_NOMEM : BD_OK;
    if (rc == BD_OK) {
        memcpy(name, name_at, name_bytes);
        name[name_bytes] = '\0';
        ps_fact fact = {'M', name, val, val_bytes};
        rc = ps_facts_copy(f, &fact, 1, &copies);
    }
    if (rc == BD_OK) {
        ps_facts_take(f, copies, 1);
    }
    bd_free(name);
    return rc;
}

bd_status ps_facts_unpack(ps_facts *f, const uint8_t *bytes, size_t n_bytes, bd_err *err)
{
    for (size_t at = 0; at + 8 <= n_bytes;) {
        size_t name = ps_get_le32(bytes + at), val = ps_get_le32(bytes + at + 4);
        bool removed = val == REMOVED;
        val = removed ? 0 : val;
        at += 8;
        if (name == 0) {
            break;
        }
        if (name > n_bytes - at || val > n_bytes - at - name) {
            return bd_err_set(err, BD_E_CORRUPT, "a fact in the journal passes its end");
        }
        const uint8_t *p = bytes + at;
        if (take_packed(f, (const char *)p, name, removed ? NULL : p + name, val) != BD_OK) {
            return bd_err_set(err, BD_E_NOMEM, "journal: no memory");
        }
        at += name + val;
    }
    return BD_OK;
}

void ps_facts_forget(ps_facts *f, uint64_t change)
{
    size_t kept = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (f->items[i].change <= change) {
            bd_free(f->items[i].name);
            bd_free(f->items[i].val);
        } else {
            f->items[kept++] = f->items[i];
        }
    }
    f->n = kept;
}
