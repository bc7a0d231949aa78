/* Checkpoints of one server: <data>/checkpoints/<name>/rows (hard links) and MANIFEST
 * (ps_manifest.h), written last. Restoring them: ps_restore.c. */
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"

#include "ps_server/ps_manifest.h"
#include "ps_server/ps_pull.h"
#include "ps_server/ps_rocks.h"
#include "ps_server/ps_shard_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bd_status no_memory(bd_err *err)
{
    return bd_err_set(err, BD_E_NOMEM, "checkpoint: no memory");
}

static char *folder_of(const ps_shard *s, const char *name)
{
    return bd_strfmt("%s/checkpoints/%s", s->dir, name);
}

/* ---- making ---- */
bd_status ps_ckpt_same(ps_shard *s, const char *name, uint64_t epoch, uint64_t step, ps_op *op,
                       bool *same, bd_err *err)
{
    ps_manifest m;
    bd_err none;
    char *folder = folder_of(s, name);
    bd_status rc = folder == NULL ? BD_E_NOMEM : ps_manifest_read(&m, folder, &none);
    *same = rc == BD_OK && m.epoch == epoch && m.step == step && epoch != 0;
    if (*same) {
        op->n_rows = m.n_rows;
        (void)snprintf(op->path, sizeof op->path, "%s", folder);
    }
    if (rc == BD_OK) {
        ps_manifest_deinit(&m);
    }
    bd_free(folder);
    return rc == BD_E_NOMEM ? no_memory(err) : BD_OK;
}

/* Moves the finished folder to its name in one step, also over an older one of that name. */
static bd_status publish(const char *parent, const char *tmp, const char *final, bd_err *err)
{
    bool replace = access(final, F_OK) == 0;
    int e =
        replace ? renameat2(AT_FDCWD, tmp, AT_FDCWD, final, RENAME_EXCHANGE) : rename(tmp, final);
    if (e != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "rename %s", tmp);
    }
    bd_status rc = ps_dir_sync(parent, err);
    if (rc == BD_OK && replace) {
        rc = ps_dir_remove(tmp, err);
    }
    return rc;
}

/* What the manifest says besides the files. */
static bd_status describe_cut(ps_shard *s, const char *name, const ps_cut *cut, ps_manifest *m,
                              bd_err *err)
{
    bd_status rc = BD_OK;
    (void)snprintf(m->name, sizeof m->name, "%s", name);
    m->index = s->index;
    m->servers = s->n_servers;
    m->epoch = cut->job.epoch;
    m->world = cut->job.world;
    m->step = cut->job.last_step;
    m->next_n = cut->applied_n + 1;
    m->n_rows = cut->n_rows;
    const ps_tables *ts = ps_shard_lock_tables(s);
    for (size_t i = 0; i < ts->n && rc == BD_OK; i++) {
        const ps_spec *spec = ps_table_spec(ts->items[i]);
        rc = spec->hidden == PS_NOT_HIDDEN ? ps_manifest_add_spec(m, spec, err) : BD_OK;
    }
    ps_shard_unlock_tables(s);
    return rc;
}

/* The last checkpoint this server made knows the hashes of the files that are in both. It may be
 * gone by now: then all are read. */
static bd_status list_files(ps_shard *s, const char *tmp, ps_manifest *m, uint64_t *fresh_bytes,
                            bd_err *err)
{
    ps_manifest before = {0};
    bd_err none;
    char *folder = s->last_ckpt[0] == '\0' ? NULL : folder_of(s, s->last_ckpt);
    bool have = folder != NULL && ps_manifest_read(&before, folder, &none) == BD_OK;
    bd_status rc = ps_manifest_scan(m, tmp, have ? &before : NULL, folder, ps_store_hash_file,
                                    s->store, fresh_bytes, err);
    ps_manifest_deinit(&before);
    bd_free(folder);
    return rc;
}

static bd_status fault(const char *point, const char *name, bd_err *err)
{
    return bd_fault_hit(point) ? bd_err_set(err, BD_E_IO, "checkpoint %s: fault point", name)
                               : BD_OK;
}

