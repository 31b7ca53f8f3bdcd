/* Calls become ops: see mpi_writer.h. */
#include "mpi/mpi_writer.h"

#include "calls/shim_settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

const lb_shim_library lb_shim_library_here = {"MPI", "LASTBIT_MPI_KEEP", "LASTBIT_MPI_STEP"};

static const struct spelling {
    const char *name, *parts; /* `parts`: where a buffer has a tensor for each member; NULL: as `name` */
    const char *unknown;      /* where replay does not know what it does */
    int8_t sent, root;        /* places of arguments; -1: none */
} spellings[LB_MPI_KINDS] = {
    [LB_MPI_ALL_REDUCE] = {"c10d::allreduce_", NULL, "mpi::allreduce", 0, -1},
    [LB_MPI_REDUCE] = {"c10d::reduce_", NULL, "mpi::reduce", 0, 3},
    [LB_MPI_SCAN] = {"mpi::scan", NULL, "mpi::scan", 0, -1},
    [LB_MPI_EXSCAN] = {"mpi::exscan", NULL, "mpi::exscan", 0, -1},
    [LB_MPI_REDUCE_SCATTER] = {"c10d::_reduce_scatter_base_", "c10d::reduce_scatter_", "mpi::reduce_scatter", 1, -1},
    [LB_MPI_BROADCAST] = {"c10d::broadcast_", NULL, NULL, 0, 2},
    [LB_MPI_ALL_GATHER] = {"c10d::_allgather_base_", "c10d::allgather_", NULL, 1, -1},
    [LB_MPI_GATHER] = {"c10d::gather_", NULL, NULL, 1, 3},
    [LB_MPI_SCATTER] = {"c10d::scatter_", NULL, NULL, 1, 3},
    [LB_MPI_ALL_TO_ALL] = {"c10d::alltoall_base_", "c10d::alltoall_", NULL, 1, -1},
    [LB_MPI_SEND] = {"c10d::send", NULL, NULL, 0, 2},
    [LB_MPI_RECEIVE] = {"c10d::recv_", NULL, NULL, 0, 2}};
enum { ARG_TAG = 3, ARG_NAME = 4, ARGS = 5 };

static const lb_door *door;

static bool is_reduced_by_replay(const char *reduction)
{
    static const char *const known[] = {"sum", "product", "max", "min", "band", "bor", "bxor"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i], reduction) == 0) return true;
    return false;
}

/* Sums of pairs are sums of their elements; the maximum of pairs by MPI_MAXLOC is not, and has a name of its own. */
static const char *name_of(const lb_mpi_call *call)
{
    const struct spelling *spelling = &spellings[call->kind];
    const bool parts = call->send.n > 1 || call->recv.n > 1;
    if (call->reduction && !is_reduced_by_replay(call->reduction)) return spelling->unknown;
    return parts && spelling->parts ? spelling->parts : spelling->name;
}

/* ---- the archive ------------------------------------------------------------------------------------------------- */

static void give_up(const char *why)
{
    lb_mpi_place *place = lb_mpi_communicator_place();
    if (!place->dead) lb_shim_say("MPI calls of rank %" PRId32 " are not recorded: %s", place->rank, why);
    lb_mpi_communicators_lock();
    place->dead = true;
    lb_mpi_communicators_unlock();
}

/* As a JSON string. */
static size_t put_text(char *to, size_t room, const char *text)
{
    size_t n = 0;
    if (room < 3) return 0;
    to[n++] = '"';
    for (; *text && n + 3 < room; text++) {
        if (*text == '"' || *text == '\\') to[n++] = '\\';
        to[n++] = *text >= ' ' && *text < 0x7f ? *text : '?';
    }
    to[n++] = '"';
    to[n] = 0;
    return n;
}

