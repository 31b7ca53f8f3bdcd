/* Numbers of calls: see call_count.h. */
#include "call_count.h"

#include "shim_settings.h"

void lb_call_count(lb_communicator *comm, const lb_nccl_call_given *given, uint64_t *sequence, int64_t *step)
{
    lb_nccl_place *place = comm->place;
    if (lb_nccl_call_is_message(given->kind)) {
        const size_t peer = given->root >= 0 && given->root < comm->ranks ? (size_t)given->root : 0;
        *sequence =
            comm->messages ? comm->messages[peer + (given->kind == LB_CALL_RECEIVE ? (size_t)comm->ranks : 0)]++ : 0;
    } else {
        *sequence = comm->sequence++;
        if (comm == place->clock && !place->marked && place->clock_calls++ &&
            (place->clock_calls - 1) % lb_shim_settings_now()->step_calls == 0)
            place->step++;
    }
    *step = place->step;
}

void lb_call_uncount(const lb_nccl_call *call)
{
    if (!call->graph_copy && !lb_nccl_call_is_message(call->given.kind)) call->comm->sequence--;
}
