/* Records on their way into an archive while the host goes on: queued in order, written by a thread.
 *
 * Bytes of sources are overwritten soon after they were read (an optimizer's moments by the very op that reads them),
 * so they are copied, into a ring of bytes that is made once: copying is three times as fast as write(). A step's
 * commit may still be under way while the next step runs, but no longer: the one after it waits. No other thread may
 * use the writer while anything is under way: lb_write_queue_drain before every other call of it. One thread at a time
 * may call these functions, but for lb_write_queue_drain. In a forked child neither the queue nor its writer may be
 * touched, but lb_write_queue_free says so. */
#ifndef LB_WRITE_QUEUE_H
#define LB_WRITE_QUEUE_H

#include "flight/flight_stage.h"

#include <lastbit/archive.h>
#include <lastbit/program.h>

typedef struct lb_write_queue lb_write_queue;

/* `room_bytes`: of the ring. NULL when there is no memory, or no thread to be had. */
lb_write_queue *lb_write_queue_new(lb_writer *writer, size_t room_bytes);
/* What is under way is written first. False in a forked child: nothing was freed, and the writer must be left alone. */
bool lb_write_queue_free(lb_write_queue *queue);
/* As lb_writer_blob, but a failure is reported by a later call, and by every one after that. Waits for room. */
lb_status lb_write_queue_blob(lb_write_queue *queue, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                              lb_err *err);
/* All blobs of the stage, which is the queue's from here on, whatever the status; their bytes take no room of the
 * ring. */
lb_status lb_write_queue_stage(lb_write_queue *queue, lb_flight_stage *stage, lb_err *err);
/* Whether it was given this blob. */
bool lb_write_queue_has(lb_write_queue *queue, lb_digest digest);
/* As lb_writer_program; the program is the queue's from here on, whatever the status. */
lb_status lb_write_queue_program(lb_write_queue *queue, lb_program *program, lb_err *err);
/* As lb_writer_table, with copies of both texts. */
lb_status lb_write_queue_table(lb_write_queue *queue, const char *name, const char *json, lb_err *err);
/* As lb_writer_commit. Waits for the commit before this one. */
lb_status lb_write_queue_commit(lb_write_queue *queue, lb_err *err);
/* As lb_writer_turn: what was given before is in the archive that is closed, and is given again for the next one. */
lb_status lb_write_queue_turn(lb_write_queue *queue, const char *next, lb_err *err);
/* Everything that was given is in the archive, or the status says why not. */
lb_status lb_write_queue_drain(lb_write_queue *queue, lb_err *err);

#endif
