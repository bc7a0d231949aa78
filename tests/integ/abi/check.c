/* Uses the installed C library against real servers: what braid.h promises, call by call.
 *   abi_check HOST:PORT            on a fresh cluster; prints one line a check that fails */
#include <braid.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 4 };

static int n_failed, n_checks;
static const char *address;

#define CHECK(cond) check_that((cond), #cond, __LINE__)
#define SAME(a, b)  check_same((double)(a), (double)(b), #a, __LINE__)
#define OK(call)    check_ok((call), #call, __LINE__)

static braid_error err;

static void check_that(int ok, const char *what, int line)
{
    n_checks++;
    if (!ok) {
        n_failed++;
        printf("line %d: not so: %s (last error: %s)\n", line, what, err.text);
    }
}

static void check_same(double a, double b, const char *what, int line)
{
    check_that(fabs(a - b) <= 1e-6 * (1 + fabs(b)), what, line);
    if (fabs(a - b) > 1e-6 * (1 + fabs(b))) {
        printf("line %d: %.9g, expected %.9g\n", line, a, b);
    }
}

static void check_ok(int status, const char *what, int line)
{
    check_that(status == BRAID_OK, what, line);
    if (status != BRAID_OK) {
        exit(1);
    }
}

static braid_client *join(int consistency, int reduce, int rank, int world)
{
    braid_client *c = NULL;
    braid_options o = BRAID_OPTIONS_INIT;
    o.coordinator = address;
    o.consistency = consistency;
    o.reduce = reduce;
    o.rank = rank;
    o.world = world;
    OK(braid_connect(&o, &c, &err));
    return c;
}

static braid_table *make(braid_client *c, const char *name, const char *optimizer, double lr)
{
    braid_param init[] = {{"low", -1}, {"high", 1}}, opt[] = {{"learning_rate", lr}};
    braid_table_options o = BRAID_TABLE_OPTIONS_INIT;
    braid_table *t = NULL;
    o.name = name;
    o.dim = DIM;
    o.initializer = "uniform";
    o.init_params = init;
    o.n_init_params = 2;
    o.optimizer = optimizer;
    o.opt_params = opt;
    o.n_opt_params = 1;
    OK(braid_table_create(c, &o, &t, &err));
    return t;
}

static void wrong_arguments_are_named(void)
{
    braid_client *c = NULL;
    braid_table *t = NULL;
    braid_options o = BRAID_OPTIONS_INIT;
    struct {
        braid_options now;
        long newer;
    } later = {BRAID_OPTIONS_INIT, 7};
    CHECK(braid_connect(NULL, &c, &err) == BRAID_E_INVALID);
    CHECK(braid_connect(&o, &c, &err) == BRAID_E_INVALID && strstr(err.text, "coordinator"));
    o.coordinator = address;
    o.rank = 2;
    CHECK(braid_connect(&o, &c, &err) == BRAID_E_INVALID && strstr(err.text, "rank 2"));
    o.rank = 0;
    o.size = 0;
    CHECK(braid_connect(&o, &c, &err) == BRAID_E_INVALID && strstr(err.text, "size"));
    later.now.coordinator = address;
    later.now.size = sizeof later;
    CHECK(braid_connect(&later.now, &c, &err) == BRAID_E_UNSUPPORTED);
    later.newer = 0; /* a newer header, but nothing of it is used */
    OK(braid_connect(&later.now, &c, &err));
    CHECK(braid_table_open(c, "nobody", &t, &err) == BRAID_E_NOT_FOUND &&
          strstr(err.text, "nobody"));
    braid_table_options to = BRAID_TABLE_OPTIONS_INIT;
    to.name = "bad";
    to.dim = 0;
    to.initializer = "constant";
    CHECK(braid_table_create(c, &to, &t, &err) == BRAID_E_INVALID);
    to.dim = 3;
    to.optimizer = "adagrat";
    CHECK(braid_table_create(c, &to, &t, &err) != BRAID_OK && strstr(err.text, "adagrat"));
    to.optimizer = "adagrad";
    OK(braid_table_create(c, &to, &t, &err));
    to.dtype = "f99";
    CHECK(braid_table_create(c, &to, &t, &err) != BRAID_OK && strstr(err.text, "dtype"));
    to.dtype = NULL;
    to.bad_gradient = "shrug";
    CHECK(braid_table_create(c, &to, &t, &err) == BRAID_E_INVALID && strstr(err.text, "shrug"));
    to.bad_gradient = "clip"; /* without a norm */
    CHECK(braid_table_create(c, &to, &t, &err) == BRAID_E_INVALID &&
          strstr(err.text, "max_gradient_norm"));
    to.bad_gradient = NULL;
    to.max_gradient_norm = 2;
    CHECK(braid_table_create(c, &to, &t, &err) == BRAID_E_MISMATCH &&
          strstr(err.text, "max_gradient_norm"));
    to.max_gradient_norm = 0;
    to.size = offsetof(braid_table_options, dtype); /* a program of an older header */
    OK(braid_table_create(c, &to, &t, &err));
    to.dim = 5;
    CHECK(braid_table_create(c, &to, &t, &err) == BRAID_E_MISMATCH && strstr(err.text, "dim"));
    CHECK(c != NULL && braid_table_dim(t) == 3);
    CHECK(strcmp(braid_status_name(BRAID_E_FENCED), "E_FENCED") == 0);
    CHECK(braid_log_level("loud") == BRAID_E_INVALID && braid_log_level("error") == BRAID_OK);
    CHECK(braid_abi_version() == BRAID_ABI_VERSION && braid_version()[0] != '\0');
    braid_close(c);
}