static bd_status fill(ps_shard *s, const char *tmp, const char *name, const ps_cut *cut, ps_op *op,
                      bd_err *err)
{
    ps_manifest m = {0};
    char *rows = bd_strfmt("%s/rows", tmp);
    bd_status rc = rows == NULL ? no_memory(err) : ps_dir_remove(tmp, err);
    if (rc == BD_OK) {
        rc = ps_dir_make(tmp, err);
    }
    if (rc == BD_OK) {
        rc = ps_store_freeze(s->store, rows, err);
    }
    if (rc == BD_OK) {
        rc = fault("ps.checkpoint.rows", name, err);
    }
    if (rc == BD_OK) {
        rc = describe_cut(s, name, cut, &m, err);
    }
    if (rc == BD_OK) {
        rc = list_files(s, tmp, &m, &op->n_fresh_bytes, err);
    }
    if (rc == BD_OK) {
        rc = ps_manifest_write(&m, tmp, err);
    }
    if (rc == BD_OK) {
        op->n_bytes = ps_manifest_bytes(&m);
        rc = fault("ps.checkpoint.publish", name, err);
    }
    ps_manifest_deinit(&m);
    bd_free(rows);
    return rc;
}

static void drop_unfinished(const char *tmp)
{
    bd_err err;
    if (ps_dir_remove(tmp, &err) != BD_OK) {
        BD_LOG(WARN, "an unfinished checkpoint stays until the next start", "error",
               bd_err_text(&err));
    }
}

bd_status ps_ckpt_make(ps_shard *s, const char *name, const ps_cut *cut, ps_op *op, bd_err *err)
{
    bd_status rc = BD_OK;
    char *parent = bd_strfmt("%s/checkpoints", s->dir);
    char *tmp = bd_strfmt("%s/checkpoints/.%s.tmp", s->dir, name);
    char *final = folder_of(s, name);
    if (parent == NULL || tmp == NULL || final == NULL) {
        rc = no_memory(err);
        goto out;
    }
    rc = ps_dir_make(parent, err);
    if (rc == BD_OK) {
        rc = fill(s, tmp, name, cut, op, err);
    }
    if (rc == BD_OK) {
        rc = publish(parent, tmp, final, err);
    }
    if (rc == BD_OK) {
        (void)snprintf(op->path, sizeof op->path, "%s", final);
        (void)snprintf(s->last_ckpt, sizeof s->last_ckpt, "%s", name);
    } else {
        drop_unfinished(tmp);
    }
out:
    bd_free(parent);
    bd_free(tmp);
    bd_free(final);
    return rc;
}

bd_status ps_ckpt_delete(ps_shard *s, const char *name, bd_err *err)
{
    /* Renamed first: a half-removed folder must not look like a checkpoint. */
    char *from = folder_of(s, name);
    char *to = bd_strfmt("%s/checkpoints/.%s.tmp", s->dir, name);
    bd_status rc = from == NULL || to == NULL ? no_memory(err) : ps_dir_remove(to, err);
    if (rc == BD_OK && rename(from, to) != 0) {
        rc = errno == ENOENT ? BD_OK /* a repeated message */
                             : bd_err_errno(err, BD_E_IO, errno, "rename %s", from);
    }
    if (rc == BD_OK) {
        rc = ps_dir_remove(to, err);
    }
    bd_free(from);
    bd_free(to);
    return rc;
}

/* ---- cleaning ---- */
static bd_status remove_unused(void *user, const char *dir, const char *name, bd_err *err)
{
    const ps_shard *s = user;
    char current[32];
    bd_err why;
    (void)err;
    (void)snprintf(current, sizeof current, "rows-%" PRIu64, s->rows_no);
    bool old_rows = strncmp(name, "rows-", 5) == 0 && strcmp(name, current) != 0;
    bool tmp = name[0] == '.' && strstr(name, ".tmp") != NULL;
    bool pulled = strcmp(name, PS_PULL_FOLDER) == 0; /* what a restore was made from */
    char *path = old_rows || tmp || pulled ? bd_strfmt("%s/%s", dir, name) : NULL;
    if (tmp) {
        BD_LOG(WARN, "removing a checkpoint that was not finished; older ones are whole", "folder",
               path == NULL ? name : path);
    }
    if (path != NULL && ps_dir_remove(path, &why) != BD_OK) {
        BD_LOG(WARN, "an unused folder cannot be removed: remove it by hand", "error",
               bd_err_text(&why));
    }
    bd_free(path);
    return BD_OK;
}

void ps_ckpt_clean(ps_shard *s)
{
    bd_err ignored; /* a folder that is not there has nothing to clean */
    char *ckpts = bd_strfmt("%s/checkpoints", s->dir);
    (void)!ps_dir_each(s->dir, remove_unused, s, &ignored);
    if (ckpts != NULL) {
        (void)!ps_dir_each(ckpts, remove_unused, s, &ignored);
    }
    bd_free(ckpts);
}
