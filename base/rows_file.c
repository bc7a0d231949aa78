#include "base/rows_file.h"

#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NPY_HEADER_BYTES 128u /* fixed, so that the number of rows can be filled in at the end */
#define MAX_ELEMS        (1u << 20)

/* The arrays of the .npy form, in this order. */
enum { KEYS, ROWS, STATE, N_ARRAYS };

static const char *const array_names[N_ARRAYS] = {"keys", "rows", "state"};

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n > m && strcmp(path + n - m, end) == 0;
}

static bd_status form_of(const char *path, bool *npy, bd_err *err)
{
    *npy = ends_in(path, ".npy");
    return *npy || ends_in(path, ".tsv")
               ? BD_OK
               : bd_err_set(err, BD_E_USAGE, "%s: a file of rows ends in .tsv or .npy", path);
}

/* x.npy -> x.keys.npy */
static char *array_path(const char *path, int which)
{
    return bd_strfmt("%.*s.%s.npy", (int)(strlen(path) - 4), path, array_names[which]);
}

/* ---- writing ---- */
typedef struct out_file {
    FILE *f;
    char *path, *tmp; /* owned */
    size_t width;     /* elements a row; 0: a flat array */
} out_file;

struct bd_rows_writer {
    bool npy;
    size_t dim, state_elems;
    uint64_t n_rows;
    out_file files[N_ARRAYS]; /* TSV: the first */
};

static void npy_header(char h[NPY_HEADER_BYTES], bool keys, uint64_t n_rows, size_t width)
{
    static const char magic[8] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0};
    char shape[64];
    const size_t text_bytes = NPY_HEADER_BYTES - 10;
    if (keys) {
        (void)snprintf(shape, sizeof shape, "(%" PRIu64 ",)", n_rows);
    } else {
        (void)snprintf(shape, sizeof shape, "(%" PRIu64 ", %zu)", n_rows, width);
    }
    memcpy(h, magic, sizeof magic);
    h[8] = (char)(text_bytes & 255);
    h[9] = (char)(text_bytes >> 8);
    memset(h + 10, ' ', text_bytes);
    char text[NPY_HEADER_BYTES];
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                     keys ? "<u8" : "<f4", shape);
    memcpy(h + 10, text, (size_t)n);
    h[NPY_HEADER_BYTES - 1] = '\n';
}

static bd_status open_out(out_file *o, char *path, size_t width, bd_err *err)
{
    o->path = path; /* moved */
    o->width = width;
    o->tmp = path == NULL ? NULL : bd_strfmt("%s.tmp", path);
    if (o->tmp == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "write rows: no memory");
    }
    o->f = fopen(o->tmp, "we");
    return o->f != NULL ? BD_OK : bd_err_errno(err, BD_E_IO, errno, "create %s", o->tmp);
}

static bd_status write_failed(const out_file *o, bd_err *err)
{
    return bd_err_errno(err, BD_E_IO, errno, "write %s", o->tmp);
}

static bd_status start_tsv(bd_rows_writer *w, bd_err *err)
{
    FILE *f = w->files[0].f;
    (void)fputs("key", f);
    for (size_t i = 0; i < w->dim; i++) {
        (void)fprintf(f, "\tw%zu", i);
    }
    for (size_t i = 0; i < w->state_elems; i++) {
        (void)fprintf(f, "\ts%zu", i);
    }
    return fputc('\n', f) == '\n' ? BD_OK : write_failed(&w->files[0], err);
}

static bd_status start_npy(bd_rows_writer *w, const char *path, bd_err *err)
{
    const size_t widths[N_ARRAYS] = {0, w->dim, w->state_elems};
    char h[NPY_HEADER_BYTES] = {0};
    bd_status rc = BD_OK;
    for (int i = 0; i < (w->state_elems > 0 ? N_ARRAYS : STATE) && rc == BD_OK; i++) {
        rc = open_out(&w->files[i], array_path(path, i), widths[i], err);
        if (rc == BD_OK && fwrite(h, sizeof h, 1, w->files[i].f) != 1) {
            rc = write_failed(&w->files[i], err);
        }
    }
    return rc;
}