/* Parameters in the text are those of the arrays: the table that stands is an equal one, or not. */
static void parameters_may_stand_in_the_text(void)
{
    static const struct {
        const char *initializer, *optimizer;
        int status;
        const char *says;
    } rows[] = {
        {"uniform(low=-1, high=1)", "sgd(learning_rate=0.5)", BRAID_OK, ""},
        {"uniform(high=1,low=-1)", "sgd( learning_rate = 0.5 )", BRAID_OK, ""},
        {"uniform(low=-1, high=2)", "sgd(learning_rate=0.5)", BRAID_E_MISMATCH, "high"},
        {"uniform(low=-1, high=1)", "sgd(learning_rate=0.25)", BRAID_E_MISMATCH, "learning_rate"},
        {"uniform(low=-1, height=1)", "sgd", BRAID_E_INVALID, "height"},
        {"uniform(low=-1", "sgd", BRAID_E_INVALID, "table \"text\": initializer"},
        {"uniform(low=-1, high=1)", "sgd(learning_rate=fast)", BRAID_E_INVALID,
         "table \"text\": optimizer"},
        {"uniform(low=-1); constant(value=0)", "sgd", BRAID_E_INVALID, "is 2, not one"},
        {"constant(value=0)", "sgt(learning_rate=1)", BRAID_E_INVALID, "sgt"},
    };
    braid_client *c = join(BRAID_ASYNC, 0, 0, 1);
    braid_table *first = make(c, "text", "sgd", 0.5), *t = NULL;
    braid_table_options o = BRAID_TABLE_OPTIONS_INIT;
    braid_param p = {"low", -1};
    o.name = "text";
    o.dim = DIM;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        o.initializer = rows[i].initializer;
        o.optimizer = rows[i].optimizer;
        int status = braid_table_create(c, &o, &t, &err);
        CHECK(status == rows[i].status);
        CHECK(status == BRAID_OK ? t == first : strstr(err.text, rows[i].says) != NULL);
    }
    o.init_params = &p;
    o.n_init_params = 1;
    o.initializer = "uniform(low=-1, high=1)";
    CHECK(braid_table_create(c, &o, &t, &err) == BRAID_E_INVALID &&
          strstr(err.text, "one way or the other"));
    braid_close(c);
}

/* Without offsets the number of bags need not be said. */
static void ids_alone_are_bags_of_one(void)
{
    braid_client *c = join(BRAID_ASYNC, 0, 0, 1);
    braid_table *t = make(c, "alone", "sgd", 0.5);
    uint64_t ids[] = {3, 9, 3};
    float want[3][DIM], got[2][3][DIM], *out[] = {got[0][0], got[1][0]};
    braid_feature f[] = {{.table = t, .ids = ids, .n_ids = 3},
                         {.table = t, .ids = ids, .n_ids = 3, .n_bags = 3}};
    braid_batch *b = NULL;
    OK(braid_lookup(t, ids, 3, want[0], &err));
    OK(braid_batch_new(c, f, 2, &b, &err));
    OK(braid_forward(b, out, &err));
    CHECK(memcmp(got[0], want, sizeof want) == 0 && memcmp(got[1], want, sizeof want) == 0);
    braid_batch_free(b);
    f[0].n_bags = 2;
    CHECK(braid_batch_new(c, f, 1, &b, &err) == BRAID_E_INVALID && strstr(err.text, "2 bags"));
    braid_close(c);
}

