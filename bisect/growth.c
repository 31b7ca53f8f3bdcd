/* Where numbers grew too large while they stayed finite: see growth.h. */
#include "growth.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MUCH = 30, GROSS = 10000 }; /* times, from one step to the next; as failure.h has it of a parameter */

typedef struct growth {
    const lb_trace_row *row;
    uint32_t op;
    double before, now;
    const lb_group *group;
    const lb_group_param *param;
} growth;

/* Largest magnitude of a parameter when the step began: what the step before left, or what the recording held. */
static double before_step(const lb_trace_row *row, int64_t storage)
{
    const lb_program *p = row->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (strcmp(lb_op_name(p, &p->ops[i]), "lb::source") || !p->ops[i].results) continue;
        const lb_value *v = &p->values[lb_op_results(p, &p->ops[i])[0]];
        if (v->storage != storage || v->statistics == LB_NONE) continue;
        const lb_statistics *s = &p->statistics[v->statistics];
        return s->elements > lb_statistics_nonfinite(s) ? fmax(fabs(s->min), fabs(s->max)) : 0;
    }
    return 0;
}

/* The first op of the step, mostly of its optimizer, that leaves more than `limit` in it; LB_NONE when none does. */
static uint32_t update_of(const lb_trace_row *row, int64_t storage, double limit)
{
    const lb_program *p = row->program;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (row->sums[i].largest > limit && lb_op_writes(p, &p->ops[i], storage) != LB_NONE) return i;
    return LB_NONE;
}

/* The parameter that grew most in that step. A bias that was 0 has nothing to be compared with. */
static bool grown_parameter(const lb_trace_row *row, growth *g)
{
    const lb_program *p = row->program;
    double most = MUCH;
    g->op = LB_NONE;
    for (uint32_t k = 0; k < p->n_groups; k++)
        for (uint32_t i = 0; i < p->groups[k].params; i++) {
            const lb_group_param *param = &p->group_params[p->groups[k].first_param + i];
            const double before = before_step(row, param->storage);
            const uint32_t op = before > 0 ? update_of(row, param->storage, most * before) : LB_NONE;
            if (op == LB_NONE) continue;
            most = row->sums[op].largest / before;
            *g = (growth){row, op, before, row->sums[op].largest, &p->groups[k], param};
        }
    return g->op != LB_NONE;
}

/* What one op reads. */
typedef struct reading {
    const lb_trace_row *row; /* whose parameters are looked at */
    const lb_program *p;     /* whose values they are called by */
    uint32_t until;          /* op before which they were written */
    growth *g;
    bool found;
} reading;

static void look_at_read(void *context, uint32_t value)
{
    reading *r = context;
    const lb_program *p = r->row->program;
    const int64_t storage = r->p->values[value].storage;
    for (uint32_t k = 0; k < p->n_groups && !r->found; k++)
        for (uint32_t i = 0; i < p->groups[k].params; i++) {
            const lb_group_param *param = &p->group_params[p->groups[k].first_param + i];
            if (param->storage != storage) continue;
            const double before = before_step(r->row, storage);
            const uint32_t op = before > 0 ? update_of(r->row, storage, GROSS * before) : LB_NONE;
            if (op >= r->until) continue;
            *r->g = (growth){r->row, op, before, r->row->sums[op].largest, &p->groups[k], param};
            r->found = true;
        }
}

/* The first op of that step whose result is much larger than in the step before, where both run the same ops. */
static bool grown_op(const lb_trace_row *row, const lb_trace_row *earlier, growth *g)
{
    const lb_program *p = row->program, *q = earlier->program;
    for (uint32_t i = 0; i < p->n_ops && i < q->n_ops; i++) {
        const double before = earlier->sums[i].largest, now = row->sums[i].largest;
        if (strcmp(lb_op_name(p, &p->ops[i]), lb_op_name(q, &q->ops[i]))) return false;
        if (!(before > 0) || !(now > 100 * before)) continue;
        *g = (growth){row, i, before, now, NULL, NULL};
        return true;
    }
    return false;
}

static double learning_rate(const lb_program *p, const lb_group *group)
{
    for (uint32_t i = 0; group && i < group->options; i++) {
        const lb_scalar *s = &p->scalars[group->first_option + i];
        const char *name = lb_program_text(p, s->name);
        if (!strncmp(name, "lr", 2)) return s->number;
    }
    return NAN;
}

