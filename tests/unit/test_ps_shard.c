/* A shard without network: training, crashes at each fault point, write-back, checkpoints, async.
 * A crash is a child process that the fault point kills; the parent opens the folder after it. */
#include "base/fault.h"
#include "base/log.h"
#include "base/rand.h"

#include "ps_server/ps_rocks.h"

#include "tests/util/tu_shard.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

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

static ps_shard *open_shard(size_t journal_cap)
{
    ps_shard *s = NULL;
    bd_err err;
    tu_must(tu_shard_open(dir, &(ps_shard_options){.journal_cap_bytes = journal_cap}, &s, &err),
            &err);
    return s;
}

static uint32_t create_table(ps_shard *s)
{
    return tu_table(s, "t", PS_DURABILITY_JOURNAL);
}

static bd_status open_job(ps_shard *s, uint64_t epoch, ps_consistency c, const char *restore,
                          uint64_t last_step, bd_err *err)
{
    const ps_job job = {epoch, TU_SHARD_WORLD, c, last_step, 0};
    return tu_open_job(s, &job, restore, err);
}

static void push(ps_shard *s, uint32_t table, uint64_t epoch, uint64_t step, uint32_t rank)
{
    static ps_op op;
    op = (ps_op){.kind = PS_OP_PUSH, .part = tu_part(table, 0, epoch, step, rank)};
    tu_must(tu_call(s, &op), &op.err);
}

/* With a learning rate that falls. */
static bd_status decide(ps_shard *s, uint64_t epoch, uint64_t step, ps_wait_kind kind, ps_waiter *w)
{
    *w =
        (ps_waiter){.kind = kind, .job_epoch = epoch, .step = step, .lr_scale = 1.0 / (double)step};
    return tu_wait(s, w);
}

/* Trains steps first..last of an open job, sending parts again when the shard asks. */
static void train(ps_shard *s, uint32_t table, uint64_t epoch, uint64_t first, uint64_t last)
{
    static ps_waiter w;
    for (uint64_t step = first; step <= last; step++) {
        push(s, table, epoch, step, 1);
        push(s, table, epoch, step, 0);
        tu_must(decide(s, epoch, step, PS_WAIT_COMMIT, &w), &w.err);
    }
}

static uint64_t last_step(ps_shard *s)
{
    return tu_stats(s).last_step;
}

#define STEPS 8u

/* The hash after each step of a run that nothing disturbs. */
static void undisturbed(uint64_t hashes[STEPS + 1])
{
    bd_err err;
    ps_shard *s = open_shard(0);
    uint32_t t = create_table(s);
    tu_must(open_job(s, 1, PS_SYNC, "", 0, &err), &err);
    hashes[0] = tu_hash(s);
    for (uint64_t step = 1; step <= STEPS; step++) {
        train(s, t, 1, step, step);
        hashes[step] = tu_hash(s);
    }
    tu_shard_close(s);
    tu_dir_clear(dir);
}

/* A fresh process (RocksDB's threads do not survive a fork) that does `job` until the point kills
 * it at its nth hit. Returns after it is dead. */
static void run_and_die(const char *job, const char *point, long nth)
{
    char n[16];
    (void)snprintf(n, sizeof n, "%ld", nth);
    const char *const args[] = {dir, job, point, n, NULL};
    int status = tu_child(args);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* After a kill at any point the rows are those of the last journaled step, and training on from
 * there ends with the bits of the undisturbed run. Steps that were answered are never lost. */
static void crashes_lose_and_double_nothing(void **state)
{
    (void)state;
    const struct {
        const char *point;
        long nth;
        uint64_t step; /* last step that is in the journal */
    } cases[] = {
        {"ps.journal.append.before", 2, 2}, {"ps.journal.append.after", 2, 3},
        {"ps.apply.after", 4, 5},           {"ps.commit.reply", 0, 1},
        {"ps.checkpoint.rows", 0, 4},       {"ps.checkpoint.publish", 0, 4},
    };
    uint64_t hashes[STEPS + 1];
    undisturbed(hashes);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_and_die(i >= 4 ? "checkpoint" : "train", cases[i].point, cases[i].nth);
        ps_shard *s = open_shard(0);
        assert_int_equal(last_step(s), cases[i].step);
        assert_int_equal(tu_hash(s), hashes[cases[i].step]);
        uint32_t t = create_table(s);
        static ps_waiter w; /* a commit whose answer was lost: done before, or parts are wanted */
        bd_status rc = decide(s, 1, cases[i].step, PS_WAIT_COMMIT, &w);
        assert_true(rc == BD_OK && w.duplicate);
        rc = decide(s, 1, cases[i].step + 1, PS_WAIT_COMMIT, &w);
        assert_int_equal(rc, BD_E_NEED_PARTS);
        train(s, t, 1, cases[i].step, STEPS); /* the first of them is a repeat */
        assert_int_equal(tu_hash(s), hashes[STEPS]);
        tu_shard_close(s);
        tu_dir_clear(dir);
    }
}

