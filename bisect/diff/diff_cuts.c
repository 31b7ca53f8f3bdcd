/* Tensors that the two sides cut otherwise: see diff_cuts.h. */
#include "diff_cuts.h"

#include "diff_place.h"
#include "diff_rows.h"

#include <stdio.h>

static int32_t rank_of(const lb_walk *w, int side, uint32_t op)
{
    const lb_program_view *s = side ? w->b : w->a;
    return s->parts[lb_program_view_part_of(s, op)].program->rank;
}

/* How either side holds it, in the order of the report. */
static void describe(const lb_walk *w, const lb_cut_tensor *cut, char *text, size_t size)
{
    const int first = w->swapped, second = !w->swapped;
    snprintf(text, size, "rank %d has %s on the first side, rank %d has %s on the second",
             rank_of(w, first, cut->op[first]), cut->part[first], rank_of(w, second, cut->op[second]),
             cut->part[second]);
}

/* Nothing before this step can have made it another. */
static bool is_known(const lb_walk *w, const lb_cut_tensor *cut)
{
    return cut->kind == LB_CUT_BATCH || (w->pa->step == w->past->first && w->past->first <= 0);
}

static void judge_cut(const lb_walk *w, const lb_cut_tensor *cut, lb_diff_row *row)
{
    char held[420], text[640];
    describe(w, cut, held, sizeof held);
    row->local = LB_VERDICT_DIVERGED;
    if (cut->other_whole) {
        snprintf(text, sizeof text, "its whole has other shapes: %s", held);
    } else if (cut->wrong != LB_NONE && is_known(w, cut)) {
        if (cut->wrong_side)
            row->other = cut->wrong;
        else
            row->index = cut->wrong;
        snprintf(text, sizeof text, "%s is not the same on both sides: that of rank %d, %s is another on the %s side",
                 cut->kind == LB_CUT_BATCH ? "batch" : "parameter", rank_of(w, cut->wrong_side, cut->wrong),
                 cut->wrong_part, (cut->wrong_side == 1) != w->swapped ? "second" : "first");
    } else {
        row->local = LB_VERDICT_MISSING;
        snprintf(text, sizeof text, "the two sides cut it otherwise: %s; what follows from it is not run exactly",
                 held);
    }
    row->why = lb_report_keep(w->report, text);
    row->verdict = row->local;
}

void lb_walk_cuts(lb_walk *w)
{
    char held[420], text[900];
    for (uint32_t i = 0; i < w->cuts.n; i++) {
        const lb_cut_tensor *cut = &w->cuts.list[i];
        lb_diff_row row = lb_walk_row(w, cut->op[0], cut->op[1]);
        row.layer = lb_report_keep(w->report, cut->name), row.value = cut->kind != LB_CUT_RESULT;
        judge_cut(w, cut, &row);
        lb_walk_report(w, &row);
        w->report->sources += cut->kind != LB_CUT_RESULT;
    }
    if (!w->cuts.n) return;
    describe(w, &w->cuts.list[0], held, sizeof held);
    snprintf(text, sizeof text, "the two sides cut %u tensor%s otherwise (%.200s: %s): %swhat follows is not judged",
             w->cuts.n, w->cuts.n == 1 ? "" : "s", w->cuts.list[0].name, held,
             w->cuts.list[0].kind == LB_CUT_RESULT ? "" : "as the run begins they are compared element by element, ");
    lb_report_missing(w->report, text);
}

void lb_cuts_judge(const lb_walk *w, const lb_evidence *e, lb_diff_row *row)
{
    const bool own = e->replayed && (e->own[0] == LB_VERDICT_DIVERGED || e->own[1] == LB_VERDICT_DIVERGED);
    if (!w->cut || row->local != LB_VERDICT_DIVERGED || own) return;
    row->local = LB_VERDICT_MISSING, row->why = LB_WHY_CUT;
}

void lb_cuts_judge_source(const lb_walk *w, bool known, lb_diff_row *row)
{
    if (!w->cut || row->local != LB_VERDICT_DIVERGED || known) return;
    row->local = LB_VERDICT_MISSING, row->why = LB_WHY_CUT;
}