bd_status bd_rows_writer_open(const char *path, size_t dim, size_t state_elems,
                              bd_rows_writer **out, bd_err *err)
{
    bool npy = false;
    bd_status rc = form_of(path, &npy, err);
    if (rc != BD_OK) {
        return rc;
    }
    bd_rows_writer *w = bd_calloc(1, sizeof *w);
    if (w == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "write rows: no memory");
    }
    w->npy = npy;
    w->dim = dim;
    w->state_elems = state_elems;
    if (npy) {
        rc = start_npy(w, path, err);
    } else {
        rc = open_out(&w->files[0], bd_strdup(path), 0, err);
        rc = rc == BD_OK ? start_tsv(w, err) : rc;
    }
    if (rc != BD_OK) {
        bd_err ignored;
        (void)!bd_rows_writer_close(w, 0, &ignored);
        return rc;
    }
    *out = w;
    return BD_OK;
}

static bool put_floats(FILE *f, const float *v, size_t n)
{
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) {
        ok = fprintf(f, "\t%.9g", (double)v[i]) > 0;
    }
    return ok;
}

static bd_status put_tsv(bd_rows_writer *w, size_t n, const uint64_t *keys, const float *rows,
                         const float *state, bd_err *err)
{
    FILE *f = w->files[0].f;
    for (size_t i = 0; i < n; i++) {
        if (fprintf(f, "%" PRIu64, keys[i]) < 0 || !put_floats(f, rows + i * w->dim, w->dim) ||
            (w->state_elems > 0 && !put_floats(f, state + i * w->state_elems, w->state_elems)) ||
            fputc('\n', f) != '\n') {
            return write_failed(&w->files[0], err);
        }
    }
    return BD_OK;
}

static bd_status put_array(const out_file *o, const void *from, size_t n_elems, size_t elem_bytes,
                           bd_err *err)
{
    return fwrite(from, elem_bytes, n_elems, o->f) == n_elems ? BD_OK : write_failed(o, err);
}

bd_status bd_rows_writer_put(bd_rows_writer *w, size_t n, const uint64_t *keys, const float *rows,
                             const float *state, bd_err *err)
{
    bd_status rc = BD_OK;
    if (!w->npy) {
        rc = put_tsv(w, n, keys, rows, state, err);
    } else {
        rc = put_array(&w->files[KEYS], keys, n, sizeof *keys, err);
        if (rc == BD_OK) {
            rc = put_array(&w->files[ROWS], rows, n * w->dim, sizeof *rows, err);
        }
        if (rc == BD_OK && w->state_elems > 0) {
            rc = put_array(&w->files[STATE], state, n * w->state_elems, sizeof *state, err);
        }
    }
    w->n_rows += rc == BD_OK ? n : 0;
    return rc;
}

/* On the disk under its name, or gone. */
static bd_status close_out(out_file *o, const bd_rows_writer *w, bool keep, bd_err *err)
{
    bd_status rc = BD_OK;
    if (o->f != NULL && keep && w->npy) {
        char h[NPY_HEADER_BYTES];
        npy_header(h, o->width == 0, w->n_rows, o->width);
        if (fseek(o->f, 0, SEEK_SET) != 0 || fwrite(h, sizeof h, 1, o->f) != 1) {
            rc = write_failed(o, err);
        }
    }
    if (o->f != NULL && keep && rc == BD_OK && (fflush(o->f) != 0 || fsync(fileno(o->f)) != 0)) {
        rc = write_failed(o, err);
    }
    if (o->f != NULL && fclose(o->f) != 0 && keep && rc == BD_OK) {
        rc = write_failed(o, err);
    }
    if (o->f != NULL && keep && rc == BD_OK && rename(o->tmp, o->path) != 0) {
        rc = bd_err_errno(err, BD_E_IO, errno, "rename %s", o->tmp);
    }
    if (o->f != NULL && o->tmp != NULL && (!keep || rc != BD_OK)) {
        (void)unlink(o->tmp);
    }
    bd_free(o->path);
    bd_free(o->tmp);
    return rc;
}

bd_status bd_rows_writer_close(bd_rows_writer *w, int keep, bd_err *err)
{
    bd_status rc = BD_OK;
    for (int i = 0; i < N_ARRAYS; i++) {
        bd_err one = BD_ERR_INIT;
        bd_status r = close_out(&w->files[i], w, keep != 0 && rc == BD_OK, &one);
        if (r != BD_OK && rc == BD_OK) {
            rc = r;
            *err = one;
        }
    }
    bd_free(w);
    return rc;
}

