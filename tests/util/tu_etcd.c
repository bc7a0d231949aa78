#include "tests/util/tu_etcd.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;

bool tu_etcd_installed(void)
{
    return access("/usr/bin/etcd", X_OK) == 0;
}

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)(const void *)&a, n), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)(void *)&a, &n), 0);
    (void)close(fd);
    return ntohs(a.sin_port);
}

void tu_etcd_start(tu_etcd *e)
{
    static char *const arg[] = {
        "etcd",
        "--data-dir",
        "--listen-client-urls",
        "--advertise-client-urls",
        "--listen-peer-urls",
        "--initial-advertise-peer-urls",
        "--initial-cluster",
        "--name",
        "--heartbeat-interval", /* one member: elected, and leases of a second, at once */
        "--election-timeout",
    };
    char cluster[96], name[] = "one", beat[] = "10", vote[] = "100";
    (void)snprintf(cluster, sizeof cluster, "one=%s", e->peer);
    char *argv[] = {arg[0], arg[1],  e->dir, arg[2],  e->client, arg[3],  e->client,
                    arg[4], e->peer, arg[5], e->peer, arg[6],    cluster, arg[7],
                    name,   arg[8],  beat,   arg[9],  vote,      NULL};
    posix_spawn_file_actions_t fa;
    assert_int_equal(posix_spawn_file_actions_init(&fa), 0);
    assert_int_equal(posix_spawn_file_actions_addopen(&fa, 1, "/dev/null", O_WRONLY, 0), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&fa, 1, 2), 0);
    assert_int_equal(posix_spawn(&e->pid, "/usr/bin/etcd", &fa, NULL, argv, environ), 0);
    assert_int_equal(posix_spawn_file_actions_destroy(&fa), 0);
}

void tu_etcd_init(tu_etcd *e)
{
    *e = (tu_etcd){.pid = 0};
    (void)snprintf(e->dir, sizeof e->dir, "/tmp/braid-etcd-XXXXXX");
    assert_non_null(mkdtemp(e->dir));
    int port = free_port();
    (void)snprintf(e->client, sizeof e->client, "http://127.0.0.1:%d", port);
    (void)snprintf(e->url, sizeof e->url, "etcd://127.0.0.1:%d", port);
    (void)snprintf(e->peer, sizeof e->peer, "http://127.0.0.1:%d", free_port());
    tu_etcd_start(e);
}

void tu_etcd_kill(tu_etcd *e)
{
    if (e->pid > 0) {
        (void)kill(e->pid, SIGKILL);
        (void)waitpid(e->pid, NULL, 0);
        e->pid = 0;
    }
}

void tu_etcd_deinit(tu_etcd *e)
{
    char command[96];
    tu_etcd_kill(e);
    (void)snprintf(command, sizeof command, "rm -rf %s", e->dir);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c): our own mkdtemp path
}
