#include "ps_server/ps_trail.h"

#include "base/rand.h"

#include <string.h>

#define N_PROBES 16u

/* A few keys from all over them tell batches apart; what they cannot tell apart is only slow. */
static uint64_t print_of(const uint64_t *keys, size_t n)
{
    uint64_t print = n;
    for (size_t i = 0; n > 0 && i < N_PROBES; i++) {
        print = bd_mix64(print ^ keys[(n - 1) * i / (N_PROBES - 1)]);
    }
    return print;
}

void ps_trail_init(ps_trail *t)
{
    memset(t, 0, sizeof *t);
    (void)pthread_mutex_init(&t->lock, NULL);
}

/* Takes the note out; its reference is the caller's. */
static bd_buf *tear_out(ps_trail *t, ps_trail_note *note)
{
    bd_buf *rows = note->rows;
    t->n_bytes -= rows == NULL ? 0 : rows->n_bytes;
    *note = (ps_trail_note){0};
    return rows;
}

void ps_trail_deinit(ps_trail *t)
{
    for (size_t i = 0; i < PS_TRAIL_NOTES; i++) {
        bd_buf_unref(tear_out(t, &t->notes[i]));
    }
    (void)pthread_mutex_destroy(&t->lock);
}

void ps_trail_put(ps_trail *t, uint32_t table_id, const uint64_t *keys, size_t n, bd_buf *rows)
{
    if (rows->n_bytes > PS_TRAIL_BYTES) {
        bd_buf_unref(rows);
        return;
    }
    uint64_t print = print_of(keys, n);
    (void)pthread_mutex_lock(&t->lock);
    /* The place it gets, and from there on the oldest ones until it fits. */
    size_t at = t->next;
    bd_buf_unref(tear_out(t, &t->notes[at]));
    for (size_t i = 1; t->n_bytes + rows->n_bytes > PS_TRAIL_BYTES && i < PS_TRAIL_NOTES; i++) {
        bd_buf_unref(tear_out(t, &t->notes[(at + i) % PS_TRAIL_NOTES]));
    }
    t->notes[at] = (ps_trail_note){table_id, n, print, rows};
    t->n_bytes += rows->n_bytes;
    t->next = (at + 1) % PS_TRAIL_NOTES;
    (void)pthread_mutex_unlock(&t->lock);
}

bd_buf *ps_trail_take(ps_trail *t, uint32_t table_id, const uint64_t *keys, size_t n)
{
    bd_buf *rows = NULL;
    if (n < PS_TRAIL_MIN_KEYS) {
        return NULL;
    }
    uint64_t print = print_of(keys, n);
    (void)pthread_mutex_lock(&t->lock);
    for (size_t i = 1; i <= PS_TRAIL_NOTES && rows == NULL; i++) { /* the newest first */
        ps_trail_note *note = &t->notes[(t->next + PS_TRAIL_NOTES - i) % PS_TRAIL_NOTES];
        if (note->rows != NULL && note->n == n && note->table_id == table_id &&
            note->print == print) {
            rows = tear_out(t, note);
        }
    }
    (void)pthread_mutex_unlock(&t->lock);
    return rows;
}
