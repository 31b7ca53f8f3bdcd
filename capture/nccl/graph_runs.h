/* Runs of captured calls on their way to the writer: each becomes a call of its own, in its place among the calls that
 * no graph made.
 *
 * A run is found some time after it ended (graph_copy.h). Where it belongs its ticket says: a call on a stream notes
 * how many tickets were drawn when the stream came to it. So calls and runs come in the order in which a stream, or
 * streams that wait for each other, had them, which is one order on all members of a communicator; their numbers and
 * steps are counted in that order, and not in that in which the host called. All functions but lb_graph_runs_begin and
 * _end are the writer's alone. */
#ifndef LB_CAPTURE_GRAPH_RUNS_H
#define LB_CAPTURE_GRAPH_RUNS_H

#include "nccl_call.h"

/* Around a call that is captured. False: its runs cannot be seen. The books are not locked. */
bool lb_graph_runs_begin(lb_nccl_call *call);
bool lb_graph_runs_end(lb_nccl_call *call);

/* The books are not locked in any of these. */
void lb_graph_runs_collect(void);
/* Which calls wait is looked at after lb_graph_runs_collect: whatever came before a run that was found is among them,
 * or written. Of each device the one that comes first is kept. Until its stream comes to a call that is not known; what
 * came before it has been found by the first collection after that. */
enum { LB_GRAPH_FLOORS = 16 };
typedef struct lb_graph_floors {
    int n;
    struct {
        const lb_graph_device *device;
        uint64_t tickets; /* that were drawn before it */
        lb_nccl_call *call;
    } of[LB_GRAPH_FLOORS];
} lb_graph_floors;
void lb_graph_runs_look(lb_graph_floors *floors, lb_nccl_call *call);
/* The next run in order that comes before these, the caller's to free; NULL: none for now. NULL for floors: any, at the
 * end. */
lb_nccl_call *lb_graph_runs_next(const lb_graph_floors *floors);
/* Whether all that comes before floor `i` has been found, and given. */
bool lb_graph_runs_reached(const lb_graph_floors *floors, int i);
/* A captured call of which no further run comes, the caller's to free; NULL: none. */
lb_nccl_call *lb_graph_runs_take_gone(void);
/* Its number among those of its communicator, and its step, now that it is written. */
void lb_graph_runs_number(lb_nccl_call *call);

void lb_graph_runs_drop(void); /* in a forked child */

#endif
