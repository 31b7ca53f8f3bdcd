/* NCCL's profiler interface, versions 4 to 6: NCCL loads the library that NCCL_PROFILER_PLUGIN names, and tells it with which
 * algorithm, protocol and channels it carries out each collective, which nobody else can see.
 *
 * The layouts are those of the public plugin headers (plugins/profiler of NVIDIA/nccl). Of an event only the head and the
 * member `coll` are read; it begins at the same place in all three versions, and the type's low byte does, too. Whatever
 * happens, the answer is success: an error would be the program's. */
#include "call_carried.h"
#include "shim_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENT_COLLECTIVE = 1 << 1 };

typedef struct event {
    uint8_t type; /* of version 5 on a 64-bit number */
    void *parent;
    int rank;
    struct {
        uint64_t sequence;
        const char *function;
        const void *send;
        void *recv;
        size_t count;
        int root;
        const char *dtype;
        uint8_t channels, warps;
        const char *algorithm, *protocol;
    } collective; /* first member of a union */
} event;

typedef struct context {
    int nodes, ranks, rank;
} context;

/* What lastbit calls the order of NCCL's algorithm, see collective_sum.h; "" where it has no name for it. */
static void name_order(const context *c, const char *algorithm, int channels, char *order, size_t room)
{
    const int nodes = c->nodes > 0 ? c->nodes : 1;
    order[0] = 0;
    if (!strcmp(algorithm, "RING"))
        snprintf(order, room, "ring:%d", channels > 0 ? channels : 1);
    else if (!strcmp(algorithm, "TREE"))
        snprintf(order, room, "tree:%d", (c->ranks + nodes - 1) / nodes);
}

static int start_event(void *of, void **handle, void *described)
{
    const context *c = of;
    const event *e = described;
    char algorithm[48], order[24];
    *handle = NULL;
    if (!c || !e || e->type != EVENT_COLLECTIVE || !e->collective.function || !e->collective.algorithm)
        return LB_NCCL_SUCCESS;
    snprintf(algorithm, sizeof algorithm, "%s/%s, %d channels", e->collective.algorithm,
             e->collective.protocol ? e->collective.protocol : "?", e->collective.channels);
    name_order(c, e->collective.algorithm, e->collective.channels, order, sizeof order);
    lb_nccl_call_carried_out(&(lb_nccl_call_carried){.rank = e->rank,
                                                     .ranks = c->ranks,
                                                     .function = e->collective.function,
                                                     .send = e->collective.send,
                                                     .recv = e->collective.recv,
                                                     .count = e->collective.count,
                                                     .algorithm = algorithm,
                                                     .order = order});
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
    context *c = malloc(sizeof *c);
    const lb_shim_mode mode = lb_shim_mode_now();
    *made = c;
    *events = c && mode != LB_SHIM_OFF ? EVENT_COLLECTIVE : 0;
    if (c) *c = (context){nodes, ranks, rank};
    return LB_NCCL_SUCCESS;
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

typedef struct interface_4 {
    const char *name;
    int (*init)(void **, int *, const char *, uint64_t, int, int, int, void *);
    int (*start)(void *, void **, void *);
    int (*stop)(void *);
    int (*state)(void *, int, void *);
    int (*finalize)(void *);
} interface_4;

typedef struct interface_5 {
    const char *name;
    int (*init)(void **, uint64_t, int *, const char *, int, int, int, void *);
    int (*start)(void *, void **, void *);
    int (*stop)(void *);
    int (*state)(void *, int, void *);
    int (*finalize)(void *);
} interface_5;

#define EXPORTED __attribute__((visibility("default")))
EXPORTED interface_4 ncclProfiler_v4 = {"lastbit", begin_4, start_event, stop_event, record_state, end};
EXPORTED interface_5 ncclProfiler_v5 = {"lastbit", begin_5, start_event, stop_event, record_state, end};
EXPORTED interface_5 ncclProfiler_v6 = {"lastbit", begin_5, start_event, stop_event, record_state, end};
