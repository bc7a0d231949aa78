#include "tests/util/wire.h"

#include "base/assert.h"
#include "base/mem.h"

#include "proto/px_int.h"
#include "proto/px_pack.h"

#include <braid/v1/autograd.pb-c.h>
#include <braid/v1/coordinator.pb-c.h>
#include <braid/v1/parameter_server.pb-c.h>
#include <inttypes.h>
#include <string.h>

enum { PATH_BYTES = 256 };

/* ---- which messages there are ---- */
static void reach(const ProtobufCMessageDescriptor *m, const ProtobufCMessageDescriptor **out,
                  size_t *n)
{
    for (size_t i = 0; i < *n; i++) {
        if (out[i] == m) {
            return;
        }
    }
    BD_ASSERT(*n < WIRE_MAX_MESSAGES);
    out[(*n)++] = m;
    for (unsigned i = 0; i < m->n_fields; i++) {
        if (m->fields[i].type == PROTOBUF_C_TYPE_MESSAGE) {
            reach(m->fields[i].descriptor, out, n);
        }
    }
}

size_t wire_messages(const ProtobufCMessageDescriptor *out[WIRE_MAX_MESSAGES])
{
    const ProtobufCServiceDescriptor *const services[] = {
        &braid__v1__parameter_server__descriptor,
        &braid__v1__coordinator__descriptor,
        &braid__v1__autograd__descriptor,
    };
    size_t n = 0;
    for (size_t s = 0; s < sizeof services / sizeof services[0]; s++) {
        for (unsigned m = 0; m < services[s]->n_methods; m++) {
            reach(services[s]->methods[m].input, out, &n);
            reach(services[s]->methods[m].output, out, &n);
        }
    }
    return n;
}

const ProtobufCMessageDescriptor *wire_find(const char *name)
{
    const ProtobufCMessageDescriptor *all[WIRE_MAX_MESSAGES];
    size_t n = wire_messages(all);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(all[i]->name, name) == 0) {
            return all[i];
        }
    }
    return NULL;
}

static const px_desc *bulk_desc(const char *short_name)
{
    static const struct {
        const char *name;
        const px_desc *desc;
    } rows[] = {
#define BD_X(name, proto_name) {#proto_name, &px_desc_##name},
        PX_MESSAGE_MAP(BD_X)
#undef BD_X
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, short_name) == 0) {
            return rows[i].desc;
        }
    }
    return NULL;
}

/* ---- values as text ---- */
static void put_bytes(FILE *to, const char *path, const void *bytes, size_t n)
{
    if (n > 0) {
        (void)fprintf(to, "%s=x:", path);
        for (size_t i = 0; i < n; i++) {
            (void)fprintf(to, "%02x", ((const uint8_t *)bytes)[i]);
        }
        (void)fprintf(to, "\n");
    }
}

