/* The flight recorder's memory: the last K…2K steps with their bytes, written to an archive when something goes wrong.
 *
 * Time is cut into generations of K steps; the first step of each is a base and carries the bytes of every source, the
 * others only of those that a chained replay cannot carry over (batches, random draws, unseen writes). Two generations
 * are held. Blobs are shared by digest and freed with the last generation that needs them. */
#ifndef LB_FLIGHT_RING_H
#define LB_FLIGHT_RING_H

#include <lastbit/archive.h>

typedef struct lb_flight_ring lb_flight_ring;

lb_flight_ring *lb_flight_ring_new(uint32_t steps, uint64_t max_bytes); /* NULL when out of memory */
void lb_flight_ring_free(lb_flight_ring *ring);
/* True when the step that begins now is a base. Drops the generation before the last when it is. */
bool lb_flight_ring_step(lb_flight_ring *ring);
/* From now on each step goes to a file of the folder too, as it ends (see lastbit/maintenance.h); files that cannot be
 * written are given up, and lb_ring_files says why. `sync`: lb_output_sync. False when out of memory. */
bool lb_flight_ring_keep_files(lb_flight_ring *ring, const char *folder, int32_t rank, uint8_t sync);
/* NULL: they are written, or not wanted. */
const char *lb_ring_files_failed(const lb_flight_ring *ring);
/* Copies the bytes. LB_ERR_LIMIT when the ring would outgrow its memory. */
lb_status lb_flight_ring_blob(lb_flight_ring *ring, lb_digest digest, lb_dtype dtype, const void *bytes, size_t size,
                              lb_err *err);
bool lb_flight_ring_has_blob(const lb_flight_ring *ring, lb_digest digest);
/* Lets go of the step at hand, which becomes a base. */
void lb_flight_ring_drop_step(lb_flight_ring *ring);
/* Takes over the program. */
lb_status lb_flight_ring_program(lb_flight_ring *ring, lb_program *program, lb_err *err);
/* Writes everything, oldest first, with a commit after each step, and empties the ring. */
lb_status lb_flight_ring_flush(lb_flight_ring *ring, lb_writer *writer, lb_err *err);
uint64_t lb_flight_ring_bytes(const lb_flight_ring *ring);

#endif
