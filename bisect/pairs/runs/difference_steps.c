/* Which difference of a later step is one of an earlier step again: see difference_steps.h. */
#include "runs/difference_steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_effect(const void *x, const void *y)
{
    const lb_diff_difference *a = x, *b = y;
    if (a->row.step != b->row.step) return (a->row.step > b->row.step) - (a->row.step < b->row.step);
    const double e = a->effect == a->effect ? a->effect : -1, f = b->effect == b->effect ? b->effect : -1;
    return e != f ? (e < f) - (e > f) : (a->row.order > b->row.order) - (a->row.order < b->row.order);
}

/* Do both updates differ by the same options of the optimizer? A schedule may change their numbers in each step. */
static bool have_same_options(const lb_diff_row *x, const lb_diff_row *y)
{
    if (x->phase != LB_PHASE_OPTIMIZER || y->phase != x->phase || !x->n_arguments || x->n_arguments != y->n_arguments)
        return false;
    for (uint32_t i = 0; i < x->n_arguments; i++) {
        const lb_diff_argument *p = &x->arguments[i], *q = &y->arguments[i];
        if (strcmp(p->name, q->name)) return false;
        if (x->step == y->step && (strcmp(p->first, q->first) || strcmp(p->second, q->second))) return false;
    }
    return x->local == y->local;
}

static bool have_one_line(const lb_diff_row *x, const lb_diff_row *y)
{
    for (int k = 0; k < 2; k++) {
        const lb_code_line *p = &x->lines[k], *q = &y->lines[k];
        if (!p->number || p->number != q->number || strcmp(p->file, q->file)) return false;
    }
    return true;
}

static bool are_alike(const lb_diff_difference *x, const lb_diff_difference *y)
{
    if (x->row.phase != y->row.phase || !x->op_b != !y->op_b) return false;
    if (strcmp(x->row.layer, y->row.layer) || strcmp(x->row.op, y->row.op)) return false;
    return !x->op_b || (!strcmp(x->op_b, y->op_b) && !strcmp(x->layer_b, y->layer_b));
}

/* One option, one line that runs several times (for each micro-batch or parameter), or one op of several steps. */
static bool is_one_place(const lb_diff_difference *x, const lb_diff_difference *y)
{
    if (have_same_options(&x->row, &y->row)) return true;
    if (!are_alike(x, y)) return false;
    return have_one_line(&x->row, &y->row) || (x->row.step != y->row.step && !strcmp(x->row.why, y->row.why));
}

/* Does an update of a later step differ where the first one's forward pass does? The states of what that leaves without
 * a gradient, or with a different one, are then not alike when the later step begins. An op that is called with
 * different arguments is. */
static bool follows_from_first(const lb_diff_report *report, const lb_diff_difference *difference)
{
    if (difference->row.phase != LB_PHASE_OPTIMIZER || difference->row.n_arguments) return false;
    for (uint32_t i = 0; i < report->n_differences; i++) {
        const lb_diff_difference *first = &report->differences[i];
        if (first->row.step < difference->row.step && first->row.phase == LB_PHASE_FORWARD) return true;
    }
    return false;
}

void lb_difference_steps_join(lb_diff_report *report)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < report->n_differences; i++) {
        const lb_diff_difference difference = report->differences[i];
        uint32_t j = 0;
        if (follows_from_first(report, &difference)) continue;
        while (j < kept && !is_one_place(&report->differences[j], &difference)) j++;
        lb_diff_difference *before = &report->differences[j];
        if (j == kept)
            report->differences[kept++] = difference;
        else if (before->row.step != difference.row.step)
            before->steps += before->last_step != difference.row.step;
        else
            before->times += difference.times, before->effect = fmax(before->effect, difference.effect);
        before->last_step = difference.row.step;
    }
    report->n_differences = kept;
    if (kept) qsort(report->differences, kept, sizeof *report->differences, by_effect);
}
