#include "tests/util/tu_mem.h"

#include "base/clock.h"
#include "base/mem.h"

long tu_settled_blocks(void)
{
    long last = bd_mem_live_blocks();
    for (int same = 0, looks = 0; same < 20 && looks < 2000; looks++) {
        bd_sleep_ms(1);
        long now = bd_mem_live_blocks();
        same = now == last ? same + 1 : 0;
        last = now;
    }
    return last;
}

bool tu_blocks_come_under(long limit)
{
    const int64_t until = bd_mono_ns() + 20 * BD_NS_PER_S;
    while (bd_mem_live_blocks() >= limit && bd_mono_ns() < until) {
        bd_sleep_ms(1);
    }
    return bd_mem_live_blocks() < limit;
}
