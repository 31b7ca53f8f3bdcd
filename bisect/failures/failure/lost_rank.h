/* A rank that is gone: nothing closed its recording, and it ends before steps that another rank, whose recording was
 * closed, came to.
 *
 *      rank 0   step 5   step 6   step 7   closed
 *      rank 1   step 5   step 6                       ◀ killed, or its machine is
 *
 * Whether the others had called a collective by then, which fails for want of a member, is a matter of milliseconds.
 * Where no recording is closed the run goes on, or was ended as a whole. */
#ifndef LB_BISECT_LOST_RANK_H
#define LB_BISECT_LOST_RANK_H

#include <lastbit/archive.h>

typedef struct lb_lost_ranks {
    int64_t step;   /* the first that one of them lacks */
    int32_t *ranks; /* malloc'ed; NULL: none is lost */
    uint32_t n;
    char *message;
} lb_lost_ranks;

lb_status lb_lost_ranks_find(lb_capture *capture, lb_lost_ranks *lost, lb_err *err);
void lb_lost_ranks_release(lb_lost_ranks *lost);

/* Has its recording an end? One that is still written, or was cut off, has none. */
bool lb_lost_rank_was_closed(lb_capture *capture, int32_t rank);

#endif
