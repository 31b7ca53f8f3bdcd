/* MPI's functions as programs call them.
 *
 * Each is there as MPI_… and as PMPI_…: Open MPI's Fortran bindings call the latter. Who else calls that, a tool or
 * MPI itself, goes on to MPI's own. */
#include "calls/shim_settings.h"
#include "mpi/mpi_queue.h"
#include "mpi/mpi_request.h"
#include "mpi/real_mpi.h"

#include <lastbit/mpi.h>

#include <stdlib.h>
#include <string.h>

enum { NO_MPI = 16, NO_ROOT = -1 }; /* MPI_ERR_OTHER in every family */

static bool is_recorded(void)
{
    return lb_shim_mode_now() == LB_SHIM_RECORDING && lb_mpi_real_family();
}

#define REAL(name, arguments) (lb_mpi_real()->name ? lb_mpi_real()->name arguments : NO_MPI)

/* Both names of a function that `watched_…` stands for. */
#define ENTRY(name, parameters, arguments)                                                                             \
    static int watched_##name parameters;                                                                              \
    LB_API int MPI_##name parameters;                                                                                  \
    LB_API int PMPI_##name parameters;                                                                                 \
    int MPI_##name parameters                                                                                          \
    {                                                                                                                  \
        return is_recorded() && lb_mpi_real_caller(__builtin_return_address(0)) != LB_MPI_OF_ITSELF                    \
                   ? watched_##name arguments                                                                          \
                   : REAL(name, arguments);                                                                            \
    }                                                                                                                  \
    int PMPI_##name parameters                                                                                         \
    {                                                                                                                  \
        return is_recorded() && lb_mpi_real_caller(__builtin_return_address(0)) == LB_MPI_OF_FORTRAN                   \
                   ? watched_##name arguments                                                                          \
                   : REAL(name, arguments);                                                                            \
    }
LB_MPI_FUNCTIONS(ENTRY)
#undef ENTRY

/* ---- what moves and reduces -------------------------------------------------------------------------------------- */

/* In the words of lb_mpi_given, from the parameters by their names. */
#define ONE(data_, count_, type_) {.data = data_, .count = count_, .datatype = type_}
#define EACH(data_, counts_, at_, type_) {.data = data_, .counts = counts_, .at = at_, .datatype = type_}
#define REDUCES(kind_) .kind = kind_, .send = ONE(send, count, type), .recv = ONE(recv, count, type), .op = op
#define SENDS .kind = LB_MPI_SEND, .send = ONE(send, count, type), .root = peer, .tag = tag
#define RECEIVES .kind = LB_MPI_RECEIVE, .recv = ONE(recv, count, type), .root = peer, .tag = tag
#define SENT ONE(send, send_count, send_type)
#define RECEIVED ONE(recv, recv_count, recv_type)
#define SENT_EACH EACH(send, send_counts, send_at, send_type)
#define RECEIVED_EACH EACH(recv, recv_counts, recv_at, recv_type)

#define GIVEN_Allreduce REDUCES(LB_MPI_ALL_REDUCE), .root = NO_ROOT
#define GIVEN_Reduce REDUCES(LB_MPI_REDUCE), .root = root
#define GIVEN_Scan REDUCES(LB_MPI_SCAN), .root = NO_ROOT
#define GIVEN_Exscan REDUCES(LB_MPI_EXSCAN), .root = NO_ROOT
#define GIVEN_Reduce_scatter_block REDUCES(LB_MPI_REDUCE_SCATTER), .root = NO_ROOT
#define GIVEN_Reduce_scatter                                                                                           \
    .kind = LB_MPI_REDUCE_SCATTER, .send = EACH(send, counts, NULL, type), .recv = ONE(recv, 0, type), .op = op,       \
    .root = NO_ROOT
