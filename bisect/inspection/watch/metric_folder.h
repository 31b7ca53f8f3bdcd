/* MLflow's folder of a run: a file for each metric ("metrics/train/loss"), a line "TIMESTAMP VALUE STEP" for each
 * number. */
#ifndef LB_METRIC_FOLDER_H
#define LB_METRIC_FOLDER_H

#include <lastbit/watch.h>

/* Whether a path is such a folder, the one above it, or one file of it. */
bool lb_metric_folder_is(const char *path);
/* Gives all of it to the log in the order of steps; numbers of names that are not known are passed over. */
lb_status lb_metric_folder_read(lb_watch_log *log, const char *path, lb_err *err);

#endif
