#include "tests/util/ring_matrix.h"

#include "base/mem.h"
#include "base/rand.h"

#include "tests/util/ring_ranks.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int WORLDS[] = {1, 2, 3, 4, 5, 8};
#define N_WORLDS (sizeof WORLDS / sizeof WORLDS[0])

static const num_dtype DTYPES[] = {
#define BD_X(name, num, size, text) NUM_##name,
    NUM_DTYPE_MAP(BD_X)
#undef BD_X
};
#define N_DTYPES (sizeof DTYPES / sizeof DTYPES[0])

static const num_reduce_op OPS[] = {
#define BD_X(name, num, text) NUM_##name,
    NUM_REDUCE_OP_MAP(BD_X)
#undef BD_X
};
#define N_OPS (sizeof OPS / sizeof OPS[0])

typedef struct matrix_case {
    size_t count;
    num_dtype dtype;
    num_reduce_op op;
} matrix_case;

static bool is_float(num_dtype d)
{
    return d == NUM_F32 || d == NUM_F16 || d == NUM_BF16 || d == NUM_F64;
}

/* Inputs repeat after a prime number of elements, so no shift by a segment goes unnoticed. */
#define PERIOD   4093
#define N_INPUTS 100

static uint8_t g_inputs[N_INPUTS][PERIOD];
static pthread_once_t g_inputs_once = PTHREAD_ONCE_INIT;

static void make_inputs(void)
{
    for (size_t r = 0; r < N_INPUTS; r++) {
        for (size_t i = 0; i < PERIOD; i++) {
            g_inputs[r][i] = (uint8_t)(1 + (bd_mix64(((uint64_t)r << 40) + i) & 0xffff) % 3);
        }
    }
}

/* Element i of rank r's input, after ring_matrix_filled: small, so that products and 8-bit sums of
 * 8 ranks stay exact. */
static double input_at(int r, size_t i)
{
    return (double)g_inputs[r][i % PERIOD];
}

static void store(void *buf, size_t i, num_dtype d, double v)
{
    switch (d) {
    case NUM_F32:
        ((float *)buf)[i] = (float)v;
        break;
    case NUM_F16:
        ((uint16_t *)buf)[i] = num_f32_to_f16((float)v);
        break;
    case NUM_BF16:
        ((uint16_t *)buf)[i] = num_f32_to_bf16((float)v);
        break;
    case NUM_F64:
        ((double *)buf)[i] = v;
        break;
    case NUM_I32:
        ((int32_t *)buf)[i] = (int32_t)v;
        break;
    case NUM_I64:
        ((int64_t *)buf)[i] = (int64_t)v;
        break;
    case NUM_U8:
        ((uint8_t *)buf)[i] = (uint8_t)(int64_t)v;
        break;
    case NUM_I8:
        ((int8_t *)buf)[i] = (int8_t)(uint8_t)(int64_t)v;
        break;
    }
}

static double load(const void *buf, size_t i, num_dtype d)
{
    switch (d) {
    case NUM_F32:
        return (double)((const float *)buf)[i];
    case NUM_F16:
        return (double)num_f16_to_f32(((const uint16_t *)buf)[i]);
    case NUM_BF16:
        return (double)num_bf16_to_f32(((const uint16_t *)buf)[i]);
    case NUM_F64:
        return ((const double *)buf)[i];
    case NUM_I32:
        return ((const int32_t *)buf)[i];
    case NUM_I64:
        return (double)((const int64_t *)buf)[i];
    case NUM_U8:
        return ((const uint8_t *)buf)[i];
    case NUM_I8:
        return ((const int8_t *)buf)[i];
    }
    return NAN;
}

/* In double; the inputs make every result exact but for avg and for wide products. */
double ring_matrix_reduced_at(size_t i, int world, num_reduce_op op, num_dtype d)
{
    double v = input_at(0, i);
    for (int r = 1; r < world; r++) {
        double x = input_at(r, i);
        switch (op) {
        case NUM_SUM:
        case NUM_AVG:
            v += x;
            break;
        case NUM_MIN:
            v = x < v ? x : v;
            break;
        case NUM_MAX:
            v = x > v ? x : v;
            break;
        case NUM_PROD:
            v *= x;
            break;
        case NUM_BAND:
            v = (double)((int64_t)v & (int64_t)x);
            break;
        case NUM_BOR:
            v = (double)((int64_t)v | (int64_t)x);
            break;
        }
    }
    if (op == NUM_AVG) {
        v = is_float(d) ? v / world : trunc(v / world);
    }
    return v;
}

