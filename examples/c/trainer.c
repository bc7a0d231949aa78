/* A whole trainer over Braid's C library: the ratings of a planted model are learned by matrix
 * factorisation. The embeddings live on the parameter servers; here is only the loop.
 *   cc trainer.c $(pkg-config --cflags --libs braid) -lm && ./a.out HOST:PORT   (of server 0) */
#include <braid.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DIM = 8, BATCH = 256, STEPS = 400, USERS = 300, ITEMS = 200, N = BATCH * DIM };
static float u[N], v[N], gu[N], gv[N]; /* rows of users and items, and their gradients */
static braid_error err;

static void check(int status, const char *what)
{
    if (status != BRAID_OK) {
        fprintf(stderr, "error: %s: %s\n", what, err.text);
        exit(1);
    }
}

static braid_table *make_table(braid_client *client, const char *name)
{
    static const braid_param init[] = {{"mean", 0}, {"stddev", 0.3}};
    static const braid_param opt[] = {{"learning_rate", 0.1}};
    braid_table_options o = BRAID_TABLE_OPTIONS_INIT;
    braid_table *table = NULL;
    o.name = name, o.dim = DIM;
    o.initializer = "normal", o.init_params = init, o.n_init_params = 2;
    o.optimizer = "adagrad", o.opt_params = opt, o.n_opt_params = 1;
    check(braid_table_create(client, &o, &table, &err), name);
    return table;
}

static uint64_t draw(uint64_t *seed) /* not rand(): other threads may call that */
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Half the mean squared error of <u, v> against the planted rating, and its gradients. */
static float loss_and_gradients(const uint64_t *users, const uint64_t *items)
{
    float loss = 0;
    for (int i = 0; i < BATCH; i++) {
        float miss = -sinf((float)users[i]) * cosf((float)items[i]);
        for (int d = i * DIM; d < (i + 1) * DIM; d++) {
            miss += u[d] * v[d];
        }
        for (int d = i * DIM; d < (i + 1) * DIM; d++) {
            gu[d] = miss * v[d] / BATCH, gv[d] = miss * u[d] / BATCH;
        }
        loss += miss * miss / 2 / BATCH;
    }
    return loss;
}

int main(int argc, char **argv)
{
    uint64_t users[BATCH], items[BATCH], seed = 1;
    braid_client *client = NULL;
    braid_context *context = NULL;
    braid_options o = BRAID_OPTIONS_INIT;
    o.coordinator = argc > 1 ? argv[1] : "127.0.0.1:7700";
    check(braid_connect(&o, &client, &err), "connect");
    check(braid_context_new(client, &context, &err), "context");
    braid_feature features[2] = {{.table = make_table(client, "user"), .ids = users},
                                 {.table = make_table(client, "item"), .ids = items}};
    features[0].n_ids = features[0].n_bags = features[1].n_ids = features[1].n_bags = BATCH;
    for (int step = 1; step <= STEPS; step++) {
        braid_batch *batch = NULL;
        for (int i = 0; i < BATCH; i++) {
            users[i] = draw(&seed) % USERS, items[i] = draw(&seed) % ITEMS;
        }
        check(braid_batch_new(client, features, 2, &batch, &err), "batch");
        check(braid_forward(batch, (float *[]){u, v}, &err), "forward");
        float loss = loss_and_gradients(users, items);
        check(braid_backward(context, batch, (const float *[]){gu, gv}, &err), "backward");
        check(braid_step(context, 1, &err), "step");
        braid_batch_free(batch);
        if (step == 1 || step % 100 == 0) {
            printf("step %d loss %.5f\n", step, (double)loss);
        }
    }
    check(braid_checkpoint(client, "trained", &err), "checkpoint");
    braid_context_free(context);
    braid_close(client);
    return 0;
}
