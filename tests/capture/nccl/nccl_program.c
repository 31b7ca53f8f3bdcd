/* A program that calls NCCL, as one in C would: what is recorded of it is what test_nccl_shim.py looks at.
 *
 *     nccl_program SCENARIO threads|processes|single RANKS
 *
 * It prints a hash of all that each rank received, so that a run with the shim can be compared with one without.
 * `single` drives all ranks from one thread, in groups. */
#define _GNU_SOURCE
#include "nccl_abi.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DECLARE(name, parameters, arguments) lb_nccl_result name parameters;
LB_NCCL_ROWS(DECLARE)
extern void lb_nccl_step(int64_t step) __attribute__((weak));

enum { I32 = 2, I64 = 4, F32 = 7, F64 = 8, BF16 = 9, COUNT = 1200 };

typedef struct worker {
    int rank, ranks;
    lb_nccl_unique id;
    lb_nccl_comm comm;
    uint64_t hash, seed;
    const char *scenario;
} worker;

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const int tried = (call);                                                                                      \
        if (tried) fprintf(stderr, "%s: %d\n", #call, tried), exit(1);                                                 \
    } while (0)

static uint64_t draw(worker *w)
{
    w->seed = w->seed * 6364136223846793005ull + 1442695040888963407ull;
    return w->seed >> 33;
}

static size_t width_of(int dtype)
{
    return dtype == F32 || dtype == I32 ? 4 : dtype == BF16 ? 2 : 8;
}

/* Numbers of many sizes, so that no two orders of a sum agree. */
static void *fill(worker *w, int dtype, size_t n)
{
    char *data = malloc(n * width_of(dtype) + 1);
    for (size_t i = 0; i < n; i++) {
        const double scale = (double)(1ull << draw(w) % 12), x = ((double)draw(w) / (1 << 30) - 1) * scale;
        const float f = (float)x;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        if (dtype == F32) memcpy(data + 4 * i, &f, 4);
        if (dtype == F64) memcpy(data + 8 * i, &x, 8);
        if (dtype == BF16) memcpy(data + 2 * i, (uint16_t[]){(uint16_t)(bits >> 16)}, 2);
        if (dtype == I32) memcpy(data + 4 * i, (int32_t[]){(int32_t)(x * 1000)}, 4);
        if (dtype == I64) memcpy(data + 8 * i, (int64_t[]){(int64_t)(x * 1000)}, 8);
    }
    return data;
}

static void look(worker *w, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) w->hash = (w->hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
}

static void done(worker *w, void *send, void *recv, size_t bytes)
{
    look(w, recv, bytes);
    free(send);
    if (recv != send) free(recv);
}

/* ---- one rank's calls -------------------------------------------------------------------------------------------- */

static void all_reduce(worker *w, int dtype, int op, size_t count, bool in_place)
{
    void *send = fill(w, dtype, count), *recv = in_place ? send : malloc(count * width_of(dtype) + 1);
    TRY(ncclAllReduce(send, recv, count, dtype, op, w->comm, NULL));
    done(w, send, recv, count * width_of(dtype));
}

static void reduce(worker *w, int root)
{
    float *send = fill(w, F32, COUNT), *recv = calloc(COUNT, 4);
    TRY(ncclReduce(send, w->rank == root ? recv : NULL, COUNT, F32, LB_NCCL_SUM, root, w->comm, NULL));
    done(w, send, recv, w->rank == root ? COUNT * 4 : 0);
}

static void broadcast(worker *w, int root)
{
    float *send = fill(w, F32, COUNT), *recv = calloc(COUNT, 4), *both = fill(w, F32, COUNT);
    TRY(ncclBroadcast(send, recv, COUNT, F32, root, w->comm, NULL));
    TRY(ncclBcast(both, COUNT, F32, root, w->comm, NULL));
    done(w, send, recv, COUNT * 4);
    done(w, both, both, COUNT * 4);
}

static void all_gather(worker *w, bool in_place)
{
    const size_t n = (size_t)w->ranks;
    float *all = fill(w, F32, COUNT * n), *send = in_place ? all + COUNT * (size_t)w->rank : fill(w, F32, COUNT);
    TRY(ncclAllGather(send, all, COUNT, F32, w->comm, NULL));
    look(w, all, COUNT * n * 4);
    if (!in_place) free(send);
    free(all);
}