#define GIVEN_Bcast .kind = LB_MPI_BROADCAST, .recv = ONE(recv, count, type), .root = root
#define GIVEN_Allgather .kind = LB_MPI_ALL_GATHER, .send = SENT, .recv = RECEIVED, .root = NO_ROOT
#define GIVEN_Allgatherv .kind = LB_MPI_ALL_GATHER, .send = SENT, .recv = RECEIVED_EACH, .root = NO_ROOT
#define GIVEN_Gather .kind = LB_MPI_GATHER, .send = SENT, .recv = RECEIVED, .root = root
#define GIVEN_Gatherv .kind = LB_MPI_GATHER, .send = SENT, .recv = RECEIVED_EACH, .root = root
#define GIVEN_Scatter .kind = LB_MPI_SCATTER, .send = SENT, .recv = RECEIVED, .root = root
#define GIVEN_Scatterv .kind = LB_MPI_SCATTER, .send = SENT_EACH, .recv = RECEIVED, .root = root
#define GIVEN_Alltoall .kind = LB_MPI_ALL_TO_ALL, .send = SENT, .recv = RECEIVED, .root = NO_ROOT
#define GIVEN_Alltoallv .kind = LB_MPI_ALL_TO_ALL, .send = SENT_EACH, .recv = RECEIVED_EACH, .root = NO_ROOT
#define GIVEN_Send SENDS
#define GIVEN_Ssend SENDS
#define GIVEN_Bsend SENDS
#define GIVEN_Rsend SENDS
#define GIVEN_Iallreduce GIVEN_Allreduce
#define GIVEN_Ireduce GIVEN_Reduce
#define GIVEN_Iscan GIVEN_Scan
#define GIVEN_Iexscan GIVEN_Exscan
#define GIVEN_Ireduce_scatter GIVEN_Reduce_scatter
#define GIVEN_Ireduce_scatter_block GIVEN_Reduce_scatter_block
#define GIVEN_Ibcast GIVEN_Bcast
#define GIVEN_Iallgather GIVEN_Allgather
#define GIVEN_Iallgatherv GIVEN_Allgatherv
#define GIVEN_Igather GIVEN_Gather
#define GIVEN_Igatherv GIVEN_Gatherv
#define GIVEN_Iscatter GIVEN_Scatter
#define GIVEN_Iscatterv GIVEN_Scatterv
#define GIVEN_Ialltoall GIVEN_Alltoall
#define GIVEN_Ialltoallv GIVEN_Alltoallv
#define GIVEN_Isend SENDS
#define GIVEN_Issend SENDS
#define GIVEN_Ibsend SENDS
#define GIVEN_Irsend SENDS
#define GIVEN_Irecv RECEIVES
#define GIVEN_Send_init SENDS
#define GIVEN_Ssend_init SENDS
#define GIVEN_Bsend_init SENDS
#define GIVEN_Rsend_init SENDS
#define GIVEN_Recv_init RECEIVES

