/* worker/wk_file.h - small durable files: written whole, checked whole.
 *
 * Layer:     worker.
 * Threads:   one owner thread per object.
 * Format:    8 bytes of magic, little-endian fields, and at the end the u64 XXH3-64 of everything
 *            before it. A file appears under its name only when its bytes are on the disk.
 */
#ifndef WK_FILE_H
#define WK_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Collects bytes in memory; running out of memory is remembered until close. */
typedef struct wk_writer {
    char *bytes; /* owned */
    size_t n_bytes, cap_bytes;
    char *path; /* owned */
    bool failed;
} wk_writer;

bd_status wk_writer_open(wk_writer *w, const char *path, bd_err *err) BD_MUST_CHECK;
void wk_write(wk_writer *w, const void *bytes, size_t n_bytes);
void wk_write_u32(wk_writer *w, uint32_t v);
void wk_write_u64(wk_writer *w, uint64_t v);
/* Appends the hash, writes <path>.tmp, fsyncs, renames. Frees w's memory whatever happens. */
bd_status wk_writer_close(wk_writer *w, bd_err *err) BD_MUST_CHECK;
/* Frees without writing. */
void wk_writer_drop(wk_writer *w);
/* Bytes as they are, without magic and hash, by the same temporary name, fsync and rename. */
bd_status wk_write_bytes(const char *path, const void *bytes, size_t n_bytes,
                         bd_err *err) BD_MUST_CHECK;

/* A file in memory, read front to back. Reads past the end give zeros and NULL. */
typedef struct wk_blob {
    char *bytes; /* owned */
    size_t n_bytes, pos;
    bool cut; /* a read went past the end */
} wk_blob;

/* BD_E_NOT_FOUND, BD_E_IO, or BD_E_CORRUPT for a wrong magic or hash; all name path. */
bd_status wk_blob_load(wk_blob *b, const char *path, const char magic[8],
                       bd_err *err) BD_MUST_CHECK;
/* A file as it is; nothing is checked. */
bd_status wk_read_bytes(wk_blob *b, const char *path, bd_err *err) BD_MUST_CHECK;
uint32_t wk_blob_u32(wk_blob *b);
uint64_t wk_blob_u64(wk_blob *b);
const void *wk_blob_take(wk_blob *b, size_t n_bytes);
void wk_blob_deinit(wk_blob *b);

/* Makes the folder and its parents. */
bd_status wk_make_dirs(const char *path, bd_err *err) BD_MUST_CHECK;
/* An absent file is BD_OK. */
bd_status wk_remove_file(const char *path, bd_err *err) BD_MUST_CHECK;
/* Removes the files in a folder and the folder; absent is BD_OK. Not recursive. */
bd_status wk_remove_dir(const char *path, bd_err *err) BD_MUST_CHECK;

#endif
