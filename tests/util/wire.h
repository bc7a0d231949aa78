/* tests/util/wire.h - every message of the public API, decoded by our codecs and told as text.
 *
 * A message's text has one line a value that is not the default, in the order of the .proto:
 * `tables[0].keys[1]=5`, `spec{}` for a message that is there, `name=x:6162` for text and bytes,
 * f32 and f64 as hex bits. tests/integ/wire/wire.py writes the same text from Python's protobuf.
 *
 * Threads: one. Messages: those that the services of braid/v1 reach, found through the descriptors.
 */
#ifndef WIRE_H
#define WIRE_H

#include "base/buf.h"
#include "base/err.h"

#include <protobuf-c/protobuf-c.h>

#include <stdio.h>

enum { WIRE_MAX_MESSAGES = 256 };

/* All messages, in a fixed order; returns their number. */
size_t wire_messages(const ProtobufCMessageDescriptor *out[WIRE_MAX_MESSAGES]);
/* By name, "braid.v1.PushRequest"; NULL. */
const ProtobufCMessageDescriptor *wire_find(const char *name);
/* Decodes `in` (px.h's codec where it has the message, else px_pack.h's), writes its text to `text`
 * (NULL: no text), and encodes it again into again (must be empty). */
bd_status wire_recode(const ProtobufCMessageDescriptor *type, const bd_chain *in, FILE *text,
                      bd_chain *again, bd_err *err) BD_MUST_CHECK;

#endif
