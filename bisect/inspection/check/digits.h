/* Where digits go: the part `digits` of a check. */
#ifndef LB_BISECT_DIGITS_H
#define LB_BISECT_DIGITS_H

#include "check/digit_list.h"
#include "check/proof_list.h"
#include "check/rounding_groups.h"
#include "check/update_log.h"

/* One recorded step of one rank. */
typedef struct lb_digits {
    lb_capture *capture;
    lb_program_view view;
    lb_moved_run run;
    lb_trained trained;
    lb_rounding_log log;
    lb_rounding_runs runs;
    lb_check_report *report;
    const char *path;
    lb_update_window *window; /* updates of the rank */
} lb_digits;

/* The same step of all ranks that were recorded. */
typedef struct lb_digits_step {
    lb_digits *ranks;
    uint32_t n;
    uint32_t limit; /* of runs */
} lb_digits_step;

/* One step; what exact runs tell is told of the first of those that the options name. `limit`: of runs for that.
 * `windows`: one for each rank of the capture, which gets the step's updates. `report`: of this step alone. */
lb_status lb_digits_of_step(lb_capture *capture, const lb_check_options *options, int64_t number, uint32_t limit,
                            lb_update_window *windows, lb_check_report *report, lb_err *err);
/* Behind the digits of earlier steps: numbers that leave the range of their dtype are found once on a line. `step`
 * keeps nothing. False: no memory. */
bool lb_digits_join(lb_check_report *whole, lb_check_report *step);
/* When the windows have all steps: what they say, and the rows of all steps in their order. */
lb_status lb_digits_tell_updates(lb_capture *capture, const lb_check_options *options, const lb_update_window *windows,
                                 lb_check_report *report, lb_err *err);

/* What lines of code cost, by exact runs of all ranks of the step together. */
lb_status lb_digits_table(lb_digits_step *step, lb_err *err);
/* Sums and differences that are small beside their terms: marks those whose exact numbers are wanted, and lists those
 * that show rounding behind the first run. */
bool lb_digits_watch_cancellations(lb_digits *digits);
bool lb_digits_cancellations(lb_digits *digits);
/* Angles that sines and cosines read. */
bool lb_digits_watch_phases(lb_digits *digits);
bool lb_digits_phases(lb_digits *digits);
/* Numbers that left the range of their dtype: casts, states of optimizers, gradients of f16. What is wanted is asked
 * for before the log is made. */
void lb_digits_want_ranges(lb_digits *digits);
bool lb_digits_ranges(lb_digits *digits);
/* How near choices are to a tie. */
void lb_digits_want_routers(lb_digits *digits);
bool lb_digits_routers(lb_digits *digits);

#endif
