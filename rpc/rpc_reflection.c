/* grpc.reflection.v1.ServerReflection (and v1alpha, which is the same on the wire): what services
 * this server has, and the descriptors of the .proto files they come from.
 *
 * The files lie in the binary as one FileDescriptorSet (proto/px_files.h), so they are walked as
 * the bytes they are; the walker knows the handful of field numbers of descriptor.proto that hold
 * names.
 */
#include "base/mem.h"

#include "proto/px_files.h"
#include "proto/px_pack.h"
#include "rpc/rpc_int.h"
#include "rpc/rpc_status.h"

#include <stdio.h>
#include <string.h>

#include "grpc/reflection/v1/reflection.pb-c.h"

#define MAX_REQUEST_BYTES 4096
#define MAX_SERVICES      64

/* ---- walking descriptors ---- */

typedef struct span {
    const uint8_t *at, *end;
} span;

typedef struct field {
    uint32_t number;
    span bytes; /* of a length-delimited one; else empty */
} field;

static bool next_varint(span *s, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; s->at < s->end && shift < 64; shift += 7) {
        uint8_t b = *s->at++;
        *v |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) {
            return true;
        }
    }
    return false;
}

/* The next field of a message; false at its end. */
static bool next_field(span *s, field *f)
{
    uint64_t tag, v;
    if (s->at >= s->end || !next_varint(s, &tag)) {
        return false;
    }
    *f = (field){.number = (uint32_t)(tag >> 3)};
    switch (tag & 7) {
    case 0:
        return next_varint(s, &v);
    case 1:
        s->at += 8;
        return s->at <= s->end;
    case 2:
        if (!next_varint(s, &v) || v > (uint64_t)(s->end - s->at)) {
            return false;
        }
        f->bytes = (span){s->at, s->at + v};
        s->at += v;
        return true;
    case 5:
        s->at += 4;
        return s->at <= s->end;
    default:
        return false;
    }
}

static span field_of(span message, uint32_t number)
{
    field f;
    while (next_field(&message, &f)) {
        if (f.number == number) {
            return f.bytes;
        }
    }
    return (span){NULL, NULL};
}

static bool is_text(span s, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(s.end - s.at) == n && (n == 0 || memcmp(s.at, text, n) == 0);
}

typedef enum kind { IS_FILE, IS_MESSAGE, IS_ENUM, IS_SERVICE, IS_LEAF } kind;

/* What a field of a descriptor holds: FileDescriptorProto's message_type, DescriptorProto's
 * nested_type and so on. */
static bool child_kind(kind k, uint32_t number, kind *out)
{
    static const struct {
        kind parent;
        uint32_t number;
        kind child;
    } rows[] = {
        {IS_FILE, 4, IS_MESSAGE}, {IS_FILE, 5, IS_ENUM},       {IS_FILE, 6, IS_SERVICE},
        {IS_MESSAGE, 2, IS_LEAF}, {IS_MESSAGE, 3, IS_MESSAGE}, {IS_MESSAGE, 4, IS_ENUM},
        {IS_MESSAGE, 8, IS_LEAF}, {IS_ENUM, 2, IS_LEAF},       {IS_SERVICE, 2, IS_LEAF},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].parent == k && rows[i].number == number) {
            *out = rows[i].child;
            return true;
        }
    }
    return false;
}

/* symbol without the prefix `name.`, "" for name itself; NULL: it does not start with it. */
static const char *after_name(span name, const char *symbol)
{
    size_t n = (size_t)(name.end - name.at);
    if (n == 0 || strncmp(symbol, (const char *)name.at, n) != 0 ||
        (symbol[n] != '\0' && symbol[n] != '.')) {
        return NULL;
    }
    return symbol[n] == '.' ? symbol + n + 1 : symbol + n;
}

/* symbol: relative to what the descriptor is in. Nesting of our files bounds the depth. */
static bool has_symbol(kind k, span descriptor, const char *symbol) // NOLINT(misc-no-recursion)
{
    const char *rest = after_name(field_of(descriptor, k == IS_FILE ? 2 : 1), symbol);
    if (rest == NULL || rest[0] == '\0') {
        return rest != NULL && k != IS_FILE;
    }
    field f;
    kind child;
    while (next_field(&descriptor, &f)) {
        if (child_kind(k, f.number, &child) && has_symbol(child, f.bytes, rest)) {
            return true;
        }
    }
    return false;
}

/* A file by its name, or the one that declares a symbol. */
static bool find_file(const char *name, const char *symbol, span *out)
{
    span set = {px_files, px_files + px_files_bytes};
    field f;
    while (next_field(&set, &f)) {
        bool is_it = name != NULL ? is_text(field_of(f.bytes, 1), name)
                                  : has_symbol(IS_FILE, f.bytes, symbol);
        if (f.number == 1 && is_it) {
            *out = f.bytes;
            return true;
        }
    }
    return false;
}

/* ---- answers ---- */

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_response;

/* Everything an answer points to. */
typedef struct answer {
    reflection_response m;
    Grpc__Reflection__V1__FileDescriptorResponse file;
    Grpc__Reflection__V1__ExtensionNumberResponse extensions;
    Grpc__Reflection__V1__ListServiceResponse list;
    Grpc__Reflection__V1__ErrorResponse error;
    ProtobufCBinaryData bytes;
    Grpc__Reflection__V1__ServiceResponse services[MAX_SERVICES];
    Grpc__Reflection__V1__ServiceResponse *service_list[MAX_SERVICES];
    char names[MAX_SERVICES][96];
    char text[256];
} answer;