static void push_applies_the_optimiser_once_a_row(void)
{
    braid_client *c = join(BRAID_ASYNC, 0, 0, 1);
    braid_table *t = make(c, "sgd", "sgd", 0.5);
    uint64_t keys[] = {7, 0, UINT64_MAX, 7};
    float before[4][DIM], after[4][DIM], grads[4][DIM], again[4][DIM];
    OK(braid_lookup(t, keys, 4, before[0], &err));
    OK(braid_lookup(t, keys, 4, again[0], &err));
    CHECK(memcmp(before, again, sizeof before) == 0 &&
          memcmp(before[0], before[3], sizeof before[0]) == 0);
    for (int i = 0; i < 4 * DIM; i++) {
        grads[i / DIM][i % DIM] = (float)(i + 1);
    }
    OK(braid_push(t, keys, 4, grads[0], 0, &err));
    CHECK(braid_last_step(c) == 1);
    OK(braid_lookup(t, keys, 4, after[0], &err));
    for (int d = 0; d < DIM; d++) {
        SAME(after[0][d], before[0][d] - 0.5f * (grads[0][d] + grads[3][d]));
        SAME(after[1][d], before[1][d] - 0.5f * grads[1][d]);
        SAME(after[2][d], before[2][d] - 0.5f * grads[2][d]);
    }
    OK(braid_push(t, keys + 1, 1, grads[1], 0.1, &err)); /* a schedule */
    OK(braid_lookup(t, keys, 4, again[0], &err));
    SAME(again[1][0], after[1][0] - 0.05f * grads[1][0]);
    grads[1][2] = NAN;
    CHECK(braid_push(t, keys + 1, 1, grads[1], 0, &err) == BRAID_E_NUMERIC &&
          strstr(err.text, "key 0"));
    OK(braid_lookup(t, keys + 1, 1, after[1], &err));
    CHECK(memcmp(again[1], after[1], sizeof again[1]) == 0);
    OK(braid_push(t, NULL, 0, NULL, 0, &err));
    braid_close(c);
}

static void bad_gradients_follow_the_tables_policy(void)
{
    braid_client *c = join(BRAID_ASYNC, 0, 0, 1);
    braid_param init[] = {{"value", 0}}, opt[] = {{"learning_rate", 1}};
    braid_table_options o = BRAID_TABLE_OPTIONS_INIT;
    braid_table *clip = NULL, *drop = NULL;
    uint64_t keys[] = {3, 4};
    float grads[2][DIM] = {{3, 4, 0, 0}, {0, 0.5f, 0, 0}}, rows[2][DIM];
    o.name = "clips";
    o.dim = DIM;
    o.initializer = "constant";
    o.init_params = init;
    o.n_init_params = 1;
    o.optimizer = "sgd";
    o.opt_params = opt;
    o.n_opt_params = 1;
    o.bad_gradient = "clip";
    o.max_gradient_norm = 1;
    OK(braid_table_create(c, &o, &clip, &err));
    o.name = "drops";
    o.bad_gradient = "drop_row";
    OK(braid_table_create(c, &o, &drop, &err));
    OK(braid_push(clip, keys, 2, grads[0], 0, &err));
    OK(braid_lookup(clip, keys, 2, rows[0], &err));
    SAME(rows[0][0], -0.6);
    SAME(rows[0][1], -0.8);
    SAME(rows[1][1], -0.5);
    OK(braid_push(drop, keys, 2, grads[0], 0, &err));
    OK(braid_lookup(drop, keys, 2, rows[0], &err));
    SAME(rows[0][0], 0);
    SAME(rows[1][1], -0.5);
    braid_close(c);
}

