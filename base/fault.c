#include "base/fault.h"

#include "base/rand.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_POINTS 32

typedef struct point {
    char name[64];
    bool kill, hold;
    bool holds;     /* a thread is held here */
    long hits_left; /* fires when it is 0 at a hit; negative: fired. share: hits so far */
    long share;     /* thousandths of all hits; -1: it fires once */
} point;

static _Atomic long alloc_countdown = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static point points[MAX_POINTS]; /* under lock */
static int n_points;             /* under lock */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned long n_disarms; /* under lock */
static _Atomic bool any_armed;
static pthread_once_t env_once = PTHREAD_ONCE_INIT;

void bd_fault_fail_alloc(long nth)
{
    atomic_store(&alloc_countdown, nth);
}

bool bd_fault_alloc_fails(void)
{
    if (atomic_load_explicit(&alloc_countdown, memory_order_relaxed) < 0) {
        return false;
    }
    return atomic_fetch_sub(&alloc_countdown, 1) == 0;
}

bool bd_fault_arm(const char *name, const char *kind, long nth)
{
    bool kill = strcmp(kind, "kill") == 0, share = strcmp(kind, "share") == 0;
    bool hold = strcmp(kind, "hold") == 0;
    if (!kill && !share && !hold && strcmp(kind, "fail") != 0) {
        return false;
    }
    (void)pthread_mutex_lock(&lock);
    bool ok = n_points < MAX_POINTS;
    if (ok) {
        point *p = &points[n_points++];
        (void)snprintf(p->name, sizeof p->name, "%s", name);
        p->kill = kill;
        p->hold = hold;
        p->holds = false;
        p->hits_left = share ? 0 : nth;
        p->share = share ? nth : -1;
        atomic_store(&any_armed, true);
    }
    (void)pthread_mutex_unlock(&lock);
    return ok;
}

void bd_fault_disarm_all(void)
{
    (void)pthread_mutex_lock(&lock);
    n_points = 0;
    n_disarms++;
    atomic_store(&any_armed, false);
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static bool is_held(const char *name)
{
    for (int i = 0; i < n_points; i++) {
        if (points[i].holds && strcmp(points[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

void bd_fault_await_hold(const char *name)
{
    (void)pthread_mutex_lock(&lock);
    while (!is_held(name)) {
        (void)pthread_cond_wait(&changed, &lock);
    }
    (void)pthread_mutex_unlock(&lock);
}

/* Under the lock, which is given up meanwhile; p is not to be looked at afterwards. */
static void stay(point *p)
{
    unsigned long since = n_disarms;
    p->holds = true;
    (void)pthread_cond_broadcast(&changed);
    while (n_disarms == since) {
        (void)pthread_cond_wait(&changed, &lock);
    }
}

static void arm_one(char *item)
{
    char *eq = strchr(item, '=');
    if (eq == NULL) {
        return;
    }
    *eq = '\0';
    char *colon = strchr(eq + 1, ':');
    long nth = 0;
    if (colon != NULL) {
        *colon = '\0';
        nth = strtol(colon + 1, NULL, 10);
    }
    (void)bd_fault_arm(item, eq + 1, nth);
}

static void arm_from_environment(void)
{
    const char *env = getenv("BRAID_FAULTS"); // NOLINT(concurrency-mt-unsafe): nobody calls setenv
    if (env == NULL) {
        return;
    }
    char text[1024];
    (void)snprintf(text, sizeof text, "%s", env);
    char *save = NULL;
    for (char *item = strtok_r(text, ",", &save); item != NULL; item = strtok_r(NULL, ",", &save)) {
        arm_one(item);
    }
}

bool bd_fault_hit(const char *name)
{
    (void)pthread_once(&env_once, arm_from_environment);
    if (!atomic_load_explicit(&any_armed, memory_order_relaxed)) {
        return false;
    }
    bool fires = false;
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < n_points; i++) {
        point *p = &points[i];
        if (p->share >= 0) {
            fires = fires || (strcmp(p->name, name) == 0 &&
                              (long)(bd_mix64((uint64_t)p->hits_left++) % 1000) < p->share);
        } else if (p->hits_left >= 0 && strcmp(p->name, name) == 0 && p->hits_left-- == 0) {
            fires = !p->hold;
            if (p->kill) {
                (void)raise(SIGKILL);
            }
            if (p->hold) {
                stay(p);
                break;
            }
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return fires;
}