/* ---- reading ---- */
struct bd_rows_reader {
    char *path; /* owned */
    bool npy;
    size_t dim, state_elems;
    uint64_t n_rows, at; /* .npy */
    uint64_t line_no;    /* .tsv */
    char *line;          /* stdio's */
    size_t cap_line;
    FILE *files[N_ARRAYS];
    char *paths[N_ARRAYS]; /* owned */
};

void bd_rows_reader_close(bd_rows_reader *r)
{
    if (r == NULL) {
        return;
    }
    for (int i = 0; i < N_ARRAYS; i++) {
        if (r->files[i] != NULL) {
            (void)fclose(r->files[i]);
        }
        bd_free(r->paths[i]);
    }
    free(r->line);
    bd_free(r->path);
    bd_free(r);
}

size_t bd_rows_reader_dim(const bd_rows_reader *r)
{
    return r->dim;
}

size_t bd_rows_reader_state_elems(const bd_rows_reader *r)
{
    return r->state_elems;
}

static bd_status open_in(bd_rows_reader *r, int which, bd_err *err)
{
    r->paths[which] = r->npy ? array_path(r->path, which) : bd_strdup(r->path);
    if (r->paths[which] == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "read rows: no memory");
    }
    r->files[which] = fopen(r->paths[which], "re");
    return r->files[which] != NULL ? BD_OK
                                   : bd_err_errno(err, errno == ENOENT ? BD_E_NOT_FOUND : BD_E_IO,
                                                  errno, "open %s", r->paths[which]);
}

/* Digits after the label, which is in the text or, where `from_here`, at its start. False: they are
 * not there, or no 64-bit number. */
static bool number_after(const char *text, const char *label, bool from_here, uint64_t *out,
                         const char **end)
{
    const char *at = strstr(text, label);
    char *stop = NULL;
    if (at == NULL || (from_here && at != text)) {
        return false;
    }
    at += strlen(label);
    errno = 0;
    *out = *at < '0' || *at > '9' ? 0 : strtoull(at, &stop, 10); /* no signs, no blanks */
    *end = stop;
    return stop != NULL && errno == 0;
}

/* (n,) or (n, elements). */
static bool take_shape(const char *text, int which, uint64_t *n, size_t *width)
{
    const char *end = NULL;
    uint64_t columns = 0;
    bool ok = number_after(text, "'shape': (", false, n, &end);
    if (which == KEYS) {
        return ok && strncmp(end, ",)", 2) == 0;
    }
    ok = ok && number_after(end, ", ", true, &columns, &end) && *end == ')' && columns > 0 &&
         columns <= MAX_ELEMS;
    *width = (size_t)columns;
    return ok;
}

/* What the header says of the length is so; of a pipe it shows when it ends. */
static bd_status check_length(const bd_rows_reader *r, int which, size_t header_bytes, uint64_t n,
                              size_t width, bd_err *err)
{
    struct stat st;
    size_t row_bytes = which == KEYS ? sizeof(uint64_t) : width * sizeof(float);
    if (fstat(fileno(r->files[which]), &st) != 0) {
        return bd_err_errno(err, BD_E_IO, errno, "read %s", r->paths[which]);
    }
    uint64_t data_bytes = (uint64_t)st.st_size - header_bytes;
    if (!S_ISREG(st.st_mode) || (data_bytes % row_bytes == 0 && data_bytes / row_bytes == n)) {
        return BD_OK;
    }
    return bd_err_set(err, BD_E_DATA,
                      "%s: %" PRIu64 " rows of %zu bytes by its header, but %" PRIu64
                      " bytes of data",
                      r->paths[which], n, row_bytes, data_bytes);
}