static void a_table_begins_with_the_rows_of_a_file(void)
{
    static const char path[] = "/tmp/braid_abi_rows.tsv";
    braid_client *c = join(BRAID_ASYNC, 0, 0, 1);
    braid_param init[] = {{"value", 9}}, opt[] = {{"learning_rate", 1}};
    braid_table_options o = BRAID_TABLE_OPTIONS_INIT;
    braid_table *t = NULL, *none = NULL;
    uint64_t keys[] = {7, UINT64_MAX, 8};
    float rows[3][DIM], grad[DIM] = {1, 0, 0, 0};
    FILE *f = fopen(path, "w");
    CHECK(f != NULL &&
          fputs("key\tw0\tw1\tw2\tw3\n7\t1\t2\t3\t4\n18446744073709551615\t-1\t0\t0\t0.5\n", f) >=
              0);
    CHECK(f != NULL && fclose(f) == 0);
    o.name = "begins";
    o.dim = DIM;
    o.initializer = "constant";
    o.init_params = init;
    o.n_init_params = 1;
    o.optimizer = "sgd";
    o.opt_params = opt;
    o.n_opt_params = 1;
    o.init_file = path;
    OK(braid_table_create(c, &o, &t, &err));
    OK(braid_lookup(t, keys, 3, rows[0], &err));
    SAME(rows[0][0], 1);
    SAME(rows[0][3], 4);
    SAME(rows[1][0], -1);
    SAME(rows[2][0], 9);
    OK(braid_push(t, keys, 1, grad, 0, &err));
    OK(braid_table_create(c, &o, &t, &err)); /* it has rows: the file is not read again */
    OK(braid_lookup(t, keys, 1, rows[0], &err));
    SAME(rows[0][0], 0);
    o.name = "begins3";
    o.dim = 3;
    CHECK(braid_table_create(c, &o, &none, &err) == BRAID_E_MISMATCH && strstr(err.text, path));
    CHECK(remove(path) == 0);
    o.name = "begins4";
    o.dim = DIM;
    CHECK(braid_table_create(c, &o, &none, &err) == BRAID_E_NOT_FOUND && strstr(err.text, path));
    braid_close(c);
}

static void bags_are_pooled(void)
{
    braid_client *c = join(BRAID_ASYNC, 0, 0, 1);
    braid_table *t = make(c, "bags", "sgd", 1), *t2 = make(c, "bags2", "sgd", 1);
    uint64_t ids[] = {5, 6, 5, 9, 11};
    int64_t offsets[] = {0, 2, 2, 5}; /* {5 6} {} {5 9 11} {} */
    float weights[] = {1, 2, 3, 4, -5}, rows[5][DIM], out[4][4][DIM],
          grad[4][DIM] = {{1, 2, 3, 4}, {9, 9, 9, 9}, {1, 0, -1, 0.5f}};
    braid_batch *b = NULL;
    braid_context *x = NULL;
    braid_feature f[4] = {
        {.table = t, .ids = ids, .n_ids = 5, .offsets = offsets, .n_bags = 4},
        {.table = t, .ids = ids, .n_ids = 5, .offsets = offsets, .n_bags = 4, .mode = BRAID_MEAN},
        {.table = t2, .ids = ids, .n_ids = 5, .offsets = offsets, .n_bags = 4},
        {.table = t, .ids = ids, .n_ids = 5, .offsets = offsets, .n_bags = 4, .weights = weights}};
    float *outs[] = {out[0][0], out[1][0], out[2][0], out[3][0]};
    const float *grads[] = {grad[0], grad[0], NULL, grad[0]};
    OK(braid_lookup(t, ids, 5, rows[0], &err));
    OK(braid_batch_new(c, f, 4, &b, &err));
    CHECK(braid_batch_unique(b) == 8);
    OK(braid_batch_fetch(b, &err));
    OK(braid_forward(b, outs, &err));
    for (int d = 0; d < DIM; d++) {
        SAME(out[0][0][d], rows[0][d] + rows[1][d]);
        SAME(out[0][1][d], 0);
        SAME(out[1][2][d], (rows[2][d] + rows[3][d] + rows[4][d]) / 3);
        SAME(out[1][3][d], 0);
        SAME(out[3][2][d], 3 * rows[2][d] + 4 * rows[3][d] - 5 * rows[4][d]);
    }
    OK(braid_context_new(c, &x, &err));
    OK(braid_backward(x, b, grads, &err));
    CHECK(braid_forward(b, outs, &err) == BRAID_E_STATE);
    braid_batch_free(b); /* the context keeps what it needs */
    OK(braid_step(x, 1, &err));
    float after[5][DIM];
    OK(braid_lookup(t, ids, 5, after[0], &err));
    for (int d = 0; d < DIM; d++) { /* sum + mean + weighted, learning rate 1 */
        SAME(after[0][d],
             rows[0][d] - (grad[0][d] * (1 + 0.5f + 1) + grad[2][d] * (1 + 1 / 3.0f + 3)));
        SAME(after[1][d], rows[1][d] - grad[0][d] * (1 + 0.5f + 2));
        SAME(after[4][d], rows[4][d] - grad[2][d] * (1 + 1 / 3.0f - 5));
    }
    offsets[1] = 6;
    CHECK(braid_batch_new(c, f, 4, &b, &err) == BRAID_E_INVALID && strstr(err.text, "offsets[1]"));
    offsets[1] = 2, f[1].weights = weights;
    CHECK(braid_batch_new(c, f, 4, &b, &err) == BRAID_E_INVALID && strstr(err.text, "feature 1"));
    braid_context_free(x);
    braid_close(c);
}

