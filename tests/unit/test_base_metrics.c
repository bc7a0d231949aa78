/* Metrics and their page: values survive many threads, and the text is what Prometheus reads. */
#include "base/fault.h"
#include "base/http.h"
#include "base/mem.h"
#include "base/metrics.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const double bounds[] = {0.1, 1, 10};
static bd_metric m_counter =
    BD_METRIC_COUNTER("braid_test_keys_total", "keys", "keys that were asked for");
static bd_metric m_gauge = BD_METRIC_GAUGE("braid_test_depth_items", "items", "items that wait");
static bd_metric m_hist =
    BD_METRIC_HISTOGRAM("braid_test_wait_seconds", "seconds", "time until an answer", bounds);
static bd_metric *const all[] = {&m_counter, &m_gauge, &m_hist};

static void the_page_is_prometheus_text(void **state)
{
    (void)state;
    bd_metrics_register(all, 3);
    bd_metrics_register(all, 3); /* twice changes nothing */
    bd_metric_add(&m_counter, 41);
    bd_metric_add(&m_counter, 1);
    bd_metric_set(&m_gauge, 2.5);
    bd_metric_shift(&m_gauge, -3);
    static const double seen[] = {0.1, 0.25, 5, 100};
    for (size_t i = 0; i < 4; i++) {
        bd_metric_observe(&m_hist, seen[i]);
    }
    char *text = bd_metrics_text();
    char *process = strstr(text, "# HELP braid_build_info");
    assert_non_null(process);
    assert_non_null(strstr(process, "\nbraid_build_info{version=\"" BRAID_VERSION "\",commit=\""));
    static const char *const names[] = {
        "process_start_time_seconds",    "process_cpu_seconds_total", "process_open_fds",
        "process_resident_memory_bytes", "process_max_fds",           "process_threads"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char line[64];
        (void)snprintf(line, sizeof line, "\n%s ", names[i]);
        const char *at = strstr(process, line);
        assert_non_null(at);
        double v = strtod(at + strlen(line), NULL);
        assert_true(v > 0 || strcmp(names[i], "process_cpu_seconds_total") == 0);
    }
    *process = '\0'; /* our own metrics come first */
    assert_string_equal(text, "# HELP braid_test_keys_total keys that were asked for (keys)\n"
                              "# TYPE braid_test_keys_total counter\n"
                              "braid_test_keys_total 42\n"
                              "# HELP braid_test_depth_items items that wait (items)\n"
                              "# TYPE braid_test_depth_items gauge\n"
                              "braid_test_depth_items -0.5\n"
                              "# HELP braid_test_wait_seconds time until an answer (seconds)\n"
                              "# TYPE braid_test_wait_seconds histogram\n"
                              "braid_test_wait_seconds_bucket{le=\"0.1\"} 1\n"
                              "braid_test_wait_seconds_bucket{le=\"1\"} 2\n"
                              "braid_test_wait_seconds_bucket{le=\"10\"} 3\n"
                              "braid_test_wait_seconds_bucket{le=\"+Inf\"} 4\n"
                              "braid_test_wait_seconds_sum 105.35\n"
                              "braid_test_wait_seconds_count 4\n");
    bd_free(text);
}

static void *hammer(void *user)
{
    (void)user;
    for (int i = 0; i < 20000; i++) {
        bd_metric_add(&m_counter, 1);
        bd_metric_observe(&m_hist, 0.5);
        bd_metric_shift(&m_gauge, i % 2 == 0 ? 1 : -1);
    }
    return NULL;
}

static void no_update_of_a_thread_is_lost(void **state)
{
    (void)state;
    uint64_t keys = bd_metric_count(&m_counter), waits = bd_metric_count(&m_hist);
    double depth = bd_metric_value(&m_gauge), sum = bd_metric_value(&m_hist);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(bd_metric_count(&m_counter) - keys, 80000);
    assert_int_equal(bd_metric_count(&m_hist) - waits, 80000);
    assert_true(bd_metric_value(&m_gauge) == depth);
    double grown = bd_metric_value(&m_hist) - sum;
    assert_true(grown > 40000 - 1e-3 && grown < 40000 + 1e-3);
}

