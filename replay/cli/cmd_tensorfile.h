/* What `lastbit replay --write` leaves: computed values as one safetensors file, which Python and lastbit itself read.
 *
 * Tensors are named stepS.rankR.opI.N: result N (results first, then written values) of op I of the recorded program,
 * in the dtype in which replay held it. The metadata tells of every stepS.rankR.opI what it is, and of named values
 * their names (a gradient's is grad:PARAMETER). The file is complete or not there: what was called so before stays
 * until then. Its header stands before the tensors and is known after them, so that they lie in a file without a name
 * meanwhile. */
#ifndef LB_CMD_TENSORFILE_H
#define LB_CMD_TENSORFILE_H

#include <lastbit/output.h>
#include <lastbit/replay.h>

typedef struct lb_tensorfile lb_tensorfile;

/* `capture`: what is replayed, which may not be written over. */
lb_status lb_tensorfile_open(const char *path, const char *capture, lb_tensorfile **file, lb_err *err);
/* All computed tensors of an event; an error is kept and reported by close. */
void lb_tensorfile_add(lb_tensorfile *file, const lb_event *event);
/* Puts the file in place, unless `keep` is false or anything failed. NULL is fine. */
lb_status lb_tensorfile_close(lb_tensorfile *file, bool keep, lb_err *err);

#endif
