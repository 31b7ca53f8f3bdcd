/* The queue of calls: see mpi_queue.h. */
#include "mpi/mpi_queue.h"

#include "calls/shim_settings.h"
#include "mpi/mpi_writer.h"
#include "mpi/real_mpi.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CALLS = 1 << 16, NAP_NS = 1000000 };
#define MOST_BYTES (256ll << 20)

static struct queue {
    lb_mpi_call *first, **end;
    uint64_t calls;
    int64_t bytes;
    pthread_cond_t more, room;
    pthread_t writer;
    pid_t owner; /* a forked child has no writer */
    bool running, asleep, closing, complete;
} queue = {.end = &queue.first, .more = PTHREAD_COND_INITIALIZER, .room = PTHREAD_COND_INITIALIZER};

/* ---- the writer's thread ----------------------------------------------------------------------------------------- */

/* A receive may wait for ever, in a thread of its own or by a request; all other calls end when their members have
 * come. */
static bool may_be_passed(const lb_mpi_call *call)
{
    if (queue.closing || queue.calls > MOST_CALLS) return true;
    return call->kind == LB_MPI_RECEIVE &&
           (call->step < lb_mpi_communicator_place()->step || queue.bytes > MOST_BYTES / 2);
}

/* Locked: the next one that may be written. */
static lb_mpi_call *next_ready(void)
{
    lb_mpi_call *call = queue.first;
    while (call && !call->ready && may_be_passed(call)) call = call->next;
    return call && call->ready ? call : NULL;
}

static void unqueue(lb_mpi_call *call)
{
    lb_mpi_call **at = &queue.first;
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    if (!*at) queue.end = at;
}

static void append(lb_mpi_call *call)
{
    call->next = NULL;
    *queue.end = call;
    queue.end = &call->next;
}

static void write_one(lb_mpi_call *call)
{
    unqueue(call);
    const bool written = !call->abandoned && lb_shim_mode_now() == LB_SHIM_RECORDING;
    lb_mpi_communicators_unlock();
    if (written) lb_mpi_writer_write(call);
    lb_mpi_communicators_lock();
    queue.calls--;
    queue.bytes -= call->reserved;
    lb_mpi_call_free(call);
    pthread_cond_broadcast(&queue.room);
}

/* Calls come in bursts: one that comes while the writer naps need not wake it. */
static void wait_for_calls(void)
{
    lb_mpi_communicators_unlock();
    nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    lb_mpi_communicators_lock();
    queue.asleep = true;
    while (!next_ready() && !queue.closing) pthread_cond_wait(&queue.more, lb_mpi_communicators_mutex());
    queue.asleep = false;
}

static void *write_calls(void *unused)
{
    (void)unused;
    lb_mpi_communicators_lock();
    for (;;) {
        lb_mpi_call *call = next_ready();
        if (call)
            write_one(call);
        else if (queue.closing)
            break;
        else
            wait_for_calls();
    }
    const uint64_t unfinished = queue.calls;
    const bool complete = queue.complete;
    lb_mpi_communicators_unlock();
    lb_mpi_writer_close(unfinished, complete);
    return NULL;
}

static void close_at_exit(void)
{
    lb_mpi_queue_close(false);
}

