#include "ps_server/ps_manifest.h"

#include "base/file_hash.h"
#include "base/mem.h"

#include "ps_server/ps_rocks.h"
#include "ps_server/ps_types.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST_MAX_BYTES (64u << 20)

static bd_status no_memory(bd_err *err)
{
    (void)bd_err_set(err, BD_E_NOMEM, "checkpoint: no memory");
    return BD_E_NOMEM;
}

void ps_manifest_deinit(ps_manifest *m)
{
    for (size_t i = 0; i < m->n_files; i++) {
        bd_free(m->files[i].name);
    }
    bd_free(m->files);
    bd_free(m->specs);
    *m = (ps_manifest){0};
}

bd_status ps_manifest_add_spec(ps_manifest *m, const ps_spec *spec, bd_err *err)
{
    if (!bd_grow(&m->specs, &m->cap_specs, m->n_specs + 1, sizeof *m->specs)) {
        return no_memory(err);
    }
    m->specs[m->n_specs++] = *spec;
    return BD_OK;
}

/* Takes a copy of the name. */
static bd_status add_file(ps_manifest *m, const char *name, uint64_t n_bytes, uint64_t hash,
                          bd_err *err)
{
    char *copy = bd_strdup(name);
    if (copy == NULL || !bd_grow(&m->files, &m->cap_files, m->n_files + 1, sizeof *m->files)) {
        bd_free(copy);
        return no_memory(err);
    }
    m->files[m->n_files++] = (ps_manifest_file){copy, n_bytes, hash};
    return BD_OK;
}

uint64_t ps_manifest_bytes(const ps_manifest *m)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < m->n_files; i++) {
        sum += m->files[i].n_bytes;
    }
    return sum;
}

/* ---- scanning ---- */
typedef struct scan {
    ps_manifest *m;
    const ps_manifest *before;
    const char *before_folder;
    ps_manifest_hash hash;
    void *user; /* hash's */
    uint64_t fresh_bytes;
} scan;

/* The older checkpoint's line about this very inode, or NULL. */
static const ps_manifest_file *known(const scan *s, const char *name, const char *path)
{
    struct stat now, then;
    const ps_manifest_file *found = NULL;
    for (size_t i = 0; s->before != NULL && i < s->before->n_files && found == NULL; i++) {
        const ps_manifest_file *f = &s->before->files[i];
        char *old =
            strcmp(f->name, name) != 0 ? NULL : bd_strfmt("%s/%s", s->before_folder, f->name);
        if (old != NULL && stat(path, &now) == 0 && stat(old, &then) == 0 &&
            now.st_ino == then.st_ino && now.st_dev == then.st_dev &&
            (uint64_t)now.st_size == f->n_bytes) {
            found = f;
        }
        bd_free(old);
    }
    return found;
}

static bd_status scan_one(void *user, const char *dir, const char *name, bd_err *err)
{
    scan *s = user;
    uint64_t n_bytes = 0, hash = 0;
    if (strcmp(name, "LOCK") == 0 || strncmp(name, "LOG", 3) == 0) {
        return BD_OK; /* not part of the store */
    }
    char *path = bd_strfmt("%s/%s", dir, name), *rel = bd_strfmt("rows/%s", name);
    bd_status rc = path == NULL || rel == NULL ? no_memory(err) : BD_OK;
    const ps_manifest_file *old = rc == BD_OK ? known(s, rel, path) : NULL;
    if (old != NULL) {
        n_bytes = old->n_bytes;
        hash = old->hash;
    } else if (rc == BD_OK) {
        rc = s->hash(s->user, path, &n_bytes, &hash, err);
        s->fresh_bytes += n_bytes;
    }
    if (rc == BD_OK) {
        rc = add_file(s->m, rel, n_bytes, hash, err);
    }
    bd_free(path);
    bd_free(rel);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    const ps_manifest_file *x = a, *y = b;
    return strcmp(x->name, y->name);
}

