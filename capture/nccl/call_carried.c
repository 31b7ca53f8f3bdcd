/* What NCCL says of calls: see call_carried.h. */
#include "call_carried.h"

#include <string.h>

static lb_nccl_call *open, *captured;

static void list(lb_nccl_call *call, lb_nccl_call **head)
{
    call->listed = true;
    call->before = NULL;
    call->after = *head;
    if (*head) (*head)->before = call;
    *head = call;
}

void lb_call_carried_leave(lb_nccl_call *call)
{
    if (!call->listed) return;
    if (call->before)
        call->before->after = call->after;
    else if (open == call)
        open = call->after;
    else
        captured = call->after;
    if (call->after) call->after->before = call->before;
    call->listed = false;
}

void lb_call_carried_await(lb_nccl_call *call)
{
    list(call, &open);
}

void lb_call_carried_await_runs(lb_nccl_call *call)
{
    list(call, &captured);
}

void lb_call_carried_drop(void)
{
    open = captured = NULL;
}

static const char *const functions[LB_CALL_KINDS] = {"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
                                                     "AlltoAll",  "Gather", "Scatter",   "Send",      "Recv"};

/* What moves and does not reduce NCCL counts in bytes (collTaskAppend in src/enqueue.cc). */
static bool counts(const lb_nccl_call *call, size_t count)
{
    const size_t given = call->given.count;
    const bool moves = call->given.kind == LB_CALL_ALL_GATHER || call->given.kind == LB_CALL_BROADCAST;
    return given == count || (moves && given * lb_nccl_call_dtype_bytes(call->given.dtype) == count);
}

static bool fits(const lb_nccl_call *call, const lb_nccl_call_carried *carried)
{
    if (call->algorithm[0] || strcmp(functions[call->given.kind], carried->function) != 0) return false;
    if (call->comm && call->comm->rank != carried->rank) return false;
    if (call->comm && carried->ranks && call->comm->ranks != carried->ranks) return false;
    return (!call->given.recv || !carried->recv || call->given.recv == carried->recv) && counts(call, carried->count);
}

/* NCCL launches what it was given in some order of its own; of several that fit the first given is meant. */
void lb_nccl_call_carried_out(const lb_nccl_call_carried *carried)
{
    lb_communicator_registry_lock();
    lb_nccl_call *found = NULL;
    for (lb_nccl_call *call = open; call; call = call->after)
        if (fits(call, carried)) found = call;
    for (lb_nccl_call *call = found ? NULL : captured; call; call = call->after)
        if (fits(call, carried)) found = call;
    if (found) {
        strncat(found->algorithm, carried->algorithm, sizeof found->algorithm - 1);
        strncat(found->order, carried->order, sizeof found->order - 1);
    }
    lb_communicator_registry_unlock();
}
