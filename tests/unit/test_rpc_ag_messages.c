/* Messages of distributed autograd as a retry, a late network or a stranger would bring them, over
 * real gRPC on loopback. */
#include "proto/px_pack.h"

#include "tests/util/ag_pair.h"

#include <braid/v1/autograd.pb-c.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- messages as a retry or a late network would bring them ---- */

static bd_status send_raw(ap_world *w, const char *method, const ProtobufCMessage *msg, bd_err *err)
{
    bd_chain body = {0}, reply = {0};
    assert_int_equal(px_pack(msg, &body, err), BD_OK);
    bd_status rc = rpc_call_sync(w->to_a, method, &body, &(rpc_call_options){.deadline_ms = 5000},
                                 &reply, err);
    bd_chain_deinit(&body);
    bd_chain_deinit(&reply);
    return rc;
}

static bd_status raw_forward(ap_world *w, uint64_t client, uint64_t number, bd_err *err)
{
    Braid__V1__AutogradContextId id = BRAID__V1__AUTOGRAD_CONTEXT_ID__INIT;
    Braid__V1__AutogradForwardRequest r;
    Braid__V1__AutogradTensor t = BRAID__V1__AUTOGRAD_TENSOR__INIT;
    Braid__V1__AutogradTensor *list[1] = {&t};
    uint64_t dims[2] = {1, 2};
    float x[2] = {1, 1};
    char name[] = "linear";
    braid__v1__autograd_forward_request__init(&r);
    id.client_id = client;
    id.number = number;
    t.n_dims = 2;
    t.dims = dims;
    t.data.data = (uint8_t *)x;
    t.data.len = sizeof x;
    r.context = &id;
    r.caller_id = client;
    r.message_id = 1;
    r.module = name;
    r.n_inputs = 1;
    r.inputs = list;
    return send_raw(w, "/braid.v1.Autograd/Forward", &r.base, err);
}

static bd_status raw_cleanup(ap_world *w, uint64_t client, uint64_t number)
{
    Braid__V1__AutogradContextId id = BRAID__V1__AUTOGRAD_CONTEXT_ID__INIT;
    Braid__V1__AutogradCleanupRequest r = BRAID__V1__AUTOGRAD_CLEANUP_REQUEST__INIT;
    bd_err err = BD_ERR_INIT;
    id.client_id = client;
    id.number = number;
    r.context = &id;
    return send_raw(w, "/braid.v1.Autograd/Cleanup", &r.base, &err);
}

static void a_late_message_does_not_bring_a_context_back(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    for (uint64_t number = 1; number <= 3; number += 2) { /* 2 never comes here */
        assert_int_equal(raw_forward(w, 50, number, &err), BD_OK);
        assert_int_equal(rpc_ag_n_contexts(w->node_a.ag), 1);
        assert_int_equal(raw_cleanup(w, 50, number), BD_OK);
        assert_int_equal(raw_cleanup(w, 50, number), BD_OK);
        assert_int_equal(raw_forward(w, 50, number, &err), BD_E_STATE);
        assert_string_equal(strstr(err.text, "Error"),
                            number == 1 ? "Error on node a: context 50/1: has ended"
                                        : "Error on node a: context 50/3: has ended");
        assert_int_equal(rpc_ag_n_contexts(w->node_a.ag), 0);
    }
    /* A cleanup that overtakes its forward wins as well. */
    assert_int_equal(raw_cleanup(w, 50, 9), BD_OK);
    assert_int_equal(raw_forward(w, 50, 9, &err), BD_E_STATE);
    /* The one in the gap is still welcome. */
    assert_int_equal(raw_forward(w, 50, 2, &err), BD_OK);
    assert_int_equal(raw_cleanup(w, 50, 2), BD_OK);
}

/* However many contexts end out of order, memory stays bounded and none comes back. */
static void ended_contexts_are_remembered_in_bounded_room(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    for (uint64_t number = 2; number <= 2200; number += 2) {
        assert_int_equal(raw_cleanup(w, 51, number), BD_OK);
    }
    assert_int_equal(raw_forward(w, 51, 2, &err), BD_E_STATE);
    assert_int_equal(raw_forward(w, 51, 2200, &err), BD_E_STATE);
    assert_int_equal(raw_forward(w, 51, 1, &err), BD_E_STATE); /* older than what is remembered */
    assert_int_equal(raw_forward(w, 51, 2199, &err), BD_OK);
    assert_int_equal(raw_cleanup(w, 51, 2199), BD_OK);
}