bd_status ps_manifest_scan(ps_manifest *m, const char *folder, const ps_manifest *before,
                           const char *before_folder, ps_manifest_hash hash, void *user,
                           uint64_t *fresh_bytes, bd_err *err)
{
    scan s = {.m = m, .before = before, .before_folder = before_folder, .hash = hash, .user = user};
    char *rows = bd_strfmt("%s/rows", folder);
    bd_status rc = rows == NULL ? no_memory(err) : ps_dir_each(rows, scan_one, &s, err);
    if (m->n_files > 1) {
        qsort(m->files, m->n_files, sizeof *m->files, by_name);
    }
    *fresh_bytes = s.fresh_bytes;
    bd_free(rows);
    return rc;
}

/* ---- writing ---- */
static bd_status put_specs(const ps_manifest *m, FILE *f, bd_err *err)
{
    for (size_t i = 0; i < m->n_specs; i++) {
        bd_buf *b = ps_spec_pack(&m->specs[i]);
        if (b == NULL) {
            return no_memory(err);
        }
        (void)fputs("table ", f);
        for (size_t k = 0; k < b->n_bytes; k++) {
            (void)fprintf(f, "%02x", b->bytes[k]);
        }
        (void)fputc('\n', f);
        bd_buf_unref(b);
    }
    return BD_OK;
}

/* *text is owned (free: it is stdio's). */
static bd_status make_text(const ps_manifest *m, char **text, size_t *n, bd_err *err)
{
    FILE *f = open_memstream(text, n);
    if (f == NULL) {
        return no_memory(err);
    }
    (void)fprintf(f,
                  "braid-checkpoint %u\nname %s\nserver %u of %u\njob %" PRIu64
                  " world %u step %" PRIu64 "\nnext %" PRIu64 "\nrows %" PRIu64 "\n",
                  PS_MANIFEST_VERSION, m->name, m->index, m->servers, m->epoch, m->world, m->step,
                  m->next_n, m->n_rows);
    bd_status rc = put_specs(m, f, err);
    for (size_t i = 0; i < m->n_files; i++) {
        (void)fprintf(f, "file %" PRIu64 " %016" PRIx64 " %s\n", m->files[i].n_bytes,
                      m->files[i].hash, m->files[i].name);
    }
    (void)fflush(f);
    (void)fprintf(f, "end %016" PRIx64 "\n", bd_hash64(*text, *n, 0));
    if (fclose(f) != 0 && rc == BD_OK) {
        rc = no_memory(err);
    }
    return rc;
}

static bd_status write_file(const char *path, const char *text, size_t n, bd_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return bd_err_errno(err, BD_E_IO, errno, "create %s", path);
    }
    bd_status rc = BD_OK;
    for (size_t done = 0; done < n && rc == BD_OK;) {
        ssize_t w = write(fd, text + done, n - done);
        if (w < 0) {
            rc = bd_err_errno(err, BD_E_IO, errno, "write %s", path);
        } else {
            done += (size_t)w;
        }
    }
    if (rc == BD_OK && fsync(fd) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "fsync %s", path);
    }
    if (close(fd) != 0 && rc == BD_OK) {
        rc = bd_err_errno(err, BD_E_IO, errno, "close %s", path);
    }
    return rc;
}

bd_status ps_manifest_write(const ps_manifest *m, const char *folder, bd_err *err)
{
    char *path = bd_strfmt("%s/MANIFEST", folder), *text = NULL;
    size_t n = 0;
    bd_status rc = path == NULL ? no_memory(err) : make_text(m, &text, &n, err);
    if (rc == BD_OK) {
        rc = write_file(path, text, n, err);
    }
    if (rc == BD_OK) {
        rc = ps_dir_sync(folder, err);
    }
    free(text); /* stdio's memory */
    bd_free(path);
    return rc;
}

