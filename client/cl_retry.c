#include "client/cl_retry.h"

#include "base/clock.h"

#define FIRST_WAIT_MS 10
#define MAX_DOUBLINGS 6
#define MAX_WAIT_MS   500

/* A server that stops or starts answers with any of the first ones; requests are idempotent, so all
 * of them are sent again. */
static cl_verdict verdict_of(bd_status rc)
{
    switch (rc) {
    case BD_E_UNAVAILABLE:
    case BD_E_PEER_LOST:
    case BD_E_CANCELLED:
    case BD_E_TIMEOUT:
    case BD_E_EXHAUSTED:
        return CL_AGAIN;
    case BD_E_MOVED:
        return CL_REFRESH;
    case BD_E_NEED_PARTS:
        return CL_SEND_PARTS;
    default:
        return CL_FAIL;
    }
}

cl_verdict cl_retry_decide(cl_trouble *t, bd_status rc, int64_t now_ns, int64_t wait_ms,
                           uint64_t jitter)
{
    cl_verdict v = verdict_of(rc);
    if (v == CL_FAIL) {
        return v;
    }
    if (t->since_ns == 0) {
        t->since_ns = now_ns;
    }
    if (now_ns - t->since_ns >= wait_ms * BD_NS_PER_MS) {
        return CL_GIVE_UP;
    }
    unsigned doublings = t->n_failures < MAX_DOUBLINGS ? t->n_failures : MAX_DOUBLINGS;
    int64_t wait = (int64_t)FIRST_WAIT_MS << doublings;
    wait = wait < MAX_WAIT_MS ? wait : MAX_WAIT_MS;
    wait = (wait * BD_NS_PER_MS) / 2;
    wait += (int64_t)(jitter % (uint64_t)wait);
    if (v != CL_AGAIN && t->n_failures == 0) {
        wait = 0;
    }
    t->n_failures++;
    t->next_try_ns = now_ns + wait;
    return v;
}
