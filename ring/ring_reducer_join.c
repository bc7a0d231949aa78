/* Uneven inputs: ranks without data follow the collectives of the others.
 *
 * Each step begins with a bitmap of the ranks that have data. While somebody has none, a rank with
 * data also tells (in forward when there are buffers, else in prepare) whether it synchronises, so
 * that the others know which collectives come: buffers, buckets, flags. A shadow step ends with the
 * sums in the gradients, as finish does: a joined rank that steps its optimiser with them keeps an
 * equal model.
 */
#include "base/mem.h"

#include "ring/ring_reducer_int.h"

bd_status ring_reducer_tell_joined(ring_reducer *r, bool sync, bd_err *err)
{
    int32_t flag = sync ? 1 : 0;
    r->has_told = true;
    return ring_allreduce(r->comm, &flag, 1, NUM_I32, NUM_MAX, "reducer.join.sync", NULL, err);
}

static bd_status shadow_step(ring_reducer *r, bd_err *err)
{
    int32_t sync = 0;
    bd_status rc =
        ring_allreduce(r->comm, &sync, 1, NUM_I32, NUM_MAX, "reducer.join.sync", NULL, err);
    if (rc == BD_OK && sync != 0 && r->n_buffers > 0) {
        rc = ring_reducer_send_buffers(r, err);
    }
    if (rc != BD_OK || sync == 0) {
        return rc;
    }
    ring_reducer_reset_step(r);
    return ring_reducer_complete(r, err);
}

/* Counts the ranks with data; the highest of them, and the lowest without (world: none). */
static int count_active(const uint8_t *bits, int world, int *highest, int *first_idle)
{
    int n = 0;
    *first_idle = world;
    for (int k = 0; k < world; k++) {
        if (ring_bit(bits, (size_t)k)) {
            *highest = k;
            n++;
        } else if (*first_idle == world) {
            *first_idle = k;
        }
    }
    return n;
}

bd_status ring_reducer_join_step(ring_reducer *r, bool has_data, int *n_active, bd_err *err)
{
    int world = ring_world(r->comm), first_idle = 0;
    size_t n_bytes = ((size_t)world + 7) / 8;
    if (r->in_backward) {
        return bd_err_set(err, BD_E_STATE, "reducer: the last backward was not finished");
    }
    uint8_t *bits = bd_calloc(n_bytes, 1);
    if (bits == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "reducer");
    }
    if (has_data) {
        ring_set_bit(bits, (size_t)ring_rank(r->comm));
    }
    bd_status rc =
        ring_allreduce(r->comm, bits, n_bytes, NUM_U8, NUM_BOR, "reducer.join", NULL, err);
    if (rc == BD_OK) {
        r->n_active = count_active(bits, world, &r->last_rank, &first_idle);
        r->has_joined_ranks = r->n_active > 0 && r->n_active < world;
        r->has_told = false;
        r->stats.has_join = true;
        *n_active = r->n_active;
    }
    bd_free(bits);
    if (rc != BD_OK) {
        return rc;
    }
    if (r->has_joined_ranks && r->opt.join_throws) {
        bd_err e = BD_ERR_INIT;
        (void)bd_err_set(&e, BD_E_STATE, "reducer: rank %d has no more data, %d of %d ranks have",
                         first_idle, r->n_active, world);
        r->has_joined_ranks = false;
        return ring_reducer_keep(r, &e, err);
    }
    return has_data || r->n_active == 0 ? BD_OK : shadow_step(r, err);
}

int ring_reducer_join_last(const ring_reducer *r)
{
    return r->last_rank;
}

bd_status ring_reducer_join_end(ring_reducer *r, const ring_buffer *tensors, size_t n_tensors,
                                bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; rc == BD_OK && i < n_tensors; i++) {
        rc = ring_broadcast(r->comm, tensors[i].data, tensors[i].n_elems, tensors[i].dtype,
                            r->last_rank, tensors[i].name, NULL, err);
    }
    return rc;
}
