/* What each durability promises, and what a start says when something that was promised is not
 * there. A crash is a child process that a fault point kills. */
#include "base/fault.h"
#include "base/log.h"

#include "ps_server/ps_rocks.h"

#include "tests/util/tu_shard.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static const ps_job sync_job = {.epoch = 1, .world = TU_SHARD_WORLD, .consistency = PS_SYNC};
static const ps_job async_job = {.epoch = 1, .world = TU_SHARD_WORLD, .consistency = PS_ASYNC};

/* For a sweep that takes nobody. */
static bool is_alive(const ps_waiter *w)
{
    (void)w;
    return false;
}

static int make_dir(void **state)
{
    (void)state;
    tu_dir_new(dir);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    bd_fault_disarm_all();
    tu_dir_drop(dir);
    return 0;
}

/* A child that trains steps 1..8 (a checkpoint `c` after step 4) and dies at the point. */
static void die(const char *durability, const char *second, const char *point, const char *nth)
{
    const char *args[] = {dir, durability, second, point, nth, NULL};
    int status = tu_child(args);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static int child(char **argv)
{
    bd_err err;
    ps_shard *s = tu_shard_must_open(argv[2]);
    uint32_t t = tu_table(s, "t", (ps_durability)strtol(argv[3], NULL, 10));
    uint32_t u = strtol(argv[4], NULL, 10) == 0
                     ? 0
                     : tu_table(s, "u", (ps_durability)strtol(argv[4], NULL, 10));
    tu_must(tu_open_job(s, &sync_job, "", &err), &err);
    if (!bd_fault_arm(argv[5], "kill", strtol(argv[6], NULL, 10))) {
        return 1;
    }
    tu_train(s, t, u, 1, 4);
    tu_must(tu_checkpoint(s, "c", 1, 4, &err), &err);
    tu_train(s, t, u, 5, 8);
    return 0;
}

/* The hash after step 4 and after step 8 of a run that nothing disturbs. */
static void undisturbed(ps_durability d, ps_durability second, uint64_t hash[2])
{
    bd_err err;
    ps_shard *s = tu_shard_must_open(dir);
    uint32_t t = tu_table(s, "t", d), u = second == 0 ? 0 : tu_table(s, "u", second);
    tu_must(tu_open_job(s, &sync_job, "", &err), &err);
    tu_train(s, t, u, 1, 4);
    hash[0] = tu_hash(s);
    tu_train(s, t, u, 5, 8);
    hash[1] = tu_hash(s);
    tu_shard_close(s);
    tu_dir_clear(dir);
}

/* Everything a lost server must refuse until the job is restored. */
static void refuses_all(ps_shard *s, uint32_t table)
{
    bd_err err;
    ps_job next = sync_job;
    next.epoch = 2;
    assert_int_equal(tu_push_sync(s, table, 0, 7, 0, &err), BD_E_LOST);
    assert_non_null(strstr(bd_err_text(&err), "resume the job from a checkpoint"));
    assert_int_equal(tu_decide(s, 1, 7, PS_WAIT_COMMIT, &err), BD_E_LOST);
    assert_int_equal(tu_open_job(s, &next, "", &err), BD_E_LOST);
    assert_int_equal(tu_open_job(s, &sync_job, "", &err), BD_E_LOST);
    assert_int_equal(tu_checkpoint(s, "d", 1, 4, &err), BD_E_LOST);
    assert_true(tu_stats(s).lost);
}

/* A killed server has lost the rows of a `checkpoint` table: it says so to everyone, also after
 * further starts, until the job is rolled back to the checkpoint; then the bits are the same. */
static void checkpoint_tables_roll_the_job_back(void **state)
{
    (void)state;
    const ps_durability seconds[] = {0, PS_DURABILITY_JOURNAL};
    for (size_t i = 0; i < 2; i++) {
        uint64_t hash[2];
        bd_err err;
        char second[4];
        (void)snprintf(second, sizeof second, "%d", (int)seconds[i]);
        undisturbed(PS_DURABILITY_CHECKPOINT, seconds[i], hash);
        die("1", second, "ps.apply.after", "5");
        tu_shard_close(tu_shard_must_open(dir)); /* an orderly stop does not make it whole */
        ps_shard *s = tu_shard_must_open(dir);
        uint32_t t = tu_table(s, "t", PS_DURABILITY_CHECKPOINT);
        uint32_t u = i == 0 ? 0 : tu_table(s, "u", seconds[i]);
        refuses_all(s, t);
        ps_job next = {.epoch = 2, .world = TU_SHARD_WORLD, .consistency = PS_SYNC, .last_step = 4};
        tu_must(tu_open_job(s, &next, "c", &err), &err);
        assert_false(tu_stats(s).lost);
        assert_int_equal(tu_hash(s), hash[0]);
        tu_shard_close(s);
        s = tu_shard_must_open(dir); /* and it stays whole */
        assert_false(tu_stats(s).lost);
        assert_int_equal(tu_hash(s), hash[0]);
        (void)u;
        tu_shard_close(s);
        tu_dir_clear(dir);
    }
}

/* Without a crash nothing is lost: an orderly stop writes what pushes did not. */
static void an_orderly_stop_keeps_checkpoint_tables(void **state)
{
    (void)state;
    bd_err err;
    bool dup = false;
    ps_shard *s = tu_shard_must_open(dir);
    uint32_t t = tu_table(s, "t", PS_DURABILITY_CHECKPOINT);
    tu_must(tu_open_job(s, &async_job, "", &err), &err);
    for (uint64_t seq = 1; seq <= 6; seq++) {
        tu_must(tu_push_async(s, t, 0, seq, NULL, &err), &err);
    }
    uint64_t hash = tu_hash(s);
    assert_int_equal(tu_stats(s).journal_records, 0); /* nothing was journaled */
    tu_shard_close(s);
    s = tu_shard_must_open(dir);
    assert_int_equal(tu_hash(s), hash);
    tu_must(tu_push_async(s, t, 0, 6, &dup, &err), &err);
    assert_true(dup); /* what was applied is known as well */
    tu_must(tu_push_async(s, t, 0, 7, &dup, &err), &err);
    assert_false(dup);
    assert_true(tu_hash(s) != hash);
    tu_shard_close(s);
}

/* Many pushes that wait together share syncs; each is answered once, and a restart has them all. */
static void waiting_pushes_share_a_sync(void **state)
{
    (void)state;
    bd_err err;
    ps_shard *s = tu_shard_must_open(dir);
    uint32_t t = tu_table(s, "t", PS_DURABILITY_SYNC), j = tu_table(s, "j", PS_DURABILITY_JOURNAL);
    tu_must(tu_open_job(s, &async_job, "", &err), &err);
    tu_must(tu_push_many(s, j, 1001, 20, &err), &err);
    assert_int_equal(tu_stats(s).group_syncs, 0); /* journal: no sync is waited for */
    tu_must(tu_push_many(s, t, 1, 200, &err), &err);
    ps_shard_stats st = tu_stats(s);
    assert_int_equal(st.pushes_applied, 220);
    assert_true(st.group_syncs >= 1 && st.group_syncs <= 200);
    uint64_t hash = tu_hash(s);
    tu_shard_close(s);
    s = tu_shard_must_open(dir);
    assert_int_equal(tu_hash(s), hash);
    tu_shard_close(s);
}

/* A sync that fails is told to every push that waited for it, and to all later ones, repeats too:
 * nobody knows what is on the disk. Lookups go on; the next start finds out. */
static void a_failed_sync_ends_writing(void **state)
{
    (void)state;
    bd_err err;
    ps_shard *s = tu_shard_must_open(dir);
    uint32_t t = tu_table(s, "t", PS_DURABILITY_SYNC);
    tu_must(tu_open_job(s, &async_job, "", &err), &err);
    tu_must(tu_push_async(s, t, 0, 1, NULL, &err), &err);
    assert_true(bd_fault_arm("ps.journal.sync", "fail", 0));
    assert_int_equal(tu_push_async(s, t, 0, 2, NULL, &err), BD_E_IO);
    for (uint64_t seq = 1; seq <= 3; seq++) {
        assert_int_equal(tu_push_async(s, t, 0, seq, NULL, &err), BD_E_IO);
        assert_non_null(strstr(bd_err_text(&err), "sync"));
    }
    assert_true(tu_stats(s).read_only);
    assert_true(tu_stats(s).disk_errors > 0);
    assert_int_not_equal(ps_shard_stop(s, &err), BD_OK);
    ps_shard_close(s);
    s = tu_shard_must_open(dir);
    bool dup = false;
    tu_must(tu_push_async(s, t, 0, 2, &dup, &err), &err); /* the client tries again */
    tu_must(tu_push_async(s, t, 0, 3, &dup, &err), &err);
    assert_false(dup);
    tu_shard_close(s);
}

/* A lookup that waits, beside the calls of the main thread. */
typedef struct look {
    ps_waiter w;
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done; /* under lock */
} look;

static void on_look(ps_waiter *w)
{
    look *l = (look *)(void *)w;
    (void)pthread_mutex_lock(&l->lock);
    l->is_done = true;
    (void)pthread_cond_signal(&l->done);
    (void)pthread_mutex_unlock(&l->lock);
}

static void start_look(look *l, ps_shard *s, uint64_t after_step)
{
    *l = (look){
        .w = {.kind = PS_WAIT_LOOKUP, .job_epoch = 1, .step = after_step, .finish = on_look}};
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_cond_init(&l->done, NULL);
    ps_shard_lookup(s, &l->w);
}

static bd_status end_look(look *l)
{
    (void)pthread_mutex_lock(&l->lock);
    while (!l->is_done) {
        (void)pthread_cond_wait(&l->done, &l->lock);
    }
    (void)pthread_mutex_unlock(&l->lock);
    (void)pthread_cond_destroy(&l->done);
    (void)pthread_mutex_destroy(&l->lock);
    return l->w.rc;
}

/* Lookups that wait for a step are told as well, whoever found out that the journal is broken: the
 * commit thread (a step of a sync table, an async push) or the keeper. */
static void a_failed_sync_leaves_nobody_waiting(void **state)
{
    (void)state;
    enum { COMMIT, KEEPER, N_WHO };
    for (int who = 0; who < N_WHO; who++) {
        bd_err err;
        look waits, late, past;
        ps_op flush = {.kind = PS_OP_FLUSH};
        ps_shard *s = tu_shard_must_open(dir);
        uint32_t t = tu_table(s, "t", who == COMMIT ? PS_DURABILITY_SYNC : PS_DURABILITY_JOURNAL);
        tu_must(tu_open_job(s, &sync_job, "", &err), &err);
        tu_train(s, t, 0, 1, 1);
        tu_must(tu_push_sync(s, t, 0, 2, 0, &err), &err);
        tu_must(tu_push_sync(s, t, 0, 2, 1, &err), &err);
        start_look(&waits, s, 2);
        assert_int_equal(tu_stats(s).parked, 1);
        assert_true(bd_fault_arm("ps.journal.sync", "fail", 0));
        if (who == COMMIT) {
            assert_int_equal(tu_decide(s, 1, 2, PS_WAIT_COMMIT, &err), BD_E_IO);
        } else {
            assert_int_equal(tu_call(s, &flush), BD_E_IO);
            ps_shard_sweep(s, is_alive); /* what the service does twice a second */
            assert_int_equal(tu_decide(s, 1, 2, PS_WAIT_COMMIT, &err), BD_E_IO);
        }
        assert_int_equal(end_look(&waits), BD_E_IO);
        assert_non_null(strstr(bd_err_text(&waits.w.err), "fault point"));
        start_look(&late, s, 2);
        assert_int_equal(end_look(&late), BD_E_IO);
        start_look(&past, s, 1); /* reads go on */
        assert_int_equal(end_look(&past), BD_OK);
        assert_int_equal(tu_stats(s).parked, 0);
        assert_true(ps_shard_is_broken(s, &err));
        assert_non_null(strstr(bd_err_text(&err), "fault point"));
        assert_int_not_equal(ps_shard_stop(s, &err), BD_OK);
        ps_shard_close(s);
        bd_fault_disarm_all();
        tu_dir_clear(dir);
    }
}

/* ---- damage ---- */
/* The newest file of the folder whose name ends so. */
struct pick {
    const char *ending;
    char best[256];
};

static bd_status pick_file(void *user, const char *folder, const char *name, bd_err *err)
{
    struct pick *p = user;
    size_t n = strlen(name), m = strlen(p->ending);
    (void)err;
    if (n > m && strcmp(name + n - m, p->ending) == 0) {
        char path[256];
        struct stat st;
        (void)snprintf(path, sizeof path, "%s/%s", folder, name);
        if (stat(path, &st) == 0 && st.st_size > 0 && strcmp(path, p->best) > 0) {
            (void)snprintf(p->best, sizeof p->best, "%s", path);
        }
    }
    return BD_OK;
}

static const char *file_of(const char *sub, const char *ending)
{
    static struct pick p;
    char folder[128];
    bd_err err;
    p = (struct pick){.ending = ending};
    (void)snprintf(folder, sizeof folder, "%s/%s", dir, sub);
    tu_must(ps_dir_each(folder, pick_file, &p, &err), &err);
    assert_true(p.best[0] != '\0');
    return p.best;
}

static void cut_off(const char *path, off_t bytes)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > bytes);
    assert_int_equal(truncate(path, st.st_size - bytes), 0);
}