static uint64_t bits64(const void *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static uint32_t bits32(const void *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* ---- messages of px.h ---- */
static void put_bulk(FILE *to, const char *path, px_kind kind, const px_bulk *b)
{
    for (size_t i = 0; i < px_bulk_count(b); i++) {
        uint64_t v = 0;
        px_bulk_copy(b, i, 1, &v);
        if (kind != PX_BULK4) {
            (void)fprintf(to, "%s[%zu]=%" PRIu64 "\n", path, i, v);
        } else {
            (void)fprintf(to, "%s[%zu]=f:%08" PRIx32 "\n", path, i, bits32(&v));
        }
    }
}

static void put_px(FILE *to, const char *path, const px_desc *d, const uint8_t *msg);

static void put_px_field(FILE *to, const char *path, const px_field *f, const uint8_t *msg)
{
    const uint8_t *at = msg + f->offset;
    char inner[PATH_BYTES];
    switch (f->kind) {
    case PX_U32:
        if (bits32(at) != 0) {
            (void)fprintf(to, "%s=%" PRIu32 "\n", path, bits32(at));
        }
        break;
    case PX_ENUM:
    case PX_S32:
        if (bits32(at) != 0) {
            (void)fprintf(to, "%s=%" PRId32 "\n", path, (int32_t)bits32(at));
        }
        break;
    case PX_U64:
    case PX_FIX64:
        if (bits64(at) != 0) {
            (void)fprintf(to, "%s=%" PRIu64 "\n", path, bits64(at));
        }
        break;
    case PX_BOOL:
        if (*at != 0) {
            (void)fprintf(to, "%s=1\n", path);
        }
        break;
    case PX_DOUBLE:
        if (bits64(at) != 0) {
            (void)fprintf(to, "%s=d:%016" PRIx64 "\n", path, bits64(at));
        }
        break;
    case PX_TEXT: {
        const char *text = *(const char *const *)(const void *)at;
        put_bytes(to, path, text, text != NULL ? strlen(text) : 0);
        break;
    }
    case PX_BYTES: {
        const px_bulk *b = (const px_bulk *)(const void *)at;
        uint8_t *bytes = bd_alloc(b->n_bytes);
        if (bytes != NULL) {
            px_bulk_copy(b, 0, b->n_bytes, bytes);
            put_bytes(to, path, bytes, b->n_bytes);
        }
        bd_free(bytes);
        break;
    }
    case PX_BULK4:
    case PX_BULKU4:
    case PX_BULK8:
        put_bulk(to, path, f->kind, (const px_bulk *)(const void *)at);
        break;
    case PX_LIST: {
        const uint8_t *items = *(const uint8_t *const *)(const void *)at;
        size_t n = *(const size_t *)(const void *)(msg + f->count_offset);
        for (size_t i = 0; i < n; i++) {
            (void)snprintf(inner, sizeof inner, "%s[%zu]", path, i);
            (void)fprintf(to, "%s{}\n", inner);
            put_px(to, inner, f->sub, items + i * f->sub->size_bytes);
        }
        break;
    }
    case PX_ONE: {
        const uint8_t *one = *(const uint8_t *const *)(const void *)at;
        if (one != NULL) {
            (void)fprintf(to, "%s{}\n", path);
            put_px(to, path, f->sub, one);
        }
        break;
    }
    }
}

static void put_px(FILE *to, const char *path, const px_desc *d, const uint8_t *msg)
{
    char inner[PATH_BYTES];
    for (size_t i = 0; i < d->n_fields; i++) {
        (void)snprintf(inner, sizeof inner, "%s%s%s", path, path[0] != '\0' ? "." : "",
                       d->fields[i].name);
        put_px_field(to, inner, &d->fields[i], msg);
    }
}

/* ---- messages of protobuf-c ---- */
static void put_c(FILE *to, const char *path, const ProtobufCMessage *msg);

/* One value; is_item: of a repeated field, where a default is told too. */
static void put_c_value(FILE *to, const char *path, const ProtobufCFieldDescriptor *f,
                        const void *at, bool is_item)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        if (is_item || bits32(at) != 0) {
            (void)fprintf(to, "%s=%" PRIu32 "\n", path, bits32(at));
        }
        break;
    case PROTOBUF_C_TYPE_ENUM:
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        if (is_item || bits32(at) != 0) {
            (void)fprintf(to, "%s=%" PRId32 "\n", path, (int32_t)bits32(at));
        }
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        if (is_item || bits64(at) != 0) {
            (void)fprintf(to, "%s=%" PRIu64 "\n", path, bits64(at));
        }
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        if (is_item || bits64(at) != 0) {
            (void)fprintf(to, "%s=%" PRId64 "\n", path, (int64_t)bits64(at));
        }
        break;
    case PROTOBUF_C_TYPE_BOOL:
        if (is_item || *(const protobuf_c_boolean *)at != 0) {
            (void)fprintf(to, "%s=%d\n", path, *(const protobuf_c_boolean *)at);
        }
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        if (is_item || bits32(at) != 0) {
            (void)fprintf(to, "%s=f:%08" PRIx32 "\n", path, bits32(at));
        }
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        if (is_item || bits64(at) != 0) {
            (void)fprintf(to, "%s=d:%016" PRIx64 "\n", path, bits64(at));
        }
        break;
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = *(const char *const *)at;
        if (is_item) {
            (void)fprintf(to, "%s{}\n", path);
        }
        put_bytes(to, path, text, text != NULL ? strlen(text) : 0);
        break;
    }
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *b = at;
        put_bytes(to, path, b->data, b->len);
        break;
    }
    case PROTOBUF_C_TYPE_MESSAGE: {
        const ProtobufCMessage *sub = *(const ProtobufCMessage *const *)at;
        if (sub != NULL) {
            (void)fprintf(to, "%s{}\n", path);
            put_c(to, path, sub);
        }
        break;
    }
    }
}

static size_t value_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_ENUM:
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return 4;
    default:
        return 8;
    }
}

static void put_c(FILE *to, const char *path, const ProtobufCMessage *msg)
{
    const uint8_t *base = (const uint8_t *)msg;
    for (unsigned i = 0; i < msg->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &msg->descriptor->fields[i];
        char inner[PATH_BYTES], item[PATH_BYTES + 24];
        (void)snprintf(inner, sizeof inner, "%s%s%s", path, path[0] != '\0' ? "." : "", f->name);
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t n = *(const size_t *)(const void *)(base + f->quantifier_offset);
            const uint8_t *items = *(const uint8_t *const *)(const void *)(base + f->offset);
            for (size_t k = 0; k < n; k++) {
                (void)snprintf(item, sizeof item, "%s[%zu]", inner, k);
                put_c_value(to, item, f, items + k * value_bytes(f->type), true);
            }
        } else if ((f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) == 0 ||
                   *(const uint32_t *)(const void *)(base + f->quantifier_offset) == f->id) {
            put_c_value(to, inner, f, base + f->offset, false);
        }
    }
}

/* ---- both ---- */
static bd_status recode_bulk(const px_desc *d, const bd_chain *in, FILE *text, bd_chain *again,
                             bd_err *err)
{
    bd_arena arena;
    bd_arena_init(&arena);
    uint8_t *msg = bd_arena_calloc(&arena, 1, d->size_bytes);
    if (msg == NULL) {
        (void)bd_err_set(err, BD_E_NOMEM, "%s", d->name);
        bd_arena_deinit(&arena);
        return BD_E_NOMEM;
    }
    bd_status rc = px_decode(d, in, NULL, &arena, msg, err);
    if (rc == BD_OK && text != NULL) {
        put_px(text, "", d, msg);
    }
    if (rc == BD_OK) {
        rc = px_encode(d, msg, again, err);
    }
    bd_arena_deinit(&arena);
    return rc;
}

bd_status wire_recode(const ProtobufCMessageDescriptor *type, const bd_chain *in, FILE *text,
                      bd_chain *again, bd_err *err)
{
    const px_desc *d = bulk_desc(type->short_name);
    ProtobufCMessage *msg = NULL;
    if (d != NULL) {
        return recode_bulk(d, in, text, again, err);
    }
    bd_status rc = px_unpack(type, in, 0, &msg, err);
    if (rc == BD_OK && text != NULL) {
        put_c(text, "", msg);
    }
    if (rc == BD_OK) {
        rc = px_pack(msg, again, err);
    }
    px_unpacked_free(msg);
    return rc;
}
