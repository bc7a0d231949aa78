#include "ps_server/ps_hot.h"

#include "base/mem.h"

#include <stdlib.h>

bool ps_hot_init(ps_hot *h, size_t most)
{
    *h = (ps_hot){.most = most, .items = bd_calloc(most + 1, sizeof *h->items)};
    return h->items != NULL;
}

void ps_hot_deinit(ps_hot *h)
{
    bd_free(h->items);
    *h = (ps_hot){0};
}

static bool colder(const ps_hot_key *a, const ps_hot_key *b)
{
    return a->freq != b->freq ? a->freq < b->freq : a->key > b->key;
}

static void swap(ps_hot_key *a, ps_hot_key *b)
{
    ps_hot_key x = *a;
    *a = *b;
    *b = x;
}

static void sift_down(ps_hot *h)
{
    for (size_t i = 0;;) {
        size_t least = i, left = 2 * i + 1;
        for (size_t k = left; k < left + 2 && k < h->n; k++) {
            least = colder(&h->items[k], &h->items[least]) ? k : least;
        }
        if (least == i) {
            return;
        }
        swap(&h->items[i], &h->items[least]);
        i = least;
    }
}

void ps_hot_offer(ps_hot *h, const ps_hot_key *k)
{
    h->n_rows++;
    h->pushes += k->freq;
    if (h->n < h->most) {
        size_t i = h->n++;
        h->items[i] = *k;
        while (i > 0 && colder(&h->items[i], &h->items[(i - 1) / 2])) {
            swap(&h->items[i], &h->items[(i - 1) / 2]);
            i = (i - 1) / 2;
        }
    } else if (h->n > 0 && colder(&h->items[0], k)) {
        h->items[0] = *k;
        sift_down(h);
    }
}

static int hottest_first(const void *a, const void *b)
{
    const ps_hot_key *x = a, *y = b;
    return colder(x, y) ? 1 : colder(y, x) ? -1 : 0;
}

void ps_hot_sort(ps_hot *h)
{
    if (h->n > 1) {
        qsort(h->items, h->n, sizeof *h->items, hottest_first);
    }
}
