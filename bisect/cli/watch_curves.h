/* The curves of a log for `watch --json`: at most a few thousand steps of it. Of neighbours the loudest stays, so that
 * no spike is lost: a step that is not finite, else the largest gradient norm, else the largest loss.
 */
#ifndef LB_WATCH_CURVES_H
#define LB_WATCH_CURVES_H

#include <lastbit/json_text.h>
#include <lastbit/watch.h>

enum { LB_WATCH_POINTS = 4096, LB_WATCH_CURVES = 4 }; /* loss, grad_norm, throughput, lr */

typedef struct lb_watch_point {
    int64_t step;
    double value[LB_WATCH_CURVES]; /* NaN: none */
    double loudness;
} lb_watch_point;

typedef struct lb_watch_curves {
    lb_watch_point points[LB_WATCH_POINTS], open; /* open: the loudest of the steps that will be one point */
    uint32_t n;
    uint64_t each, in_open; /* steps per point */
} lb_watch_curves;

void lb_watch_curves_take(lb_watch_curves *curves, const lb_watch_record *record);
/* {"step": […], "loss": […], …}: curves that the log has; null where a step lacks one. */
json_t *lb_watch_curves_json(const lb_watch_curves *curves);

#endif
