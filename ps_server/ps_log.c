#include "ps_server/ps_log.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_rocks.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC          0x464c5242u /* "BRLF" */
#define VERSION        1u
#define HASH_AT        56u
#define ENDING         ".records"
#define PIECES_A_CALL  1000 /* less than IOV_MAX */
#define SEARCH_BYTES   (1u << 20)
#define FLUSH_BYTES    (4u << 20)
#define MIN_DROP_BYTES (1u << 20) /* a smaller last file is not worth a new one */

typedef struct segment {
    uint64_t no, last_n;
    uint64_t end_bytes; /* of the whole frames */
    int fd;
    bool unsynced;
} segment;

struct ps_log {
    char *folder; /* owned */
    bool read_only;
    pthread_mutex_t sync_lock; /* before lock; held while files are synced, or closed and removed */
    pthread_mutex_t lock;
    segment *items; /* under lock; owned; oldest first */
    size_t n, cap;
    uint64_t next_no; /* under lock */
    uint64_t last_n;  /* under lock */
    bool wants_new;   /* under lock: the next frame begins a file */
    bool has_tail;    /* there is something behind the last whole frame */
    bool has_island;  /* with whole frames in it */
    pthread_cond_t wrote;
    pthread_t flusher;
    bool flusher_runs;
    bool stopping; /* under lock */
    segment *dead; /* under lock; owned: files that wait to be removed */
    size_t n_dead, cap_dead;
    uint64_t n_started; /* under lock: bytes of the last file that are on their way to the disk */
    bool unsynced_name; /* under lock: the folder has a file that is not in it durably */
    uint8_t *buf;       /* the reader's; owned */
    size_t cap_buf;
    struct iovec *iov; /* the writer's; owned */
    size_t cap_iov;
};

static char *path_of(const ps_log *l, uint64_t no)
{
    return bd_strfmt("%s/%012" PRIu64 ENDING, l->folder, no);
}

static bd_status no_memory(bd_err *err)
{
    return bd_err_set(err, BD_E_NOMEM, "journal: no memory");
}

/* ---- reading ---- */
static bd_status read_at(const ps_log *l, const segment *s, uint64_t at, uint8_t *to, size_t n,
                         bd_err *err)
{
    while (n > 0) {
        ssize_t got = pread(s->fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return bd_err_errno(err, BD_E_IO, got == 0 ? EIO : errno, "read %s/%012" PRIu64 ENDING,
                                l->folder, s->no);
        }
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return BD_OK;
}

static uint64_t frame_hash(const uint8_t *header, const uint8_t *facts, size_t facts_bytes)
{
    uint8_t h[PS_LOG_FRAME_BYTES];
    memcpy(h, header, sizeof h);
    ps_put_le64(h + HASH_AT, 0);
    return bd_hash64(facts, facts_bytes, bd_hash64(h, sizeof h, 0));
}

/* The header of a frame that fits between at and size. */
static bool is_header(const uint8_t *h, uint64_t no, uint64_t room)
{
    uint64_t facts = ps_get_le64(h + 32), record = ps_get_le64(h + 40);
    return ps_get_le32(h) == MAGIC && ps_get_le32(h + 4) == VERSION && ps_get_le64(h + 8) == no &&
           facts % 8 == 0 && record % 8 == 0 && facts <= room && record <= room - facts &&
           (record == 0 || record >= PS_RECORD_HEADER_BYTES);
}

/* BD_AGAIN: there is no whole frame there. */
static bd_status read_frame(ps_log *l, const segment *s, uint64_t at, uint64_t size, ps_frame *f,
                            uint64_t *before_n, bd_err *err)
{
    uint8_t h[PS_LOG_FRAME_BYTES];
    bd_err why;
    if (size < at + sizeof h) {
        return BD_AGAIN;
    }
    bd_status rc = read_at(l, s, at, h, sizeof h, err);
    if (rc != BD_OK) {
        return rc;
    }
    if (!is_header(h, s->no, size - at - sizeof h)) {
        return BD_AGAIN;
    }
    *f = (ps_frame){.n = ps_get_le64(h + 16),
                    .facts_bytes = ps_get_le64(h + 32),
                    .record_bytes = ps_get_le64(h + 40)};
    if (!bd_grow(&l->buf, &l->cap_buf, f->facts_bytes + f->record_bytes + 8, 1)) {
        return no_memory(err);
    }
    rc = read_at(l, s, at + sizeof h, l->buf, f->facts_bytes + f->record_bytes, err);
    if (rc != BD_OK) {
        return rc;
    }
    *before_n = ps_get_le64(h + 24);
    f->facts = l->buf;
    f->record = f->record_bytes == 0 ? NULL : l->buf + f->facts_bytes;
    if (frame_hash(h, f->facts, f->facts_bytes) != ps_get_le64(h + HASH_AT)) {
        return BD_AGAIN;
    }
    bool whole = f->record == NULL || (ps_get_le64(f->record + 16) == ps_get_le64(h + 48) &&
                                       ps_record_check(f->record, f->record_bytes, &why) == BD_OK);
    return whole ? BD_OK : BD_AGAIN;
}

static bd_status size_of(const ps_log *l, const segment *s, uint64_t *out, bd_err *err)
{
    struct stat st;
    if (fstat(s->fd, &st) != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "look at %s/%012" PRIu64 ENDING, l->folder, s->no);
    }
    *out = (uint64_t)st.st_size;
    return BD_OK;
}

