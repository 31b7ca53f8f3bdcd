/* A program that calls MPI, and writes down itself what each of its calls sent and received:
 *
 *     mpi_program SCENARIO [FOLDER [PARAMETER]]
 *
 * FOLDER/rank-R/NNN.NAME.in.npy and .out.npy are the dense bytes of call NNN, in the order of the calls; no file: this
 * rank sends, or receives, nothing. Each rank prints a hash of all that it received. It is compiled with the mpicc of
 * each MPI. */
#include <mpi.h>

#include <complex.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N = 6, MOST = 8 };

static int rank, ranks, calls;
static const char *folder;
static long parameter;
static uint64_t hash = 0xcbf29ce484222325;

/* ---- what it writes down ----------------------------------------------------------------------------------------- */

static void write_down(int call, const char *name, const char *side, const void *data, size_t bytes)
{
    char path[4096], header[128];
    if (!folder || !data) return;
    snprintf(path, sizeof path, "%s/rank-%d/%03d.%s.%s.npy", folder, rank, call, name, side);
    FILE *file = fopen(path, "wb");
    if (!file) exit(3);
    const int n = snprintf(header, sizeof header, "{'descr': '|u1', 'fortran_order': False, 'shape': (%zu,), }", bytes);
    const int pad = 64 - (10 + n + 1) % 64;
    const unsigned short length = (unsigned short)(n + pad + 1);
    fwrite("\x93NUMPY\x01\x00", 1, 8, file);
    fwrite(&length, 2, 1, file);
    fprintf(file, "%s%*s\n", header, pad, "");
    fwrite(data, 1, bytes, file);
    fclose(file);
}

static int sent(const char *name, const void *data, size_t bytes)
{
    write_down(calls, name, "in", data, bytes);
    return calls++;
}

