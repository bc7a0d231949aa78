/* ps_server/ps_parts.h - where the parts of a checkpoint are, and which of them belong together.
 *
 * Layer:     ps_server; files only.
 * Threads:   any.
 * Ownership: ps_parts_deinit frees what find put in.
 * Places:    <D>/checkpoints/<name> and <D>/<sub>/checkpoints/<name> of every folder D that is
 *            searched: the server's own data folder, and those it was told (restore_from).
 * Choice:    parts of one cut agree in (job epoch, step, servers). Of several cuts of that name the
 *            one with the highest epoch is meant, whichever folder it lies in: every server decides
 *            alike, as long as they search the same folders.
 */
#ifndef PS_PARTS_H
#define PS_PARTS_H

#include "ps_server/ps_manifest.h"

typedef struct ps_ckpt_part {
    char *folder;  /* owned */
    ps_manifest m; /* owned */
} ps_ckpt_part;

typedef struct ps_parts {
    ps_ckpt_part *items; /* owned [n]: parts of the chosen cut, by server index */
    size_t n, cap;
    bool damaged;   /* a MANIFEST could not be read: */
    bd_err problem; /* why */
} ps_parts;

void ps_parts_deinit(ps_parts *p); /* zeroed is fine */

/* ps_parts_find - own: a data folder; more: folders separated by commas, may be empty; epoch: the
 * job epoch that made it, 0: the newest. BD_E_NOT_FOUND: no part anywhere (or the damaged one's own
 * error). The set may have gaps: see ps_parts_check. */
bd_status ps_parts_find(ps_parts *p, const char *own, const char *more, const char *name,
                        uint64_t epoch, bd_err *err) BD_MUST_CHECK;

/* ps_parts_check - every part that holds a slot of [first, end) is there; else BD_E_NOT_FOUND
 * naming the first that is missing, or the error of a damaged one. */
bd_status ps_parts_check(const ps_parts *p, uint32_t first, uint32_t end,
                         bd_err *err) BD_MUST_CHECK;
/* Does part i hold a slot of [first, end)? */
bool ps_part_overlaps(const ps_ckpt_part *part, uint32_t first, uint32_t end);

#endif
