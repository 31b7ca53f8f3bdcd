/* Lines by a pattern of the user's: PCRE2 whose named groups are fields. */
#ifndef LB_LOG_MATCH_H
#define LB_LOG_MATCH_H

#include "watch/log_field.h"

typedef struct lb_match_reader lb_match_reader;
/* LB_ERR_INVALID: the pattern is wrong, or none of its groups has the name of a field. */
lb_status lb_match_reader_new(const lb_field_names *names, const char *pattern, lb_match_reader **reader, lb_err *err);
void lb_match_reader_free(lb_match_reader *reader);
/* False: the line does not match (*why is NULL), or a group that should be a number is not. */
bool lb_match_read(lb_match_reader *reader, const char *line, size_t n, lb_watch_record *record, const char **why);

#endif
