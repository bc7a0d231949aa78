/* Any bytes as any bulk message, in slices of any size: refused by BD_E_CORRUPT, or read. What was
 * read is walked, encoded and read again: both encodings must be equal.
 *
 * Input: one byte chooses the message, one the slicing, the rest is the message. */
#include "base/mem.h"

#include "proto/px_int.h"

#include "tests/fuzz/fuzz_input.h"

#include <string.h>

static const px_desc *const messages[] = {
#define BD_X(name, proto_name) &px_desc_##name,
    PX_MESSAGE_MAP(BD_X)
#undef BD_X
};

static void check(bool ok)
{
    if (!ok) {
        abort();
    }
}

static void slice(const uint8_t *bytes, size_t n, size_t step, bd_chain *out)
{
    while (n > 0) {
        size_t take = step == 0 || n < step ? n : step;
        check(bd_chain_add_copy(out, bytes, take) ==
              BD_OK); /* a block of its own: ASan sees its end */
        bytes += take;
        n -= take;
    }
}

static bd_buf *encode(const px_desc *d, const void *msg)
{
    bd_chain chain = {0};
    check(px_encode(d, msg, &chain, NULL) == BD_OK);
    bd_buf *flat = bd_chain_flatten(&chain);
    check(flat != NULL);
    bd_chain_deinit(&chain);
    return flat;
}

/* The three ways to read a bulk agree. */
static void walk_bulk(const px_bulk *b)
{
    px_walk w;
    uint64_t copied, scratch;
    px_walk_init(&w, b);
    for (size_t i = 0; i < px_bulk_count(b); i++) {
        px_bulk_copy(b, i, 1, &copied);
        const void *p = px_bulk_ptr(b, i, 1);
        check(memcmp(px_walk_next(&w, 1, &scratch), &copied, b->elem_bytes) == 0);
        check(p == NULL || memcmp(p, &copied, b->elem_bytes) == 0);
    }
}

static void walk(const px_desc *d, const uint8_t *msg)
{
    for (size_t i = 0; i < d->n_fields; i++) {
        const px_field *f = &d->fields[i];
        const uint8_t *subs;
        size_t n = 1;
        if (f->kind == PX_BYTES || f->kind == PX_BULK4 || f->kind == PX_BULKU4 ||
            f->kind == PX_BULK8) {
            walk_bulk((const px_bulk *)(const void *)(msg + f->offset));
        } else if (f->kind == PX_LIST || f->kind == PX_ONE) {
            memcpy(&subs, msg + f->offset, sizeof subs);
            if (f->kind == PX_LIST) {
                memcpy(&n, msg + f->count_offset, sizeof n);
            }
            for (size_t s = 0; subs != NULL && s < n; s++) {
                walk(f->sub, subs + s * f->sub->size_bytes);
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes < 2) {
        return 0;
    }
    const px_desc *d = messages[bytes[0] % (sizeof messages / sizeof messages[0])];
    bd_chain chain = {0};
    bd_arena arena;
    bd_err err = BD_ERR_INIT;
    bd_arena_init(&arena);
    void *msg = bd_arena_calloc(&arena, 1, d->size_bytes);
    slice(bytes + 2, n_bytes - 2, bytes[1], &chain);
    bd_status rc = px_decode(d, &chain, NULL, &arena, msg, &err);
    check(rc == BD_OK || (rc == BD_E_CORRUPT && err.code == rc));
    if (rc == BD_OK) {
        walk(d, msg);
        bd_buf *once = encode(d, msg);
        bd_chain again = {0};
        check(bd_chain_add(&again, once, 0, once->n_bytes) == BD_OK);
        check(px_decode(d, &again, NULL, &arena, msg, NULL) == BD_OK);
        bd_buf *twice = encode(d, msg);
        check(once->n_bytes == twice->n_bytes &&
              memcmp(once->bytes, twice->bytes, once->n_bytes) == 0);
        bd_buf_unref(twice);
        bd_chain_deinit(&again);
        bd_buf_unref(once);
    }
    bd_chain_deinit(&chain);
    bd_arena_deinit(&arena);
    return 0;
}