/* Hands over the whole frames of a file; s->end_bytes and l->last_n are where they end. BD_AGAIN:
 * something else follows them. */
static bd_status read_segment(ps_log *l, segment *s, ps_frame_fn fn, void *user, bd_err *err)
{
    uint64_t size = 0, before_n = 0;
    ps_frame f;
    bd_status rc = size_of(l, s, &size, err);
    s->end_bytes = 0;
    while (rc == BD_OK && s->end_bytes < size) {
        rc = read_frame(l, s, s->end_bytes, size, &f, &before_n, err);
        if (rc == BD_OK && l->last_n != 0 && before_n != l->last_n) {
            rc = BD_AGAIN; /* frames between them are missing */
        }
        if (rc == BD_OK) {
            rc = fn(user, &f, err);
        }
        if (rc == BD_OK) {
            s->end_bytes += PS_LOG_FRAME_BYTES + f.facts_bytes + f.record_bytes;
            s->last_n = f.n;
            l->last_n = f.n;
        }
    }
    return rc;
}

/* Is there a whole frame somewhere from `at` on? Errors of the disk: no. */
static bool has_frame_after(ps_log *l, const segment *s, uint64_t at)
{
    uint64_t size = 0, before_n = 0;
    bd_err none;
    ps_frame f;
    uint8_t *chunk = bd_alloc(SEARCH_BYTES);
    bool found = false;
    bd_status rc = chunk == NULL ? BD_E_NOMEM : size_of(l, s, &size, &none);
    for (at = (at + 7) / 8 * 8; rc == BD_OK && !found && at < size; at += SEARCH_BYTES) {
        size_t n = size - at < SEARCH_BYTES ? (size_t)(size - at) : SEARCH_BYTES;
        rc = read_at(l, s, at, chunk, n, &none);
        for (size_t i = 0; rc == BD_OK && !found && i + 8 <= n; i += 8) {
            found = ps_get_le32(chunk + i) == MAGIC &&
                    read_frame(l, s, at + i, size, &f, &before_n, &none) == BD_OK;
        }
    }
    bd_free(chunk);
    return found;
}

static void remove_file(const ps_log *l, uint64_t no)
{
    char *path = path_of(l, no);
    if (path == NULL || unlink(path) != 0) {
        BD_LOG(WARN, "an old file of the journal cannot be removed: remove it by hand", "folder",
               l->folder, "number", no);
    }
    bd_free(path);
}

/* ---- the flusher ---- */
/* Under lock, which it lets go meanwhile. What has been written before goes out of the page cache:
 * records are read at a start alone, and memory that is used again is there already. */
static void start_write(ps_log *l, const segment *s, uint64_t from)
{
    off_t at = (off_t)from, n = (off_t)(s->end_bytes - from);
    int fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 0); /* the file may be dropped meanwhile */
    l->n_started = s->end_bytes;
    (void)pthread_mutex_unlock(&l->lock);
    if (fd >= 0) { /* both are hints */
        (void)sync_file_range(fd, at, n, SYNC_FILE_RANGE_WRITE);
        if (at > 0) {
            (void)posix_fadvise(fd, 0, at, POSIX_FADV_DONTNEED);
        }
        (void)close(fd);
    }
    (void)pthread_mutex_lock(&l->lock);
}

