/* Asks an MPI library for the bits of its collectives: mpi_judge CASES OUT
 *
 * CASES has a line for each call, "COMMUNICATOR COLLECTIVE REDUCTION DTYPE COUNT ROOT IN_PLACE": the collective among
 * the first so many ranks. Rank r writes to OUT.r what it gave and what it received, for each call that it took part
 * in:
 *
 *      int64   row of CASES, elements given, elements received
 *      bytes   the elements
 *
 * Which algorithm a library takes is told it from outside (judged_mpi.py). Numbers have magnitudes from 2^-12 to 2^12,
 * so that orders give other bits; factors are near 1. None is a zero: of zeros of both signs max and min give one by
 * their operands' places, in recursive doubling not even the same one to every rank. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 64, WORD = 32 };

#ifdef MPICH_VERSION
/* MPICH waits without giving its core away, which takes ten times as long where ranks are more than cores. */
unsigned ucp_worker_progress(void *worker)
{
    static unsigned (*next)(void *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "ucp_worker_progress");
    const unsigned progress = next(worker);
    if (!progress) sched_yield();
    return progress;
}
#endif

typedef struct call {
    int ranks, count, root, in_place, row;
    char collective[WORD], reduction[WORD], dtype[WORD];
    MPI_Comm comm;
    MPI_Datatype type;
    MPI_Op op;
    int me, width;
} call;

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double number(const call *call, int element)
{
    const uint64_t bits = mixed(mixed((uint64_t)call->row << 32 | (uint64_t)call->me) + (uint64_t)element);
    const double fraction = ldexp((double)(bits >> 12), -51) - 1;
    if (call->op == MPI_PROD) return 1 + fraction / 8;
    return ldexp(fraction, (int)(bits % 25) - 12);
}

static char *numbers(const call *call, int count)
{
    char *out = calloc((size_t)count + 1, sizeof(double));
    for (int i = 0; i < count; i++)
        if (call->width == 8)
            ((double *)out)[i] = number(call, i);
        else
            ((float *)out)[i] = (float)number(call, i);
    return out;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static int failed(const char *what, const char *which)
{
    fprintf(stderr, "mpi_judge: %s \"%s\" is not known\n", what, which);
    MPI_Abort(MPI_COMM_WORLD, 2);
    return 0;
}

static void waited(MPI_Request request)
{
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* The elements that this rank received in `out`. */
static int made(const call *call, void *in, void *out)
{
    const char *name = call->collective;
    const int here = call->in_place && (strcmp(name, "reduce") || call->me == call->root);
    void *from = here ? MPI_IN_PLACE : in;
    int counts[MOST_RANKS];
    MPI_Request request;
    if (here) memcpy(out, in, (size_t)call->count * (size_t)call->width);
    if (!strcmp(name, "allreduce"))
        return MPI_Allreduce(from, out, call->count, call->type, call->op, call->comm), call->count;
    if (!strcmp(name, "scan")) return MPI_Scan(from, out, call->count, call->type, call->op, call->comm), call->count;
    if (!strcmp(name, "exscan"))
        return MPI_Exscan(from, out, call->count, call->type, call->op, call->comm), call->me ? call->count : 0;
    if (!strcmp(name, "reduce"))
        return MPI_Reduce(from, out, call->count, call->type, call->op, call->root, call->comm),
               call->me == call->root ? call->count : 0;
    if (!strcmp(name, "iallreduce")) {
        MPI_Iallreduce(from, out, call->count, call->type, call->op, call->comm, &request);
        return waited(request), call->count;
    }
    if (!strcmp(name, "ireduce")) {
        MPI_Ireduce(in, out, call->count, call->type, call->op, call->root, call->comm, &request);
        return waited(request), call->me == call->root ? call->count : 0;
    }
    if (!strcmp(name, "reduce_scatter_block")) {
        const int each = call->count / call->ranks;
        MPI_Reduce_scatter_block(from, out, each, call->type, call->op, call->comm);
        return each;
    }
    if (!strcmp(name, "reduce_scatter")) {
        for (int r = 0; r < call->ranks; r++) counts[r] = call->count / call->ranks + (r < call->count % call->ranks);
        MPI_Reduce_scatter(from, out, counts, call->type, call->op, call->comm);
        return counts[call->me];
    }
    return failed("collective", name);
}

static void judged(call *call, FILE *file)
{
    call->type = !strcmp(call->dtype, "f64") ? MPI_DOUBLE : MPI_FLOAT,
    call->width = !strcmp(call->dtype, "f64") ? 8 : 4;
    call->op = !strcmp(call->reduction, "sum")    ? MPI_SUM
               : !strcmp(call->reduction, "prod") ? MPI_PROD
               : !strcmp(call->reduction, "min")  ? MPI_MIN
                                                  : MPI_MAX;
    char *in = numbers(call, call->count), *given = numbers(call, call->count),
         *out = calloc((size_t)call->count + 1, sizeof(double));
    const int received = made(call, in, out);
    const int64_t head[3] = {call->row, call->count, received};
    fwrite(head, sizeof head, 1, file);
    fwrite(given, (size_t)call->width, (size_t)call->count, file);
    fwrite(out, (size_t)call->width, (size_t)received, file);
    free(in), free(given), free(out);
}

int main(int argc, char **argv)
{
    MPI_Comm comms[MOST_RANKS + 1];
    char line[256], path[4096];
    int world, me, row = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (argc != 3 || world > MOST_RANKS) failed("use, or number of ranks, of", argv[0]);
    for (int n = 1; n <= world; n++) MPI_Comm_split(MPI_COMM_WORLD, me < n ? 0 : MPI_UNDEFINED, me, &comms[n]);
    snprintf(path, sizeof path, "%s.%d", argv[2], me);
    FILE *cases = fopen(argv[1], "r"), *out = fopen(path, "wb");
    if (!cases || !out) failed("file", cases ? path : argv[1]);
    for (; cases && out && fgets(line, sizeof line, cases); row++) {
        call c = {.me = me, .row = row};
        if (sscanf(line, "%d %31s %31s %31s %d %d %d", &c.ranks, c.collective, c.reduction, c.dtype, &c.count, &c.root,
                   &c.in_place) != 7 ||
            c.ranks > world)
            failed("case", line);
        c.comm = comms[c.ranks];
        if (me < c.ranks) judged(&c, out);
    }
    if (out) fclose(out);
    if (cases) fclose(cases);
    MPI_Finalize();
    return 0;
}
