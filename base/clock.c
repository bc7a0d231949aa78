#include "base/clock.h"

#include <errno.h>
#include <time.h>

static int64_t read_clock(clockid_t id)
{
    struct timespec t;
    (void)clock_gettime(id, &t);
    return (int64_t)t.tv_sec * BD_NS_PER_S + t.tv_nsec;
}

int64_t bd_mono_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t bd_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

void bd_sleep_ms(int64_t ms)
{
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * BD_NS_PER_MS};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

static int64_t real_now_ns(const bd_clock *c)
{
    (void)c;
    return bd_mono_ns();
}

const bd_clock *bd_clock_real(void)
{
    static const bd_clock real = {.now_ns = real_now_ns};
    return &real;
}

static int64_t virtual_now_ns(const bd_clock *c)
{
    const bd_clock_virtual *v = (const bd_clock_virtual *)c;
    return atomic_load_explicit(&v->now, memory_order_acquire);
}

void bd_clock_virtual_init(bd_clock_virtual *v, int64_t start_ns)
{
    v->clock.now_ns = virtual_now_ns;
    atomic_init(&v->now, start_ns);
}

void bd_clock_virtual_advance(bd_clock_virtual *v, int64_t by_ns)
{
    atomic_fetch_add_explicit(&v->now, by_ns, memory_order_acq_rel);
}
