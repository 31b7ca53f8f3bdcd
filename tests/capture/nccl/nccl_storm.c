/* Many threads, each with communicators of its own of one rank, call NCCL as fast as they can, while others fork and
 * open and close libraries; the stand-in lets some calls fail. test_nccl_storm.py runs it with the shim beneath, also
 * under ThreadSanitizer.
 *
 *     nccl_storm THREADS CALLS FORKS
 *
 * It prints how many calls went through and a hash of what they gave. Where CALLS is not met by FORKS of 0 there is no
 * fork. */
#define _GNU_SOURCE
#include "nccl_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DECLARE(name, parameters, arguments) lb_nccl_result name parameters;
LB_NCCL_ROWS(DECLARE)

enum { F32 = 7, COUNT = 16 };

typedef struct worker {
    pthread_t thread;
    int number, calls;
    unsigned long done, failed;
    unsigned hash;
} worker;

static _Atomic int over;

static void note(worker *w, int result, const float *data)
{
    if (result != LB_NCCL_SUCCESS) {
        w->failed++;
        return;
    }
    w->done++;
    for (int i = 0; i < COUNT; i++) w->hash = w->hash * 31 + (unsigned)data[i];
}

static void together(worker *w, lb_nccl_comm comm, float *a, float *b)
{
    ncclGroupStart();
    const int first = ncclAllReduce(a, b, COUNT, F32, LB_NCCL_SUM, comm, NULL);
    const int second = ncclAllGather(a, a, COUNT, F32, comm, NULL);
    ncclGroupEnd();
    if (first == LB_NCCL_SUCCESS) note(w, first, b);
    note(w, second, a);
}

static void part(worker *w, lb_nccl_comm comm, float *a)
{
    lb_nccl_comm made;
    if (ncclCommSplit(comm, 0, 0, &made, NULL) != LB_NCCL_SUCCESS || !made) return;
    note(w, ncclBcast(a, COUNT, F32, 0, made, NULL), a);
    ncclCommDestroy(made);
}

static void multiply(worker *w, lb_nccl_comm comm, float *a)
{
    float two = 1;
    lb_nccl_op op;
    if (ncclRedOpCreatePreMulSum(&op, &two, F32, LB_NCCL_SCALAR_HOST, comm) != LB_NCCL_SUCCESS) op = LB_NCCL_SUM;
    note(w, ncclAllReduce(a, a, COUNT, F32, op, comm, NULL), a);
    ncclRedOpDestroy(op, comm);
}

static void *work(void *of)
{
    worker *w = of;
    float a[COUNT], b[COUNT];
    lb_nccl_unique id;
    lb_nccl_comm comm;
    ncclGetUniqueId(&id);
    if (ncclCommInitRank(&comm, 1, id, 0) != LB_NCCL_SUCCESS) exit(1);
    for (int i = 0; i < w->calls; i++) {
        for (int k = 0; k < COUNT; k++) a[k] = (float)(i % 1000 + k + w->number);
        if (i % 1000 == 500)
            part(w, comm, a);
        else if (i % 16 == 3)
            together(w, comm, a, b);
        else if (i % 64 == 9 && i < 800)
            multiply(w, comm, a);
        else
            note(w, ncclAllReduce(a, b, COUNT, F32, LB_NCCL_SUM, comm, NULL), i % 2 ? a : b);
    }
    ncclCommDestroy(comm);
    return NULL;
}

/* Children leave at once, by exit and by _exit in turn: neither may write into what the parent records. */
static void *fork_often(void *of)
{
    for (int i = 0; i < *(int *)of; i++) {
        const pid_t child = fork();
        if (child == 0) {
            if (i % 2) exit(0);
            _exit(0);
        }
        int status = 0;
        if (child > 0) waitpid(child, &status, 0);
        if (status) fprintf(stderr, "a child ended with %d\n", status), exit(1);
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    return NULL;
}

static void *open_and_close(void *path)
{
    while (!atomic_load(&over) && path) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library) dlclose(library);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    const int threads = argc == 4 ? atoi(argv[1]) : 0;
    int forks = argc == 4 ? atoi(argv[3]) : 0;
    worker workers[64] = {0};
    pthread_t forking, opening;
    unsigned long done = 0, failed = 0;
    unsigned hash = 0;
    if (threads < 1 || threads > 64) return 129;
    pthread_create(&forking, NULL, fork_often, &forks);
    pthread_create(&opening, NULL, open_and_close, getenv("STORM_LIBRARY"));
    for (int t = 0; t < threads; t++) {
        workers[t].number = t;
        workers[t].calls = atoi(argv[2]) / threads;
        pthread_create(&workers[t].thread, NULL, work, &workers[t]);
    }
    for (int t = 0; t < threads; t++) {
        pthread_join(workers[t].thread, NULL);
        done += workers[t].done, failed += workers[t].failed, hash += workers[t].hash;
    }
    atomic_store(&over, 1);
    pthread_join(forking, NULL);
    pthread_join(opening, NULL);
    printf("%lu went through, %lu failed, %08x\n", done, failed, hash);
    return 0;
}
