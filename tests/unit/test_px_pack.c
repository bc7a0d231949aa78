/* Small messages by way of the generated code: packed into chains, unpacked from any slices,
 * bounded. */
#include "base/fault.h"
#include "base/mem.h"

#include "proto/px_pack.h"

#include "tests/util/px_maker.h"

#include <braid/v1/coordinator.pb-c.h>
#include <braid/v1/parameter_server.pb-c.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void control_messages_survive_packing_in_slices(void **state)
{
    (void)state;
    Braid__V1__RegisterServerRequest req;
    char address[] = "10.0.0.7:7000";
    braid__v1__register_server_request__init(&req);
    req.index = 3;
    req.address = address;
    bd_chain packed = {0}, sliced = {0};
    long before = bd_mem_live_blocks();
    assert_int_equal(px_pack(&req.base, &packed, NULL), BD_OK);
    pm_maker m;
    pm_init(&m, 1);
    bd_buf *flat = bd_chain_flatten(&packed);
    pm_slice(&m, flat->bytes, flat->n_bytes, 3, &sliced);
    ProtobufCMessage *msg = NULL;
    assert_int_equal(
        px_unpack(&braid__v1__register_server_request__descriptor, &sliced, 0, &msg, NULL), BD_OK);
    const Braid__V1__RegisterServerRequest *got = (void *)msg;
    assert_int_equal(got->index, 3);
    assert_string_equal(got->address, "10.0.0.7:7000");
    px_unpacked_free(msg);
    bd_buf_unref(flat);
    bd_chain_deinit(&packed);
    bd_chain_deinit(&sliced);
    pm_deinit(&m);
    assert_int_equal(bd_mem_live_blocks(), before);
}

static void unpacking_is_bounded_and_typed(void **state)
{
    (void)state;
    bd_chain chain = {0};
    bd_err err = BD_ERR_INIT;
    ProtobufCMessage *msg = NULL;
    assert_int_equal(bd_chain_add_copy(&chain, "\x0a\x05xy", 4), BD_OK);
    assert_int_equal(px_unpack(&braid__v1__kv_get_request__descriptor, &chain, 0, &msg, &err),
                     BD_E_CORRUPT);
    assert_non_null(strstr(err.text, "KvGetRequest"));
    assert_int_equal(px_unpack(&braid__v1__kv_get_request__descriptor, &chain, 3, &msg, &err),
                     BD_E_CORRUPT);
    assert_string_equal(err.text, "KvGetRequest: 4 bytes, the limit is 3");
    bd_chain_deinit(&chain);
    /* 64 Ki empty sub-messages in 128 KiB: each would take an allocation of 40 bytes and a pointer.
     */
    bd_buf *many = bd_buf_new((size_t)2 << 16);
    for (size_t i = 0; i < many->n_bytes; i += 2) {
        many->bytes[i] = 0x0a;
        many->bytes[i + 1] = 0;
    }
    assert_int_equal(bd_chain_add_moved(&chain, many), BD_OK);
    long before = bd_mem_live_blocks();
    bd_status rc = px_unpack(&braid__v1__list_tables_reply__descriptor, &chain, 0, &msg, &err);
    assert_true(rc == BD_OK || rc == BD_E_NOMEM);
    if (rc == BD_OK) {
        px_unpacked_free(msg);
    }
    for (long nth = 0; nth < 5; nth++) {
        bd_fault_fail_alloc(nth);
        rc = px_unpack(&braid__v1__list_tables_reply__descriptor, &chain, 0, &msg, &err);
        bd_fault_fail_alloc(-1);
        assert_int_equal(rc, BD_E_NOMEM);
        assert_int_equal(bd_mem_live_blocks(), before);
    }
    bd_chain_deinit(&chain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_messages_survive_packing_in_slices),
        cmocka_unit_test(unpacking_is_bounded_and_typed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
