/* ring_alloc of the shm backend: first fit over blocks that tile the own arena's heap. Allocations
 * are few and large (buckets), so a list is enough; its bookkeeping is outside the shared memory.
 */
#include "base/fault.h"
#include "base/mem.h"

#include "ring/ring_shm_int.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>

/* Blocks of this size and more are whole pages, which go back to the system when released. */
#define PAGE_BYTES ((size_t)4096)

bd_status ring_shm_heap_init(ring_shm *s, bd_err *err)
{
    ring_shm_heap *h = &s->heap;
    (void)pthread_mutex_init(&h->lock, NULL);
    if (!bd_grow(&h->blocks, &h->cap, 1, sizeof *h->blocks)) {
        return bd_err_set(err, BD_E_NOMEM, "shared memory");
    }
    size_t all = s->peers[s->rank].map_bytes - s->heap_at;
    h->blocks[0] = (ring_shm_block){.at = s->heap_at, .n_bytes = all};
    h->n_blocks = 1;
    return BD_OK;
}

void ring_shm_heap_deinit(ring_shm *s)
{
    (void)pthread_mutex_destroy(&s->heap.lock);
    bd_free(s->heap.blocks);
}

static void insert(ring_shm_heap *h, size_t idx, ring_shm_block b)
{
    for (size_t i = h->n_blocks; i > idx; i--) {
        h->blocks[i] = h->blocks[i - 1];
    }
    h->blocks[idx] = b;
    h->n_blocks++;
}

static void erase(ring_shm_heap *h, size_t idx)
{
    h->n_blocks--;
    for (size_t i = idx; i < h->n_blocks; i++) {
        h->blocks[i] = h->blocks[i + 1];
    }
}

static size_t find_free(const ring_shm_heap *h, size_t n_bytes)
{
    for (size_t i = 0; i < h->n_blocks; i++) {
        if (!h->blocks[i].is_used && h->blocks[i].n_bytes >= n_bytes) {
            return i;
        }
    }
    return SIZE_MAX;
}

void *ring_shm_alloc(ring_backend *b, size_t n_bytes)
{
    ring_shm *s = (ring_shm *)b;
    ring_shm_heap *h = &s->heap;
    uint8_t *p = NULL;
    size_t need = 0;
    n_bytes = n_bytes > 0 ? n_bytes : 1;
    if (bd_fault_alloc_fails() || !bd_add_size(n_bytes, PAGE_BYTES - 1, &need)) {
        return NULL;
    }
    need = need / PAGE_BYTES * PAGE_BYTES;
    (void)pthread_mutex_lock(&h->lock);
    size_t i = find_free(h, need);
    if (i != SIZE_MAX && bd_grow(&h->blocks, &h->cap, h->n_blocks + 1, sizeof *h->blocks)) {
        ring_shm_block *found = &h->blocks[i];
        size_t rest = found->n_bytes - need;
        found->n_bytes = need;
        found->is_used = true;
        p = s->peers[s->rank].map + found->at;
        if (rest > 0) {
            insert(h, i + 1, (ring_shm_block){.at = found->at + need, .n_bytes = rest});
        }
    }
    (void)pthread_mutex_unlock(&h->lock);
    return p;
}

/* Neighbours that are free become one. */
static void merge_at(ring_shm_heap *h, size_t i)
{
    if (i + 1 < h->n_blocks && !h->blocks[i + 1].is_used) {
        h->blocks[i].n_bytes += h->blocks[i + 1].n_bytes;
        erase(h, i + 1);
    }
    if (i > 0 && !h->blocks[i - 1].is_used) {
        h->blocks[i - 1].n_bytes += h->blocks[i].n_bytes;
        erase(h, i);
    }
}

uint64_t ring_shm_at(const ring_shm *s, const void *p, size_t n_bytes)
{
    const ring_shm_peer *own = &s->peers[s->rank];
    uintptr_t base = (uintptr_t)own->map;
    uintptr_t at = (uintptr_t)p;
    bool inside = at >= base + s->heap_at && at < base + own->map_bytes &&
                  n_bytes <= base + own->map_bytes - at;
    return inside ? at - base : RING_SHM_PRIVATE;
}

bool ring_shm_release(ring_backend *b, void *p)
{
    ring_shm *s = (ring_shm *)b;
    ring_shm_heap *h = &s->heap;
    uint64_t at = ring_shm_at(s, p, 1);
    if (at == RING_SHM_PRIVATE) {
        return false;
    }
    (void)pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < h->n_blocks; i++) {
        if (h->blocks[i].at == at && h->blocks[i].is_used) {
            h->blocks[i].is_used = false;
            (void)fallocate(s->arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                            (off_t)h->blocks[i].n_bytes); /* only memory use depends on it */
            merge_at(h, i);
            break;
        }
    }
    (void)pthread_mutex_unlock(&h->lock);
    return true;
}
