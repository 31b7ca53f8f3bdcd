/* A call: see mpi_call.h. */
#define _GNU_SOURCE /* process_vm_readv */
#include "mpi/mpi_call.h"

#include "calls/shim_settings.h"
#include "mpi/real_mpi.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

bool lb_mpi_call_is_message(lb_mpi_call_kind kind)
{
    return kind == LB_MPI_SEND || kind == LB_MPI_RECEIVE;
}

size_t lb_mpi_call_width(lb_dtype dtype)
{
    switch (dtype) {
#define WIDTH(NAME, code, name, torch, safetensors, numpy, bits, kind)                                                 \
    case LB_##NAME: return bits / 8;
        LB_DTYPES(WIDTH)
#undef WIDTH
    default: return 0;
    }
}

/* ---- what lies where --------------------------------------------------------------------------------------------- */

static bool is_in_place(const void *data)
{
    return data == lb_mpi_real_family()->in_place;
}

/* Part `i`: as many items, so many items behind the buffer's beginning. */
static void set_part(lb_mpi_side *side, uint32_t i, const void *data, int64_t at, int64_t items)
{
    const lb_mpi_element *element = &side->element;
    side->parts[i] = (lb_mpi_part){(const char *)data + at * element->extent, (int)items, items * element->bytes};
    side->bytes += side->parts[i].bytes;
}

/* Most calls send and receive one datatype, which MPI is asked about once. */
static _Thread_local struct asked {
    bool known;
    lb_mpi_handle datatype;
    lb_mpi_element element;
} asked;

static bool begin_side(lb_mpi_side *side, lb_mpi_handle datatype, uint32_t n)
{
    side->exists = true;
    side->datatype = datatype;
    side->n = n;
    if (!asked.known || asked.datatype != datatype) lb_mpi_real_family()->element(datatype, &asked.element);
    asked.known = true;
    asked.datatype = datatype;
    side->element = asked.element;
    side->parts = n == 1 ? &side->one : lb_shim_memory(n * sizeof *side->parts);
    return side->parts != NULL;
}

/* All of a buffer as one tensor. */
static bool take_whole(lb_mpi_side *side, const lb_mpi_buffer *buffer, int64_t items)
{
    if (!begin_side(side, buffer->datatype, 1) || items > INT32_MAX) return false;
    set_part(side, 0, buffer->data, 0, items);
    return true;
}

/* The part of one member. */
static bool take_member(lb_mpi_side *side, const lb_mpi_buffer *buffer, int member)
{
    int64_t at = (int64_t)member * buffer->count;
    for (int i = 0; buffer->counts && i <= member; i++)
        at = buffer->at ? buffer->at[i] : i ? at + buffer->counts[i - 1] : 0;
    if (!begin_side(side, buffer->datatype, 1)) return false;
    set_part(side, 0, buffer->data, at, buffer->counts ? buffer->counts[member] : buffer->count);
    return true;
}

/* One tensor for each member. */
static bool take_members(lb_mpi_side *side, const lb_mpi_buffer *buffer, int members)
{
    int64_t at = 0;
    if (!begin_side(side, buffer->datatype, (uint32_t)members)) return false;
    for (int i = 0; i < members; i++) {
        const int items = buffer->counts ? buffer->counts[i] : buffer->count;
        set_part(side, (uint32_t)i, buffer->data, buffer->counts && buffer->at ? buffer->at[i] : at, items);
        at += items;
    }
    return true;
}

static bool take_all(lb_mpi_side *side, const lb_mpi_buffer *buffer, int members)
{
    return buffer->counts ? take_members(side, buffer, members)
                          : take_whole(side, buffer, (int64_t)buffer->count * members);
}

static int64_t sum_of(const int *counts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += counts[i];
    return sum;
}

static bool is_even(const lb_mpi_buffer *buffer, int members)
{
    for (int i = 1; buffer->counts && i < members; i++)
        if (buffer->counts[i] != buffer->counts[0]) return false;
    return true;
}

/* Both buffers of a rank; where it gives MPI_IN_PLACE, what it sends lies where it receives. */
static bool take_reduced(lb_mpi_call *call, const lb_mpi_given *given)
{
    const int n = call->comm->size, me = call->comm->rank;
    const bool here = given->kind != LB_MPI_REDUCE || given->root == me;
    lb_mpi_buffer send = given->send;
    send.data = is_in_place(send.data) ? given->recv.data : send.data;
    if (given->kind != LB_MPI_REDUCE_SCATTER)
        return take_whole(&call->send, &send, send.count) && (!here || (given->kind == LB_MPI_EXSCAN && !me) ||
                                                              take_whole(&call->recv, &given->recv, given->recv.count));
    const int64_t mine = send.counts ? send.counts[me] : send.count;
    const bool one = !send.counts || is_even(&send, n);
    return (one ? take_whole(&call->send, &send, send.counts ? sum_of(send.counts, n) : (int64_t)send.count * n)
                : take_members(&call->send, &send, n)) &&
           take_whole(&call->recv, &given->recv, mine);
}

static bool take_gathered(lb_mpi_call *call, const lb_mpi_given *given)
{
    const int n = call->comm->size, me = call->comm->rank;
    const bool here = given->kind != LB_MPI_GATHER || given->root == me;
    return (is_in_place(given->send.data) ? take_member(&call->send, &given->recv, me)
                                          : take_whole(&call->send, &given->send, given->send.count)) &&
           (!here || take_all(&call->recv, &given->recv, n));
}

