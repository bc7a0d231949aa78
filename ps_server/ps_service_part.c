/* ReadPart: a piece of a checkpoint's file, for a server that restores it (ps_pull.h). The keeper
 * is not asked: it may itself be waiting for another server's pieces. */
#include "base/mem.h"
#include "base/rand.h"

#include "ps_server/ps_pull.h"
#include "ps_server/ps_service_int.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "braid/v1/parameter_server.pb-c.h"

/* MANIFEST, or a file right below rows/. */
static bool file_ok(const char *file)
{
    const char *base = strncmp(file, "rows/", 5) == 0 ? file + 5 : "";
    return strcmp(file, "MANIFEST") == 0 || (ps_name_ok(base) && strchr(base, '/') == NULL);
}

static bd_status read_piece(int fd, const char *path, uint64_t offset, bd_buf *piece,
                            size_t *n_bytes, uint64_t *file_bytes, bd_err *err)
{
    struct stat st;
    size_t done = 0;
    if (fstat(fd, &st) != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "stat %s", path);
    }
    *file_bytes = (uint64_t)st.st_size;
    if (offset > *file_bytes) {
        return bd_err_set(err, BD_E_INVALID, "%s: offset %llu of %llu bytes", path,
                          (unsigned long long)offset, (unsigned long long)*file_bytes);
    }
    while (done < piece->n_bytes) {
        ssize_t n = pread(fd, piece->bytes + done, piece->n_bytes - done, (off_t)(offset + done));
        if (n < 0) {
            return bd_err_errno(err, BD_E_IO, errno, "read %s", path);
        }
        if (n == 0) {
            break;
        }
        done += (size_t)n;
    }
    *n_bytes = done;
    return BD_OK;
}

static bd_status read_part(const char *path, uint64_t offset, bd_buf *piece,
                           Braid__V1__ReadPartReply *r, bd_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return bd_err_errno(err, errno == ENOENT ? BD_E_NOT_FOUND : BD_E_IO, errno, "open %s",
                            path);
    }
    size_t n = 0;
    bd_status rc = read_piece(fd, path, offset, piece, &n, &r->file_bytes, err);
    (void)close(fd);
    r->data.data = piece->bytes;
    r->data.len = n;
    r->hash = bd_hash64(piece->bytes, n, 0);
    return rc;
}

void ps_on_read_part(void *service, rpc_req *req)
{
    ps_call *c = ps_call_new(service, req);
    Braid__V1__ReadPartRequest *m =
        c == NULL ? NULL : ps_call_unpack(c, &braid__v1__read_part_request__descriptor);
    if (m == NULL) {
        return;
    }
    Braid__V1__ReadPartReply r;
    bd_err err = BD_ERR_INIT;
    bd_status rc = BD_OK;
    char *path = NULL;
    bd_buf *piece = NULL;
    braid__v1__read_part_reply__init(&r);
    if (!ps_name_ok(m->name) || !file_ok(m->file)) {
        rc = bd_err_set(&err, BD_E_INVALID, "\"%.150s\" of checkpoint \"%.150s\": no such file",
                        m->file, m->name);
    } else {
        path = bd_strfmt("%s/checkpoints/%s/%s", ps_shard_dir(c->service->shard), m->name, m->file);
        piece = bd_buf_new(PS_PULL_PIECE_BYTES);
        rc = path == NULL || piece == NULL ? bd_err_set(&err, BD_E_NOMEM, "read part: no memory")
                                           : BD_OK;
    }
    if (rc == BD_OK) {
        rpc_blocking_begin(); /* the disk */
        rc = read_part(path, m->offset, piece, &r, &err);
        rpc_blocking_end();
    }
    px_unpacked_free(&m->base);
    if (rc == BD_OK) {
        ps_call_reply_message(c, &r.base);
    } else {
        ps_call_fail(c, &err);
    }
    bd_buf_unref(piece);
    bd_free(path);
}