/* Under lock, which it lets go meanwhile: the kernel takes tens of milliseconds for a file. */
static void remove_dead(ps_log *l)
{
    segment s = l->dead[--l->n_dead];
    (void)pthread_mutex_unlock(&l->lock);
    (void)close(s.fd);
    remove_file(l, s.no);
    (void)pthread_mutex_lock(&l->lock);
}

/* Starts writing what is appended soon after, so that a sync has little to wait for and never
 * gigabytes, and removes files: neither the thread that appends nor a checkpoint shall stand in
 * the disk's queue for it. */
static void *flush_main(void *log)
{
    ps_log *l = log;
    (void)pthread_mutex_lock(&l->lock);
    for (;;) {
        const segment *last = l->n == 0 ? NULL : &l->items[l->n - 1];
        if (last != NULL && last->end_bytes >= l->n_started + FLUSH_BYTES) {
            start_write(l, last, l->n_started);
        } else if (l->n_dead > 0) {
            remove_dead(l);
        } else if (l->stopping) {
            break;
        } else {
            (void)pthread_cond_wait(&l->wrote, &l->lock);
        }
    }
    (void)pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void stop_flusher(ps_log *l)
{
    if (l->flusher_runs) {
        (void)pthread_mutex_lock(&l->lock);
        l->stopping = true;
        (void)pthread_cond_signal(&l->wrote);
        (void)pthread_mutex_unlock(&l->lock);
        (void)pthread_join(l->flusher, NULL);
    }
}

/* ---- opening ---- */
static bd_status see_file(void *user, const char *dir, const char *name, bd_err *err)
{
    ps_log *l = user;
    char *end = NULL;
    unsigned long long no = strtoull(name, &end, 10);
    (void)dir;
    if (end == name || strcmp(end, ENDING) != 0) {
        return BD_OK;
    }
    if (!bd_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items)) {
        return no_memory(err);
    }
    l->items[l->n++] = (segment){.no = no, .fd = -1};
    return BD_OK;
}

static int by_no(const void *a, const void *b)
{
    const segment *x = a, *y = b;
    return x->no < y->no ? -1 : x->no > y->no;
}

static bd_status open_segment(const ps_log *l, segment *s, int flags, bd_err *err)
{
    char *path = path_of(l, s->no);
    bd_status rc = path == NULL ? no_memory(err) : BD_OK;
    s->fd = rc == BD_OK ? open(path, flags | O_CLOEXEC, 0666) : -1;
    if (rc == BD_OK && s->fd < 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "open %s", path);
    }
    bd_free(path);
    return rc;
}

/* The files there are, those before `first` gone. */
static bd_status list_files(ps_log *l, uint64_t first, bd_err *err)
{
    bd_status rc = l->read_only ? BD_OK : ps_dir_make(l->folder, err);
    if (rc == BD_OK) {
        rc = ps_dir_each(l->folder, see_file, l, err);
        rc = rc == BD_E_NOT_FOUND ? BD_OK : rc; /* read_only */
    }
    if (l->n > 1) {
        qsort(l->items, l->n, sizeof *l->items, by_no);
    }
    size_t old = 0;
    while (old < l->n && l->items[old].no < first) {
        if (!l->read_only) {
            remove_file(l, l->items[old].no);
        }
        old++;
    }
    l->n -= old;
    if (l->n > 0) {
        memmove(l->items, l->items + old, l->n * sizeof *l->items);
    }
    l->next_no = l->n > 0 ? l->items[l->n - 1].no + 1 : (first == 0 ? 1 : first);
    if (rc == BD_OK && first != 0 && l->n > 0 && l->items[0].no != first) {
        rc = bd_err_set(err, BD_E_CORRUPT, "%s: file %" PRIu64 " is missing", l->folder, first);
    }
    return rc;
}

/* Reads on until a frame is not whole; later files are none of the log's. */
static bd_status read_all(ps_log *l, ps_frame_fn fn, void *user, bd_err *err)
{
    bd_status rc = BD_OK;
    size_t at = 0;
    for (; at < l->n && rc == BD_OK; at++) {
        segment *s = &l->items[at];
        if (at > 0 && s->no != l->items[at - 1].no + 1) {
            rc = BD_AGAIN;
            break;
        }
        rc = open_segment(l, s, l->read_only ? O_RDONLY : O_RDWR, err);
        if (rc == BD_OK) {
            rc = read_segment(l, s, fn, user, err);
            s->unsynced = true; /* by whoever wrote it */
        }
    }
    if (rc != BD_AGAIN) {
        return rc;
    }
    l->has_tail = true;
    l->has_island = at > 0 && has_frame_after(l, &l->items[at - 1], l->items[at - 1].end_bytes);
    for (size_t i = at; i < l->n; i++) {
        l->has_island = l->has_island || (open_segment(l, &l->items[i], O_RDONLY, err) == BD_OK &&
                                          has_frame_after(l, &l->items[i], 0));
        if (l->items[i].fd >= 0) {
            (void)close(l->items[i].fd);
        }
    }
    l->n = at;
    return BD_OK;
}