/* The journal cap: rows go down while training goes on, the journal is cut, and a reopened folder
 * has the same rows. */
static void a_small_journal_is_written_back(void **state)
{
    (void)state;
    bd_err err;
    ps_shard *s = open_shard(8192);
    uint32_t t = create_table(s);
    tu_must(open_job(s, 1, PS_SYNC, "", 0, &err), &err);
    train(s, t, 1, 1, 60); /* about 1.6 KB a step */
    ps_shard_stats st = tu_stats(s);
    assert_true(st.write_backs >= 2);
    assert_true(st.journal_bytes <= (size_t)3 * 8192);
    uint64_t hash = tu_hash(s);
    tu_shard_close(s);
    s = open_shard(8192);
    assert_int_equal(tu_hash(s), hash);
    assert_int_equal(last_step(s), 60);
    assert_int_equal(tu_stats(s).journal_records, 0); /* an orderly stop leaves nothing to replay */
    tu_shard_close(s);
}

/* Kills while rows are being written back and the journal is being cut: nothing answered is lost.
 */
static void kills_during_write_back_lose_nothing(void **state)
{
    (void)state;
    bd_err err;
    for (long nth = 35; nth <= 50; nth += 5) {
        run_and_die("small", "ps.apply.after", nth);
        ps_shard *s = open_shard(0);
        uint64_t got = tu_hash(s), step = last_step(s);
        assert_int_equal(step, nth + 1);
        tu_shard_close(s);
        tu_dir_clear(dir);
        s = open_shard(0);
        uint32_t t = create_table(s);
        tu_must(open_job(s, 1, PS_SYNC, "", 0, &err), &err);
        train(s, t, 1, 1, step);
        assert_int_equal(got, tu_hash(s));
        tu_shard_close(s);
        tu_dir_clear(dir);
    }
}

/* The journal's failure is told to the committer, changes no row, and is over when the disk is. */
static void a_failing_journal_applies_nothing(void **state)
{
    (void)state;
    static ps_waiter w;
    bd_err err;
    ps_shard *s = open_shard(0);
    uint32_t t = create_table(s);
    tu_must(open_job(s, 1, PS_SYNC, "", 0, &err), &err);
    train(s, t, 1, 1, 2);
    uint64_t hash = tu_hash(s);
    push(s, t, 1, 3, 0);
    push(s, t, 1, 3, 1);
    assert_true(bd_fault_arm("ps.journal.append.before", "fail", 0));
    assert_int_equal(decide(s, 1, 3, PS_WAIT_COMMIT, &w), BD_E_IO);
    assert_non_null(strstr(bd_err_text(&w.err), "step 3"));
    bd_fault_disarm_all();
    assert_int_equal(tu_hash(s), hash);
    assert_int_equal(last_step(s), 2);
    train(s, t, 1, 3, 3);
    assert_true(tu_hash(s) != hash);
    tu_shard_close(s);
}

