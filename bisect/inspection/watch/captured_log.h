/* A capture as a log: the scalars that the program recorded, a record a step and rank. */
#ifndef LB_CAPTURED_LOG_H
#define LB_CAPTURED_LOG_H

#include <lastbit/archive.h>

#include "watch/log_field.h"

/* Gives the steps above *last, which is set to the last one given. Loss is the mean of those of the step
 * (micro-batches), of any other scalar the last one counts; tokens are the digests of integer batches. */
lb_status lb_captured_log_read(lb_watch_log *log, const char *path, int64_t *last, lb_err *err);

#endif