/* Square root, largest, and the first ids alone; summed here or by the servers. */
static void bags_are_pooled_in_other_ways(int pooling)
{
    braid_client *c = NULL;
    braid_options o = BRAID_OPTIONS_INIT;
    o.coordinator = address;
    o.consistency = BRAID_ASYNC;
    o.pooling = pooling;
    OK(braid_connect(&o, &c, &err));
    braid_table *t = make(c, pooling == BRAID_POOL_SERVER ? "ways-s" : "ways-c", "sgd", 1);
    uint64_t ids[] = {5, 6, 7, 5, 9};
    int64_t offsets[] = {0, 3, 3}; /* {5 6 7} {} {5 9} */
    float rows[5][DIM], after[5][DIM], out[3][3][DIM],
        grad[3][DIM] = {{1, 2, 3, 4}, {9, 9, 9, 9}, {1, 0, -1, 0.5f}};
    braid_batch *b = NULL;
    braid_context *x = NULL;
    braid_feature f[3] = {
        {.table = t, .ids = ids, .n_ids = 5, .offsets = offsets, .n_bags = 3, .mode = BRAID_SQRTN},
        {.table = t, .ids = ids, .n_ids = 5, .offsets = offsets, .n_bags = 3, .first_n = 2},
        {.table = t, .ids = ids, .n_ids = 5, .offsets = offsets, .n_bags = 3, .mode = BRAID_MAX}};
    float *outs[] = {out[0][0], out[1][0], out[2][0]};
    const float *grads[] = {grad[0], grad[0], grad[0]};
    for (size_t n = 2; n <= 3;
         n++) { /* the third is never summed by servers: alone, and with them */
        float third = sqrtf(3), half = sqrtf(2), expect[5][DIM];
        OK(braid_lookup(t, ids, 5, rows[0], &err));
        OK(braid_batch_new(c, f, n, &b, &err));
        OK(braid_forward(b, outs, &err));
        OK(braid_context_new(c, &x, &err));
        OK(braid_backward(x, b, grads, &err));
        OK(braid_step(x, 1, &err));
        OK(braid_lookup(t, ids, 5, after[0], &err));
        for (int d = 0; d < DIM; d++) {
            SAME(out[0][0][d], (rows[0][d] + rows[1][d] + rows[2][d]) / third);
            SAME(out[0][1][d], 0);
            SAME(out[0][2][d], (rows[3][d] + rows[4][d]) / half);
            SAME(out[1][0][d], rows[0][d] + rows[1][d]);
            float g0 = grad[0][d], g2 = grad[2][d];
            expect[0][d] = rows[0][d] - (g0 / third + g0 + g2 / half + g2);
            expect[1][d] = rows[1][d] - (g0 / third + g0);
            expect[2][d] = rows[2][d] - g0 / third;
            expect[4][d] = rows[4][d] - (g2 / half + g2);
            if (n == 3) {
                int top = rows[1][d] > rows[0][d] ? 1 : 0;
                top = rows[2][d] > rows[top][d] ? 2 : top;
                SAME(out[2][0][d], rows[top][d]);
                SAME(out[2][1][d], 0);
                expect[top][d] -= g0;
                expect[rows[4][d] > rows[3][d] ? 4 : 0][d] -= g2;
            }
            SAME(after[0][d], expect[0][d]);
            SAME(after[1][d], expect[1][d]);
            SAME(after[2][d], expect[2][d]);
            SAME(after[4][d], expect[4][d]);
        }
        braid_batch_free(b);
        braid_context_free(x);
    }
    f[0].first_n = -1;
    CHECK(braid_batch_new(c, f, 3, &b, &err) == BRAID_E_INVALID && strstr(err.text, "first_n"));
    f[0].first_n = 0, f[0].mode = 4;
    CHECK(braid_batch_new(c, f, 3, &b, &err) == BRAID_E_INVALID && strstr(err.text, "mode 4"));
    braid_close(c);
}