static bool is_near(double got, double want, num_dtype d)
{
    if (d == NUM_U8 || d == NUM_I8) { /* sums and products wrap */
        return ((int64_t)got & 255) == ((int64_t)want & 255);
    }
    double eps = d == NUM_BF16 ? 0x1p-7 : d == NUM_F16 ? 0x1p-10 : d == NUM_F32 ? 1e-6 : 0;
    return fabs(got - want) <= 8 * eps * fabs(want) + (d == NUM_F64 ? 1e-12 : 0);
}

/* ---- a period of inputs and of results, as it lies in memory ----
 * Worked out once for all ranks; vectors are copied from it and compared with it in long pieces, as an
 * access to each element is what ThreadSanitizer makes slow. */
#define MOST_WORLD 8

static uint8_t *g_in[N_INPUTS][N_DTYPES + 1]; /* numbers of dtypes and ops begin with 1 */
static uint8_t *g_results[MOST_WORLD + 1][N_OPS + 1][N_DTYPES + 1];
static pthread_mutex_t g_periods_lock = PTHREAD_MUTEX_INITIALIZER;

static uint8_t *period_new(num_dtype d)
{
    uint8_t *p =
        malloc(PERIOD * num_dtype_bytes((int)d)); /* stays: not of the blocks that are counted */
    if (p == NULL) {
        abort();
    }
    return p;
}

static const uint8_t *input_of(int rank, num_dtype d)
{
    (void)pthread_once(&g_inputs_once, make_inputs);
    (void)pthread_mutex_lock(&g_periods_lock);
    uint8_t **known = &g_in[rank][d];
    if (*known == NULL) {
        *known = period_new(d);
        for (size_t i = 0; i < PERIOD; i++) {
            store(*known, i, d, input_at(rank, i));
        }
    }
    const uint8_t *p = *known;
    (void)pthread_mutex_unlock(&g_periods_lock);
    return p;
}

static const uint8_t *result_of(int world, const matrix_case *m)
{
    (void)pthread_mutex_lock(&g_periods_lock);
    uint8_t **known = &g_results[world][m->op][m->dtype];
    if (*known == NULL) {
        *known = period_new(m->dtype);
        for (size_t i = 0; i < PERIOD; i++) {
            store(*known, i, m->dtype, ring_matrix_reduced_at(i, world, m->op, m->dtype));
        }
    }
    const uint8_t *p = *known;
    (void)pthread_mutex_unlock(&g_periods_lock);
    return p;
}

/* The piece of a period where element i lies: at most n elements. */
static size_t piece_at(size_t i, size_t n)
{
    size_t left = PERIOD - i % PERIOD;
    return n < left ? n : left;
}

static void fill(void *buf, int who, size_t first, size_t n, num_dtype d)
{
    size_t size = num_dtype_bytes((int)d);
    const uint8_t *period = input_of(who, d);
    for (size_t i = 0, piece = 0; i < n; i += piece) {
        piece = piece_at(first + i, n - i);
        memcpy((uint8_t *)buf + i * size, period + (first + i) % PERIOD * size, piece * size);
    }
}

/* Are elements [at, at + n) of buf elements [first, first + n) of rank who's input? */
static bool is_input(const void *buf, size_t at, int who, size_t first, size_t n, num_dtype d)
{
    size_t size = num_dtype_bytes((int)d);
    const uint8_t *period = input_of(who, d);
    bool ok = true;
    for (size_t i = 0, piece = 0; ok && i < n; i += piece) {
        piece = piece_at(first + i, n - i);
        ok = memcmp((const uint8_t *)buf + (at + i) * size, period + (first + i) % PERIOD * size,
                    piece * size) == 0;
    }
    return ok;
}

/* The first element of buf[m->count] that is not the result at first + i, or m->count. Equal bits are equal;
 * others may be near. */
static size_t first_wrong(const void *buf, size_t first, int world, const matrix_case *m)
{
    size_t size = num_dtype_bytes((int)m->dtype);
    const uint8_t *period = result_of(world, m);
    for (size_t i = 0, piece = 0; i < m->count; i += piece) {
        size_t from = (first + i) % PERIOD;
        piece = piece_at(first + i, m->count - i);
        bool same =
            memcmp((const uint8_t *)buf + i * size, period + from * size, piece * size) == 0;
        for (size_t k = 0; !same && k < piece; k++) {
            double want = ring_matrix_reduced_at(from + k, world, m->op, m->dtype);
            if (!is_near(load(buf, i + k, m->dtype), want, m->dtype)) {
                return i + k;
            }
        }
    }
    return m->count;
}

