/* Rows in Redis by hiredis: MGET or MSET, pipelined.
 *
 *   redis_rows PORT lookup|push KEYS_PER_BATCH ROW_BYTES ROWS DEPTH SECONDS
 *   redis_rows PORT fill 0 ROW_BYTES ROWS 0 0
 *
 * Keys are 8 binary bytes, uniform over ROWS. A batch goes as commands of 64 keys (the fastest of
 * 64, 512 and 4096 here), DEPTH batches in flight; looked-up rows are copied out of the replies, as
 * a trainer must. One line: rows/s, median and 99th percentile of a batch in microseconds.
 */
#include <hiredis/hiredis.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PER_COMMAND = 64, MAX_DEPTH = 16, MAX_SAMPLES = 1 << 20 };

static uint64_t state = 88172645463325252ull;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *why)
{
    fprintf(stderr, "redis_rows: %s\n", why);
    exit(1);
}

static redisReply *reply_of(redisContext *c)
{
    redisReply *r = NULL;
    if (redisGetReply(c, (void **)&r) != REDIS_OK || r == NULL) {
        die(c->errstr);
    }
    if (r->type == REDIS_REPLY_ERROR) {
        die(r->str);
    }
    return r;
}

/* One command for n rows: keys k[n], for MSET the same value for each. */
static void append(redisContext *c, int set, const uint64_t *k, int n, const char *value,
                   size_t row_bytes)
{
    const char *argv[2 * PER_COMMAND + 1];
    size_t len[2 * PER_COMMAND + 1];
    int at = 0;
    argv[at] = set ? "MSET" : "MGET";
    len[at++] = 4;
    for (int i = 0; i < n; i++) {
        argv[at] = (const char *)&k[i];
        len[at++] = sizeof *k;
        if (set) {
            argv[at] = value;
            len[at++] = row_bytes;
        }
    }
    if (redisAppendCommandArgv(c, at, argv, len) != REDIS_OK) {
        die(c->errstr);
    }
}

static void send_batch(redisContext *c, int set, size_t n_keys, uint64_t rows, const char *value,
                       size_t row_bytes)
{
    uint64_t k[PER_COMMAND];
    for (size_t o = 0; o < n_keys; o += PER_COMMAND) {
        int n = (int)(n_keys - o < PER_COMMAND ? n_keys - o : PER_COMMAND);
        for (int i = 0; i < n; i++) {
            k[i] = next() % rows;
        }
        append(c, set, k, n, value, row_bytes);
    }
}

static void take_batch(redisContext *c, int set, size_t n_keys, char *out, size_t row_bytes)
{
    for (size_t o = 0; o < n_keys; o += PER_COMMAND) {
        size_t n = n_keys - o < PER_COMMAND ? n_keys - o : PER_COMMAND;
        redisReply *r = reply_of(c);
        for (size_t i = 0; !set && i < n; i++) {
            if (r->element[i]->type != REDIS_REPLY_STRING || r->element[i]->len != row_bytes) {
                die("a row is missing");
            }
            memcpy(out + (o + i) * row_bytes, r->element[i]->str, row_bytes);
        }
        freeReplyObject(r);
    }
}

static void fill(redisContext *c, uint64_t rows, const char *value, size_t row_bytes)
{
    uint64_t k[PER_COMMAND];
    for (uint64_t first = 0; first < rows; first += PER_COMMAND * 64) {
        int n_commands = 0;
        for (int j = 0; j < 64 && first + (uint64_t)j * PER_COMMAND < rows; j++, n_commands++) {
            for (int i = 0; i < PER_COMMAND; i++) {
                k[i] = first + (uint64_t)(j * PER_COMMAND + i);
            }
            append(c, 1, k, PER_COMMAND, value, row_bytes);
        }
        for (int j = 0; j < n_commands; j++) {
            freeReplyObject(reply_of(c));
        }
    }
}

static int by_value(const void *a, const void *b)
{
    const float *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        die("usage: PORT lookup|push|fill KEYS ROW_BYTES ROWS DEPTH SECONDS");
    }
    redisContext *c = redisConnect("127.0.0.1", atoi(argv[1]));
    if (c == NULL || c->err) {
        die("cannot connect");
    }
    int set = strcmp(argv[2], "push") == 0;
    size_t n_keys = strtoul(argv[3], NULL, 10), row_bytes = strtoul(argv[4], NULL, 10);
    uint64_t rows = strtoull(argv[5], NULL, 10);
    size_t depth = strtoul(argv[6], NULL, 10), n = 0;
    double seconds = strtod(argv[7], NULL), began[MAX_DEPTH];
    char *value = malloc(row_bytes), *out = malloc(n_keys * row_bytes + 1);
    float *us = malloc(MAX_SAMPLES * sizeof *us);
    if (value == NULL || out == NULL || us == NULL || depth > MAX_DEPTH) {
        die("no memory, or too deep");
    }
    memset(value, 7, row_bytes);
    if (strcmp(argv[2], "fill") == 0) {
        fill(c, rows, value, row_bytes);
        redisFree(c);
        return 0;
    }
    double start = now(), t = start;
    size_t sent = 0;
    while (t - start < seconds) {
        while (sent < n + depth) {
            began[sent % MAX_DEPTH] = now();
            send_batch(c, set, n_keys, rows, value, row_bytes);
            sent++;
        }
        take_batch(c, set, n_keys, out, row_bytes);
        t = now();
        us[n % MAX_SAMPLES] = (float)((t - began[n % MAX_DEPTH]) * 1e6);
        n++;
    }
    size_t n_us = n < MAX_SAMPLES ? n : MAX_SAMPLES;
    qsort(us, n_us, sizeof *us, by_value);
    printf("%.0f %.1f %.1f\n", (double)(n * n_keys) / (t - start), (double)us[n_us / 2],
           (double)us[n_us - 1 - n_us / 100]);
    redisFree(c);
    return 0;
}