static void flip(const char *path, double where)
{
    struct stat st = {0};
    char c = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    off_t at = (off_t)((double)st.st_size * where);
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= 0x10;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    (void)close(fd);
}

static void damage(const char *what)
{
    if (strcmp(what, "journal cut") == 0) {
        cut_off(file_of("journal/records", ".records"), 700); /* most of the last record */
    } else if (strcmp(what, "journal flip") == 0) {
        flip(file_of("journal/records", ".records"), 0.5);
    } else if (strcmp(what, "journal gone") == 0) {
        assert_int_equal(unlink(file_of("journal/records", ".records")), 0);
    } else if (strcmp(what, "journal CURRENT gone") == 0) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s/journal/CURRENT", dir);
        assert_int_equal(unlink(path), 0);
    } else if (strcmp(what, "rows cut") == 0) {
        cut_off(file_of("rows-0", ".sst"), 200);
    } else if (strcmp(what, "rows flip") == 0) {
        flip(file_of("rows-0", ".sst"), 0.3);
    } else if (strcmp(what, "rows gone") == 0) {
        assert_int_equal(unlink(file_of("rows-0", ".sst")), 0);
    } else {
        char path[128];
        assert_string_equal(what, "rows CURRENT gone");
        (void)snprintf(path, sizeof path, "%s/rows-0/CURRENT", dir);
        assert_int_equal(unlink(path), 0);
    }
}

