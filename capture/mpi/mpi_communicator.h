/* Communicators as this rank knows them, and this rank's place in the job.
 *
 * A communicator is added where a wrapped function makes it, which all of its members do in one order, so that names
 * and numbers are the same on all of them; one that is made past us, when it is first used. The lock is one for all of
 * the shim; functions say whether it is held. MPI is never called with it held. */
#ifndef LB_CAPTURE_MPI_COMMUNICATOR_H
#define LB_CAPTURE_MPI_COMMUNICATOR_H

#include "calls/call_archive.h"
#include "calls/member_names.h"
#include "mpi/mpi_family.h"

#include <pthread.h>

void lb_mpi_communicators_lock(void);
void lb_mpi_communicators_unlock(void);
pthread_mutex_t *lb_mpi_communicators_mutex(void);

typedef struct lb_mpi_communicator {
    struct lb_mpi_communicator *next;
    uintptr_t handle;
    int rank, size;
    int32_t *members; /* ranks in the job; NULL: not all are in it */
    char name[LB_MEMBER_NAME];
    bool whole;                  /* all ranks of the job */
    bool inter;                  /* an intercommunicator, of which nothing is recorded */
    uint64_t sequence, messages; /* how many collectives, sends and receives it has seen */
    int refs;
} lb_mpi_communicator;

typedef struct lb_mpi_place {
    int32_t rank, world; /* -1: not known yet */
    bool wanted, dead;   /* this rank is to be recorded; it went wrong */
    bool marked, paused; /* the program says where steps begin; it wants nothing to be recorded now */
    int64_t step;
    uint64_t clock;                 /* collectives of all ranks */
    char library[160], threads[16]; /* name and version; the level of threads */
    lb_call_archive archive;
} lb_mpi_place;
/* With the lock held, but for the archive, which is the writer's. */
lb_mpi_place *lb_mpi_communicator_place(void);

/* Not locked: it is known from now on. */
void lb_mpi_communicator_add(lb_mpi_handle handle);
/* Not locked: the communicator, added if it is not known, with a reference that lb_mpi_communicator_release gives
 * back; NULL: there is no such, or no memory. */
lb_mpi_communicator *lb_mpi_communicator_of(lb_mpi_handle handle);
/* Not locked: the handle ends; calls under way keep what they need. */
void lb_mpi_communicator_remove(lb_mpi_handle handle);
/* Locked. */
void lb_mpi_communicator_release(lb_mpi_communicator *comm);

#endif
