/* Numbers of calls: see call_count.h. */
#include "call_count.h"

#include "shim_settings.h"

/* How many messages went to its peer, or came from it; NULL: nobody counts. */
static uint64_t *messages_of(const lb_nccl_call *call)
{
    const lb_communicator *comm = call->comm;
    const int root = call->given.root;
    if (!comm->messages || root < 0 || root >= comm->ranks) return NULL;
    return &comm->messages[root + (call->given.kind == LB_CALL_RECEIVE ? comm->ranks : 0)];
}

static bool begins_step(const lb_nccl_place *place)
{
    return place->clock_calls && place->clock_calls % lb_shim_settings_now()->step_calls == 0;
}

void lb_call_count(lb_nccl_call *call)
{
    lb_communicator *comm = call->comm;
    lb_nccl_place *place = comm->place;
    const bool message = lb_nccl_call_is_message(call->given.kind);
    uint64_t *messages = message ? messages_of(call) : NULL;
    call->counted = true;
    call->ticks = comm == place->clock && !place->marked && !message;
    call->sequence = !message ? comm->sequence++ : messages ? (*messages)++ : 0;
    if (call->ticks) {
        place->step += begins_step(place);
        place->clock_calls++;
    }
    call->step = place->step;
}

void lb_call_uncount(lb_nccl_call *call)
{
    lb_communicator *comm = call->comm;
    lb_nccl_place *place = comm->place;
    const bool message = lb_nccl_call_is_message(call->given.kind);
    uint64_t *messages = message ? messages_of(call) : NULL;
    if (!call->counted) return;
    call->counted = false;
    if (!message) comm->sequence--;
    if (messages) (*messages)--;
    if (!call->ticks) return;
    place->clock_calls--;
    if (!place->marked) place->step -= begins_step(place);
}
