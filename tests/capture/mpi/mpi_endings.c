/* Scenarios of mpi_program.c on how a program runs and ends: threads, steps, ranks that are killed or give up. */
#include "mpi_program.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4 };

static void *in_thread(void *given)
{
    const MPI_Comm comm = *(MPI_Comm *)given;
    float x[N], y[N];
    for (int i = 0; i < 50; i++) {
        MPI_Request request;
        for (int k = 0; k < N; k++) x[k] = (float)(rank + 1) / (float)(i + k + 3);
        MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, comm);
        MPI_Iallreduce(y, x, N, MPI_FLOAT, MPI_MAX, comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Sendrecv(x, N, MPI_FLOAT, (rank + 1) % ranks, i, y, N, MPI_FLOAT, (rank + ranks - 1) % ranks, i, comm,
                     MPI_STATUS_IGNORE);
    }
    uint64_t own = 0;
    for (size_t i = 0; i < sizeof y; i++) own = own * 31 + ((unsigned char *)y)[i];
    return (void *)(uintptr_t)own;
}

void threads(void)
{
    MPI_Comm comms[THREADS];
    pthread_t list[THREADS];
    for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (int i = 0; i < THREADS; i++) pthread_create(&list[i], NULL, in_thread, &comms[i]);
    for (int i = 0; i < THREADS; i++) {
        void *own;
        pthread_join(list[i], &own);
        received(-1, "", &own, sizeof own);
    }
    for (int i = 0; i < THREADS; i++) MPI_Comm_free(&comms[i]);
}

/* ---- steps, and ends --------------------------------------------------------------------------------------------- */

static void one_step(int step, int wrong)
{
    float x[64], y[64];
    for (int i = 0; i < 64; i++) x[i] = (float)(rank + 1) / (float)(step + i + 3);
    if (wrong && rank == 1 && step == 2) x[5] += 1;
    CALL(Allreduce, x, sizeof x, y, sizeof x, (x, y, 64, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
    CALL(Bcast, rank ? NULL : y, sizeof y, y, sizeof y, (y, 64, MPI_FLOAT, 0, MPI_COMM_WORLD));
}

void steps(void)
{
    for (int i = 0; i < 5; i++) one_step(i, parameter != 0);
}

void marked(void)
{
    for (int i = 0; i < 5; i++) {
        one_step(i, 0);
        if (i == 1) MPI_Pcontrol(0); /* nothing of the third is recorded */
        if (i == 2) MPI_Pcontrol(1);
        MPI_Pcontrol(2);
    }
}

/* The last rank aborts the job, or is killed, in the fourth step. */
static void ending(bool kills)
{
    for (int i = 0; i < 6; i++) {
        one_step(i, 0);
        if (i == 3) usleep(200000); /* what was recorded until now is written */
        if (i == 3 && rank == ranks - 1) {
            if (kills) raise(SIGKILL);
            MPI_Abort(MPI_COMM_WORLD, 9);
        }
        if (i == 3) sleep(20);
        MPI_Pcontrol(2);
    }
}

void aborting(void)
{
    ending(false);
}

void killed(void)
{
    ending(true);
}

extern void lb_mpi_step(int64_t) __attribute__((weak));

/* Numbers of its own; a child that ends by itself, and has no thread that writes; no MPI_Finalize where it says so. */
void numbered(void)
{
    for (int i = 0; i < 4; i++) {
        int status = 0;
        if (lb_mpi_step) lb_mpi_step(10 * i + 5);
        one_step(i, 0);
        const pid_t child = i == 1 ? fork() : -1;
        if (!child) exit(0);
        if (child > 0) waitpid(child, &status, 0);
        if (status) exit(6);
    }
    if (!parameter) return;
    printf("rank %d %016llx\n", rank, (unsigned long long)hash);
    exit(0);
}

/* A receive that is open from the first step to the last. */
void waiting(void)
{
    float stop[1] = {0}, x[1] = {42};
    MPI_Request request = MPI_REQUEST_NULL;
    int call = -1;
    if (rank == 0) {
        call = sent("MPI_Irecv", NULL, 0);
        MPI_Irecv(stop, 1, MPI_FLOAT, 1, 9, MPI_COMM_WORLD, &request);
    }
    for (int i = 0; i < 4; i++) {
        one_step(i, 0);
        MPI_Pcontrol(2);
    }
    if (rank == 1) CALL(Send, x, sizeof x, NULL, 0, (x, 1, MPI_FLOAT, 0, 9, MPI_COMM_WORLD));
    if (rank == 0) {
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        received(call, "MPI_Irecv", stop, sizeof stop);
    }
    one_step(4, 0);
}

/* Requests that are freed, and one that never ends; an intercommunicator; calls that fail and go on. */
void careless(void)
{
    float x[N] = {0}, y[N];
    MPI_Request request;
    MPI_Comm half, inter;
    const int side = rank % 2;
    MPI_Irecv(y, N, MPI_FLOAT, rank, 77, MPI_COMM_WORLD, &request);
    MPI_Request_free(&request);
    MPI_Send(x, N, MPI_FLOAT, rank, 77, MPI_COMM_WORLD);
    MPI_Irecv(y, N, MPI_FLOAT, rank, 78, MPI_COMM_WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Comm_split(MPI_COMM_WORLD, side, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - side, 3, &inter);
    MPI_Barrier(inter);
    MPI_Allreduce(x, y, N, MPI_FLOAT, MPI_SUM, inter);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (MPI_Send(x, N, MPI_FLOAT, ranks + 5, 1, MPI_COMM_WORLD) == MPI_SUCCESS) exit(5);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
    one_step(0, 0);
}

/* The time of a call, in nanoseconds, of `parameter` bytes: the best of rounds of few, which find room in what waits
 * to be written; and of many, one after the other, until they are written. */
void timed(void)
{
    const int n = (int)(parameter / (long)sizeof(float)), few = parameter >= 1 << 20 ? 10 : 300;
    const int many = parameter >= 1 << 20 ? 400 : 150000;
    float *x = calloc((size_t)n, sizeof *x), *y = calloc((size_t)n, sizeof *y);
    double best = 1e30;
    for (int i = 0; i < n; i++) x[i] = number(i);
    for (int k = 0; k < 10; k++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        for (int i = 0; i < few; i++) MPI_Allreduce(x, y, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        const double each = (MPI_Wtime() - begin) / few * 1e9;
        if (each < best) best = each;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < many; i++) MPI_Allreduce(x, y, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double all = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    if (rank == 0) printf("time %.0f %.0f\n", best, all / many);
    exit(0);
}

/* As many calls as `parameter` says, of 64 bytes: what is counted by its instructions. */
void counted(void)
{
    float x[16] = {1}, y[16];
    for (long i = 0; i < parameter; i++) MPI_Allreduce(x, y, 16, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
