#include "base/reader.h"

#include "base/fault.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { CHUNK_BYTES = 64 << 10 };

typedef enum format { FORMAT_PLAIN, FORMAT_GZIP, FORMAT_ZSTD } format;

struct bd_reader {
    char *path; /* owned */
    int fd;     /* owned */
    format format;
    bool failed;

    uint8_t *in; /* owned; bytes of the file not decoded yet: [in_at, in_end) */
    size_t in_at, in_end;
    bool in_eof;

    z_stream z;       /* FORMAT_GZIP */
    bool z_ready;     /* z needs inflateEnd */
    ZSTD_DStream *zd; /* owned; FORMAT_ZSTD */
    bool mid_frame;   /* inside a gzip member or zstd frame: the end of the file here is a cut */

    char *out; /* owned; text: [out_at, out_end), one byte is always left behind it */
    size_t out_at, out_end, out_cap;
    bool out_eof;
    uint64_t line_no;
};

/* The line being read is the one after the last that was returned. */
static bd_status fail_at(bd_reader *r, bd_status code, const char *what, bd_err *err)
{
    r->failed = true;
    return bd_err_set(err, code, "%s:%" PRIu64 ": %s", r->path, r->line_no + 1, what);
}

static bd_status read_some(bd_reader *r, void *dst, size_t room, size_t *n_read, bd_err *err)
{
    ssize_t n;
    do {
        n = bd_fault_hit("base.reader.read") ? (errno = EIO, -1) : read(r->fd, dst, room);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        r->failed = true;
        return bd_err_errno(err, BD_E_IO, errno, "%s:%" PRIu64 ": read", r->path, r->line_no + 1);
    }
    *n_read = (size_t)n;
    return BD_OK;
}

static bd_status refill_in(bd_reader *r, bd_err *err)
{
    size_t n = 0;
    bd_status rc = read_some(r, r->in, CHUNK_BYTES, &n, err);
    if (rc == BD_OK) {
        r->in_at = 0;
        r->in_end = n;
        r->in_eof = n == 0;
    }
    return rc;
}

/* Decodes into dst[room] from what is in `in`; *n_out may be 0 when more input is needed. */
static bd_status inflate_some(bd_reader *r, char *dst, size_t room, size_t *n_out, bd_err *err)
{
    if (!r->mid_frame && inflateReset(&r->z) != Z_OK) {
        return fail_at(r, BD_E_INTERNAL, "gzip state", err);
    }
    r->mid_frame = true;
    r->z.next_in = r->in + r->in_at;
    r->z.avail_in = (uInt)(r->in_end - r->in_at);
    r->z.next_out = (Bytef *)dst;
    r->z.avail_out = (uInt)room;
    int rc = inflate(&r->z, Z_NO_FLUSH);
    r->in_at = r->in_end - r->z.avail_in;
    *n_out = room - r->z.avail_out;
    if (rc == Z_STREAM_END) {
        r->mid_frame = false; /* another member may follow */
        return BD_OK;
    }
    if (rc == Z_OK || rc == Z_BUF_ERROR) {
        return BD_OK;
    }
    if (rc == Z_MEM_ERROR) {
        return fail_at(r, BD_E_NOMEM, "gzip", err);
    }
    return fail_at(r, BD_E_CORRUPT, "damaged gzip data", err);
}

// NOLINTNEXTLINE(readability-non-const-parameter): zstd writes to it through the struct
static bd_status unzstd_some(bd_reader *r, char *dst, size_t room, size_t *n_out, bd_err *err)
{
    ZSTD_inBuffer in = {.src = r->in, .size = r->in_end, .pos = r->in_at};
    ZSTD_outBuffer out = {.dst = dst, .size = room, .pos = 0};
    size_t rc = ZSTD_decompressStream(r->zd, &out, &in);
    if (ZSTD_isError(rc) != 0) {
        return fail_at(r, BD_E_CORRUPT, "damaged zstd data", err);
    }
    r->in_at = in.pos;
    *n_out = out.pos;
    r->mid_frame = rc != 0; /* 0: the frame is complete; the next call starts another */
    return BD_OK;
}

static bd_status decode_some(bd_reader *r, char *dst, size_t room, size_t *n_out, bd_err *err)
{
    return r->format == FORMAT_GZIP ? inflate_some(r, dst, room, n_out, err)
                                    : unzstd_some(r, dst, room, n_out, err);
}