void *ring_matrix_filled(int rank, size_t first, size_t n, num_dtype d)
{
    uint8_t *p = bd_alloc_aligned(64, n * num_dtype_bytes((int)d) + 64);
    if (p != NULL) {
        fill(p, rank, first, n, d);
    }
    return p;
}

/* Every second buffer comes from ring_alloc, on every second rank of the odd counts: all are
 * shared, none is, and some are. */
static void *filled_for(rank_test *t, int who, size_t first, size_t n, num_dtype d)
{
    bool shared = n % 3 == 1 || (n % 3 == 2 && t->rank % 2 == 0);
    if (!shared) {
        return ring_matrix_filled(who, first, n, d);
    }
    void *p = ring_alloc(t->comm, n * num_dtype_bytes((int)d) + 64);
    if (p != NULL) {
        fill(p, who, first, n, d);
    }
    return p;
}

static void check_allreduce(rank_test *t, const matrix_case *m)
{
    bd_err err = BD_ERR_INIT;
    void *buf = filled_for(t, t->rank, 0, m->count, m->dtype);
    bd_status rc = ring_allreduce(t->comm, buf, m->count, m->dtype, m->op, "m", NULL, &err);
    bool ok = rc == BD_OK;
    size_t i = ok ? first_wrong(buf, 0, t->world, m) : m->count;
    if (i < m->count) {
        ok = false;
        (void)bd_err_set(&err, BD_E_INTERNAL, "%s %s count %zu: [%zu] = %g, want %g",
                         num_dtype_name((int)m->dtype), num_reduce_op_name((int)m->op), m->count, i,
                         load(buf, i, m->dtype),
                         ring_matrix_reduced_at(i, t->world, m->op, m->dtype));
    }
    if (!ok) {
        rank_failed(t, __FILE__, __LINE__, "allreduce", &err);
    }
    ring_mem_release(t->comm, buf);
}

static void check_reduce_scatter(rank_test *t, const matrix_case *m)
{
    bd_err err = BD_ERR_INIT;
    size_t total = m->count * (size_t)t->world;
    void *in = filled_for(t, t->rank, 0, total, m->dtype);
    void *out = ring_matrix_filled(t->rank, 0, m->count, m->dtype);
    bd_status rc =
        ring_reduce_scatter(t->comm, in, out, m->count, m->dtype, m->op, "m", NULL, &err);
    bool ok = rc == BD_OK && first_wrong(out, (size_t)t->rank * m->count, t->world, m) == m->count;
    if (!ok) {
        rank_failed(t, __FILE__, __LINE__, "reduce_scatter", &err);
    }
    ring_mem_release(t->comm, in);
    bd_free(out);
}

static bool all_parts_are_there(int world, const void *all, const matrix_case *m)
{
    bool ok = true;
    for (int r = 0; ok && r < world; r++) {
        ok = is_input(all, (size_t)r * m->count, r, 0, m->count, m->dtype);
    }
    return ok;
}

static void check_all_gather(rank_test *t, const matrix_case *m)
{
    bd_err err = BD_ERR_INIT;
    void *in = filled_for(t, t->rank, 0, m->count, m->dtype);
    void *out = ring_matrix_filled(99, 0, m->count * (size_t)t->world, m->dtype);
    bool ok = ring_all_gather(t->comm, in, out, m->count, m->dtype, "m", NULL, &err) == BD_OK;
    ok = ok && all_parts_are_there(t->world, out, m);
    if (!ok) {
        rank_failed(t, __FILE__, __LINE__, "all_gather", &err);
    }
    ring_mem_release(t->comm, in);
    bd_free(out);
}

static void check_broadcast(rank_test *t, const matrix_case *m)
{
    bd_err err = BD_ERR_INIT;
    for (int root = 0; root < t->world; root++) {
        void *buf = filled_for(t, t->rank, 0, m->count, m->dtype);
        bool ok = ring_broadcast(t->comm, buf, m->count, m->dtype, root, "m", NULL, &err) == BD_OK;
        ok = ok && is_input(buf, 0, root, 0, m->count, m->dtype);
        if (!ok) {
            rank_failed(t, __FILE__, __LINE__, "broadcast", &err);
        }
        ring_mem_release(t->comm, buf);
    }
}