bd_status ps_log_open(const char *folder, uint64_t first, bool read_only, ps_frame_fn fn,
                      void *user, ps_log **out, bd_err *err)
{
    ps_log *l = bd_calloc(1, sizeof *l);
    if (l == NULL) {
        return no_memory(err);
    }
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_mutex_init(&l->sync_lock, NULL);
    (void)pthread_cond_init(&l->wrote, NULL);
    l->read_only = read_only;
    l->unsynced_name = true;
    l->folder = bd_strdup(folder);
    bd_status rc = l->folder == NULL ? no_memory(err) : list_files(l, first, err);
    if (rc == BD_OK) {
        rc = read_all(l, fn, user, err);
    }
    l->n_started = l->n == 0 ? 0 : l->items[l->n - 1].end_bytes;
    l->flusher_runs = rc == BD_OK && !read_only &&
                      pthread_create(&l->flusher, NULL, flush_main, l) == 0; /* else syncs wait */
    if (rc != BD_OK) {
        ps_log_close(l);
        return rc;
    }
    *out = l;
    return BD_OK;
}

void ps_log_close(ps_log *l)
{
    if (l == NULL) {
        return;
    }
    stop_flusher(l);
    for (size_t i = 0; i < l->n; i++) {
        if (l->items[i].fd >= 0) {
            (void)close(l->items[i].fd);
        }
    }
    (void)pthread_cond_destroy(&l->wrote);
    (void)pthread_mutex_destroy(&l->lock);
    (void)pthread_mutex_destroy(&l->sync_lock);
    bd_free(l->items);
    bd_free(l->dead);
    bd_free(l->folder);
    bd_free(l->buf);
    bd_free(l->iov);
    bd_free(l);
}

bool ps_log_has_island(const ps_log *l)
{
    return l->has_island;
}

bd_status ps_log_each(ps_log *l, ps_frame_fn fn, void *user, bd_err *err)
{
    bd_status rc = BD_OK;
    ps_frame f;
    uint64_t before_n = 0;
    for (size_t i = 0; i < l->n && rc == BD_OK; i++) {
        const segment *s = &l->items[i];
        for (uint64_t at = 0; rc == BD_OK && at < s->end_bytes;) {
            rc = read_frame(l, s, at, s->end_bytes, &f, &before_n, err);
            if (rc == BD_AGAIN) {
                rc = bd_err_set(err, BD_E_CORRUPT,
                                "%s/%012" PRIu64 ENDING " is damaged at byte %" PRIu64, l->folder,
                                s->no, at);
            } else if (rc == BD_OK) {
                rc = fn(user, &f, err);
                at += PS_LOG_FRAME_BYTES + f.facts_bytes + f.record_bytes;
            }
        }
    }
    return rc;
}

/* ---- writing ---- */
/* Removes what lies behind the last whole frame, later files too. */
static bd_status drop_tail(ps_log *l, bd_err *err)
{
    segment *last = l->n == 0 ? NULL : &l->items[l->n - 1];
    uint64_t no = last == NULL ? l->next_no : last->no + 1;
    if (last != NULL && ftruncate(last->fd, (off_t)last->end_bytes) != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "cut %s/%012" PRIu64 ENDING, l->folder, last->no);
    }
    for (; no < l->next_no; no++) {
        char *path = path_of(l, no);
        if (path == NULL || (unlink(path) != 0 && errno != ENOENT)) {
            bd_status rc = path == NULL ? no_memory(err)
                                        : bd_err_errno(err, BD_E_IO, errno, "remove %s", path);
            bd_free(path);
            return rc;
        }
        bd_free(path);
    }
    l->next_no = last == NULL ? l->next_no : last->no + 1;
    l->has_tail = false;
    return BD_OK;
}

