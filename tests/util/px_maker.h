/* tests/util/px_maker.h - random messages of the bulk codec, and bytes cut into slices.
 *
 * Layer:     tests. The same numbers for the same seed.
 * Ownership: what a message points to belongs to its maker.
 */
#ifndef PX_MAKER_H
#define PX_MAKER_H

#include "proto/px_int.h"

#define PM_SEED 20240607u

typedef struct pm_maker {
    uint64_t seed, counter;
    bd_arena arena;
    bd_chain held; /* keeps the bulk buffers alive */
} pm_maker;

void pm_init(pm_maker *m, uint64_t seed);
void pm_deinit(pm_maker *m);
/* 0 .. below - 1. */
uint64_t pm_draw(pm_maker *m, uint64_t below);
/* Fills msg, zeroed and d->size_bytes long: numbers of every length, bulks at odd places. */
void pm_message(pm_maker *m, const px_desc *d, uint8_t *msg);
/* The bytes as slices of 1..max_slice bytes at odd addresses, empty ones among them. */
void pm_slice(pm_maker *m, const uint8_t *bytes, size_t n, size_t max_slice, bd_chain *out);

#endif