static void reduce_scatter(worker *w, bool in_place, int dtype, size_t count)
{
    const size_t n = (size_t)w->ranks, size = width_of(dtype);
    char *send = fill(w, dtype, count * n),
         *recv = in_place ? send + count * (size_t)w->rank * size : malloc(count * size);
    TRY(ncclReduceScatter(send, recv, count, dtype, LB_NCCL_SUM, w->comm, NULL));
    look(w, recv, count * size);
    if (!in_place) free(recv);
    free(send);
}

static void spread(worker *w)
{
    const size_t n = (size_t)w->ranks;
    const int root = w->ranks - 1;
    float *send = fill(w, F32, COUNT * n), *recv = calloc(COUNT * n, 4);
    TRY(ncclAlltoAll(send, recv, COUNT, F32, w->comm, NULL));
    look(w, recv, COUNT * n * 4);
    TRY(ncclGather(send, w->rank == root ? recv : NULL, COUNT, F32, root, w->comm, NULL));
    TRY(ncclScatter(w->rank == root ? send : NULL, recv, COUNT, F32, root, w->comm, NULL));
    done(w, send, recv, COUNT * 4);
}

static void messages(worker *w)
{
    float *send = fill(w, F32, COUNT), *recv = calloc(COUNT, 4);
    TRY(ncclGroupStart());
    TRY(ncclSend(send, COUNT, F32, (w->rank + 1) % w->ranks, w->comm, NULL));
    TRY(ncclRecv(recv, COUNT, F32, (w->rank + w->ranks - 1) % w->ranks, w->comm, NULL));
    TRY(ncclGroupEnd());
    done(w, send, recv, COUNT * 4);
}

static void premul(worker *w)
{
    const float by_rank = 0.3f + (float)w->rank;
    lb_nccl_op op;
    TRY(ncclRedOpCreatePreMulSum(&op, (void *)(uintptr_t)&by_rank, F32, LB_NCCL_SCALAR_HOST, w->comm));
    all_reduce(w, F32, op, COUNT, true);
    TRY(ncclRedOpDestroy(op, w->comm));
}

static void group(worker *w)
{
    float *a = fill(w, F32, COUNT), *b = fill(w, F32, 77), *all = calloc((size_t)w->ranks * 77, 4);
    TRY(ncclGroupStart());
    TRY(ncclAllReduce(a, a, COUNT, F32, LB_NCCL_SUM, w->comm, NULL));
    TRY(ncclGroupStart());
    TRY(ncclAllGather(b, all, 77, F32, w->comm, NULL));
    TRY(ncclGroupEnd());
    TRY(ncclAllReduce(b, b, 77, F32, LB_NCCL_MAX, w->comm, NULL));
    TRY(ncclGroupEnd());
    look(w, all, (size_t)w->ranks * 77 * 4);
    done(w, a, a, COUNT * 4);
    done(w, b, b, 77 * 4);
    free(all);
}

/* Halves by parity, in reverse order; then all but the first. */
static void split(worker *w)
{
    lb_nccl_comm world = w->comm, part;
    TRY(ncclCommSplit(world, w->rank % 2, -w->rank, &part, NULL));
    w->comm = part;
    all_reduce(w, F32, LB_NCCL_SUM, COUNT, false);
    all_reduce(w, F32, LB_NCCL_SUM, COUNT, true);
    TRY(ncclCommDestroy(part));
    TRY(ncclCommSplit(world, w->rank ? 0 : LB_NCCL_NOCOLOR, 0, &part, NULL));
    w->comm = part;
    if (part) all_reduce(w, F32, LB_NCCL_SUM, COUNT, false);
    if (part) TRY(ncclCommDestroy(part));
    w->comm = world;
}

static void everything(worker *w)
{
    static const int dtypes[] = {F32, F64, BF16, I32, I64}, ops[] = {0, 1, 2, 3, 4};
    for (int d = 0; d < 5; d++)
        for (int o = 0; o < 5; o++) all_reduce(w, dtypes[d], ops[o], COUNT, (d + o) % 2);
    all_reduce(w, F32, LB_NCCL_SUM, 0, false);
    all_reduce(w, BF16, LB_NCCL_SUM, 12345, true);
    reduce(w, 0);
    reduce(w, w->ranks - 1);
    broadcast(w, w->ranks / 2);
    all_gather(w, false);
    all_gather(w, true);
    reduce_scatter(w, false, F32, COUNT);
    reduce_scatter(w, true, F32, COUNT);
    reduce_scatter(w, false, BF16, 7);
    spread(w);
    messages(w);
    premul(w);
    group(w);
    split(w);
}

