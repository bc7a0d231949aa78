/* proto/px_pack.h - the small control messages, through the generated protobuf-c code.
 *
 * Layer:     proto (base, protobuf-c).
 * Threads:   pure; any thread.
 * Ownership: px_pack appends to the caller's chain; what px_unpack gives is freed by
 * px_unpacked_free. Limits:    protobuf-c trusts its input: so the bytes are capped, and the memory
 * of one message.
 */
#ifndef PX_PACK_H
#define PX_PACK_H

#include "base/buf.h"
#include "base/err.h"

#include <protobuf-c/protobuf-c.h>

/* Input a control message may have. */
#define PX_UNPACK_MAX_BYTES ((size_t)4 << 20)

/* px_pack - encodes msg (`&request.base`) into out, which must be empty. BD_E_NOMEM; out untouched.
 */
bd_status px_pack(const ProtobufCMessage *msg, bd_chain *out, bd_err *err) BD_MUST_CHECK;

/* px_unpack - decodes a whole chain as a message of `type` (braid__v1__..__descriptor).
 *
 *   max_bytes  input limit, 0: PX_UNPACK_MAX_BYTES
 *   out        written on BD_OK; cast it to the message's struct; px_unpacked_free
 *
 * BD_E_CORRUPT names the message type (bad bytes, or more bytes than allowed); BD_E_NOMEM (also
 * when the message would take more than 64 bytes of memory for each byte of input + 64 KiB). Copies
 * the input once. */
bd_status px_unpack(const ProtobufCMessageDescriptor *type, const bd_chain *in, size_t max_bytes,
                    ProtobufCMessage **out, bd_err *err) BD_MUST_CHECK;
void px_unpacked_free(ProtobufCMessage *msg); /* NULL is fine */

#endif