static bool take_scattered(lb_mpi_call *call, const lb_mpi_given *given)
{
    const int n = call->comm->size, me = call->comm->rank;
    return (given->root != me || take_members(&call->send, &given->send, n)) &&
           (is_in_place(given->recv.data) ? take_member(&call->recv, &given->send, me)
                                          : take_whole(&call->recv, &given->recv, given->recv.count));
}

static bool take_sides(lb_mpi_call *call, const lb_mpi_given *given)
{
    const int n = call->comm->size;
    switch (given->kind) {
    case LB_MPI_BROADCAST:
        return take_whole(given->root == call->comm->rank ? &call->send : &call->recv, &given->recv, given->recv.count);
    case LB_MPI_ALL_GATHER:
    case LB_MPI_GATHER: return take_gathered(call, given);
    case LB_MPI_SCATTER: return take_scattered(call, given);
    case LB_MPI_ALL_TO_ALL:
        return take_all(&call->send, is_in_place(given->send.data) ? &given->recv : &given->send, n) &&
               take_all(&call->recv, &given->recv, n);
    case LB_MPI_SEND: return take_whole(&call->send, &given->send, given->send.count);
    case LB_MPI_RECEIVE: return take_whole(&call->recv, &given->recv, given->recv.count);
    default: return take_reduced(call, given);
    }
}

lb_mpi_call *lb_mpi_call_new(const lb_mpi_given *given)
{
    const lb_mpi_family *family = lb_mpi_real_family();
    if (lb_mpi_call_is_message(given->kind) && given->root == family->proc_null) return NULL;
    lb_mpi_communicator *comm = lb_mpi_communicator_of(given->comm);
    lb_mpi_call *call = comm && !comm->inter ? lb_shim_memory(sizeof *call) : NULL;
    if (!call) {
        lb_mpi_communicators_lock();
        if (comm) lb_mpi_communicator_release(comm);
        lb_mpi_communicators_unlock();
        return NULL;
    }
    *call =
        (lb_mpi_call){.kind = given->kind, .name = given->name, .comm = comm, .root = given->root, .tag = given->tag};
    return call;
}

void lb_mpi_call_measure(lb_mpi_call *call, const lb_mpi_given *given)
{
    const lb_mpi_family *family = lb_mpi_real_family();
    asked.known = false; /* a datatype's handle may come again */
    call->skipped = !take_sides(call, given);
    lb_mpi_side *received = &call->recv;
    if (received->exists && !received->element.dense && received->element.dtype != LB_NO_DTYPE)
        received->datatype = received->held = family->hold(received->datatype); /* it may be freed before it is used */
    call->reduction = given->op ? family->reduction(given->op) : NULL;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* A program that computes on devices may give MPI their memory, which the host cannot read: the system is then asked
 * to copy, and says so, where a read would end the program. */
static bool copy_guarded(char *to, const char *from, size_t bytes)
{
    static _Atomic int devices = -1;
    if (devices < 0)
        devices = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY) ||
                  dlopen("libamdhip64.so", RTLD_NOLOAD | RTLD_LAZY) ||
                  dlopen("libze_loader.so.1", RTLD_NOLOAD | RTLD_LAZY);
    if (!devices) {
        memcpy(to, from, bytes);
        return true;
    }
    const struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)from, bytes};
    return !bytes || process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

static bool copy_part(const lb_mpi_side *side, const lb_mpi_part *part, char *to)
{
    if (!part->bytes) return true;
    if (side->element.dense) return copy_guarded(to, part->from, (size_t)part->bytes);
    char probe;
    return copy_guarded(&probe, part->from + side->element.first, 1) &&
           lb_mpi_real_family()->pack(part->from, part->items, side->datatype, to, part->bytes);
}

static bool copy_side(lb_mpi_side *side)
{
    char *to = side->element.dtype != LB_NO_DTYPE ? malloc((size_t)side->bytes + 1) : NULL;
    int64_t at = 0;
    bool copied = to != NULL;
    for (uint32_t i = 0; copied && i < side->n; i++) {
        copied = copy_part(side, &side->parts[i], to + at);
        at += side->parts[i].bytes;
    }
    if (copied)
        side->copy = to;
    else
        free(to);
    return copied || side->element.dtype == LB_NO_DTYPE;
}

int64_t lb_mpi_call_bytes(const lb_mpi_call *call)
{
    return call->send.bytes + call->recv.bytes;
}

void lb_mpi_call_copy_sent(lb_mpi_call *call)
{
    if (call->send.exists && !call->skipped) call->unread = !copy_side(&call->send) || call->unread;
}

void lb_mpi_call_copy_received(lb_mpi_call *call, const lb_mpi_message *message)
{
    lb_mpi_side *side = &call->recv;
    if (message) {
        call->root = message->source;
        call->tag = message->tag;
        if (message->cancelled) call->failed = true;
        if (message->bytes >= 0 && message->bytes < side->bytes && side->element.bytes && side->n == 1) {
            side->parts[0].items = (int)(message->bytes / side->element.bytes);
            side->bytes = side->parts[0].bytes = side->parts[0].items * side->element.bytes;
        }
    }
    if (side->exists && !call->skipped && !call->failed) call->unread = !copy_side(side) || call->unread;
    if (side->held) lb_mpi_real_family()->let_go(side->held);
    side->held = NULL;
}

static void free_side(lb_mpi_side *side)
{
    if (side->parts != &side->one) free(side->parts);
    free(side->copy);
}

void lb_mpi_call_free(lb_mpi_call *call)
{
    free_side(&call->send);
    free_side(&call->recv);
    lb_mpi_communicator_release(call->comm);
    free(call);
}
