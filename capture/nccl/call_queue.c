/* The queue of calls: see call_queue.h. */
#define _GNU_SOURCE
#include "call_queue.h"

#include "call_writer.h"
#include "graph_runs.h"
#include "shim_settings.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* At most so much waits for the writer. */
enum { MOST_CALLS = 1 << 16, POLL_NS = 200000, NAP_NS = 1000000, END_TRIES = 50000, LOOKED_AT = 1024 };
#define MOST_BYTES (256ull << 20)

static struct queue {
    lb_nccl_call *first, **end, *open,
        *captured; /* `open`: that NCCL has not launched yet; `captured`: that graphs run */
    uint64_t calls, bytes, groups;
    pthread_cond_t more, room;
    pthread_t writer;
    bool running, asleep, stuck, closing, prepared;
} queue = {.end = &queue.first, .more = PTHREAD_COND_INITIALIZER, .room = PTHREAD_COND_INITIALIZER};

static _Thread_local struct here {
    int inside; /* NCCL calls itself: those calls are not the program's */
    int depth;  /* of groups */
    uint64_t group;
    lb_nccl_call *first, **end;
    char order[24];
} here;

size_t lb_nccl_call_dtype_bytes(lb_nccl_dtype dtype)
{
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return (size_t)dtype < sizeof bytes ? bytes[dtype] : 0;
}

/* ---- the writer ----------------------------------------------------------------------------------------------------- */

/* Not with the books locked: CUDA may wait for the device, and that for a call of another thread. */
static void free_copies(lb_nccl_call *call)
{
    lb_stream_copy_free(call->scalar_copy);
    lb_stream_copy_free(call->sent);
    lb_stream_copy_free(call->received);
    lb_stream_copy_free(call->position);
}

/* With the books locked; its copies are free. */
static void free_call(lb_nccl_call *call)
{
    lb_communicator_release(call->comm);
    free(call);
}

static bool is_ready(const lb_nccl_call *call)
{
    lb_stream_copy *copies[] = {call->scalar_copy, call->sent, call->received, call->position};
    for (int i = 0; i < 4; i++)
        if (copies[i] && !lb_stream_copy_ready(copies[i])) return false;
    return true;
}

static size_t held_bytes(const lb_nccl_call *call)
{
    return (call->sent ? call->send_bytes : 0) + (call->received ? call->recv_bytes : 0);
}

static void wait_a_little(void)
{
    queue.stuck = true;
    pthread_cond_broadcast(&queue.room); /* who waits for us would wait for a stream */
    lb_books_unlock();
    nanosleep(&(struct timespec){0, POLL_NS}, NULL);
    lb_books_lock();
    queue.stuck = false;
}

static void write_one(lb_nccl_call *call)
{
    lb_graph_runs_number(call);
    if (lb_shim_mode_now() == LB_SHIM_RECORDING && lb_shim_ranges_have(lb_shim_settings_now()->steps, call->step))
        lb_nccl_call_write(call);
    free_copies(call);
}

/* With the books locked. */
static void unqueue(lb_nccl_call *call)
{
    lb_nccl_call **at = &queue.first;
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    if (!*at) queue.end = at;
}

static void write_queued(lb_nccl_call *call)
{
    const size_t bytes = held_bytes(call);
    unqueue(call);
    lb_books_unlock();
    write_one(call);
    lb_books_lock();
    queue.calls--;
    queue.bytes -= bytes;
    free_call(call);
    pthread_cond_broadcast(&queue.room);
}

/* Calls come in bursts: whoever calls while the writer naps need not wake it. */
static void wait_for_calls(void)
{
    lb_books_unlock();
    nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    lb_books_lock();
    queue.asleep = true;
    while (!queue.first && !queue.closing && !lb_graph_copies_any()) pthread_cond_wait(&queue.more, lb_books_mutex());
    queue.asleep = false;
}

static void unlist(lb_nccl_call *call);

static void write_runs(const lb_graph_floors *floors)
{
    lb_nccl_call *run, *gone;
    while ((run = lb_graph_runs_next(floors))) {
        write_one(run);
        lb_books_lock();
        free_call(run);
        lb_books_unlock();
    }
    while ((gone = lb_graph_runs_take_gone())) {
        lb_books_lock();
        unlist(gone);
        free_call(gone);
        lb_books_unlock();
    }
}

/* Calls from the front of the queue, which nobody else takes from there. */
static int list_first(lb_nccl_call **calls, int most)
{
    int n = 0;
    lb_books_lock();
    for (lb_nccl_call *call = queue.first; call && n < most; call = call->next) calls[n++] = call;
    lb_books_unlock();
    return n;
}

/* Runs of graphs are written as far as they come first; of calls the one that may be written then, which need not be the first that was
 * made where streams run beside each other. NULL: a stream has to come to one before. */
