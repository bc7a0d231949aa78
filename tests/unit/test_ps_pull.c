/* Restores without a shared folder: every server has a data folder of its own and takes the parts
 * it lacks from the servers of the cluster before, which still run. */
#include "base/mem.h"
#include "base/rand.h"

#include "client/cl_int.h"
#include "ps_server/ps_pull.h"
#include "ps_server/ps_rocks.h"

#include "tests/util/tu_cluster.h"
#include "tests/util/tu_shard.h"

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

#include "braid/v1/parameter_server.pb-c.h"

#define DIM    16u
#define N_KEYS ((size_t)60000) /* a server's part has files of several pieces */
#define GROUP  ((size_t)10000)

/* A cluster and the trainer that speaks to it. */
typedef struct side {
    tu_cluster c;
    tu_rank r;
    cl_job job;
    char from[512]; /* restore_from of the next cluster: all servers of this one */
} side;

static void side_start(side *s, size_t n, const char *from)
{
    tu_cluster_init(&s->c, n);
    s->c.opt.restore_from = from;
    tu_cluster_start_all(&s->c);
    tu_rank_open(&s->r, &s->c, "trainer", 20000);
    s->job = (cl_job){.world = 1, .consistency = CL_SYNC};
    s->from[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        size_t at = strlen(s->from);
        (void)snprintf(s->from + at, sizeof s->from - at, "%s" PS_PULL_SCHEME "%s",
                       i == 0 ? "" : ",", s->c.address[i]);
    }
}

static bd_status side_open(side *s, const char *restore, bd_err *err)
{
    tu_must(cl_job_next_epoch(s->r.client, &s->job.epoch, err), err);
    bd_status rc = cl_job_open(s->r.client, &s->job, restore, 1, err);
    if (rc == BD_OK) {
        cl_job_join(s->r.client, &s->job);
    }
    return rc;
}

static void side_end(side *s)
{
    tu_rank_close(&s->r);
    tu_cluster_end(&s->c);
}

/* Rows of their own value; `round` makes another one of each. */
static void fill(side *s, uint64_t round)
{
    bd_err err;
    uint32_t id = 0;
    uint64_t *keys = bd_alloc(GROUP * sizeof *keys);
    float *rows = bd_alloc(GROUP * DIM * sizeof *rows);
    cl_param init[2] = {{"low", -0.1}, {"high", 0.1}}, opt = {"learning_rate", 0.05};
    cl_table_spec spec = {.name = "t",
                          .dim = DIM,
                          .initializer = "uniform",
                          .init_params = init,
                          .n_init_params = 2,
                          .seed = 7,
                          .optimizer = "adagrad",
                          .opt_params = &opt,
                          .n_opt_params = 1};
    tu_must(cl_table_create(s->r.client, &spec, &id, &err), &err);
    for (size_t first = 0; first < N_KEYS; first += GROUP) {
        for (size_t i = 0; i < GROUP; i++) {
            keys[i] = bd_rand_u64(3, 1, first + i);
        }
        for (size_t i = 0; i < GROUP * DIM; i++) {
            rows[i] = (float)(bd_rand_u64(round, 2, first * DIM + i) % 100000) * 1e-5f;
        }
        tu_must(cl_assign(s->r.client, id, DIM, keys, rows, NULL, GROUP, &err), &err);
    }
    bd_free(keys);
    bd_free(rows);
}

static uint64_t hash_of(side *s)
{
    bd_err err;
    uint64_t hash = 0, rows = 0;
    tu_must(cl_param_hash(s->r.client, &hash, &rows, &err), &err);
    assert_int_equal(rows, N_KEYS);
    return hash;
}

/* <folder of server i>/<rest>, in a static buffer. */
static const char *at(const side *s, size_t i, const char *rest)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/ps-%zu/%s", s->c.dir, i, rest);
    return path;
}

/* 2 -> 3 -> 1, each on folders of its own, and once more on 1 (its part is linked, not gathered):
 * the same bits, and nothing is left of what was pulled. */
static void two_to_three_to_one_without_a_shared_folder(void **state)
{
    (void)state;
    static const size_t sizes[] = {2, 3, 1, 1};
    static const char *const names[] = {"two", "three", "one", "last"};
    enum { N = sizeof sizes / sizeof sizes[0] };
    side *s = bd_calloc(N, sizeof *s);
    uint64_t hash = 0;
    bd_err err;
    for (size_t k = 0; k < N; k++) {
        side_start(&s[k], sizes[k], k == 0 ? "" : s[k - 1].from);
        tu_must(side_open(&s[k], k == 0 ? NULL : names[k - 1], &err), &err);
        for (size_t i = 0; i < sizes[k]; i++) {
            assert_int_not_equal(access(at(&s[k], i, PS_PULL_FOLDER), F_OK), 0);
        }
        if (k > 0) {
            assert_int_equal(hash_of(&s[k]), hash);
            side_end(&s[k - 1]); /* nothing of it is needed any more */
            tu_cluster_stop(&s[k].c, 0);
            tu_cluster_start(&s[k].c, 0);
            assert_int_equal(hash_of(&s[k]), hash);
        }
        fill(&s[k], 2 * k);
        hash = hash_of(&s[k]);
        tu_must(cl_checkpoint(s[k].r.client, names[k], 0, &err), &err);
        fill(&s[k], 2 * k + 1); /* what comes after the cut stays behind */
        assert_int_not_equal(hash_of(&s[k]), hash);
    }
    side_end(&s[N - 1]);
    bd_free(s);
}