/* ---- reading ---- */
static bd_status read_text(const char *path, char **text, size_t *n, bd_err *err)
{
    FILE *f = fopen(path, "re");
    *text = NULL;
    if (f == NULL) {
        return bd_err_errno(err, errno == ENOENT ? BD_E_NOT_FOUND : BD_E_IO, errno, "open %s",
                            path);
    }
    bd_status rc = BD_OK;
    size_t cap = 0;
    *n = 0;
    for (;;) {
        if (*n > MANIFEST_MAX_BYTES || !bd_grow((void **)text, &cap, *n + 65536, 1)) {
            rc = no_memory(err);
            break;
        }
        size_t got = fread(*text + *n, 1, 65535, f);
        *n += got;
        if (got == 0) {
            break;
        }
    }
    if (rc == BD_OK && ferror(f) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "read %s", path);
    }
    if (rc == BD_OK) {
        (*text)[*n] = '\0';
    }
    (void)fclose(f);
    return rc;
}

/* The checksum has vouched for the digits. */
static unsigned hex_digit(char c)
{
    return c <= '9' ? (unsigned)(c - '0') & 15u : (unsigned)(c - 'a' + 10) & 15u;
}

/* A table line: hex up to the end of the line. */
static bd_status read_spec(const char *hex, ps_manifest *m, bd_err *err)
{
    size_t n = strcspn(hex, "\n") / 2;
    ps_spec spec;
    uint8_t *bytes = bd_alloc(n);
    if (bytes == NULL) {
        return no_memory(err);
    }
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
    }
    bd_status rc = ps_spec_unpack(bytes, n, &spec, err);
    if (rc == BD_OK) {
        rc = ps_manifest_add_spec(m, &spec, err);
    }
    bd_free(bytes);
    return rc;
}

/* "<bytes> <hash> <name>" up to the end of the line. A name that leaves the folder is refused. */
static bd_status read_file_line(const char *line, ps_manifest *m, bd_err *err)
{
    char *end = NULL, *name_at = NULL;
    uint64_t n_bytes = strtoull(line, &end, 10);
    uint64_t hash = *end == ' ' ? strtoull(end + 1, &name_at, 16) : 0;
    if (name_at == NULL || strncmp(name_at, " rows/", 6) != 0) {
        return bd_err_set(err, BD_E_CORRUPT, "a line about a file is malformed");
    }
    char *name = bd_strfmt("%.*s", (int)strcspn(name_at + 1, "\n"), name_at + 1);
    bd_status rc = name == NULL ? no_memory(err) : BD_OK;
    if (rc == BD_OK && strchr(name + 5, '/') != NULL) {
        rc = bd_err_set(err, BD_E_CORRUPT, "the file name %s is malformed", name);
    }
    if (rc == BD_OK) {
        rc = add_file(m, name, n_bytes, hash, err);
    }
    bd_free(name);
    return rc;
}

/* The text is whole: its last line holds the hash of what is above it. */
static bool text_is_whole(const char *text, size_t n)
{
    const size_t last = strlen("end 0123456789abcdef\n");
    if (n < last || memcmp(text + n - last, "end ", 4) != 0) {
        return false;
    }
    return strtoull(text + n - last + 4, NULL, 16) == bd_hash64(text, n - last, 0);
}

/* Takes the label and the number behind it. */
static bool take(const char **at, const char *label, uint64_t *out)
{
    size_t n = strlen(label);
    char *end = NULL;
    if (strncmp(*at, label, n) != 0) {
        return false;
    }
    *out = strtoull(*at + n, &end, 10);
    bool some = end != *at + n;
    *at = end;
    return some;
}

static bool take_head(const char *text, ps_manifest *m)
{
    const char *at = text;
    uint64_t version = 0, index = 0, servers = 0, world = 0;
    if (!take(&at, "braid-checkpoint ", &version) || version != PS_MANIFEST_VERSION ||
        strncmp(at, "\nname ", 6) != 0) {
        return false;
    }
    size_t n_name = strcspn(at + 6, "\n");
    (void)snprintf(m->name, sizeof m->name, "%.*s", (int)n_name, at + 6);
    at += 6 + n_name;
    bool ok = take(&at, "\nserver ", &index) && take(&at, " of ", &servers) &&
              take(&at, "\njob ", &m->epoch) && take(&at, " world ", &world) &&
              take(&at, " step ", &m->step) && take(&at, "\nnext ", &m->next_n) &&
              take(&at, "\nrows ", &m->n_rows);
    m->index = (uint32_t)index;
    m->servers = (uint32_t)servers;
    m->world = (uint32_t)world;
    return ok && servers > 0 && servers <= PS_N_SLOTS && index < servers;
}