/* Settings that choose algorithms of MPI, or how its messages travel. Others hold addresses and names of machines. */
static bool is_setting(const char *variable)
{
    static const char *const begins[] = {"OMPI_MCA_coll", "OMPI_MCA_pml", "OMPI_MCA_btl=", "OMPI_MCA_mtl",
                                         "OMPI_MCA_op",   "MPIR_CVAR_",   "UCX_TLS",       "FI_PROVIDER",
                                         "I_MPI_ADJUST",  "OMP_NUM_"};
    const char *equals = strchr(variable, '='), *host = strstr(variable, "HOST"),
               *interface = strstr(variable, "INTERFACE");
    if (!equals || (host && host < equals) || (interface && interface < equals)) return false;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(variable, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

static void put_receipt(const lb_mpi_place *place)
{
    char text[8192];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"versions\": {\"mpi\": ");
    n += put_text(text + n, sizeof text - n, place->library);
    n += (size_t)snprintf(text + n, sizeof text - n, "}, \"environment\": {");
    const char *comma = "";
    for (char **at = environ; at && *at; at++) {
        const char *equals = strchr(*at, '=');
        const size_t length = equals ? (size_t)(equals - *at) : 0;
        if (!is_setting(*at) || n + length + strlen(equals) * 2 + 64 > sizeof text) continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%.*s\": ", comma, (int)length, *at);
        n += put_text(text + n, sizeof text - n, equals + 1);
        comma = ", ";
    }
    snprintf(text + n, sizeof text - n, "}}");
    door->lb_recorder_table(place->archive.recorder, "receipt", text, NULL);
}

static void describe(const lb_mpi_place *place)
{
    char table[512];
    size_t n = (size_t)snprintf(table, sizeof table, "{\"library\": ");
    n += put_text(table + n, sizeof table - n, place->library);
    snprintf(table + n, sizeof table - n, ", \"threads\": \"%s\", \"step_calls\": %" PRIu64 ", \"marked\": %s}",
             place->threads, lb_shim_settings_now()->step_calls, place->marked ? "true" : "false");
    door->lb_recorder_table(place->archive.recorder, "mpi", table, NULL);
    put_receipt(place);
}

