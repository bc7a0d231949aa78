/* Journal records, the log they are kept in, facts, and the dedup state. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_dedup.h"
#include "ps_server/ps_journal.h"
#include "ps_server/ps_log.h"
#include "ps_server/ps_rocks.h"

#include "tests/util/tu_record.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/test_ps_journal.XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int drop_dir(void **state)
{
    bd_err err;
    (void)state;
    return ps_dir_remove(dir, &err) != BD_OK;
}

/* A record with two sections: rank 0 with gradients, rank 1 empty. */
static ps_record record_of(uint64_t n, size_t n_keys, ps_section sec[2], uint64_t *keys,
                           float *values)
{
    for (size_t i = 0; i < n_keys; i++) {
        keys[i] = bd_mix64(n * 1000 + i);
    }
    for (size_t i = 0; i < n_keys * 3; i++) {
        values[i] = (float)i;
    }
    sec[0] = (ps_section){
        .rank = 0, .table_id = 5, .dim = 3, .n_keys = n_keys, .keys = keys, .values = values};
    sec[1] = (ps_section){.rank = 1, .table_id = 5, .dim = 3, .keys = keys, .values = values};
    return (ps_record){.kind = PS_RECORD_STEP,
                       .seq = {7, n},
                       .job_epoch = 2,
                       .step = n,
                       .lr_scale = 0.5,
                       .n_sections = 2,
                       .sections = sec};
}

static void records_survive_their_bytes(void **state)
{
    (void)state;
    uint64_t keys[5];
    float values[15];
    ps_section sec[2];
    bd_err err;
    ps_record r = record_of(9, 5, sec, keys, values), got;
    bd_buf *b = tu_record_bytes(&r);
    assert_int_equal(b->n_bytes, 96 + 2 * 32 + 5 * 8 + 64);
    assert_int_equal(ps_record_decode(b->bytes, b->n_bytes, &got, &err), BD_OK);
    assert_true(got.seq.n == 9 && got.seq.generation == 7 && got.step == 9 && got.lr_scale == 0.5);
    assert_int_equal(got.n_sections, 2);
    assert_memory_equal(got.sections[0].keys, keys, sizeof keys);
    assert_memory_equal(got.sections[0].values, values, sizeof values);
    assert_true(got.sections[1].rank == 1 && got.sections[1].n_keys == 0);
    bd_free(got.sections);
    for (size_t i = 0; i < b->n_bytes; i++) { /* no flipped bit passes */
        b->bytes[i] ^= 0x10;
        assert_int_equal(ps_record_decode(b->bytes, b->n_bytes, &got, &err), BD_E_CORRUPT);
        b->bytes[i] ^= 0x10;
    }
    for (size_t n = 0; n < b->n_bytes; n++) { /* nor a cut one */
        assert_int_equal(ps_record_decode(b->bytes, n, &got, &err), BD_E_CORRUPT);
    }
    bd_buf_unref(b);
}

typedef struct seen {
    uint64_t n, first, last;
    size_t keys;
} seen;

static bd_status see(void *user, const ps_record *rec, bd_err *err)
{
    seen *s = user;
    (void)err;
    s->first = s->n == 0 ? rec->seq.n : s->first;
    s->last = rec->seq.n;
    s->n++;
    s->keys += rec->sections[0].n_keys;
    for (size_t i = 0; i < rec->sections[0].n_keys; i++) {
        assert_int_equal(rec->sections[0].keys[i], bd_mix64(rec->seq.n * 1000 + i));
    }
    return BD_OK;
}

/* The lines of a replay's progress. */
typedef struct told {
    size_t n;
    char first[96], last[96];
} told;

static void hear(void *user, const char *line)
{
    told *t = user;
    (void)snprintf(t->n == 0 ? t->first : t->last, sizeof t->last, "%s", line);
    t->n++;
}

