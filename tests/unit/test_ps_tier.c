/* The disk tier: a shard with a memory budget that holds a quarter of its rows ends with the bits
 * of one without a limit, whatever is moved out and in, also after kill -9, and stays in its
 * budget. The killed server is a child process, as RocksDB's threads do not survive a fork. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_budget.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_scan.h"
#include "ps_server/ps_shard.h"

#include "tests/util/tu_shard.h"

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

#include "braid/v1/parameter_server.pb-c.h"

#define DIM    32u
#define KEYS   ((size_t)6000) /* of a step */
#define N_KEYS ((uint64_t)400000)
#define STEPS  48u
#define BUDGET ((size_t)PS_BUDGET_MIN_BYTES) /* about 32 MiB of rows: 85 thousand of them */

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

static ps_shard *open_shard(const char *folder, size_t budget)
{
    ps_shard *s = NULL;
    bd_err err;
    const ps_shard_options opt = {.journal_cap_bytes = (size_t)16 << 20, .memory_bytes = budget};
    tu_must(tu_shard_open(folder, &opt, &s, &err), &err);
    return s;
}

static uint32_t create_table(ps_shard *s)
{
    Braid__V1__TableSpec m;
    char name[] = "t", opt[] = "adagrad";
    static ps_op op;
    op = (ps_op){.kind = PS_OP_TABLE};
    braid__v1__table_spec__init(&m);
    m.name = name;
    m.dim = DIM;
    m.optimizer = opt;
    m.seed = 5;
    tu_must(ps_spec_parse(&m, &op.spec, &op.err), &op.err);
    tu_must(tu_call(s, &op), &op.err);
    return op.spec.id;
}

static void open_job(ps_shard *s, uint64_t epoch, const char *restore, uint64_t last_step)
{
    static ps_op op;
    op = (ps_op){.kind = PS_OP_OPEN};
    op.job = (ps_job){epoch, 1, PS_SYNC, last_step, 0};
    (void)snprintf(op.name, sizeof op.name, "%s", restore);
    tu_must(tu_call(s, &op), &op.err);
}

static int by_slot(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    uint64_t mx = bd_mix64(x), my = bd_mix64(y);
    return mx < my ? -1 : mx > my;
}

/* The distinct keys of a step: half of them from a small set that is used all the time. */
static size_t keys_of(uint64_t step, uint64_t keys[KEYS])
{
    for (uint64_t i = 0; i < KEYS; i++) {
        uint64_t r = bd_rand_u64(9, step, i);
        keys[i] = r % 2 == 0 ? r / 2 % 4000 : r / 2 % N_KEYS;
    }
    qsort(keys, KEYS, sizeof *keys, by_slot);
    size_t n = 0;
    for (size_t i = 0; i < KEYS; i++) {
        if (n == 0 || keys[n - 1] != keys[i]) {
            keys[n++] = keys[i];
        }
    }
    return n;
}

static ps_part *part_of(uint32_t table, uint64_t epoch, uint64_t step)
{
    ps_part *p = bd_calloc(1, sizeof *p);
    p->keep = bd_buf_new(KEYS * (8 + DIM * 4));
    p->tables = bd_calloc(1, sizeof *p->tables);
    uint64_t *keys = (uint64_t *)(void *)p->keep->bytes;
    float *grads = (float *)(void *)(p->keep->bytes + KEYS * 8);
    size_t n = keys_of(step, keys);
    bd_rand_normal(1, 2, step * 1000, 0.0f, 1.0f, grads, n * DIM);
    p->tables[0] =
        (ps_grads){.table_id = table, .dim = DIM, .n_keys = n, .keys = keys, .grads = grads};
    p->n_tables = 1;
    p->n_bytes = p->keep->n_bytes;
    p->job_epoch = epoch;
    p->step = step;
    p->n_parts = 1;
    p->lr_scale = 1.0;
    return p;
}

