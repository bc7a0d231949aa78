/* tests/util/ring_groups.h - groups of some ranks, made by their members only and by color, beside
 * their parent; for every backend that has a rendezvous. */
#ifndef TESTS_RING_GROUPS_H
#define TESTS_RING_GROUPS_H

#include "tests/util/ring_ranks.h"

/* Worlds of 4 and 5; fails the running test. */
void ring_groups_check(ranks_backend backend);

#endif