/* At least one more byte of text into dst, or the end of the file. */
static bd_status produce(bd_reader *r, char *dst, size_t room, bd_err *err)
{
    size_t n = 0;
    while (n == 0 && !r->out_eof) {
        bd_status rc = BD_OK;
        /* With no input left a decoder may still hold text that did not fit before. */
        if (r->in_at < r->in_end || r->mid_frame) {
            rc = decode_some(r, dst, room, &n, err);
        }
        if (rc == BD_OK && n == 0 && r->in_at == r->in_end) {
            if (r->in_eof && r->mid_frame) {
                return fail_at(r, BD_E_CORRUPT, "the compressed file is cut short", err);
            }
            r->out_eof = r->in_eof;
            rc = r->in_eof ? BD_OK : refill_in(r, err);
        }
        if (rc != BD_OK) {
            return rc;
        }
    }
    r->out_end += n;
    return BD_OK;
}

static bd_status produce_plain(bd_reader *r, char *dst, size_t room, bd_err *err)
{
    size_t n = 0;
    if (r->in_at < r->in_end) { /* what was read to find the format */
        n = r->in_end - r->in_at < room ? r->in_end - r->in_at : room;
        memcpy(dst, r->in + r->in_at, n);
        r->in_at += n;
    } else {
        bd_status rc = read_some(r, dst, room, &n, err);
        if (rc != BD_OK) {
            return rc;
        }
        r->out_eof = n == 0;
    }
    r->out_end += n;
    return BD_OK;
}

/* More text behind out_end: the started line moves to the front, and the room grows with it. */
static bd_status more_text(bd_reader *r, bd_err *err)
{
    size_t n_kept = r->out_end - r->out_at;
    if (n_kept > BD_READER_MAX_LINE_BYTES) {
        return fail_at(r, BD_E_DATA, "line is longer than 16 MiB", err);
    }
    if (n_kept > 0) {
        memmove(r->out, r->out + r->out_at, n_kept);
    }
    r->out_at = 0;
    r->out_end = n_kept;
    void *out = r->out;
    if (!bd_grow(&out, &r->out_cap, n_kept + CHUNK_BYTES + 1, 1)) {
        return fail_at(r, BD_E_NOMEM, "no memory for the line", err);
    }
    r->out = out;
    char *dst = r->out + r->out_end;
    size_t room = r->out_cap - r->out_end - 1;
    return r->format == FORMAT_PLAIN ? produce_plain(r, dst, room, err)
                                     : produce(r, dst, room, err);
}

bd_status bd_reader_line(bd_reader *r, char **line, size_t *n_bytes, bd_err *err)
{
    if (r->failed) {
        return bd_err_set(err, BD_E_STATE, "%s: read after an error", r->path);
    }
    size_t n_scanned = 0; /* of the line: no LF in there */
    char *lf = NULL;
    for (;;) {
        char *start = r->out + r->out_at;
        size_t n = r->out_end - r->out_at;
        lf = n == n_scanned ? NULL : memchr(start + n_scanned, '\n', n - n_scanned);
        if (lf != NULL || r->out_eof) {
            break;
        }
        n_scanned = n;
        bd_status rc = more_text(r, err);
        if (rc != BD_OK) {
            return rc;
        }
    }
    char *start = r->out + r->out_at;
    char *end = lf != NULL ? lf : r->out + r->out_end;
    if (lf == NULL && start == end) {
        *line = NULL;
        *n_bytes = 0;
        return BD_OK;
    }
    r->out_at = (size_t)(end - r->out) + (lf != NULL ? 1 : 0);
    if (end > start && end[-1] == '\r') {
        end--;
    }
    if (end - start > BD_READER_MAX_LINE_BYTES) {
        return fail_at(r, BD_E_DATA, "line is longer than 16 MiB", err);
    }
    *end = '\0';
    r->line_no++;
    *line = start;
    *n_bytes = (size_t)(end - start);
    return BD_OK;
}

static voidpf z_alloc(voidpf user, uInt n, uInt size)
{
    (void)user;
    return bd_calloc(n, size);
}

static void z_free(voidpf user, voidpf p)
{
    (void)user;
    bd_free(p);
}

