/* The bytes of lookups over a plain TCP connection on the loopback: what moving them costs by
 * itself.
 *
 *   socket_rows lookup|push KEYS_PER_BATCH ROW_BYTES ROWS DEPTH SECONDS
 *
 * Two processes. lookup: 8 bytes a key go out, ROW_BYTES a key come back; push: both go out, one
 * byte comes back. The server does not look at the keys: it sends the next of its ROWS rows as they
 * lie, and so it is a copy of memory through two kernels' sockets and nothing else. DEPTH batches
 * in flight; blocking calls. One line: rows/s, median and 99th percentile of a batch in
 * microseconds.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_DEPTH = 16, MAX_SAMPLES = 1 << 20 };

typedef struct run {
    int fd;
    size_t out_bytes, in_bytes; /* of a batch, as the client sees it */
    char *out;                  /* [out_bytes] */
    sem_t room;                 /* batches that may still be sent */
    double began[MAX_DEPTH];
} run;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *why)
{
    perror(why);
    exit(1);
}

static int take(int fd, char *to, size_t n)
{
    while (n > 0) {
        ssize_t k = read(fd, to, n);
        if (k <= 0) {
            return 0;
        }
        to += k;
        n -= (size_t)k;
    }
    return 1;
}

static int give(int fd, const char *from, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, from, n < (1 << 20) ? n : 1 << 20);
        if (k <= 0) {
            return 0;
        }
        from += k;
        n -= (size_t)k;
    }
    return 1;
}

static void *zeroed(size_t n)
{
    char *p = malloc(n);
    if (p == NULL) {
        die("malloc");
    }
    memset(p, 1, n);
    return p;
}

static void serve(int fd, const run *r, size_t table_bytes)
{
    char *table = zeroed(table_bytes + r->in_bytes), *in = zeroed(r->out_bytes);
    size_t at = 0;
    while (take(fd, in, r->out_bytes) && give(fd, table + at, r->in_bytes)) {
        at = (at + r->in_bytes) % table_bytes;
    }
}

/* Sends on a thread of its own, so that neither side waits for the other to read. */
static void *sender(void *arg)
{
    run *r = arg;
    for (size_t i = 0;; i++) {
        while (sem_wait(&r->room) != 0) {
        }
        r->began[i % MAX_DEPTH] = now();
        if (!give(r->fd, r->out, r->out_bytes)) {
            return NULL;
        }
    }
}

static void connect_pair(int fd[2])
{
    int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    if (l < 0 || bind(l, (void *)&a, n) != 0 || listen(l, 1) != 0 ||
        getsockname(l, (void *)&a, &n) != 0) {
        die("listen");
    }
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (fd[0] < 0 || connect(fd[0], (void *)&a, n) != 0 || (fd[1] = accept(l, NULL, NULL)) < 0) {
        die("connect");
    }
    close(l);
    for (int i = 0; i < 2; i++) {
        setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
}

static int by_value(const void *a, const void *b)
{
    const float *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void measure(run *r, size_t n_keys, size_t depth, double seconds)
{
    pthread_t thread;
    float *us = zeroed(MAX_SAMPLES * sizeof *us);
    char *in = zeroed(r->in_bytes);
    sem_init(&r->room, 0, (unsigned)depth);
    if (pthread_create(&thread, NULL, sender, r) != 0) {
        die("pthread_create");
    }
    double start = now(), t = start;
    size_t n = 0;
    for (; t - start < seconds; n++) {
        if (!take(r->fd, in, r->in_bytes)) {
            die("read");
        }
        t = now();
        us[n % MAX_SAMPLES] = (float)((t - r->began[n % MAX_DEPTH]) * 1e6);
        sem_post(&r->room);
    }
    size_t n_us = n < MAX_SAMPLES ? n : MAX_SAMPLES;
    qsort(us, n_us, sizeof *us, by_value);
    printf("%.0f %.1f %.1f\n", (double)(n * n_keys) / (t - start), (double)us[n_us / 2],
           (double)us[n_us - 1 - n_us / 100]);
}

int main(int argc, char **argv)
{
    if (argc != 7 || strtoul(argv[5], NULL, 10) > MAX_DEPTH) {
        fprintf(stderr, "usage: socket_rows lookup|push KEYS ROW_BYTES ROWS DEPTH SECONDS\n");
        return 2;
    }
    int fd[2], push = strcmp(argv[1], "push") == 0;
    size_t n_keys = strtoul(argv[2], NULL, 10), row_bytes = strtoul(argv[3], NULL, 10);
    size_t table_bytes = strtoul(argv[4], NULL, 10) * row_bytes;
    run r = {.out_bytes = n_keys * (push ? 8 + row_bytes : 8),
             .in_bytes = push ? 1 : n_keys * row_bytes};
    connect_pair(fd);
    pid_t server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fd[0]);
        serve(fd[1], &r, table_bytes);
        _exit(0);
    }
    close(fd[1]);
    signal(SIGPIPE, SIG_IGN);
    r.fd = fd[0];
    r.out = zeroed(r.out_bytes);
    measure(&r, n_keys, strtoul(argv[5], NULL, 10), strtod(argv[6], NULL));
    fflush(stdout);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    _exit(0);
}