/* A rollback: the rows of the checkpoint, a new epoch, the old one fenced; then the same bits. */
static void restore_fences_and_repeats(void **state)
{
    (void)state;
    static ps_op op;
    static ps_waiter w;
    uint64_t hashes[STEPS + 1];
    bd_err err;
    undisturbed(hashes);
    ps_shard *s = open_shard(0);
    uint32_t t = create_table(s);
    tu_must(open_job(s, 1, PS_SYNC, "", 0, &err), &err);
    train(s, t, 1, 1, 3);
    for (int twice = 0; twice < 2; twice++) { /* a repeated message is answered alike */
        op = (ps_op){.kind = PS_OP_CHECKPOINT, .name = "c3", .job = {.epoch = 1, .last_step = 3}};
        tu_must(tu_call(s, &op), &op.err);
        assert_true(op.n_rows > 0);
    }
    train(s, t, 1, 4, 6);
    op = (ps_op){.kind = PS_OP_CHECKPOINT, .name = "late", .job = {.epoch = 1, .last_step = 3}};
    assert_int_equal(tu_call(s, &op), BD_E_STATE);
    assert_int_equal(open_job(s, 2, PS_SYNC, "nothing", 3, &err), BD_E_NOT_FOUND);
    assert_int_equal(tu_hash(s), hashes[6]); /* a failed restore changes nothing */
    tu_must(open_job(s, 2, PS_SYNC, "c3", 3, &err), &err);
    tu_must(open_job(s, 2, PS_SYNC, "c3", 3, &err), &err);
    assert_int_equal(tu_hash(s), hashes[3]);
    assert_int_equal(decide(s, 1, 7, PS_WAIT_COMMIT, &w), BD_E_FENCED);
    assert_int_equal(open_job(s, 1, PS_SYNC, "", 0, &err), BD_E_FENCED);
    train(s, t, 2, 4, STEPS);
    assert_int_equal(tu_hash(s), hashes[STEPS]);
    tu_shard_close(s);
    s = open_shard(0);
    assert_int_equal(tu_hash(s), hashes[STEPS]);
    op = (ps_op){.kind = PS_OP_DELETE, .name = "c3"};
    tu_must(tu_call(s, &op), &op.err);
    tu_must(tu_call(s, &op), &op.err); /* again: fine */
    assert_int_equal(open_job(s, 3, PS_SYNC, "c3", 3, &err), BD_E_NOT_FOUND);
    tu_shard_close(s);
}

static bd_status save(ps_shard *s, ps_ckpt_phase phase, const char *name, uint64_t step,
                      bd_err *err)
{
    static ps_op op;
    op = (ps_op){.kind = PS_OP_CHECKPOINT, .phase = phase, .job = {.epoch = 1, .last_step = step}};
    (void)snprintf(op.name, sizeof op.name, "%s", name);
    bd_status rc = tu_call(s, &op);
    *err = op.err;
    return rc;
}

/* Cut at step 3, written while training goes on: the rows are those of step 3. When
 * the writing fails, the one who waits for it is told, and the rows stay for the next one. */
static void training_goes_on_while_a_cut_is_written(void **state)
{
    (void)state;
    uint64_t hashes[STEPS + 1];
    bd_err err;
    undisturbed(hashes);
    ps_shard *s = open_shard(0);
    uint32_t t = create_table(s);
    tu_must(open_job(s, 1, PS_SYNC, "", 0, &err), &err);
    train(s, t, 1, 1, 3);
    tu_must(save(s, PS_CKPT_CUT, "c", 3, &err), &err);
    tu_must(save(s, PS_CKPT_CUT, "c", 3, &err), &err); /* a repeated message */
    train(s, t, 1, 4, 6);
    tu_must(save(s, PS_CKPT_WAIT, "c", 3, &err), &err);
    assert_true(bd_fault_arm("ps.checkpoint.publish", "fail", 0));
    tu_must(save(s, PS_CKPT_CUT, "d", 6, &err), &err);
    train(s, t, 1, 7, 7);
    assert_int_equal(save(s, PS_CKPT_WAIT, "d", 6, &err), BD_E_IO);
    assert_non_null(strstr(bd_err_text(&err), "checkpoint d"));
    bd_fault_disarm_all();
    assert_int_equal(save(s, PS_CKPT_ALL, "e", 6, &err), BD_E_STATE);      /* its step has passed */
    assert_int_equal(save(s, PS_CKPT_WAIT, "e", 7, &err), BD_E_NOT_FOUND); /* never cut */
    assert_non_null(strstr(bd_err_text(&err), "\"e\": its cut is lost"));
    tu_must(save(s, PS_CKPT_ALL, "e", 7, &err), &err);
    tu_must(open_job(s, 2, PS_SYNC, "c", 3, &err), &err);
    assert_int_equal(tu_hash(s), hashes[3]);
    assert_int_equal(open_job(s, 3, PS_SYNC, "d", 6, &err), BD_E_NOT_FOUND);
    tu_must(open_job(s, 3, PS_SYNC, "e", 7, &err), &err);
    assert_int_equal(tu_hash(s), hashes[7]);
    tu_shard_close(s);
}

