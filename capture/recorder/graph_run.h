/* The state while one run of a captured graph is recorded: from when its tape is passed to the recorder again until the
 * host says whether the launch succeeded. */
#ifndef LB_GRAPH_RUN_H
#define LB_GRAPH_RUN_H

#include "recorder/graph_tape.h"
#include "recorder/op_site.h"

#include <pthread.h>

typedef struct lb_graph_run {
    lb_tape *tape;    /* NULL: none runs */
    pthread_t thread; /* that passes it */
    lb_hash by_key;   /* rows of the tape's storages, by their keys in this run */
    bool makes;       /* in the second half of an op */
    bool reads_older; /* what is read is what lies there before the run */
} lb_graph_run;

/* Is this thread recording a run? */
bool lb_graph_is_running(const lb_graph_run *run);
/* Is what was recorded of the storage newer than its bytes, which the run has yet to write? */
bool lb_graph_is_ahead(const lb_graph_run *run, const lb_tracked *storage);
/* The slot that measures the window in this run; NULL: none does. */
const lb_taped_slot *lb_graph_slot(const lb_graph_run *run, const lb_tracked *storage, uint64_t hash);
/* Has the bytes of a value that the run has yet to write kept for that purpose as well, if its slot copies them. */
lb_status lb_graph_keep(lb_recorder *recorder, const lb_op_site *at, const lb_host_tensor *seen,
                        lb_keep_purpose purpose, lb_err *err);
/* Notes that such bytes were not copied: the step does not reach that level. */
void lb_graph_left(lb_recorder *recorder, lb_keep_purpose purpose);

#endif