/* Two batches and a plain gradient in one context are one Adagrad step of their sum. */
static void a_context_adds_up(void)
{
    braid_client *c = join(BRAID_SYNC, 0, 0, 1);
    braid_table *t = make(c, "ada", "adagrad", 0.1);
    uint64_t one[] = {1, 2}, two[] = {2, 3}, all[] = {1, 2, 3};
    float g1[2][DIM] = {{1, 1, 1, 1}, {2, 2, 2, 2}}, g2[2][DIM] = {{-5, 3, 0, 1}, {1, -1, 1, -1}},
          before[3][DIM], after[3][DIM];
    const float *grads1[] = {g1[0]}, *grads2[] = {g2[0]};
    braid_batch *b1 = NULL, *b2 = NULL;
    braid_context *x = NULL;
    braid_feature f1 = {.table = t, .ids = one, .n_ids = 2, .n_bags = 2},
                  f2 = {.table = t, .ids = two, .n_ids = 2, .n_bags = 2};
    OK(braid_lookup(t, all, 3, before[0], &err));
    OK(braid_context_new(c, &x, &err));
    OK(braid_batch_new(c, &f1, 1, &b1, &err));
    OK(braid_batch_new(c, &f2, 1, &b2, &err));
    OK(braid_backward(x, b1, grads1, &err));
    OK(braid_backward(x, b2, grads2, &err));
    OK(braid_backward(x, b1, grads1, &err)); /* a second loss */
    OK(braid_context_add(x, t, all + 2, 1, g1[0], &err));
    OK(braid_step(x, 1, &err));
    OK(braid_lookup(t, all, 3, after[0], &err));
    for (int d = 0; d < DIM; d++) {
        float g[] = {2 * g1[0][d], 2 * g1[1][d] + g2[0][d], g2[1][d] + g1[0][d]};
        for (int k = 0; k < 3; k++) { /* s = g^2 */
            SAME(after[k][d], before[k][d] - (g[k] == 0 ? 0 : 0.1f * g[k] / fabsf(g[k])));
        }
    }
    OK(braid_step(x, 1, &err)); /* empty: sync counts it all the same */
    OK(braid_backward(x, b1, grads1, &err));
    braid_context_clear(x);
    OK(braid_step(x, 1, &err));
    CHECK(braid_last_step(c) == 3);
    OK(braid_lookup(t, all, 3, before[0], &err));
    CHECK(memcmp(before, after, sizeof before) == 0);
    g1[0][0] = INFINITY;
    CHECK(braid_push(t, one, 1, g1[0], 0, &err) == BRAID_E_NUMERIC);
    g1[0][0] = 1;
    OK(braid_push(t, one, 1, g1[0], 0, &err));
    OK(braid_checkpoint(c, "abi", &err));
    OK(braid_checkpoint_delete(c, "abi", &err));
    braid_batch_free(b1);
    braid_batch_free(b2);
    braid_context_free(x);
    braid_close(c);
}

typedef struct rank_run {
    int rank, wrong;
    braid_table *table;
    float last[DIM];
} rank_run;

static void *run_rank(void *user)
{
    rank_run *r = user;
    uint64_t key = 42;
    braid_error e;
    for (int step = 1; step <= 5; step++) {
        float g[DIM] = {(float)(r->rank + step), 0, 0, 1};
        r->wrong += braid_push(r->table, &key, 1, g, 1, &e) != BRAID_OK;
    }
    r->wrong += braid_lookup(r->table, &key, 1, r->last, &e) != BRAID_OK;
    return NULL;
}

