/* NCCL's profiler interface, versions 1 to 7 (NCCL 2.23 to 2.32; it takes the highest that both have): NCCL loads the
 * library that NCCL_PROFILER_PLUGIN names, and tells it with which algorithm, protocol and channels it carries out each
 * collective, which is seen nowhere else.
 *
 * The layouts are those of the public plugin headers (src/include/plugin/profiler of NVIDIA/nccl). Of an event only the
 * head and the member `coll` are read, a union's; what younger versions have more lies behind. Whatever happens, the
 * answer is success: an error would be the program's. */
#include "call_carried.h"
#include "calls/shim_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENT_COLLECTIVE = 1 << 1 };

typedef struct event {
    uint8_t type; /* from version 5 on a 64-bit number */
    void *parent;
    int rank;
} event;

/* From version 4 on. */
typedef struct event_4 {
    event head;
    uint64_t sequence;
    const char *function;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *dtype;
    uint8_t channels, warps;
    const char *algorithm, *protocol;
} event_4;

/* Until then communicators are named in each event, and nothing says how many ranks they have; channels are the most
 * that it may take. */
typedef struct event_3 {
    event head;
    const char *name;
    uint64_t communicator, sequence;
    const char *function;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *dtype;
    uint8_t channels, warps;
    const char *algorithm, *protocol;
} event_3;

typedef struct event_2 {
    event head;
    const char *name;
    uint64_t communicator, sequence;
    const char *function;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *dtype;
    size_t traffic;
    uint8_t channels, warps;
    const char *algorithm, *protocol;
} event_2;

/* Of numbers in the place of names: ncclFunc_t, NCCL_ALGO_*, NCCL_PROTO_*. */
typedef struct event_1 {
    event head;
    const char *name;
    uint64_t communicator, sequence;
    uint8_t function;
    const void *send;
    void *recv;
    size_t count;
    int root;
    uint8_t dtype;
    uint32_t op;
    size_t traffic;
    uint8_t channels, warps, algorithm, protocol;
} event_1;

typedef struct context {
    int nodes, ranks, rank; /* ranks of 0: not told */
} context;

typedef struct carried {
    const char *function, *algorithm, *protocol;
    const void *send;
    void *recv;
    size_t count;
    int channels;
} carried;

/* What lastbit calls the order of NCCL's algorithm, see collective_sum.h; "" where it has no name for it. Kernels over
 * symmetric memory have orders of their own: of these no channels are told, and until version 7 no algorithm either. */
static void name_order(const context *context, const carried *told, char *order, size_t room)
{
    order[0] = 0;
    if (told->channels < 1) return;
    if (!strcmp(told->algorithm, "RING"))
        snprintf(order, room, "ring:%d", told->channels);
    else if (!strcmp(told->algorithm, "TREE") && context->ranks > 0 && context->nodes > 0)
        snprintf(order, room, "tree:%d", (context->ranks + context->nodes - 1) / context->nodes);
}

static void tell(const context *context, int rank, const carried *told)
{
    char algorithm[48], order[24];
    if (!told->function || !told->algorithm) return;
    snprintf(algorithm, sizeof algorithm, "%s/%s, %d channels", told->algorithm, told->protocol ? told->protocol : "?",
             told->channels);
    name_order(context, told, order, sizeof order);
    lb_nccl_call_carried_out(&(lb_nccl_call_carried){.rank = rank,
                                                     .ranks = context->ranks,
                                                     .function = told->function,
                                                     .send = told->send,
                                                     .recv = told->recv,
                                                     .count = told->count,
                                                     .algorithm = algorithm,
                                                     .order = order});
}

static bool is_collective(const void *context, const event *event)
{
    return context && event && event->type == EVENT_COLLECTIVE;
}

#define NAMED(e)                                                                                                       \
    (carried)                                                                                                          \
    {                                                                                                                  \
        (e)->function, (e)->algorithm, (e)->protocol, (e)->send, (e)->recv, (e)->count, (e)->channels                  \
    }

static int start_4(void *of, void **handle, void *described)
{
    const event_4 *event = described;
    *handle = NULL;
    if (is_collective(of, described)) tell(of, event->head.rank, &NAMED(event));
    return LB_NCCL_SUCCESS;
}

