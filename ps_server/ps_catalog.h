/* ps_server/ps_catalog.h - every checkpoint below some folders, with what is wrong with it.
 *
 * Layer:     ps_server; files only (RocksDB in ps_catalog_verify alone). For offline tools; servers
 *            may run meanwhile.
 * Ownership: ps_catalog_deinit frees everything.
 * Folders:   a server's data folder, a folder of such, or a run of `braid run` (both, and the
 *            trainer's parts in <run>/checkpoints/<name>/: manifest.json and dense.bin).
 */
#ifndef PS_CATALOG_H
#define PS_CATALOG_H

#include "ps_server/ps_manifest.h"

typedef struct ps_catalog_part {
    char *folder;    /* owned */
    char *data_dir;  /* owned: the server's */
    ps_manifest m;   /* empty when damaged */
    bool damaged;    /* see why */
    bool unfinished; /* left by a crash, or being made at this moment */
    bool busy;       /* its server runs */
    bd_err why;
} ps_catalog_part;

/* The trainer's part. */
typedef struct ps_catalog_dense {
    char *folder; /* owned; NULL: none */
    uint64_t step, job_epoch, n_bytes, hash;
    bool damaged;
    bd_err why;
} ps_catalog_dense;

typedef struct ps_checkpoint {
    char name[PS_MAX_NAME_BYTES + 1];
    uint64_t epoch, step;
    uint32_t servers;       /* 0: unknown (damaged or unfinished) */
    ps_catalog_part *parts; /* owned */
    size_t n_parts, cap_parts;
    ps_catalog_dense dense;
    uint64_t n_rows, n_bytes; /* of the rows */
    bool lacks_trainer;       /* others below these folders have a trainer's part, it has none */
    uint64_t own_bytes;       /* of files that no older checkpoint listed has */
} ps_checkpoint;

typedef struct ps_catalog {
    ps_checkpoint *items; /* owned; by step, then job epoch, then name */
    size_t n, cap;
} ps_catalog;

typedef enum ps_ckpt_state {
    PS_CKPT_WHOLE,
    PS_CKPT_INCOMPLETE, /* parts of some servers are not below the folders */
    PS_CKPT_DAMAGED,
    PS_CKPT_UNFINISHED /* a crash, or the work of this moment: the last word was not written */
} ps_ckpt_state;

/* BD_E_NOT_FOUND: a folder does not exist. Reads manifests and sizes of files, not the files. */
bd_status ps_catalog_read(ps_catalog *c, const char *const *folders, size_t n_folders,
                          bd_err *err) BD_MUST_CHECK;
void ps_catalog_deinit(ps_catalog *c);
ps_ckpt_state ps_checkpoint_state(const ps_checkpoint *k);
const char *ps_ckpt_state_text(ps_ckpt_state s);
/* The newest of that name; BD_E_NOT_FOUND. */
bd_status ps_catalog_find(const ps_catalog *c, const char *name, const ps_checkpoint **out,
                          bd_err *err) BD_MUST_CHECK;
/* Reads everything: checksums, every row of every table, the trainer's part. BD_E_CORRUPT and
 * others name the file. */
bd_status ps_checkpoint_verify(const ps_checkpoint *k, bd_err *err) BD_MUST_CHECK;
/* Removes the parts, the trainer's first: from then on it is none. Idempotent. */
bd_status ps_checkpoint_remove(const ps_checkpoint *k, bd_err *err) BD_MUST_CHECK;

#endif