static bd_status parse(const char *path, const char *text, size_t n, ps_manifest *m, bd_err *err)
{
    if (!text_is_whole(text, n)) {
        return bd_err_set(err, BD_E_CORRUPT, "%s is not whole: the checkpoint is damaged", path);
    }
    if (!take_head(text, m)) {
        return bd_err_set(err, BD_E_CORRUPT, "%s is of another version; this server reads %u", path,
                          PS_MANIFEST_VERSION);
    }
    bd_status rc = BD_OK;
    for (const char *line = strchr(text, '\n'); line != NULL && rc == BD_OK;
         line = strchr(line + 1, '\n')) {
        if (strncmp(line, "\ntable ", 7) == 0) {
            rc = read_spec(line + 7, m, err);
        } else if (strncmp(line, "\nfile ", 6) == 0) {
            rc = read_file_line(line + 6, m, err);
        }
    }
    return rc == BD_OK ? BD_OK : bd_err_wrap(err, "%s", path);
}

bd_status ps_manifest_read(ps_manifest *m, const char *folder, bd_err *err)
{
    char *path = bd_strfmt("%s/MANIFEST", folder), *text = NULL;
    size_t n = 0;
    *m = (ps_manifest){0};
    bd_status rc = path == NULL ? no_memory(err) : read_text(path, &text, &n, err);
    if (rc == BD_OK) {
        rc = parse(path, text, n, m, err);
    }
    if (rc != BD_OK) {
        ps_manifest_deinit(m);
    }
    bd_free(path);
    bd_free(text);
    return rc;
}

/* ---- checking ---- */
static bd_status check_file(const ps_manifest_file *f, const char *folder, bool read_it,
                            bd_err *err)
{
    struct stat st;
    uint64_t n_bytes = 0, hash = 0;
    char *path = bd_strfmt("%s/%s", folder, f->name);
    bd_status rc = BD_OK;
    if (path == NULL) {
        return no_memory(err);
    }
    if (stat(path, &st) != 0) {
        rc = bd_err_errno(err, errno == ENOENT ? BD_E_CORRUPT : BD_E_IO, errno,
                          "%s, which its MANIFEST names", path);
    } else if ((uint64_t)st.st_size != f->n_bytes) {
        rc = bd_err_set(err, BD_E_CORRUPT, "%s has %lld bytes, its MANIFEST says %" PRIu64, path,
                        (long long)st.st_size, f->n_bytes);
    } else if (read_it) {
        rc = bd_file_hash64(path, &n_bytes, &hash, err);
        if (rc == BD_OK && hash != f->hash) {
            rc = bd_err_set(err, BD_E_CORRUPT,
                            "%s has checksum %016" PRIx64 ", its MANIFEST says %016" PRIx64, path,
                            hash, f->hash);
        }
    }
    bd_free(path);
    return rc;
}

static bd_status check_all(const ps_manifest *m, const char *folder, bool read_them, bd_err *err)
{
    bd_status rc = BD_OK;
    for (size_t i = 0; i < m->n_files && rc == BD_OK; i++) {
        rc = check_file(&m->files[i], folder, read_them, err);
    }
    return rc;
}

bd_status ps_manifest_check_sizes(const ps_manifest *m, const char *folder, bd_err *err)
{
    return check_all(m, folder, false, err);
}

bd_status ps_manifest_check_files(const ps_manifest *m, const char *folder, bd_err *err)
{
    return check_all(m, folder, true, err);
}