static void open_archive(lb_mpi_place *place)
{
    lb_err err = LB_ERR_INIT;
    const lb_status status = lb_call_archive_open(&place->archive, place->rank, place->world, &err);
    door = lb_call_archive_door();
    if (status != LB_OK)
        give_up(err.message);
    else
        describe(place);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* A side as tensors, each a storage of its own; what an earlier call received and this one sends on unchanged is that
 * storage again. */
typedef struct tensors {
    lb_host_tensor one, *list; /* `list`: &one, or of malloc */
    lb_recorded_operand of_one, *operands;
    uint32_t n;
    bool sent_on;
} tensors;

static lb_host_tensor tensor_of(const char *data, const lb_mpi_side *side, int64_t bytes)
{
    const size_t width = lb_mpi_call_width(side->element.dtype);
    lb_mpi_place *place = lb_mpi_communicator_place();
    lb_host_tensor seen =
        door->lb_host_tensor_of(data, side->element.dtype, 1, (int64_t[]){bytes / (int64_t)(width ? width : 1)});
    seen.storage = ++place->archive.next_storage;
    seen.device = data ? 0 : 1;
    return seen;
}

static bool make_tensors(const lb_mpi_side *side, tensors *made)
{
    *made = (tensors){.list = &made->one, .operands = &made->of_one};
    if (!side->exists || side->element.dtype == LB_NO_DTYPE) return true;
    if (side->n > 1) {
        made->list = calloc(side->n, sizeof *made->list);
        made->operands = calloc(side->n, sizeof *made->operands);
    }
    int64_t at = 0;
    for (; made->list && made->operands && made->n < side->n; made->n++) {
        made->list[made->n] = tensor_of(side->copy ? side->copy + at : NULL, side, side->parts[made->n].bytes);
        made->operands[made->n] = (lb_recorded_operand){.tag = LB_ARG_VALUE, .u.tensor = &made->list[made->n]};
        at += side->parts[made->n].bytes;
    }
    return made->n == side->n;
}

static void release_tensors(tensors *tensors)
{
    if (tensors->list != &tensors->one) free(tensors->list);
    if (tensors->operands != &tensors->of_one) free(tensors->operands);
}

static void find_sent_on(const lb_mpi_call *call, tensors *sent)
{
    const lb_mpi_side *side = &call->send;
    const lb_received_window *again =
        sent->n == 1 ? lb_received_bytes_find(&lb_mpi_communicator_place()->archive.received, side->parts[0].from,
                                              (size_t)side->bytes, side->element.dtype, side->copy)
                     : NULL;
    if (!again) return;
    sent->sent_on = true;
    sent->list[0].storage = again->storage;
    sent->list[0].data = again->copy;
}

/* What was received stays known where it is one tensor; the recorder has its bytes by the call's own copy, which goes
 * along. */
static void keep_received(lb_mpi_call *call, const tensors *received)
{
    lb_mpi_side *side = &call->recv;
    lb_call_archive *archive = &lb_mpi_communicator_place()->archive;
    for (uint32_t i = 0; i < side->n && side->exists && !call->failed; i++) {
        const bool kept = received->n == 1 && side->copy && side->bytes && side->bytes <= LB_RECEIVED_MOST;
        lb_received_bytes_note(&archive->received, door, archive->recorder,
                               &(lb_received_window){side->parts[i].from, (size_t)side->parts[i].bytes,
                                                     side->element.dtype, kept ? received->list[0].storage : 0,
                                                     kept ? side->copy : NULL});
        if (!kept) continue;
        side->copy = NULL;
        return;
    }
    for (uint32_t i = 0; i < received->n; i++) door->lb_recorder_forget(archive->recorder, received->list[i].storage);
}

/* ---- one op ------------------------------------------------------------------------------------------------------ */

static lb_recorded_operand integer(int64_t number)
{
    return (lb_recorded_operand){.tag = LB_ARG_INT, .u.i = number};
}

/* A broadcast and a receive write over their argument. */
static bool is_written(const lb_mpi_call *call)
{
    return call->kind == LB_MPI_BROADCAST || call->kind == LB_MPI_RECEIVE;
}

static void fill_args(lb_recorded_operand args[ARGS], const lb_mpi_call *call, const tensors *sent,
                      const tensors *received)
{
    const struct spelling *spelling = &spellings[call->kind];
    lb_recorded_operand *given = &args[spelling->sent];
    for (int i = 0; i < ARGS; i++) args[i] = (lb_recorded_operand){.tag = LB_ARG_NONE};
    if (sent->n == 1 && call->kind != LB_MPI_SCATTER)
        *given = sent->operands[0];
    else if (sent->n)
        *given = (lb_recorded_operand){.tag = LB_ARG_LIST, .count = sent->n, .u.items = sent->operands};
    if (is_written(call)) {
        if (received->n) *given = received->operands[0];
        given->flags = LB_OPERAND_WRITTEN;
        if (received->n) given->flags |= LB_OPERAND_OVERWRITTEN;
    }
    if (spelling->root >= 0 && call->root >= 0) args[spelling->root] = integer(call->root);
    if (lb_mpi_call_is_message(call->kind)) args[ARG_TAG] = integer(call->tag);
    args[ARG_NAME] = (lb_recorded_operand){.tag = LB_ARG_STRING, .u.text = call->name};
}

static lb_status end_op(const lb_mpi_call *call, lb_pending *pending, const tensors *received, lb_err *err)
{
    const lb_mpi_communicator *comm = call->comm;
    lb_recorder *recorder = lb_mpi_communicator_place()->archive.recorder;
    uint32_t op;
    if (call->failed) {
        door->lb_recorder_op_failed(recorder, pending);
        return LB_OK;
    }
    LB_TRY(
        door->lb_recorder_op_end(recorder, pending, received->operands, is_written(call) ? 0 : received->n, &op, err));
    return door->lb_recorder_collective(recorder, op, comm->name, call->reduction, NULL, call->sequence, comm->members,
                                        comm->members ? (uint32_t)comm->size : 0, err);
}

static bool is_without_type(const lb_mpi_side *side)
{
    return side->exists && side->element.dtype == LB_NO_DTYPE;
}

/* Why bytes of a call are not there; NULL: they are, or are not wanted. */
static const char *what_is_missing(const lb_mpi_call *call)
{
    if (is_without_type(&call->send) || is_without_type(&call->recv))
        return "elements of %s are not recorded: their datatype is not made of one type that has a place here";
    if (!lb_shim_settings_now()->bytes) return NULL;
    if (call->skipped) return "the bytes of %s were skipped: 256 MB waited to be written";
    if (call->unread) return "bytes of %s could not be read: they lie on a device, or there was no memory";
    if (!call->comm->members) return "the members of a communicator of %s are not all in MPI_COMM_WORLD";
    return NULL;
}

static void note(const lb_mpi_call *call)
{
    const char *missing = what_is_missing(call);
    char text[200];
    if (!missing) return;
    snprintf(text, sizeof text, missing, call->name);
    lb_call_archive_skipped(&lb_mpi_communicator_place()->archive, text);
}

static lb_status write_op(lb_mpi_call *call, lb_err *err)
{
    lb_recorder *recorder = lb_mpi_communicator_place()->archive.recorder;
    lb_recorded_operand args[ARGS];
    lb_pending *pending = NULL;
    lb_recorded_call op = LB_CALL_INIT;
    tensors sent, received;
    lb_status status = LB_OK;
    if (!make_tensors(&call->send, &sent)) status = LB_ERR_NOMEM;
    if (!make_tensors(&call->recv, &received)) status = LB_ERR_NOMEM;
    if (status == LB_OK) {
        find_sent_on(call, &sent);
        fill_args(args, call, &sent, &received);
        op.name = name_of(call);
        op.flags = LB_OP_COLLECTIVE | (is_written(call) ? LB_OP_MUTABLE : 0);
        op.phase = LB_PHASE_COMMUNICATION;
        op.args = args;
        op.n_args = ARGS;
        status = door->lb_recorder_op_begin(recorder, &op, &pending, err);
        if (status == LB_OK) status = end_op(call, pending, &received, err);
        for (uint32_t i = 0; i < sent.n && !sent.sent_on; i++) door->lb_recorder_forget(recorder, sent.list[i].storage);
        if (status == LB_OK) keep_received(call, &received);
    }
    release_tensors(&sent);
    release_tensors(&received);
    if (status == LB_OK) note(call);
    return status;
}

void lb_mpi_writer_write(lb_mpi_call *call)
{
    lb_mpi_place *place = lb_mpi_communicator_place();
    lb_err err = LB_ERR_INIT;
    if (!place->archive.opened) open_archive(place);
    if (place->dead) return;
    if (lb_call_archive_enter(&place->archive, call->step, &err) != LB_OK || write_op(call, &err) != LB_OK)
        give_up(err.message);
}

void lb_mpi_writer_close(uint64_t unfinished, bool complete)
{
    lb_mpi_place *place = lb_mpi_communicator_place();
    lb_err err = LB_ERR_INIT;
    char text[120];
    if (!place->archive.recorder) return;
    if (!place->dead && unfinished) {
        snprintf(text, sizeof text, "%" PRIu64 " calls of MPI that had not ended when recording did", unfinished);
        lb_call_archive_skipped(&place->archive, text);
    }
    if (!place->dead && lb_shim_lost_why()) {
        snprintf(text, sizeof text, "calls of MPI, how many is not known: %s", lb_shim_lost_why());
        lb_call_archive_skipped(&place->archive, text);
    }
    if (!place->dead && !complete && lb_shim_settings_now()->ring)
        door->lb_recorder_trigger(place->archive.recorder, "the program ended without MPI_Finalize", NULL);
    if (!place->dead && complete && lb_call_archive_end_step(&place->archive, &err) != LB_OK) give_up(err.message);
    lb_call_archive_close(&place->archive);
}
