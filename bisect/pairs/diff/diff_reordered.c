/* Two named orders of one sum: see diff_reordered.h. */
#include "diff/diff_reordered.h"
#include "diff/diff_rows.h"

#include <stdio.h>
#include <string.h>

/* What is written in place is a result, too. */
static bool is_repeated(const lb_program *p, const lb_op *op, uint32_t outcome)
{
    for (uint32_t i = 0; i < outcome; i++)
        if (lb_op_outcome(p, op, i) == lb_op_outcome(p, op, outcome)) return true;
    return false;
}

static int64_t outcome_elements(const lb_diff_walk *walk, const lb_op *op)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++)
        if (lb_op_outcome(walk->pa, op, i) != LB_NONE && !is_repeated(walk->pa, op, i))
            n += lb_layout_numel(&walk->pa->values[lb_op_outcome(walk->pa, op, i)].layout);
    return n;
}

void lb_diff_reordered_found(lb_diff_walk *walk, uint32_t ia, lb_diff_row *row)
{
    const lb_reordering *r = walk->reorderings ? &walk->reorderings[ia] : NULL;
    if (!r || !r->order[0][0] || !r->order[1][0]) return;
    char why[240];
    int64_t n = outcome_elements(walk, &walk->pa->ops[ia]);
    snprintf(why, sizeof why,
             "the same terms in another order: the first side's bits are those of %s, the second's of %s (%lld "
             "element%s)",
             r->order[walk->swapped], r->order[!walk->swapped], (long long)n, n == 1 ? "" : "s");
    row->why = lb_report_keep(walk->report, why);
    row->local = LB_VERDICT_REORDERED;
}

static const char *told_order(const lb_program_view *side, uint32_t op)
{
    const lb_program *recorded;
    if (op == LB_NONE || !(side->program->ops[op].flags & LB_OP_COLLECTIVE)) return "";
    const lb_collective *row = lb_collective_of_side(side, op, &recorded);
    return row && row->algorithm != LB_NONE ? lb_program_text(recorded, row->algorithm) : "";
}

/* The order that gives a side's bits again: as recorded, found by trial, or replay's own; "": it is not known. */
static const char *order_of(const lb_program_view *side, uint32_t op, lb_verdict own, const char *found)
{
    const char *told = told_order(side, op);
    if (own == LB_VERDICT_REORDERED && found && *found) return found;
    if (own != LB_VERDICT_IDENTICAL || op == LB_NONE || !(side->program->ops[op].flags & LB_OP_COLLECTIVE)) return "";
    const char *name = lb_op_name(side->program, &side->program->ops[op]);
    return *told ? told : !strncmp(name, "nccl::", 6) ? "ring" : strstr(name, "c10d") ? "gloo" : "";
}

void lb_diff_reordered_told(lb_diff_walk *walk, uint32_t ia, const lb_evidence *evidence, lb_diff_row *row)
{
    const uint32_t ib = lb_diff_rows_partner(walk, ia);
    const char *told[2] = {order_of(walk->a, ia, evidence->own[0], evidence->order[0]),
                           order_of(walk->b, ib, evidence->own[1], evidence->order[1])};
    const bool recorded = *told_order(walk->a, ia) && *told_order(walk->b, ib) && evidence->own[0] == evidence->own[1];
    char why[240];
    if (!*told[0] || !*told[1] || !strcmp(told[0], told[1])) return;
    const int64_t n = outcome_elements(walk, &walk->pa->ops[ia]);
    snprintf(why, sizeof why,
             "the same terms in another order: the first side's bits are those of %s, the second's of %s%s "
             "(%lld element%s)",
             told[walk->swapped], told[!walk->swapped], recorded ? ", as recorded" : "", (long long)n,
             n == 1 ? "" : "s");
    row->why = lb_report_keep(walk->report, why);
    row->local = LB_VERDICT_REORDERED;
}
