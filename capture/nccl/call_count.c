/* Numbers of calls: see call_count.h. */
#include "call_count.h"

#include "calls/shim_settings.h"

/* How many messages went to its peer, or came from it; NULL: they are not counted. */
static uint64_t *messages_of(const lb_communicator *comm, const lb_nccl_call_given *given)
{
    if (!comm->messages || given->root < 0 || given->root >= comm->ranks) return NULL;
    return &comm->messages[given->root + (given->kind == LB_CALL_RECEIVE ? comm->ranks : 0)];
}

static bool begins_step(const lb_nccl_place *place)
{
    return place->clock_calls && place->clock_calls % lb_shim_settings_now()->step_calls == 0;
}

lb_counted lb_call_uncounted(const lb_communicator *comm, const lb_nccl_call_given *given)
{
    const lb_nccl_place *place = comm->place;
    return (lb_counted){.ticks = comm == place->clock && !place->marked && !lb_nccl_call_is_message(given->kind),
                        .sequence = comm->sequence,
                        .step = place->step};
}

lb_counted lb_call_count(lb_communicator *comm, const lb_nccl_call_given *given)
{
    lb_nccl_place *place = comm->place;
    lb_counted counted = lb_call_uncounted(comm, given);
    const bool message = lb_nccl_call_is_message(given->kind);
    uint64_t *messages = message ? messages_of(comm, given) : NULL;
    counted.is_counted = true;
    counted.sequence = !message ? comm->sequence++ : messages ? (*messages)++ : 0;
    if (counted.ticks) {
        place->step += begins_step(place);
        place->clock_calls++;
    }
    counted.step = place->step;
    return counted;
}

void lb_call_uncount(lb_communicator *comm, const lb_nccl_call_given *given, lb_counted *counted)
{
    lb_nccl_place *place = comm->place;
    const bool message = lb_nccl_call_is_message(given->kind);
    uint64_t *messages = message ? messages_of(comm, given) : NULL;
    if (!counted->is_counted) return;
    counted->is_counted = false;
    if (!message) comm->sequence--;
    if (messages) (*messages)--;
    if (!counted->ticks) return;
    place->clock_calls--;
    if (!place->marked) place->step -= begins_step(place);
}
