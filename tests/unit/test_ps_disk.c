/* A disk that is full, read-only or broken while a server works: typed errors, nothing applied that
 * was refused, lookups go on, and so does everything when the disk is well again. */
#include "base/clock.h"
#include "base/log.h"

#include "tests/util/tu_disk_calls.h"
#include "tests/util/tu_shard.h"

#include <setjmp.h>
#include <stddef.h>

#include <cmocka.h>

static char dir[64];
static const ps_job job_of_all = {.epoch = 1, .world = TU_SHARD_WORLD, .consistency = PS_ASYNC};

static int make_dir(void **state)
{
    (void)state;
    tu_dir_new(dir);
    tu_disk_open(dir, true);
    return 0;
}

static int drop_dir(void **state)
{
    char name[96];
    (void)state;
    tu_disk_close();
    tu_disk_name(dir, name);
    (void)unlink(name);
    tu_dir_drop(dir);
    return 0;
}

/* Pushes until the server takes it; 60 s at most (RocksDB looks for room every few seconds). */
static void push_until_taken(ps_shard *s, uint32_t t, uint64_t seq)
{
    bd_err err;
    int64_t end = bd_mono_ns() + 60 * BD_NS_PER_S;
    while (tu_push_async(s, t, 0, seq, NULL, &err) != BD_OK) {
        if (bd_mono_ns() > end) {
            fail_msg("still refused: %s", bd_err_text(&err));
        }
        bd_sleep_ms(20);
    }
}

/* Full or read-only: each refused push says so and changes nothing, a checkpoint too; when there is
 * room again the same pushes are taken, and the end is that of an undisturbed run. */
static void refused_writes_change_nothing(void **state)
{
    (void)state;
    const int errnos[] = {ENOSPC, EROFS};
    const char *const words[] = {"No space", "Read-only"};
    bd_err err;
    ps_shard *s = tu_shard_must_open(dir);
    uint32_t t = tu_table(s, "t", PS_DURABILITY_JOURNAL);
    tu_must(tu_open_job(s, &job_of_all, "", &err), &err);
    for (uint64_t seq = 1; seq <= 12; seq++) {
        tu_must(tu_push_async(s, t, 0, seq, NULL, &err), &err);
    }
    uint64_t want = tu_hash(s);
    tu_shard_close(s);
    for (size_t i = 0; i < 2; i++) {
        tu_dir_clear(dir);
        s = tu_shard_must_open(dir);
        t = tu_table(s, "t", PS_DURABILITY_JOURNAL);
        tu_must(tu_open_job(s, &job_of_all, "", &err), &err);
        for (uint64_t seq = 1; seq <= 4; seq++) {
            tu_must(tu_push_async(s, t, 0, seq, NULL, &err), &err);
        }
        uint64_t before = tu_hash(s);
        atomic_store(&disk->fail, errnos[i]);
        for (uint64_t seq = 5; seq <= 7; seq++) {
            assert_int_equal(tu_push_async(s, t, 0, seq, NULL, &err), BD_E_IO);
            assert_non_null(strstr(bd_err_text(&err), words[i]));
        }
        assert_int_equal(tu_checkpoint(s, "c", 1, 0, &err), BD_E_IO);
        assert_int_equal(tu_hash(s), before);
        assert_true(tu_stats(s).disk_errors >= 3);
        atomic_store(&disk->fail, 0);
        push_until_taken(s, t, 5);
        for (uint64_t seq = 6; seq <= 12; seq++) {
            tu_must(tu_push_async(s, t, 0, seq, NULL, &err), &err);
        }
        assert_int_equal(tu_hash(s), want);
        tu_must(tu_checkpoint(s, "c", 1, 0, &err), &err);
        tu_shard_close(s);
        s = tu_shard_must_open(dir);
        assert_int_equal(tu_hash(s), want);
        tu_shard_close(s);
    }
}

/* A start on a full or read-only disk says which file it could not write. */
static void a_start_says_what_it_cannot_write(void **state)
{
    (void)state;
    const int errnos[] = {ENOSPC, EROFS};
    bd_err err;
    ps_shard *s = tu_shard_must_open(dir);
    tu_shard_close(s);
    for (size_t i = 0; i < 2; i++) {
        atomic_store(&disk->fail, errnos[i]);
        assert_int_equal(tu_shard_open(dir, &(ps_shard_options){0}, &s, &err), BD_E_IO);
        assert_non_null(strstr(bd_err_text(&err), dir));
        atomic_store(&disk->fail, 0);
        tu_must(tu_shard_open(dir, &(ps_shard_options){0}, &s, &err), &err);
        tu_shard_close(s);
    }
}

int main(void)
{
    bd_log_set_level(BD_LOG_ERROR);
    bd_log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(refused_writes_change_nothing, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_start_says_what_it_cannot_write, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