static ps_journal *open_journal(void)
{
    char path[96];
    ps_journal *j = NULL;
    bd_err err;
    (void)snprintf(path, sizeof path, "%s/j", dir);
    if (ps_journal_open(path, false, &j, &err) != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
    return j;
}

static void append(ps_journal *j, size_t n_keys)
{
    uint64_t *keys = bd_alloc(n_keys * 8);
    float *values = bd_alloc(n_keys * 12);
    ps_section sec[2];
    bd_err err;
    ps_record r = record_of(ps_journal_next(j).n, n_keys, sec, keys, values);
    r.seq = ps_journal_next(j);
    ps_fact f = {'M', "job", &r.seq.n, sizeof r.seq.n};
    if (ps_journal_append(j, &r, &f, 1, false, &err) != BD_OK) {
        fail_msg("%s", bd_err_text(&err));
    }
    bd_free(keys);
    bd_free(values);
}

/* Records come back in order, large ones whole; cutting forgets the old ones and no number is used
 * twice, over restarts too. */
static void journal_keeps_and_cuts(void **state)
{
    (void)state;
    bd_err err;
    ps_journal *j = open_journal();
    uint32_t generation = ps_journal_next(j).generation;
    for (size_t i = 0; i < 10; i++) {
        append(j, i == 4 ? 400000 : 10); /* the fifth has 8 MB: several pieces */
    }
    size_t bytes = ps_journal_bytes(j);
    ps_journal_close(j);
    j = open_journal();
    assert_int_equal(ps_journal_next(j).generation, generation + 1);
    assert_int_equal(ps_journal_next(j).n, 11);
    assert_int_equal(ps_journal_bytes(j), bytes);
    seen s = {0};
    told t = {0};
    assert_int_equal(ps_journal_replay(j, false, see, &s, &(ps_progress){hear, &t}, &err), BD_OK);
    assert_int_equal(t.n, 2); /* a line a per cent: the small records are none */
    assert_string_equal(t.first, "replaying the journal: 0 % of 7 MiB, about 0 s left");
    assert_non_null(strstr(t.last, "99 % of 7 MiB"));
    assert_true(s.n == 10 && s.first == 1 && s.last == 10 && s.keys == 400090);
    assert_int_equal(ps_journal_cut(j, 6, &err), BD_OK);
    assert_int_equal(ps_journal_records(j), 5);
    s = (seen){0};
    assert_int_equal(ps_journal_replay(j, false, see, &s, NULL, &err), BD_OK);
    assert_true(s.n == 5 && s.first == 6);
    assert_int_equal(ps_journal_cut(j, UINT64_MAX, &err), BD_OK);
    assert_int_equal(ps_journal_bytes(j), 0);
    ps_journal_close(j);
    j = open_journal();
    assert_int_equal(ps_journal_next(j).n, 11);
    append(j, 3);
    assert_int_equal(ps_journal_next(j).n, 12);
    uint8_t *val = NULL;
    size_t n = 0;
    assert_int_equal(ps_journal_get(j, 'M', "job", &val, &n, &err), BD_OK);
    assert_true(n == 8 && val[0] == 11);
    bd_free(val);
    ps_journal_close(j);
}

/* The file of records with this number. */
static void path_of(uint64_t number, char out[128])
{
    (void)snprintf(out, 128, "%s/j/records/%012llu.records", dir, (unsigned long long)number);
}

/* The byte where record i of those that append(j, 10) wrote begins: they are all of one length. */
static off_t frame_at(unsigned i)
{
    char path[128];
    struct stat st;
    path_of(1, path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size % 4, 0);
    return st.st_size / 4 * i;
}

static void flip(off_t at)
{
    char path[128], c = 0;
    path_of(1, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= 0x10;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    (void)close(fd);
}

static bd_status open_and_replay(bool salvage, seen *s, bd_err *err)
{
    char path[96];
    ps_journal *j = NULL;
    *s = (seen){0};
    (void)snprintf(path, sizeof path, "%s/j", dir);
    bd_status rc = ps_journal_open(path, salvage, &j, err);
    if (rc == BD_OK) {
        rc = ps_journal_replay(j, salvage, see, s, NULL, err);
        ps_journal_close(j);
    }
    return rc;
}

/* A damaged, half or missing record is an error that names it, never a silent end, whether the mark
 * beside the journal is there or not; salvage keeps what is before it. */
static void damaged_records_are_named(void **state)
{
    (void)state;
    const size_t inside[] = {0, 20, 60, 70, 64 + 16 + 8, 64 + 16 + 200}; /* of a frame */
    for (size_t i = 0; i < 2 * sizeof inside / sizeof inside[0]; i++) {
        bd_err err;
        seen s;
        char mark[96];
        (void)!ps_dir_remove(dir, &err);
        assert_int_equal(ps_dir_make(dir, &err), BD_OK);
        ps_journal *j = open_journal();
        for (int k = 0; k < 4; k++) {
            append(j, 10);
        }
        ps_journal_close(j);
        assert_int_equal(open_and_replay(false, &s, &err), BD_OK);
        assert_int_equal(s.n, 4);
        flip(frame_at(2) + (off_t)inside[i / 2]);
        if (i % 2 != 0) {
            (void)snprintf(mark, sizeof mark, "%s/j.mark", dir);
            assert_int_equal(unlink(mark), 0);
        }
        assert_int_equal(open_and_replay(false, &s, &err), BD_E_CORRUPT);
        assert_non_null(strstr(bd_err_text(&err), "record 2"));
        assert_non_null(strstr(bd_err_text(&err), "OPERATIONS.md"));
        assert_int_equal(open_and_replay(true, &s, &err), BD_OK);
        assert_int_equal(s.n, 2);
    }
}

/* A frame that a power loss left half is no record and no error: nobody was promised it. */
static void a_torn_end_is_cut_off(void **state)
{
    (void)state;
    char path[128], mark[96];
    bd_err err;
    seen s;
    ps_journal *j = open_journal();
    for (int k = 0; k < 4; k++) {
        append(j, 10);
    }
    ps_journal_close(j);
    path_of(1, path);
    off_t last = frame_at(3);
    (void)snprintf(mark, sizeof mark, "%s/j.mark", dir);
    assert_int_equal(unlink(mark), 0); /* another boot: only what was synced is promised */
    assert_int_equal(truncate(path, last + 100), 0);
    assert_int_equal(open_and_replay(false, &s, &err), BD_OK);
    assert_int_equal(s.n, 3);
    j = open_journal();
    assert_int_equal(ps_journal_next(j).n, 4);
    append(j, 10); /* in its place */
    ps_journal_close(j);
    assert_int_equal(open_and_replay(false, &s, &err), BD_OK);
    assert_true(s.n == 4 && s.last == 4);
}

/* Files of the log go when all their records are forgotten; the facts in them stay, and one that is
 * missing without that is an error. */
static void files_of_the_log_come_and_go(void **state)
{
    (void)state;
    char path[128];
    bd_err err;
    seen s;
    ps_journal *j = open_journal();
    uint8_t mine[3] = {1, 2, 3};
    ps_fact f = {'M', "client/7", mine, sizeof mine};
    assert_int_equal(ps_journal_put(j, &f, 1, false, &err), BD_OK);
    for (int k = 0; k < 20; k++) { /* 8 MB each: more than two files */
        append(j, 400000);
    }
    path_of(3, path);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(ps_journal_cut(j, 21, &err), BD_OK); /* the last one stays */
    assert_int_equal(ps_journal_records(j), 1);
    ps_journal_close(j); /* waits until they are gone */
    path_of(2, path);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(open_and_replay(false, &s, &err), BD_OK);
    assert_true(s.n == 1 && s.first == 21);
    j = open_journal();
    uint8_t *val = NULL;
    size_t n = 0;
    assert_int_equal(ps_journal_get(j, 'M', "client/7", &val, &n, &err), BD_OK);
    assert_true(n == 3 && val[2] == 3);
    bd_free(val);
    assert_int_equal(ps_journal_cut(j, UINT64_MAX, &err), BD_OK);
    append(j, 10);
    append(j, 400000);
    assert_int_equal(ps_journal_next(j).n, 24);
    ps_journal_close(j);
    path_of(3, path);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(open_and_replay(false, &s, &err), BD_OK);
    assert_true(s.n == 2 && s.first == 22);
    path_of(4, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(open_and_replay(false, &s, &err), BD_E_CORRUPT);
}

/* What a walk over facts meets. */
typedef struct names {
    char text[128];
} names;

static bd_status note_name(void *user, const char *name, const uint8_t *val, size_t n_bytes,
                           bd_err *err)
{
    names *to = user;
    size_t n = strlen(to->text);
    (void)err;
    (void)snprintf(to->text + n, sizeof to->text - n, "%s=%.*s ", name, (int)n_bytes,
                   (const char *)val);
    return BD_OK;
}

static void put(ps_journal *j, const char *name, const char *val)
{
    bd_err err;
    ps_fact f = {'M', name, val, val == NULL ? 0 : strlen(val)};
    assert_int_equal(ps_journal_put(j, &f, 1, false, &err), BD_OK);
}

/* A fact is what was put last, wherever it is kept; a walk meets each once, in order. */
static void facts_of_log_and_store_are_one(void **state)
{
    (void)state;
    bd_err err;
    ps_journal *j = open_journal();
    put(j, "table/b", "1");
    put(j, "table/d", "2");
    put(j, "table/e", "3");
    append(j, 400000);
    assert_int_equal(ps_journal_cut(j, UINT64_MAX, &err), BD_OK); /* to RocksDB */
    put(j, "table/a", "4");
    put(j, "table/d", "5");
    put(j, "table/e", NULL);
    put(j, "table/f", "6");
    put(j, "tablf", "7");
    for (int i = 0; i < 2; i++) {
        names got = {""};
        assert_int_equal(ps_journal_each(j, 'M', "table/", note_name, &got, &err), BD_OK);
        assert_string_equal(got.text, "table/a=4 table/b=1 table/d=5 table/f=6 ");
        ps_journal_close(j);
        j = open_journal();
    }
    uint8_t *val = NULL;
    size_t n = 0;
    assert_int_equal(ps_journal_get(j, 'M', "table/e", &val, &n, &err), BD_OK);
    assert_null(val);
    ps_fact f = {'M', "job", "x", 1};
    assert_int_equal(ps_journal_reset(j, 100, &f, 1, &err), BD_OK);
    names got = {""};
    assert_int_equal(ps_journal_each(j, 'M', "table/", note_name, &got, &err), BD_OK);
    assert_string_equal(got.text, "");
    assert_int_equal(ps_journal_next(j).n, 101);
    ps_journal_close(j);
    j = open_journal();
    assert_int_equal(ps_journal_each(j, 'M', "tabl", note_name, &got, &err), BD_OK);
    assert_string_equal(got.text, "tablf=7 ");
    assert_int_equal(ps_journal_next(j).n, 101);
    ps_journal_close(j);
}

/* An append that fails leaves no record, no fact and the number unused. */
static void failed_appends_leave_nothing(void **state)
{
    (void)state;
    bd_err err;
    ps_section sec[2];
    uint64_t keys[4];
    float values[12];
    ps_journal *j = open_journal();
    append(j, 4);
    ps_record r = record_of(2, 4, sec, keys, values);
    r.seq = ps_journal_next(j);
    assert_true(bd_fault_arm("ps.journal.append.before", "fail", 0));
    assert_int_equal(ps_journal_append(j, &r, NULL, 0, false, &err), BD_E_IO);
    bd_fault_disarm_all();
    assert_int_equal(ps_journal_next(j).n, 2);
    assert_int_equal(ps_journal_records(j), 1);
    append(j, 4);
    assert_int_equal(ps_journal_next(j).n, 3);
    ps_journal_close(j);
}

/* ---- dedup ---- */
static bool done(const ps_dedup *d, uint64_t client, uint64_t seq, uint32_t part, uint32_t n)
{
    bool is = false;
    bd_err err;
    assert_int_equal(ps_dedup_check(d, client, seq, part, n, &is, &err), BD_OK);
    return is;
}

/* Random order of sequences and parts: each is new once, then done; a stored copy agrees. */
static void each_part_is_new_once(void **state)
{
    (void)state;
    enum { SEQS = 200, PARTS = 70 };
    for (uint64_t seed = 1; seed <= 3; seed++) {
        ps_dedup *d = ps_dedup_new();
        static bool model[SEQS + 1][PARTS];
        memset(model, 0, sizeof model);
        for (uint64_t i = 0; i < 20000; i++) {
            uint64_t dice = bd_rand_u64(seed, 1, i);
            uint64_t seq = 1 + dice % SEQS;
            uint32_t n = seq % 2 == 0 ? PARTS : 1, part = (uint32_t)(dice >> 32) % n;
            assert_int_equal(done(d, 42, seq, part, n), model[seq][part]);
            if (!model[seq][part]) {
                assert_int_equal(ps_dedup_mark(d, 42, seq, part, n), BD_OK);
                model[seq][part] = true;
                if (dice >> 60 == 0) {
                    ps_dedup_unmark(d, 42, seq, part, n);
                    model[seq][part] = false;
                }
            }
        }
        bd_err err;
        bd_buf *b = ps_dedup_pack(d, 42);
        ps_dedup *copy = ps_dedup_new();
        assert_int_equal(ps_dedup_load(copy, 42, b->bytes, b->n_bytes, &err), BD_OK);
        for (uint64_t seq = 1; seq <= SEQS; seq++) {
            uint32_t n = seq % 2 == 0 ? PARTS : 1;
            for (uint32_t part = 0; part < n; part++) {
                assert_int_equal(done(copy, 42, seq, part, n), model[seq][part]);
            }
        }
        for (size_t cut = 0; cut < b->n_bytes; cut++) {
            ps_dedup *bad = ps_dedup_new();
            assert_int_equal(ps_dedup_load(bad, 42, b->bytes, cut, &err), BD_E_CORRUPT);
            ps_dedup_free(bad);
        }
        bd_buf_unref(b);
        ps_dedup_free(copy);
        ps_dedup_free(d);
    }
}

static void dedup_refuses_nonsense(void **state)
{
    (void)state;
    bool is = false;
    bd_err err;
    ps_dedup *d = ps_dedup_new();
    assert_int_equal(ps_dedup_check(d, 0, 1, 0, 1, &is, &err), BD_E_INVALID);
    assert_int_equal(ps_dedup_check(d, 1, 0, 0, 1, &is, &err), BD_E_INVALID);
    assert_int_equal(ps_dedup_check(d, 1, 1, 2, 2, &is, &err), BD_E_INVALID);
    assert_int_equal(ps_dedup_mark(d, 1, 1, 0, 2), BD_OK);
    assert_int_equal(ps_dedup_check(d, 1, 1, 1, 3, &is, &err), BD_E_MISMATCH);
    for (uint64_t s = 3; s < 2 + PS_DEDUP_MAX_ABOVE; s++) { /* 2 never comes */
        assert_int_equal(ps_dedup_mark(d, 1, s, 0, 1), BD_OK);
    }
    assert_int_equal(ps_dedup_check(d, 1, 1 << 20, 0, 1, &is, &err), BD_E_EXHAUSTED);
    ps_dedup_free(d);
}

/* Contexts that end without a step leave gaps: the set stays small, nothing stepped is forgotten,
 * and a mark is not taken back. */
static void steps_of_contexts_may_leave_gaps(void **state)
{
    (void)state;
    const uint64_t client = 5 | PS_DEDUP_CONTEXT;
    ps_dedup *d = ps_dedup_new(), *again = ps_dedup_new();
    bd_err err = BD_ERR_INIT;
    bool done = false;
    for (uint64_t n = 2; n <= 10000; n += 2) { /* every other one steps */
        assert_int_equal(ps_dedup_check(d, client, n, 0, 1, &done, &err), BD_OK);
        assert_false(done);
        assert_int_equal(ps_dedup_mark(d, client, n, 0, 1), BD_OK);
        assert_int_equal(ps_dedup_check(d, client, n, 0, 1, &done, &err), BD_OK);
        assert_true(done);
    }
    bd_buf *b = ps_dedup_pack(d, client);
    assert_true(b->n_bytes <= 16 + 24 * PS_DEDUP_MAX_GAPS);
    assert_int_equal(ps_dedup_load(again, client, b->bytes, b->n_bytes, &err), BD_OK);
    for (uint64_t n = 2; n <= 10000; n += 2) {
        assert_int_equal(ps_dedup_check(again, client, n, 0, 1, &done, &err), BD_OK);
        assert_true(done);
    }
    assert_int_equal(ps_dedup_check(again, client, 9999, 0, 1, &done, &err), BD_OK);
    assert_false(done); /* a young gap is still open */
    assert_int_equal(ps_dedup_check(again, client, 1, 0, 1, &done, &err), BD_OK);
    assert_true(done); /* an old one counts as done */
    ps_dedup_unmark(again, client, 10000, 0, 1);
    assert_int_equal(ps_dedup_check(again, client, 10000, 0, 1, &done, &err), BD_OK);
    assert_true(done);
    bd_buf_unref(b);
    ps_dedup_free(d);
    ps_dedup_free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_survive_their_bytes),
        cmocka_unit_test_setup_teardown(journal_keeps_and_cuts, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(damaged_records_are_named, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(a_torn_end_is_cut_off, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(files_of_the_log_come_and_go, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(facts_of_log_and_store_are_one, make_dir, drop_dir),
        cmocka_unit_test_setup_teardown(failed_appends_leave_nothing, make_dir, drop_dir),
        cmocka_unit_test(each_part_is_new_once),
        cmocka_unit_test(dedup_refuses_nonsense),
        cmocka_unit_test(steps_of_contexts_may_leave_gaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
