/* Angles that sines and cosines read, beside the exact ones: a phase that is off by a tenth turns what it turns
 * elsewhere, however many digits it has. See digits.h. */
#include "check/digits.h"

#include "pair/op_kind.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Radians. In f32 positions up to 2^20 are off by less. */
static const double OFF = 0.1;

static bool is_turn(const lb_program *p, uint32_t op)
{
    static const char *const names[] = {"aten::cos", "aten::sin", "aten::polar"};
    return p->ops[op].phase == LB_PHASE_FORWARD && lb_op_name_among(p, &p->ops[op], names, 3) >= 0;
}

/* The angle that it reads, as the result that it lies in; LB_NONE. */
static uint32_t angle_of(const lb_digits *d, uint32_t op)
{
    const lb_program *p = d->run.program;
    const uint32_t at = strncmp(lb_op_name(p, &p->ops[op]), "aten::polar", 11) == 0;
    if (p->ops[op].args <= at || lb_op_args(p, &p->ops[op])[at].tag != LB_ARG_VALUE) return LB_NONE;
    return lb_value_graph_whole(&d->run.graph, lb_op_args(p, &p->ops[op])[at].u.value);
}

bool lb_digits_watch_phases(lb_digits *d)
{
    const lb_program *p = d->run.program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const uint32_t angle = is_turn(p, i) ? angle_of(d, i) : LB_NONE;
        if (angle != LB_NONE) d->runs.watch[angle] = 1;
    }
    return true;
}

typedef struct walk {
    const lb_digits *d;
    uint8_t *seen;  /* per value */
    uint32_t found; /* op */
    double largest;
} walk;

/* Of all that an angle is made of, what is rounded most; of two alike the one behind. */
static void go_back(walk *w, uint32_t v)
{
    const lb_value_graph *g = &w->d->run.graph;
    const uint32_t op = g->giver[v];
    if (w->seen[v]) return;
    w->seen[v] = 1;
    const lb_rounding_size *s = &w->d->log.sizes[v];
    if (g->given[v] && op != LB_NONE && s->numbers && s->apart.largest > w->largest)
        w->largest = s->apart.largest, w->found = op;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) go_back(w, g->preds[k]);
}

static bool add_finding(const lb_digits *d, uint32_t angle, uint32_t turn)
{
    const lb_program *p = d->run.program;
    walk w = {.d = d, .seen = calloc((size_t)p->n_values + 1, 1), .found = LB_NONE};
    if (!w.seen) return false;
    go_back(&w, angle);
    free(w.seen);
    const uint32_t op = w.found == LB_NONE ? turn : w.found;
    const lb_code_line line = lb_op_line(p, &p->ops[op]);
    for (uint32_t i = 0; i < d->report->n_findings; i++)
        if (d->report->findings[i].kind == LB_CHECK_ROUNDED && d->report->findings[i].line.number == line.number)
            return true;
    lb_check_finding *f = lb_proof_list_add(d->report, LB_CHECK_ROUNDED, p);
    if (!f) return false;
    lb_proof_list_place(f, p, op, LB_NONE, d->path);
    f->effect = d->runs.apart[angle].largest;
    snprintf(
        f->message, sizeof f->message,
        "the angles that %s reads are wrong by up to %.2g rad: positions times frequencies were rounded, here by up "
        "to %.2g; computed in f32 they are right",
        lb_op_name(p, &p->ops[turn]), d->runs.apart[angle].largest, w.largest);
    return true;
}

bool lb_digits_phases(lb_digits *d)
{
    const lb_program *p = d->run.program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const uint32_t angle = is_turn(p, i) ? angle_of(d, i) : LB_NONE;
        if (angle != LB_NONE && d->runs.apart[angle].largest > OFF && !add_finding(d, angle, i)) return false;
    }
    return true;
}
