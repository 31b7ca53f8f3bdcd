/* The queue of calls, in the order in which they were made, and the thread that writes them.
 *
 *     begin ─▶ counted, what it sends is copied, last in the queue ─▶ end: what it received is copied ─▶ written
 *
 * What has not ended holds up what comes behind it. A receive does so until the step that it was made in is over: then
 * it is written in the step in which it ends. The thread calls no function of MPI. Nothing here is called with the
 * lock held. */
#ifndef LB_CAPTURE_MPI_QUEUE_H
#define LB_CAPTURE_MPI_QUEUE_H

#include "mpi/mpi_call.h"

/* NULL: it is not recorded. */
lb_mpi_call *lb_mpi_queue_begin(const lb_mpi_given *given);
/* It has done its work, or `failed`; `message`: of a receive. The call is the writer's from then on. NULL is fine. */
void lb_mpi_queue_end(lb_mpi_call *call, bool failed, const lb_mpi_message *message);
/* It will never be known to end. */
void lb_mpi_queue_abandon(lb_mpi_call *call);

/* Step `step` begins; from now on no step begins by itself. */
void lb_mpi_queue_step(int64_t step);
/* The next step begins. */
void lb_mpi_queue_next_step(void);
/* Calls are counted, and not recorded. */
void lb_mpi_queue_pause(bool paused);

/* All that ended is written, and the archive is closed; `complete`: so is the step that is open. Later calls are not
 * recorded. */
void lb_mpi_queue_close(bool complete);

#endif
