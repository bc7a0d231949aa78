#include "ps_server/ps_catalog.h"

#include "base/file_hash.h"
#include "base/json.h"
#include "base/mem.h"

#include "ps_server/ps_bytes.h"
#include "ps_server/ps_frozen.h"
#include "ps_server/ps_rocks.h"
#include "rpc/rpc_store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define DENSE_FORMAT "braid-checkpoint-1" /* worker/wk_ckpt.h */

static bd_status no_memory(bd_err *err)
{
    (void)bd_err_set(err, BD_E_NOMEM, "checkpoints: no memory");
    return BD_E_NOMEM;
}

static void part_deinit(ps_catalog_part *p)
{
    bd_free(p->folder);
    bd_free(p->data_dir);
    ps_manifest_deinit(&p->m);
}

static void checkpoint_deinit(ps_checkpoint *k)
{
    for (size_t i = 0; i < k->n_parts; i++) {
        part_deinit(&k->parts[i]);
    }
    bd_free(k->parts);
    bd_free(k->dense.folder);
}

void ps_catalog_deinit(ps_catalog *c)
{
    for (size_t i = 0; i < c->n; i++) {
        checkpoint_deinit(&c->items[i]);
    }
    bd_free(c->items);
    *c = (ps_catalog){0};
}

static bool exists(const char *dir, const char *name)
{
    char *path = bd_strfmt("%s/%s", dir, name);
    bool is = path != NULL && access(path, F_OK) == 0;
    bd_free(path);
    return is;
}

/* A server holds its folder's lock as long as it runs. */
static bool is_busy(const char *data_dir)
{
    char *path = bd_strfmt("%s/LOCK", data_dir);
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    bool busy = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0) {
        (void)close(fd);
    }
    bd_free(path);
    return busy;
}

/* ---- collecting ---- */
/* The checkpoint these facts belong to, made when there is none. NULL: no memory. */
static ps_checkpoint *entry_of(ps_catalog *c, const char *name, uint64_t epoch, uint64_t step,
                               uint32_t servers)
{
    for (size_t i = 0; i < c->n; i++) {
        ps_checkpoint *k = &c->items[i];
        if (k->epoch == epoch && k->step == step && k->servers == servers &&
            strcmp(k->name, name) == 0) {
            return k;
        }
    }
    if (!bd_grow(&c->items, &c->cap, c->n + 1, sizeof *c->items)) {
        return NULL;
    }
    ps_checkpoint *k = &c->items[c->n++];
    *k = (ps_checkpoint){.epoch = epoch, .step = step, .servers = servers};
    (void)snprintf(k->name, sizeof k->name, "%s", name);
    return k;
}

static bool has_part(const ps_checkpoint *k, uint32_t index)
{
    for (size_t i = 0; i < k->n_parts; i++) {
        if (!k->parts[i].unfinished && k->parts[i].m.servers != 0 && k->parts[i].m.index == index) {
            return true;
        }
    }
    return false;
}

/* Moves the part in. */
static bd_status add_part(ps_catalog *c, const char *name, ps_catalog_part *p, bd_err *err)
{
    ps_checkpoint *k = entry_of(c, name, p->m.epoch, p->m.step, p->m.servers);
    if (k == NULL || !bd_grow(&k->parts, &k->cap_parts, k->n_parts + 1, sizeof *k->parts)) {
        return no_memory(err);
    }
    if (p->m.servers != 0 && has_part(k, p->m.index)) {
        part_deinit(p); /* the same one by another path */
        return BD_OK;
    }
    k->n_rows += p->m.n_rows;
    k->n_bytes += ps_manifest_bytes(&p->m);
    k->parts[k->n_parts++] = *p;
    return BD_OK;
}

typedef struct looker {
    ps_catalog *c;
    const char *data_dir;
    bool busy;
} looker;