/* Locked. Signals are the program's. */
static bool start(void)
{
    sigset_t all, before;
    if (queue.running) return queue.owner == getpid();
    if (queue.closing) return false;
    if (!queue.owner) atexit(close_at_exit);
    queue.owner = getpid();
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    queue.running = pthread_create(&queue.writer, NULL, write_calls, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!queue.running) lb_shim_turn_off("the thread that writes could not be started");
    return queue.running;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Locked. */
static void count(lb_mpi_call *call)
{
    lb_mpi_place *place = lb_mpi_communicator_place();
    lb_mpi_communicator *comm = call->comm;
    const bool message = lb_mpi_call_is_message(call->kind);
    call->sequence = message ? comm->messages++ : comm->sequence++;
    if (comm->whole && !message && !place->marked) {
        if (place->clock && place->clock % lb_shim_settings_now()->step_calls == 0) place->step++;
        place->clock++;
    }
    call->step = place->step;
}

static bool is_wanted(const lb_mpi_call *call)
{
    const lb_mpi_place *place = lb_mpi_communicator_place();
    return place->wanted && !place->dead && !place->paused &&
           lb_shim_ranges_have(lb_shim_settings_now()->steps, call->step) && start();
}

/* Room for its bytes is waited for only where the writer makes some by itself. */
static void reserve(lb_mpi_call *call)
{
    const int64_t bytes = lb_mpi_call_bytes(call);
    if (!lb_shim_settings_now()->bytes || bytes > MOST_BYTES) call->skipped = true;
    while (!call->skipped && queue.running && queue.calls &&
           (queue.bytes + bytes > MOST_BYTES || queue.calls > MOST_CALLS)) {
        if (!next_ready())
            call->skipped = true;
        else
            pthread_cond_wait(&queue.room, lb_mpi_communicators_mutex());
    }
    call->reserved = call->skipped ? 0 : bytes;
    queue.bytes += call->reserved;
}

lb_mpi_call *lb_mpi_queue_begin(const lb_mpi_given *given)
{
    if (!lb_mpi_real_family()->initialized()) return NULL;
    lb_mpi_call *call = lb_mpi_call_new(given);
    if (!call) return NULL;
    lb_mpi_communicators_lock();
    count(call);
    const bool wanted = is_wanted(call);
    if (wanted)
        append(call), queue.calls++;
    else
        lb_mpi_call_free(call);
    lb_mpi_communicators_unlock();
    if (!wanted) return NULL;
    lb_mpi_call_measure(call, given);
    lb_mpi_communicators_lock();
    reserve(call);
    lb_mpi_communicators_unlock();
    lb_mpi_call_copy_sent(call);
    return call;
}

static void settle(lb_mpi_call *call)
{
    lb_mpi_communicators_lock();
    const int64_t now = lb_mpi_communicator_place()->step;
    if (call->kind == LB_MPI_RECEIVE && call->step < now) { /* it outlived its step: what that has left comes first */
        call->step = now;
        unqueue(call);
        append(call);
    }
    call->ready = true;
    if (queue.asleep) pthread_cond_signal(&queue.more);
    lb_mpi_communicators_unlock();
}

void lb_mpi_queue_end(lb_mpi_call *call, bool failed, const lb_mpi_message *message)
{
    if (!call) return;
    call->failed = failed;
    lb_mpi_call_copy_received(call, failed ? NULL : message);
    settle(call);
}

void lb_mpi_queue_abandon(lb_mpi_call *call)
{
    if (!call) return;
    call->abandoned = true;
    settle(call);
}

/* ---- steps, and the end ------------------------------------------------------------------------------------------ */

void lb_mpi_queue_step(int64_t step)
{
    lb_mpi_place *place = lb_mpi_communicator_place();
    lb_mpi_communicators_lock();
    place->step = step;
    place->marked = true;
    lb_mpi_communicators_unlock();
}

void lb_mpi_queue_next_step(void)
{
    lb_mpi_place *place = lb_mpi_communicator_place();
    lb_mpi_communicators_lock();
    place->step++;
    place->marked = true;
    lb_mpi_communicators_unlock();
}

void lb_mpi_queue_pause(bool paused)
{
    lb_mpi_communicators_lock();
    lb_mpi_communicator_place()->paused = paused;
    lb_mpi_communicators_unlock();
}

void lb_mpi_queue_close(bool complete)
{
    if (queue.owner && queue.owner != getpid()) return;
    lb_mpi_communicators_lock();
    const bool running = queue.running;
    queue.closing = true;
    queue.complete = complete;
    queue.running = false;
    pthread_cond_broadcast(&queue.more);
    pthread_cond_broadcast(&queue.room);
    lb_mpi_communicators_unlock();
    if (running) pthread_join(queue.writer, NULL);
    if (running) lb_shim_turn_off(NULL);
}
