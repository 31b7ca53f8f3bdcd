/* A call: see nccl_call.h. */
#include "nccl_call.h"

#include <stdlib.h>
#include <string.h>

bool lb_nccl_call_is_message(lb_nccl_call_kind kind)
{
    return kind == LB_CALL_SEND || kind == LB_CALL_RECEIVE;
}

size_t lb_nccl_call_dtype_bytes(lb_nccl_dtype dtype)
{
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return (size_t)dtype < sizeof bytes ? bytes[dtype] : 0;
}

bool lb_nccl_call_measure(lb_nccl_call *call)
{
    const lb_nccl_call_given *given = &call->given;
    size_t one, all;
    if (__builtin_mul_overflow(given->count, lb_nccl_call_dtype_bytes(given->dtype), &one)) return false;
    if (__builtin_mul_overflow(one, (size_t)call->comm->ranks, &all) || all > INT64_MAX / 4) return false;
    const bool root = given->root == call->comm->rank;
    static const struct {
        bool all_sent, all_received, root_sends, root_receives;
    } sizes[LB_CALL_KINDS] = {[LB_CALL_REDUCE] = {.root_receives = true},
                              [LB_CALL_BROADCAST] = {.root_sends = true},
                              [LB_CALL_ALL_GATHER] = {.all_received = true},
                              [LB_CALL_REDUCE_SCATTER] = {.all_sent = true},
                              [LB_CALL_ALL_TO_ALL] = {.all_sent = true, .all_received = true},
                              [LB_CALL_GATHER] = {.all_received = true, .root_receives = true},
                              [LB_CALL_SCATTER] = {.all_sent = true, .root_sends = true}};
    if (!given->send || (sizes[given->kind].root_sends && !root)) call->given.send = NULL;
    if (!given->recv || (sizes[given->kind].root_receives && !root)) call->given.recv = NULL;
    call->send_bytes = !call->given.send ? 0 : sizes[given->kind].all_sent ? all : one;
    call->recv_bytes = !call->given.recv ? 0 : sizes[given->kind].all_received ? all : one;
    return true;
}

void lb_nccl_call_take_scalar(lb_nccl_call *call)
{
    const lb_premul *premul = lb_communicator_premul(call->comm, call->given.op);
    call->scalar_dtype = premul ? premul->dtype : -1;
    if (!premul) return;
    memcpy(call->scalar, premul->bytes, sizeof call->scalar);
    call->scalar_on_device = premul->on_device;
}

size_t lb_nccl_call_held_bytes(const lb_nccl_call *call)
{
    return (call->sent ? call->send_bytes : 0) + (call->received ? call->recv_bytes : 0);
}

void lb_nccl_call_free_copies(lb_nccl_call *call)
{
    lb_stream_copy_free(call->scalar_copy);
    lb_stream_copy_free(call->sent);
    lb_stream_copy_free(call->received);
    lb_stream_copy_free(call->position);
}

void lb_nccl_call_free(lb_nccl_call *call)
{
    lb_communicator_release(call->comm);
    free(call);
}
