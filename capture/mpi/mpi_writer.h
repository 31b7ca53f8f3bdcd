/* From a call to an op of the capture: the writer thread's part.
 *
 * An op has the name and the arguments that PyTorch's own collectives have, so that all commands know it:
 * `c10d::allreduce_`, `reduce_`, `broadcast_`, `_allgather_base_` (Allgatherv: `allgather_`), `gather_`, `scatter_`,
 * `_reduce_scatter_base_` (of uneven parts: `reduce_scatter_`), `alltoall_base_` (Alltoallv: `alltoall_`), `send` and
 * `recv_`:
 *
 *     what is sent at 0 or 1, root at 2 (broadcast_) or 3, peer at 2 and tag at 3, MPI's name of the call last
 *
 * What is received is the op's result; of a broadcast and a receive it is written over the argument. MPI_Scan and
 * MPI_Exscan, and reductions that replay does not know (maxloc, logical ones, the program's own), are `mpi::scan`,
 * `mpi::exscan`, `mpi::allreduce`, …: their recorded results stand in when they are replayed. */
#ifndef LB_CAPTURE_MPI_WRITER_H
#define LB_CAPTURE_MPI_WRITER_H

#include "mpi/mpi_call.h"

/* Writes it and frees nothing. One thread, not locked. */
void lb_mpi_writer_write(lb_mpi_call *call);
/* How many calls never came to their end; the open step ends, as `complete` or not, and the archive is closed. */
void lb_mpi_writer_close(uint64_t unfinished, bool complete);

#endif