static bd_status read_npy_header(bd_rows_reader *r, int which, uint64_t *n, size_t *width,
                                 bd_err *err)
{
    unsigned char head[10];
    char text[1024];
    FILE *f = r->files[which];
    const char *path = r->paths[which];
    const char *want = which == KEYS ? "'descr': '<u8'" : "'descr': '<f4'";
    if (fread(head, sizeof head, 1, f) != 1 || memcmp(head, "\x93NUMPY", 6) != 0 || head[6] != 1) {
        return bd_err_set(err, BD_E_DATA, "%s: not a NumPy array of format 1", path);
    }
    size_t bytes = (size_t)head[8] | (size_t)head[9] << 8;
    if (bytes >= sizeof text || fread(text, 1, bytes, f) != bytes) {
        return bd_err_set(err, BD_E_DATA, "%s: the header is cut off or too long", path);
    }
    text[bytes] = '\0';
    text[strcspn(text, "\n")] = '\0'; /* ends it, after blanks */
    for (size_t i = strlen(text); i > 0 && text[i - 1] == ' '; i--) {
        text[i - 1] = '\0';
    }
    if (strstr(text, want) == NULL || strstr(text, "'fortran_order': False") == NULL) {
        return bd_err_set(err, BD_E_DATA, "%s: must be %s in C order, is %.200s", path, want, text);
    }
    if (!take_shape(text, which, n, width)) {
        return bd_err_set(err, BD_E_DATA, "%s: the shape must be %s, is %.200s", path,
                          which == KEYS ? "(n,)" : "(n, elements)", text);
    }
    return check_length(r, which, sizeof head + bytes, *n, *width, err);
}

static bd_status open_npy(bd_rows_reader *r, bd_err *err)
{
    size_t widths[N_ARRAYS] = {0};
    bd_status rc = BD_OK;
    for (int i = 0; i < N_ARRAYS && rc == BD_OK; i++) {
        bd_err why = BD_ERR_INIT;
        uint64_t n = 0;
        rc = open_in(r, i, &why);
        if (i == STATE && rc == BD_E_NOT_FOUND) {
            return BD_OK;
        }
        if (rc != BD_OK && err != NULL) {
            *err = why;
        }
        if (rc == BD_OK) {
            rc = read_npy_header(r, i, &n, &widths[i], err);
        }
        if (rc == BD_OK && i > 0 && n != r->n_rows) {
            rc = bd_err_set(err, BD_E_DATA, "%s has %" PRIu64 " rows, %s %" PRIu64, r->paths[i], n,
                            r->paths[0], r->n_rows);
        }
        r->n_rows = n;
        r->dim = widths[ROWS];
        r->state_elems = widths[STATE];
    }
    return rc;
}

static bd_status open_tsv(bd_rows_reader *r, bd_err *err)
{
    bd_status rc = open_in(r, 0, err);
    if (rc != BD_OK) {
        return rc;
    }
    ssize_t n = getline(&r->line, &r->cap_line, r->files[0]);
    r->line_no = 1;
    if (n <= 0 || strncmp(r->line, "key\t", 4) != 0) {
        return bd_err_set(err, BD_E_DATA, "%s:1: the header must be: key w0 w1 ... (tabs)",
                          r->path);
    }
    r->line[strcspn(r->line, "\r\n")] = '\0';
    for (const char *at = strchr(r->line, '\t'); at != NULL; at = strchr(at + 1, '\t')) {
        char *stop = NULL;
        bool w = at[1] == 'w' && r->state_elems == 0, s = at[1] == 's';
        unsigned long i = w || s ? strtoul(at + 2, &stop, 10) : 0;
        if ((!w && !s) || (*stop != '\t' && *stop != '\0') || i != (w ? r->dim : r->state_elems) ||
            i >= MAX_ELEMS) {
            return bd_err_set(err, BD_E_DATA,
                              "%s:1: column \"%.20s\" is not the next of w0 w1 ... s0 s1 ...",
                              r->path, at + 1);
        }
        r->dim += w;
        r->state_elems += s;
    }
    return r->dim > 0 ? BD_OK : bd_err_set(err, BD_E_DATA, "%s:1: there is no column w0", r->path);
}

bd_status bd_rows_reader_open(const char *path, bd_rows_reader **out, bd_err *err)
{
    bool npy = false;
    bd_status rc = form_of(path, &npy, err);
    if (rc != BD_OK) {
        return rc;
    }
    bd_rows_reader *r = bd_calloc(1, sizeof *r);
    if (r != NULL) {
        r->npy = npy;
        r->path = bd_strdup(path);
    }
    if (r == NULL || r->path == NULL) {
        bd_rows_reader_close(r);
        return bd_err_set(err, BD_E_NOMEM, "read rows: no memory");
    }
    rc = npy ? open_npy(r, err) : open_tsv(r, err);
    if (rc != BD_OK) {
        bd_rows_reader_close(r);
        return rc;
    }
    *out = r;
    return BD_OK;
}

