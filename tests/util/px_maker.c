#include "tests/util/px_maker.h"

#include "base/rand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

void pm_init(pm_maker *m, uint64_t seed)
{
    *m = (pm_maker){.seed = seed};
    bd_arena_init(&m->arena);
}

void pm_deinit(pm_maker *m)
{
    bd_arena_deinit(&m->arena);
    bd_chain_deinit(&m->held);
}

uint64_t pm_draw(pm_maker *m, uint64_t below)
{
    return bd_rand_u64(PM_SEED, m->seed, m->counter++) % below;
}

/* Numbers of every length, zeros and extremes among them. */
static uint64_t draw_number(pm_maker *m)
{
    uint64_t v = bd_rand_u64(PM_SEED, m->seed, m->counter++);
    return pm_draw(m, 4) == 0 ? 0 : v >> pm_draw(m, 64);
}

static px_bulk draw_bulk(pm_maker *m, size_t elem_bytes)
{
    size_t n = pm_draw(m, 3) == 0 ? 0 : pm_draw(m, 50), skip = pm_draw(m, 16);
    bd_buf *buf = bd_buf_new(skip + n * elem_bytes + pm_draw(m, 9));
    assert_non_null(buf);
    for (size_t i = 0; i < buf->n_bytes; i++) {
        buf->bytes[i] = (uint8_t)pm_draw(m, 256);
    }
    assert_int_equal(bd_chain_add_moved(&m->held, buf), BD_OK);
    return px_bulk_of(buf, skip, n, elem_bytes);
}

static void *draw_subs(pm_maker *m, const px_field *f, size_t n)
{
    uint8_t *items = bd_arena_calloc(&m->arena, n, f->sub->size_bytes);
    for (size_t i = 0; i < n; i++) {
        pm_message(m, f->sub, items + i * f->sub->size_bytes);
    }
    return items;
}

static void draw_field(pm_maker *m, const px_field *f, uint8_t *msg)
{
    uint64_t v = draw_number(m);
    uint32_t u32 = (uint32_t)v;
    bool flag = v & 1;
    px_bulk bulk;
    void *p;
    size_t n;
    switch (f->kind) {
    case PX_U32:
    case PX_S32:
    case PX_ENUM:
        memcpy(msg + f->offset, &u32, sizeof u32);
        break;
    case PX_BOOL:
        memcpy(msg + f->offset, &flag, sizeof flag);
        break;
    case PX_TEXT:
        n = pm_draw(m, 200);
        p = bd_arena_calloc(&m->arena, n + 1, 1);
        memset(p, 'a', n);
        memcpy(msg + f->offset, &p, sizeof p);
        break;
    case PX_BYTES:
    case PX_BULK4:
    case PX_BULKU4:
    case PX_BULK8:
        bulk = draw_bulk(m, f->kind == PX_BULK8 ? 8 : f->kind == PX_BYTES ? 1 : 4);
        memcpy(msg + f->offset, &bulk, sizeof bulk);
        break;
    case PX_LIST:
        n = pm_draw(m, 12);
        p = draw_subs(m, f, n);
        memcpy(msg + f->offset, &p, sizeof p);
        memcpy(msg + f->count_offset, &n, sizeof n);
        break;
    case PX_ONE:
        break; /* draw_message */
    default:
        memcpy(msg + f->offset, &v, sizeof v);
        break;
    }
}

void pm_message(pm_maker *m, const px_desc *d, uint8_t *msg)
{
    size_t chosen = pm_draw(m, d->n_fields);
    for (size_t i = 0; i < d->n_fields; i++) {
        draw_field(m, &d->fields[i], msg);
        if (d->fields[i].kind == PX_ONE && i == chosen) {
            void *p = draw_subs(m, &d->fields[i], 1);
            memcpy(msg + d->fields[i].offset, &p, sizeof p);
        }
    }
}

void pm_slice(pm_maker *m, const uint8_t *bytes, size_t n, size_t max_slice, bd_chain *out)
{
    while (n > 0) {
        size_t take = 1 + pm_draw(m, max_slice), skip = pm_draw(m, 8);
        take = take < n ? take : n;
        bd_buf *b = bd_buf_new(skip + take);
        assert_non_null(b);
        memcpy(b->bytes + skip, bytes, take);
        if (pm_draw(m, 5) == 0) {
            assert_int_equal(bd_chain_add(out, b, 0, 0), BD_OK);
        }
        assert_int_equal(bd_chain_add(out, b, skip, take), BD_OK);
        bd_buf_unref(b);
        bytes += take;
        n -= take;
    }
}