static void check_reduce(rank_test *t, const matrix_case *m)
{
    bd_err err = BD_ERR_INIT;
    int root = (int)(m->count % (size_t)t->world);
    void *buf = filled_for(t, t->rank, 0, m->count, m->dtype);
    bool ok = ring_reduce(t->comm, buf, m->count, m->dtype, m->op, root, "m", NULL, &err) == BD_OK;
    ok = ok && (root != t->rank || first_wrong(buf, 0, t->world, m) == m->count);
    if (!ok) {
        rank_failed(t, __FILE__, __LINE__, "reduce", &err);
    }
    ring_mem_release(t->comm, buf);
}

static void check_gather_scatter(rank_test *t, const matrix_case *m)
{
    bd_err err = BD_ERR_INIT;
    size_t p = (size_t)t->world;
    int root = (int)((m->count + 1) % p);
    bool is_root = root == t->rank;
    void *part = filled_for(t, t->rank, 0, m->count, m->dtype);
    void *all = is_root ? filled_for(t, 99, 0, m->count * p, m->dtype) : NULL;
    bool ok = ring_gather(t->comm, part, all, m->count, m->dtype, root, "g", NULL, &err) == BD_OK;
    ok = ok && (!is_root || all_parts_are_there(t->world, all, m));
    memset(part, 0, m->count * num_dtype_bytes((int)m->dtype));
    ok = ok && ring_scatter(t->comm, all, part, m->count, m->dtype, root, "s", NULL, &err) == BD_OK;
    ok = ok && is_input(part, 0, t->rank, 0, m->count, m->dtype);
    if (!ok) {
        rank_failed(t, __FILE__, __LINE__, "gather, scatter", &err);
    }
    ring_mem_release(t->comm, part);
    ring_mem_release(t->comm, all);
}

/* Rank r sends (r + s) % 3 * count elements to rank s: some none. */
static void check_all_to_all_v(rank_test *t, const matrix_case *m)
{
    bd_err err = BD_ERR_INIT;
    size_t counts[16];
    size_t n = 0;
    for (int s = 0; s < t->world; s++) {
        counts[s] = (size_t)((t->rank + s) % 3) * m->count; /* symmetric */
        n += counts[s];
    }
    void *in = filled_for(t, t->rank, 0, n, m->dtype);
    void *out = ring_matrix_filled(99, 0, n, m->dtype);
    if (t->world >
        1) { /* counts that add up to more than memory are refused before anything moves */
        size_t huge[16] = {SIZE_MAX, 1};
        ring_work *none = NULL;
        RANK_CHECK(t, ring_all_to_all_v(t->comm, in, huge, out, huge, NUM_U8, "v", &none, &err) ==
                          BD_E_INVALID);
    }
    bool ok =
        ring_all_to_all_v(t->comm, in, counts, out, counts, m->dtype, "v", NULL, &err) == BD_OK;
    size_t at = 0;
    for (int s = 0; ok && s < t->world; s++) {
        size_t before = 0; /* of rank s's input, what goes to lower ranks */
        for (int k = 0; k < t->rank; k++) {
            before += (size_t)((s + k) % 3) * m->count;
        }
        ok = is_input(out, at, s, before, counts[s], m->dtype);
        at += counts[s];
    }
    if (!ok) {
        rank_failed(t, __FILE__, __LINE__, "all_to_all_v", &err);
    }
    ring_mem_release(t->comm, in);
    bd_free(out);
}

static void check_all_to_all(rank_test *t, const matrix_case *m)
{
    bd_err err = BD_ERR_INIT;
    size_t p = (size_t)t->world;
    void *in = filled_for(t, t->rank, 0, m->count * p, m->dtype);
    void *out = ring_matrix_filled(99, 0, m->count * p, m->dtype);
    bool ok = ring_all_to_all(t->comm, in, out, m->count, m->dtype, "a", NULL, &err) == BD_OK;
    for (int s = 0; ok && s < t->world; s++) {
        size_t to_me = (size_t)t->rank * m->count;
        ok = is_input(out, (size_t)s * m->count, s, to_me, m->count, m->dtype);
    }
    if (!ok) {
        rank_failed(t, __FILE__, __LINE__, "all_to_all", &err);
    }
    ring_mem_release(t->comm, in);
    bd_free(out);
    check_all_to_all_v(t, m);
}

