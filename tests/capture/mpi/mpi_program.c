/* A program that calls MPI, and writes down itself what each of its calls sent and received:
 *
 *     mpi_program SCENARIO [FOLDER [PARAMETER]]
 *
 * FOLDER/rank-R/NNN.NAME.in.npy and .out.npy are the dense bytes of call NNN, in the order of the calls; no file: this
 * rank sends, or receives, nothing. Each rank prints a hash of all that it received. It is compiled with the mpicc of
 * each MPI, with the scenarios in mpi_calls.c and mpi_endings.c. */
#include "mpi_program.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int rank, ranks, calls;
long parameter;
static const char *folder;
uint64_t hash = 0xcbf29ce484222325;

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

int sent(const char *name, const void *data, size_t bytes)
{
    write_down(calls, name, "in", data, bytes);
    return calls++;
}

void received(int call, const char *name, const void *data, size_t bytes)
{
    write_down(call, name, "out", data, bytes);
    for (size_t i = 0; data && i < bytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
}

float number(int i)
{
    return (float)(((rank * 31 + i * 17 + calls * 7) % 101) - 50) / 7.0f;
}

void fill(float *x, int n)
{
    for (int i = 0; i < n; i++) x[i] = number(i);
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
