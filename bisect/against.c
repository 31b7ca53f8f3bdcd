/* Bisecting a difference: see against.h.
 *
 * diff.c says what differs, where each difference was made and whether it is rounding. What remains is to tell the cause
 * from what it led to. The cause is the earliest place that differs by itself: in the ops that it runs, in their arguments,
 * or in what the same inputs give. A later divergence somewhere else, a flipped choice of experts say, was led to.
 */
#include "against.h"

#include "stages.h"

#include <lastbit/diff.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The earliest local difference. */
typedef struct cause {
    int64_t step;
    int32_t rank;
    lb_phase phase;
    const char *layer, *op; /* op NULL: see the structure */
    uint32_t row;
    const lb_diff_structure *structure;
    bool diverged;
    const char *why;
} cause;

static cause cause_of_row(const lb_diff_row *r)
{
    return (cause){
        r->step, r->rank, r->phase, r->layer, r->op, r->index, NULL, r->verdict == LB_VERDICT_DIVERGED, r->why};
}

static bool same_place(const cause *a, const lb_diff_row *r)
{
    return a->step == r->step && a->phase == r->phase && !strcmp(a->layer, r->layer);
}

static int phase_order(lb_phase phase)
{
    return phase == LB_PHASE_COMMUNICATION ? LB_PHASE_BACKWARD : phase;
}

static bool before(const lb_diff_structure *s, const cause *c)
{
    return s->step != c->step ? s->step < c->step : phase_order(s->phase) <= phase_order(c->phase);
}

/* They are listed by layer. */
static const lb_diff_structure *earliest_structure(const lb_diff_report *r)
{
    const lb_diff_structure *best = r->n_structures ? &r->structures[0] : NULL;
    for (uint32_t i = 1; i < r->n_structures; i++) {
        const lb_diff_structure *s = &r->structures[i];
        bool earlier =
            s->step != best->step ? s->step < best->step : phase_order(s->phase) < phase_order(best->phase);
        if (earlier) best = s;
    }
    return best;
}

/* Other ops somewhere, and a divergence in or after them: that is what they do, unless the divergence has a reason of its own. */
static void take_divergence(const lb_diff_report *r, cause *c)
{
    if (!r->has_first || r->first.verdict != LB_VERDICT_DIVERGED) return;
    if (r->first.why && strstr(r->first.why, "other arguments")) {
        *c = cause_of_row(&r->first);
        return;
    }
    c->diverged = true;
    c->why = "the two sides run other ops here, and what follows from them differs in exact arithmetic, too";
}

static bool find_cause(const lb_diff_report *r, cause *c)
{
    if (!r->has_first && !r->has_earliest && !r->n_structures) return false;
    if (r->has_earliest)
        *c = cause_of_row(&r->earliest);
    else if (r->has_first)
        *c = cause_of_row(&r->first);
    else
        c->step = INT64_MAX;
    const lb_diff_structure *s = earliest_structure(r);
    if (s && before(s, c)) {
        *c = (cause){
            s->step, s->rank, s->phase, s->layer, NULL, LB_NONE, s, false, "the two sides run other ops here"};
        take_divergence(r, c);
    }
    /* What leaves that layer differs in exact arithmetic too: it is not rounding. */
    if (r->has_first && r->first.verdict == LB_VERDICT_DIVERGED && same_place(c, &r->first)) {
        c->diverged = true, c->op = r->first.op, c->row = r->first.index, c->why = r->first.why;
    }
    return true;
}

/* The first op named on one side only: "aten::_to_copy x2, aten::mul.Tensor". */
static void first_op(const char *list, char *op, size_t size)
{
    snprintf(op, size, "%.*s", (int)strcspn(list, " ,"), list);
}

static bool casts_only(const char *list)
{
    for (const char *p = list; *p; p += strcspn(p, ","), p += strspn(p, ", "))
        if (strncmp(p, "aten::_to_copy", 14)) return false;
    return true;
}

static lb_axis axis_of(const lb_inquiry *q, const cause *c, const lb_diff_report *r, uint32_t ranks)
{
    if (q->n_ranks > 1 && ranks < q->n_ranks) return LB_AXIS_RANK;
    if (c->diverged) return LB_AXIS_BLOCK;
    if (c->structure)
        return casts_only(c->structure->ops_a) && casts_only(c->structure->ops_b) ? LB_AXIS_PRECISION
                                                                                  : LB_AXIS_ORDER;
    return r->verdict == LB_VERDICT_REORDERED ? LB_AXIS_ORDER : LB_AXIS_KERNEL;
}

