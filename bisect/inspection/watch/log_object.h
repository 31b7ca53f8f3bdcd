/* One line that is an object: JSON, and what is nearly JSON (NaN, Infinity, Python's single quotes, True). Flat:
 * objects inside give names joined by "/", lists are passed over. */
#ifndef LB_LOG_OBJECT_H
#define LB_LOG_OBJECT_H

#include "watch/log_field.h"

/* False: *why says what is wrong. */
bool lb_object_read(const lb_field_names *names, const char *line, size_t n, lb_watch_record *record, const char **why);

#endif
