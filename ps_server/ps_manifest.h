/* ps_server/ps_manifest.h - what a server's part of a checkpoint is: the text file MANIFEST.
 *
 * Layer:     ps_server; files only, no RocksDB, no shard. Servers and offline tools read it.
 * Threads:   every function from any thread.
 * Ownership: ps_manifest_deinit frees what read or add_file put in.
 * Place:     <data>/checkpoints/<name>/MANIFEST beside rows/ (the frozen row store). It is written
 *            last: a folder without a whole MANIFEST is not a checkpoint.
 *
 * Text, one fact a line, in this order:
 *   braid-checkpoint 2
 *   name <name>
 *   server <index> of <servers>
 *   job <epoch> world <world> step <step>
 *   next <n of the next journal record>
 *   rows <count>
 *   table <packed TableSpec in hex>              (one line a table)
 *   file <bytes> <XXH3-64, hex> <rows/name>      (one line a file of the row store)
 *   end <XXH3-64 of everything above, hex>
 *
 * A cut is named by (job epoch, step, servers): parts that agree in them belong together.
 */
#ifndef PS_MANIFEST_H
#define PS_MANIFEST_H

#include "ps_server/ps_spec.h"

#define PS_MANIFEST_VERSION 2u

typedef struct ps_manifest_file {
    char *name; /* owned: relative to the checkpoint's folder */
    uint64_t n_bytes, hash;
} ps_manifest_file;

typedef struct ps_manifest {
    char name[PS_MAX_NAME_BYTES + 1];
    uint32_t index, servers;
    uint64_t epoch, step, next_n, n_rows;
    uint32_t world;
    ps_spec *specs; /* owned [n_specs] */
    size_t n_specs, cap_specs;
    ps_manifest_file *files; /* owned [n_files] */
    size_t n_files, cap_files;
} ps_manifest;

void ps_manifest_deinit(ps_manifest *m); /* zeroed is fine */
bd_status ps_manifest_add_spec(ps_manifest *m, const ps_spec *spec, bd_err *err) BD_MUST_CHECK;

/* ps_manifest_scan - lists the files of <folder>/rows with sizes and hashes in m->files, in order
 * of names. before (may be NULL): the manifest of an older checkpoint in the folder before_folder;
 * a file that is the same inode there is not read again; the others are hashed by `hash`.
 * *fresh_bytes: bytes of those, so new since then. BD_E_IO names the file. Cost: reads of what is
 * new as much as hash has to. */
typedef bd_status (*ps_manifest_hash)(void *user, const char *path, uint64_t *n_bytes,
                                      uint64_t *hash, bd_err *err); /* as bd_file_hash64 */
bd_status ps_manifest_scan(ps_manifest *m, const char *folder, const ps_manifest *before,
                           const char *before_folder, ps_manifest_hash hash, void *user,
                           uint64_t *fresh_bytes, bd_err *err) BD_MUST_CHECK;

/* ps_manifest_write - <folder>/MANIFEST, on the disk when it returns. */
bd_status ps_manifest_write(const ps_manifest *m, const char *folder, bd_err *err) BD_MUST_CHECK;

/* ps_manifest_read - BD_E_NOT_FOUND: there is none; BD_E_CORRUPT names it; *m is then empty. */
bd_status ps_manifest_read(ps_manifest *m, const char *folder, bd_err *err) BD_MUST_CHECK;

/* ps_manifest_check_sizes - every file is there with its size: cheap, done before a restore.
 * ps_manifest_check_files - the same and its hash: reads everything. BD_E_CORRUPT names the file.
 */
bd_status ps_manifest_check_sizes(const ps_manifest *m, const char *folder,
                                  bd_err *err) BD_MUST_CHECK;
bd_status ps_manifest_check_files(const ps_manifest *m, const char *folder,
                                  bd_err *err) BD_MUST_CHECK;
uint64_t ps_manifest_bytes(const ps_manifest *m);

#endif