static lb_nccl_call *next_among_runs(void)
{
    static lb_nccl_call *calls[LOOKED_AT];
    lb_graph_floors floors = {0};
    lb_graph_runs_collect();
    const int n = list_first(calls, LOOKED_AT);
    for (int i = 0; i < n; i++) lb_graph_runs_look(&floors, calls[i]);
    write_runs(&floors);
    for (int i = 0; i < floors.n; i++)
        if (lb_graph_runs_reached(&floors, i) && is_ready(floors.of[i].call)) return floors.of[i].call;
    return NULL;
}

/* The call to be written next, NULL: none is ready. */
static lb_nccl_call *next_call(void)
{
    lb_nccl_call *first;
    if (lb_graph_copies_any()) return next_among_runs();
    return list_first(&first, 1) && is_ready(first) ? first : NULL;
}

static void *write_calls(void *unused)
{
    (void)unused;
    lb_books_lock();
    for (int tries = 0; queue.first || !queue.closing;) {
        lb_books_unlock();
        lb_nccl_call *next = next_call();
        lb_books_lock();
        if (!next && queue.first && queue.closing && ++tries > END_TRIES) next = queue.first;
        if (next)
            write_queued(next);
        else if (queue.first)
            wait_a_little();
        else
            wait_for_calls();
    }
    lb_books_unlock();
    lb_graph_runs_collect();
    write_runs(NULL);
    lb_nccl_call_writer_close();
    return NULL;
}

/* ---- the end of the process, and forks ------------------------------------------------------------------------------ */

static void finish(void)
{
    lb_books_lock();
    const bool running = queue.running;
    queue.closing = true;
    queue.running = false;
    pthread_cond_broadcast(&queue.more);
    lb_books_unlock();
    if (running) pthread_join(queue.writer, NULL);
    lb_shim_turn_off(NULL);
}

static void after_fork_in_child(void)
{
    queue = (struct queue){.end = &queue.first, .prepared = true};
    pthread_cond_init(&queue.more, NULL);
    pthread_cond_init(&queue.room, NULL);
    here = (struct here){0};
    lb_graph_runs_drop();
    lb_communicators_drop(); /* what the parent recorded goes on in the parent */
}

static void before_fork(void)
{
    lb_books_lock();
    lb_graph_copies_lock();
}

static void after_fork_in_parent(void)
{
    lb_graph_copies_unlock();
    lb_books_unlock();
}

/* With the books locked. */
static bool start(void)
{
    if (queue.running) return true;
    if (queue.closing) return false;
    if (!queue.prepared) {
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
        atexit(finish);
        queue.prepared = true;
    }
    return queue.running = pthread_create(&queue.writer, NULL, write_calls, NULL) == 0;
}

/* ---- what a call moves ---------------------------------------------------------------------------------------------- */

static void measure(lb_nccl_call *call)
{
    const lb_nccl_call_given *g = &call->given;
    const size_t one = g->count * lb_nccl_call_dtype_bytes(g->dtype), all = one * (size_t)call->comm->ranks;
    const bool root = g->root == call->comm->rank;
    static const struct {
        bool all_sent, all_received, root_sends, root_receives;
    } sizes[LB_CALL_KINDS] = {[LB_CALL_REDUCE] = {.root_receives = true},
                              [LB_CALL_BROADCAST] = {.root_sends = true},
                              [LB_CALL_ALL_GATHER] = {.all_received = true},
                              [LB_CALL_REDUCE_SCATTER] = {.all_sent = true},
                              [LB_CALL_ALL_TO_ALL] = {.all_sent = true, .all_received = true},
                              [LB_CALL_GATHER] = {.all_received = true, .root_receives = true},
                              [LB_CALL_SCATTER] = {.all_sent = true, .root_sends = true}};
    if (!g->send || (sizes[g->kind].root_sends && !root)) call->given.send = NULL;
    if (!g->recv || (sizes[g->kind].root_receives && !root)) call->given.recv = NULL;
    call->send_bytes = !call->given.send ? 0 : sizes[g->kind].all_sent ? all : one;
    call->recv_bytes = !call->given.recv ? 0 : sizes[g->kind].all_received ? all : one;
}

/* Room for its bytes; false where the writer waits for a stream, and so must not be waited for. */
static bool reserve(lb_nccl_call *call)
{
    const size_t bytes = call->send_bytes + call->recv_bytes;
    while (queue.running && !queue.stuck && queue.calls &&
           (queue.bytes + bytes > MOST_BYTES || queue.calls > MOST_CALLS))
        pthread_cond_wait(&queue.room, lb_books_mutex());
    if (queue.calls && queue.bytes + bytes > MOST_BYTES) return false;
    queue.bytes += bytes;
    return true;
}

static void unreserve(size_t bytes)
{
    lb_books_lock();
    queue.bytes -= bytes;
    lb_books_unlock();
}

static void take_scalar(lb_nccl_call *call)
{
    const lb_premul *premul = lb_communicator_premul(call->comm, call->given.op);
    call->scalar_dtype = premul ? premul->dtype : -1;
    if (!premul) return;
    memcpy(call->scalar, premul->bytes, sizeof call->scalar);
    call->scalar_on_device = premul->on_device;
}