static bd_status look_at(void *user, const char *dir, const char *name, bd_err *err)
{
    looker *l = user;
    char shown[PS_MAX_NAME_BYTES + 1];
    size_t n = strlen(name);
    bool tmp = name[0] == '.' && n > 5 && strcmp(name + n - 4, ".tmp") == 0;
    ps_catalog_part p = {.folder = bd_strfmt("%s/%s", dir, name),
                         .data_dir = bd_strdup(l->data_dir),
                         .unfinished = tmp,
                         .busy = l->busy};
    if (p.folder == NULL || p.data_dir == NULL) {
        part_deinit(&p);
        return no_memory(err);
    }
    if (!tmp && (name[0] == '.' || (!exists(p.folder, "rows") && !exists(p.folder, "MANIFEST")))) {
        part_deinit(&p);
        return BD_OK; /* a trainer's part, or nothing of ours */
    }
    (void)snprintf(shown, sizeof shown, "%.*s", (int)(tmp ? n - 5 : n), tmp ? name + 1 : name);
    bd_status rc = tmp ? BD_OK : ps_manifest_read(&p.m, p.folder, &p.why);
    if (rc == BD_OK && !tmp) {
        rc = ps_manifest_check_sizes(&p.m, p.folder, &p.why);
    } else if (rc == BD_E_NOT_FOUND) {
        (void)bd_err_set(&p.why, BD_E_CORRUPT, "%s has no MANIFEST", p.folder);
    }
    p.damaged = rc != BD_OK;
    rc = add_part(l->c, shown, &p, err);
    if (rc != BD_OK) {
        part_deinit(&p);
    }
    return rc;
}

/* A data folder's checkpoints; none is fine. */
static bd_status look_in(ps_catalog *c, const char *data_dir, bd_err *err)
{
    char *path = bd_strfmt("%s/checkpoints", data_dir);
    looker l = {.c = c, .data_dir = data_dir, .busy = is_busy(data_dir)};
    bd_status rc = path == NULL              ? no_memory(err)
                   : access(path, F_OK) != 0 ? BD_OK
                                             : ps_dir_each(path, look_at, &l, err);
    bd_free(path);
    return rc;
}

static bd_status look_below(void *user, const char *dir, const char *name, bd_err *err)
{
    struct stat st;
    char *path =
        name[0] == '.' || strcmp(name, "checkpoints") == 0 ? NULL : bd_strfmt("%s/%s", dir, name);
    bd_status rc = path != NULL && stat(path, &st) == 0 && S_ISDIR(st.st_mode)
                       ? look_in(user, path, err)
                       : BD_OK;
    bd_free(path);
    return rc;
}

/* ---- the trainer's part ---- */
static void read_dense(ps_catalog_dense *d)
{
    bd_json_doc *doc = NULL;
    const char *format = "";
    int64_t step = 0, epoch = 0, bytes = -1;
    struct stat st;
    char *json = bd_strfmt("%s/manifest.json", d->folder);
    char *bin = bd_strfmt("%s/dense.bin", d->folder);
    bd_status rc =
        json == NULL || bin == NULL ? no_memory(&d->why) : bd_json_load(json, &doc, &d->why);
    if (rc == BD_OK &&
        !(bd_json_get_str(doc, "format", &format) && strcmp(format, DENSE_FORMAT) == 0 &&
          bd_json_get_i64(doc, "step", &step) && bd_json_get_i64(doc, "dense_bytes", &bytes) &&
          bytes >= 0 && bd_json_get_hex64(doc, "dense_hash", &d->hash))) {
        rc = bd_err_set(&d->why, BD_E_CORRUPT, "%s: not a whole %s manifest", json, DENSE_FORMAT);
    }
    if (rc == BD_OK) {
        (void)bd_json_get_i64(doc, "job_epoch", &epoch);
        (void)bd_json_get_i64(doc, "committed", &step); /* what the servers call it */
        d->step = (uint64_t)step;
        d->job_epoch = (uint64_t)epoch;
        d->n_bytes = (uint64_t)bytes;
        if (stat(bin, &st) != 0) {
            rc = bd_err_errno(&d->why, BD_E_CORRUPT, errno, "open %s", bin);
        } else if ((uint64_t)st.st_size != d->n_bytes) {
            rc = bd_err_set(&d->why, BD_E_CORRUPT, "%s has %lld bytes, its manifest says %" PRIu64,
                            bin, (long long)st.st_size, d->n_bytes);
        }
    }
    d->damaged = rc != BD_OK;
    bd_json_free(doc);
    bd_free(json);
    bd_free(bin);
}