static void steps(worker *w, bool marked, const char *odd)
{
    for (int step = 0; step < 3; step++) {
        if (marked && lb_nccl_step) lb_nccl_step(10 + step);
        const bool now = odd && step == 1 && w->rank == 1;
        all_reduce(w, F32, now && !strcmp(odd, "op") ? LB_NCCL_MAX : LB_NCCL_SUM, COUNT, true);
        if (now && !strcmp(odd, "count"))
            all_reduce(w, F32, LB_NCCL_SUM, COUNT / 2, true);
        else
            all_reduce(w, F32, LB_NCCL_SUM, COUNT, true);
        broadcast(w, now && !strcmp(odd, "root") ? 1 : 0);
    }
}

static void turn_nan(worker *w)
{
    for (int step = 0; step < 3; step++) {
        if (lb_nccl_step) lb_nccl_step(step);
        float *data = fill(w, F32, COUNT);
        if (step == 2 && w->rank == 1) data[17] = 1.0f / 0.0f - 1.0f / 0.0f;
        TRY(ncclAllReduce(data, data, COUNT, F32, LB_NCCL_SUM, w->comm, NULL));
        done(w, data, data, COUNT * 4);
    }
}

/* Twenty collectives over buffers that are used again: what one call gave the next one sends on. */
static void chained(worker *w)
{
    const size_t n = (size_t)w->ranks;
    float *data = fill(w, F32, COUNT), *all = calloc(COUNT * n, 4), *part = calloc(COUNT, 4);
    for (int i = 0; i < 5; i++) {
        TRY(ncclAllReduce(data, data, COUNT, F32, LB_NCCL_AVG, w->comm, NULL));
        TRY(ncclAllGather(data, all, COUNT, F32, w->comm, NULL));
        TRY(ncclReduceScatter(all, part, COUNT, F32, LB_NCCL_AVG, w->comm, NULL));
        TRY(ncclBroadcast(part, data, COUNT, F32, i % w->ranks, w->comm, NULL));
    }
    look(w, data, COUNT * 4);
    free(data), free(all), free(part);
}

/* Rank 2 alone has something that is not finite, which a message hands on before all add it up. */
static void nan_of_rank_2(worker *w)
{
    float *data = fill(w, F32, COUNT), *got = calloc(COUNT, 4);
    TRY(ncclAllReduce(data, data, COUNT, F32, LB_NCCL_AVG, w->comm, NULL));
    if (w->rank == 2) data[17] = 1.0f / 0.0f - 1.0f / 0.0f;
    TRY(ncclGroupStart());
    TRY(ncclSend(data, COUNT, F32, (w->rank + 1) % w->ranks, w->comm, NULL));
    TRY(ncclRecv(got, COUNT, F32, (w->rank + w->ranks - 1) % w->ranks, w->comm, NULL));
    TRY(ncclGroupEnd());
    TRY(ncclAllReduce(got, got, COUNT, F32, LB_NCCL_SUM, w->comm, NULL));
    done(w, data, got, COUNT * 4);
}

/* Rank 0's numbers go once around, each rank sending on what it received. */
static void ring_of_hops(worker *w)
{
    float *data = fill(w, F32, COUNT);
    for (int step = 0; step < 2; step++) {
        if (lb_nccl_step) lb_nccl_step(step);
        TRY(ncclAllReduce(data, data, COUNT, F32, LB_NCCL_AVG, w->comm, NULL));
        if (w->rank) TRY(ncclRecv(data, COUNT, F32, w->rank - 1, w->comm, NULL));
        if (w->rank < w->ranks - 1) TRY(ncclSend(data, COUNT, F32, w->rank + 1, w->comm, NULL));
    }
    done(w, data, data, COUNT * 4);
}

/* Calls that are in progress until the communicator is asked. */
static void non_blocking(worker *w)
{
    int config[64] = {0};
    lb_nccl_comm comm;
    lb_nccl_result state;
    lb_nccl_unique id = w->id;
    strcat(id.internal, "-second");
    TRY(ncclCommInitRankConfig(&comm, w->ranks, id, w->rank, (lb_nccl_config *)config));
    for (int i = 0; i < 3; i++) {
        float *data = fill(w, F32, COUNT);
        if (ncclAllReduce(data, data, COUNT, F32, LB_NCCL_SUM, comm, NULL) != LB_NCCL_IN_PROGRESS) exit(1);
        do TRY(ncclCommGetAsyncError(comm, &state));
        while (state == LB_NCCL_IN_PROGRESS);
        done(w, data, data, COUNT * 4);
    }
    TRY(ncclCommDestroy(comm));
}

