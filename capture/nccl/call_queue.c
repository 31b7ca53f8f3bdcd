/* The queue of calls: see call_queue.h. */
#include "call_queue.h"

#include "call_carried.h"
#include "call_count.h"
#include "graph_runs.h"
#include "shim_settings.h"
#include "writer_thread.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local struct here {
    int inside; /* NCCL calls itself: those calls are not the program's */
    int depth;  /* of groups */
    uint64_t group;
    lb_nccl_call *first, **end;
    char order[24];
} here;
static uint64_t groups; /* with the books locked */

/* ---- a call --------------------------------------------------------------------------------------------------------- */

static lb_nccl_call *make_joined(const lb_nccl_call_given *given)
{
    lb_nccl_call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    call->given = *given;
    call->joined = true;
    lb_books_lock();
    lb_call_carried_await(call);
    lb_books_unlock();
    return call;
}

/* The call itself, where it is in the window; with the books locked. Of one in a graph, runs count, and not the call. */
static lb_nccl_call *make(const lb_nccl_call_given *given, bool captured)
{
    lb_communicator *comm = lb_communicator_whole(given->comm);
    if (!comm) return NULL;
    lb_nccl_place *place = comm->place;
    uint64_t sequence = comm->sequence;
    int64_t step = place->step;
    lb_nccl_place_enter(place);
    if (!captured) lb_call_count(comm, given, &sequence, &step);
    const bool may_be_wanted = captured || place->graphs || lb_shim_ranges_have(lb_shim_settings_now()->steps, step);
    if (!place->wanted || place->dead || !may_be_wanted || !lb_writer_start()) return NULL;
    lb_nccl_call *call = malloc(sizeof *call);
    if (!call) return NULL;
    *call = (lb_nccl_call){.given = *given,
                           .comm = comm,
                           .sequence = sequence,
                           .step = step,
                           .group = here.group,
                           .captured = captured,
                           .clock = place->clock_calls,
                           .marked = place->marked,
                           .ticks = comm == place->clock && !place->marked && !lb_nccl_call_is_message(given->kind)};
    comm->refs++;
    lb_nccl_call_measure(call);
    lb_nccl_call_take_scalar(call);
    call->skipped = captured || !lb_shim_settings_now()->bytes || !lb_writer_reserve(call);
    lb_call_carried_await(call);
    return call;
}

/* Where its runs cannot be seen, the call stands for them. */
static void begin_captured(lb_nccl_call *call)
{
    if (lb_graph_runs_begin(call)) return;
    lb_books_lock();
    lb_call_count(call->comm, &call->given, &call->sequence, &call->step);
    lb_books_unlock();
}

static void copy_sent(lb_nccl_call *call)
{
    void *stream = call->given.stream;
    if (call->scalar_on_device)
        call->scalar_copy =
            lb_stream_copy_new(call->scalar_on_device, lb_nccl_call_dtype_bytes(call->scalar_dtype), stream);
    if (lb_graph_copies_any()) call->position = lb_graph_position(stream, &call->graph_device);
    if (call->send_bytes && !call->skipped) call->sent = lb_stream_copy_new(call->given.send, call->send_bytes, stream);
}

lb_nccl_call *lb_nccl_call_begin(const lb_nccl_call_given *given)
{
    const lb_shim_mode mode = lb_shim_mode_now();
    if (here.inside++) return NULL;
    if (mode == LB_SHIM_JOINED) return make_joined(given);
    if (mode != LB_SHIM_RECORDING) return NULL;
    const bool captured = lb_stream_is_captured(given->stream);
    lb_books_lock();
    lb_nccl_call *call = make(given, captured);
    lb_books_unlock();
    if (!call) return NULL;
    if (captured)
        begin_captured(call);
    else
        copy_sent(call);
    return call;
}

static void copy_received(lb_nccl_call *call)
{
    const size_t reserved = call->skipped ? 0 : call->send_bytes + call->recv_bytes;
    if (call->recv_bytes && !call->skipped && !call->failed)
        call->received = lb_stream_copy_new(call->given.recv, call->recv_bytes, call->given.stream);
    const size_t held = lb_nccl_call_held_bytes(call);
    if (reserved == held) return;
    lb_books_lock();
    lb_writer_unreserve(reserved - held);
    lb_books_unlock();
}

/* From now on its runs are collected. False: they cannot be, and the call stands for them. */
static bool end_captured(lb_nccl_call *call)
{
    if (!call->graph_copy) return false;
    lb_books_lock();
    lb_call_carried_leave(call);
    lb_call_carried_await_runs(call);
    call->comm->place->graphs = true;
    call->comm->place->captured++;
    lb_books_unlock();
    if (!call->failed && lb_graph_runs_end(call)) return true;
    call->graph_copy = NULL;
    lb_books_lock();
    lb_call_carried_leave(call);
    call->comm->place->captured--;
    lb_call_count(call->comm, &call->given, &call->sequence, &call->step);
    lb_books_unlock();
    return false;
}

