/* The queue of calls: see call_queue.h. */
#include "call_queue.h"

#include "call_carried.h"
#include "call_count.h"
#include "graph_runs.h"
#include "calls/shim_settings.h"
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

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static lb_nccl_call *make_joined(const lb_nccl_call_given *given)
{
    lb_nccl_call *call = lb_shim_memory(sizeof *call);
    if (!call) return NULL;
    call->given = *given;
    call->joined = true;
    lb_communicator_registry_lock();
    lb_call_carried_await(call);
    lb_communicator_registry_unlock();
    return call;
}

/* Of a call that is not recorded, made by this thread in no group, its number is kept until NCCL has taken it. */
static _Thread_local struct passed_by {
    lb_communicator *comm;
    lb_nccl_call_given given;
    lb_counted counted;
} passed_by;
static lb_nccl_call unwanted_call;

/* Whether it is to be written. Of calls in graphs, and of those around them, only the writer knows the step. */
static bool is_wanted(const lb_nccl_place *place, int64_t step, bool captured)
{
    if (!place->wanted || place->dead) return false;
    return (captured || place->graphs || lb_shim_ranges_have(lb_shim_settings_now()->steps, step)) && lb_writer_start();
}

static void reserve(lb_nccl_call *call)
{
    call->skipped = call->captured || !lb_shim_settings_now()->bytes;
    if (!call->captured && !lb_writer_reserve(call)) call->skipped = true;
}

static void take_number(lb_nccl_call *call, lb_counted counted)
{
    call->counted = counted;
    call->sequence = counted.sequence;
    call->step = counted.step;
    call->ticks = counted.ticks;
}

/* With the books locked. Of one in a graph, runs count, and not the call. */
static lb_nccl_call *make(const lb_nccl_call_given *given, bool captured)
{
    lb_communicator *comm = lb_communicator_whole(given->comm);
    if (!comm) return NULL;
    lb_nccl_place *place = comm->place;
    lb_nccl_place_enter(place);
    lb_counted counted = captured ? lb_call_uncounted(comm, given) : lb_call_count(comm, given);
    const bool wanted = is_wanted(place, counted.step, captured);
    if (!wanted && !here.depth) {
        passed_by = (struct passed_by){comm, *given, counted};
        return &unwanted_call;
    }
    lb_nccl_call *call = lb_shim_memory(sizeof *call);
    if (!call) return NULL;
    *call = (lb_nccl_call){.given = *given,
                           .comm = comm,
                           .group = here.group,
                           .captured = captured,
                           .clock = place->clock_calls,
                           .marked = place->marked};
    take_number(call, counted);
    comm->refs++;
    call->unwanted = !wanted || !lb_nccl_call_measure(call);
    if (call->unwanted) return call;
    lb_nccl_call_take_scalar(call);
    reserve(call);
    lb_call_carried_await(call);
    return call;
}

/* Where its runs cannot be seen, the call stands for them. */
static void begin_captured(lb_nccl_call *call)
{
    if (lb_graph_runs_begin(call)) return;
    lb_communicator_registry_lock();
    take_number(call, lb_call_count(call->comm, &call->given));
    lb_communicator_registry_unlock();
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
    lb_communicator_registry_lock();
    lb_nccl_call *call = make(given, captured);
    lb_communicator_registry_unlock();
    if (!call || call == &unwanted_call || call->unwanted) return call;
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
    lb_communicator_registry_lock();
    lb_writer_unreserve(reserved - held);
    lb_communicator_registry_unlock();
}

/* From now on its runs are collected. False: they cannot be, and the call stands for them. */
static bool end_captured(lb_nccl_call *call)
{
    if (!call->graph_copy) return false;
    lb_communicator_registry_lock();
    lb_call_carried_leave(call);
    lb_call_carried_await_runs(call);
    call->comm->place->graphs = true;
    call->comm->place->captured++;
    lb_communicator_registry_unlock();
    if (!call->failed && lb_graph_runs_end(call)) return true;
    call->graph_copy = NULL;
    lb_communicator_registry_lock();
    lb_call_carried_leave(call);
    call->comm->place->captured--;
    if (!call->failed) take_number(call, lb_call_count(call->comm, &call->given));
    lb_communicator_registry_unlock();
    return false;
}

/* Those that go into the queue: outputs are copied first, of all of a group, so that nothing of ours stands between two
 * of them. */
