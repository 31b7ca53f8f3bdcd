/* What a program that calls MPI can say to the library beneath it (liblastbit_mpi.so), if it is there.
 *
 * Simplest use, in a program that is linked with that library:
 *
 *     lb_mpi_step(100);                                   // step 100 begins here
 *
 * `lastbit record --mpi` records each collective and message as an op. It does not see where a step of the program
 * begins. Unless it is told, a step is 100 collectives of communicators that have all ranks of the job (--mpi-step
 * gives another number); all ranks count these alike. A program tells it by MPI's own function for tools, in C and in
 * Fortran. Where no tool is beneath, the call does nothing:
 *
 *     MPI_Pcontrol(LB_MPI_CONTROL_STEP);    the next step begins; `flush` in the words of the standard
 *     MPI_Pcontrol(LB_MPI_CONTROL_PAUSE);   calls are counted and not recorded, until LB_MPI_CONTROL_GO_ON
 *
 * or with a number of its own: link with the library, or declare the function weak:
 *
 *     extern void lb_mpi_step(int64_t) __attribute__((weak));
 *     if (lb_mpi_step) lb_mpi_step(n);
 *
 * Threads: any; a rank is in one step at a time. */
#ifndef LASTBIT_MPI_H
#define LASTBIT_MPI_H

#include <lastbit/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Levels of MPI_Pcontrol, as the standard numbers them. */
enum { LB_MPI_CONTROL_PAUSE = 0, LB_MPI_CONTROL_GO_ON = 1, LB_MPI_CONTROL_STEP = 2 };

/* Step `step` begins for this rank; from now on no step begins by itself. Numbers go up. */
LB_API void lb_mpi_step(int64_t step);

#ifdef __cplusplus
}
#endif
#endif
