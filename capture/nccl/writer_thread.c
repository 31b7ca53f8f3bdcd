/* The writer's thread: see writer_thread.h. */
#define _GNU_SOURCE
#include "writer_thread.h"

#include "call_carried.h"
#include "call_queue.h"
#include "call_writer.h"
#include "graph_runs.h"
#include "pinned_memory.h"
#include "calls/recorder_door.h"
#include "calls/shim_settings.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* At most so much waits for the writer. */
enum { MOST_CALLS = 1 << 16, POLL_NS = 200000, NAP_NS = 1000000, END_TRIES = 50000, LOOKED_AT = 1024 };
#define MOST_BYTES (256ull << 20)

static struct queue {
    lb_nccl_call *first, **end;
    uint64_t calls, bytes;
    pthread_cond_t more, room;
    pthread_t writer;
    bool running, asleep, stuck, closing, prepared;
} queue = {.end = &queue.first, .more = PTHREAD_COND_INITIALIZER, .room = PTHREAD_COND_INITIALIZER};

/* ---- what waits -------------------------------------------------------------------------------------------------- */

bool lb_writer_reserve(lb_nccl_call *call)
{
    const size_t bytes = call->skipped ? 0 : call->send_bytes + call->recv_bytes;
    while (queue.running && !queue.stuck && queue.calls &&
           (queue.bytes + bytes > MOST_BYTES || queue.calls > MOST_CALLS))
        pthread_cond_wait(&queue.room, lb_communicator_registry_mutex());
    if (queue.bytes && queue.bytes + bytes > MOST_BYTES) return false; /* or its own group has it */
    queue.bytes += bytes;
    return true;
}

void lb_writer_unreserve(size_t bytes)
{
    queue.bytes -= bytes;
}

void lb_writer_put(lb_nccl_call *call)
{
    *queue.end = call;
    queue.end = &call->next;
    queue.calls++;
}

void lb_writer_wake(void)
{
    if (queue.asleep) pthread_cond_signal(&queue.more);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static bool is_ready(const lb_nccl_call *call)
{
    lb_stream_copy *copies[] = {call->scalar_copy, call->sent, call->received, call->position};
    for (int i = 0; i < 4; i++)
        if (copies[i] && !lb_stream_copy_ready(copies[i])) return false;
    return true;
}

static void wait_a_little(void)
{
    queue.stuck = true;
    pthread_cond_broadcast(&queue.room); /* who waits for us would wait for a stream */
    lb_communicator_registry_unlock();
    nanosleep(&(struct timespec){0, POLL_NS}, NULL);
    lb_communicator_registry_lock();
    queue.stuck = false;
}

static void write_one(lb_nccl_call *call)
{
    if (!call->dropped) lb_graph_runs_number(call);
    if (!call->dropped && lb_shim_mode_now() == LB_SHIM_RECORDING &&
        lb_shim_ranges_have(lb_shim_settings_now()->steps, call->step))
        lb_nccl_call_write(call);
    lb_nccl_call_free_copies(call);
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
    const size_t bytes = lb_nccl_call_held_bytes(call);
    unqueue(call);
    lb_communicator_registry_unlock();
    write_one(call);
    lb_communicator_registry_lock();
    queue.calls--;
    queue.bytes -= bytes;
    lb_nccl_call_free(call);
    pthread_cond_broadcast(&queue.room);
}

/* Calls come in bursts: a call while the writer naps need not wake it. */
static void wait_for_calls(void)
{
    lb_communicator_registry_unlock();
    nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    lb_communicator_registry_lock();
    queue.asleep = true;
    while (!queue.first && !queue.closing && !lb_graph_copies_any())
        pthread_cond_wait(&queue.more, lb_communicator_registry_mutex());
    queue.asleep = false;
}

static void write_runs(const lb_graph_floors *floors)
{
    lb_nccl_call *run, *gone;
    while ((run = lb_graph_runs_next(floors))) {
        write_one(run);
        lb_communicator_registry_lock();
        lb_nccl_call_free(run);
        lb_communicator_registry_unlock();
    }
    while ((gone = lb_graph_runs_take_gone())) {
        lb_communicator_registry_lock();
        lb_call_carried_leave(gone);
        lb_nccl_call_free(gone);
        lb_communicator_registry_unlock();
    }
}

/* Calls from the front of the queue, which this thread alone takes from there. */
static int list_first(lb_nccl_call **calls, int most)
{
    int n = 0;
    lb_communicator_registry_lock();
    for (lb_nccl_call *call = queue.first; call && n < most; call = call->next) calls[n++] = call;
    lb_communicator_registry_unlock();
    return n;
}

/* Runs of graphs are written as far as they come first; of calls the one that may be written then, which need not be
 * the first that was made where streams run beside each other. NULL: a stream has to come to one before. */
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
    lb_communicator_registry_lock();
    for (int tries = 0; queue.first || !queue.closing;) {
        lb_communicator_registry_unlock();
        lb_nccl_call *next = next_call();
        lb_communicator_registry_lock();
        if (!next && queue.first && queue.closing && ++tries > END_TRIES) next = queue.first;
        if (next)
            write_queued(next);
        else if (queue.first)
            wait_a_little();
        else
            wait_for_calls();
    }
    lb_communicator_registry_unlock();
    lb_graph_runs_collect();
    write_runs(NULL);
    lb_nccl_call_writer_close();
    return NULL;
}

/* ---- the end of the process, and forks --------------------------------------------------------------------------- */

static void finish(void)
{
    lb_communicator_registry_lock();
    const bool running = queue.running;
    queue.closing = true;
    queue.running = false;
    pthread_cond_broadcast(&queue.more);
    lb_communicator_registry_unlock();
    if (running) pthread_join(queue.writer, NULL);
    lb_shim_turn_off(NULL);
}

static void after_fork_in_child(void)
{
    queue = (struct queue){.end = &queue.first, .prepared = true};
    pthread_cond_init(&queue.more, NULL);
    pthread_cond_init(&queue.room, NULL);
    lb_nccl_calls_drop();
    lb_call_carried_drop();
    lb_door_after_fork(true);
    lb_graph_runs_drop();
    lb_pinned_memory_drop();
    lb_communicators_drop(); /* what the parent recorded goes on in the parent */
}

static void before_fork(void)
{
    lb_communicator_registry_lock();
    lb_graph_copies_lock();
    lb_door_before_fork();
}

static void after_fork_in_parent(void)
{
    lb_door_after_fork(false);
    lb_graph_copies_unlock();
    lb_communicator_registry_unlock();
}

bool lb_writer_start(void)
{
    if (queue.running) return true;
    if (queue.closing) return false;
    if (!queue.prepared) {
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
        atexit(finish);
        queue.prepared = true;
    }
    queue.running = pthread_create(&queue.writer, NULL, write_calls, NULL) == 0;
    if (!queue.running) lb_shim_lost("the thread that writes could not be started");
    return queue.running;
}
