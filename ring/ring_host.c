#include "ring/ring_host.h"

#include "base/clock.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static char *key_of(const ring_options *opt, int rank)
{
    const char *group = opt != NULL && opt->group != NULL ? opt->group : "default";
    return bd_strfmt("ring/%s/%" PRIu64 "/host/%d", group, opt != NULL ? opt->epoch : 0, rank);
}

/* Owned text; NULL: no memory. A host that does not tell is taken for one of its own. */
static char *own_identity(const ring_options *opt, int rank)
{
    char boot[64] = "";
    struct stat net = {0};
    if (opt != NULL && opt->host != NULL) {
        return bd_strdup(opt->host);
    }
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    bool known = f != NULL && fgets(boot, sizeof boot, f) != NULL;
    if (f != NULL) {
        (void)fclose(f);
    }
    known = known && stat("/proc/thread-self/ns/net", &net) == 0;
    boot[strcspn(boot, "\n")] = '\0';
    return known ? bd_strfmt("%s/%" PRIu64, boot, (uint64_t)net.st_ino)
                 : bd_strfmt("rank %d", rank);
}

static bd_status publish(bd_kv *kv, int rank, const ring_options *opt, bd_err *err)
{
    char *key = key_of(opt, rank);
    char *id = own_identity(opt, rank);
    bd_status rc = key == NULL || id == NULL ? bd_err_set(err, BD_E_NOMEM, "rendezvous")
                                             : kv->set(kv, key, id, strlen(id), err);
    bd_free(key);
    bd_free(id);
    return rc;
}

static bd_status read_all(bd_kv *kv, const ring_options *opt, int world, char **ids, bd_err *err)
{
    int64_t timeout_ms = ring_options_timeout_ms(opt);
    int64_t until_ns = bd_mono_ns() + timeout_ms * BD_NS_PER_MS;
    char list[160] = "";
    int n_absent = 0;
    for (int r = 0; r < world; r++) {
        int64_t left = (until_ns - bd_mono_ns()) / BD_NS_PER_MS;
        char *key = key_of(opt, r);
        if (key == NULL) {
            return bd_err_set(err, BD_E_NOMEM, "rendezvous");
        }
        bd_status rc = kv->get(kv, key, n_absent == 0 && left > 0 ? left : 0, &ids[r], NULL, err);
        bd_free(key);
        if (rc == BD_E_TIMEOUT || rc == BD_E_NOT_FOUND) {
            size_t used = strlen(list);
            (void)snprintf(list + used, sizeof list - used, "%s%d", n_absent > 0 ? ", " : "", r);
            n_absent++;
        } else if (rc != BD_OK) {
            return rc;
        }
    }
    if (n_absent > 0) {
        return bd_err_set(err, BD_E_TIMEOUT, "rank%s %s did not join within %" PRId64 " ms",
                          n_absent == 1 ? "" : "s", list, timeout_ms);
    }
    return BD_OK;
}

static void number(ring_hosts *h, char *const *ids)
{
    for (int r = 0; r < h->world; r++) {
        int first = 0;
        while (strcmp(ids[first], ids[r]) != 0) {
            first++;
        }
        h->host_of[r] = first == r ? h->n_hosts++ : h->host_of[first];
        h->local_of[r] = 0;
        for (int k = 0; k < r; k++) {
            h->local_of[r] += h->host_of[k] == h->host_of[r] ? 1 : 0;
        }
    }
    h->least_local = h->world;
    for (int host = 0; host < h->n_hosts; host++) {
        int n = ring_hosts_list(h, host, -1, NULL);
        h->most_local = n > h->most_local ? n : h->most_local;
        h->least_local = n < h->least_local ? n : h->least_local;
    }
}

bd_status ring_hosts_find(bd_kv *kv, int rank, int world, const ring_options *opt, ring_hosts *out,
                          bd_err *err)
{
    bd_status rc = publish(kv, rank, opt, err);
    char **ids = bd_calloc((size_t)world, sizeof *ids);
    *out = (ring_hosts){.world = world,
                        .host_of = bd_calloc((size_t)world, sizeof(int)),
                        .local_of = bd_calloc((size_t)world, sizeof(int))};
    if (rc == BD_OK && (ids == NULL || out->host_of == NULL || out->local_of == NULL)) {
        rc = bd_err_set(err, BD_E_NOMEM, "rendezvous");
    }
    rc = rc != BD_OK ? rc : read_all(kv, opt, world, ids, err);
    if (rc == BD_OK) {
        number(out, ids);
    }
    for (int r = 0; ids != NULL && r < world; r++) {
        bd_free(ids[r]);
    }
    bd_free(ids);
    if (rc != BD_OK) {
        ring_hosts_deinit(out);
    }
    return rc;
}

void ring_hosts_deinit(ring_hosts *h)
{
    bd_free(h->host_of);
    bd_free(h->local_of);
    *h = (ring_hosts){0};
}

int ring_hosts_list(const ring_hosts *h, int host, int local, int *ranks)
{
    int n = 0;
    for (int r = 0; r < h->world; r++) {
        if (local >= 0 ? h->local_of[r] == local : h->host_of[r] == host) {
            if (ranks != NULL) {
                ranks[n] = r;
            }
            n++;
        }
    }
    return n;
}