static int start_3(void *of, void **handle, void *described)
{
    const event_3 *event = described;
    *handle = NULL;
    if (is_collective(of, described)) tell(of, event->head.rank, &NAMED(event));
    return LB_NCCL_SUCCESS;
}

static int start_2(void *of, void **handle, void *described)
{
    const event_2 *event = described;
    *handle = NULL;
    if (is_collective(of, described)) tell(of, event->head.rank, &NAMED(event));
    return LB_NCCL_SUCCESS;
}

static int start_1(void *of, void **handle, void *described)
{
    static const char *const functions[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"},
                             *const algorithms[] = {"TREE",      "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS",
                                                    "NVLS_TREE", "PAT"},
                             *const protocols[] = {"LL", "LL128", "SIMPLE"};
    const event_1 *event = described;
    *handle = NULL;
    if (!is_collective(of, described)) return LB_NCCL_SUCCESS;
    if (event->function >= sizeof functions / sizeof *functions) return LB_NCCL_SUCCESS;
    if (event->algorithm >= sizeof algorithms / sizeof *algorithms) return LB_NCCL_SUCCESS;
    if (event->protocol >= sizeof protocols / sizeof *protocols) return LB_NCCL_SUCCESS;
    tell(of, event->head.rank,
         &(carried){functions[event->function], algorithms[event->algorithm], protocols[event->protocol], event->send,
                    event->recv, event->count, event->channels});
    return LB_NCCL_SUCCESS;
}

static int stop_event(void *handle)
{
    (void)handle;
    return LB_NCCL_SUCCESS;
}

static int record_state(void *handle, int state, void *arguments)
{
    (void)handle, (void)state, (void)arguments;
    return LB_NCCL_SUCCESS;
}

static int end(void *of)
{
    free(of);
    return LB_NCCL_SUCCESS;
}

static int begin(void **made, int *events, int nodes, int ranks, int rank)
{
    context *c = lb_shim_memory(sizeof *c);
    const lb_shim_mode mode = lb_shim_mode_now();
    *made = c;
    *events = c && mode != LB_SHIM_OFF ? EVENT_COLLECTIVE : 0;
    if (c) *c = (context){nodes, ranks, rank};
    return LB_NCCL_SUCCESS;
}

static int begin_1(void **made, int *events)
{
    return begin(made, events, 0, 0, -1);
}

static int begin_4(void **made, int *events, const char *name, uint64_t id, int nodes, int ranks, int rank, void *log)
{
    (void)name, (void)id, (void)log;
    return begin(made, events, nodes, ranks, rank);
}

static int begin_5(void **made, uint64_t id, int *events, const char *name, int nodes, int ranks, int rank, void *log)
{
    (void)name, (void)id, (void)log;
    return begin(made, events, nodes, ranks, rank);
}

#define INTERFACE(...)                                                                                                 \
    struct {                                                                                                           \
        const char *name;                                                                                              \
        int (*init)(__VA_ARGS__);                                                                                      \
        int (*start)(void *, void **, void *);                                                                         \
        int (*stop)(void *);                                                                                           \
        int (*state)(void *, int, void *);                                                                             \
        int (*finalize)(void *);                                                                                       \
    }
typedef INTERFACE(void **, int *) interface_1;
typedef INTERFACE(void **, int *, const char *, uint64_t, int, int, int, void *) interface_4;
typedef INTERFACE(void **, uint64_t, int *, const char *, int, int, int, void *) interface_5;

#define EXPORTED __attribute__((visibility("default")))
EXPORTED interface_1 ncclProfiler_v1 = {"lastbit", begin_1, start_1, stop_event, record_state, end};
EXPORTED interface_1 ncclProfiler_v2 = {"lastbit", begin_1, start_2, stop_event, record_state, end};
EXPORTED interface_1 ncclProfiler_v3 = {"lastbit", begin_1, start_3, stop_event, record_state, end};
EXPORTED interface_4 ncclProfiler_v4 = {"lastbit", begin_4, start_4, stop_event, record_state, end};
EXPORTED interface_5 ncclProfiler_v5 = {"lastbit", begin_5, start_4, stop_event, record_state, end};
EXPORTED interface_5 ncclProfiler_v6 = {"lastbit", begin_5, start_4, stop_event, record_state, end};
EXPORTED interface_5 ncclProfiler_v7 = {"lastbit", begin_5, start_4, stop_event, record_state, end};