static void received(int call, const char *name, const void *data, size_t bytes)
{
    write_down(call, name, "out", data, bytes);
    for (size_t i = 0; data && i < bytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
}

/* One call that does its work when it returns. NULL: this rank sends, or receives, nothing. */
#define CALL(name, in, in_bytes, out, out_bytes, arguments)                                                            \
    do {                                                                                                               \
        const int call_ = sent("MPI_" #name, in, in_bytes);                                                            \
        if (MPI_##name arguments != MPI_SUCCESS) exit(4);                                                              \
        received(call_, "MPI_" #name, out, out_bytes);                                                                 \
    } while (0)

static float number(int i)
{
    return (float)(((rank * 31 + i * 17 + calls * 7) % 101) - 50) / 7.0f;
}

static void fill(float *x, int n)
{
    for (int i = 0; i < n; i++) x[i] = number(i);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static void uneven(int counts[MOST], int at[MOST], int *total)
{
    *total = 0;
    for (int i = 0; i < ranks; i++) {
        counts[i] = i + 1;
        at[i] = *total + i; /* with a gap before each */
        *total += i + 1;
    }
}

/* The parts of an uneven buffer, one behind the other. */
static size_t dense(float *to, const float *from, const int counts[], const int at[])
{
    size_t n = 0;
    for (int i = 0; i < ranks; i++) {
        memcpy(to + n, from + at[i], (size_t)counts[i] * sizeof *to);
        n += (size_t)counts[i];
    }
    return n * sizeof *to;
}

static void reduce_everything(MPI_Comm comm, int root)
{
    float x[N * MOST], y[N * MOST];
    int counts[MOST], at[MOST], total;
    const size_t bytes = N * sizeof *x;
    uneven(counts, at, &total);
    fill(x, N);
    CALL(Allreduce, x, bytes, y, bytes, (x, y, N, MPI_FLOAT, MPI_SUM, comm));
    CALL(Allreduce, y, bytes, y, bytes, (MPI_IN_PLACE, y, N, MPI_FLOAT, MPI_SUM, comm));
    fill(x, N);
    CALL(Reduce, x, bytes, rank == root ? y : NULL, bytes, (x, y, N, MPI_FLOAT, MPI_SUM, root, comm));
    fill(y, N);
    CALL(Reduce, y, bytes, rank == root ? y : NULL, bytes,
         (rank == root ? MPI_IN_PLACE : y, y, N, MPI_FLOAT, MPI_MAX, root, comm));
    fill(x, N);
    CALL(Scan, x, bytes, y, bytes, (x, y, N, MPI_FLOAT, MPI_SUM, comm));
    CALL(Exscan, x, bytes, rank ? y : NULL, bytes, (x, y, N, MPI_FLOAT, MPI_SUM, comm));
    CALL(Scan, y, bytes, y, bytes, (MPI_IN_PLACE, y, N, MPI_FLOAT, MPI_MIN, comm));
    fill(x, N * ranks);
    CALL(Reduce_scatter_block, x, bytes * (size_t)ranks, y, bytes, (x, y, N, MPI_FLOAT, MPI_SUM, comm));
    fill(x, total);
    CALL(Reduce_scatter, x, (size_t)total * sizeof *x, y, (size_t)counts[rank] * sizeof *x,
         (x, y, counts, MPI_FLOAT, MPI_SUM, comm));
    CALL(Reduce_scatter, x, (size_t)total * sizeof *x, x, (size_t)counts[rank] * sizeof *x,
         (MPI_IN_PLACE, x, counts, MPI_FLOAT, MPI_SUM, comm));
}

static void gather_everything(MPI_Comm comm, int root)
{
    float x[N * MOST], y[4 * N * MOST], flat[4 * N * MOST];
    int counts[MOST], at[MOST], total;
    const size_t bytes = N * sizeof *x, mine = (size_t)(rank + 1) * sizeof *x;
    uneven(counts, at, &total);
    fill(x, N);
    CALL(Allgather, x, bytes, y, bytes * (size_t)ranks, (x, N, MPI_FLOAT, y, N, MPI_FLOAT, comm));
    fill(y + rank * N, N);
    CALL(Allgather, y + rank * N, bytes, y, bytes * (size_t)ranks,
         (MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, y, N, MPI_FLOAT, comm));
    int call = sent("MPI_Allgatherv", x, mine);
    MPI_Allgatherv(x, rank + 1, MPI_FLOAT, y, counts, at, MPI_FLOAT, comm);
    received(call, "MPI_Allgatherv", flat, dense(flat, y, counts, at));
    CALL(Gather, x, bytes, rank == root ? y : NULL, bytes * (size_t)ranks,
         (x, N, MPI_FLOAT, y, N, MPI_FLOAT, root, comm));
    fill(y + rank * N, N);
    const float *own = rank == root ? y + rank * N : x;
    CALL(Gather, own, bytes, rank == root ? y : NULL, bytes * (size_t)ranks,
         (rank == root ? MPI_IN_PLACE : x, N, MPI_FLOAT, y, N, MPI_FLOAT, root, comm));
    call = sent("MPI_Gatherv", x, mine);
    MPI_Gatherv(x, rank + 1, MPI_FLOAT, y, rank == root ? counts : NULL, rank == root ? at : NULL, MPI_FLOAT, root,
                comm);
    if (rank == root) received(call, "MPI_Gatherv", flat, dense(flat, y, counts, at));
}

static void scatter_everything(MPI_Comm comm, int root)
{
    float x[4 * N * MOST], y[4 * N * MOST], flat[4 * N * MOST];
    int counts[MOST], at[MOST], other[MOST], other_at[MOST], total;
    const size_t bytes = N * sizeof *x;
    uneven(counts, at, &total);
    fill(x, N);
    if (rank == root)
        CALL(Bcast, x, bytes, x, bytes, (x, N, MPI_FLOAT, root, comm));
    else
        CALL(Bcast, NULL, 0, x, bytes, (x, N, MPI_FLOAT, root, comm));
    fill(x, N * ranks);
    CALL(Scatter, rank == root ? x : NULL, bytes * (size_t)ranks, y, bytes,
         (x, N, MPI_FLOAT, y, N, MPI_FLOAT, root, comm));
    CALL(Scatter, rank == root ? x : NULL, bytes * (size_t)ranks, rank == root ? x + rank * N : y, bytes,
         (x, N, MPI_FLOAT, rank == root ? MPI_IN_PLACE : y, N, MPI_FLOAT, root, comm));
    fill(x, N * ranks);
    const size_t all = rank == root ? dense(flat, x, counts, at) : 0;
    CALL(Scatterv, rank == root ? flat : NULL, all, y, (size_t)(rank + 1) * sizeof *x,
         (x, rank == root ? counts : NULL, rank == root ? at : NULL, MPI_FLOAT, y, rank + 1, MPI_FLOAT, root, comm));
    CALL(Alltoall, x, bytes * (size_t)ranks, y, bytes * (size_t)ranks, (x, N, MPI_FLOAT, y, N, MPI_FLOAT, comm));
    CALL(Alltoall, y, bytes * (size_t)ranks, y, bytes * (size_t)ranks,
         (MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, y, N, MPI_FLOAT, comm));
    /* Rank r sends i + 1 to rank i, so that it gets r + 1 of each. */
    for (int i = 0; i < ranks; i++) other[i] = rank + 1, other_at[i] = i * (rank + 2);
    const int call = sent("MPI_Alltoallv", flat, dense(flat, x, counts, at));
    MPI_Alltoallv(x, counts, at, MPI_FLOAT, y, other, other_at, MPI_FLOAT, comm);
    received(call, "MPI_Alltoallv", flat, dense(flat, y, other, other_at));
}

static void collectives(void)
{
    reduce_everything(MPI_COMM_WORLD, ranks - 1);
    gather_everything(MPI_COMM_WORLD, 0);
    scatter_everything(MPI_COMM_WORLD, ranks > 1);
}

/* ---- what ends later --------------------------------------------------------------------------------------------- */

/* One way after the other. */
static void finish(MPI_Request *request)
{
    static int way;
    int done = 0, index = -1, some, indices[1];
    MPI_Status status;
    switch (way++ % 7) {
    case 0: MPI_Wait(request, MPI_STATUS_IGNORE); return;
    case 1: MPI_Waitall(1, request, MPI_STATUSES_IGNORE); return;
    case 2: MPI_Waitany(1, request, &index, &status); return;
    case 3: MPI_Waitsome(1, request, &some, indices, MPI_STATUSES_IGNORE); return;
    case 4:
        while (!done) MPI_Test(request, &done, MPI_STATUS_IGNORE);
        return;
    case 5:
        while (!done) MPI_Testall(1, request, &done, &status);
        return;
    default:
        while (!done) MPI_Testany(1, request, &index, &done, MPI_STATUS_IGNORE);
    }
}

#define LATER(name, in, in_bytes, out, out_bytes, ...)                                                                 \
    do {                                                                                                               \
        MPI_Request request_;                                                                                          \
        const int call_ = sent("MPI_" #name, in, in_bytes);                                                            \
        if (MPI_##name(__VA_ARGS__, &request_) != MPI_SUCCESS) exit(4);                                                \
        finish(&request_);                                                                                             \
        received(call_, "MPI_" #name, out, out_bytes);                                                                 \
    } while (0)

static void later(void)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    float x[4 * N * MOST], y[4 * N * MOST], flat[4 * N * MOST];
    int counts[MOST], at[MOST], other[MOST], other_at[MOST], total;
    const size_t bytes = N * sizeof *x, all = bytes * (size_t)ranks, mine = (size_t)(rank + 1) * sizeof *x;
    uneven(counts, at, &total);
    fill(x, 4 * N);
    LATER(Iallreduce, x, bytes, y, bytes, x, y, N, MPI_FLOAT, MPI_SUM, comm);
    LATER(Iallreduce, y, bytes, y, bytes, MPI_IN_PLACE, y, N, MPI_FLOAT, MPI_SUM, comm);
    LATER(Ireduce, x, bytes, rank == 0 ? y : NULL, bytes, x, y, N, MPI_FLOAT, MPI_SUM, 0, comm);
    LATER(Iscan, x, bytes, y, bytes, x, y, N, MPI_FLOAT, MPI_SUM, comm);
    LATER(Iexscan, x, bytes, rank ? y : NULL, bytes, x, y, N, MPI_FLOAT, MPI_SUM, comm);
    fill(x, N * ranks);
    LATER(Ireduce_scatter_block, x, all, y, bytes, x, y, N, MPI_FLOAT, MPI_SUM, comm);
    LATER(Ireduce_scatter, x, (size_t)total * sizeof *x, y, mine, x, y, counts, MPI_FLOAT, MPI_SUM, comm);
    LATER(Ibcast, rank == 0 ? x : NULL, bytes, x, bytes, x, N, MPI_FLOAT, 0, comm);
    LATER(Iallgather, x, bytes, y, all, x, N, MPI_FLOAT, y, N, MPI_FLOAT, comm);
    LATER(Igather, x, bytes, rank == 0 ? y : NULL, all, x, N, MPI_FLOAT, y, N, MPI_FLOAT, 0, comm);
    LATER(Iscatter, rank == 0 ? x : NULL, all, y, bytes, x, N, MPI_FLOAT, y, N, MPI_FLOAT, 0, comm);
    LATER(Ialltoall, x, all, y, all, x, N, MPI_FLOAT, y, N, MPI_FLOAT, comm);
    MPI_Request request;
    int call = sent("MPI_Iallgatherv", x, mine);
    MPI_Iallgatherv(x, rank + 1, MPI_FLOAT, y, counts, at, MPI_FLOAT, comm, &request);
    finish(&request);
    received(call, "MPI_Iallgatherv", flat, dense(flat, y, counts, at));
    call = sent("MPI_Igatherv", x, mine);
    MPI_Igatherv(x, rank + 1, MPI_FLOAT, y, counts, at, MPI_FLOAT, 0, comm, &request);
    finish(&request);
    if (rank == 0) received(call, "MPI_Igatherv", flat, dense(flat, y, counts, at));
    fill(x, N * ranks);
    const size_t parts = dense(flat, x, counts, at);
    LATER(Iscatterv, rank == 0 ? flat : NULL, parts, y, mine, x, counts, at, MPI_FLOAT, y, rank + 1, MPI_FLOAT, 0,
          comm);
    for (int i = 0; i < ranks; i++) other[i] = rank + 1, other_at[i] = i * (rank + 2);
    call = sent("MPI_Ialltoallv", flat, dense(flat, x, counts, at));
    MPI_Ialltoallv(x, counts, at, MPI_FLOAT, y, other, other_at, MPI_FLOAT, comm, &request);
    finish(&request);
    received(call, "MPI_Ialltoallv", flat, dense(flat, y, other, other_at));
    /* Several at a time, waited for in another order. */
    enum { AT_ONCE = 20 };
    static float in[AT_ONCE][N], out[AT_ONCE][N];
    MPI_Request requests[AT_ONCE];
    const int first = calls;
    for (int i = 0; i < AT_ONCE; i++) {
        fill(in[i], N);
        sent("MPI_Iallreduce", in[i], bytes);
        MPI_Iallreduce(in[i], out[i], N, MPI_FLOAT, MPI_SUM, comm, &requests[i]);
    }
    int index, done, some[AT_ONCE];
    MPI_Waitany(AT_ONCE, requests, &index, MPI_STATUS_IGNORE);
    MPI_Wait(&requests[AT_ONCE - 1], MPI_STATUS_IGNORE);
    MPI_Testsome(AT_ONCE, requests, &done, some, MPI_STATUSES_IGNORE);
    MPI_Waitall(AT_ONCE, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < AT_ONCE; i++) received(first + i, "MPI_Iallreduce", out[i], bytes);
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

/* Two calls on each; those that are freed leave their handles to others. */
static void communicators(void)
{
    MPI_Comm made;
    MPI_Group world, group;
    float x[N], y[N];
    const size_t bytes = N * sizeof *x;
    int dims[1] = {ranks}, periods[1] = {0}, first[1] = {0};
    for (int i = 0; i < 6; i++) {
        if (i == 0) MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &made); /* the last rank is the first member */
        if (i == 1) MPI_Comm_dup(MPI_COMM_WORLD, &made);
        if (i == 2) MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periods, 0, &made);
        if (i == 3 || i == 5) {
            MPI_Comm_group(MPI_COMM_WORLD, &world);
            MPI_Group_excl(world, 1, first, &group);
            if (i == 3) MPI_Comm_create(MPI_COMM_WORLD, group, &made);
            if (i == 5 && rank) MPI_Comm_create_group(MPI_COMM_WORLD, group, 5, &made);
            if (i == 5 && !rank) made = MPI_COMM_NULL;
            MPI_Group_free(&group);
            MPI_Group_free(&world);
        }
        if (i == 4) MPI_Comm_split(MPI_COMM_WORLD, rank ? 0 : MPI_UNDEFINED, 0, &made);
        if (made == MPI_COMM_NULL) continue;
        fill(x, N);
        CALL(Allreduce, x, bytes, y, bytes, (x, y, N, MPI_FLOAT, MPI_SUM, made));
        CALL(Allreduce, y, bytes, y, bytes, (MPI_IN_PLACE, y, N, MPI_FLOAT, MPI_MAX, made));
        MPI_Comm_free(&made);
    }
    fill(x, N);
    CALL(Allreduce, x, bytes, y, bytes, (x, y, N, MPI_FLOAT, MPI_SUM, MPI_COMM_SELF));
    LATER(Iallreduce, x, bytes, y, bytes, x, y, N, MPI_FLOAT, MPI_PROD, MPI_COMM_SELF);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void messages(void)
{
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    float x[N], y[N], z[N];
    const size_t bytes = N * sizeof *x;
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Request requests[3];
    MPI_Status status;
    fill(x, N);
    if (rank == 0) {
        CALL(Send, x, bytes, NULL, 0, (x, N, MPI_FLOAT, next, 1, comm));
        CALL(Recv, NULL, 0, y, bytes, (y, N, MPI_FLOAT, before, 1, comm, MPI_STATUS_IGNORE));
    } else {
        CALL(Recv, NULL, 0, y, bytes, (y, N, MPI_FLOAT, before, 1, comm, &status));
        CALL(Ssend, x, bytes, NULL, 0, (x, N, MPI_FLOAT, next, 1, comm));
    }
    /* A receive of more than comes, from any source. */
    int call = sent("MPI_Irecv", NULL, 0);
    MPI_Irecv(y, N, MPI_FLOAT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &requests[0]);
    sent("MPI_Isend", x, bytes / 2);
    MPI_Isend(x, N / 2, MPI_FLOAT, next, 2, comm, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    received(call, "MPI_Irecv", y, bytes / 2);
    /* Two of one kind, waited for the other way round. */
    fill(x, N);
    call = sent("MPI_Irecv", NULL, 0);
    MPI_Irecv(y, N, MPI_FLOAT, before, 3, comm, &requests[0]);
    sent("MPI_Irecv", NULL, 0);
    MPI_Irecv(z, N, MPI_FLOAT, before, 3, comm, &requests[1]);
    for (int i = 0; i < 2; i++) {
        fill(x, N);
        CALL(Send, x, bytes, NULL, 0, (x, N, MPI_FLOAT, next, 3, comm));
    }
    MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    received(call, "MPI_Irecv", y, bytes);
    received(call + 1, "MPI_Irecv", z, bytes);
    /* In one call; to and from nowhere nothing is recorded. */
    sent("MPI_Sendrecv", x, bytes);
    call = sent("MPI_Sendrecv", NULL, 0);
    MPI_Sendrecv(x, N, MPI_FLOAT, next, 4, y, N, MPI_FLOAT, before, 4, comm, MPI_STATUS_IGNORE);
    received(call, "MPI_Sendrecv", y, bytes);
    sent("MPI_Sendrecv_replace", x, bytes);
    call = sent("MPI_Sendrecv_replace", NULL, 0);
    MPI_Sendrecv_replace(x, N, MPI_FLOAT, next, 5, before, 5, comm, MPI_STATUS_IGNORE);
    received(call, "MPI_Sendrecv_replace", x, bytes);
    MPI_Send(x, N, MPI_FLOAT, MPI_PROC_NULL, 6, comm);
    MPI_Recv(y, N, MPI_FLOAT, MPI_PROC_NULL, 6, comm, MPI_STATUS_IGNORE);
    /* Started again and again; the last receive is cancelled. */
    MPI_Recv_init(y, N, MPI_FLOAT, before, 7, comm, &requests[0]);
    MPI_Send_init(x, N, MPI_FLOAT, next, 7, comm, &requests[1]);
    for (int i = 0; i < 3; i++) {
        fill(x, N);
        call = sent("MPI_Recv_init", NULL, 0);
        sent("MPI_Send_init", x, bytes);
        if (i == 0)
            MPI_Startall(2, requests);
        else
            MPI_Start(&requests[0]), MPI_Start(&requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        received(call, "MPI_Recv_init", y, bytes);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
}

/* ---- datatypes and operations ------------------------------------------------------------------------------------ */

static void half_sum(void *in, void *inout, int *n, MPI_Datatype *type)
{
    (void)type;
    for (int i = 0; i < *n; i++) ((float *)inout)[i] = (((float *)inout)[i] + ((float *)in)[i]) / 2;
}

static void sum_items(void *in, void *inout, int *n, MPI_Datatype *type)
{
    int bytes;
    MPI_Type_size(*type, &bytes);
    for (int i = 0; i < *n * bytes / 4; i++) ((float *)inout)[i] += ((float *)in)[i];
}

#define REDUCED(ctype, type, op, value)                                                                                \
    do {                                                                                                               \
        ctype in_[N], out_[N];                                                                                         \
        memset(in_, 0, sizeof in_), memset(out_, 0, sizeof out_); /* and what pads them */                             \
        for (int i = 0; i < N; i++) in_[i] = (ctype)(value);                                                           \
        CALL(Allreduce, in_, sizeof in_, out_, sizeof out_, (in_, out_, N, type, op, MPI_COMM_WORLD));                 \
    } while (0)

static void types(void)
{
    MPI_Op user, items;
    MPI_Op_create(half_sum, 1, &user);
    MPI_Op_create(sum_items, 1, &items);
    REDUCED(double, MPI_DOUBLE, MPI_SUM, number(i) / 3.0);
    REDUCED(double, MPI_DOUBLE, MPI_PROD, 1 + number(i) / 50.0);
    REDUCED(int, MPI_INT, MPI_SUM, rank * 3 + i);
    REDUCED(long, MPI_LONG, MPI_MAX, rank * 3 - i);
    REDUCED(short, MPI_SHORT, MPI_MIN, i - rank);
    REDUCED(signed char, MPI_SIGNED_CHAR, MPI_SUM, i + rank);
    REDUCED(unsigned, MPI_UNSIGNED, MPI_BOR, 1u << rank);
    REDUCED(uint64_t, MPI_UINT64_T, MPI_BXOR, (uint64_t)i << rank);
    REDUCED(unsigned char, MPI_BYTE, MPI_BAND, 255 - (1 << rank));
    REDUCED(int, MPI_INT, MPI_LAND, i < 4 || rank);
    REDUCED(bool, MPI_C_BOOL, MPI_LOR, i == rank);
    REDUCED(float complex, MPI_C_FLOAT_COMPLEX, MPI_SUM, number(i) + number(i + 1) * I);
    REDUCED(double complex, MPI_C_DOUBLE_COMPLEX, MPI_SUM, number(i) - number(i + 2) * I);
    REDUCED(float, MPI_FLOAT, user, number(i));
    struct {
        int value, place;
    } in[N], out[N];
    for (int i = 0; i < N; i++) in[i].value = (rank * 5 + i * 3) % 7, in[i].place = rank;
    CALL(Allreduce, in, sizeof in, out, sizeof out, (in, out, N, MPI_2INT, MPI_MAXLOC, MPI_COMM_WORLD));
    /* Contiguous ones are their elements; of those with gaps these are the bytes that MPI sends. */
    MPI_Datatype three, column, twice, late;
    float x[4 * N], y[4 * N], flat[4 * N];
    MPI_Type_contiguous(3, MPI_FLOAT, &three);
    MPI_Type_commit(&three);
    MPI_Type_dup(three, &twice);
    MPI_Type_vector(N, 1, 4, MPI_FLOAT, &column);
    MPI_Type_commit(&column);
    fill(x, 4 * N);
    CALL(Allreduce, x, 6 * sizeof *x, y, 6 * sizeof *x, (x, y, 2, twice, items, MPI_COMM_WORLD));
    for (int i = 0; i < N; i++) flat[i] = x[4 * i];
    memset(y, 0, sizeof y);
    if (rank == 0) {
        CALL(Send, flat, N * sizeof *x, NULL, 0, (x, 1, column, 1, 1, MPI_COMM_WORLD));
    } else if (rank == 1) {
        MPI_Request request;
        int call = sent("MPI_Irecv", NULL, 0);
        MPI_Type_dup(column, &late);
        MPI_Irecv(y, 1, late, 0, 1, MPI_COMM_WORLD, &request);
        MPI_Type_free(&late); /* before it is used */
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        for (int i = 0; i < N; i++) flat[i] = y[4 * i];
        received(call, "MPI_Irecv", flat, N * sizeof *x);
    }
    MPI_Type_free(&three);
    MPI_Type_free(&twice);
    MPI_Type_free(&column);
    MPI_Op_free(&user);
    MPI_Op_free(&items);
}

/* Of these there are no bytes: a long double, and pairs of two types. */
static void strange(void)
{
    REDUCED(long double, MPI_LONG_DOUBLE, MPI_MAX, number(i));
    struct {
        double value;
        int place;
    } in[N] = {0}, out[N];
    for (int i = 0; i < N; i++) in[i].value = number(i), in[i].place = rank;
    MPI_Allreduce(in, out, N, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD);
}

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

static void threads(void)
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

static void steps(void)
{
    for (int i = 0; i < 5; i++) one_step(i, parameter != 0);
}

static void marked(void)
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

static void aborting(void)
{
    ending(false);
}

static void killed(void)
{
    ending(true);
}

extern void lb_mpi_step(int64_t) __attribute__((weak));

/* Numbers of its own; a child that ends by itself, and has no thread that writes; no MPI_Finalize where it says so. */
static void numbered(void)
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
static void waiting(void)
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
static void careless(void)
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
static void timed(void)
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
static void counted(void)
{
    float x[16] = {1}, y[16];
    for (long i = 0; i < parameter; i++) MPI_Allreduce(x, y, 16, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {{"collectives", collectives},
                     {"later", later},
                     {"communicators", communicators},
                     {"messages", messages},
                     {"types", types},
                     {"strange", strange},
                     {"threads", threads},
                     {"steps", steps},
                     {"marked", marked},
                     {"aborting", aborting},
                     {"killed", killed},
                     {"waiting", waiting},
                     {"careless", careless},
                     {"numbered", numbered},
                     {"counted", counted},
                     {"timed", timed}};
    char path[4096];
    int provided;
    const char *wanted = argc > 1 ? argv[1] : "";
    if (strcmp(wanted, "threads") == 0)
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    else
        MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    folder = argc > 2 && strcmp(argv[2], "-") != 0 ? argv[2] : NULL;
    parameter = argc > 3 ? atol(argv[3]) : 0;
    if (folder) {
        mkdir(folder, 0700);
        snprintf(path, sizeof path, "%s/rank-%d", folder, rank);
        mkdir(path, 0700);
    }
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (strcmp(scenarios[i].name, wanted) == 0) scenarios[i].run();
    printf("rank %d %016llx\n", rank, (unsigned long long)hash);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