static void put_error(answer *a, bd_status rc, const char *what, const char *which)
{
    grpc__reflection__v1__error_response__init(&a->error);
    (void)snprintf(a->text, sizeof a->text, "%s: %.200s", what, which);
    a->error.error_code = rpc_status_to_grpc(rc);
    a->error.error_message = a->text;
    a->m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    a->m.error_response = &a->error;
}

static void put_file(answer *a, const char *name, const char *symbol)
{
    span found;
    if (!find_file(name, symbol, &found)) {
        put_error(a, BD_E_NOT_FOUND, name != NULL ? "no such file" : "no such symbol",
                  name != NULL ? name : symbol);
        return;
    }
    union {
        const uint8_t *in;
        uint8_t *out; /* only read */
    } u = {.in = found.at};
    a->bytes = (ProtobufCBinaryData){(size_t)(found.end - found.at), u.out};
    grpc__reflection__v1__file_descriptor_response__init(&a->file);
    a->file.n_file_descriptor_proto = 1;
    a->file.file_descriptor_proto = &a->bytes;
    a->m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    a->m.file_descriptor_response = &a->file;
}

static bool is_listed(const answer *a, const char *name, size_t n)
{
    for (size_t i = 0; i < a->list.n_service; i++) {
        if (strlen(a->names[i]) == n && memcmp(a->names[i], name, n) == 0) {
            return true;
        }
    }
    return false;
}

/* The services whose methods are registered. */
static void put_services(answer *a, const rpc_server *s)
{
    grpc__reflection__v1__list_service_response__init(&a->list);
    a->list.service = a->service_list;
    for (size_t i = 0; i < s->n_methods && a->list.n_service < MAX_SERVICES; i++) {
        const char *name = s->methods[i].path + 1; /* "/package.Service/Method" */
        size_t n = strcspn(name, "/"), k = a->list.n_service;
        if (n >= sizeof a->names[0] || is_listed(a, name, n)) {
            continue;
        }
        memcpy(a->names[k], name, n);
        a->names[k][n] = '\0';
        grpc__reflection__v1__service_response__init(&a->services[k]);
        a->services[k].name = a->names[k];
        a->service_list[k] = &a->services[k];
        a->list.n_service++;
    }
    a->m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    a->m.list_services_response = &a->list;
}

/* None of our files has extensions. */
static void put_extensions(answer *a, char *type)
{
    span found;
    if (!find_file(NULL, type, &found)) {
        put_error(a, BD_E_NOT_FOUND, "no such type", type);
        return;
    }
    grpc__reflection__v1__extension_number_response__init(&a->extensions);
    a->extensions.base_type_name = type;
    a->m.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
    a->m.all_extension_numbers_response = &a->extensions;
}

static void fill(answer *a, const rpc_server *s, reflection_request *r)
{
    grpc__reflection__v1__server_reflection_response__init(&a->m);
    a->m.valid_host = r->host;
    a->m.original_request = r;
    switch (r->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        put_file(a, r->file_by_filename, NULL);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        put_file(a, NULL, r->file_containing_symbol);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        put_extensions(a, r->all_extension_numbers_of_type);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        put_services(a, s);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        put_error(a, BD_E_NOT_FOUND, "no such extension of",
                  r->file_containing_extension->containing_type);
        break;
    default:
        put_error(a, BD_E_INVALID, "reflection", "the request asks nothing");
        break;
    }
}

/* ---- the stream ---- */

typedef struct conversation {
    const rpc_server *server;
    rpc_stream *stream; /* shared */
} conversation;

static void on_message(void *user, bd_chain *msg)
{
    conversation *c = user;
    ProtobufCMessage *request = NULL;
    bd_chain out = {0};
    answer *a = bd_calloc(1, sizeof *a);
    bd_status rc = a == NULL
                       ? BD_E_NOMEM
                       : px_unpack(&grpc__reflection__v1__server_reflection_request__descriptor,
                                   msg, MAX_REQUEST_BYTES, &request, NULL);
    if (rc == BD_OK) {
        fill(a, c->server, (reflection_request *)(void *)request);
        rc = px_pack(&a->m.base, &out, NULL);
    }
    if (rc != BD_OK || rpc_stream_send(c->stream, &out, NULL) != BD_OK) {
        bd_chain_deinit(&out);
        rpc_stream_cancel(c->stream); /* not a request, or a peer that does not read */
    }
    px_unpacked_free(request);
    bd_free(a);
}

static void on_close(void *user, bd_status rc, const bd_err *err)
{
    (void)rc;
    (void)err;
    conversation *c = user;
    rpc_stream_unref(c->stream);
    bd_free(c);
}

static bd_status on_open(void *user, rpc_stream *s, rpc_stream_events *ev, bd_err *err)
{
    conversation *c = bd_calloc(1, sizeof *c);
    if (c == NULL) {
        return bd_err_set(err, BD_E_NOMEM, "out of memory");
    }
    c->server = user;
    c->stream = rpc_stream_ref(s);
    *ev = (rpc_stream_events){.on_message = on_message, .on_close = on_close, .user = c};
    return BD_OK;
}

bd_status rpc_reflection_register(rpc_server *s)
{
    static const char *const methods[] = {
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    };
    bd_status rc = BD_OK;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0] && rc == BD_OK; i++) {
        rc = rpc_server_register_stream(s, methods[i], on_open, s);
    }
    return rc;
}
