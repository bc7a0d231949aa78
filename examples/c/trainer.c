/* A whole trainer over Braid's C library: the ratings of a planted model are learned by matrix
 * factorisation. The embeddings live on the parameter servers; here is only the loop.
 *   cc trainer.c $(pkg-config --cflags --libs braid) -lm && ./a.out HOST:PORT   (of server 0) */
#include <braid.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DIM = 8, BATCH = 256, STEPS = 400, USERS = 300, ITEMS = 200 };
static uint64_t users[BATCH], items[BATCH];
static float u[BATCH * DIM], v[BATCH * DIM], gu[BATCH * DIM], gv[BATCH * DIM]; /* rows, gradients */
static braid_error err;

static void must(int status)
{
    if (status != BRAID_OK) {
        fprintf(stderr, "error: %s\n", err.text);
        exit(1);
    }
}

/* Half the mean squared error of <u, v> against the planted rating, and its gradients. */
static float loss_and_gradients(void)
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
    braid_options o = {.size = sizeof o, .coordinator = argc > 1 ? argv[1] : "127.0.0.1:7700"};
    braid_table_options t = {.size = sizeof t, .dim = DIM, .initializer = "normal(stddev=0.3)"};
    braid_feature features[2] = {{.ids = users, .n_ids = BATCH}, {.ids = items, .n_ids = BATCH}};
    braid_client *client = NULL;
    braid_context *context = NULL;
    t.optimizer = "adagrad(learning_rate=0.1)";
    must(braid_connect(&o, &client, &err));
    must(braid_context_new(client, &context, &err));
    for (int i = 0; i < 2; i++) {
        t.name = i == 0 ? "user" : "item";
        must(braid_table_create(client, &t, &features[i].table, &err));
    }
    uint64_t seed = 1;
    for (int step = 1; step <= STEPS; step++) {
        braid_batch *batch = NULL;
        for (int i = 0; i < BATCH; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            users[i] = (seed >> 33) % USERS, items[i] = (seed >> 13) % ITEMS;
        }
        must(braid_batch_new(client, features, 2, &batch, &err));
        must(braid_forward(batch, (float *[]){u, v}, &err)); /* one request a server */
        float loss = loss_and_gradients();
        must(braid_backward(context, batch, (const float *[]){gu, gv}, &err));
        must(braid_step(context, 1, &err)); /* each row's optimiser runs once, on its server */
        braid_batch_free(batch);
        if (step == 1 || step % 100 == 0) {
            printf("step %d loss %.5f\n", step, (double)loss);
        }
    }
    must(braid_checkpoint(client, "trained", &err));
    braid_context_free(context);
    braid_close(client);
    return 0;
}
