/* A program whose streams run late (late_cuda.c): it never waits for one before the next call, and overwrites buffers
 * as soon as its stream has passed them. What is recorded must be what the stream saw. Rank 1 receives only when rank 0
 * has told it, past the stream, that it has sent: whoever waited for the stream inside a call would wait for ever.
 *
 *     nccl_late RANKS [RUNS]
 *
 * All ranks are on one device: NCCL itself takes one there. Then calls are captured into a graph, alone and in a group,
 * and the graph is launched so often, with other calls in between. */
#define _GNU_SOURCE
#include "nccl_abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE(name, parameters, arguments) lb_nccl_result name parameters;
LB_NCCL_ROWS(DECLARE)
int cuInit(unsigned flags);
int cuDeviceGet(int *device, int number);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamSynchronize(void *stream);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags);
int cuGraphLaunch(void *exec, void *stream);
int cuGraphExecDestroy(void *exec);
int cuGraphDestroy(void *graph);
int cuMemAlloc_v2(uint64_t *made, size_t bytes);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);

enum { F32 = 7, COUNT = 1000, ROUNDS = 12, MOST_RUNS = 400 };
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const int tried = (call);                                                                                      \
        if (tried) fprintf(stderr, "%s: %d\n", #call, tried), exit(1);                                                 \
    } while (0)

typedef struct worker {
    int rank, ranks, runs;
    lb_nccl_unique id;
    lb_nccl_comm comm;
    void *stream;
    uint64_t in, out;
    float got[ROUNDS][COUNT], left[MOST_RUNS][2][COUNT];
} worker;

static _Atomic int sent;
static void *context;

static void fill(float *data, int rank, int round)
{
    for (int i = 0; i < COUNT; i++) data[i] = (float)((i * 7919 + rank * 104729 + round * 1299709) % 20011) / 977;
}

static void *at(uint64_t memory, size_t element)
{
    return (void *)(uintptr_t)(memory + element * sizeof(float));
}

/* What is copied for it is still on its way when nothing comes of it. */
static void only_ask(worker *w, uint64_t to)
{
    TRY(ncclGroupStart());
    TRY(ncclAllReduce(at(w->in, 0), at(to, 0), COUNT, F32, LB_NCCL_SUM, w->comm, w->stream));
    TRY(ncclGroupSimulateEnd(NULL));
}

static void call_in_turn(worker *w)
{
    float data[COUNT];
    for (int round = 0; round < ROUNDS; round++) {
        fill(data, w->rank, round);
        cuMemcpyHtoDAsync_v2(w->in, data, sizeof data, w->stream); /* over what the round before was made of */
        const uint64_t to = round % 2 ? w->in : w->out;
        if (round % 3 == 0) only_ask(w, to);
        TRY(ncclAllReduce(at(w->in, 0), at(to, 0), COUNT, F32, LB_NCCL_SUM, w->comm, w->stream));
        cuMemcpyDtoHAsync_v2(w->got[round], to, sizeof data, w->stream);
        memset(data, 255, sizeof data);
        cuMemcpyHtoDAsync_v2(to, data, sizeof data, w->stream);
    }
}

static void send_or_receive(worker *w)
{
    if (w->ranks == 1) return;
    if (w->rank == 0) {
        float data[COUNT]; /* what the rounds got may still be on its way to the host */
        fill(data, w->rank, ROUNDS);
        cuMemcpyHtoDAsync_v2(w->in, data, sizeof data, w->stream);
        TRY(ncclSend(at(w->in, 0), COUNT, F32, 1, w->comm, w->stream));
        atomic_store(&sent, 1);
    } else if (w->rank == 1) {
        while (!atomic_load(&sent)) sched_yield();
        TRY(ncclRecv(at(w->out, 0), COUNT, F32, 0, w->comm, w->stream));
    }
}

/* In place; then in a group, into the halves of `out`. */
static void *make_graph(worker *w)
{
    void *graph, *exec;
    cuStreamSynchronize(w->stream);
    TRY(cuStreamBeginCapture_v2(w->stream, 0));
    TRY(ncclAllReduce(at(w->in, 0), at(w->in, 0), COUNT, F32, LB_NCCL_SUM, w->comm, w->stream));
    TRY(ncclGroupStart());
    TRY(ncclAllReduce(at(w->in, 0), at(w->out, 0), COUNT / 2, F32, LB_NCCL_MAX, w->comm, w->stream));
    TRY(ncclBroadcast(at(w->in, COUNT / 2), at(w->out, COUNT / 2), COUNT / 2, F32, w->ranks - 1, w->comm, w->stream));
    TRY(ncclGroupEnd());
    TRY(cuStreamEndCapture(w->stream, &graph));
    TRY(cuGraphInstantiateWithFlags(&exec, graph, 0));
    TRY(cuGraphDestroy(graph));
    return exec;
}

static void launch_often(worker *w)
{
    float data[COUNT];
    void *exec = make_graph(w);
    for (int run = 0; run < w->runs; run++) {
        fill(data, w->rank, 100 + run);
        cuMemcpyHtoDAsync_v2(w->in, data, sizeof data, w->stream);
        TRY(cuGraphLaunch(exec, w->stream));
        cuMemcpyDtoHAsync_v2(w->left[run][0], w->out, sizeof data, w->stream);
        if (run % 3 == 1) TRY(ncclAllReduce(at(w->out, 0), at(w->in, 0), COUNT, F32, LB_NCCL_SUM, w->comm, w->stream));
        cuMemcpyDtoHAsync_v2(w->left[run][1], w->in, sizeof data, w->stream);
    }
    TRY(cuGraphExecDestroy(exec));
    cuStreamSynchronize(w->stream);
}

static void *work(void *of)
{
    worker *w = of;
    TRY(cuCtxSetCurrent(context));
    cuStreamCreate(&w->stream, 0);
    cuMemAlloc_v2(&w->in, COUNT * sizeof(float));
    cuMemAlloc_v2(&w->out, COUNT * sizeof(float));
    TRY(ncclCommInitRank(&w->comm, w->ranks, w->id, w->rank));
    call_in_turn(w);
    send_or_receive(w);
    launch_often(w);
    TRY(ncclCommDestroy(w->comm));
    return NULL;
}

int main(int argc, char **argv)
{
    static worker workers[8];
    pthread_t threads[8];
    lb_nccl_unique id;
    const int ranks = argc > 1 ? atoi(argv[1]) : 0, runs = argc > 2 ? atoi(argv[2]) : 0;
    int device;
    if (ranks < 1 || ranks > 8 || runs > MOST_RUNS) return 129;
    TRY(cuInit(0));
    TRY(cuDeviceGet(&device, 0));
    TRY(cuDevicePrimaryCtxRetain(&context, device));
    ncclGetUniqueId(&id);
    for (int r = 0; r < ranks; r++) {
        workers[r].rank = r, workers[r].ranks = ranks, workers[r].runs = runs, workers[r].id = id;
        pthread_create(&threads[r], NULL, work, &workers[r]);
    }
    unsigned hash = 0;
    for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < ranks; r++) {
        for (size_t i = 0; i < sizeof workers[r].got; i++) hash = hash * 31 + ((unsigned char *)workers[r].got)[i];
        for (size_t i = 0; i < sizeof workers[r].left; i++) hash = hash * 31 + ((unsigned char *)workers[r].left)[i];
    }
    printf("%08x\n", hash);
    return 0;
}