#define BLOCKING(name_, parameters, arguments)                                                                         \
    static int watched_##name_ parameters                                                                              \
    {                                                                                                                  \
        lb_mpi_call *call = lb_mpi_queue_begin(&(lb_mpi_given){.name = "MPI_" #name_, .comm = comm, GIVEN_##name_});   \
        const int result = REAL(name_, arguments);                                                                     \
        lb_mpi_queue_end(call, result != 0, NULL);                                                                     \
        return result;                                                                                                 \
    }
LB_MPI_BLOCKING(BLOCKING)

/* What is only sent is known when the call is made, and MPI may give one request for many such calls. */
static int begun(lb_mpi_call *call, int result, const void *request)
{
    if (!call) return result;
    if (result != 0 || call->kind == LB_MPI_SEND)
        lb_mpi_queue_end(call, result != 0, NULL);
    else
        lb_mpi_request_put(request, call);
    return result;
}
#define BEGUN(name_, parameters, arguments)                                                                            \
    static int watched_##name_ parameters                                                                              \
    {                                                                                                                  \
        lb_mpi_call *call = lb_mpi_queue_begin(&(lb_mpi_given){.name = "MPI_" #name_, .comm = comm, GIVEN_##name_});   \
        return begun(call, REAL(name_, arguments), request);                                                           \
    }
LB_MPI_BEGUN(BEGUN)

#define PERSISTENT(name_, parameters, arguments)                                                                       \
    static int watched_##name_ parameters                                                                              \
    {                                                                                                                  \
        const int result = REAL(name_, arguments);                                                                     \
        if (result == 0)                                                                                               \
            lb_mpi_request_put_persistent(request,                                                                     \
                                          &(lb_mpi_given){.name = "MPI_" #name_, .comm = comm, GIVEN_##name_});        \
        return result;                                                                                                 \
    }
LB_MPI_PERSISTENT(PERSISTENT)

/* ---- messages that come ------------------------------------------------------------------------------------------ */

/* Where the program ignores a status, MPI writes one for us. */
typedef union status_room {
    char bytes[64];
    long double aligned;
} status_room;

static void *status_of(void *given, status_room *room)
{
    return given == lb_mpi_real_family()->status_ignore ? room : given;
}

static void end_receive(lb_mpi_call *call, int result, const void *status)
{
    if (!call) return;
    const lb_mpi_message message = result == 0 ? lb_mpi_real_family()->message(status) : (lb_mpi_message){0};
    lb_mpi_queue_end(call, result != 0, &message);
}

static int watched_Recv(void *recv, int count, lb_mpi_datatype type, int peer, int tag, lb_mpi_comm comm, void *status)
{
    status_room room;
    lb_mpi_call *call = lb_mpi_queue_begin(&(lb_mpi_given){.name = "MPI_Recv", .comm = comm, RECEIVES});
    void *known = call ? status_of(status, &room) : status;
    const int result = REAL(Recv, (recv, count, type, peer, tag, comm, known));
    end_receive(call, result, known);
    return result;
}

static int watched_Sendrecv(const void *send, int send_count, lb_mpi_datatype send_type, int to, int send_tag,
                            void *recv, int recv_count, lb_mpi_datatype recv_type, int from, int recv_tag,
                            lb_mpi_comm comm, void *status)
{
    status_room room;
    lb_mpi_call *sent = lb_mpi_queue_begin(&(lb_mpi_given){
        .name = "MPI_Sendrecv", .comm = comm, .kind = LB_MPI_SEND, .send = SENT, .root = to, .tag = send_tag});
    lb_mpi_call *received = lb_mpi_queue_begin(&(lb_mpi_given){
        .name = "MPI_Sendrecv", .comm = comm, .kind = LB_MPI_RECEIVE, .recv = RECEIVED, .root = from, .tag = recv_tag});
    void *known = received ? status_of(status, &room) : status;
    const int result = REAL(Sendrecv, (send, send_count, send_type, to, send_tag, recv, recv_count, recv_type, from,
                                       recv_tag, comm, known));
    lb_mpi_queue_end(sent, result != 0, NULL);
    end_receive(received, result, known);
    return result;
}

static int watched_Sendrecv_replace(void *recv, int count, lb_mpi_datatype type, int to, int send_tag, int from,
                                    int recv_tag, lb_mpi_comm comm, void *status)
{
    status_room room;
    const lb_mpi_buffer both = ONE(recv, count, type);
    lb_mpi_call *sent = lb_mpi_queue_begin(&(lb_mpi_given){
        .name = "MPI_Sendrecv_replace", .comm = comm, .kind = LB_MPI_SEND, .send = both, .root = to, .tag = send_tag});
    lb_mpi_call *received = lb_mpi_queue_begin(&(lb_mpi_given){.name = "MPI_Sendrecv_replace",
                                                               .comm = comm,
                                                               .kind = LB_MPI_RECEIVE,
                                                               .recv = both,
                                                               .root = from,
                                                               .tag = recv_tag});
    void *known = received ? status_of(status, &room) : status;
    const int result = REAL(Sendrecv_replace, (recv, count, type, to, send_tag, from, recv_tag, comm, known));
    lb_mpi_queue_end(sent, result != 0, NULL);
    end_receive(received, result, known);
    return result;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static void *request_at(void *requests, int i)
{
    return (char *)requests + (size_t)i * lb_mpi_real_family()->request_bytes;
}

static lb_mpi_call *begin_start(const void *request)
{
    lb_mpi_given given;
    return lb_mpi_request_given(request, &given) ? lb_mpi_queue_begin(&given) : NULL;
}

static void end_start(const void *request, lb_mpi_call *call, int result)
{
    if (!call) return;
    if (result != 0 || call->kind == LB_MPI_SEND)
        lb_mpi_queue_end(call, result != 0, NULL);
    else
        lb_mpi_request_started(request, call);
}

static int watched_Start(void *request)
{
    lb_mpi_call *call = begin_start(request);
    const int result = REAL(Start, (request));
    end_start(request, call, result);
    return result;
}

static int watched_Startall(int n, void *requests)
{
    lb_mpi_call **calls = n > 0 && lb_mpi_request_any() ? calloc((size_t)n, sizeof *calls) : NULL;
    for (int i = 0; calls && i < n; i++) calls[i] = begin_start(request_at(requests, i));
    const int result = REAL(Startall, (n, requests));
    for (int i = 0; calls && i < n; i++) end_start(request_at(requests, i), calls[i], result);
    free(calls);
    return result;
}

static int watched_Request_free(void *request)
{
    lb_mpi_request_drop(lb_mpi_request_take(request));
    return REAL(Request_free, (request));
}

/* Requests that MPI is asked about, as they were before, and room for as many statuses. */
enum { FEW = 16 };
typedef struct waiting {
    int n, known;
    lb_mpi_request *few[FEW], **taken;
    void *statuses, *of_ours;
} waiting;

static void begin_waiting(waiting *begun, int n, void *requests, void *statuses, const void *ignore)
{
    const size_t bytes = lb_mpi_real_family()->status_bytes;
    *begun = (waiting){.n = n > 0 ? n : 0, .statuses = statuses};
    if (!n || !lb_mpi_request_any()) return;
    begun->taken = n <= FEW ? begun->few : calloc((size_t)n, sizeof *begun->taken);
    begun->of_ours = statuses == ignore ? calloc((size_t)n, bytes) : NULL;
    if (!begun->taken || (statuses == ignore && !begun->of_ours)) {
        lb_shim_lost("there was no memory left"); /* what these requests stand for stays open */
        return;
    }
    if (begun->of_ours) begun->statuses = begun->of_ours;
    for (int i = 0; i < n; i++) {
        begun->taken[i] = lb_mpi_request_take(request_at(requests, i));
        begun->known += begun->taken[i] != NULL;
    }
}

/* Request `i` ended, with status `at`. */
static void waited(waiting *waiting, int i, int at, int result)
{
    if (!waiting->known || i < 0 || i >= waiting->n || !waiting->taken[i]) return;
    const char *status = (const char *)waiting->statuses + (size_t)at * lb_mpi_real_family()->status_bytes;
    lb_mpi_message message;
    if (result == 0) message = lb_mpi_real_family()->message(status);
    lb_mpi_request *request = waiting->taken[i];
    waiting->taken[i] = NULL;
    lb_mpi_request_done(request, result == 0 ? &message : NULL);
}

static void waited_for_all(waiting *waiting, int result)
{
    for (int i = 0; waiting->known && i < waiting->n; i++) waited(waiting, i, i, result);
}

static void end_waiting(waiting *waiting)
{
    for (int i = 0; waiting->known && i < waiting->n; i++) lb_mpi_request_back(waiting->taken[i]);
    if (waiting->taken != waiting->few) free(waiting->taken);
    free(waiting->of_ours);
}

static int watched_Wait(void *request, void *status)
{
    waiting waiting;
    begin_waiting(&waiting, 1, request, status, lb_mpi_real_family()->status_ignore);
    const int result = REAL(Wait, (request, waiting.statuses));
    waited_for_all(&waiting, result);
    end_waiting(&waiting);
    return result;
}

static int watched_Waitall(int n, void *requests, void *statuses)
{
    waiting waiting;
    begin_waiting(&waiting, n, requests, statuses, lb_mpi_real_family()->statuses_ignore);
    const int result = REAL(Waitall, (n, requests, waiting.statuses));
    waited_for_all(&waiting, result);
    end_waiting(&waiting);
    return result;
}

static int watched_Waitany(int n, void *requests, int *index, void *status)
{
    waiting waiting;
    begin_waiting(&waiting, n, requests, status, lb_mpi_real_family()->status_ignore);
    const int result = REAL(Waitany, (n, requests, index, waiting.statuses));
    waited(&waiting, *index, 0, result);
    end_waiting(&waiting);
    return result;
}

static int watched_Waitsome(int n, void *requests, int *done, int *indices, void *statuses)
{
    waiting waiting;
    begin_waiting(&waiting, n, requests, statuses, lb_mpi_real_family()->statuses_ignore);
    const int result = REAL(Waitsome, (n, requests, done, indices, waiting.statuses));
    for (int i = 0; *done != lb_mpi_real_family()->undefined && i < *done; i++) waited(&waiting, indices[i], i, result);
    end_waiting(&waiting);
    return result;
}

static int watched_Test(void *request, int *flag, void *status)
{
    waiting waiting;
    begin_waiting(&waiting, 1, request, status, lb_mpi_real_family()->status_ignore);
    const int result = REAL(Test, (request, flag, waiting.statuses));
    if (result != 0 || *flag) waited_for_all(&waiting, result);
    end_waiting(&waiting);
    return result;
}

static int watched_Testall(int n, void *requests, int *flag, void *statuses)
{
    waiting waiting;
    begin_waiting(&waiting, n, requests, statuses, lb_mpi_real_family()->statuses_ignore);
    const int result = REAL(Testall, (n, requests, flag, waiting.statuses));
    if (result != 0 || *flag) waited_for_all(&waiting, result);
    end_waiting(&waiting);
    return result;
}

static int watched_Testany(int n, void *requests, int *index, int *flag, void *status)
{
    waiting waiting;
    begin_waiting(&waiting, n, requests, status, lb_mpi_real_family()->status_ignore);
    const int result = REAL(Testany, (n, requests, index, flag, waiting.statuses));
    if (result != 0 || *flag) waited(&waiting, *index, 0, result);
    end_waiting(&waiting);
    return result;
}

static int watched_Testsome(int n, void *requests, int *done, int *indices, void *statuses)
{
    waiting waiting;
    begin_waiting(&waiting, n, requests, statuses, lb_mpi_real_family()->statuses_ignore);
    const int result = REAL(Testsome, (n, requests, done, indices, waiting.statuses));
    for (int i = 0; *done != lb_mpi_real_family()->undefined && i < *done; i++) waited(&waiting, indices[i], i, result);
    end_waiting(&waiting);
    return result;
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static lb_mpi_handle handle_in(const void *place)
{
    uintptr_t handle = 0;
    memcpy(&handle, place, lb_mpi_real_family()->handle_mask == UINTPTR_MAX ? sizeof handle : sizeof(uint32_t));
    return (lb_mpi_handle)handle;
}

#define MAKING(name, parameters, arguments)                                                                            \
    static int watched_##name parameters                                                                               \
    {                                                                                                                  \
        const int result = REAL(name, arguments);                                                                      \
        if (result == 0) lb_mpi_communicator_add(handle_in(made));                                                     \
        return result;                                                                                                 \
    }
LB_MPI_MAKING(MAKING)

/* The handle may be another's as soon as MPI has let go of it, so that it is forgotten before. */
static int watched_Comm_free(void *comm)
{
    lb_mpi_communicator_remove(handle_in(comm));
    return REAL(Comm_free, (comm));
}

static int watched_Comm_disconnect(void *comm)
{
    lb_mpi_communicator_remove(handle_in(comm));
    return REAL(Comm_disconnect, (comm));
}

/* ---- the job ----------------------------------------------------------------------------------------------------- */

/* What all members begin with has its names before any other. */
static void join(void)
{
    lb_mpi_real_look_again();
    if (lb_mpi_real_family()->initialized()) lb_mpi_communicator_add(lb_mpi_real_family()->world);
}

static int watched_Init(int *argc, char ***argv)
{
    const int result = REAL(Init, (argc, argv));
    if (result == 0) join();
    return result;
}

static int watched_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    const int result = REAL(Init_thread, (argc, argv, required, provided));
    if (result == 0) join();
    return result;
}

static int watched_Finalize(void)
{
    lb_mpi_queue_close(true);
    return REAL(Finalize, ());
}

/* The other ranks are killed; of this one the calls until now are there. */
static int watched_Abort(lb_mpi_comm comm, int code)
{
    lb_mpi_queue_close(false);
    return REAL(Abort, (comm, code));
}

/* ---- what programs say (lastbit/mpi.h) --------------------------------------------------------------------------- */

static int control(int level)
{
    if (!is_recorded()) return 0;
    if (level == LB_MPI_CONTROL_PAUSE || level == LB_MPI_CONTROL_GO_ON)
        lb_mpi_queue_pause(level == LB_MPI_CONTROL_PAUSE);
    else if (level == LB_MPI_CONTROL_STEP)
        lb_mpi_queue_next_step();
    return 0;
}

LB_API int MPI_Pcontrol(const int level, ...);
LB_API int PMPI_Pcontrol(const int level, ...);

int MPI_Pcontrol(const int level, ...)
{
    return control(level);
}

/* Fortran's bindings leave the call to it, so that who called is not seen. */
int PMPI_Pcontrol(const int level, ...)
{
    return control(level);
}

void lb_mpi_step(int64_t step)
{
    if (is_recorded()) lb_mpi_queue_step(step);
}