/* The trainer writes the last word. */
static void mark_unfinished(ps_catalog *c)
{
    bool some = false;
    for (size_t i = 0; i < c->n; i++) {
        some = some || c->items[i].dense.folder != NULL;
    }
    for (size_t i = 0; i < c->n && some; i++) {
        c->items[i].lacks_trainer = c->items[i].dense.folder == NULL && c->items[i].servers != 0;
    }
}

/* Goes to the checkpoint of its name and job; a run without servers has no parts. */
static bd_status look_at_dense(void *user, const char *dir, const char *name, bd_err *err)
{
    ps_catalog *c = user;
    ps_catalog_dense d = {.folder = bd_strfmt("%s/%s", dir, name)};
    if (d.folder == NULL) {
        return no_memory(err);
    }
    if (name[0] == '.' || (!exists(d.folder, "manifest.json") && !exists(d.folder, "dense.bin"))) {
        bd_free(d.folder);
        return BD_OK;
    }
    read_dense(&d);
    ps_checkpoint *k = NULL;
    for (size_t i = 0; i < c->n; i++) {
        ps_checkpoint *x = &c->items[i];
        bool fits = strcmp(x->name, name) == 0 && x->servers != 0 && x->dense.folder == NULL &&
                    (d.job_epoch == 0 || d.damaged || x->epoch == d.job_epoch);
        if (fits && (k == NULL || x->epoch > k->epoch)) {
            k = x;
        }
    }
    k = k == NULL ? entry_of(c, name, d.job_epoch, d.step, 0) : k;
    if (k == NULL) {
        bd_free(d.folder);
        return no_memory(err);
    }
    k->dense = d;
    return BD_OK;
}

