/* base/clock.h - time as a parameter, so that tests run in virtual time.
 *
 * Layer:   base.
 * Threads: now_ns from any thread. A virtual clock is advanced by the test only.
 */
#ifndef BD_CLOCK_H
#define BD_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

#define BD_NS_PER_MS 1000000LL
#define BD_NS_PER_S  1000000000LL

typedef struct bd_clock bd_clock;
struct bd_clock {
    int64_t (*now_ns)(const bd_clock *c); /* monotonic */
};

/* CLOCK_MONOTONIC; never freed. */
const bd_clock *bd_clock_real(void);
static inline int64_t bd_now_ns(const bd_clock *c)
{
    return c->now_ns(c);
}
/* Monotonic and wall time of this machine without a clock object (logs, measurements). */
int64_t bd_mono_ns(void);
int64_t bd_wall_ns(void);
/* Blocks the calling thread; for retry back-off in programs, never in tests. */
void bd_sleep_ms(int64_t ms);

typedef struct bd_clock_virtual {
    bd_clock clock; /* pass &v->clock */
    _Atomic int64_t now;
} bd_clock_virtual;

void bd_clock_virtual_init(bd_clock_virtual *v, int64_t start_ns);
void bd_clock_virtual_advance(bd_clock_virtual *v, int64_t by_ns);

#endif