/* The steps of an async job are its clients': a cut is found again by the step they called it. */
static void an_async_cut_is_found_by_its_step(void **state)
{
    (void)state;
    bd_err err;
    ps_shard *s = open_shard(0);
    (void)create_table(s);
    tu_must(open_job(s, 1, PS_ASYNC, "", 0, &err), &err);
    tu_must(save(s, PS_CKPT_CUT, "c", 71, &err), &err);
    tu_must(save(s, PS_CKPT_WAIT, "c", 71, &err), &err);
    assert_int_equal(save(s, PS_CKPT_WAIT, "c", 72, &err), BD_E_NOT_FOUND);
    tu_shard_close(s);
}

/* A checkpoint with a damaged manifest is refused by name and the rows stay. */
static void damaged_checkpoints_are_refused(void **state)
{
    (void)state;
    static ps_op op;
    char path[128];
    bd_err err;
    ps_shard *s = open_shard(0);
    uint32_t t = create_table(s);
    tu_must(open_job(s, 1, PS_SYNC, "", 0, &err), &err);
    train(s, t, 1, 1, 3);
    op = (ps_op){.kind = PS_OP_CHECKPOINT, .name = "c", .job = {.epoch = 1, .last_step = 3}};
    tu_must(tu_call(s, &op), &op.err);
    uint64_t hash = tu_hash(s);
    (void)snprintf(path, sizeof path, "%s/checkpoints/c/MANIFEST", dir);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, 40, SEEK_SET), 0);
    assert_true(fputc('x', f) == 'x');
    assert_int_equal(fclose(f), 0);
    assert_int_equal(open_job(s, 2, PS_SYNC, "c", 3, &err), BD_E_CORRUPT);
    assert_non_null(strstr(bd_err_text(&err), "\"c\""));
    assert_int_equal(tu_hash(s), hash);
    train(s, t, 1, 4, 4); /* the old job goes on */
    tu_shard_close(s);
}

/* ---- async ---- */
static bd_status push_async(ps_shard *s, uint32_t table, uint64_t sequence, bool *dup)
{
    static ps_op op;
    op = (ps_op){.kind = PS_OP_PUSH, .part = tu_part(table, 0, 1, sequence, 0)};
    op.part->client_id = 77;
    op.part->sequence = sequence;
    bd_status rc = tu_call(s, &op);
    *dup = op.duplicate;
    return rc;
}

/* Async pushes are applied exactly once: across repeats, and across a kill after the fifth was
 * journaled but before it was answered. */
static void async_pushes_apply_once(void **state)
{
    (void)state;
    bd_err err;
    bool dup = false;
    ps_shard *s = open_shard(0);
    uint32_t t = create_table(s);
    tu_must(open_job(s, 1, PS_ASYNC, "", 0, &err), &err);
    for (uint64_t seq = 1; seq <= 10; seq++) {
        assert_int_equal(push_async(s, t, seq, &dup), BD_OK);
        assert_false(dup);
        assert_int_equal(push_async(s, t, seq, &dup), BD_OK);
        assert_true(dup);
    }
    uint64_t want = tu_hash(s);
    tu_shard_close(s);
    tu_dir_clear(dir);

    run_and_die("async", "ps.commit.reply", 4);
    s = open_shard(0);
    for (uint64_t seq = 1; seq <= 10; seq++) {
        assert_int_equal(push_async(s, t, seq, &dup), BD_OK);
        assert_int_equal(dup, seq <= 5);
    }
    assert_int_equal(tu_hash(s), want);
    tu_shard_close(s);
}

