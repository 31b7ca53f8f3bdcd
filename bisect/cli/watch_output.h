/* What `lastbit watch` prints: lines as things happen, and the report in words or as JSON. */
#ifndef LB_WATCH_OUTPUT_H
#define LB_WATCH_OUTPUT_H

#include "cli/watch_curves.h"

#include <stdio.h>

typedef struct lb_watched_log {
    const char *path;
    lb_watch *watch;
    lb_watch_counts counts;
    lb_watch_curves *curves; /* NULL: not asked for */
} lb_watched_log;

/* What all logs together show; of one log nothing. */
typedef struct lb_watch_between {
    lb_watch_alarm *alarms;
    uint32_t n_alarms;
    lb_watch_finding finding;
} lb_watch_between;

/* Half of the lines, behind the first that shows the format, could not be read. */
/* Not one row with a number in it: an empty file, or none that is a log. A capture is read by its records, and may hold
 * no step. */
bool lb_watch_is_foreign(const lb_watched_log *log, const lb_watch_report *report);
bool lb_watch_is_unreadable(const lb_watch_counts *counts);
/* "found", "clean", or "undecided": there was nothing to judge, or half of it could not be read. */
const char *lb_watch_verdict(const lb_watched_log *log, const lb_watch_report *report);
void lb_watch_print_alarm(FILE *out, const lb_watch_alarm *alarm);
void lb_watch_print_hold(FILE *out, const lb_watch_hold *hold);
void lb_watch_print_report(const lb_watched_log *logs, uint32_t n, const lb_watch_between *between);
/* One alarm; `log`: NULL or where it is from. */
json_t *lb_watch_alarm_json(const lb_watch_alarm *alarm, const char *log);
json_t *lb_watch_json(const lb_watched_log *logs, uint32_t n, const lb_watch_between *between);

#endif