static lb_nccl_call *end_copies(lb_nccl_call *first)
{
    lb_nccl_call *queued = NULL, **end = &queued;
    for (lb_nccl_call *call = first, *next; call; call = next) {
        next = call->next;
        call->next = NULL;
        if (call->captured && end_captured(call)) continue;
        if (!call->joined && !call->captured && !call->unwanted) copy_received(call);
        *end = call;
        end = &call->next;
    }
    return queued;
}

static void launch(lb_nccl_call *first)
{
    first = end_copies(first);
    lb_communicator_registry_lock();
    for (lb_nccl_call *call = first, *next; call; call = next) {
        next = call->next;
        call->next = NULL;
        lb_call_carried_leave(call);
        if (call->joined) {
            memcpy(here.order, call->order, sizeof here.order);
            free(call);
        } else if (call->unwanted) {
            lb_nccl_call_free(call);
        } else {
            lb_writer_put(call);
        }
    }
    lb_writer_wake();
    lb_communicator_registry_unlock();
}

static void leave_launching(lb_nccl_call *first)
{
    lb_communicator_registry_lock();
    for (lb_nccl_call *call = first, *next; call; call = next) {
        next = call->next;
        call->next = NULL;
        *call->comm->launching_end = call;
        call->comm->launching_end = &call->next;
    }
    lb_communicator_registry_unlock();
}

static bool is_error(lb_nccl_result result)
{
    return result != LB_NCCL_SUCCESS && result != LB_NCCL_IN_PROGRESS;
}

/* NCCL did not take them. */
static void fail(lb_nccl_call *first)
{
    lb_communicator_registry_lock();
    for (lb_nccl_call *call = first; call; call = call->next) {
        call->failed = true;
        if (!call->joined) lb_call_uncount(call->comm, &call->given, &call->counted);
    }
    lb_communicator_registry_unlock();
}

static void fail_passed_by(void)
{
    lb_communicator_registry_lock();
    if (lb_communicator_find(passed_by.given.comm) == passed_by.comm)
        lb_call_uncount(passed_by.comm, &passed_by.given, &passed_by.counted);
    lb_communicator_registry_unlock();
}

static void settle(lb_nccl_call *first, lb_nccl_result result)
{
    if (is_error(result)) fail(first);
    if (result == LB_NCCL_IN_PROGRESS && first && !first->joined)
        leave_launching(first);
    else if (first)
        launch(first);
}

void lb_nccl_call_end(lb_nccl_call *call, lb_nccl_result result)
{
    here.inside--;
    if (!call) return;
    if (call == &unwanted_call) {
        if (is_error(result)) fail_passed_by();
        return;
    }
    if (!here.depth) {
        settle(call, result);
        return;
    }
    if (is_error(result)) fail(call);
    if (!here.first) here.end = &here.first;
    *here.end = call;
    here.end = &call->next;
}

bool lb_nccl_call_is_open(void)
{
    return here.inside > 0;
}

void lb_nccl_call_progress(lb_nccl_comm handle, lb_nccl_result state)
{
    if (lb_shim_mode_now() != LB_SHIM_RECORDING || state == LB_NCCL_IN_PROGRESS || here.inside) return;
    lb_communicator_registry_lock();
    lb_communicator *comm = lb_communicator_find(handle);
    lb_nccl_call *first = comm ? comm->launching : NULL;
    if (comm) comm->launching = NULL, comm->launching_end = &comm->launching;
    lb_communicator_registry_unlock();
    settle(first, state);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

void lb_nccl_call_group_begin(void)
{
    if (here.inside || here.depth++) return;
    lb_communicator_registry_lock();
    here.group = ++groups;
    lb_communicator_registry_unlock();
}

bool lb_nccl_call_group_is_open(void)
{
    return here.depth > 0;
}

/* A stream may still be copying for them: they go the way of all calls, and are not written. */
static void drop(lb_nccl_call *first)
{
    for (lb_nccl_call *call = first; call; call = call->next) call->dropped = true;
    if (!first) return;
    fail(first);
    launch(first);
}

void lb_nccl_call_group_end(lb_nccl_result result, bool simulated)
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

/* ---- what else is said and asked --------------------------------------------------------------------------------- */

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
    lb_communicator_registry_lock();
    lb_nccl_place *only = lb_nccl_place_here();
    for (lb_nccl_place *place = only ? only : lb_nccl_place_first(); place; place = only ? NULL : place->next) {
        place->step = step;
        place->marked = true;
    }
    lb_communicator_registry_unlock();
}

void lb_nccl_calls_drop(void)
{
    groups = 0;
    here = (struct here){0};
}
