/* The folder that a launched program records into: made private, never taken from another user, left tidy.
 *
 * Under mpirun or srun every process may be a `lastbit record` of its own: they share one folder. The first to come
 * makes it and leaves the name of the job inside; who comes later joins when the name is that of its own job.
 */
#ifndef LB_LAUNCH_FOLDER_H
#define LB_LAUNCH_FOLDER_H

#include <lastbit/error.h>

#define LB_LAUNCH_JOB "launch.job"

/* Creates `folder`, mode 0700; *absolute is its path for a program that may change directory (malloc'ed). When it is
 * there: LB_ERR_EXISTS, unless it belongs to this very job, or `force`: then the archives of the earlier run go, all
 * ranks of it, and nothing else does (LB_ERR_EXISTS when it holds anything else). */
lb_status lb_launch_folder_make(const char *folder, bool force, char **absolute, lb_err *err);

/* After the run: our notes go, and drafts that a kill left, and the folder with them when nothing was recorded. */
void lb_launch_folder_tidy(const char *folder);

/* After a run of which nothing is to be kept: the folder goes with all that is ours in it; nothing else does. */
void lb_launch_folder_drop(const char *folder);

/* One of several processes of a launcher that record into one folder. */
bool lb_launch_is_shared(void);
/* Not one of several that a launcher started, or the first of them: the one that speaks for all. */
bool lb_launch_is_first(void);

bool lb_launch_is_archive(const char *name); /* "rank-00000.tar" */

#endif
