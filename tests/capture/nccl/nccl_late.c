/* A program whose streams run late (late_cuda.c): it never waits for one before the next call, and overwrites buffers as soon as its
 * stream has passed them. What is recorded must be what the stream saw. Rank 1 receives only when rank 0 has told it, past the stream,
 * that it has sent: whoever waited for the stream inside a call would wait for ever.
 *
 *     nccl_late RANKS
 */
#define _GNU_SOURCE
#include "nccl_abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE(name, parameters, arguments) lb_nccl_result name parameters;
LB_NCCL_ROWS(DECLARE)
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamSynchronize(void *stream);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuMemAlloc_v2(uint64_t *made, size_t bytes);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);

enum { F32 = 7, COUNT = 1000, ROUNDS = 12 };

typedef struct worker {
    int rank, ranks;
    lb_nccl_unique id;
    float got[ROUNDS][COUNT], message[COUNT];
} worker;

static _Atomic int sent;

static void fill(float *data, int rank, int round)
{
    for (int i = 0; i < COUNT; i++) data[i] = (float)((i * 7919 + rank * 104729 + round * 1299709) % 20011) / 977;
}

static void *work(void *of)
{
    worker *w = of;
    lb_nccl_comm comm;
    void *stream, *graph;
    uint64_t in, out;
    float data[COUNT];
    cuStreamCreate(&stream, 0);
    cuMemAlloc_v2(&in, sizeof data);
    cuMemAlloc_v2(&out, sizeof data);
    if (ncclCommInitRank(&comm, w->ranks, w->id, w->rank)) exit(1);
    for (int round = 0; round < ROUNDS; round++) {
        fill(data, w->rank, round);
        cuMemcpyHtoDAsync_v2(in, data, sizeof data, stream); /* over what the round before was made of */
        void *to = (void *)(uintptr_t)(round % 2 ? in : out);
        if (ncclAllReduce((void *)(uintptr_t)in, to, COUNT, F32, LB_NCCL_SUM, comm, stream)) exit(1);
        cuMemcpyDtoHAsync_v2(w->got[round], (uintptr_t)to, sizeof data, stream);
        memset(data, 255, sizeof data);
        cuMemcpyHtoDAsync_v2((uintptr_t)to, data, sizeof data, stream);
    }
    if (w->rank == 0) {
        cuMemcpyHtoDAsync_v2(in, w->got, sizeof data, stream);
        ncclSend((void *)(uintptr_t)in, COUNT, F32, 1, comm, stream);
        atomic_store(&sent, 1);
    } else if (w->rank == 1) {
        while (!atomic_load(&sent)) sched_yield();
        ncclRecv((void *)(uintptr_t)out, COUNT, F32, 0, comm, stream);
    }
    cuStreamSynchronize(stream);
    cuStreamBeginCapture_v2(stream, 0);
    ncclAllReduce((void *)(uintptr_t)in, (void *)(uintptr_t)in, COUNT, F32, LB_NCCL_SUM, comm, stream);
    cuStreamEndCapture(stream, &graph);
    ncclCommDestroy(comm);
    return NULL;
}

int main(int argc, char **argv)
{
    static worker workers[16];
    pthread_t threads[16];
    lb_nccl_unique id;
    const int ranks = argc == 2 ? atoi(argv[1]) : 0;
    if (ranks < 2 || ranks > 16) return 129;
    ncclGetUniqueId(&id);
    for (int r = 0; r < ranks; r++) {
        workers[r].rank = r, workers[r].ranks = ranks, workers[r].id = id;
        pthread_create(&threads[r], NULL, work, &workers[r]);
    }
    unsigned hash = 0;
    for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < sizeof workers[r].got; i++) hash = hash * 31 + ((unsigned char *)workers[r].got)[i];
    printf("%08x\n", hash);
    return 0;
}
