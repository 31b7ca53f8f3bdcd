/* Bytes above the sources that wait for the end of their step: a level that does not fit whole is a level that was not
 * reached.
 *
 *     results, layer values ─▶ stage ─┬─▶ archive: the step has ended, and they fit
 *                                     └─▶ nothing: they outgrew what a step may take
 *
 * An archive only grows, so what is to be taken back must not get there. Each blob has the lowest level that keeps it;
 * one that several values share has the lowest of theirs. One thread at a time. */
#ifndef LB_FLIGHT_STAGE_H
#define LB_FLIGHT_STAGE_H

#include <lastbit/archive.h>
#include <lastbit/capture.h>

typedef struct lb_flight_stage lb_flight_stage;

lb_flight_stage *lb_flight_stage_new(void); /* NULL when out of memory */
void lb_flight_stage_free(lb_flight_stage *stage);
typedef struct lb_blob_bytes {
    lb_digest digest;
    lb_dtype dtype;
    const void *bytes;
    size_t size;
} lb_blob_bytes;
/* Copies the bytes. *fresh: they were not there. Of bytes that are there the level is lowered. */
lb_status lb_flight_stage_blob(lb_flight_stage *stage, const lb_blob_bytes *blob, lb_level level, bool *fresh,
                               lb_err *err);
/* Bytes that are there are kept by that level, too. */
void lb_flight_stage_lower(lb_flight_stage *stage, lb_digest digest, lb_level level);
bool lb_flight_stage_has(const lb_flight_stage *stage, lb_digest digest);
/* What blobs of that very level take. */
uint64_t lb_flight_stage_bytes(const lb_flight_stage *stage, lb_level level);
/* Forgets the blobs above that level. */
void lb_flight_stage_drop(lb_flight_stage *stage, lb_level above);
/* Calls `put` for each blob, in the order in which they came. */
lb_status lb_flight_stage_each(const lb_flight_stage *stage,
                               lb_status (*put)(void *context, lb_digest digest, lb_dtype dtype, const void *bytes,
                                                size_t size, lb_err *err),
                               void *context, lb_err *err);

#endif