/* Ranks on which that layer differs by itself. */
static lb_status name_ranks(const lb_diff_report *r, const cause *c, lb_culprit *culprit, lb_err *err)
{
    int32_t *ranks = malloc((r->n_layers + r->n_structures + 1) * sizeof *ranks);
    uint32_t n = 0;
    if (!ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    ranks[n++] = c->rank;
    for (uint32_t i = 0; i < r->n_layers + r->n_structures; i++) {
        bool structure = i >= r->n_layers;
        const lb_diff_structure *s = structure ? &r->structures[i - r->n_layers] : NULL;
        const lb_diff_row *l = structure ? NULL : &r->layers[i];
        int32_t rank = structure ? s->rank : l->rank;
        bool here = structure ? !strcmp(s->layer, c->layer) && s->step == c->step
                              : !strcmp(l->layer, c->layer) && l->local != LB_VERDICT_IDENTICAL;
        for (uint32_t k = 0; k < n; k++) here &= ranks[k] != rank;
        if (here) ranks[n++] = rank;
    }
    free(culprit->ranks);
    culprit->ranks = ranks, culprit->n_ranks = n;
    return LB_OK;
}

/* The row of that op in the run's program, so that block and phase can be read off it. */
static uint32_t find_row(const lb_program *p, const cause *c, const char *op)
{
    for (uint32_t i = 0; p && i < p->n_ops; i++)
        if (p->ops[i].phase == c->phase && !strcmp(lb_op_layer(p, &p->ops[i]), c->layer) &&
            (!*op || !strcmp(lb_op_name(p, &p->ops[i]), op)))
            return i;
    return LB_NONE;
}

static lb_status report_cause(lb_inquiry *q, const lb_diff_report *r, const cause *c, lb_err *err)
{
    const lb_program *p = lb_inquiry_program(q, c->rank, c->step);
    char op[80] = "";
    lb_culprit *culprit;
    if (c->op)
        snprintf(op, sizeof op, "%s", c->op);
    else if (c->structure)
        first_op(*c->structure->ops_a ? c->structure->ops_a : c->structure->ops_b, op, sizeof op);
    uint32_t row = c->row != LB_NONE ? c->row : find_row(p, c, op);
    if (row == LB_NONE) row = find_row(p, c, "");
    LB_TRY(lb_culprit_add(q, LB_AXIS_BLOCK, c->rank, c->step, row, &culprit, err));
    LB_TRY(name_ranks(r, c, culprit, err));
    culprit->axis = axis_of(q, c, r, culprit->n_ranks);
    bool source = !strcmp(op, "lb::source");
    if (source && culprit->axis == LB_AXIS_BLOCK) culprit->axis = LB_AXIS_SOURCE;
    culprit->phase = c->phase;
    /* A parameter's row is called by its name: its layer is what owns it. */
    const char *dot = source ? strrchr(c->layer, '.') : NULL;
    snprintf(culprit->layer, sizeof culprit->layer, "%.*s", dot ? (int)(dot - c->layer) : (int)strlen(c->layer),
             c->layer);
    snprintf(culprit->op, sizeof culprit->op, "%s", op);
    snprintf(culprit->why, sizeof culprit->why, "The earliest place that differs by itself: %s%s%s%s.",
             dot ? c->layer : "", dot ? ", " : "", c->why,
             c->diverged ? "" : "; in exact arithmetic nothing differs here, only the rounding");
    lb_failure *f = &q->out->failure;
    *f = (lb_failure){LB_FAILURE_DIFFERENCE, c->step, c->rank, row, "", "", ""};
    snprintf(f->layer, sizeof f->layer, "%s", c->layer);
    snprintf(f->name, sizeof f->name, "%s", op);
    snprintf(f->what, sizeof f->what, "the run departs from the reference: %s", lb_verdict_name(r->verdict));
    return LB_OK;
}

lb_status lb_bisect_against(lb_inquiry *q, lb_err *err)
{
    lb_diff_options options = LB_DIFF_OPTIONS_INIT;
    lb_diff_report *report = NULL;
    cause c = {.row = LB_NONE};
    LB_TRY(lb_stage_begin(q, "against", err));
    options.first_step = q->options->first_step, options.last_step = q->options->last_step;
    options.memory_bytes = q->options->memory_bytes;
    LB_TRY(lb_diff_run(q->capture, q->options->against, &options, &report, err));
    lb_status status = LB_OK;
    if (report->verdict == LB_VERDICT_IDENTICAL && !report->n_structures) {
        q->out->outcome = LB_BISECT_CLEAN;
        lb_stage_end(q, "clean", "%" PRIu64 " aligned ops, the same bits everywhere", report->ops);
    } else if (!find_cause(report, &c)) {
        lb_stage_end(q, "undecided", "%s",
                     report->n_missing ? report->missing[0] : lb_verdict_name(report->verdict));
    } else {
        status = report_cause(q, report, &c, err);
        if (status == LB_OK)
            lb_stage_end(q, "found", "%" PRIu64 " aligned ops, %" PRIu64 " identical: %s", report->ops,
                         report->identical, lb_verdict_name(report->verdict));
    }
    lb_diff_report_free(report);
    return status;
}
