#include "tests/util/tu_cluster.h"

#include "base/clock.h"
#include "base/mem.h"

#include "client/cl_int.h"
#include "ps_server/ps_rocks.h"

#include "tests/util/tu_host.h"
#include "tests/util/tu_shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "braid/v1/parameter_server.pb-c.h"

void tu_cluster_init(tu_cluster *c, size_t n)
{
    bd_err err;
    memset(c, 0, sizeof *c);
    tu_dir_new(c->dir);
    c->n = n;
    tu_must(bd_options_init(&c->options, ps_option_table, ps_n_options, &c->opt, &err), &err);
    c->opt.servers = (int64_t)n;
    c->opt.log_level = "error";
    c->opt.ready_fd = -1;
    c->opt.journal_cap = 64 << 20;
    c->opt.staged_limit = 64 << 20;
}

void tu_cluster_start(tu_cluster *c, size_t i)
{
    char dir[96];
    bd_err err;
    (void)snprintf(dir, sizeof dir, "%s/ps-%zu", c->dir, i);
    ps_options opt = c->opt;
    opt.index = (int64_t)i;
    opt.coordinator = c->address[0];
    opt.listen = c->address[i][0] == '\0' ? tu_host_any_port() : c->address[i];
    opt.data_dir = dir;
    tu_must(ps_server_start(&opt, &c->servers[i], &err), &err);
    (void)snprintf(c->address[i], sizeof c->address[i], "%s", ps_server_address(c->servers[i]));
}

void tu_cluster_start_all(tu_cluster *c)
{
    for (size_t i = 0; i < c->n; i++) {
        tu_cluster_start(c, i);
    }
}

void tu_cluster_stop(tu_cluster *c, size_t i)
{
    bd_err err;
    tu_must(ps_server_stop(c->servers[i], &err), &err);
    c->servers[i] = NULL;
}

void tu_cluster_end(tu_cluster *c)
{
    for (size_t i = c->n; i-- > 0;) {
        if (c->servers[i] != NULL) {
            tu_cluster_stop(c, i);
        }
    }
    tu_dir_drop(c->dir);
    bd_options_deinit(&c->options);
}

void tu_rank_open(tu_rank *r, const tu_cluster *c, const char *name, int64_t ps_wait_ms)
{
    bd_err err;
    cl_options o = {.coordinator = c->address[0], .name = name, .ps_wait_ms = ps_wait_ms};
    tu_must(rpc_env_new(&(rpc_env_options){.n_queues = 1, .n_threads = 1}, &r->env, &err), &err);
    tu_must(cl_client_new(r->env, &o, &r->client, &err), &err);
}

void tu_rank_close(tu_rank *r)
{
    cl_client_free(r->client);
    rpc_env_free(r->env);
}

double tu_stat(tu_rank *r, const char *name)
{
    Braid__V1__StatsRequest req;
    ProtobufCMessage *replies[TU_MAX_SERVERS] = {NULL};
    bd_err err;
    double sum = 0;
    braid__v1__stats_request__init(&req);
    tu_must(cl_ask_all(r->client, CL_SERVICE "Stats", &req.base,
                       &braid__v1__stats_reply__descriptor, replies, &err),
            &err);
    for (size_t i = 0; i < cl_client_n_servers(r->client); i++) {
        const Braid__V1__StatsReply *m = (const void *)replies[i];
        for (size_t k = 0; k < m->n_stats; k++) {
            sum += strcmp(m->stats[k]->name, name) == 0 ? m->stats[k]->value : 0;
        }
        px_unpacked_free(replies[i]);
    }
    return sum;
}

void tu_stat_wait(tu_rank *r, const char *name, double at_least)
{
    int64_t end = bd_mono_ns() + 30 * BD_NS_PER_S;
    while (tu_stat(r, name) < at_least) {
        if (bd_mono_ns() > end) {
            (void)fprintf(stderr, "%s stays below %g\n", name, at_least);
            abort();
        }
        bd_sleep_ms(2);
    }
}
