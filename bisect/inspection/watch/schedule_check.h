/* A log's learning rate against the formula of its schedule. */
#ifndef LB_SCHEDULE_CHECK_H
#define LB_SCHEDULE_CHECK_H

#include <lastbit/watch.h>

/* Over the whole range or behind the warm-up: both are in use, and digits shown may not tell them apart. The one that
 * the log leaves last is its schedule. */
enum { LB_SCHEDULE_VARIANTS = 2 };

typedef struct lb_schedule_check {
    lb_watch_schedule schedule;
    bool fits[LB_SCHEDULE_VARIANTS];
    double base[LB_SCHEDULE_VARIANTS]; /* the rate that multiplier 1 stands for; 0: not known yet */
    int64_t stood;                     /* iterations that the schedule is behind, for skipped steps do not advance it */
    int64_t pending;                   /* skipped steps of which nothing has shown yet whether they did */
    int stands;                        /* 1, 0, -1: see lb_watch_report.schedule_stood */
    bool left;
    double before[2];          /* the last two rates */
    uint64_t seen, skipped_at; /* rates taken, and how many when a step was skipped */
} lb_schedule_check;

void lb_schedule_check_init(lb_schedule_check *check, const lb_watch_schedule *schedule);
/* True at the first step that leaves the schedule; *expected is then the multiplier that the formula gives, *found the
 * log's. */
bool lb_schedule_check_take(lb_schedule_check *check, const lb_watch_record *record, double *expected, double *found);
/* The step's update was skipped. */
void lb_schedule_check_skipped(lb_schedule_check *check);

#endif
