#include "ps_server/ps_pull.h"

#include "base/clock.h"
#include "base/file_hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rand.h"

#include "proto/px_pack.h"
#include "ps_server/ps_parts.h"
#include "ps_server/ps_rocks.h"
#include "rpc/rpc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "braid/v1/parameter_server.pb-c.h"

#define TRY_MS 20000 /* of one piece */

/* One server we pull from. */
typedef struct source {
    const ps_pull *p;
    rpc_channel *channel;
    char *stage;  /* owned: <to>/<i> */
    char *folder; /* owned: where the part will be */
    uint64_t n_bytes;
} source;

static bd_status no_memory(bd_err *err)
{
    (void)bd_err_set(err, BD_E_NOMEM, "no memory");
    return BD_E_NOMEM;
}

/* ---- one piece ---- */
/* *out: the reply, px_unpacked_free. */
static bd_status ask(const source *s, const char *file, uint64_t offset,
                     Braid__V1__ReadPartReply **out, bd_err *err)
{
    Braid__V1__ReadPartRequest m;
    bd_chain request = {0}, reply = {0};
    ProtobufCMessage *msg = NULL;
    char *name_text = bd_strdup(s->p->name), *file_text = bd_strdup(file);
    const rpc_call_options opt = {.deadline_ms = TRY_MS}; /* trying again: our caller's client */
    braid__v1__read_part_request__init(&m);
    m.name = name_text;
    m.file = file_text;
    m.offset = offset;
    bd_status rc =
        name_text == NULL || file_text == NULL ? no_memory(err) : px_pack(&m.base, &request, err);
    if (rc == BD_OK) {
        rc = rpc_call_sync(s->channel, "/braid.v1.ParameterServer/ReadPart", &request, &opt, &reply,
                           err);
    }
    if (rc == BD_OK) {
        rc = px_unpack(&braid__v1__read_part_reply__descriptor, &reply, 0, &msg, err);
    }
    if (rc == BD_OK) {
        *out = (Braid__V1__ReadPartReply *)(void *)msg;
    }
    bd_chain_deinit(&request);
    bd_chain_deinit(&reply);
    bd_free(name_text);
    bd_free(file_text);
    return rc;
}

static bd_status check_piece(const Braid__V1__ReadPartReply *r, const char *file, uint64_t offset,
                             bd_err *err)
{
    if (r->data.len > PS_PULL_PIECE_BYTES || offset > r->file_bytes ||
        r->data.len > r->file_bytes - offset || (r->data.len == 0 && offset < r->file_bytes)) {
        return bd_err_set(err, BD_E_CORRUPT,
                          "%s: a piece of %zu bytes at %" PRIu64 " of a file of %" PRIu64, file,
                          r->data.len, offset, r->file_bytes);
    }
    if (bd_hash64(r->data.data, r->data.len, 0) != r->hash) {
        return bd_err_set(err, BD_E_CORRUPT, "%s: the piece at %" PRIu64 " fails its checksum",
                          file, offset);
    }
    return BD_OK;
}

static bd_status write_all(int fd, const uint8_t *bytes, size_t n, const char *path, bd_err *err)
{
    for (size_t done = 0; done < n;) {
        ssize_t w = write(fd, bytes + done, n - done);
        if (w <= 0) {
            return bd_err_errno(err, BD_E_IO, errno, "write %s", path);
        }
        done += (size_t)w;
    }
    return BD_OK;
}

