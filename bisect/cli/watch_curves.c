/* See watch_curves.h. */
#include "cli/watch_curves.h"

#include "command/command_line.h"

#include <math.h>

static double number_of(const lb_watch_record *r, lb_watch_field field)
{
    return lb_watch_has(r, field) ? r->number[field] : NAN;
}

static lb_watch_point point_of(const lb_watch_record *r)
{
    const bool given[] = {lb_watch_has(r, LB_WATCH_gnorm), lb_watch_has(r, LB_WATCH_loss)};
    const double norm = number_of(r, LB_WATCH_gnorm), loss = number_of(r, LB_WATCH_loss);
    lb_watch_point p = {.step = r->step,
                        .value = {loss, norm, number_of(r, LB_WATCH_tok_sec), number_of(r, LB_WATCH_lr)}};
    if (isnan(p.value[3])) p.value[3] = number_of(r, LB_WATCH_lrm);
    const bool broken = (given[0] && !isfinite(norm)) || (given[1] && !isfinite(loss));
    p.loudness = broken ? INFINITY : given[0] ? norm : given[1] ? loss : 0;
    return p;
}

/* Twice as many steps to a point: of each two the louder one. */
static void halve(lb_watch_curves *c)
{
    for (uint32_t i = 0; i < LB_WATCH_POINTS / 2; i++) {
        const lb_watch_point *pair = &c->points[2 * i];
        c->points[i] = pair[pair[1].loudness > pair[0].loudness];
    }
    c->n = LB_WATCH_POINTS / 2;
    c->each *= 2;
}

/* A step whose numbers stand on several lines is one point. */
static bool merge(lb_watch_point *into, const lb_watch_point *p)
{
    if (into->step != p->step) return false;
    for (int k = 0; k < LB_WATCH_CURVES; k++)
        if (isnan(into->value[k])) into->value[k] = p->value[k];
    into->loudness = fmax(into->loudness, p->loudness);
    return true;
}

void lb_watch_curves_take(lb_watch_curves *c, const lb_watch_record *record)
{
    const lb_watch_point p = point_of(record);
    if (!c->each) c->each = 1;
    if (c->in_open ? merge(&c->open, &p) : c->n && merge(&c->points[c->n - 1], &p)) return;
    if (!c->in_open++ || p.loudness > c->open.loudness) c->open = p;
    if (c->in_open < c->each) return;
    c->points[c->n++] = c->open, c->in_open = 0;
    if (c->n == LB_WATCH_POINTS) halve(c);
}

json_t *lb_watch_curves_json(const lb_watch_curves *c)
{
    static const char *const names[LB_WATCH_CURVES] = {"loss", "grad_norm", "throughput", "lr"};
    const uint32_t n = c->n + (c->in_open > 0);
    json_t *all = json_object(), *steps = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(steps, json_integer(i < c->n ? c->points[i].step : c->open.step));
    json_object_set_new(all, "step", steps);
    for (int k = 0; k < LB_WATCH_CURVES; k++) {
        json_t *list = json_array();
        bool any = false;
        for (uint32_t i = 0; i < n; i++) {
            const double x = (i < c->n ? &c->points[i] : &c->open)->value[k];
            any |= !isnan(x);
            json_array_append_new(list, lb_command_json_number(x));
        }
        if (any) json_object_set(all, names[k], list);
        json_decref(list);
    }
    return all;
}