static void train(ps_shard *s, uint32_t table, uint64_t epoch, uint64_t first, uint64_t last)
{
    static ps_waiter w;
    static ps_op op;
    for (uint64_t step = first; step <= last; step++) {
        op = (ps_op){.kind = PS_OP_PUSH, .part = part_of(table, epoch, step)};
        tu_must(tu_call(s, &op), &op.err);
        w = (ps_waiter){.kind = PS_WAIT_COMMIT, .job_epoch = epoch, .step = step, .lr_scale = 1.0};
        tu_must(tu_wait(s, &w), &w.err);
    }
}

static uint64_t hash_of(ps_shard *s, uint64_t *n_rows)
{
    static ps_op op;
    op = (ps_op){.kind = PS_OP_HASH};
    tu_must(tu_call(s, &op), &op.err);
    *n_rows = op.n_rows;
    return op.hash;
}

/* Sum over the weights of all keys, as lookups see them: in memory, on the disk, never pushed. */
static uint64_t seen_by_lookups(ps_shard *s, uint32_t table)
{
    uint64_t *keys = bd_calloc(KEYS, sizeof *keys), sum = 0;
    float *rows = bd_calloc(KEYS * DIM, sizeof *rows);
    bd_err err;
    for (uint64_t step = 1; step <= STEPS + 10; step += 3) {
        size_t n = keys_of(step, keys);
        tu_must(ps_shard_read(s, table, DIM, keys, n, rows, &err), &err);
        sum += bd_hash64(rows, n * DIM * sizeof *rows, step);
    }
    bd_free(keys);
    bd_free(rows);
    return sum;
}

typedef struct outcome {
    uint64_t hash, n_rows, seen;
} outcome;

static outcome look(ps_shard *s, uint32_t table)
{
    outcome o = {0};
    o.seen = seen_by_lookups(s, table);
    o.hash = hash_of(s, &o.n_rows);
    return o;
}

static void assert_same(outcome a, outcome b)
{
    assert_int_equal(a.n_rows, b.n_rows);
    assert_true(a.hash == b.hash);
    assert_true(a.seen == b.seen);
}

/* What a run without a limit ends with. */
static outcome unlimited(uint64_t last)
{
    bd_err err;
    char *folder = bd_strfmt("%s/unlimited", dir);
    tu_must(ps_dir_make(folder, &err), &err);
    ps_shard *s = open_shard(folder, 0);
    uint32_t t = create_table(s);
    open_job(s, 1, "", 0);
    train(s, t, 1, 1, last);
    outcome o = look(s, t);
    tu_shard_close(s);
    tu_must(ps_dir_remove(folder, &err), &err);
    bd_free(folder);
    return o;
}

static ps_shard_stats stats_of(ps_shard *s)
{
    ps_shard_stats st;
    ps_shard_get_stats(s, &st);
    return st;
}

static void the_bits_do_not_depend_on_the_budget(void **state)
{
    (void)state;
    outcome want = unlimited(STEPS);
    ps_shard *s = open_shard(dir, BUDGET);
    uint32_t t = create_table(s);
    open_job(s, 1, "", 0);
    train(s, t, 1, 1, STEPS);
    ps_shard_stats st = stats_of(s);
    assert_true(st.rows_away > 0 && st.rows_moved_out > 0 && st.rows_fetched > 0);
    ps_budget b;
    ps_budget_init(&b, BUDGET);
    assert_true(st.rows_bytes <= b.rows_bytes + b.rows_bytes / 8);
    assert_same(look(s, t), want);
    tu_shard_close(s);

    s = open_shard(dir, BUDGET); /* after an orderly stop */
    assert_same(look(s, t), want);
    assert_true(stats_of(s).rows_away > 0);
    tu_shard_close(s);
    s = open_shard(dir, 0); /* and without a limit: everything comes in */
    assert_same(look(s, t), want);
    assert_int_equal(stats_of(s).rows_away, 0);
    tu_shard_close(s);
}

