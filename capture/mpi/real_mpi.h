/* The MPI behind the shim: which family the process has, its functions, and the adapter that knows its constants. */
#ifndef LB_CAPTURE_REAL_MPI_H
#define LB_CAPTURE_REAL_MPI_H

#include "mpi/mpi_functions.h"

/* Found at the first call. A function that this MPI has not is NULL; where there is no MPI at all each is. */
const lb_mpi_functions *lb_mpi_real(void);
/* NULL: there is no adapter for it, which was said; its calls are handed on unrecorded. */
const lb_mpi_family *lb_mpi_real_family(void);
/* Whose code lies at this address: of the Fortran bindings (Open MPI's call PMPI's functions, not MPI's), of MPI
 * itself, whose files and windows call collectives, or of the program. */
typedef enum lb_mpi_caller { LB_MPI_OF_PROGRAM, LB_MPI_OF_FORTRAN, LB_MPI_OF_ITSELF } lb_mpi_caller;
lb_mpi_caller lb_mpi_real_caller(const void *address);
/* After MPI_Init: parts of it were loaded. Before other threads call MPI. */
void lb_mpi_real_look_again(void);

#endif