static void check_count(rank_test *t, size_t count)
{
    for (size_t d = 0; d < N_DTYPES; d++) {
        for (size_t o = 0; o < N_OPS; o++) {
            matrix_case m = {count, DTYPES[d], OPS[o]};
            if (is_float(m.dtype) && (m.op == NUM_BAND || m.op == NUM_BOR)) {
                continue;
            }
            check_allreduce(t, &m);
            check_reduce_scatter(t, &m);
            check_reduce(t, &m);
        }
        matrix_case m = {count, DTYPES[d], NUM_SUM};
        check_all_gather(t, &m);
        check_broadcast(t, &m);
        check_gather_scatter(t, &m);
        check_all_to_all(t, &m);
    }
}

static void small_counts(rank_test *t)
{
    bd_err err = BD_ERR_INIT;
    size_t p = (size_t)t->world;
    const size_t counts[] = {0, 1, p - 1, p, p + 1, 1000};
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        check_count(t, counts[k]);
        RANK_OK(t, ring_barrier(t->comm, "between", &err), &err);
    }
}

/* Over the 32 KiB where the ring begins; one op a dtype, to stay short. */
static void large_counts(rank_test *t)
{
    for (size_t d = 0; d < N_DTYPES; d++) {
        matrix_case m = {((size_t)1 << 17) + 3, DTYPES[d], d % 2 == 0 ? NUM_SUM : NUM_MAX};
        check_allreduce(t, &m);
        m.op = NUM_AVG;
        m.count++;
        check_allreduce(t, &m);
        check_reduce(t, &m);
        for (m.count = 8193; m.count < 8196; m.count++) {
            check_reduce_scatter(t, &m);
            check_all_gather(t, &m);
            check_gather_scatter(t, &m);
            check_all_to_all(t, &m);
        }
    }
    for (size_t k = 3; k < 6; k++) {
        matrix_case m = {((size_t)1 << 17) + k, NUM_F32, NUM_SUM};
        check_allreduce(t, &m);
        check_reduce(t, &m);
        check_broadcast(t, &m);
        m.count = k == 3 ? m.count : 30000 + k;
        check_all_gather(t, &m);
    }
}

/* Random floats, whose sum depends on the order of adding. */
typedef struct bits_case {
    num_dtype dtype;
    size_t count;
    uint64_t hash[2][8];
    int run;
} bits_case;

static void hash_result(rank_test *t)
{
    bits_case *b = t->arg;
    bd_err err = BD_ERR_INIT;
    size_t n_bytes = b->count * num_dtype_bytes((int)b->dtype);
    void *buf = bd_alloc_aligned(64, n_bytes);
    for (size_t i = 0; i < b->count; i++) {
        uint64_t word = bd_rand_u64(7, (uint64_t)t->rank, i);
        store(buf, i, b->dtype, bd_unit_f64(word) * 2 - 1);
    }
    RANK_OK(t, ring_allreduce(t->comm, buf, b->count, b->dtype, NUM_SUM, "bits", NULL, &err), &err);
    b->hash[b->run][t->rank] = bd_hash64(buf, n_bytes, 0);
    bd_free(buf);
}

void ring_matrix_bitwise(ranks_backend backend)
{
    static const num_dtype dtypes[] = {NUM_F32, NUM_F16, NUM_BF16, NUM_F64};
    static const size_t counts[] = {33, 5000, 100001};
    for (size_t d = 0; d < 4; d++) {
        for (size_t c = 0; c < 3; c++) {
            for (int world = 2; world <= 5; world++) {
                bits_case b = {.dtype = dtypes[d], .count = counts[c]};
                for (b.run = 0; b.run < 2; b.run++) {
                    ring_ranks_run(backend, world, NULL, hash_result, &b);
                }
                for (int r = 0; r < world; r++) {
                    assert_int_equal(b.hash[0][r], b.hash[0][0]);
                    assert_int_equal(b.hash[1][r], b.hash[0][0]);
                }
            }
        }
    }
}

static void on_every_world(ranks_backend backend, rank_fn fn)
{
    for (size_t w = 0; w < N_WORLDS; w++) {
        ring_ranks_run(backend, WORLDS[w], NULL, fn, NULL);
    }
}

void ring_matrix_small(ranks_backend backend)
{
    on_every_world(backend, small_counts);
}

void ring_matrix_large(ranks_backend backend)
{
    on_every_world(backend, large_counts);
}