/* n floats, each after a tab; *at moves on. False: *at is where it went wrong. */
static bool take_floats(char **at, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        char *stop = NULL;
        if (**at != '\t') {
            return false;
        }
        float v = strtof(*at + 1, &stop);
        if (stop == *at + 1) {
            return false;
        }
        if (out != NULL) {
            out[i] = v;
        }
        *at = stop;
    }
    return true;
}

static bd_status parse_line(bd_rows_reader *r, uint64_t *key, float *row, float *state, bd_err *err)
{
    char *at = r->line;
    errno = 0;
    if (*at < '0' || *at > '9') {
        return bd_err_set(err, BD_E_DATA,
                          "%s:%" PRIu64 ": a key is a decimal number, not \"%.40s\"", r->path,
                          r->line_no, r->line);
    }
    *key = strtoull(at, &at, 10);
    if (errno == ERANGE) {
        return bd_err_set(err, BD_E_DATA, "%s:%" PRIu64 ": the key does not fit 64 bits", r->path,
                          r->line_no);
    }
    if (!take_floats(&at, r->dim, row) || !take_floats(&at, r->state_elems, state) || *at != '\0') {
        return bd_err_set(err, BD_E_DATA,
                          "%s:%" PRIu64 ":%td: key %" PRIu64 " must have %zu numbers, at \"%.20s\"",
                          r->path, r->line_no, at - r->line + 1, *key, r->dim + r->state_elems, at);
    }
    return BD_OK;
}

static bd_status next_tsv(bd_rows_reader *r, size_t max, uint64_t *keys, float *rows, float *state,
                          size_t *n, bd_err *err)
{
    bd_status rc = BD_OK;
    while (*n < max && rc == BD_OK) {
        errno = 0;
        ssize_t got = getline(&r->line, &r->cap_line, r->files[0]);
        if (got < 0) {
            return ferror(r->files[0]) != 0 ? bd_err_errno(err, BD_E_IO, errno, "read %s", r->path)
                                            : BD_OK;
        }
        r->line_no++;
        r->line[strcspn(r->line, "\r\n")] = '\0';
        if (r->line[0] == '\0') {
            continue;
        }
        rc = parse_line(r, &keys[*n], rows + *n * r->dim,
                        state == NULL ? NULL : state + *n * r->state_elems, err);
        *n += rc == BD_OK;
    }
    return rc;
}

static bd_status read_array(bd_rows_reader *r, int which, void *to, size_t n_elems,
                            size_t elem_bytes, bd_err *err)
{
    return fread(to, elem_bytes, n_elems, r->files[which]) == n_elems
               ? BD_OK
               : bd_err_set(err, BD_E_DATA, "%s ends before row %" PRIu64 " of %" PRIu64,
                            r->paths[which], r->at, r->n_rows);
}

static bd_status next_npy(bd_rows_reader *r, size_t max, uint64_t *keys, float *rows, float *state,
                          size_t *n, bd_err *err)
{
    size_t m = r->n_rows - r->at < max ? (size_t)(r->n_rows - r->at) : max;
    bd_status rc = read_array(r, KEYS, keys, m, sizeof *keys, err);
    if (rc == BD_OK) {
        rc = read_array(r, ROWS, rows, m * r->dim, sizeof *rows, err);
    }
    if (rc == BD_OK && r->state_elems > 0 && state != NULL) {
        rc = read_array(r, STATE, state, m * r->state_elems, sizeof *state, err);
    }
    if (rc == BD_OK) {
        r->at += m;
        *n = m;
    }
    return rc;
}

bd_status bd_rows_reader_next(bd_rows_reader *r, size_t max, uint64_t *keys, float *rows,
                              float *state, size_t *n, bd_err *err)
{
    *n = 0;
    return r->npy ? next_npy(r, max, keys, rows, state, n, err)
                  : next_tsv(r, max, keys, rows, state, n, err);
}