/* ---- what may go wrong ---- */
struct pick {
    char path[256];
};

static bd_status pick_sst(void *user, const char *dir, const char *name, bd_err *err)
{
    struct pick *p = user;
    (void)err;
    if (strstr(name, ".sst") != NULL) {
        (void)snprintf(p->path, sizeof p->path, "%s/%s", dir, name);
    }
    return BD_OK;
}

/* Changes a byte in the middle, and changes it back. */
static void flip(const char *path)
{
    struct stat st = {0};
    char c = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pread(fd, &c, 1, st.st_size / 2), 1);
    c ^= 0x10;
    assert_int_equal(pwrite(fd, &c, 1, st.st_size / 2), 1);
    (void)close(fd);
}

static void failures_name_the_part(void **state)
{
    (void)state;
    side *s = bd_calloc(2, sizeof *s);
    struct pick sst = {""};
    bd_err err;
    side_start(&s[0], 2, "");
    tu_must(side_open(&s[0], NULL, &err), &err);
    fill(&s[0], 1);
    uint64_t hash = hash_of(&s[0]);
    tu_must(cl_checkpoint(s[0].r.client, "two", 0, &err), &err);

    char first[128];
    (void)snprintf(first, sizeof first, PS_PULL_SCHEME "%s", s[0].c.address[0]);
    side_start(&s[1], 1, first);
    assert_int_equal(side_open(&s[1], "nope", &err), BD_E_NOT_FOUND);
    assert_non_null(strstr(bd_err_text(&err), first));
    assert_int_equal(side_open(&s[1], "two", &err), BD_E_NOT_FOUND);
    assert_non_null(strstr(bd_err_text(&err), "the part of server 1 of 2 is missing"));
    side_end(&s[1]);

    tu_must(ps_dir_each(at(&s[0], 1, "checkpoints/two/rows"), pick_sst, &sst, &err), &err);
    assert_true(sst.path[0] != '\0');
    side_start(&s[1], 1, s[0].from);
    flip(sst.path);
    assert_int_equal(side_open(&s[1], "two", &err), BD_E_CORRUPT);
    assert_non_null(strstr(bd_err_text(&err), strrchr(sst.path, '/')));
    assert_non_null(strstr(bd_err_text(&err), s[0].c.address[1]));
    flip(sst.path); /* the next try takes what came whole, and asks for that file again */
    tu_must(side_open(&s[1], "two", &err), &err);
    assert_int_equal(hash_of(&s[1]), hash);
    side_end(&s[1]);
    side_end(&s[0]);
    bd_free(s);
}

/* Only files of checkpoints are given out. */
static void only_parts_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *name, *file;
        uint64_t offset;
        bd_status want;
    } cases[] = {{"c", "MANIFEST", 0, BD_OK},
                 {"c", "MANIFEST", 1u << 30, BD_E_INVALID},
                 {"c", "rows/none.sst", 0, BD_E_NOT_FOUND},
                 {"none", "MANIFEST", 0, BD_E_NOT_FOUND},
                 {"../..", "MANIFEST", 0, BD_E_INVALID},
                 {"", "MANIFEST", 0, BD_E_INVALID},
                 {"c", "", 0, BD_E_INVALID},
                 {"c", "rows", 0, BD_E_INVALID},
                 {"c", "rows/", 0, BD_E_INVALID},
                 {"c", "rows/..", 0, BD_E_INVALID},
                 {"c", "rows/../MANIFEST", 0, BD_E_INVALID},
                 {"c", "/etc/passwd", 0, BD_E_INVALID}};
    side *s = bd_calloc(1, sizeof *s);
    bd_err err;
    side_start(s, 1, "");
    tu_must(side_open(s, NULL, &err), &err);
    tu_must(cl_checkpoint(s->r.client, "c", 0, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64], file[64];
        Braid__V1__ReadPartRequest m;
        ProtobufCMessage *reply = NULL;
        braid__v1__read_part_request__init(&m);
        (void)snprintf(name, sizeof name, "%s", cases[i].name);
        (void)snprintf(file, sizeof file, "%s", cases[i].file);
        m.name = name;
        m.file = file;
        m.offset = cases[i].offset;
        bd_status rc = cl_ask_all(s->r.client, CL_SERVICE "ReadPart", &m.base,
                                  &braid__v1__read_part_reply__descriptor, &reply, &err);
        assert_int_equal(rc, cases[i].want);
        if (rc == BD_OK) {
            const Braid__V1__ReadPartReply *r = (const void *)reply;
            assert_true(r->data.len > 0 && r->data.len == r->file_bytes);
            assert_int_equal(r->hash, bd_hash64(r->data.data, r->data.len, 0));
            px_unpacked_free(reply);
        }
    }
    side_end(s);
    bd_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_to_three_to_one_without_a_shared_folder),
        cmocka_unit_test(failures_name_the_part),
        cmocka_unit_test(only_parts_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