/* ---- one file ---- */
static bd_status copy_pieces(source *s, const char *file, int fd, const char *path, bd_err *err)
{
    uint64_t at = 0;
    for (;;) {
        Braid__V1__ReadPartReply *r = NULL;
        if (s->p->stop(s->p->user)) {
            return bd_err_set(err, BD_E_CANCELLED, "%s: the server is stopping", file);
        }
        bd_status rc = ask(s, file, at, &r, err);
        if (rc == BD_OK) {
            rc = check_piece(r, file, at, err);
        }
        if (rc == BD_OK) {
            rc = write_all(fd, r->data.data, r->data.len, path, err);
        }
        at += rc == BD_OK ? r->data.len : 0;
        bool is_end = rc == BD_OK && at == r->file_bytes;
        if (r != NULL) {
            px_unpacked_free(&r->base);
        }
        if (rc != BD_OK || is_end) {
            s->n_bytes += at;
            return rc;
        }
    }
}

/* The server's file becomes ours at path. */
static bd_status pull_file(source *s, const char *file, const char *path, bd_err *err)
{
    (void)unlink(path); /* never into an old file: rows may share it */
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return bd_err_errno(err, BD_E_IO, errno, "create %s", path);
    }
    bd_status rc = copy_pieces(s, file, fd, path, err);
    if (rc == BD_OK && fsync(fd) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "fsync %s", path);
    }
    if (close(fd) != 0 && rc == BD_OK) {
        rc = bd_err_errno(err, BD_E_IO, errno, "close %s", path);
    }
    return rc;
}

/* Is it what its line says? */
static bool is_whole(const char *path, const ps_manifest_file *f)
{
    struct stat st;
    bd_err why;
    uint64_t n_bytes = 0, hash = 0;
    return stat(path, &st) == 0 && (uint64_t)st.st_size == f->n_bytes &&
           bd_file_hash64(path, &n_bytes, &hash, &why) == BD_OK && hash == f->hash;
}

static bd_status pull_line(source *s, const ps_manifest_file *f, bd_err *err)
{
    char *path = bd_strfmt("%s/%s", s->folder, f->name);
    bd_status rc = path == NULL ? no_memory(err) : BD_OK;
    if (rc == BD_OK && !is_whole(path, f)) { /* else an earlier try has it */
        rc = pull_file(s, f->name, path, err);
        if (rc == BD_OK && !is_whole(path, f)) {
            rc = bd_err_set(err, BD_E_CORRUPT,
                            "%s is not what its MANIFEST says (%" PRIu64
                            " bytes, checksum %016" PRIx64 ")",
                            f->name, f->n_bytes, f->hash);
        }
    }
    bd_free(path);
    return rc;
}

/* ---- one part ---- */
/* Our own folder has the very part. */
static bool is_ours(const ps_pull *p, const ps_manifest *m)
{
    ps_manifest own = {0};
    bd_err why;
    char *folder = bd_strfmt("%s/checkpoints/%s", p->own, p->name);
    bool ours = folder != NULL && ps_manifest_read(&own, folder, &why) == BD_OK &&
                own.epoch == m->epoch && own.step == m->step && own.servers == m->servers &&
                own.index == m->index;
    ps_manifest_deinit(&own);
    bd_free(folder);
    return ours;
}

static bd_status make_folders(const source *s, bd_err *err)
{
    char *parent = bd_strfmt("%s/checkpoints", s->stage);
    char *rows = bd_strfmt("%s/rows", s->folder);
    bd_status rc = parent == NULL || rows == NULL ? no_memory(err) : ps_dir_make(parent, err);
    if (rc == BD_OK) {
        rc = ps_dir_make(s->folder, err);
    }
    if (rc == BD_OK) {
        rc = ps_dir_make(rows, err);
    }
    bd_free(parent);
    bd_free(rows);
    return rc;
}

/* The MANIFEST takes its place: from here on the part is found. */
static bd_status publish(const source *s, bd_err *err)
{
    char *from = bd_strfmt("%s/MANIFEST", s->stage), *to = bd_strfmt("%s/MANIFEST", s->folder);
    bd_status rc = from == NULL || to == NULL ? no_memory(err) : BD_OK;
    if (rc == BD_OK && rename(from, to) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "rename %s", from);
    }
    bd_free(from);
    bd_free(to);
    return rc;
}

