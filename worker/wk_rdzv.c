/* Rendezvous by question and answer. */
#include "worker/wk_rdzv.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rand.h"

#include "worker/wk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

enum { POLL_MS = 10, KEY_BYTES = 256 };

/* ---- rank 0 ---- */

typedef struct seat {
    bool joined;
    uint64_t answered; /* nonce that has an answer, 0: none */
} seat;

static void key_of(char *key, const wk_rdzv *r, const char *what, int rank)
{
    (void)snprintf(key, KEY_BYTES, "rdzv/%s/%s/%d", r->job, what, rank);
}

/* *val NULL: the key is not there. */
static bd_status try_get(bd_kv *kv, const char *key, char **val, bd_err *err)
{
    size_t n_bytes = 0;
    *val = NULL;
    bd_status rc = kv->get(kv, key, 0, val, &n_bytes, err);
    return rc == BD_E_NOT_FOUND ? BD_OK : rc;
}

static bd_status answer(bd_kv *kv, const wk_rdzv *r, int rank, const char *ask, const char *text,
                        seat *s, bd_err *err)
{
    char key[KEY_BYTES], refusal[128];
    char *end = NULL;
    bd_status rc;
    uint64_t nonce = strtoull(ask, &end, 16);
    long world = strtol(end, NULL, 10);
    if (nonce == 0 || nonce == s->answered) {
        return BD_OK; /* nothing new */
    }
    (void)snprintf(key, sizeof key, "rdzv/%s/answer/%d/%016" PRIx64, r->job, rank, nonce);
    if (world != r->world) {
        (void)snprintf(refusal, sizeof refusal,
                       "!rank %d was started for %ld workers, rank 0 for %d", rank, world,
                       r->world);
        rc = kv->set(kv, key, refusal, strlen(refusal), err);
    } else {
        rc = kv->set(kv, key, text, strlen(text), err);
    }
    s->answered = nonce;
    return rc;
}

static bd_status visit(bd_kv *kv, const wk_rdzv *r, uint64_t epoch, int rank, const char *text,
                       seat *s, bd_err *err)
{
    char key[KEY_BYTES];
    char *val = NULL;
    (void)snprintf(key, sizeof key, "rdzv/%s/%" PRIu64 "/joined/%d", r->job, epoch, rank);
    bd_status rc = try_get(kv, key, &val, err);
    s->joined = val != NULL;
    bd_free(val);
    if (rc != BD_OK || s->joined) {
        return rc;
    }
    key_of(key, r, "ask", rank);
    rc = try_get(kv, key, &val, err);
    if (rc == BD_OK && val != NULL) {
        rc = answer(kv, r, rank, val, text, s, err);
    }
    bd_free(val);
    return rc;
}

static bd_status absent(const wk_rdzv *r, const seat *seats, bd_err *err)
{
    char names[128] = "";
    size_t n = 0;
    for (int i = 1; i < r->world && n + 16 < sizeof names; i++) {
        if (!seats[i].joined) {
            n += (size_t)snprintf(names + n, sizeof names - n, " %d", i);
        }
    }
    return bd_err_set(err, BD_E_TIMEOUT, "job %s: not every worker came within %lld s; absent:%s",
                      r->job, (long long)(r->timeout_ms / 1000), names);
}

bd_status wk_rdzv_lead(bd_kv *kv, const wk_rdzv *r, uint64_t epoch, const char *text, bd_err *err)
{
    int64_t deadline = bd_mono_ns() + r->timeout_ms * BD_NS_PER_MS;
    seat *seats = bd_calloc((size_t)r->world, sizeof *seats);
    bd_status rc = seats != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "rendezvous");
    for (int n_joined = 1; rc == BD_OK && n_joined < r->world;) {
        n_joined = 1;
        for (int i = 1; i < r->world && rc == BD_OK; i++) {
            rc = seats[i].joined ? BD_OK : visit(kv, r, epoch, i, text, &seats[i], err);
            n_joined += seats[i].joined ? 1 : 0;
        }
        if (rc == BD_OK && n_joined < r->world) {
            if (bd_mono_ns() > deadline) {
                rc = absent(r, seats, err);
            } else {
                bd_sleep_ms(POLL_MS);
            }
        }
    }
    bd_free(seats);
    return rc;
}

