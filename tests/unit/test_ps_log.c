/* The log of records and the page cache: what it tells the kernel of its files while they grow. */
#include "base/mem.h"

#include "ps_server/ps_log.h"
#include "ps_server/ps_rocks.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define API         __attribute__((visibility("default"))) /* calls that this program takes over */
#define FRAME_BYTES ((size_t)8 << 20)                      /* more than the log writes at once */

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/test_ps_log.XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int drop_dir(void **state)
{
    bd_err err;
    (void)state;
    return ps_dir_remove(dir, &err) != BD_OK;
}

/* ---- what the kernel is told ---- */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static off_t started_bytes; /* of the file, on their way to the disk; under lock */
static off_t dropped_bytes; /* of the file, from its beginning; under lock */

static void note(off_t *what, off_t n)
{
    (void)pthread_mutex_lock(&lock);
    *what = n;
    (void)pthread_cond_signal(&told);
    (void)pthread_mutex_unlock(&lock);
}

/* Both are hints: nothing has to be done. */
int sync_file_range(int fd, off_t from, off_t n, unsigned flags) API;
int sync_file_range(int fd, off_t from, off_t n, unsigned flags)
{
    (void)fd;
    (void)flags;
    note(&started_bytes, from + n);
    return 0;
}

int posix_fadvise(int fd, off_t from, off_t n, int advice) API;
int posix_fadvise(int fd, off_t from, off_t n, int advice)
{
    (void)fd;
    note(&dropped_bytes, from == 0 && advice == POSIX_FADV_DONTNEED ? n : -1);
    return 0;
}

/* Waits until *what is another; 30 s at most. */
static off_t next_of(const off_t *what, off_t before)
{
    struct timespec until;
    int rc = 0;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    (void)pthread_mutex_lock(&lock);
    while (rc == 0 && *what == before) {
        rc = pthread_cond_timedwait(&told, &lock, &until);
    }
    off_t now = *what;
    (void)pthread_mutex_unlock(&lock);
    assert_int_equal(rc, 0);
    return now;
}

static bd_status no_frame(void *user, const ps_frame *f, bd_err *err)
{
    (void)user;
    (void)f;
    (void)err;
    return BD_OK;
}

/* When a piece of a file goes to the disk, what went before it leaves the page cache: records are
 * read at a start alone. */
static void written_records_leave_the_page_cache(void **state)
{
    (void)state;
    bd_err err;
    ps_log *l = NULL;
    off_t started = 0, dropped = 0;
    uint8_t *facts = bd_calloc(FRAME_BYTES, 1);
    assert_int_equal(ps_log_open(dir, 0, false, no_frame, NULL, &l, &err), BD_OK);
    for (uint64_t k = 1; k <= 4; k++) {
        off_t before = started;
        assert_int_equal(ps_log_append(l, k, facts, FRAME_BYTES, NULL, &err), BD_OK);
        started = next_of(&started_bytes, before);
        assert_int_equal(started, k * (FRAME_BYTES + PS_LOG_FRAME_BYTES));
        if (k > 1) {
            dropped = next_of(&dropped_bytes, dropped);
            assert_int_equal(dropped, before);
        }
    }
    ps_log_close(l);
    bd_free(facts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(written_records_leave_the_page_cache, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
