/* Calls become ops: see call_writer.h. */
#include "call_writer.h"

#include "calls/shim_settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[LB_CALL_KINDS] = {[LB_CALL_ALL_REDUCE] = "nccl::all_reduce",
                                                 [LB_CALL_REDUCE] = "nccl::reduce",
                                                 [LB_CALL_BROADCAST] = "nccl::broadcast",
                                                 [LB_CALL_ALL_GATHER] = "nccl::all_gather",
                                                 [LB_CALL_REDUCE_SCATTER] = "nccl::reduce_scatter",
                                                 [LB_CALL_ALL_TO_ALL] = "nccl::all_to_all",
                                                 [LB_CALL_GATHER] = "nccl::gather",
                                                 [LB_CALL_SCATTER] = "nccl::scatter",
                                                 [LB_CALL_SEND] = "nccl::send",
                                                 [LB_CALL_RECEIVE] = "nccl::recv"};
const lb_shim_library lb_shim_library_here = {"NCCL", "LASTBIT_NCCL_KEEP", "LASTBIT_NCCL_STEP"};
static const lb_door *door;

static lb_dtype dtype_of(lb_nccl_dtype dtype)
{
    switch (dtype) {
#define CASE(number, name, ours)                                                                                       \
    case number: return ours;
        LB_NCCL_DTYPES(CASE)
#undef CASE
    default: return LB_NO_DTYPE;
    }
}

/* NCCL_PROFILER_PLUGIN names another plug-in, set before the start (lb_launch_preload leaves it). */
static bool has_plugin_of_others(void)
{
    const char *plugin = getenv("NCCL_PROFILER_PLUGIN"), *ours = getenv("LASTBIT_NCCL_SHIM");
    return plugin && *plugin && ours && *ours && strcmp(plugin, ours) != 0;
}

static const char *reduction_of(const lb_nccl_call *call)
{
    static const char *const names[LB_NCCL_OPS] = {"sum", "product", "max", "min", "avg"};
    if (call->given.op < 0) return NULL;
    if (call->scalar_dtype >= 0) return "premul_sum";
    return call->given.op < LB_NCCL_OPS ? names[call->given.op] : "unknown";
}

/* ---- archives and steps ------------------------------------------------------------------------------------------ */

static void give_up(lb_nccl_place *place, const char *why)
{
    if (!place->dead) lb_shim_say("NCCL calls of rank %" PRId32 " are not recorded: %s", place->rank, why);
    lb_communicator_registry_lock();
    place->dead = true;
    lb_communicator_registry_unlock();
}

static void describe(lb_nccl_place *place)
{
    char table[256];
    const lb_shim_settings *settings = lb_shim_settings_now();
    snprintf(table, sizeof table, "{\"calls\": \"nccl\", \"step_calls\": %" PRIu64 ", \"marked\": %s}",
             settings->step_calls, place->marked ? "true" : "false");
    door->lb_recorder_table(place->archive.recorder, "nccl", table, NULL);
}

static void open_place(lb_nccl_place *place)
{
    lb_err err = LB_ERR_INIT;
    if (lb_call_archive_open(&place->archive, place->rank, place->world, &err) != LB_OK) give_up(place, err.message);
    door = lb_call_archive_door();
    if (!place->dead) describe(place);
}