/* ---- the others ---- */

static uint64_t new_nonce(void)
{
    uint64_t x = 0;
    if (getrandom(&x, sizeof x, 0) != (ssize_t)sizeof x) {
        x = (uint64_t)bd_wall_ns() ^ (uint64_t)getpid() << 40;
    }
    return bd_mix64(x) | 1;
}

static bd_status join(bd_kv *kv, const wk_rdzv *r, const char *text, bd_err *err)
{
    char key[KEY_BYTES];
    bool first = false;
    uint64_t epoch = strtoull(text, NULL, 10);
    if (text[0] == '!') {
        return bd_err_set(err, BD_E_MISMATCH, "job %s: %s", r->job, text + 1);
    }
    (void)snprintf(key, sizeof key, "rdzv/%s/%" PRIu64 "/joined/%d", r->job, epoch, r->rank);
    bd_status rc = kv->compare_set(kv, key, NULL, "1", &first, err);
    if (rc == BD_OK && !first) {
        rc = bd_err_set(err, BD_E_EXISTS,
                        "job %s: rank %d has joined already; was it started twice?", r->job,
                        r->rank);
    }
    return rc;
}

bd_status wk_rdzv_follow(bd_kv *kv, const wk_rdzv *r, char **text, bd_err *err)
{
    char key[KEY_BYTES], ask[64];
    char *val = NULL;
    size_t n_bytes = 0;
    uint64_t nonce = new_nonce();
    (void)snprintf(ask, sizeof ask, "%016" PRIx64 " %d", nonce, r->world);
    key_of(key, r, "ask", r->rank);
    bd_status rc = kv->set(kv, key, ask, strlen(ask), err);
    if (rc == BD_OK) {
        (void)snprintf(key, sizeof key, "rdzv/%s/answer/%d/%016" PRIx64, r->job, r->rank, nonce);
        rc = kv->get(kv, key, r->timeout_ms, &val, &n_bytes, err);
        if (rc == BD_E_TIMEOUT || rc == BD_E_NOT_FOUND) {
            rc = bd_err_set(err, BD_E_TIMEOUT,
                            "job %s: rank %d has no answer from rank 0 after %lld s", r->job,
                            r->rank, (long long)(r->timeout_ms / 1000));
        }
    }
    if (rc == BD_OK) {
        rc = join(kv, r, val, err);
    }
    if (rc == BD_OK) {
        (void)kv->del(kv, key, NULL);
        *text = val;
        return BD_OK;
    }
    bd_free(val);
    return rc;
}

/* ---- one process per rank and folder ---- */

bd_status wk_rank_lock(const char *run_dir, int rank, int *fd, bd_err *err)
{
    char owner[32] = "";
    bd_status rc = wk_make_dirs(run_dir, err);
    char *path = bd_strfmt("%s/worker-%d.lock", run_dir, rank);
    if (rc != BD_OK || path == NULL) {
        bd_free(path);
        return rc != BD_OK ? rc : bd_err_set(err, BD_E_NOMEM, "rank lock");
    }
    int f = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (f < 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "open %s", path);
    } else if (flock(f, LOCK_EX | LOCK_NB) != 0) {
        ssize_t n = pread(f, owner, sizeof owner - 1, 0);
        owner[n > 0 ? n : 0] = '\0';
        rc = bd_err_set(err, BD_E_EXISTS, "rank %d runs already in %s (process %ld)", rank, run_dir,
                        strtol(owner, NULL, 10));
        (void)close(f);
    } else {
        int n = snprintf(owner, sizeof owner, "%ld\n", (long)getpid());
        if (ftruncate(f, 0) != 0 || pwrite(f, owner, (size_t)n, 0) != n) {
            rc = bd_err_errno(err, BD_E_IO, errno, "write %s", path);
            (void)close(f);
        }
    }
    if (rc == BD_OK) {
        *fd = f;
    }
    bd_free(path);
    return rc;
}
