#include "ps_server/ps_bags.h"

#include <string.h>

bd_status ps_bags_check(const ps_bags *b, size_t n_keys, bd_err *err)
{
    size_t n_begun = 0;
    uint32_t top = 0;
    for (size_t i = 0; i < b->n_entries; i++) {
        uint32_t bag = b->entries[i] & ~PS_BAG_SAME_KEY;
        n_begun += (b->entries[i] & PS_BAG_SAME_KEY) == 0;
        top = bag > top ? bag : top;
    }
    if (b->n_entries > 0 && (b->entries[0] & PS_BAG_SAME_KEY) != 0) {
        return bd_err_set(err, BD_E_INVALID, "the first entry of the bags belongs to no key");
    }
    if (n_begun != n_keys) {
        return bd_err_set(err, BD_E_INVALID, "the bags have entries of %zu keys, there are %zu",
                          n_begun, n_keys);
    }
    if (b->n_entries > 0 && top >= b->n_bags) {
        return bd_err_set(err, BD_E_INVALID, "bag %u of %u", top, b->n_bags);
    }
    return BD_OK;
}

size_t ps_bags_pool(const ps_bags *b, const float *rows, size_t dim, size_t entry, size_t n_keys,
                    float *out)
{
    ps_bag_walk w = {b, dim, entry};
    for (size_t i = 0; i < n_keys; i++) {
        ps_bag_add(&w, rows + i * dim, out);
    }
    return w.entry;
}

size_t ps_bags_expand(const ps_bags *b, const float *bag_grads, size_t dim, size_t entry,
                      size_t n_keys, float *grads)
{
    ps_bag_walk w = {b, dim, entry};
    for (size_t i = 0; i < n_keys; i++) {
        float *to = grads + i * dim;
        const float *g = ps_bag_grad(&w, bag_grads, to);
        if (g != to) {
            memcpy(to, g, dim * sizeof *to);
        }
    }
    return w.entry;
}