/* ---- the folder ---- */
static void folders_keep_their_server(void **state)
{
    (void)state;
    ps_shard *s = open_shard(0), *other = NULL;
    bd_err err;
    ps_shard_options opt = {.data_dir = dir, .n_servers = 1};
    assert_int_equal(ps_shard_open(&opt, &other, &err), BD_E_EXISTS);
    tu_shard_close(s);
    opt.n_servers = 2;
    opt.index = 1;
    assert_int_equal(ps_shard_open(&opt, &other, &err), BD_E_MISMATCH);
    assert_non_null(strstr(bd_err_text(&err), "0 of 1, not 1 of 2"));
    opt.index = 0; /* nothing was in it: it may be of a larger cluster */
    tu_must(ps_shard_open(&opt, &other, &err), &err);
    ps_shard_close(other);
    opt.index = 1;
    assert_int_equal(ps_shard_open(&opt, &other, &err), BD_E_MISMATCH);
    assert_non_null(strstr(bd_err_text(&err), "0 of 2, not 1 of 2"));
}

/* Keys of other servers' slots are refused; the slots of all servers tile the key space. */
static void slots_tile_the_keys(void **state)
{
    (void)state;
    ps_shard *shards[3];
    bd_err err;
    for (uint32_t i = 0; i < 3; i++) {
        char sub[96];
        (void)snprintf(sub, sizeof sub, "%s/%u", dir, i);
        tu_must(ps_dir_make(sub, &err), &err);
        ps_shard_options opt = {.data_dir = sub, .index = i, .n_servers = 3};
        tu_must(ps_shard_open(&opt, &shards[i], &err), &err);
    }
    for (uint64_t i = 0; i < 5000; i++) {
        uint64_t key = bd_mix64(i);
        int owners = 0;
        for (uint32_t k = 0; k < 3; k++) {
            bd_status rc = ps_shard_check_keys(shards[k], &key, 1, &err);
            assert_true(rc == BD_OK || rc == BD_E_MOVED);
            owners += rc == BD_OK;
        }
        assert_int_equal(owners, 1);
    }
    for (uint32_t i = 0; i < 3; i++) {
        ps_shard_close(shards[i]);
    }
}

/* What a child does; it is expected to die on the way. */
static int child(char **argv)
{
    bd_err err;
    bool dup;
    static ps_op op;
    (void)snprintf(dir, sizeof dir, "%s", argv[2]);
    bd_log_set_fd(open("/dev/null", O_WRONLY | O_CLOEXEC));
    bool async = strcmp(argv[3], "async") == 0;
    bool small = strcmp(argv[3], "small") == 0;
    ps_shard *s = open_shard(small ? 4096 : 0);
    uint32_t t = create_table(s);
    tu_must(open_job(s, 1, async ? PS_ASYNC : PS_SYNC, "", 0, &err), &err);
    if (!bd_fault_arm(argv[4], "kill", strtol(argv[5], NULL, 10))) {
        return 1;
    }
    for (uint64_t seq = 1; async && seq <= 10; seq++) {
        (void)push_async(s, t, seq, &dup);
    }
    train(s, t, 1, 1, small ? 60 : 4);
    if (strcmp(argv[3], "checkpoint") == 0) {
        op = (ps_op){.kind = PS_OP_CHECKPOINT, .name = "c", .job = {.epoch = 1, .last_step = 4}};
        (void)tu_call(s, &op);
    }
    train(s, t, 1, 5, STEPS);
    return 0; /* the point was never hit */
}

int main(int argc, char **argv)
{
    bd_log_set_level(BD_LOG_ERROR);
    if (argc == 6 && strcmp(argv[1], "child") == 0) {
        return child(argv);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(crashes_lose_and_double_nothing, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_small_journal_is_written_back, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(kills_during_write_back_lose_nothing, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_failing_journal_applies_nothing, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(restore_fences_and_repeats, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(training_goes_on_while_a_cut_is_written, make_dir,
                                        drop_dir),
        cmocka_unit_test_setup_teardown(an_async_cut_is_found_by_its_step, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(damaged_checkpoints_are_refused, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(async_pushes_apply_once, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(folders_keep_their_server, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(slots_tile_the_keys, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