static bd_status find_format(bd_reader *r, bd_err *err)
{
    /* Every pass grows the text buffer anew: a decoder that meets damage drops what it had made in
     * that call, and how much that is depends on the room it was given. */
    bd_free(r->out);
    r->out = NULL;
    r->out_cap = 0;
    static const uint8_t gzip[] = {0x1f, 0x8b}, zstd[] = {0x28, 0xb5, 0x2f, 0xfd};
    if (r->in_end >= sizeof gzip && memcmp(r->in, gzip, sizeof gzip) == 0) {
        r->format = FORMAT_GZIP;
        r->z.zalloc = z_alloc;
        r->z.zfree = z_free;
        if (!r->z_ready && inflateInit2(&r->z, 15 + 16) != Z_OK) {
            return bd_err_set(err, BD_E_NOMEM, "open %s", r->path);
        }
        r->z_ready = true;
    } else if (r->in_end >= sizeof zstd && memcmp(r->in, zstd, sizeof zstd) == 0) {
        r->format = FORMAT_ZSTD;
        /* A new one also after a rewind: the window a damaged stream leaves behind changes how far
         * the next pass gets before it meets the damage. */
        (void)ZSTD_freeDStream(r->zd);
        r->zd = ZSTD_createDStream();
        if (r->zd == NULL || ZSTD_isError(ZSTD_initDStream(r->zd)) != 0) {
            return bd_err_set(err, BD_E_NOMEM, "open %s", r->path);
        }
    } else {
        r->format = FORMAT_PLAIN;
    }
    return BD_OK;
}

/* The first chunk of the file is in `in`: finds the format and drops a byte order mark. */
static bd_status start(bd_reader *r, bd_err *err)
{
    static const char mark[] = "\xef\xbb\xbf";
    bd_status rc = refill_in(r, err);
    while (rc == BD_OK && !r->in_eof && r->in_end < 4) { /* a pipe may give single bytes */
        size_t n = 0;
        rc = read_some(r, r->in + r->in_end, CHUNK_BYTES - r->in_end, &n, err);
        r->in_end += n;
        if (n == 0) {
            break;
        }
    }
    if (rc == BD_OK) {
        rc = find_format(r, err);
    }
    while (rc == BD_OK && !r->out_eof && r->out_end < 3) {
        rc = more_text(r, err);
    }
    if (rc == BD_OK && r->out_end >= 3 && memcmp(r->out, mark, 3) == 0) {
        r->out_at = 3;
    }
    return rc;
}

bd_status bd_reader_open(const char *path, bd_reader **out, bd_err *err)
{
    bd_status rc = BD_E_NOMEM;
    bd_reader *r = bd_calloc(1, sizeof *r);
    if (r == NULL) {
        return bd_err_set(err, rc, "open %s", path);
    }
    r->fd = -1;
    r->path = bd_strdup(path);
    r->in = bd_alloc(CHUNK_BYTES);
    if (r->path == NULL || r->in == NULL) {
        rc = bd_err_set(err, rc, "open %s", path);
        goto out;
    }
    r->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0) {
        rc = bd_err_errno(err, errno == ENOENT ? BD_E_NOT_FOUND : BD_E_IO, errno, "open %s", path);
        goto out;
    }
    rc = start(r, err);
    if (rc == BD_OK) {
        *out = r;
        r = NULL;
    }
out:
    bd_reader_close(r);
    return rc;
}

void bd_reader_close(bd_reader *r)
{
    if (r == NULL) {
        return;
    }
    if (r->fd >= 0) {
        (void)close(r->fd);
    }
    if (r->z_ready) {
        (void)inflateEnd(&r->z);
    }
    (void)ZSTD_freeDStream(r->zd);
    bd_free(r->path);
    bd_free(r->in);
    bd_free(r->out);
    bd_free(r);
}

uint64_t bd_reader_line_no(const bd_reader *r)
{
    return r->line_no;
}

const char *bd_reader_path(const bd_reader *r)
{
    return r->path;
}

bd_status bd_reader_rewind(bd_reader *r, bd_err *err)
{
    if (lseek(r->fd, 0, SEEK_SET) != 0) {
        r->failed = true;
        return bd_err_errno(err, BD_E_IO, errno, "%s: rewind", r->path);
    }
    r->in_at = r->in_end = r->out_at = r->out_end = 0;
    r->in_eof = r->out_eof = r->mid_frame = r->failed = false;
    r->line_no = 0;
    return start(r, err);
}