static void describe(const growth *g, lb_origin *origin)
{
    const lb_program *p = g->row->program;
    const lb_op *op = &p->ops[g->op];
    *origin = (lb_origin){.step = p->step, .rank = p->rank, .phase = (lb_phase)op->phase, .op = g->op};
    snprintf(origin->layer, sizeof origin->layer, "%s", lb_op_layer(p, op));
    snprintf(origin->name, sizeof origin->name, "%s", lb_op_name(p, op));
    if (!g->param) {
        snprintf(origin->text, sizeof origin->text,
                 "its largest result is %.3g, and was %.3g in the step before: the first op to give more than "
                 "a hundred "
                 "times as much",
                 g->now, g->before);
        return;
    }
    const double rate = learning_rate(p, g->group);
    origin->growth = g->now / g->before;
    char with[80] = "";
    const bool optimizer = op->phase == LB_PHASE_OPTIMIZER;
    if (isfinite(rate) && optimizer) snprintf(with, sizeof with, " at a learning rate of %.3g", rate);
    snprintf(origin->text, sizeof origin->text,
             "%s makes %s %.3g times as large%s: its largest element was %.3g and is %.3g",
             optimizer ? lb_program_text(p, g->group->optimizer) : "it", lb_program_text(p, g->param->name),
             g->now / g->before, with, g->before, g->now);
}

/* Marks the op and everything before it in its step that it was computed from. */
static uint8_t *ancestors(const lb_trace_row *row, uint32_t op)
{
    const lb_flow *flow = row->flow;
    uint8_t *marks = calloc((size_t)row->program->n_ops + 1, 1);
    if (!marks) return NULL;
    marks[op] = 1;
    for (uint32_t i = op + 1; i-- > 0;)
        for (uint32_t e = flow->first_def[i]; marks[i] && e < flow->first_def[i + 1]; e++)
            marks[flow->defs[e]] = 1;
    return marks;
}

/* Is one of the parameters that the marked ops read grown, as `row` of the same rank has it? *reader then. */
static bool grown_before(const lb_trace_row *row, const lb_trace_row *reads, const uint8_t *marks,
                         uint32_t last, uint32_t *reader, growth *g)
{
    const lb_program *p = reads->program;
    for (uint32_t i = last + 1; i-- > 0;) {
        if (!marks[i] || !strncmp(lb_op_name(p, &p->ops[i]), "lb::", 4)) continue;
        reading r = {row, p, row == reads ? i : row->program->n_ops, g, false};
        lb_op_each_input(p, &p->ops[i], look_at_read, &r);
        *reader = i;
        if (r.found) return true;
    }
    return false;
}

bool lb_growth_read(const lb_inquiry *q, const lb_trace_row *row, uint32_t broken, lb_origin *origin)
{
    const lb_program *p = row->program;
    const lb_trace_row *earlier = NULL;
    growth g;
    uint32_t reader = broken;
    uint8_t *marks = ancestors(row, broken);
    for (uint32_t s = 0; s < q->n_steps && q->steps[s] < p->step; s++)
        earlier = lb_trace_find(q->trace, p->rank, q->steps[s]);
    bool found = marks && (grown_before(row, row, marks, broken, &reader, &g) ||
                           (earlier && grown_before(earlier, row, marks, broken, &reader, &g)));
    free(marks);
    if (!found) return false;
    const char *layer = lb_op_layer(p, &p->ops[reader]);
    describe(&g, origin);
    const size_t used = strlen(origin->text);
    snprintf(origin->text + used, sizeof origin->text - used, "; %s%s%.80s reads it%s%s%s",
             lb_op_name(p, &p->ops[reader]), *layer ? " of " : "", layer,
             reader == broken ? " and overflows" : ", and ",
             reader == broken ? "" : lb_op_name(p, &p->ops[broken]),
             reader == broken ? "" : " overflows in the end");
    return true;
}

void lb_growth_find(const lb_inquiry *q, lb_origin *origin)
{
    const lb_trace_row *earlier = NULL;
    for (uint32_t s = 0; s < q->n_steps && q->steps[s] <= q->failure.step; s++) {
        const lb_trace_row *row = lb_trace_find(q->trace, q->failure.rank, q->steps[s]);
        growth g;
        if (!row) continue;
        /* A step's forward runs before its optimizer. */
        if ((earlier && grown_op(row, earlier, &g)) || grown_parameter(row, &g)) {
            describe(&g, origin);
            return;
        }
        earlier = row;
    }
}
