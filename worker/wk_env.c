#include "worker/wk_env.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    wk_env_get get;
    void *user;
    bd_err *err;
} reader;

/* An empty variable counts as not set. */
static const char *value_of(const reader *r, const char *name)
{
    const char *v = r->get(r->user, name);
    return v != NULL && v[0] != '\0' ? v : NULL;
}

static bd_status number_of(const reader *r, const char *name, int64_t absent, int64_t *out)
{
    const char *v = value_of(r, name);
    char *end = NULL;
    *out = absent;
    if (v == NULL) {
        return BD_OK;
    }
    long long n = strtoll(v, &end, 10);
    if (end == v || *end != '\0' || n < 0 || n > 65535) {
        return bd_err_set(r->err, BD_E_USAGE,
                          "environment %s: \"%.32s\" is not a number 0 to 65535", name, v);
    }
    *out = n;
    return BD_OK;
}

static void put(wk_env_value *v, int64_t n, const char *from)
{
    (void)snprintf(v->text, sizeof v->text, "%" PRId64, n);
    v->from = from;
}

static bd_status read_torchrun(const reader *r, wk_env *out)
{
    int64_t rank, world;
    bd_status rc = number_of(r, "RANK", -1, &rank);
    if (rc == BD_OK) {
        rc = number_of(r, "WORLD_SIZE", -1, &world);
    }
    if (rc != BD_OK || (rank < 0 && world < 0)) {
        return rc;
    }
    if (rank < 0 || world < 0) {
        return bd_err_set(r->err, BD_E_USAGE, "environment %s is set, but not %s",
                          rank < 0 ? "WORLD_SIZE" : "RANK", rank < 0 ? "RANK" : "WORLD_SIZE");
    }
    put(&out->rank, rank, "environment RANK");
    put(&out->world, world, "environment WORLD_SIZE");
    return BD_OK;
}

/* How many processes of this job share a node. PET_NPROC_PER_NODE tells torchrun how many it is to
 * start; braid-worker starts none, so it counts only where LOCAL_RANK says that someone else did.
 */
static bd_status processes_per_node(const reader *r, int64_t *n)
{
    *n = 1;
    return value_of(r, "LOCAL_RANK") == NULL ? BD_OK : number_of(r, "PET_NPROC_PER_NODE", 1, n);
}

static bd_status read_pet(const reader *r, wk_env *out)
{
    int64_t nodes, per_node, node, local;
    const char *range = value_of(r, "PET_NNODES");
    if (range != NULL && strchr(range, ':') != NULL) {
        return bd_err_set(r->err, BD_E_USAGE,
                          "environment PET_NNODES: \"%.32s\" is a range; the number of workers is "
                          "fixed",
                          range);
    }
    bd_status rc = number_of(r, "PET_NNODES", -1, &nodes);
    if (rc == BD_OK) {
        rc = number_of(r, "PET_NODE_RANK", -1, &node);
    }
    if (rc == BD_OK) {
        rc = processes_per_node(r, &per_node);
    }
    if (rc == BD_OK) {
        rc = number_of(r, "LOCAL_RANK", 0, &local);
    }
    if (rc == BD_OK && node >= 0 && out->rank.from == NULL) {
        put(&out->rank, node * per_node + local, "environment PET_NODE_RANK");
    }
    if (rc == BD_OK && nodes >= 0 && out->world.from == NULL) {
        put(&out->world, nodes * per_node, "environment PET_NNODES");
    }
    return rc;
}

static bd_status read_address(const reader *r, const char *addr, const char *port, const char *from,
                              wk_env_value *out)
{
    int64_t number;
    const char *host = value_of(r, addr);
    bd_status rc = number_of(r, port, -1, &number);
    if (rc != BD_OK || out->from != NULL || (host == NULL && number < 0)) {
        return rc;
    }
    if (host == NULL || number < 0) {
        return bd_err_set(r->err, BD_E_USAGE, "environment %s is set, but not %s",
                          host == NULL ? port : addr, host == NULL ? addr : port);
    }
    int n = snprintf(out->text, sizeof out->text, "%s:%" PRId64, host, number);
    if (n < 0 || (size_t)n >= sizeof out->text) {
        return bd_err_set(r->err, BD_E_USAGE, "environment %s: longer than a host name", addr);
    }
    out->from = from;
    return BD_OK;
}

bd_status wk_env_read(wk_env_get get, void *user, wk_env *out, bd_err *err)
{
    const reader r = {get, user, err};
    int64_t completion_index = -1;
    memset(out, 0, sizeof *out);
    bd_status rc = read_torchrun(&r, out);
    if (rc == BD_OK) {
        rc = read_pet(&r, out);
    }
    if (rc == BD_OK) {
        rc = number_of(&r, "JOB_COMPLETION_INDEX", -1, &completion_index);
    }
    if (rc == BD_OK && completion_index >= 0 && out->rank.from == NULL) {
        put(&out->rank, completion_index, "environment JOB_COMPLETION_INDEX");
    }
    if (rc == BD_OK) {
        rc = read_address(&r, "MASTER_ADDR", "MASTER_PORT", "environment MASTER_ADDR",
                          &out->coordinator);
    }
    if (rc == BD_OK) {
        rc = read_address(&r, "PET_MASTER_ADDR", "PET_MASTER_PORT", "environment PET_MASTER_ADDR",
                          &out->coordinator);
    }
    return rc;
}
