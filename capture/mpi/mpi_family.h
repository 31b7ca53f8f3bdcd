/* What is asked of an MPI, whichever it is: handles are pointers in Open MPI and numbers of 32 bits in MPICH, and
 * constants have different values in each. family_adapter.c answers, compiled once with the mpi.h of each family into a
 * library of its own, of which the one that a process needs is loaded.
 *
 * A handle is a pointer here, of which MPICH means the lower half: where registers and slots of the stack have 64 bits
 * an entry point hands on what it was given, whatever it is. */
#ifndef LB_CAPTURE_MPI_FAMILY_H
#define LB_CAPTURE_MPI_FAMILY_H

#include <lastbit/dtype.h>

#include <stdbool.h>
#include <stdint.h>

typedef void *lb_mpi_handle;

/* A datatype: elements of one type, dense or with gaps. */
typedef struct lb_mpi_element {
    lb_dtype dtype;               /* LB_NO_DTYPE: of several types, or of one that lastbit/dtype.h has not */
    bool dense;                   /* items lie one behind the other, without gaps; else they are packed */
    int64_t bytes, extent, first; /* of an item: what it holds, how far to the next, and where its first byte lies */
} lb_mpi_element;

typedef struct lb_mpi_members {
    int rank, size;
    int32_t *world; /* ranks in MPI_COMM_WORLD, malloc'ed; NULL: some are outside of it */
} lb_mpi_members;

typedef struct lb_mpi_message {
    int source, tag;
    int64_t bytes;
    bool cancelled;
} lb_mpi_message;

typedef struct lb_mpi_family {
    const char *name; /* "Open MPI" */
    lb_mpi_handle world;
    const void *in_place, *status_ignore, *statuses_ignore;
    uintptr_t handle_mask; /* of a handle's bits those that count */
    size_t request_bytes, status_bytes;
    int proc_null, undefined;
    bool (*initialized)(void);                                    /* and not finalized */
    bool (*members)(lb_mpi_handle comm, lb_mpi_members *members); /* false: an intercommunicator, or none */
    void (*element)(lb_mpi_handle datatype, lb_mpi_element *element);
    const char *(*reduction)(lb_mpi_handle op); /* "sum", …; "user" where the program defined it */
    /* `items` of a datatype with gaps, dense; false: it could not. */
    bool (*pack)(const void *from, int items, lb_mpi_handle datatype, void *to, int64_t bytes);
    lb_mpi_handle (*hold)(lb_mpi_handle datatype); /* a duplicate */
    void (*let_go)(lb_mpi_handle datatype);
    lb_mpi_message (*message)(const void *status);
    void (*library)(char *text, size_t room); /* name and version, one line */
    const char *(*threads)(void);             /* "single", … */
} lb_mpi_family;

#define LB_MPI_FAMILY_SYMBOL "lb_mpi_family_here"

#endif
