/* tests/util/fake_ps.h - a tiny parameter server cluster inside the test process, over loopback.
 *
 * Rows with plain SGD (learning rate 0.5), staging and commit as in parameter_server.proto, the
 * coordinator's store on server 0. Servers can be killed (staged parts are lost, rows and committed
 * steps stay, as a journal keeps them) and started again on their ports, can fail requests, hold them
 * back, handle each push twice, and pass slots to each other.
 * Threads: every function from the test's thread; handlers run on the env.
 */
#ifndef FAKE_PS_H
#define FAKE_PS_H

#include "rpc/rpc.h"

#include <stddef.h>
#include <stdint.h>

typedef struct fake_ps fake_ps;

/* Aborts the test on failure. */
fake_ps *fake_ps_new(rpc_env *env, size_t n_servers);
void fake_ps_free(fake_ps *f);
const char *fake_ps_coordinator(const fake_ps *f); /* "127.0.0.1:port" */
const char *fake_ps_address(const fake_ps *f, size_t i);

/* i: the server's index. */
void fake_ps_kill(fake_ps *f, size_t i);
void fake_ps_start(fake_ps *f, size_t i);
/* The next n stream requests to the server are answered with rc. */
void fake_ps_fail_next(fake_ps *f, size_t i, bd_status rc, int n);
/* The next n stream requests to the server are never answered. */
void fake_ps_ignore_next(fake_ps *f, size_t i, int n);
/* The server answers no stream request until n (at most 8) are with it; then these, the last one first,
 * and whatever comes later as always. */
void fake_ps_hold(fake_ps *f, size_t i, int n);
int fake_ps_n_held(fake_ps *f, size_t i); /* that wait now */
/* Every push is handled twice. */
void fake_ps_duplicate_pushes(fake_ps *f, bool on);
/* Gives every slot to the next server, rows included; the map's epoch grows. */
void fake_ps_rotate_slots(fake_ps *f);
/* The map has only the first n servers from now on; its epoch grows. */
void fake_ps_shrink_map(fake_ps *f, size_t n);
/* The epoch grows, owners stay. */
void fake_ps_bump_epoch(fake_ps *f);

/* The value of a row as the cluster would answer. */
void fake_ps_row(fake_ps *f, uint32_t table_id, uint64_t key, float *w, size_t dim);
float fake_ps_initial(uint64_t key, size_t element);

typedef struct fake_ps_counts {
    int lookups, pushes, duplicates, commits, need_parts, moved;
    int largest_push_parts; /* n_parts */
    size_t largest_request_bytes;
} fake_ps_counts;
fake_ps_counts fake_ps_get_counts(fake_ps *f);
uint64_t fake_ps_committed(fake_ps *f, size_t i);

#endif
