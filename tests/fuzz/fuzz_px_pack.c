/* Any bytes as any control message: refused, or unpacked within the limits and packed again.
 *
 * Input: one byte chooses the message, the rest is the message. */
#include "proto/px_pack.h"

#include "tests/fuzz/fuzz_input.h"

#include <braid/v1/autograd.pb-c.h>
#include <braid/v1/coordinator.pb-c.h>
#include <braid/v1/parameter_server.pb-c.h>

/* Every request and every reply of every service, so that a new method is covered by itself; and
 * those that lie inside of others and are kept on disk alone. */
static const ProtobufCServiceDescriptor *const services[] = {
    &braid__v1__parameter_server__descriptor,
    &braid__v1__coordinator__descriptor,
    &braid__v1__autograd__descriptor,
};
static const ProtobufCMessageDescriptor *const others[] = {
    &braid__v1__table_spec__descriptor,
};

/* Type number n, modulo how many there are. */
static const ProtobufCMessageDescriptor *type_of(size_t n)
{
    size_t total = sizeof others / sizeof others[0];
    for (size_t i = 0; i < sizeof services / sizeof services[0]; i++) {
        total += 2 * services[i]->n_methods;
    }
    n %= total;
    for (size_t i = 0; i < sizeof services / sizeof services[0]; i++) {
        if (n < 2 * services[i]->n_methods) {
            const ProtobufCMethodDescriptor *m = &services[i]->methods[n / 2];
            return n % 2 == 0 ? m->input : m->output;
        }
        n -= 2 * services[i]->n_methods;
    }
    return others[n];
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes < 1) {
        return 0;
    }
    bd_chain chain = {0}, packed = {0};
    ProtobufCMessage *msg = NULL;
    bd_err err = BD_ERR_INIT;
    if (bd_chain_add_copy(&chain, bytes + 1, n_bytes - 1) != BD_OK) {
        abort();
    }
    const ProtobufCMessageDescriptor *type = type_of(bytes[0]);
    bd_status rc = px_unpack(type, &chain, 0, &msg, &err);
    if (rc == BD_OK) {
        if (px_pack(msg, &packed, NULL) != BD_OK) {
            abort();
        }
        px_unpacked_free(msg);
    } else if (rc != BD_E_CORRUPT && rc != BD_E_NOMEM) {
        abort();
    }
    bd_chain_deinit(&packed);
    bd_chain_deinit(&chain);
    return 0;
}
