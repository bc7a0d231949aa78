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