/* The file the next frame goes to. */
static bd_status choose_segment(ps_log *l, segment **out, bd_err *err)
{
    segment *last = l->n == 0 ? NULL : &l->items[l->n - 1];
    if (last != NULL && !l->wants_new && last->end_bytes < PS_LOG_SEGMENT_BYTES) {
        *out = last;
        return BD_OK;
    }
    if (!bd_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items)) {
        return no_memory(err);
    }
    segment s = {.no = l->next_no};
    bd_status rc = open_segment(l, &s, O_RDWR | O_CREAT | O_TRUNC, err);
    if (rc != BD_OK) {
        return rc;
    }
    l->unsynced_name = true;
    l->wants_new = false;
    l->n_started = 0;
    l->next_no++;
    l->items[l->n] = s;
    *out = &l->items[l->n++];
    return BD_OK;
}

/* Everything in iov[n] from byte `at` on; iov is used up. */
static bd_status write_all(const ps_log *l, const segment *s, uint64_t at, struct iovec *iov,
                           size_t n, bd_err *err)
{
    while (n > 0) {
        int some = n < PIECES_A_CALL ? (int)n : PIECES_A_CALL;
        ssize_t got = pwritev(s->fd, iov, some, (off_t)at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return bd_err_errno(err, BD_E_IO, got == 0 ? ENOSPC : errno,
                                "write %s/%012" PRIu64 ENDING, l->folder, s->no);
        }
        at += (uint64_t)got;
        size_t left = (size_t)got;
        for (; n > 0 && left >= iov->iov_len; iov++, n--) {
            left -= iov->iov_len;
        }
        if (left > 0) {
            iov->iov_base = (uint8_t *)iov->iov_base + left;
            iov->iov_len -= left;
        }
    }
    return BD_OK;
}

static size_t pieces_bytes(const ps_pieces *p)
{
    size_t sum = 0;
    for (size_t i = 0; p != NULL && i < p->n; i++) {
        sum += p->items[i].iov_len;
    }
    return sum;
}

static bd_status append(ps_log *l, uint64_t n, const uint8_t *facts, size_t facts_bytes,
                        const ps_pieces *record, bd_err *err)
{
    uint8_t h[PS_LOG_FRAME_BYTES] = {0};
    segment *s = NULL;
    size_t record_bytes = pieces_bytes(record), n_iov = 0;
    bd_status rc = l->has_tail ? drop_tail(l, err) : BD_OK;
    if (rc == BD_OK) {
        rc = choose_segment(l, &s, err);
    }
    if (rc == BD_OK &&
        !bd_grow(&l->iov, &l->cap_iov, (record == NULL ? 0 : record->n) + 2, sizeof *l->iov)) {
        rc = no_memory(err);
    }
    if (rc != BD_OK) {
        return rc;
    }
    ps_put_le32(h, MAGIC);
    ps_put_le32(h + 4, VERSION);
    ps_put_le64(h + 8, s->no);
    ps_put_le64(h + 16, n);
    ps_put_le64(h + 24, l->last_n);
    ps_put_le64(h + 32, facts_bytes);
    ps_put_le64(h + 40, record_bytes);
    ps_put_le64(h + 48, record == NULL ? 0 : record->hash);
    ps_put_le64(h + HASH_AT, frame_hash(h, facts, facts_bytes));
    l->iov[n_iov++] = (struct iovec){h, sizeof h};
    if (facts_bytes > 0) {
        l->iov[n_iov++] = (struct iovec){bd_unconst(facts), facts_bytes};
    }
    for (size_t i = 0; record != NULL && i < record->n; i++) {
        l->iov[n_iov++] = record->items[i];
    }
    rc = write_all(l, s, s->end_bytes, l->iov, n_iov, err);
    if (rc != BD_OK) {
        l->has_tail = true; /* now, or before the next frame */
        bd_err ignored;
        (void)!drop_tail(l, &ignored);
        return rc;
    }
    s->end_bytes += sizeof h + facts_bytes + record_bytes;
    s->last_n = n;
    s->unsynced = true;
    l->last_n = n;
    if (s->end_bytes >= l->n_started + FLUSH_BYTES) {
        (void)pthread_cond_signal(&l->wrote);
    }
    return BD_OK;
}

bd_status ps_log_append(ps_log *l, uint64_t n, const uint8_t *facts, size_t facts_bytes,
                        const ps_pieces *record, bd_err *err)
{
    (void)pthread_mutex_lock(&l->lock);
    bd_status rc = append(l, n, facts, facts_bytes, record, err);
    (void)pthread_mutex_unlock(&l->lock);
    return rc;
}

