/* ps_server/ps_sorted.h - a file of sorted rows that RocksDB takes as its own, made without it.
 *
 * RocksDB's writer is made for values that come one by one: it copies a row five times on its way
 * to the file and asks a dozen objects about it, most of the CPU of a checkpoint. Here a row is
 * copied once, from where it lies to where it leaves for the disk.
 *
 * Layer:   ps_server; files only. Reading them is RocksDB's (ps_store.c); so is all that reads one
 *          row: these files have no filters, their blocks are large.
 * Threads: any; one of its own while it writes (ps_through.h).
 * Cost:    one copy of the rows, hashed twice while they are in the cache (block, file).
 *
 * The format, which RocksDB 6.27 and later read (docs/adr/0006; "block-based table"; varints are
 * LEB128, fixed numbers little-endian):
 *   file      data block... | index block | properties block | metaindex block | footer
 *   block     entry... | u32 start of every 16th entry... | u32 how many | u8 0 (not compressed) |
 *             u32 the low half of the XXH3-64 of all before that 0
 *   entry     varint bytes shared with the key before | varint bytes of the key that follow |
 *             varint bytes of the value | key | value (index and other blocks share nothing, and
 *             every entry of the index is a start)
 *   data      key: an entry's of ps_table.h, then u64 1 (number 0, a value); value: that entry's
 *   index     key: the last of the block, without the u64; value: varint offset, varint bytes of
 *             the block without the five that end it
 *   others    names and their values: see ps_sorted.c. When RocksDB takes the file it writes a u64
 *             into the properties, so that bytes from there on are not yet lasting
 *   footer    u8 4 (XXH3) | places of metaindex and index as in the index | 0... to 41 bytes |
 *             u32 5 | u64 0x88e241b785f4cff7
 */
#ifndef PS_SORTED_H
#define PS_SORTED_H

#include "base/file_hash.h"

#include "ps_server/ps_order.h"

/* ps_sorted_write - refs[n]: borrowed, ascending by table and key, no two alike; n > 0. *prefix:
 * owned, the hash of what will not change (NULL: not known). The file is not synced. BD_E_STATE:
 * not ascending; BD_E_NOMEM; BD_E_IO names the path. On failure the file may be there, of no use. */
bd_status ps_sorted_write(const char *path, const ps_ref *refs, size_t n, bd_file_prefix **prefix,
                          bd_err *err) BD_MUST_CHECK;

#endif
