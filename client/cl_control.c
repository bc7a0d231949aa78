/* Control calls: one to every server at once. */
#include "base/mem.h"

#include "client/cl_int.h"

typedef struct ask_all {
    const ProtobufCMessageDescriptor *reply_type;
    ProtobufCMessage **replies;
} ask_all;

static bd_status on_reply(void *user, cl_call *call, bd_err *err)
{
    ask_all *a = user;
    bd_status rc = px_unpack(a->reply_type, &call->reply, 0, &a->replies[call->server_idx], err);
    if (rc != BD_OK) {
        (void)bd_err_wrap(err, "%s", call->link->name);
    }
    return rc;
}

bd_status cl_ask_all(cl_client *c, const char *method, const ProtobufCMessage *request,
                     const ProtobufCMessageDescriptor *reply_type, ProtobufCMessage **replies,
                     bd_err *err)
{
    size_t n = cl_client_n_servers(c);
    cl_batch b = {0};
    ask_all a = {reply_type, replies};
    bd_status rc = cl_batch_init(&b, c, n, err);
    for (size_t i = 0; i < n; i++) {
        replies[i] = NULL;
    }
    for (size_t i = 0; rc == BD_OK && i < n; i++) {
        b.calls[i].kind = CL_CONTROL;
        b.calls[i].server_idx = i;
        b.calls[i].method = method;
        rc = px_pack(request, &b.calls[i].bytes, err);
    }
    for (size_t i = 0; rc == BD_OK && i < n; i++) {
        cl_call_send(&b.calls[i]);
    }
    if (rc == BD_OK) {
        rc = cl_batch_wait(&b, on_reply, &a, err);
    }
    cl_batch_deinit(&b);
    for (size_t i = 0; rc != BD_OK && i < n; i++) {
        px_unpacked_free(replies[i]);
        replies[i] = NULL;
    }
    return rc;
}