/* Two ranks of a sync job: each step is the mean of both, whoever came first. */
static void ranks_step_together(void)
{
    braid_client *zero = join(BRAID_SYNC, BRAID_REDUCE_MEAN, 0, 2);
    braid_client *other = join(BRAID_SYNC, BRAID_REDUCE_MEAN, 1, 2);
    braid_table *t = make(zero, "two", "sgd", 1);
    rank_run r[2] = {{.rank = 0, .table = t}, {.rank = 1, .table = make(other, "two", "sgd", 1)}};
    uint64_t key = 42, epoch = 0, again = 0;
    float before[DIM];
    pthread_t threads[2];
    OK(braid_lookup(t, &key, 1, before, &err));
    CHECK(braid_job_open(other, &epoch, &err) == BRAID_E_STATE);
    CHECK(braid_push(r[1].table, &key, 1, before, 1, &err) == BRAID_E_STATE);
    OK(braid_job_open(zero, &epoch, &err));
    OK(braid_job_open(zero, &again, &err));
    CHECK(again == epoch && braid_job_join(zero, epoch, &err) == BRAID_E_STATE);
    CHECK(braid_job_join(other, 0, &err) == BRAID_E_INVALID);
    OK(braid_job_join(other, epoch, &err));
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, run_rank, &r[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(r[i].wrong == 0 && braid_last_step(i == 0 ? zero : other) == 5);
    }
    SAME(r[0].last[0], before[0] - (1 + 2 + 3 + 4 + 5) - 2.5f);
    SAME(r[0].last[3], before[3] - 5);
    CHECK(memcmp(r[0].last, r[1].last, sizeof before) == 0);
    /* a newer job fences this one */
    braid_client *newer = join(BRAID_ASYNC, 0, 0, 1);
    OK(braid_job_open(newer, NULL, &err));
    CHECK(braid_push(t, &key, 1, before, 1, &err) == BRAID_E_FENCED);
    CHECK(braid_push(t, &key, 1, before, 1, &err) != BRAID_OK);
    OK(braid_lookup(make(newer, "two", "sgd", 1), &key, 1, before, &err));
    braid_close(newer);
    braid_close(zero);
    braid_close(other);
}

typedef struct sharer {
    braid_table *table;
    uint64_t key;
    int wrong;
} sharer;

static void *run_sharer(void *user)
{
    sharer *s = user;
    float one[DIM] = {1, 1, 1, 1}, first[DIM], now[DIM];
    braid_error e;
    s->wrong += braid_lookup(s->table, &s->key, 1, first, &e) != BRAID_OK;
    for (int step = 1; step <= 30; step++) {
        s->wrong += braid_push(s->table, &s->key, 1, one, 1, &e) != BRAID_OK;
        s->wrong += braid_lookup(s->table, &s->key, 1, now, &e) != BRAID_OK;
        s->wrong += fabsf(now[0] - (first[0] - (float)step)) > 1e-4f;
    }
    return NULL;
}

static void threads_share_a_client(void)
{
    enum { N = 4 };
    braid_client *c = join(BRAID_ASYNC, 0, 0, 1);
    braid_table *t = make(c, "share", "sgd", 1);
    sharer s[N];
    pthread_t threads[N];
    for (uint64_t i = 0; i < N; i++) {
        s[i] = (sharer){t, i, 0};
        CHECK(pthread_create(&threads[i], NULL, run_sharer, &s[i]) == 0);
    }
    for (int i = 0; i < N; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(s[i].wrong == 0);
    }
    CHECK(braid_last_step(c) == N * 30);
    braid_close(c);
}

static void rows_go_in_and_out(void)
{
    enum { N = 70000 };
    braid_client *c = join(BRAID_ASYNC, 0, 0, 1);
    braid_table *t = make(c, "import", "adagrad", 0.1), *same = NULL;
    uint64_t *keys = calloc(N, sizeof *keys), hash[2], n_rows = 0;
    float *rows = calloc((size_t)N * DIM, sizeof *rows),
          *state = calloc((size_t)N * DIM, sizeof *state);
    for (size_t i = 0; i < N; i++) {
        keys[i] = i * 0x9e3779b97f4a7c15u;
        for (size_t d = 0; d < DIM; d++) {
            rows[i * DIM + d] = (float)i + (float)d / 8;
            state[i * DIM + d] = (float)d;
        }
    }
    CHECK(braid_table_state_elems(t) == DIM);
    OK(braid_param_hash(c, &hash[0], &n_rows, &err));
    uint64_t rows_before = n_rows;
    OK(braid_assign(t, keys, N, rows, state, &err));
    OK(braid_param_hash(c, &hash[1], &n_rows, &err));
    CHECK(n_rows == rows_before + N && hash[0] != hash[1]);
    OK(braid_table_open(c, "import", &same, &err));
    CHECK(same == t && strcmp(braid_table_name(t), "import") == 0);
    for (int with_state = 0; with_state <= 1; with_state++) {
        braid_export *x = NULL;
        size_t n = 0, total = 0, pages = 0;
        int wrong = 0;
        OK(braid_export_open(t, with_state, &x, &err));
        do {
            const uint64_t *k;
            const float *r, *s;
            OK(braid_export_next(x, &k, &r, &s, &n, &err));
            wrong += with_state != (s != NULL) && n > 0;
            for (size_t i = 0; i < n; i++) { /* the row says which key it belongs to */
                wrong += k[i] != (uint64_t)r[i * DIM] * 0x9e3779b97f4a7c15u;
                wrong += with_state && s[i * DIM + 3] != 3;
            }
            total += n;
            pages += n > 0;
        } while (n > 0);
        CHECK(total == N && wrong == 0 && pages > 1);
        braid_export_close(x);
    }
    rows[5] = NAN;
    CHECK(braid_assign(t, keys, 3, rows, NULL, &err) == BRAID_E_NUMERIC);
    braid_stat *stats = NULL;
    size_t n = 0;
    int seen = 0;
    OK(braid_stats(c, &stats, &n, &err));
    for (size_t i = 0; i < n; i++) {
        seen |= 1 << stats[i].server;
    }
    CHECK(n > 0 && seen == (1 << braid_n_servers(c)) - 1);
    braid_stats_free(stats);
    free(keys);
    free(rows);
    free(state);
    braid_close(c);
}

