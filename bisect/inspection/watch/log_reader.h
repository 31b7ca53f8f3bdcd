/* How a source that is not a file of lines (TensorBoard's events, a capture, MLflow's folder) hands records to a
 * log. */
#ifndef LB_LOG_READER_H
#define LB_LOG_READER_H

#include "watch/log_field.h"

/* Numbers a record without a step, refuses negative ones, gives it to the sink. */
void lb_watch_log_give(lb_watch_log *log, lb_watch_record *record);
void lb_watch_log_is(lb_watch_log *log, lb_watch_format format);
lb_field_names *lb_watch_log_names(lb_watch_log *log);
/* A checkpoint is known to be there. */
void lb_watch_log_give_checkpoint(lb_watch_log *log, int64_t step, const char *path);
/* Whether what has been read is no document that goes on. */
bool lb_watch_log_is_whole(const lb_watch_log *log);
/* The file was replaced: what has come of its last line is given up, and a table's header comes again. */
void lb_watch_log_restart(lb_watch_log *log);

#endif