/* A truncated, bit-flipped or missing file of the journal or the rows is a typed error that says
 * where to read on, never an empty or shorter table. The way out: salvage starts what is whole, the
 * job is refused, and a restore gives the bits of the checkpoint. */
static void damage_is_an_error_with_a_way_out(void **state)
{
    (void)state;
    const char *const kinds[] = {
        "journal cut", "journal flip", "journal gone", "journal CURRENT gone",
        "rows cut",    "rows flip",    "rows gone",    "rows CURRENT gone"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        uint64_t hash[2];
        bd_err err;
        ps_shard *s = NULL;
        undisturbed(PS_DURABILITY_JOURNAL, 0, hash);
        die("2", "0", "ps.apply.after", "7");
        damage(kinds[i]);
        bd_status rc = tu_shard_open(dir, &(ps_shard_options){0}, &s, &err);
        if (rc != BD_E_CORRUPT) {
            fail_msg("%s: %s: %s", kinds[i], bd_status_name(rc), bd_err_text(&err));
        }
        assert_non_null(strstr(bd_err_text(&err), "OPERATIONS.md"));
        tu_must(tu_shard_open(dir, &(ps_shard_options){.salvage = true}, &s, &err), &err);
        uint32_t t = tu_table(s, "t", PS_DURABILITY_JOURNAL);
        refuses_all(s, t);
        ps_job next = {.epoch = 2, .world = TU_SHARD_WORLD, .consistency = PS_SYNC, .last_step = 4};
        if (strncmp(kinds[i], "rows", 4) != 0) { /* a checkpoint shares the damaged file */
            tu_must(tu_open_job(s, &next, "c", &err), &err);
            assert_int_equal(tu_hash(s), hash[0]);
        }
        tu_shard_close(s);
        tu_dir_clear(dir);
    }
}

int main(int argc, char **argv)
{
    bd_log_set_level(BD_LOG_ERROR);
    bd_log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (argc > 2 && strcmp(argv[1], "child") == 0) {
        return child(argv);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(checkpoint_tables_roll_the_job_back, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(an_orderly_stop_keeps_checkpoint_tables, make_dir,
                                        drop_dir),
        cmocka_unit_test_setup_teardown(waiting_pushes_share_a_sync, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_failed_sync_ends_writing, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_failed_sync_leaves_nobody_waiting, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(damage_is_an_error_with_a_way_out, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
