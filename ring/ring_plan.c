#include "ring/ring_plan.h"

bd_status ring_plan_span(size_t total_elems, uint32_t world, uint32_t chunk, ring_span *out)
{
    if (world == 0 || chunk >= world) {
        return BD_E_INVALID;
    }
    size_t base = total_elems / world;
    size_t longer = total_elems % world;
    size_t extra = chunk < longer ? chunk : longer;
    out->first_elem = chunk * base + extra;
    out->elems = base + (chunk < longer ? 1 : 0);
    return BD_OK;
}

size_t ring_plan_seg_elems(size_t chunk_elems, size_t elem_bytes)
{
    size_t least = RING_SEGMENT_MIN_BYTES / elem_bytes;
    size_t most = RING_SEGMENT_BYTES / elem_bytes;
    size_t n = chunk_elems / 4;
    n = n < least ? least : n;
    return n < most ? n : most;
}

uint32_t ring_plan_n_segments(const ring_span *span, size_t seg_elems)
{
    size_t n = span->elems / seg_elems + (span->elems % seg_elems != 0 ? 1 : 0);
    return n == 0 ? 1 : (uint32_t)n;
}

ring_span ring_plan_segment(const ring_span *span, size_t seg_elems, uint32_t idx)
{
    size_t skip = idx * seg_elems;
    size_t left = skip < span->elems ? span->elems - skip : 0;
    return (ring_span){.first_elem = span->first_elem + skip,
                       .elems = left < seg_elems ? left : seg_elems};
}

uint32_t ring_plan_chunk(uint32_t first, uint32_t world, uint64_t step)
{
    uint32_t back = (uint32_t)(step % world);
    return (first + world - back) % world;
}

/* Ranks renumbered so that the root is 0, and back. */
static int to_virtual(int rank, int world, int root)
{
    return (rank - root + world) % world;
}

static int to_rank(int v, int world, int root)
{
    return (v + root) % world;
}

int ring_plan_parent(int rank, int world, int root, int chain)
{
    int v = to_virtual(rank, world, root);
    if (v == 0) {
        return -1;
    }
    return to_rank(chain ? v - 1 : v & (v - 1), world, root);
}

int ring_plan_child(int rank, int world, int root, int chain, int idx)
{
    int v = to_virtual(rank, world, root);
    if (chain) {
        return idx == 0 && v + 1 < world ? to_rank(v + 1, world, root) : -1;
    }
    /* v's children are v + 2^k below v's lowest set bit; the farthest (with the largest subtree)
     * comes first. */
    int limit = v == 0 ? world : v & -v;
    int bit = 1;
    while (bit * 2 < limit) {
        bit *= 2;
    }
    if (bit >= limit) {
        return -1;
    }
    while (bit > 0 && v + bit >= world) {
        bit /= 2;
    }
    bit >>= idx;
    return bit > 0 ? to_rank(v + bit, world, root) : -1;
}

uint32_t ring_plan_rounds(int world)
{
    uint32_t n = 0;
    while (((int64_t)1 << n) < world) {
        n++;
    }
    return n;
}