static void end_step(lb_nccl_place *place)
{
    lb_err err = LB_ERR_INIT;
    if (lb_call_archive_end_step(&place->archive, &err) != LB_OK) give_up(place, err.message);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* What a call reads and writes. In place, one storage holds both: `shared` is a copy of it that lives as long as the
 * op, with what was sent in it until the op began, and what was received from then on. What an earlier call received
 * and this one sends on unchanged is the same storage again; what this call received is then another one, wherever it
 * lies. */
typedef struct buffers {
    lb_host_tensor send, recv;
    bool sends, receives, in_place, sent_on;
    const void *sent, *received;
    char *shared, *kept; /* `kept`: a copy of what was received, for the calls that follow */
} buffers;

static bool is_inside(const void *part, size_t part_bytes, const void *whole, size_t whole_bytes)
{
    const uintptr_t at = (uintptr_t)part, from = (uintptr_t)whole;
    return part_bytes && at >= from && at + part_bytes <= from + whole_bytes;
}

static lb_host_tensor seen_of(const void *data, lb_dtype dtype, size_t bytes, size_t width, int64_t storage)
{
    lb_host_tensor seen = door->lb_host_tensor_of(data, dtype, 1, (int64_t[]){(int64_t)(bytes / width)});
    seen.storage = storage;
    seen.device = data ? 0 : 1;
    return seen;
}

/* The smaller of the two as a window of the larger. */
static void place_window(lb_host_tensor *part, const lb_host_tensor *whole, size_t offset, size_t width, char *base)
{
    part->storage = whole->storage;
    part->storage_bytes = whole->storage_bytes;
    part->layout.offset = (int64_t)(offset / width);
    part->data = base ? base + offset : NULL;
}

static void share(buffers *buffers, const lb_nccl_call *call, size_t width)
{
    const lb_nccl_call_given *given = &call->given;
    const bool outer_recv = call->recv_bytes >= call->send_bytes;
    const size_t whole = outer_recv ? call->recv_bytes : call->send_bytes;
    const char *base = outer_recv ? given->recv : given->send;
    const size_t offset = (size_t)((outer_recv ? (const char *)given->send : (const char *)given->recv) - base);
    buffers->in_place = true;
    buffers->shared = buffers->sent && (buffers->received || call->failed) ? calloc(1, whole) : NULL;
    buffers->send.device = buffers->recv.device = buffers->shared ? 0 : 1;
    if (buffers->shared) memcpy(buffers->shared + (outer_recv ? offset : 0), buffers->sent, call->send_bytes);
    (outer_recv ? &buffers->recv : &buffers->send)->data = buffers->shared;
    place_window(outer_recv ? &buffers->send : &buffers->recv, outer_recv ? &buffers->recv : &buffers->send, offset,
                 width, buffers->shared);
}

static char *copy_to_keep(const lb_nccl_call *call, const void *received)
{
    if (!received || !call->recv_bytes || call->failed || call->recv_bytes > LB_RECEIVED_MOST) return NULL;
    char *copy = malloc(call->recv_bytes);
    if (copy) memcpy(copy, received, call->recv_bytes);
    return copy;
}

static buffers buffers_of(const lb_nccl_call *call)
{
    const lb_nccl_call_given *given = &call->given;
    const size_t width = lb_nccl_call_dtype_bytes(given->dtype);
    const lb_dtype dtype = dtype_of(given->dtype);
    lb_nccl_place *place = call->comm->place;
    buffers seen = {.sends = given->send != NULL,
                    .receives = given->recv != NULL,
                    .sent = call->sent ? lb_stream_copy_bytes(call->sent) : NULL,
                    .received = call->received ? lb_stream_copy_bytes(call->received) : NULL};
    if (seen.sends && !call->send_bytes) seen.sent = "";
    if (seen.receives && !call->recv_bytes) seen.received = "";
    place->archive.next_storage += 2;
    seen.send = seen_of(seen.sent, dtype, call->send_bytes, width, place->archive.next_storage);
    seen.recv = seen_of(seen.received, dtype, call->recv_bytes, width, place->archive.next_storage + 1);
    const lb_received_window *again =
        seen.sends ? lb_received_bytes_find(&place->archive.received, given->send, call->send_bytes, dtype, seen.sent)
                   : NULL;
    if (again) seen.sent_on = true, seen.send = seen_of(again->copy, dtype, call->send_bytes, width, again->storage);
    const bool overlap = is_inside(given->send, call->send_bytes, given->recv, call->recv_bytes) ||
                         is_inside(given->recv, call->recv_bytes, given->send, call->send_bytes);
    if (seen.sends && seen.receives && overlap && !seen.sent_on) {
        share(&seen, call, width);
        return seen;
    }
    seen.kept = seen.receives ? copy_to_keep(call, seen.received) : NULL;
    if (seen.kept) seen.recv = seen_of(seen.kept, dtype, call->recv_bytes, width, seen.recv.storage);
    return seen;
}

/* ---- one op ------------------------------------------------------------------------------------------------------ */

enum {
    ARG_SEND,
    ARG_RECV,
    ARG_ROOT,
    ARG_COUNT,
    ARG_DTYPE,
    ARG_SCALAR,
    ARG_ALGORITHM,
    ARG_STREAM,
    ARG_GROUP,
    ARG_GRAPH,
    ARGS
};

static int64_t stream_number(lb_nccl_place *place, void *stream)
{
    const uint32_t room = sizeof place->streams / sizeof place->streams[0];
    for (uint32_t i = 0; i < place->n_streams; i++)
        if (place->streams[i] == stream) return i;
    if (place->n_streams == room) return -1;
    place->streams[place->n_streams] = stream;
    return place->n_streams++;
}

static float f32_of(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* f16 by its fields: 10 bits of fraction, an exponent biased by 15. */
static double f16_of(uint16_t bits)
{
    const int exponent = bits >> 10 & 31;
    double number = exponent ? 1024 + (bits & 1023) : bits & 1023;
    for (int e = exponent ? exponent : 1; e < 25; e++) number /= 2;
    for (int e = 25; e < exponent; e++) number *= 2;
    return bits >> 15 ? -number : number;
}

static lb_recorded_operand scalar_of(const lb_nccl_call *call)
{
    const void *bytes = call->scalar_copy        ? lb_stream_copy_bytes(call->scalar_copy)
                        : call->scalar_on_device ? NULL
                                                 : call->scalar;
    lb_recorded_operand operand = {.tag = LB_ARG_NONE};
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        double f64;
    } x = {0};
    if (call->scalar_dtype < 0 || !bytes) return operand;
    memcpy(&x, bytes, lb_nccl_call_dtype_bytes(call->scalar_dtype));
    operand.tag = LB_ARG_INT;
    switch (dtype_of(call->scalar_dtype)) {
    case LB_I8: operand.u.i = x.i8; break;
    case LB_U8: operand.u.i = x.u8; break;
    case LB_I32: operand.u.i = x.i32; break;
    case LB_U32: operand.u.i = x.u32; break;
    case LB_I64:
    case LB_U64: operand.u.i = x.i64; break;
    case LB_F64: operand = (lb_recorded_operand){.tag = LB_ARG_FLOAT, .u.f = x.f64}; break;
    case LB_F32: operand = (lb_recorded_operand){.tag = LB_ARG_FLOAT, .u.f = f32_of(x.u32)}; break;
    case LB_BF16: operand = (lb_recorded_operand){.tag = LB_ARG_FLOAT, .u.f = f32_of((uint32_t)x.u16 << 16)}; break;
    case LB_F16: operand = (lb_recorded_operand){.tag = LB_ARG_FLOAT, .u.f = f16_of(x.u16)}; break;
    default: operand.tag = LB_ARG_NONE; /* of fp8 the program has no scalar to give */
    }
    return operand;
}

static lb_recorded_operand integer(int64_t number)
{
    return (lb_recorded_operand){.tag = LB_ARG_INT, .u.i = number};
}

static void fill_args(lb_recorded_operand args[ARGS], const lb_nccl_call *call, const buffers *buffers)
{
    const lb_recorded_operand none = {.tag = LB_ARG_NONE};
    args[ARG_SEND] = buffers->sends ? (lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = &buffers->send} : none;
    args[ARG_RECV] = none;
    if (buffers->receives)
        args[ARG_RECV] = (lb_recorded_operand){
            .tag = LB_ARG_VALUE,
            .flags = (uint8_t)(LB_OPERAND_WRITTEN | (buffers->in_place ? 0 : LB_OPERAND_OVERWRITTEN)),
            .u.tensor = &buffers->recv};
    /* In place, what lies around the part that is sent is not read. */
    if (buffers->in_place && call->recv_bytes > call->send_bytes) args[ARG_RECV].flags |= LB_OPERAND_OVERWRITTEN;
    args[ARG_ROOT] = call->given.root >= 0 ? integer(call->given.root) : none;
    args[ARG_COUNT] = integer((int64_t)call->given.count);
    args[ARG_DTYPE] = (lb_recorded_operand){.tag = LB_ARG_DTYPE, .u.i = dtype_of(call->given.dtype)};
    args[ARG_SCALAR] = scalar_of(call);
    args[ARG_ALGORITHM] =
        call->algorithm[0] ? (lb_recorded_operand){.tag = LB_ARG_STRING, .u.text = call->algorithm} : none;
    args[ARG_STREAM] = integer(stream_number(call->comm->place, call->given.stream));
    args[ARG_GROUP] = call->group ? integer((int64_t)call->group) : none;
    args[ARG_GRAPH] = call->graph_copy ? integer((int64_t)call->graph) : none;
}

static lb_status end_op(const lb_nccl_call *call, lb_pending *pending, buffers *buffers, lb_err *err)
{
    lb_communicator *comm = call->comm;
    const lb_recorded_operand result = {.tag = LB_ARG_VALUE, .u.tensor = &buffers->recv};
    uint32_t op;
    if (call->failed) {
        door->lb_recorder_op_failed(comm->place->archive.recorder, pending);
        return LB_OK;
    }
    if (buffers->shared) memcpy((char *)(uintptr_t)buffers->recv.data, buffers->received, call->recv_bytes);
    LB_TRY(door->lb_recorder_op_end(comm->place->archive.recorder, pending, &result, buffers->receives, &op, err));
    return door->lb_recorder_collective(comm->place->archive.recorder, op, comm->name, reduction_of(call),
                                        call->order[0] ? call->order : NULL, call->sequence, comm->members,
                                        comm->members ? (uint32_t)comm->ranks : 0, err);
}

static bool is_unread(const lb_stream_copy *copy, size_t bytes)
{
    return bytes && (!copy || !lb_stream_copy_bytes(copy));
}

/* Why bytes of a call are not there; NULL: they are, or are not wanted. */
static const char *what_is_missing(const lb_nccl_call *call)
{
    if (call->captured && !call->graph_copy)
        return "%s was captured into a CUDA graph: its runs are not seen, nor their bytes";
    if (call->overwritten) return "%s in a CUDA graph: bytes of runs were overwritten before they were read";
    if (call->roomless) return "%s in a CUDA graph: its bytes are not read, 256 MB of pinned memory are in use";
    if (call->skipped && !call->captured && lb_shim_settings_now()->bytes)
        return "the bytes of %s were skipped: 256 MB waited for a stream, or in one group";
    if (!call->skipped &&
        (is_unread(call->sent, call->send_bytes) || (!call->failed && is_unread(call->received, call->recv_bytes))))
        return "bytes of %s could not be read: CUDA does not know the memory, has none that is pinned, or failed";
    return NULL;
}

/* Of a type that is younger than this table of them. */
static void leave_out(const lb_nccl_call *call)
{
    char text[200];
    if (call->failed) return;
    snprintf(text, sizeof text, "%s of elements that are not known, of NCCL's type %d", kinds[call->given.kind],
             call->given.dtype);
    lb_call_archive_skipped(&call->comm->place->archive, text);
}

static void note(const lb_nccl_call *call)
{
    lb_nccl_place *place = call->comm->place;
    const char *missing = what_is_missing(call);
    char text[200];
    if (missing) {
        snprintf(text, sizeof text, missing, kinds[call->given.kind]);
        lb_call_archive_skipped(&place->archive, text);
    }
    if (!place->of_others && has_plugin_of_others()) {
        place->of_others = true;
        door->lb_recorder_notice(place->archive.recorder, "degraded",
                                 "NCCL_PROFILER_PLUGIN names another plug-in: in which order NCCL reduces is not known",
                                 NULL);
    }
    if (call->comm->members || place->degraded) return;
    place->degraded = true;
    snprintf(text, sizeof text, "which ranks communicator \"%s\" consists of is not known", call->comm->name);
    door->lb_recorder_notice(place->archive.recorder, "degraded", text, NULL);
}

/* What was received stays where the whole of a storage is it. */
static void forget_buffers(const lb_nccl_call *call, buffers *buffers, bool recorded)
{
    lb_nccl_place *place = call->comm->place;
    const bool whole = buffers->shared && call->send_bytes <= call->recv_bytes && call->recv_bytes <= LB_RECEIVED_MOST;
    char *copy = !recorded || call->failed ? NULL : buffers->kept ? buffers->kept : whole ? buffers->shared : NULL;
    if (buffers->sends && !buffers->sent_on && !(copy && buffers->in_place))
        door->lb_recorder_forget(place->archive.recorder, buffers->send.storage);
    if (buffers->receives && !copy) door->lb_recorder_forget(place->archive.recorder, buffers->recv.storage);
    if (buffers->receives && !call->failed)
        lb_received_bytes_note(&place->archive.received, door, place->archive.recorder,
                               &(lb_received_window){call->given.recv, call->recv_bytes, dtype_of(call->given.dtype),
                                                     buffers->recv.storage, copy});
    if (buffers->shared != copy) free(buffers->shared);
    if (buffers->kept != copy) free(buffers->kept);
}

static lb_status write_op(const lb_nccl_call *call, lb_err *err)
{
    lb_recorder *recorder = call->comm->place->archive.recorder;
    lb_recorded_operand args[ARGS];
    lb_pending *pending = NULL;
    lb_recorded_call op = LB_CALL_INIT;
    buffers buffers = buffers_of(call);
    fill_args(args, call, &buffers);
    op.name = kinds[call->given.kind];
    op.flags = LB_OP_COLLECTIVE | (buffers.receives ? LB_OP_MUTABLE : 0);
    op.phase = LB_PHASE_COMMUNICATION;
    op.args = args;
    op.n_args = call->graph_copy ? ARGS : ARG_GRAPH;
    lb_status status = door->lb_recorder_op_begin(recorder, &op, &pending, err);
    if (status == LB_OK) status = end_op(call, pending, &buffers, err);
    forget_buffers(call, &buffers, status == LB_OK);
    if (status == LB_OK) note(call);
    if (call->graph_copy) {
        call->comm->place->runs++;
        call->comm->place->runs_without_bytes += call->overwritten || call->roomless;
    }
    return status;
}

void lb_nccl_call_write(lb_nccl_call *call)
{
    lb_nccl_place *place = call->comm->place;
    lb_err err = LB_ERR_INIT;
    if (!place->archive.opened) open_place(place);
    if (place->dead) return;
    lb_communicator_resolve(call->comm);
    if (lb_call_archive_enter(&place->archive, call->step, &err) != LB_OK) {
        give_up(place, err.message);
        return;
    }
    if (dtype_of(call->given.dtype) == LB_NO_DTYPE)
        leave_out(call);
    else if (write_op(call, &err) != LB_OK)
        give_up(place, err.message);
}

static void count_runs(const lb_nccl_place *place)
{
    char table[160];
    lb_communicator_registry_lock();
    const uint64_t captured = place->captured;
    lb_communicator_registry_unlock();
    if (!captured) return;
    snprintf(table, sizeof table, "{\"captured\": %" PRIu64 ", \"runs\": %" PRIu64 ", \"without_bytes\": %" PRIu64 "}",
             captured, place->runs, place->runs_without_bytes);
    door->lb_recorder_table(place->archive.recorder, "nccl_graphs", table, NULL);
}

static void tell_what_was_lost(lb_nccl_place *place)
{
    char text[160];
    if (!lb_shim_lost_why()) return;
    snprintf(text, sizeof text, "calls of NCCL, how many is not known: %s", lb_shim_lost_why());
    lb_call_archive_skipped(&place->archive, text);
}

void lb_nccl_call_writer_close(void)
{
    for (lb_nccl_place *place = lb_nccl_place_first(); place && door; place = place->next) {
        if (!place->archive.recorder) continue;
        if (!place->dead) tell_what_was_lost(place);
        if (!place->dead) end_step(place);
        if (!place->dead) count_runs(place);
        lb_call_archive_close(&place->archive);
    }
}