/* ---- order and sizes ---- */
static int by_age(const void *a, const void *b)
{
    const ps_checkpoint *x = a, *y = b;
    if (x->epoch != y->epoch) {
        return x->epoch < y->epoch ? -1 : 1;
    }
    if (x->step != y->step) {
        return x->step < y->step ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

typedef struct inodes {
    struct {
        dev_t dev;
        ino_t ino;
    } * items; /* owned */
    size_t n, cap;
} inodes;

/* True when it was not there before. */
static bool add_inode(inodes *set, const struct stat *st)
{
    for (size_t i = 0; i < set->n; i++) {
        if (set->items[i].ino == st->st_ino && set->items[i].dev == st->st_dev) {
            return false;
        }
    }
    if (bd_grow(&set->items, &set->cap, set->n + 1, sizeof *set->items)) {
        set->items[set->n].dev = st->st_dev;
        set->items[set->n++].ino = st->st_ino;
    }
    return true;
}

static void count_own(ps_checkpoint *k, inodes *set)
{
    struct stat st;
    for (size_t i = 0; i < k->n_parts; i++) {
        const ps_manifest *m = &k->parts[i].m;
        for (size_t f = 0; f < m->n_files; f++) {
            char *path = bd_strfmt("%s/%s", k->parts[i].folder, m->files[f].name);
            if (path != NULL && stat(path, &st) == 0 && add_inode(set, &st)) {
                k->own_bytes += (uint64_t)st.st_size;
            }
            bd_free(path);
        }
    }
}

bd_status ps_catalog_read(ps_catalog *c, const char *const *folders, size_t n_folders, bd_err *err)
{
    inodes set = {0};
    bd_status rc = BD_OK;
    *c = (ps_catalog){0};
    for (size_t i = 0; i < n_folders && rc == BD_OK; i++) {
        rc = look_in(c, folders[i], err);
        if (rc == BD_OK) {
            rc = ps_dir_each(folders[i], look_below, c, err);
        }
    }
    for (size_t i = 0; i < n_folders && rc == BD_OK; i++) {
        char *path = bd_strfmt("%s/checkpoints", folders[i]);
        rc = path == NULL              ? no_memory(err)
             : access(path, F_OK) != 0 ? BD_OK
                                       : ps_dir_each(path, look_at_dense, c, err);
        bd_free(path);
    }
    mark_unfinished(c);
    if (c->n > 1) {
        qsort(c->items, c->n, sizeof *c->items, by_age);
    }
    for (size_t i = 0; i < c->n; i++) {
        count_own(&c->items[i], &set);
    }
    bd_free(set.items);
    if (rc != BD_OK) {
        ps_catalog_deinit(c);
    }
    return rc;
}

ps_ckpt_state ps_checkpoint_state(const ps_checkpoint *k)
{
    bool unfinished = k->n_parts > 0, damaged = k->dense.damaged;
    for (size_t i = 0; i < k->n_parts; i++) {
        unfinished = unfinished && k->parts[i].unfinished;
        damaged = damaged || k->parts[i].damaged;
    }
    if (unfinished || k->lacks_trainer) {
        return PS_CKPT_UNFINISHED;
    }
    if (damaged) {
        return PS_CKPT_DAMAGED;
    }
    return k->n_parts == k->servers ? PS_CKPT_WHOLE : PS_CKPT_INCOMPLETE;
}

const char *ps_ckpt_state_text(ps_ckpt_state s)
{
    static const char *const texts[] = {"whole", "incomplete", "damaged", "unfinished"};
    return texts[s];
}

bd_status ps_catalog_find(const ps_catalog *c, const char *name, const ps_checkpoint **out,
                          bd_err *err)
{
    for (size_t i = c->n; i-- > 0;) {
        if (strcmp(c->items[i].name, name) == 0 &&
            ps_checkpoint_state(&c->items[i]) != PS_CKPT_UNFINISHED) {
            *out = &c->items[i];
            return BD_OK;
        }
    }
    return bd_err_set(err, BD_E_NOT_FOUND, "no checkpoint \"%.128s\" below these folders", name);
}

/* ---- verify ---- */
typedef struct row_check {
    const ps_manifest *m;
    uint64_t n_rows;
} row_check;

static bd_status check_row(void *user, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                           size_t value_bytes, bd_err *err)
{
    row_check *c = user;
    uint32_t id = ps_get_be32(key), from = 0, to = 0;
    uint64_t k = ps_get_be64(key + 4);
    const ps_spec *spec = NULL;
    ps_spec hidden;
    bool dead = value_bytes == PS_ENTRY_META_BYTES; /* the tombstone of an evicted row */
    (void)key_bytes;
    (void)value;
    for (size_t i = 0; i < c->m->n_specs && spec == NULL; i++) {
        spec = c->m->specs[i].id == id                      ? &c->m->specs[i]
               : ps_spec_owns(&c->m->specs[i], id, &hidden) ? &hidden
                                                            : NULL;
    }
    if (spec == NULL) {
        return bd_err_set(err, BD_E_CORRUPT, "a row of table %u, which MANIFEST does not name", id);
    }
    size_t want = PS_ENTRY_META_BYTES + (spec->weight_words + spec->state_elems) * sizeof(float);
    if (value_bytes != want && !dead) {
        return bd_err_set(err, BD_E_CORRUPT,
                          "table \"%s\" key %" PRIu64 " has %zu bytes instead of %zu", spec->name,
                          k, value_bytes, want);
    }
    rpc_slots_of(c->m->index, c->m->servers, &from, &to);
    if (ps_slot_of_key(k) < from || ps_slot_of_key(k) >= to) {
        return bd_err_set(err, BD_E_CORRUPT, "table \"%s\" key %" PRIu64 " is another server's",
                          spec->name, k);
    }
    c->n_rows += !dead && spec->hidden == PS_NOT_HIDDEN;
    return BD_OK;
}

static bd_status verify_rows(const ps_catalog_part *p, bd_err *err)
{
    ps_frozen *f = NULL;
    row_check check = {.m = &p->m};
    char *rows = bd_strfmt("%s/rows", p->folder);
    bd_status rc = rows == NULL ? no_memory(err) : ps_frozen_open(rows, &f, err);
    if (rc == BD_OK) {
        rc = ps_frozen_each(f, 0, check_row, &check, err);
        rc = rc == BD_OK ? rc : bd_err_wrap(err, "%s", rows);
    }
    if (rc == BD_OK && check.n_rows != p->m.n_rows) {
        rc = bd_err_set(err, BD_E_CORRUPT, "%s has %" PRIu64 " rows, its MANIFEST says %" PRIu64,
                        rows, check.n_rows, p->m.n_rows);
    }
    ps_frozen_close(f);
    bd_free(rows);
    return rc;
}

static bd_status verify_dense(const ps_catalog_dense *d, bd_err *err)
{
    uint64_t n = 0, hash = 0;
    if (d->folder == NULL) {
        return BD_OK;
    }
    if (d->damaged) {
        *err = d->why;
        return d->why.code;
    }
    char *bin = bd_strfmt("%s/dense.bin", d->folder);
    bd_status rc = bin == NULL ? no_memory(err) : bd_file_hash64(bin, &n, &hash, err);
    if (rc == BD_OK && hash != d->hash) {
        rc = bd_err_set(err, BD_E_CORRUPT,
                        "%s has checksum %016" PRIx64 ", its manifest says %016" PRIx64, bin, hash,
                        d->hash);
    }
    bd_free(bin);
    return rc;
}

bd_status ps_checkpoint_verify(const ps_checkpoint *k, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < k->n_parts && rc == BD_OK; i++) {
        const ps_catalog_part *p = &k->parts[i];
        if (p->damaged) {
            *err = p->why;
            return p->why.code;
        }
        rc = ps_manifest_check_files(&p->m, p->folder, err);
        if (rc == BD_OK) {
            rc = verify_rows(p, err);
        }
    }
    if (rc == BD_OK) {
        rc = verify_dense(&k->dense, err);
    }
    if (rc == BD_OK && ps_checkpoint_state(k) == PS_CKPT_INCOMPLETE) {
        rc = bd_err_set(err, BD_E_NOT_FOUND, "%zu of %u parts are below these folders", k->n_parts,
                        k->servers);
    }
    return rc;
}

/* ---- removing ---- */
static bd_status remove_part(const ps_checkpoint *k, const ps_catalog_part *p, bd_err *err)
{
    if (p->unfinished) {
        return ps_dir_remove(p->folder, err);
    }
    /* Renamed first: a half-removed folder must not look like a checkpoint. */
    char *tmp = bd_strfmt("%s/checkpoints/.%s.tmp", p->data_dir, k->name);
    bd_status rc = tmp == NULL ? no_memory(err) : ps_dir_remove(tmp, err);
    if (rc == BD_OK && rename(p->folder, tmp) != 0 && errno != ENOENT) {
        rc = bd_err_errno(err, BD_E_IO, errno, "rename %s", p->folder);
    }
    if (rc == BD_OK) {
        rc = ps_dir_remove(tmp, err);
    }
    bd_free(tmp);
    return rc;
}

bd_status ps_checkpoint_remove(const ps_checkpoint *k, bd_err *err)
{
    bd_status rc = BD_OK;
    if (k->dense.folder != NULL) {
        char *json = bd_strfmt("%s/manifest.json", k->dense.folder);
        if (json == NULL) {
            return no_memory(err);
        }
        if (unlink(json) != 0 && errno != ENOENT) {
            rc = bd_err_errno(err, BD_E_IO, errno, "remove %s", json);
        }
        bd_free(json);
    }
    for (size_t i = 0; i < k->n_parts && rc == BD_OK; i++) {
        rc = remove_part(k, &k->parts[i], err);
    }
    if (rc == BD_OK && k->dense.folder != NULL) {
        rc = ps_dir_remove(k->dense.folder, err);
    }
    return rc;
}
