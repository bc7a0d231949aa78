/* Who is to blame for a stuck operation. Pure but for the communicator's own history. */
#include "ring/ring_nccl_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A report: "<where> <digest> <text>". */
enum {
    AT_DONE = 'd',   /* the operation has ended on this rank */
    AT_IN = 'i',     /* NCCL runs it */
    AT_WAITS = 'w',  /* issued; what it must wait for on this rank's device is not over */
    AT_BEFORE = 'b', /* not issued yet; text: how far the rank is */
    AT_LEFT = 'l'    /* freed in good order; text: how far the rank was */
};

static char where_is(const ring_nccl *n, uint64_t seq)
{
    for (const ring_nccl_work *w = n->head; w != NULL; w = w->next) {
        if (w->seq == seq) {
            bool ready = w->state == RING_NCCL_LAUNCHED && cudaEventQuery(w->ready) == cudaSuccess;
            return ready ? AT_IN : AT_WAITS;
        }
    }
    return AT_DONE;
}

void ring_nccl_farewell(const ring_nccl *n, char *out, size_t out_bytes)
{
    (void)snprintf(out, out_bytes, "%c 0 %" PRIu64, AT_LEFT, n->seq);
}

void ring_nccl_report(ring_nccl *n, uint64_t seq, char *out, size_t out_bytes)
{
    const ring_nccl_past *past = &n->history[seq % RING_NCCL_HISTORY];
    if (seq >= n->seq) {
        (void)snprintf(out, out_bytes, "%c 0 %" PRIu64, AT_BEFORE, n->seq);
    } else if (past->seq != seq) { /* long ago */
        (void)snprintf(out, out_bytes, "%c 0 -", AT_DONE);
    } else {
        (void)snprintf(out, out_bytes, "%c %" PRIx64 " %s", where_is(n, seq), past->digest,
                       past->text);
    }
}

typedef struct said {
    char at; /* 0: nothing */
    uint64_t digest;
    const char *text;
} said;

static said parse(const char *report)
{
    said s = {0};
    if (report == NULL || strlen(report) < 4) {
        return s;
    }
    char *end = NULL;
    s.digest = strtoull(report + 2, &end, 16);
    if (*end == ' ') {
        s.at = report[0];
        s.text = end + 1;
    }
    return s;
}

static bool judge_mismatch(const ring_nccl *n, char *const *reports, bd_err *err)
{
    said mine = parse(reports[n->rank]);
    for (int r = 0; mine.digest != 0 && r < n->world; r++) {
        said s = parse(reports[r]);
        if (s.at != 0 && s.digest != 0 && s.digest != mine.digest) {
            (void)bd_err_set(err, BD_E_MISMATCH, "nccl %s: rank %d runs %s, rank %d runs %s",
                             n->group, n->rank, mine.text, r, s.text);
            return true;
        }
    }
    return false;
}

void ring_nccl_judge(const ring_nccl *n, uint64_t seq, const char *text, char *const *reports,
                     bd_err *err)
{
    char who[300] = "";
    if (judge_mismatch(n, reports, err)) {
        return;
    }
    for (int r = 0; r < n->world; r++) {
        said s = parse(reports[r]);
        size_t used = strlen(who);
        const char *sep = who[0] == '\0' ? "" : ", ";
        if (s.at == 0) {
            (void)snprintf(who + used, sizeof who - used, "%sno word of rank %d", sep, r);
        } else if (s.at == AT_BEFORE) {
            (void)snprintf(who + used, sizeof who - used,
                           "%srank %d has not begun it (is at seq %s)", sep, r, s.text);
        } else if (s.at == AT_LEFT) {
            (void)snprintf(who + used, sizeof who - used,
                           "%srank %d has left before it (at seq %s)", sep, r, s.text);
        } else if (s.at == AT_WAITS) {
            (void)snprintf(who + used, sizeof who - used,
                           "%srank %d waits for earlier work of its device", sep, r);
        } else if (s.at == AT_DONE && s.digest == 0) {
            (void)snprintf(who + used, sizeof who - used, "%srank %d has ended it long ago", sep,
                           r);
        }
    }
    (void)bd_err_set(err, BD_E_TIMEOUT,
                     "nccl %s: rank %d: %s: timed out after %" PRId64 " ms at seq %" PRIu64 ": %s",
                     n->group, n->rank, text, n->timeout_ns / 1000000, seq,
                     who[0] != '\0' ? who : "all ranks are in it");
}