/* Those that go into the queue: outputs are copied first, of all of a group, so that nothing of ours stands between two of them. */
static lb_nccl_call *end_copies(lb_nccl_call *first)
{
    lb_nccl_call *queued = NULL, **end = &queued;
    for (lb_nccl_call *call = first, *next; call; call = next) {
        next = call->next;
        call->next = NULL;
        if (call->captured && end_captured(call)) continue;
        if (!call->joined && !call->captured) copy_received(call);
        *end = call;
        end = &call->next;
    }
    return queued;
}

static void launch(lb_nccl_call *first)
{
    first = end_copies(first);
    lb_books_lock();
    for (lb_nccl_call *call = first, *next; call; call = next) {
        next = call->next;
        call->next = NULL;
        lb_call_carried_leave(call);
        if (call->joined) {
            memcpy(here.order, call->order, sizeof here.order);
            free(call);
            continue;
        }
        lb_writer_put(call);
    }
    lb_writer_wake();
    lb_books_unlock();
}

static void leave_launching(lb_nccl_call *first)
{
    lb_books_lock();
    for (lb_nccl_call *call = first, *next; call; call = next) {
        next = call->next;
        call->next = NULL;
        *call->comm->launching_end = call;
        call->comm->launching_end = &call->next;
    }
    lb_books_unlock();
}

static void settle(lb_nccl_call *first, lb_nccl_result result)
{
    const bool failed = result != LB_NCCL_SUCCESS && result != LB_NCCL_IN_PROGRESS;
    for (lb_nccl_call *call = first; call; call = call->next) call->failed |= failed;
    if (result == LB_NCCL_IN_PROGRESS && first && !first->joined)
        leave_launching(first);
    else if (first)
        launch(first);
}

void lb_nccl_call_end(lb_nccl_call *call, lb_nccl_result result)
{
    here.inside--;
    if (!call) return;
    if (!here.depth) {
        settle(call, result);
        return;
    }
    call->failed = result != LB_NCCL_SUCCESS && result != LB_NCCL_IN_PROGRESS;
    if (!here.first) here.end = &here.first;
    *here.end = call;
    here.end = &call->next;
}

void lb_nccl_call_progress(lb_nccl_comm handle, lb_nccl_result state)
{
    if (lb_shim_mode_now() != LB_SHIM_RECORDING || state == LB_NCCL_IN_PROGRESS || here.inside) return;
    lb_books_lock();
    lb_communicator *comm = lb_communicator_find(handle);
    lb_nccl_call *first = comm ? comm->launching : NULL;
    if (comm) comm->launching = NULL, comm->launching_end = &comm->launching;
    lb_books_unlock();
    settle(first, state);
}

/* ---- groups --------------------------------------------------------------------------------------------------------- */

void lb_group_begin(void)
{
    if (here.inside || here.depth++) return;
    lb_books_lock();
    here.group = ++groups;
    lb_books_unlock();
}

bool lb_group_is_open(void)
{
    return here.depth > 0;
}

static void drop(lb_nccl_call *first)
{
    for (lb_nccl_call *call = first; call; call = call->next) lb_nccl_call_free_copies(call);
    lb_books_lock();
    for (lb_nccl_call *call = first, *next; call; call = next) {
        next = call->next;
        lb_call_carried_leave(call);
        if (call->joined) {
            free(call);
            continue;
        }
        if (!call->skipped) lb_writer_unreserve(call->send_bytes + call->recv_bytes);
        lb_call_uncount(call);
        lb_nccl_call_free(call);
    }
    lb_books_unlock();
}

void lb_group_end(lb_nccl_result result, bool simulated)
{
    if (here.inside || !here.depth || --here.depth) return;
    lb_nccl_call *first = here.first;
    here.first = NULL;
    here.group = 0;
    if (simulated)
        drop(first);
    else
        settle(first, result);
}

/* ---- what else is said and asked ------------------------------------------------------------------------------------ */

const char *lb_nccl_call_last_order(void)
{
    static _Thread_local char told[sizeof here.order];
    memcpy(told, here.order, sizeof told);
    here.order[0] = 0;
    return told;
}

void lb_nccl_call_step(int64_t step)
{
    if (lb_shim_mode_now() != LB_SHIM_RECORDING) return;
    lb_books_lock();
    lb_nccl_place *only = lb_nccl_place_here();
    for (lb_nccl_place *place = only ? only : lb_nccl_places(); place; place = only ? NULL : place->next) {
        place->step = step;
        place->marked = true;
    }
    lb_books_unlock();
}

void lb_nccl_calls_drop(void)
{
    groups = 0;
    here = (struct here){0};
}
