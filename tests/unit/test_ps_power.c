/* Power loss: what was not synced is gone. Tables with durability sync lose nothing that was
 * answered, whatever the server was doing: journal, write-back, checkpoint. */
#include "base/log.h"

#include "ps_server/ps_rocks.h"

#include "tests/util/tu_disk_calls.h"
#include "tests/util/tu_shard.h"

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

#include <cmocka.h>

#define ROUNDS   8u
#define N_PUSHES 40u

static char dir[64];
static const ps_job job_of_all = {.epoch = 1, .world = TU_SHARD_WORLD, .consistency = PS_ASYNC};

static int make_dir(void **state)
{
    (void)state;
    tu_dir_new(dir);
    return 0;
}

static int drop_dir(void **state)
{
    char name[96];
    (void)state;
    tu_disk_name(dir, name);
    (void)unlink(name);
    tu_dir_drop(dir);
    return 0;
}

/* Cuts every file to what was synced and a random piece more; removes what has no durable entry. */
static void power_off(uint64_t seed)
{
    tu_disk *d = disk;
    disk = NULL; /* this is the disk itself at work */
    for (uint64_t i = 0; i < TU_DISK_FILES; i++) {
        tu_disk_file *f = &d->files[i];
        struct stat st;
        bd_err err;
        if (f->path[0] == '\0' || strcmp(f->path, d->root) == 0 || stat(f->path, &st) != 0) {
            continue;
        }
        if (!f->is_durable && f->is_dir) {
            (void)!ps_dir_remove(f->path, &err);
        } else if (!f->is_durable) {
            (void)unlink(f->path);
        } else if (!f->is_dir && (uint64_t)st.st_size > f->synced_bytes) {
            uint64_t more = (uint64_t)st.st_size - f->synced_bytes;
            uint64_t kept = seed % 2 == 0 ? 0 : bd_rand_u64(seed, 3, i) % (more + 1);
            assert_int_equal(truncate(f->path, (off_t)(f->synced_bytes + kept)), 0);
        }
    }
    disk = d;
}

/* A child that pushes until it is killed: after `kills_at` answers it gets SIGKILL from its own
 * next answer's moment on, by a seed inside a push. */
static int child(char **argv)
{
    bd_err err;
    ps_shard *s = NULL;
    tu_disk_open(argv[2], true);
    (void)disk_add(argv[2], 0, true, true);
    uint64_t dies_after = (uint64_t)strtoull(argv[4], NULL, 10);
    tu_must(tu_shard_open(argv[2], &(ps_shard_options){.journal_cap_bytes = 8192}, &s, &err), &err);
    uint32_t t = tu_table(s, "t", (ps_durability)strtol(argv[3], NULL, 10));
    tu_must(tu_open_job(s, &job_of_all, "", &err), &err);
    for (uint64_t seq = 1; seq <= N_PUSHES; seq++) {
        tu_must(tu_push_async(s, t, 0, seq, NULL, &err), &err);
        atomic_store(&disk->answered, seq);
        if (seq == N_PUSHES / 2) {
            tu_must(tu_checkpoint(s, "c", 1, 0, &err), &err);
        }
        if (seq == dies_after) {
            (void)raise(SIGKILL); /* write-back may be on its way just then */
        }
    }
    return 1;
}

/* Dies, loses power, comes back: how many answered pushes are gone; the rest is pushed again and
 * the rows are those of an undisturbed run. */
static uint64_t lose_power(ps_durability d, uint64_t seed, uint64_t want)
{
    char durability[4], after[16];
    (void)snprintf(durability, sizeof durability, "%d", (int)d);
    (void)snprintf(after, sizeof after, "%" PRIu64, 1 + bd_rand_u64(seed, 1, 0) % (N_PUSHES - 1));
    const char *args[] = {dir, durability, after, NULL};
    int status = tu_child(args);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    tu_disk_open(dir, false);
    assert_true(atomic_load(&disk->n_syncs) > 0);
    power_off(seed);
    uint64_t answered = atomic_load(&disk->answered), lost = 0;
    tu_disk_close();
    ps_shard *s = NULL;
    bd_err err;
    tu_must(tu_shard_open(dir, &(ps_shard_options){0}, &s, &err), &err);
    uint32_t t = tu_table(s, "t", d);
    tu_must(tu_open_job(s, &job_of_all, "", &err), &err);
    for (uint64_t seq = 1; seq <= N_PUSHES; seq++) {
        bool dup = false;
        tu_must(tu_push_async(s, t, 0, seq, &dup, &err), &err);
        lost += seq <= answered && !dup;
    }
    assert_int_equal(tu_hash(s), want);
    tu_shard_close(s);
    tu_dir_clear(dir);
    return lost;
}

static uint64_t undisturbed(ps_durability d)
{
    bd_err err;
    ps_shard *s = tu_shard_must_open(dir);
    uint32_t t = tu_table(s, "t", d);
    tu_must(tu_open_job(s, &job_of_all, "", &err), &err);
    for (uint64_t seq = 1; seq <= N_PUSHES; seq++) {
        tu_must(tu_push_async(s, t, 0, seq, NULL, &err), &err);
    }
    uint64_t hash = tu_hash(s);
    tu_shard_close(s);
    tu_dir_clear(dir);
    return hash;
}

static void sync_tables_lose_nothing_answered(void **state)
{
    (void)state;
    uint64_t want = undisturbed(PS_DURABILITY_SYNC);
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        assert_int_equal(lose_power(PS_DURABILITY_SYNC, seed, want), 0);
    }
}

/* The disk of this test does forget: journal tables lose the end of what was answered, and what is
 * left is a whole beginning. */
static void journal_tables_keep_a_beginning(void **state)
{
    (void)state;
    uint64_t want = undisturbed(PS_DURABILITY_JOURNAL), lost = 0;
    for (uint64_t seed = 1; seed <= ROUNDS / 2; seed++) {
        lost += lose_power(PS_DURABILITY_JOURNAL, seed, want);
    }
    assert_true(lost > 0);
}

int main(int argc, char **argv)
{
    bd_log_set_level(BD_LOG_ERROR);
    if (argc == 5 && strcmp(argv[1], "child") == 0) {
        return child(argv);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sync_tables_lose_nothing_answered, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(journal_tables_keep_a_beginning, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
