/* mpi_sums N: three sums of N numbers of many sizes over all ranks, and each order of adding gives other bits. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, n = argc > 1 ? atoi(argv[1]) : 100;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    float *given = malloc((size_t)n * sizeof *given), *sum = malloc((size_t)n * sizeof *sum);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < n; i++)
            given[i] = (float)((i * 7919 + rank * 104729 + step * 31) % 2003 - 1001) * (1 + rank % 5 * 1000) / 997;
        MPI_Allreduce(given, sum, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    printf("rank %d: %a\n", rank, sum[n / 2]);
    MPI_Finalize();
    free(given), free(sum);
    return 0;
}
