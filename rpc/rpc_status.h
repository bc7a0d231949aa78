/* rpc/rpc_status.h - bd_status on the wire: gRPC code, `braid-status` trailer, one line of text.
 *
 * Layer: rpc, private. Pure: any thread, no allocation.
 * Wire:  the gRPC code is for foreign clients; Braid's own read the trailer, whose value is the
 *        number of the bd_status in decimal, for example "-16".
 */
#ifndef RPC_STATUS_H
#define RPC_STATUS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define RPC_STATUS_TRAILER "braid-status"

/* The gRPC status code (0..16) that stands for a failed bd_status. */
int rpc_status_to_grpc(bd_status code);
/* The bd_status for a gRPC code of a peer that sent no trailer. */
bd_status rpc_status_from_grpc(int grpc_code);
/* The bd_status in a trailer value of n bytes; BD_E_INTERNAL for garbage and for non-errors. */
bd_status rpc_status_parse(const char *text, size_t n);

/* Copies peer bytes as one printable line: control bytes and bytes over 0x7e become \xNN (texts
 * that came through bd_err are like that already); cut at cap - 1. Always terminated. */
void rpc_escape(char *out, size_t cap, const void *bytes, size_t n);

/* True for "127.x.y.z[:p]", "localhost[:p]", "[::1][:p]", "unix:..." : what stays on this host. */
bool rpc_target_is_local(const char *target);

#endif
