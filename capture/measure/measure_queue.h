/* Values that are measured while the host goes on: a queue, and a thread that works it off from the oldest.
 *
 *     host      add ─▶ … ops … ─▶ finish(what the next op writes to) ─▶ remove_oldest
 *     helper         takes parts of the oldest work that has some left
 *
 * Work is cut into parts (see measure.h) that any free thread takes: a host that must wait for a value does what is
 * left of it, and waits for no more than the part that the helper has begun. The bytes stay the caller's:
 * they must stay as they are until lb_measure_queue_is_done. One thread at a time may call these functions; the helper
 * calls nothing of the host. In a forked child, where there is no helper, a queue may only be freed. */
#ifndef LB_MEASURE_QUEUE_H
#define LB_MEASURE_QUEUE_H

#include "measure/measure.h"

#include <stdatomic.h>

typedef struct lb_measure_queue lb_measure_queue;

typedef struct lb_work {
    lb_measuring item; /* its `out` is set when the work is done */
    /* The queue's own: */
    struct lb_work *next;
    lb_measure_part *parts;
    size_t n, taken, left; /* parts; taken so far; not yet run to their end */
    uint64_t bytes;
    atomic_bool done;
} lb_work;

lb_measure_queue *lb_measure_queue_new(void); /* NULL when there is no memory, or no thread to be had */
/* Waits for the part at hand; what was not begun is left undone. False in a forked child: then nothing was freed, for
 * the parent's threads may have been anywhere. */
bool lb_measure_queue_free(lb_measure_queue *queue);
/* `work` belongs to the caller and stays where it is until it has been removed. False when out of memory. */
bool lb_measure_queue_add(lb_measure_queue *queue, lb_work *work);
/* Returns when it is done. */
void lb_measure_queue_finish(lb_measure_queue *queue, lb_work *work);
bool lb_measure_queue_is_done(const lb_work *work);
lb_work *lb_measure_queue_oldest(const lb_measure_queue *queue); /* NULL: the queue is empty */
/* The oldest, which is done, leaves the queue. */
void lb_measure_queue_remove_oldest(lb_measure_queue *queue);
/* Of all values in the queue. */
uint64_t lb_measure_queue_bytes(const lb_measure_queue *queue);

#endif
