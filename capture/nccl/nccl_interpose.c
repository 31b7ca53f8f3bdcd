/* The entry points of NCCL as programs call them: each hands its call on to the real library and tells the books about
 * it.
 *
 * Exported are `ncclX`, and `pncclX`, which goes past the books, so that the library can stand in the place of
 * libnccl.so.2. What the real library lacks gives ncclSystemError, from that call alone. */
#include "call_queue.h"
#include "real_nccl.h"
#include "calls/shim_settings.h"
#include "stream_copy.h"

#include <lastbit/nccl.h>

#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

/* ---- the real ones ----------------------------------------------------------------------------------------------- */

#define DECLARE(name, parameters, arguments)                                                                           \
    EXPORTED lb_nccl_result name parameters;                                                                           \
    EXPORTED lb_nccl_result p##name parameters;                                                                        \
    lb_nccl_result p##name parameters                                                                                  \
    {                                                                                                                  \
        lb_nccl_result(*real) parameters;                                                                              \
        *(void **)&real = lb_nccl_real(LB_ENTRY_##name);                                                               \
        return real ? real arguments : LB_NCCL_SYSTEM_ERROR;                                                           \
    }
LB_NCCL_ROWS(DECLARE)

#define FORWARD(name, parameters, arguments)                                                                           \
    lb_nccl_result name parameters                                                                                     \
    {                                                                                                                  \
        return p##name arguments;                                                                                      \
    }
LB_NCCL_FORWARDED(FORWARD)

#define OTHER(type, name, parameters, arguments, otherwise)                                                            \
    EXPORTED type name parameters;                                                                                     \
    EXPORTED type p##name parameters;                                                                                  \
    type p##name parameters                                                                                            \
    {                                                                                                                  \
        type(*real) parameters;                                                                                        \
        *(void **)&real = lb_nccl_real(LB_ENTRY_##name);                                                               \
        if (real) return real arguments;                                                                               \
        return otherwise;                                                                                              \
    }                                                                                                                  \
    type name parameters                                                                                               \
    {                                                                                                                  \
        return p##name arguments;                                                                                      \
    }
OTHER(const char *, ncclGetErrorString, (lb_nccl_result result), (result), "no NCCL is behind lastbit's")
OTHER(const char *, ncclGetLastError, (lb_nccl_comm comm), (comm), "no NCCL is behind lastbit's")
OTHER(void, ncclResetDebugInit, (void), (), (void)0)
OTHER(void, ncclParamDumpAll, (void), (), (void)0)

static bool is_watched(void)
{
    const lb_shim_mode mode = lb_shim_mode_now();
    return mode == LB_SHIM_RECORDING || mode == LB_SHIM_JOINED;
}

static bool is_recorded(void)
{
    return lb_shim_mode_now() == LB_SHIM_RECORDING;
}

/* ---- what moves and reduces -------------------------------------------------------------------------------------- */

/* `what` in the words of lb_nccl_call_given, from the parameters by their names. */
#define MOVE(name, parameters, arguments, ...)                                                                         \
    lb_nccl_result name parameters                                                                                     \
    {                                                                                                                  \
        if (!is_watched()) return p##name arguments;                                                                   \
        lb_nccl_call *call = lb_nccl_call_begin(                                                                       \
            &(lb_nccl_call_given){.count = count, .dtype = dtype, .comm = comm, .stream = stream, __VA_ARGS__});       \
        const lb_nccl_result result = p##name arguments;                                                               \
        lb_nccl_call_end(call, result);                                                                                \
        return result;                                                                                                 \
    }
#define BOTH .send = send, .recv = recv
#define GIVEN_ncclAllReduce .kind = LB_CALL_ALL_REDUCE, BOTH, .op = op, .root = -1
#define GIVEN_ncclReduce .kind = LB_CALL_REDUCE, BOTH, .op = op, .root = root
#define GIVEN_ncclBcast .kind = LB_CALL_BROADCAST, .send = recv, .recv = recv, .op = -1, .root = root
#define GIVEN_ncclBroadcast .kind = LB_CALL_BROADCAST, BOTH, .op = -1, .root = root
#define GIVEN_ncclReduceScatter .kind = LB_CALL_REDUCE_SCATTER, BOTH, .op = op, .root = -1
#define GIVEN_ncclAllGather .kind = LB_CALL_ALL_GATHER, BOTH, .op = -1, .root = -1
#define GIVEN_ncclAlltoAll .kind = LB_CALL_ALL_TO_ALL, BOTH, .op = -1, .root = -1
#define GIVEN_ncclGather .kind = LB_CALL_GATHER, BOTH, .op = -1, .root = root
#define GIVEN_ncclScatter .kind = LB_CALL_SCATTER, BOTH, .op = -1, .root = root
#define GIVEN_ncclAllReduceConfig GIVEN_ncclAllReduce
#define GIVEN_ncclReduceConfig GIVEN_ncclReduce
#define GIVEN_ncclBroadcastConfig GIVEN_ncclBroadcast
#define GIVEN_ncclReduceScatterConfig GIVEN_ncclReduceScatter
#define GIVEN_ncclAllGatherConfig GIVEN_ncclAllGather
#define GIVEN_ncclAlltoAllConfig GIVEN_ncclAlltoAll
#define GIVEN_ncclGatherConfig GIVEN_ncclGather
#define GIVEN_ncclScatterConfig GIVEN_ncclScatter
#define GIVEN_ncclSend .kind = LB_CALL_SEND, .send = send, .op = -1, .root = root
#define GIVEN_ncclRecv .kind = LB_CALL_RECEIVE, .recv = recv, .op = -1, .root = root
#define MOVE_ROW(name, parameters, arguments) MOVE(name, parameters, arguments, GIVEN_##name)
LB_NCCL_MOVING(MOVE_ROW)

/* ---- groups ------------------------------------------------------------------------------------------------------ */

lb_nccl_result ncclGroupStart(void)
{
    const lb_nccl_result result = pncclGroupStart();
    if (is_watched() && result == LB_NCCL_SUCCESS) lb_nccl_call_group_begin();
    return result;
}

/* Communicators made in a group are there when it ends. */
static void settle_joins(lb_nccl_result result);

lb_nccl_result ncclGroupEnd(void)
{
    const lb_nccl_result result = pncclGroupEnd();
    if (!is_watched()) return result;
    lb_nccl_call_group_end(result, false);
    if (!lb_nccl_call_group_is_open()) settle_joins(result);
    return result;
}

lb_nccl_result ncclGroupSimulateEnd(lb_nccl_sim *info)
{
    const lb_nccl_result result = pncclGroupSimulateEnd(info);
    if (is_watched()) lb_nccl_call_group_end(result, true);
    return result;
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

typedef struct join {
    struct join *next;
    lb_joining joining;
    lb_nccl_comm parent;
} join;
static _Thread_local join *joins; /* of the group that is open in this thread */
static join *late;                /* splits whose handle comes when the parent has done it; with the books locked */

static join *begin_join(const lb_joining *joining, lb_nccl_comm parent)
{
    join *j = lb_shim_memory(sizeof *j);
    if (!j) return NULL;
    *j = (join){joins, *joining, parent};
    lb_communicator_registry_lock();
    const lb_communicator *from = parent ? lb_communicator_find(parent) : NULL;
    const bool known = (!parent || from) && lb_communicator_join(&j->joining, from);
    lb_communicator_registry_unlock();
    if (known) return j;
    free(j);
    return NULL;
}

static void drop(join *join)
{
    lb_communicator_registry_lock();
    lb_communicator_abandon(&join->joining);
    lb_communicator_registry_unlock();
    free(join);
}

/* NCCL itself knows of a split what its callers did not give. */
static void ask(lb_joining *joining, lb_nccl_comm handle)
{
    int ranks, rank;
    if (joining->ranks != LB_RANKS_UNTOLD) return;
    if (pncclCommCount(handle, &ranks) != LB_NCCL_SUCCESS || pncclCommUserRank(handle, &rank) != LB_NCCL_SUCCESS)
        return;
    joining->ranks = ranks;
    joining->rank = rank;
}

static void add(join *join)
{
    lb_nccl_comm handle = __atomic_load_n(join->joining.made, __ATOMIC_ACQUIRE); /* a thread of NCCL may put it there */
    if (handle) {
        lb_graph_prepare(); /* NCCL has just made the device's context current, and waited for it */
        lb_stream_copies_prepare();
        ask(&join->joining, handle);
    }
    lb_communicator_registry_lock();
    if (handle) {
        lb_communicator_add(&join->joining, handle);
        free(join);
    } else {
        join->next = late;
        late = join;
    }
    lb_communicator_registry_unlock();
}

/* A parent that does not block says how it stands: its splits are there, or will not be. */
static void settle_late(lb_nccl_comm parent, bool made)
{
    join *ready = NULL;
    lb_communicator_registry_lock();
    for (join **at = &late; *at;) {
        join *j = *at;
        if (j->parent != parent) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        j->next = ready;
        ready = j;
    }
    lb_communicator_registry_unlock();
    for (join *j = ready, *next; j; j = next) {
        next = j->next;
        if (made && __atomic_load_n(j->joining.made, __ATOMIC_ACQUIRE))
            add(j);
        else
            drop(j);
    }
}

/* In a group NCCL joins, and gives the handle, at its end. */
static void end_join(join *join, lb_nccl_result result)
{
    const bool made = result == LB_NCCL_SUCCESS || result == LB_NCCL_IN_PROGRESS;
    if (!join) return;
    if (made && lb_nccl_call_group_is_open())
        joins = join;
    else if (made)
        add(join);
    else
        drop(join);
}

static void settle_joins(lb_nccl_result result)
{
    while (joins) {
        join *next = joins->next;
        if (result == LB_NCCL_SUCCESS || result == LB_NCCL_IN_PROGRESS)
            add(joins);
        else
            drop(joins);
        joins = next;
    }
}

#define JOINING(...) (is_recorded() ? begin_join(&(lb_joining){__VA_ARGS__}, NULL) : NULL)

lb_nccl_result ncclCommInitRank(lb_nccl_comm *comm, int ranks, lb_nccl_unique id, int rank)
{
    join *join = JOINING(.made = comm, .id = lb_member_names_hash(&id, sizeof id), .ranks = ranks, .rank = rank,
                         .device = lb_stream_device());
    const lb_nccl_result result = pncclCommInitRank(comm, ranks, id, rank);
    end_join(join, result);
    return result;
}

lb_nccl_result ncclCommInitRankConfig(lb_nccl_comm *comm, int ranks, lb_nccl_unique id, int rank,
                                      lb_nccl_config *config)
{
    join *join = JOINING(.made = comm, .id = lb_member_names_hash(&id, sizeof id), .ranks = ranks, .rank = rank,
                         .device = lb_stream_device());
    const lb_nccl_result result = pncclCommInitRankConfig(comm, ranks, id, rank, config);
    end_join(join, result);
    return result;
}

lb_nccl_result ncclCommInitRankScalable(lb_nccl_comm *comm, int ranks, int rank, int n_ids, lb_nccl_unique *ids,
                                        lb_nccl_config *config)
{
    join *join = n_ids < 1 ? NULL
                           : JOINING(.made = comm, .id = lb_member_names_hash(ids, (size_t)n_ids * sizeof *ids),
                                     .ranks = ranks, .rank = rank, .device = lb_stream_device());
    const lb_nccl_result result = pncclCommInitRankScalable(comm, ranks, rank, n_ids, ids, config);
    end_join(join, result);
    return result;
}

lb_nccl_result ncclCommInitAll(lb_nccl_comm *comms, int n, const int *devices)
{
    const lb_nccl_result result = pncclCommInitAll(comms, n, devices);
    if (!is_recorded() || result != LB_NCCL_SUCCESS || n < 1) return result;
    const uint64_t parts[] = {(uint64_t)(uintptr_t)comms[0], lb_communicator_serial()};
    const uint64_t id = lb_member_names_hash(parts, sizeof parts);
    const bool on_devices = lb_stream_device() >= 0;
    for (int rank = 0; rank < n; rank++)
        end_join(JOINING(.made = &comms[rank], .id = id, .ranks = n, .rank = rank, .of_a_set = true,
                         .device = !on_devices ? -1
                                   : devices   ? devices[rank]
                                               : rank),
                 result);
    return result;
}

/* A split is told apart from others of its parent by their number, which is the same on all members. */
static join *begin_split(lb_nccl_comm comm, int color, int key, lb_nccl_comm *made)
{
    int rank = -1;
    if (!is_recorded()) return NULL;
    lb_communicator_registry_lock();
    const bool known = lb_communicator_find(comm);
    lb_communicator_registry_unlock();
    /* Of a split it may not have been asked for yet. */
    const bool told = known && pncclCommUserRank(comm, &rank) == LB_NCCL_SUCCESS;
    lb_communicator_registry_lock();
    lb_communicator *parent = lb_communicator_find(comm);
    const uint64_t parts[] = {parent ? parent->id : 0, parent ? parent->splits++ : 0};
    const lb_joining joining = {.made = made,
                                .id = lb_member_names_hash(parts, sizeof parts),
                                .ranks = LB_RANKS_UNTOLD,
                                .rank = told     ? rank
                                        : parent ? parent->rank
                                                 : 0,
                                .color = color,
                                .key = key,
                                .device = -1};
    lb_communicator_registry_unlock();
    return parent && color != LB_NCCL_NOCOLOR ? begin_join(&joining, comm) : NULL;
}

lb_nccl_result ncclCommSplit(lb_nccl_comm comm, int color, int key, lb_nccl_comm *made, lb_nccl_config *config)
{
    join *join = begin_split(comm, color, key, made);
    const lb_nccl_result result = pncclCommSplit(comm, color, key, made, config);
    end_join(join, result);
    return result;
}

/* The ranks that are not excluded call it; they keep the order that they have in the parent. */
lb_nccl_result ncclCommShrink(lb_nccl_comm comm, int *excluded, int n_excluded, lb_nccl_comm *made,
                              lb_nccl_config *config, int flags)
{
    join *join = begin_split(comm, 0, 0, made);
    const lb_nccl_result result = pncclCommShrink(comm, excluded, n_excluded, made, config, flags);
    end_join(join, result);
    return result;
}

static void leave(lb_nccl_comm comm)
{
    if (!is_recorded()) return;
    settle_late(comm, false);
    lb_nccl_call_progress(comm, LB_NCCL_SUCCESS);
    lb_communicator_registry_lock();
    lb_communicator_remove(comm);
    lb_communicator_registry_unlock();
}

/* The handle's address may be another's as soon as NCCL has let go of it, so that it is forgotten before. */
lb_nccl_result ncclCommDestroy(lb_nccl_comm comm)
{
    leave(comm);
    return pncclCommDestroy(comm);
}

lb_nccl_result ncclCommAbort(lb_nccl_comm comm)
{
    leave(comm);
    return pncclCommAbort(comm);
}

lb_nccl_result ncclCommFinalize(lb_nccl_comm comm)
{
    return pncclCommFinalize(comm);
}

lb_nccl_result ncclCommRevoke(lb_nccl_comm comm, int flags)
{
    return pncclCommRevoke(comm, flags);
}

lb_nccl_result ncclCommGetAsyncError(lb_nccl_comm comm, lb_nccl_result *error)
{
    const lb_nccl_result result = pncclCommGetAsyncError(comm, error);
    if (!is_recorded() || result != LB_NCCL_SUCCESS || !error || *error == LB_NCCL_IN_PROGRESS) return result;
    if (lb_nccl_call_is_open()) return result; /* NCCL asks by this very name, also where the books are locked */
    settle_late(comm, *error == LB_NCCL_SUCCESS);
    lb_nccl_call_progress(comm, *error);
    return result;
}

/* ---- reductions of the program's own ----------------------------------------------------------------------------- */

lb_nccl_result ncclRedOpCreatePreMulSum(lb_nccl_op *op, void *scalar, lb_nccl_dtype dtype, lb_nccl_residence residence,
                                        lb_nccl_comm comm)
{
    const lb_nccl_result result = pncclRedOpCreatePreMulSum(op, scalar, dtype, residence, comm);
    if (result != LB_NCCL_SUCCESS || !is_recorded()) return result;
    lb_premul *made = lb_shim_memory(sizeof *made);
    if (!made) return result;
    made->op = *op;
    made->dtype = dtype;
    if (residence == LB_NCCL_SCALAR_HOST)
        memcpy(made->bytes, scalar, lb_nccl_call_dtype_bytes(dtype));
    else
        made->on_device = scalar;
    lb_communicator_registry_lock();
    lb_communicator *of = lb_communicator_find(comm);
    if (of) made->next = of->premuls, of->premuls = made;
    lb_communicator_registry_unlock();
    if (!of) free(made);
    return result;
}

lb_nccl_result ncclRedOpDestroy(lb_nccl_op op, lb_nccl_comm comm)
{
    if (is_recorded()) {
        lb_communicator_registry_lock();
        lb_communicator *of = lb_communicator_find(comm);
        for (lb_premul **at = of ? &of->premuls : NULL; at && *at; at = &(*at)->next) {
            lb_premul *premul = *at;
            if (premul->op != op) continue;
            *at = premul->next;
            free(premul);
            break;
        }
        lb_communicator_registry_unlock();
    }
    return pncclRedOpDestroy(op, comm);
}

/* ---- what programs and PyTorch's recorder say (lastbit/nccl.h) --------------------------------------------------- */

void lb_nccl_step(int64_t step)
{
    lb_nccl_call_step(step);
}

void lb_nccl_join(int joined)
{
    lb_shim_join(joined);
}

const char *lb_nccl_last_order(void)
{
    return lb_nccl_call_last_order();
}
