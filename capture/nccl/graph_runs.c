/* Runs of captured calls: see graph_runs.h. */
#include "graph_runs.h"

#include "graph_copy.h"
#include "calls/shim_settings.h"

#include <stdlib.h>

#define MOST_BYTES (256ull << 20) /* of runs that wait for a call before them */

typedef struct pending {
    struct pending *next;
    lb_nccl_call *of;
    const lb_graph_device *device;
    lb_nccl_graph_run run;
    uint64_t pass;
} pending;

static struct {
    pending *first; /* by tickets */
    uint64_t pass, bytes;
    lb_nccl_call *gone;
} waiting;

/* ---- the captured call ------------------------------------------------------------------------------------------- */

bool lb_graph_runs_begin(lb_nccl_call *call)
{
    const bool bytes = lb_shim_settings_now()->bytes;
    call->graph_copy = lb_graph_copy_begin(call->given.send, bytes ? call->send_bytes : 0, bytes ? call->recv_bytes : 0,
                                           call->given.stream);
    if (!call->graph_copy) return false;
    call->graph = lb_graph_copy_graph(call->graph_copy);
    call->graph_device = lb_graph_copy_device(call->graph_copy);
    call->roomless = bytes && call->send_bytes + call->recv_bytes && !lb_graph_copy_has_bytes(call->graph_copy);
    return true;
}

bool lb_graph_runs_end(lb_nccl_call *call)
{
    return lb_graph_copy_end(call->graph_copy, call->given.recv, call);
}

/* ---- what has ended ---------------------------------------------------------------------------------------------- */

static uint64_t bytes_of(const pending *pending)
{
    return (pending->run.sent ? pending->of->send_bytes : 0) + (pending->run.received ? pending->of->recv_bytes : 0);
}

static void take(const lb_nccl_graph_run *run)
{
    pending **at = &waiting.first, *behind = lb_shim_memory(sizeof *behind);
    lb_nccl_call *call = run->owner;
    if (!behind) {
        free(run->sent), free(run->received);
        return;
    }
    *behind = (pending){NULL, call, call->graph_device, *run, waiting.pass};
    while (*at && (*at)->run.ticket <= run->ticket) at = &(*at)->next;
    behind->next = *at;
    *at = behind;
    call->runs_waiting++;
    waiting.bytes += bytes_of(behind);
}

static void note_gone(void *owner)
{
    lb_nccl_call *call = owner;
    call->next = waiting.gone;
    waiting.gone = call;
}

void lb_graph_runs_collect(void)
{
    waiting.pass++;
    lb_graph_copies_collect(waiting.bytes < MOST_BYTES, take, note_gone);
}

lb_nccl_call *lb_graph_runs_take_gone(void)
{
    for (lb_nccl_call **at = &waiting.gone; *at; at = &(*at)->next) {
        lb_nccl_call *call = *at;
        if (call->runs_waiting) continue;
        *at = call->next;
        return call;
    }
    return NULL;
}

/* ---- in order ---------------------------------------------------------------------------------------------------- */

/* False: the call's stream has not come to it. */
static bool knows_tickets(lb_nccl_call *call, uint64_t *tickets)
{
    *tickets = 0;
    if (!call->position) return true; /* it was made before there were graphs */
    if (!lb_stream_copy_ready(call->position)) return false;
    const uint64_t *drawn = lb_stream_copy_bytes(call->position);
    *tickets = drawn ? *drawn : 0;
    if (!call->known_pass) call->known_pass = waiting.pass;
    return true;
}

void lb_graph_runs_look(lb_graph_floors *floors, lb_nccl_call *call)
{
    int i = 0;
    uint64_t tickets;
    if (!knows_tickets(call, &tickets) || (floors->n && !floors->of[0].device)) return;
    if (!call->graph_device) floors->n = 0; /* it comes before all graphs */
    while (i < floors->n && floors->of[i].device != call->graph_device) i++;
    if (i == LB_GRAPH_FLOORS || (i < floors->n && floors->of[i].tickets <= tickets)) return;
    floors->of[i].device = call->graph_device;
    floors->of[i].tickets = tickets;
    floors->of[i].call = call;
    floors->n += i == floors->n;
}

bool lb_graph_runs_reached(const lb_graph_floors *floors, int i)
{
    return floors->of[i].call->known_pass < waiting.pass;
}

/* A run that ended before one that was found in an earlier pass has been found by now. */
static bool is_due(const pending *pending, const lb_graph_floors *floors)
{
    for (int i = 0; floors && i < floors->n; i++)
        if (!floors->of[i].device || floors->of[i].device == pending->device)
            return pending->run.ticket < floors->of[i].tickets &&
                   (pending->pass < waiting.pass || lb_graph_runs_reached(floors, i));
    return !floors || pending->pass < waiting.pass;
}

static lb_nccl_call *make_call(pending *pending)
{
    lb_nccl_call *call = lb_shim_memory(sizeof *call);
    if (call) {
        lb_communicator_registry_lock(); /* NCCL may be telling how the captured call is carried out */
        *call = *pending->of;
        call->comm->refs++;
        lb_communicator_registry_unlock();
        call->next = call->before = call->after = NULL;
        call->listed = false;
        call->sent = pending->run.sent ? lb_stream_copy_of(pending->run.sent, call->send_bytes) : NULL;
        call->received = pending->run.received ? lb_stream_copy_of(pending->run.received, call->recv_bytes) : NULL;
        call->overwritten = pending->run.lost;
    }
    if (!call || !call->sent) free(pending->run.sent);
    if (!call || !call->received) free(pending->run.received);
    return call;
}

lb_nccl_call *lb_graph_runs_next(const lb_graph_floors *floors)
{
    for (pending **at = &waiting.first; *at; at = &(*at)->next) {
        pending *p = *at;
        if (!is_due(p, floors)) continue;
        *at = p->next;
        waiting.bytes -= bytes_of(p);
        lb_nccl_call *call = make_call(p);
        p->of->runs_waiting--;
        free(p);
        return call;
    }
    return NULL;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void lb_graph_runs_number(lb_nccl_call *call)
{
    lb_communicator *comm = call->comm;
    lb_nccl_place *place = comm->place;
    const bool run = call->graph_copy != NULL, message = lb_nccl_call_is_message(call->given.kind);
    /* Of a captured call `sequence` and `clock` are what had been counted until then. */
    place->clock_written = larger(place->clock_written, call->clock);
    place->marked_written |= call->marked;
    if (run && call->ticks) place->clock_runs++;
    if (!message) {
        comm->sequence_written = larger(comm->sequence_written, call->sequence + !run);
        call->sequence = run ? comm->sequence_written + comm->runs_written++ : call->sequence + comm->runs_written;
    }
    const uint64_t ticks = place->clock_written + place->clock_runs;
    if (run && place->marked_written)
        call->step = place->step_written > call->step ? place->step_written : call->step;
    else if (place->clock_runs && !place->marked_written)
        call->step = ticks ? (int64_t)((ticks - 1) / lb_shim_settings_now()->step_calls) : 0;
    place->step_written = call->step;
}

void lb_graph_runs_drop(void)
{
    lb_graph_copies_drop();
    waiting.first = NULL;
    waiting.gone = NULL;
    waiting.bytes = 0;
}