static void the_page_survives_every_allocation_failure(void **state)
{
    (void)state;
    long before = bd_mem_live_blocks();
    char *text = NULL;
    for (long nth = 0; text == NULL; nth++) {
        bd_fault_fail_alloc(nth);
        text = bd_metrics_text();
        bd_fault_fail_alloc(-1);
        assert_int_equal(bd_mem_live_blocks(), before + (text == NULL ? 0 : 1));
    }
    bd_free(text);
}

typedef struct health {
    bool ok;
} health;

static bool healthy(void *user, char *reason, size_t reason_bytes)
{
    const health *h = user;
    (void)snprintf(reason, reason_bytes, "draining");
    return h->ok;
}

/* One request to the port; the whole answer as text. */
static void request(int port, const char *head, char *answer, size_t answer_bytes)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    char text[256];
    int n = snprintf(text, sizeof text, "%s\r\nHost: x\r\nConnection: close\r\n\r\n", head);
    assert_int_equal(write(fd, text, (size_t)n), n);
    size_t got = 0;
    for (ssize_t k = 1; k > 0 && got < answer_bytes - 1;) {
        k = read(fd, answer + got, answer_bytes - 1 - got);
        got += k > 0 ? (size_t)k : 0;
    }
    answer[got] = '\0';
    (void)close(fd);
}

static void http_serves_metrics_and_health(void **state)
{
    (void)state;
    health h = {.ok = true};
    bd_http *server = NULL;
    bd_err err = BD_ERR_INIT;
    static char answer[1 << 16];
    long before = bd_mem_live_blocks();
    assert_int_equal(bd_http_start("127.0.0.1:0", healthy, &h, &server, &err), BD_OK);
    int port = bd_http_port(server);
    assert_true(port > 0);
    request(port, "GET /metrics HTTP/1.1", answer, sizeof answer);
    assert_non_null(strstr(answer, "200 OK"));
    assert_non_null(strstr(answer, "braid_test_keys_total "));
    request(port, "GET /healthz HTTP/1.1", answer, sizeof answer);
    assert_non_null(strstr(answer, "200 OK"));
    h.ok = false;
    request(port, "GET /healthz HTTP/1.1", answer, sizeof answer);
    assert_non_null(strstr(answer, "503"));
    assert_non_null(strstr(answer, "draining"));
    request(port, "GET /other HTTP/1.1", answer, sizeof answer);
    assert_non_null(strstr(answer, "404"));
    request(port, "POST /metrics HTTP/1.1\r\nContent-Length: 0", answer, sizeof answer);
    assert_non_null(strstr(answer, "405"));
    /* the port is taken now */
    char addr[32];
    (void)snprintf(addr, sizeof addr, "127.0.0.1:%d", port);
    bd_http *second = NULL;
    assert_int_equal(bd_http_start(addr, NULL, NULL, &second, &err), BD_E_IO);
    char want[96];
    (void)snprintf(want, sizeof want, "listen %s: Address already in use", addr);
    assert_string_equal(err.text, want);
    bd_http_stop(server);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void malformed_addresses_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "localhost", ":80", "host:", "host:x", "[::1:80"};
    bd_http *server = NULL;
    bd_err err = BD_ERR_INIT;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(bd_http_start(bad[i], NULL, NULL, &server, &err), BD_E_USAGE);
        assert_non_null(strstr(err.text, "is not host:port"));
    }
    bd_fault_fail_alloc(0);
    assert_int_equal(bd_http_start("127.0.0.1:0", NULL, NULL, &server, &err), BD_E_NOMEM);
    bd_fault_fail_alloc(-1);
    bd_http_stop(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_is_prometheus_text),
        cmocka_unit_test(no_update_of_a_thread_is_lost),
        cmocka_unit_test(the_page_survives_every_allocation_failure),
        cmocka_unit_test(http_serves_metrics_and_health),
        cmocka_unit_test(malformed_addresses_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
