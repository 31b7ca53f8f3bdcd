/* What counts as a failure, and finding the first one: in a recording's statistics, or in a replay as it runs.
 *
 * Watched, in a program analysed once (lb_watch), are the ops whose results are
 *   gradients   of parameters, where they leave autograd, before a collective or a sanitiser (nan_to_num, clamp, where
 *               or masked_fill by isfinite) sees them
 *   the loss    what backward starts from
 *   parameters and optimizer state, where the optimizer writes them
 *   outputs     of the outermost modules; in a step with a backward those from which something is computed that leaves
 *               it
 * Not finite is a failure there and nowhere else: masks hold -inf by design, and an output of -inf alone is a mask too.
 * Gross magnitudes are those of loss and gradients without a loss scaler's scale; a step that it skips has none. A loss
 * scaler is there to meet gradients that are not finite and to skip their step: they are a warning then, unless it
 * skips every one of several steps.
 *
 * Gross magnitude is a failure only in a window without a non-finite one, and against the window's own past: the loss
 * above 10 times its largest, the gradient norm above 1000 times its largest (2 steps or more), a parameter above 10^4
 * times its largest, what it held before its first update included. From 20 steps on: loss above twice its mean,
 * gradient norm above 100 times its old EMA (alpha 0.01).
 *
 * Predicates:  WHAT[>NUMBER][@SELECTOR]  with WHAT one of
 *   nonfinite   a result that is NaN or infinite     max>X  a result with an element above X in magnitude
 *   loss>X      the loss, not finite counts           grad_norm>X  of one rank's local gradient
 */
#ifndef LB_BISECT_FAILURE_H
#define LB_BISECT_FAILURE_H

#include <lastbit/bisect.h>

enum lb_watch_bits {
    LB_WATCH_GRADIENT = 1 << 0,
    LB_WATCH_LOSS = 1 << 1,
    LB_WATCH_PARAMETER = 1 << 2,
    LB_WATCH_STATE = 1 << 3,
    LB_WATCH_OUTPUT = 1 << 4,
    LB_WATCH_PREDICATE = 1 << 5,
    LB_WATCH_EVIDENCE = 1 << 6 /* not judged: by reading a value it shows that it is a gradient or a loss */
};

typedef struct lb_failure_monitor lb_failure_monitor;

typedef enum lb_failure_monitor_mode {
    LB_MONITOR_NONFINITE,
    LB_MONITOR_GROSS,
    LB_MONITOR_PREDICATE
} lb_failure_monitor_mode;

/* Analyses every program of the window. LB_ERR_INVALID for a bad predicate. */
lb_status lb_failure_monitor_new(lb_capture *capture, int64_t first_step, int64_t last_step, const char *predicate,
                                 lb_failure_monitor **monitor, lb_err *err);
void lb_failure_monitor_free(lb_failure_monitor *monitor);

/* Forgets what it saw. Local values of ranks with excluded[i] (as listed by lb_capture_ranks; may be NULL) are not
 * judged. */
void lb_failure_monitor_reset(lb_failure_monitor *monitor, lb_failure_monitor_mode mode, const bool *excluded);
/* Judges one op's computed results; returns false once there is a failure and every rank is past it (or `all` is
 * false). */
bool lb_failure_monitor_op(lb_failure_monitor *monitor, const lb_event *event);
void lb_failure_monitor_step_end(lb_failure_monitor *monitor, int32_t rank, int64_t step);
/* The first failure in order of steps; kind LB_FAILURE_NONE when there is none. */
const lb_failure *lb_failure_monitor_failure(const lb_failure_monitor *monitor);

/* What it knows between two steps, under a number, and back to it: a replay that resumes there is judged as if it had
 * begun at the first step. Kept until lb_failure_monitor_forget; LB_ERR_NOT_FOUND for a number that nothing was kept
 * under. */
lb_status lb_failure_monitor_keep(lb_failure_monitor *monitor, uint32_t number, lb_err *err);
lb_status lb_failure_monitor_resume(lb_failure_monitor *monitor, uint32_t number, lb_err *err);
void lb_failure_monitor_forget(lb_failure_monitor *monitor);

/* Watched results up to that step that could not be judged: nothing had computed them, their bytes (or statistics)
 * lack. And those that were. */
uint64_t lb_failure_monitor_blind(const lb_failure_monitor *monitor, int64_t last_step);
uint64_t lb_failure_monitor_judged(const lb_failure_monitor *monitor);

/* Go on after the first failure to the end of its step, so that every rank shows its own. */
void lb_failure_monitor_collect(lb_failure_monitor *monitor, bool all);

/* The same on recorded statistics, without running anything. */
lb_status lb_failure_monitor_recording(lb_failure_monitor *monitor, lb_failure_monitor_mode mode, lb_err *err);

/* What watched op rows of that program are, lb_watch_bits per op. NULL: no such program in the window. */
const uint8_t *lb_failure_monitor_marks(const lb_failure_monitor *monitor, int32_t rank, int64_t step);

/* "": none; otherwise a sentence, e.g. about a loss scaler's skipped step. */
const char *lb_failure_monitor_warning(const lb_failure_monitor *monitor);

#endif
