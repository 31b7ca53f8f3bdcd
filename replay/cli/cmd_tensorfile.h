/* What `lastbit replay --write` leaves: computed values as one safetensors file, which Python and lastbit itself read.
 *
 * Tensors are named stepS.rankR.opI.N: result N (results first, then written values) of op I of the recorded program, in the
 * dtype in which replay held it. The metadata tells of every stepS.rankR.opI what it is, and of named values their names (a
 * gradient's is grad:PARAMETER).
 * Bytes go to FILE.part first, since the header with their places stands before them. */
#ifndef LB_CMD_TENSORFILE_H
#define LB_CMD_TENSORFILE_H

#include <lastbit/replay.h>

typedef struct lb_tensorfile lb_tensorfile;

lb_status lb_tensorfile_open(const char *path, lb_tensorfile **file, lb_err *err);
/* All computed tensors of an event; an error is kept and reported by close. */
void lb_tensorfile_add(lb_tensorfile *file, const lb_event *event);
/* Writes the header and gives the file its name; removes the parts when `keep` is false or anything failed. NULL is fine. */
lb_status lb_tensorfile_close(lb_tensorfile *file, bool keep, lb_err *err);

#endif