/* A step in flight, rows that lag, small rows on the wire, a table that lives until it is stopped.
 */
static void options_of_clients_and_tables(void)
{
    braid_client *c = NULL;
    braid_table *t = NULL;
    braid_options o = BRAID_OPTIONS_INIT;
    braid_table_options spec = BRAID_TABLE_OPTIONS_INIT;
    braid_context *empty = NULL;
    const uint64_t key = 5;
    float one[DIM] = {1, 1, 1, 1}, before[DIM], after[DIM];
    o.coordinator = address;
    o.consistency = BRAID_BOUNDED;
    o.staleness = -1;
    CHECK(braid_connect(&o, &c, &err) == BRAID_E_INVALID && strstr(err.text, "staleness") != NULL);
    o.staleness = 2;
    o.steps_in_flight = 2;
    CHECK(braid_connect(&o, &c, &err) == BRAID_E_INVALID && strstr(err.text, "in_flight") != NULL);
    o.steps_in_flight = 1;
    o.wire_codec = "gzip";
    CHECK(braid_connect(&o, &c, &err) == BRAID_E_UNSUPPORTED && strstr(err.text, "gzip") != NULL);
    o.wire_codec = "lz4";
    o.wire_grads = "bf16";
    OK(braid_connect(&o, &c, &err));
    spec.name = "short-lived";
    spec.dim = DIM;
    spec.initializer = "constant";
    spec.optimizer = "sgd";
    spec.durability = "never";
    CHECK(braid_table_create(c, &spec, &t, &err) == BRAID_E_INVALID);
    spec.durability = "checkpoint";
    OK(braid_table_create(c, &spec, &t, &err));
    OK(braid_lookup(t, &key, 1, before, &err));
    for (int i = 0; i < 5; i++) {
        OK(braid_push(t, &key, 1, one, 1, &err));
        one[0] = one[1] = 1; /* it has been taken */
    }
    OK(braid_context_new(c, &empty, &err));
    OK(braid_step(empty, 1, &err)); /* a step without gradients is one as well */
    CHECK(braid_last_step(c) == 6);
    OK(braid_wait(c, &err));
    OK(braid_wait(c, &err)); /* nothing is in flight */
    OK(braid_lookup(t, &key, 1, after, &err));
    SAME(after[0], before[0] - 5 * 0.01); /* sgd's default rate; 1 is exact in bf16 */
    braid_context_free(empty);
    braid_close(c);
}

int main(int argc, char **argv)
{
    address = argc > 1 ? argv[1] : "127.0.0.1:7700";
    wrong_arguments_are_named();
    parameters_may_stand_in_the_text();
    ids_alone_are_bags_of_one();
    push_applies_the_optimiser_once_a_row();
    bad_gradients_follow_the_tables_policy();
    a_table_begins_with_the_rows_of_a_file();
    bags_are_pooled();
    bags_are_pooled_in_other_ways(BRAID_POOL_CLIENT);
    bags_are_pooled_in_other_ways(BRAID_POOL_SERVER);
    a_context_adds_up();
    ranks_step_together();
    threads_share_a_client();
    rows_go_in_and_out();
    options_of_clients_and_tables();
    printf("%d of %d checks passed\n", n_checks - n_failed, n_checks);
    return n_failed == 0 ? 0 : 1;
}
