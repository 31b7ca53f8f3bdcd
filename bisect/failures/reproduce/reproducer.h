/* Writing what a dependency slice keeps as a capture of its own. */
#ifndef LB_BISECT_REPRODUCER_H
#define LB_BISECT_REPRODUCER_H

#include "reproduce/dependency_slice.h"

#include <lastbit/output.h>

/* Replays the window for the bytes that the dependency slice's sources need and writes the folder session->draft anew.
 * What it says of its values (digests, statistics) is what it computes itself when it is replayed. LB_ERR_NOT_CAPTURED
 * when bytes lack. */
lb_status lb_reproducer_write(lb_dependency_slice *slice, lb_err *err);
/* Whole steps from first_step on, of all ranks: sources with their recorded bytes. */
lb_status lb_reproducer_write_steps(lb_bisect_session *session, int64_t first_step, lb_err *err);

/* A draft of the folder options->reproducer; LB_ERR_EXISTS where that is there and may not be replaced, or is the
 * capture itself. */
lb_status lb_reproducer_open(const lb_bisect_session *session, lb_output_folder **folder, lb_err *err);
/* Ops without sources and views, and bytes on disk. */
lb_status lb_reproducer_size(const char *path, uint64_t *ops, uint64_t *bytes, lb_err *err);

#endif
