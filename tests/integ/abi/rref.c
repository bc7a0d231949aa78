/* References of the installed C library against real servers: made, fetched, named, dropped.
 *   rref HOST:PORT            prints what is not so */
#include <braid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 4, N = 5 };

static braid_error err;

static void check(int ok, const char *what)
{
    if (!ok) {
        printf("not so: %s (last error: %s)\n", what, err.text);
        exit(1);
    }
}

static braid_table *make(braid_client *c)
{
    braid_table_options o = BRAID_TABLE_OPTIONS_INIT;
    braid_table *t = NULL;
    o.name = "kept";
    o.dim = DIM;
    o.initializer = "uniform";
    o.optimizer = "sgd";
    check(braid_table_create(c, &o, &t, &err) == BRAID_OK, "the table is made");
    return t;
}

static int same(const float *a, const float *b)
{
    int equal = 1;
    for (size_t i = 0; i < (size_t)N * DIM; i++) {
        equal = equal && a[i] == b[i];
    }
    return equal;
}

/* The rows of N keys of this server, as lookup has them and as the reference does. */
static void keep_on(braid_client *c, braid_table *t, uint32_t server)
{
    char name[16];
    uint64_t ids[N], key = 0;
    float rows[N * DIM], got[N * DIM], ones[N * DIM];
    braid_rref *ref = NULL;
    braid_rref_options o = BRAID_RREF_OPTIONS_INIT;
    braid_feature f = {.table = t, .ids = ids, .n_ids = N};
    for (size_t i = 0; i < N; i++) {
        while (braid_key_server(c, key) != server) {
            key++;
        }
        ids[i] = key++;
    }
    for (size_t i = 0; i < (size_t)N * DIM; i++) {
        ones[i] = 1;
    }
    check(braid_lookup(t, ids, N, rows, &err) == BRAID_OK, "lookup");
    o.feature = &f;
    o.server = server;
    check(braid_rref_remote(c, &o, &ref, &err) == BRAID_OK, "remote");
    (void)snprintf(name, sizeof name, "ps-%u", server);
    check(strcmp(braid_rref_owner(ref), name) == 0, "the owner is named");
    check(braid_rref_to_here(ref, got, (size_t)N * DIM, &err) == BRAID_OK, "to_here");
    check(same(got, rows), "the rows are the lookup's");
    check(braid_push(t, ids, N, ones, 1, &err) == BRAID_OK, "push");
    check(braid_rref_to_here(ref, got, (size_t)N * DIM, &err) == BRAID_OK, "to_here again");
    check(same(got, rows), "they stay as they were");
    check(braid_rref_to_here(ref, got, 1, &err) == BRAID_E_INVALID, "the room is checked");
    check(braid_rref_keep_alive(c, &err) == BRAID_OK, "keep_alive");
    braid_rref_free(ref);
    o.server = (server + 1) % (uint32_t)braid_n_servers(c);
    if (o.server != server) {
        check(braid_rref_remote(c, &o, &ref, &err) == BRAID_E_INVALID, "another's keys");
    }
}

int main(int argc, char **argv)
{
    braid_client *c = NULL;
    braid_options o = BRAID_OPTIONS_INIT;
    o.coordinator = argc > 1 ? argv[1] : "127.0.0.1:7700";
    check(braid_connect(&o, &c, &err) == BRAID_OK, "connect");
    braid_table *t = make(c);
    for (uint32_t i = 0; i < braid_n_servers(c); i++) {
        keep_on(c, t, i);
    }
    braid_close(c);
    return 0;
}
