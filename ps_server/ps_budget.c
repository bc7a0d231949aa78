#include "ps_server/ps_budget.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* jemalloc's, where it is linked: "arena.4096.purge" gives all free pages it keeps to the kernel.
 */
extern int mallctl(const char *name, void *old, size_t *old_bytes, void *value, size_t value_bytes)
    __attribute__((weak));

static size_t within(size_t x, size_t least, size_t most)
{
    return x < least ? least : x > most ? most : x;
}

void ps_budget_init(ps_budget *b, size_t total_bytes)
{
    memset(b, 0, sizeof *b);
    b->total_bytes = total_bytes;
    if (total_bytes == 0) {
        b->rows_bytes = SIZE_MAX;
        b->group_bytes = 128 * MIB;
        return;
    }
    b->memtable_bytes = within(total_bytes / 64, 4 * MIB, 64 * MIB);
    b->cache_bytes = within(total_bytes / 20, 8 * MIB, 4096 * MIB);
    b->stage_bytes = within(total_bytes / 32, 8 * MIB, 1024 * MIB);
    b->group_bytes = within(total_bytes / 64, 2 * MIB, 64 * MIB);
    size_t others = 4 * b->memtable_bytes + b->cache_bytes + 2 * b->stage_bytes +
                    2 * b->group_bytes + 48 * MIB + within(total_bytes / 32, 4 * MIB, 512 * MIB);
    b->rows_bytes = total_bytes > others ? total_bytes - others : 0;
}

bool ps_budget_take(ps_budget *b, size_t bytes)
{
    if (b == NULL) {
        return true;
    }
    size_t used = atomic_load_explicit(&b->used_bytes, memory_order_relaxed);
    do {
        /* A process that is full for another reason still gets half of what rows were promised. */
        bool full = atomic_load_explicit(&b->full, memory_order_relaxed);
        size_t limit = full ? b->rows_bytes / 2 : b->rows_bytes;
        if (used > limit || bytes > limit - used) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&b->used_bytes, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

void ps_budget_force(ps_budget *b, size_t bytes)
{
    if (b != NULL) {
        (void)atomic_fetch_add_explicit(&b->used_bytes, bytes, memory_order_relaxed);
    }
}

void ps_budget_give(ps_budget *b, size_t bytes)
{
    if (b != NULL) {
        (void)atomic_fetch_sub_explicit(&b->used_bytes, bytes, memory_order_relaxed);
    }
}

size_t ps_budget_resident_bytes(void)
{
    unsigned long long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f == NULL) {
        return 0;
    }
    char line[128], *end = NULL;
    if (fgets(line, sizeof line, f) != NULL) {
        all = strtoull(line, &end, 10);
        resident = end == line ? 0 : strtoull(end, NULL, 10);
    }
    (void)fclose(f);
    return all == 0 ? 0 : (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

void ps_budget_watch(ps_budget *b)
{
    if (!ps_budget_limits(b)) {
        return;
    }
    bool full = ps_budget_resident_bytes() >= b->total_bytes;
    if (full && mallctl != NULL && mallctl("arena.4096.purge", NULL, NULL, NULL, 0) == 0) {
        full = ps_budget_resident_bytes() >= b->total_bytes;
    }
    atomic_store(&b->full, full);
}
