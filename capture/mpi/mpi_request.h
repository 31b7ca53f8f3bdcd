/* Calls that another call ends, by the request that MPI gave for them.
 *
 *     I…    lb_mpi_request_put
 *     Wait  lb_mpi_request_take ─▶ MPI's own ─▶ lb_mpi_request_done, or lb_mpi_request_back where it has not ended
 *
 * A request is taken before MPI is asked whether it ended: it may give the handle to another thread at once. Nothing
 * here is called with the lock of mpi_communicator.h held. */
#ifndef LB_CAPTURE_MPI_REQUEST_H
#define LB_CAPTURE_MPI_REQUEST_H

#include "mpi/mpi_call.h"

typedef struct lb_mpi_request lb_mpi_request;

/* Whether there are any. */
bool lb_mpi_request_any(void);
/* `request`: where MPI left the handle. A call of that handle that was not seen to end is abandoned: MPI has given the
 * handle again. */
void lb_mpi_request_put(const void *request, lb_mpi_call *call);
/* Of a request that is started again and again: the call that it stands for, of which nothing is kept but what is
 * given. */
void lb_mpi_request_put_persistent(const void *request, const lb_mpi_given *given);
/* Persistent: what is to be begun; false: it is none. */
bool lb_mpi_request_given(const void *request, lb_mpi_given *given);
/* … it was begun. */
void lb_mpi_request_started(const void *request, lb_mpi_call *call);

/* NULL: nothing is known of it. */
lb_mpi_request *lb_mpi_request_take(const void *request);
void lb_mpi_request_back(lb_mpi_request *request);
/* `message`: as MPI told it; NULL where it failed. */
void lb_mpi_request_done(lb_mpi_request *request, const lb_mpi_message *message);
/* It will not be heard of again. */
void lb_mpi_request_drop(lb_mpi_request *request);

#endif
