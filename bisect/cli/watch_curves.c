/* See watch_curves.h. */
#include "cli/watch_curves.h"

#include "command/command_line.h"

#include <math.h>

static double number_of(const lb_watch_record *record, lb_watch_field field)
{
    return lb_watch_has(record, field) ? record->number[field] : NAN;
}

static lb_watch_point point_of(const lb_watch_record *record)
{
    const bool given[] = {lb_watch_has(record, LB_WATCH_gnorm), lb_watch_has(record, LB_WATCH_loss)};
    const double norm = number_of(record, LB_WATCH_gnorm), loss = number_of(record, LB_WATCH_loss);
    lb_watch_point point = {.step = record->step,
                            .value = {loss, norm, number_of(record, LB_WATCH_tok_sec), number_of(record, LB_WATCH_lr)}};
    if (isnan(point.value[3])) point.value[3] = number_of(record, LB_WATCH_lrm);
    const bool broken = (given[0] && !isfinite(norm)) || (given[1] && !isfinite(loss));
    point.loudness = broken ? INFINITY : given[0] ? norm : given[1] ? loss : 0;
    return point;
}

/* Twice as many steps to a point: of each two the louder one. */
static void halve(lb_watch_curves *curves)
{
    for (uint32_t i = 0; i < LB_WATCH_POINTS / 2; i++) {
        const lb_watch_point *pair = &curves->points[2 * i];
        curves->points[i] = pair[pair[1].loudness > pair[0].loudness];
    }
    curves->n = LB_WATCH_POINTS / 2;
    curves->each *= 2;
}

/* A step whose numbers stand on several lines is one point. */
static bool merge(lb_watch_point *into, const lb_watch_point *point)
{
    if (into->step != point->step) return false;
    for (int k = 0; k < LB_WATCH_CURVES; k++)
        if (isnan(into->value[k])) into->value[k] = point->value[k];
    into->loudness = fmax(into->loudness, point->loudness);
    return true;
}

void lb_watch_curves_take(lb_watch_curves *curves, const lb_watch_record *record)
{
    const lb_watch_point point = point_of(record);
    if (!curves->each) curves->each = 1;
    if (curves->in_open ? merge(&curves->open, &point) : curves->n && merge(&curves->points[curves->n - 1], &point))
        return;
    if (!curves->in_open++ || point.loudness > curves->open.loudness) curves->open = point;
    if (curves->in_open < curves->each) return;
    curves->points[curves->n++] = curves->open, curves->in_open = 0;
    if (curves->n == LB_WATCH_POINTS) halve(curves);
}

json_t *lb_watch_curves_json(const lb_watch_curves *curves)
{
    static const char *const names[LB_WATCH_CURVES] = {"loss", "grad_norm", "throughput", "lr"};
    const uint32_t n = curves->n + (curves->in_open > 0);
    json_t *all = json_object(), *steps = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(steps, json_integer(i < curves->n ? curves->points[i].step : curves->open.step));
    json_object_set_new(all, "step", steps);
    for (int k = 0; k < LB_WATCH_CURVES; k++) {
        json_t *list = json_array();
        bool any = false;
        for (uint32_t i = 0; i < n; i++) {
            const double x = (i < curves->n ? &curves->points[i] : &curves->open)->value[k];
            any |= !isnan(x);
            json_array_append_new(list, lb_command_json_number(x));
        }
        if (any) json_object_set(all, names[k], list);
        json_decref(list);
    }
    return all;
}
