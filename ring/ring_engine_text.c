#include "ring/ring_engine_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Appends to a terminated text of out_bytes; cuts. */
static void append(char *out, size_t out_bytes, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void append(char *out, size_t out_bytes, const char *fmt, ...)
{
    va_list args;
    size_t used = strlen(out);
    va_start(args, fmt);
    (void)vsnprintf(out + used, out_bytes - used, fmt, args);
    va_end(args);
}

/* Names come from other ranks: keep a forged line out of the log. */
static void append_name(char *out, size_t out_bytes, const char *name)
{
    if (name[0] == '\0') {
        return;
    }
    append(out, out_bytes, " \"");
    for (const char *c = name; *c != '\0'; c++) {
        append(out, out_bytes, "%c", *c >= ' ' && *c <= '~' ? *c : '?');
    }
    append(out, out_bytes, "\"");
}

static void describe(const ring_frame *f, char *out, size_t out_bytes)
{
    out[0] = '\0';
    append(out, out_bytes, "%s", ring_op_name(f->op));
    append_name(out, out_bytes, f->name);
    append(out, out_bytes, " (seq %" PRIu64, f->seq);
    if (f->op != RING_OP_BARRIER) {
        append(out, out_bytes, ", %s x %" PRIu64, num_dtype_name(f->dtype), f->count);
    }
    if (f->reduce != 0) {
        append(out, out_bytes, ", %s", num_reduce_op_name(f->reduce));
    }
    if (f->root >= 0) {
        append(out, out_bytes, ", root %" PRId32, f->root);
    }
    append(out, out_bytes, ")");
}

static ring_frame frame_of(const ring_op *op, uint64_t seq)
{
    ring_frame f = {.op = (uint8_t)op->kind,
                    .dtype = (uint8_t)op->dtype,
                    .reduce = (uint8_t)op->reduce,
                    .root = op->root,
                    .count = op->n_elems,
                    .seq = seq};
    memcpy(f.name, op->name, sizeof f.name);
    return f;
}

void ring_op_text(const ring_op *op, uint64_t seq, char *out, size_t out_bytes)
{
    ring_frame f = frame_of(op, seq);
    describe(&f, out, out_bytes);
}

void ring_mismatch_text(const ring_engine *e, int peer, const ring_frame *f, bd_err *err)
{
    char theirs[RING_OP_TEXT_BYTES];
    char ours[RING_OP_TEXT_BYTES] = "no operation";
    describe(f, theirs, sizeof theirs);
    if (e->op != NULL) {
        ring_op_text(e->op, e->seq, ours, sizeof ours);
    }
    (void)bd_err_set(err, BD_E_MISMATCH, "rank %d runs %s, but rank %d runs %s",
                     ring_engine_label(e, e->rank), ours, ring_engine_label(e, peer), theirs);
}

/* "rank 2" or "ranks 2, 5" for those who pass; 0 when nobody does. */
static int list_ranks(const ring_engine *e, bool (*passes)(const ring_engine *, int), char *out,
                      size_t out_bytes)
{
    int n = 0;
    out[0] = '\0';
    for (int p = 0; p < e->world; p++) {
        if (p != e->rank && passes(e, p)) {
            append(out, out_bytes, "%s%d", n > 0 ? ", " : "", ring_engine_label(e, p));
            n++;
        }
    }
    return n;
}

static bool is_missing(const ring_engine *e, int p)
{
    const ring_peer *peer = &e->peers[p];
    if (peer->held_seq > e->seq) {
        return false; /* it is done with our operation */
    }
    bool is_silent = peer->heard_ns < e->heard_since_ns;
    return is_silent || (!peer->was_running && !peer->was_elsewhere && peer->heard_seq <= e->seq);
}

static bool is_awaited(const ring_engine *e, int p)
{
    return e->run.algo->awaits(&e->run, p);
}

void ring_timeout_text(const ring_engine *e, bd_err *err)
{
    char ranks[160];
    int64_t ms = e->timeout_ns / BD_NS_PER_MS;
    int n = list_ranks(e, is_missing, ranks, sizeof ranks);
    const char *what = "did not take part";
    if (n == 0) { /* everybody is there: a frame got lost */
        n = list_ranks(e, is_awaited, ranks, sizeof ranks);
        what = "sent nothing more, though alive,";
    }
    (void)bd_err_set(err, BD_E_TIMEOUT,
                     "rank%s %s %s for %" PRId64 " ms (%" PRIu64 " of %" PRIu64 " frames, %" PRIu64
                     " bytes received)",
                     n == 1 ? "" : "s", ranks, what, ms, e->run.n_received, e->run.n_to_receive,
                     e->run.bytes_received);
}
