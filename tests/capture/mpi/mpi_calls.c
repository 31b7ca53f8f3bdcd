/* Scenarios of mpi_program.c that call: collectives, non-blocking and persistent calls, communicators, messages,
 * datatypes. */
#include "mpi_program.h"

#include <complex.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

void collectives(void)
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

void later(void)
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
void communicators(void)
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

void messages(void)
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

void types(void)
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
void strange(void)
{
    REDUCED(long double, MPI_LONG_DOUBLE, MPI_MAX, number(i));
    struct {
        double value;
        int place;
    } in[N] = {0}, out[N];
    for (int i = 0; i < N; i++) in[i].value = number(i), in[i].place = rank;
    MPI_Allreduce(in, out, N, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD);
}