/* Finds one file to sync; it stays open while sync_lock is held. */
static bool take_unsynced(ps_log *l, segment *out)
{
    (void)pthread_mutex_lock(&l->lock);
    bool found = false;
    for (size_t i = 0; i < l->n && !found; i++) {
        found = l->items[i].unsynced;
        if (found) {
            l->items[i].unsynced = false;
            *out = l->items[i];
        }
    }
    (void)pthread_mutex_unlock(&l->lock);
    return found;
}

bd_status ps_log_sync(ps_log *l, bd_err *err)
{
    segment s;
    bd_status rc = BD_OK;
    (void)pthread_mutex_lock(&l->sync_lock);
    (void)pthread_mutex_lock(&l->lock);
    bool name = l->unsynced_name;
    l->unsynced_name = false;
    size_t most = l->n;
    (void)pthread_mutex_unlock(&l->lock);
    if (name) {
        rc = ps_dir_sync(l->folder, err);
    }
    for (size_t i = 0; rc == BD_OK && i < most && take_unsynced(l, &s); i++) {
        if (fdatasync(s.fd) != 0) {
            rc = bd_err_errno(err, BD_E_IO, errno, "sync %s/%012" PRIu64 ENDING, l->folder, s.no);
        }
    }
    (void)pthread_mutex_unlock(&l->sync_lock);
    return rc;
}

/* ---- forgetting ---- */
uint64_t ps_log_first_needed(ps_log *l, uint64_t n, bool *more)
{
    (void)pthread_mutex_lock(&l->lock);
    size_t i = 0;
    while (i + 1 < l->n && l->items[i].last_n < n) {
        i++;
    }
    if (i + 1 == l->n && l->items[i].last_n < n && l->items[i].end_bytes >= MIN_DROP_BYTES) {
        l->wants_new = true;
        i++;
    }
    uint64_t no = i < l->n ? l->items[i].no : l->next_no;
    *more = i > 0;
    (void)pthread_mutex_unlock(&l->lock);
    return no;
}

void ps_log_drop_before(ps_log *l, uint64_t segment_no)
{
    (void)pthread_mutex_lock(&l->sync_lock); /* nobody syncs what is closed */
    (void)pthread_mutex_lock(&l->lock);
    while (l->n > 0 && l->items[0].no < segment_no) {
        segment s = l->items[0];
        l->n--;
        memmove(l->items, l->items + 1, l->n * sizeof *l->items);
        if (l->flusher_runs && bd_grow(&l->dead, &l->cap_dead, l->n_dead + 1, sizeof *l->dead)) {
            l->dead[l->n_dead++] = s;
        } else {
            (void)close(s.fd);
            remove_file(l, s.no);
        }
    }
    (void)pthread_cond_signal(&l->wrote);
    (void)pthread_mutex_unlock(&l->lock);
    (void)pthread_mutex_unlock(&l->sync_lock);
}

uint64_t ps_log_roll(ps_log *l)
{
    (void)pthread_mutex_lock(&l->lock);
    l->wants_new = true;
    uint64_t no = l->next_no;
    (void)pthread_mutex_unlock(&l->lock);
    return no;
}

bd_status ps_log_drop_from(ps_log *l, uint64_t n, bd_err *err)
{
    bd_status rc = BD_OK;
    uint64_t before_n = 0, last_n = 0;
    ps_frame f;
    (void)pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < l->n; i++) {
        segment *s = &l->items[i];
        uint64_t at = 0;
        while (at < s->end_bytes) {
            rc = read_frame(l, s, at, s->end_bytes, &f, &before_n, err);
            if (rc != BD_OK || f.n >= n) {
                break;
            }
            at += PS_LOG_FRAME_BYTES + f.facts_bytes + f.record_bytes;
            last_n = f.n;
        }
        if (at < s->end_bytes) {
            s->end_bytes = at;
            s->last_n = last_n;
            for (size_t k = i + 1; k < l->n; k++) {
                (void)close(l->items[k].fd);
            }
            l->n = i + 1;
            l->has_tail = true;
            l->last_n = last_n;
        }
    }
    rc = l->has_tail ? drop_tail(l, err) : BD_OK;
    (void)pthread_mutex_unlock(&l->lock);
    return rc;
}