static bd_status pull_part(source *s, const ps_manifest *m, bd_err *err)
{
    const ps_pull *p = s->p;
    const ps_ckpt_part part = {.m = *m}; /* borrowed */
    int64_t start = bd_mono_ns();
    bd_status rc = BD_OK;
    if ((p->epoch != 0 && m->epoch != p->epoch) || is_ours(p, m)) {
        return BD_OK;
    }
    if (strcmp(m->name, p->name) != 0) {
        return bd_err_set(err, BD_E_CORRUPT, "its MANIFEST is of a checkpoint \"%s\"", m->name);
    }
    rc = make_folders(s, err);
    bool wanted = ps_part_overlaps(&part, p->first_slot, p->end_slot);
    for (size_t i = 0; i < m->n_files && rc == BD_OK && wanted; i++) {
        rc = pull_line(s, &m->files[i], err);
    }
    if (rc == BD_OK) {
        rc = publish(s, err);
    }
    if (rc == BD_OK && wanted) {
        BD_LOG(INFO, "a part of a checkpoint came from another server", "name", p->name, "index",
               m->index, "of", m->servers, "bytes", s->n_bytes, "ms",
               (bd_mono_ns() - start) / BD_NS_PER_MS);
    }
    return rc;
}

static bd_status pull_from(source *s, bd_err *err)
{
    ps_manifest m = {0};
    char *path = bd_strfmt("%s/MANIFEST", s->stage);
    bd_status rc = path == NULL ? no_memory(err) : pull_file(s, "MANIFEST", path, err);
    if (rc == BD_E_NOT_FOUND) { /* it has no part */
        bd_free(path);
        return BD_OK;
    }
    if (rc == BD_OK) {
        rc = ps_manifest_read(&m, s->stage, err);
    }
    if (rc == BD_OK) {
        rc = pull_part(s, &m, err);
    }
    ps_manifest_deinit(&m);
    bd_free(path);
    return rc;
}

/* ---- all ---- */
static bd_status pull_server(const ps_pull *p, const char *address, size_t i, bd_err *err)
{
    source s = {.p = p};
    const rpc_channel_options co = {.name = address, .allow_insecure = p->allow_insecure};
    s.stage = bd_strfmt("%s/%zu", p->to, i);
    s.folder = bd_strfmt("%s/%zu/checkpoints/%s", p->to, i, p->name);
    bd_status rc = s.stage == NULL || s.folder == NULL ? no_memory(err) : ps_dir_make(p->to, err);
    if (rc == BD_OK) {
        rc = ps_dir_make(s.stage, err);
    }
    if (rc == BD_OK) {
        rc = rpc_channel_new(p->env, address, &co, &s.channel, err);
    }
    if (rc == BD_OK) {
        rc = pull_from(&s, err);
    }
    if (s.channel != NULL) {
        rpc_channel_free(s.channel);
    }
    bd_free(s.stage);
    bd_free(s.folder);
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "pull from " PS_PULL_SCHEME "%s", address);
}

bd_status ps_pull_parts(const ps_pull *p, const char *from, bd_err *err)
{
    bd_status rc = BD_OK;
    size_t n_servers = 0;
    for (const char *at = from; *at != '\0' && rc == BD_OK;) {
        size_t n = strcspn(at, ",");
        if (strncmp(at, PS_PULL_SCHEME, strlen(PS_PULL_SCHEME)) == 0) {
            char *address =
                bd_strfmt("%.*s", (int)(n - strlen(PS_PULL_SCHEME)), at + strlen(PS_PULL_SCHEME));
            rc = address == NULL ? no_memory(err)
                 : p->env == NULL
                     ? bd_err_set(err, BD_E_UNSUPPORTED, "%.*s: cannot be called here", (int)n, at)
                     : pull_server(p, address, n_servers++, err);
            bd_free(address);
        }
        at += at[n] == ',' ? n + 1 : n;
    }
    return rc;
}