static void a_dropped_client_stays_dropped(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    assert_int_equal(raw_forward(w, 52, 1, &err), BD_OK);
    assert_int_equal(raw_forward(w, 52, 2, &err), BD_OK);
    assert_int_equal(raw_forward(w, 53, 1, &err), BD_OK);
    assert_int_equal(rpc_ag_n_contexts(w->node_a.ag), 3);
    rpc_ag_drop_client(w->node_a.ag, 52);
    assert_int_equal(rpc_ag_n_contexts(w->node_a.ag), 1);
    assert_int_equal(raw_forward(w, 52, 1, &err), BD_E_CLIENT_EXPIRED);
    assert_int_equal(raw_forward(w, 52, 3, &err), BD_E_CLIENT_EXPIRED);
    assert_int_equal(raw_cleanup(w, 53, 1), BD_OK);
}

static bd_status raw_backward(ap_world *w, uint64_t client, uint64_t sequence, bool fused,
                              bd_err *err)
{
    Braid__V1__AutogradContextId id = BRAID__V1__AUTOGRAD_CONTEXT_ID__INIT;
    Braid__V1__AutogradBackwardRequest r = BRAID__V1__AUTOGRAD_BACKWARD_REQUEST__INIT;
    Braid__V1__AutogradTensor t = BRAID__V1__AUTOGRAD_TENSOR__INIT;
    Braid__V1__AutogradTensor *list[1] = {&t};
    uint64_t dims[2] = {1, 3};
    float g[3] = {1, 10, 100};
    id.client_id = client;
    id.number = 1;
    t.n_dims = 2;
    t.dims = dims;
    t.data.data = (uint8_t *)g;
    t.data.len = sizeof g;
    r.context = &id;
    r.caller_id = client;
    r.message_id = 1;
    r.sequence = sequence;
    r.n_grad_outputs = 1;
    r.grad_outputs = list;
    r.step = fused;
    r.cleanup = fused;
    return send_raw(w, "/braid.v1.Autograd/Backward", &r.base, err);
}

static void a_repeated_backward_or_step_counts_once(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    const float once[6] = {0.5f, 1.5f, -2, -1, -5, -6};
    assert_int_equal(raw_forward(w, 54, 1, &err), BD_OK);
    assert_int_equal(raw_backward(w, 54, 1, false, &err), BD_OK);
    assert_int_equal(raw_backward(w, 54, 1, false, &err), BD_OK);
    Braid__V1__AutogradContextId id = BRAID__V1__AUTOGRAD_CONTEXT_ID__INIT;
    Braid__V1__AutogradStepRequest r = BRAID__V1__AUTOGRAD_STEP_REQUEST__INIT;
    id.client_id = 54;
    id.number = 1;
    r.context = &id;
    r.sequence = 2;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(send_raw(w, "/braid.v1.Autograd/Step", &r.base, &err), BD_OK);
        ap_expect_param(w->node_a.ag, "linear", once, 6);
    }
    assert_int_equal(raw_cleanup(w, 54, 1), BD_OK);
}

static void a_repeated_fused_call_gets_its_first_answer(void **state)
{
    ap_world *w = *state;
    bd_err err = BD_ERR_INIT;
    const float once[6] = {0.5f, 1.5f, -2, -1, -5, -6};
    assert_int_equal(raw_forward(w, 55, 1, &err), BD_OK);
    assert_int_equal(raw_backward(w, 55, 1, true, &err), BD_OK);
    assert_int_equal(raw_backward(w, 55, 1, true, &err), BD_OK);
    ap_expect_param(w->node_a.ag, "linear", once, 6);
    assert_int_equal(raw_backward(w, 55, 2, true, &err), BD_E_STATE);
}

static void garbage_is_refused(void **state)
{
    ap_world *w = *state;
    static const char *const methods[] = {"Forward", "Backward",   "Step", "Cleanup", "Gradients",
                                          "Fetch",   "DeleteFork", "Fork", "Reach"};
    static const uint8_t junk[] = {0x0a, 0xff, 0x01, 0x02};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        char method[64];
        (void)snprintf(method, sizeof method, "/braid.v1.Autograd/%s", methods[i]);
        for (size_t n = 0; n <= sizeof junk; n += sizeof junk) { /* nothing at all, and junk */
            bd_err err = BD_ERR_INIT;
            bd_chain body = {0}, reply = {0};
            assert_int_equal(bd_chain_add_copy(&body, junk, n), BD_OK);
            bd_status rc = rpc_call_sync(w->to_a, method, &body,
                                         &(rpc_call_options){.deadline_ms = 5000}, &reply, &err);
            assert_int_equal(rc, n == 0 ? BD_E_INVALID : BD_E_CORRUPT);
            bd_chain_deinit(&body);
        }
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, ap_set_up, ap_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_late_message_does_not_bring_a_context_back),
        T(ended_contexts_are_remembered_in_bounded_room),
        T(a_dropped_client_stays_dropped),
        T(a_repeated_backward_or_step_counts_once),
        T(a_repeated_fused_call_gets_its_first_answer),
        T(garbage_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