static void grow_and_shrink(worker *w)
{
    lb_nccl_comm world = w->comm, made;
    TRY(ncclCommGrow(world, w->ranks, NULL, -1, &made, NULL));
    w->comm = made;
    all_reduce(w, F32, LB_NCCL_SUM, COUNT, true);
    TRY(ncclCommDestroy(made));
    w->comm = world;
    if (w->rank) {
        TRY(ncclCommShrink(world, (int[]){0}, 1, &made, NULL, 0));
        w->comm = made;
        all_reduce(w, F32, LB_NCCL_SUM, COUNT, true);
        TRY(ncclCommDestroy(made));
        w->comm = world;
    }
}

static void fork_later(worker *w)
{
    all_reduce(w, F32, LB_NCCL_SUM, COUNT, true);
    for (int i = 0; i < 3; i++) {
        const pid_t child = fork();
        if (child == 0) exit(0); /* handlers of exit run */
        waitpid(child, NULL, 0);
        all_reduce(w, F32, LB_NCCL_SUM, COUNT, true);
    }
}

static void play(worker *w)
{
    const char *s = w->scenario;
    if (!strcmp(s, "everything"))
        everything(w);
    else if (!strcmp(s, "steps"))
        steps(w, false, NULL);
    else if (!strcmp(s, "marked"))
        steps(w, true, NULL);
    else if (!strncmp(s, "odd-", 4))
        steps(w, true, s + 4);
    else if (!strcmp(s, "nan"))
        turn_nan(w);
    else if (!strcmp(s, "chained"))
        chained(w);
    else if (!strcmp(s, "nan-of-rank-2"))
        nan_of_rank_2(w);
    else if (!strcmp(s, "hops"))
        ring_of_hops(w);
    else if (!strcmp(s, "non-blocking"))
        non_blocking(w);
    else if (!strcmp(s, "grow"))
        grow_and_shrink(w);
    else if (!strcmp(s, "fork"))
        fork_later(w);
    else
        exit(129);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static void *work(void *of)
{
    worker *w = of;
    TRY(ncclCommInitRank(&w->comm, w->ranks, w->id, w->rank));
    play(w);
    TRY(ncclCommDestroy(w->comm));
    return NULL;
}

static void say(const worker *w)
{
    printf("rank %d %016lx\n", w->rank, (unsigned long)w->hash);
    fflush(stdout);
}

static void by_threads(worker *workers, int ranks)
{
    pthread_t threads[16];
    for (int r = 0; r < ranks; r++) pthread_create(&threads[r], NULL, work, &workers[r]);
    for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    for (int r = 0; r < ranks; r++) say(&workers[r]);
}

static void by_processes(worker *workers, int ranks)
{
    int status, failed = 0;
    for (int r = 0; r < ranks; r++) {
        if (fork()) continue;
        work(&workers[r]);
        say(&workers[r]);
        exit(0);
    }
    while (wait(&status) > 0) failed |= status;
    if (failed) exit(1);
}

/* One thread, all ranks: groups around each collective. */
static void by_one(worker *workers, int ranks)
{
    lb_nccl_comm comms[16];
    float *data[16];
    TRY(ncclCommInitAll(comms, ranks, NULL));
    for (int i = 0; i < 3; i++) {
        TRY(ncclGroupStart());
        for (int r = 0; r < ranks; r++) {
            data[r] = fill(&workers[r], F32, COUNT);
            TRY(ncclAllReduce(data[r], data[r], COUNT, F32, LB_NCCL_SUM, comms[r], NULL));
        }
        TRY(ncclGroupEnd());
        for (int r = 0; r < ranks; r++) done(&workers[r], data[r], data[r], COUNT * 4);
    }
    for (int r = 0; r < ranks; r++) TRY(ncclCommDestroy(comms[r]));
    for (int r = 0; r < ranks; r++) say(&workers[r]);
}

int main(int argc, char **argv)
{
    worker workers[16] = {0};
    const int ranks = argc == 4 ? atoi(argv[3]) : 0;
    if (ranks < 1 || ranks > 16) return 129;
    TRY(ncclGetUniqueId(&workers[0].id));
    for (int r = 0; r < ranks; r++)
        workers[r] =
            (worker){.rank = r, .ranks = ranks, .id = workers[0].id, .seed = 77 + (uint64_t)r, .scenario = argv[1]};
    if (!strcmp(argv[2], "threads")) by_threads(workers, ranks);
    if (!strcmp(argv[2], "processes")) by_processes(workers, ranks);
    if (!strcmp(argv[2], "single")) by_one(workers, ranks);
    return 0;
}