/* ---- a call --------------------------------------------------------------------------------------------------------- */

bool lb_nccl_call_is_message(lb_nccl_call_kind kind)
{
    return kind == LB_CALL_SEND || kind == LB_CALL_RECEIVE;
}

/* Its number among those that it has to meet, and the step that it is in. */
static void count(lb_communicator *comm, const lb_nccl_call_given *given, uint64_t *sequence, int64_t *step)
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

static void list(lb_nccl_call *call, lb_nccl_call **head)
{
    call->listed = true;
    call->before = NULL;
    call->after = *head;
    if (*head) (*head)->before = call;
    *head = call;
}

static void unlist(lb_nccl_call *call)
{
    if (!call->listed) return;
    if (call->before)
        call->before->after = call->after;
    else if (queue.open == call)
        queue.open = call->after;
    else
        queue.captured = call->after;
    if (call->after) call->after->before = call->before;
    call->listed = false;
}

static lb_nccl_call *make_joined(const lb_nccl_call_given *given)
{
    lb_nccl_call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    call->given = *given;
    call->joined = true;
    lb_books_lock();
    list(call, &queue.open);
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
    if (!captured) count(comm, given, &sequence, &step);
    const bool may_be_wanted = captured || place->graphs || lb_shim_ranges_have(lb_shim_settings_now()->steps, step);
    if (!place->wanted || place->dead || !may_be_wanted || !start()) return NULL;
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
    measure(call);
    take_scalar(call);
    call->skipped = captured || !lb_shim_settings_now()->bytes || !reserve(call);
    list(call, &queue.open);
    return call;
}

/* Where its runs cannot be seen, the call stands for them. */
static void begin_captured(lb_nccl_call *call)
{
    if (lb_graph_runs_begin(call)) return;
    lb_books_lock();
    count(call->comm, &call->given, &call->sequence, &call->step);
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
    if (reserved != held_bytes(call)) unreserve(reserved - held_bytes(call));
}

/* From now on its runs are collected. False: they cannot be, and the call stands for them. */
static bool end_captured(lb_nccl_call *call)
{
    if (!call->graph_copy) return false;
    lb_books_lock();
    unlist(call);
    list(call, &queue.captured);
    call->comm->place->graphs = true;
    call->comm->place->captured++;
    lb_books_unlock();
    if (!call->failed && lb_graph_runs_end(call)) return true;
    call->graph_copy = NULL;
    lb_books_lock();
    unlist(call);
    call->comm->place->captured--;
    count(call->comm, &call->given, &call->sequence, &call->step);
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
        unlist(call);
        if (call->joined) {
            memcpy(here.order, call->order, sizeof here.order);
            free(call);
            continue;
        }
        *queue.end = call;
        queue.end = &call->next;
        queue.calls++;
    }
    if (queue.asleep) pthread_cond_signal(&queue.more);
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
    here.group = ++queue.groups;
    lb_books_unlock();
}

bool lb_group_is_open(void)
{
    return here.depth > 0;
}

static void drop(lb_nccl_call *first)
{
    for (lb_nccl_call *call = first; call; call = call->next) free_copies(call);
    lb_books_lock();
    for (lb_nccl_call *call = first, *next; call; call = next) {
        next = call->next;
        unlist(call);
        if (call->joined) {
            free(call);
            continue;
        }
        if (!call->skipped) queue.bytes -= call->send_bytes + call->recv_bytes;
        if (!call->graph_copy && !lb_nccl_call_is_message(call->given.kind)) call->comm->sequence--;
        free_call(call);
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

/* ---- what NCCL says of a call --------------------------------------------------------------------------------------- */

static const char *const functions[LB_CALL_KINDS] = {"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
                                                     "AlltoAll",  "Gather", "Scatter",   "Send",      "Recv"};

static bool fits(const lb_nccl_call *call, const lb_nccl_call_carried *carried)
{
    if (call->algorithm[0] || strcmp(functions[call->given.kind], carried->function) != 0) return false;
    if (call->comm && (call->comm->rank != carried->rank || call->comm->ranks != carried->ranks)) return false;
    return (!call->given.recv || !carried->recv || call->given.recv == carried->recv) &&
           call->given.count == carried->count;
}

/* NCCL launches what it was given in some order of its own; of several that fit the first given is meant. */
void lb_nccl_call_carried_out(const lb_nccl_call_carried *carried)
{
    lb_books_lock();
    lb_nccl_call *found = NULL;
    for (lb_nccl_call *call = queue.open; call; call = call->after)
        if (fits(call, carried)) found = call;
    for (lb_nccl_call *call = found ? NULL : queue.captured; call; call = call->after)
        if (fits(call, carried)) found = call;
    if (found) {
        strncat(found->algorithm, carried->algorithm, sizeof found->algorithm - 1);
        strncat(found->order, carried->order, sizeof found->order - 1);
    }
    lb_books_unlock();
}

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
