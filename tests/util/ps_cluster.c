#include "tests/util/ps_cluster.h"

#include "ps_server/ps_rocks.h"

#include "tests/util/tu_host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void must(bd_status rc, const bd_err *err)
{
    if (rc != BD_OK) {
        fail_msg("%s: %s", bd_status_name(rc), bd_err_text(err));
    }
}

void ps_cluster_start_server(ps_cluster *c, size_t i)
{
    char dir[96];
    bd_err err;
    (void)snprintf(dir, sizeof dir, "%s/ps-%zu", c->dir, i);
    ps_options opt = {.index = (int64_t)i,
                      .servers = (int64_t)c->n,
                      .coordinator = c->address[0],
                      .listen = c->address[i][0] == '\0' ? tu_host_any_port() : c->address[i],
                      .advertise = "",
                      .data_dir = dir,
                      .restore_from = c->dir,
                      .ready_fd = -1,
                      .autograd_lease = c->autograd_lease_ms,
                      .journal_cap = 64 << 20,
                      .staged_limit = 64 << 20,
                      .register_wait = 10000,
                      .metrics_listen = "",
                      .health_listen = ""};
    must(ps_server_start(&opt, &c->servers[i], &err), &err);
    (void)snprintf(c->address[i], sizeof c->address[i], "%s", ps_server_address(c->servers[i]));
}

void ps_cluster_stop_server(ps_cluster *c, size_t i)
{
    bd_err err;
    must(ps_server_stop(c->servers[i], &err), &err);
    c->servers[i] = NULL;
}

void ps_cluster_start_servers(ps_cluster *c, size_t n)
{
    c->n = n;
    memset(c->address, 0, sizeof c->address);
    for (size_t i = 0; i < n; i++) {
        ps_cluster_start_server(c, i);
    }
}

void ps_cluster_stop_servers(ps_cluster *c)
{
    for (size_t i = c->n; i-- > 0;) {
        ps_cluster_stop_server(c, i);
    }
}

void ps_cluster_start(ps_cluster *c, size_t n)
{
    memset(c, 0, sizeof *c);
    (void)snprintf(c->dir, sizeof c->dir, "/tmp/ps_cluster.XXXXXX");
    assert_non_null(mkdtemp(c->dir));
    ps_cluster_start_servers(c, n);
}

void ps_cluster_stop(ps_cluster *c)
{
    bd_err err;
    ps_cluster_stop_servers(c);
    must(ps_dir_remove(c->dir, &err), &err);
}
