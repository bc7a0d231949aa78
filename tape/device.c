#include "base/mem.h"

#include "tape/kernels.h"

#include <string.h>

struct tp_pool {
    tp_device *dev;
    struct block {
        void *bytes; /* owned device memory */
        size_t cap_bytes, used_bytes;
    } * blocks; /* the last one is current */
    size_t n_blocks, cap_blocks;
    size_t want_bytes; /* all blocks together: one block of this size after reset */
};

#define ALIGN_BYTES     ((size_t)64)
#define MIN_BLOCK_BYTES ((size_t)256 << 10)

void tp_device_free(tp_device *dev)
{
    if (dev == NULL) {
        return;
    }
    tp_device_mem_free(dev, dev->workspace);
    dev->ops->destroy(dev);
}

const char *tp_device_name(const tp_device *dev)
{
    return dev->ops->name;
}

int tp_device_threads(const tp_device *dev)
{
    return dev->n_threads;
}

void tp_device_fail(tp_device *dev, bd_status code, const char *text)
{
    if (dev->sticky.code == BD_OK) {
        (void)bd_err_set(&dev->sticky, code, "%s: %s", dev->ops->name, text);
    }
}

bd_status tp_device_check(tp_device *dev, bd_err *err)
{
    if (dev->sticky.code == BD_OK) {
        return BD_OK;
    }
    return bd_err_set(err, dev->sticky.code, "%s", dev->sticky.text);
}

bd_status tp_device_wait(tp_device *dev, bd_err *err)
{
    bd_status rc = dev->ops->wait(dev, err);
    return rc == BD_OK ? tp_device_check(dev, err) : rc;
}

tp_event tp_device_record(tp_device *dev)
{
    return dev->ops->record(dev);
}

bool tp_event_is_done(tp_device *dev, tp_event ev)
{
    return dev->ops->event_done(dev, ev);
}

bd_status tp_event_wait(tp_device *dev, tp_event ev, bd_err *err)
{
    return tp_event_is_done(dev, ev) ? tp_device_check(dev, err) : tp_device_wait(dev, err);
}

void *tp_device_alloc(tp_device *dev, size_t n_bytes)
{
    return dev->ops->alloc(dev, n_bytes);
}

void tp_device_mem_free(tp_device *dev, void *p)
{
    if (p != NULL) {
        dev->ops->free(dev, p);
    }
}

void *tp_device_workspace(tp_device *dev, size_t n_bytes)
{
    if (dev->workspace_bytes < n_bytes) {
        void *p = tp_device_alloc(dev, n_bytes);
        if (p == NULL) {
            return NULL;
        }
        tp_device_mem_free(dev, dev->workspace);
        dev->workspace = p;
        dev->workspace_bytes = n_bytes;
    }
    return dev->workspace;
}

bd_status tp_pool_new(tp_device *dev, tp_pool **out, bd_err *err)
{
    tp_pool *p = bd_calloc(1, sizeof(*p));
    if (p == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "step memory: out of memory");
    }
    p->dev = dev;
    *out = p;
    return BD_OK;
}

static void free_blocks(tp_pool *p)
{
    for (size_t i = 0; i < p->n_blocks; i++) {
        tp_device_mem_free(p->dev, p->blocks[i].bytes);
    }
    p->n_blocks = 0;
}

void tp_pool_free(tp_pool *p)
{
    if (p == NULL) {
        return;
    }
    free_blocks(p);
    bd_free(p->blocks);
    bd_free(p);
}

/* A new current block; NULL when out of memory. */
static struct block *add_block(tp_pool *p, const struct block *current, size_t n_bytes)
{
    size_t cap = current == NULL ? p->want_bytes : current->cap_bytes * 2;
    cap = cap < MIN_BLOCK_BYTES ? MIN_BLOCK_BYTES : cap;
    cap = cap < n_bytes ? n_bytes : cap;
    void *bytes = tp_device_alloc(p->dev, cap);
    if (bytes == NULL ||
        !bd_grow(&p->blocks, &p->cap_blocks, p->n_blocks + 1, sizeof(*p->blocks))) {
        tp_device_mem_free(p->dev, bytes);
        return NULL;
    }
    struct block *b = &p->blocks[p->n_blocks++];
    *b = (struct block){.bytes = bytes, .cap_bytes = cap};
    return b;
}

void *tp_pool_alloc(tp_pool *p, size_t n_bytes)
{
    size_t need;
    if (!bd_add_size(n_bytes, ALIGN_BYTES - 1, &need)) {
        return NULL;
    }
    need &= ~(ALIGN_BYTES - 1);
    struct block *b = p->n_blocks > 0 ? &p->blocks[p->n_blocks - 1] : NULL;
    if (b == NULL || b->cap_bytes - b->used_bytes < need) {
        b = add_block(p, b, need);
        if (b == NULL) {
            return NULL;
        }
    }
    void *mem = (char *)b->bytes + b->used_bytes;
    b->used_bytes += need;
    return mem;
}

/* Several blocks become one of their total size at the next use, so that every step of a steady
 * loop sees the same addresses. */
void tp_pool_reset(tp_pool *p)
{
    if (p->n_blocks > 1) {
        p->want_bytes = 0;
        for (size_t i = 0; i < p->n_blocks; i++) {
            p->want_bytes += p->blocks[i].cap_bytes;
        }
        free_blocks(p);
    } else if (p->n_blocks == 1) {
        p->blocks[0].used_bytes = 0;
    }
}