static void a_killed_server_loses_nothing(void **state)
{
    (void)state;
    outcome want = unlimited(STEPS);
    for (uint64_t first = 1; first <= STEPS; first += STEPS / 3) {
        char from[24], to[24];
        (void)snprintf(from, sizeof from, "%u", (unsigned)first);
        (void)snprintf(to, sizeof to, "%u", (unsigned)(first + STEPS / 3 - 1));
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            (void)execl("/proc/self/exe", "test_ps_tier", "child", dir, from, to, (char *)NULL);
            _exit(1);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    ps_shard *s = open_shard(dir, BUDGET);
    uint32_t t = create_table(s);
    assert_int_equal(stats_of(s).last_step, STEPS);
    assert_same(look(s, t), want);
    tu_shard_close(s);
}

/* Rows on the disk are in the checkpoint, and a restore holds old and new tables in one budget. */
static void a_checkpoint_has_the_rows_on_the_disk(void **state)
{
    (void)state;
    static ps_op op;
    outcome want = unlimited(STEPS / 2);
    ps_shard *s = open_shard(dir, BUDGET);
    uint32_t t = create_table(s);
    open_job(s, 1, "", 0);
    train(s, t, 1, 1, STEPS / 2);
    op = (ps_op){.kind = PS_OP_CHECKPOINT, .name = "half", .job = {1, 1, PS_SYNC, STEPS / 2, 0}};
    tu_must(tu_call(s, &op), &op.err);
    assert_int_equal(op.n_rows, want.n_rows);
    train(s, t, 1, STEPS / 2 + 1, STEPS);
    open_job(s, 2, "half", STEPS / 2);
    assert_same(look(s, t), want);
    train(s, t, 2, STEPS / 2 + 1, STEPS / 2 + 3); /* and it goes on */
    tu_shard_close(s);
}

/* An export in pages sees every row once, in key order. */
static void pages_have_every_row(void **state)
{
    (void)state;
    static ps_op op;
    enum { PAGE = 30000 };
    ps_shard *s = open_shard(dir, BUDGET);
    uint32_t t = create_table(s);
    open_job(s, 1, "", 0);
    train(s, t, 1, 1, STEPS);
    uint64_t n_rows = stats_of(s).n_rows, seen = 0, last = 0;
    uint64_t *keys = bd_calloc(PAGE, sizeof *keys);
    float *rows = bd_calloc((size_t)PAGE * DIM, sizeof *rows), one[DIM];
    ps_scan scan = {.table_id = t, .max_rows = PAGE, .page = {.keys = keys, .rows = rows}};
    do {
        op = (ps_op){.kind = PS_OP_PAGE, .scan = &scan};
        tu_must(tu_call(s, &op), &op.err);
        for (size_t i = 0; i < scan.page.n; i++) {
            assert_true(seen + i == 0 || keys[i] > last);
            last = keys[i];
        }
        tu_must(ps_shard_read(s, t, DIM, &keys[scan.page.n / 2], 1, one, &op.err), &op.err);
        assert_memory_equal(one, rows + scan.page.n / 2 * DIM, sizeof one);
        seen += scan.page.n;
        scan.from = scan.page.next;
    } while (scan.page.more);
    assert_int_equal(seen, n_rows);
    bd_free(keys);
    bd_free(rows);
    tu_shard_close(s);
}

/* ---- the budget itself ---- */
static void child(const char *folder, uint64_t first, uint64_t last)
{
    ps_shard *s = open_shard(folder, BUDGET);
    uint32_t t = create_table(s);
    if (first == 1) {
        open_job(s, 1, "", 0);
    }
    train(s, t, 1, first, last);
    (void)raise(SIGKILL);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "child") == 0) {
        child(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_bits_do_not_depend_on_the_budget, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_killed_server_loses_nothing, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_checkpoint_has_the_rows_on_the_disk, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(pages_have_every_row, make_dir, drop_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
