/* Tensors that the two sides cut differently: see diff_cuts.h. */
#include "diff/diff_cuts.h"

#include "diff/diff_place.h"
#include "diff/diff_rows.h"
#include "shadow/final_image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t rank_of(const lb_diff_walk *walk, int side, uint32_t op)
{
    const lb_program_view *view = side ? walk->b : walk->a;
    return view->parts[lb_program_view_part_of(view, op)].program->rank;
}

/* How either side holds it, in the order of the report. */
static void describe(const lb_diff_walk *walk, const lb_cut_tensor *cut, char *text, size_t size)
{
    const int first = walk->swapped, second = !walk->swapped;
    snprintf(text, size, "rank %d has %s on the first side, rank %d has %s on the second",
             rank_of(walk, first, cut->op[first]), cut->part[first], rank_of(walk, second, cut->op[second]),
             cut->part[second]);
}

/* Nothing before this step can have made it another. */
static bool is_known(const lb_diff_walk *walk, const lb_cut_tensor *cut)
{
    return cut->kind == LB_CUT_BATCH || (walk->pa->step == walk->past->first && walk->past->first <= 0);
}

static void name_wrong(const lb_diff_walk *walk, const lb_cut_tensor *cut, lb_diff_row *row)
{
    char text[640], like[80] = "";
    if (cut->wrong_side)
        row->other = cut->wrong;
    else
        row->index = cut->wrong;
    if (cut->wrong_like >= 0) snprintf(like, sizeof like, ": it has what rank %d has", cut->wrong_like);
    snprintf(text, sizeof text, "%s is not the same on both sides: that of rank %d, %s is another on the %s side%s",
             cut->kind == LB_CUT_BATCH   ? "batch"
             : cut->kind == LB_CUT_STATE ? "state"
                                         : "parameter",
             rank_of(walk, cut->wrong_side, cut->wrong), cut->wrong_part,
             (cut->wrong_side == 1) != walk->swapped ? "second" : "first", like);
    row->why = lb_report_keep(walk->report, text);
}

/* What the steps before left in the sources that hold some of it. */
static lb_verdict before(const lb_diff_walk *walk, const lb_cut_tensor *cut)
{
    lb_verdict worst = LB_VERDICT_IDENTICAL;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < cut->n_rows[k]; i++) {
            const lb_held_part *part = &walk->cuts.parts[k][cut->rows[k][i]];
            const lb_taint *taint =
                lb_taint_of(&walk->storages[k], lb_diff_walk_side(walk, k)->values[part->value].storage);
            worst = lb_verdict_worse(worst, lb_verdict_worse(taint->verdict, taint->carried));
        }
    return worst;
}

/* A known tensor that differs. */
static void judge_known(const lb_diff_walk *walk, const lb_cut_tensor *cut, lb_diff_row *row)
{
    const lb_verdict left = before(walk, cut);
    if (is_known(walk, cut)) {
        row->local = LB_VERDICT_DIVERGED;
        name_wrong(walk, cut, row);
    } else if (left != LB_VERDICT_IDENTICAL) {
        row->inherited = left, row->why = "it came out of the step before differently";
    } else if (walk->pa->step == walk->past->first) {
        row->inherited = LB_VERDICT_MISSING;
        row->why = "it is not the same on both sides at the begin of what was compared; "
                   "what the steps before did is not known";
    } else {
        row->local = LB_VERDICT_DIVERGED;
        name_wrong(walk, cut, row);
    }
    row->verdict = lb_verdict_worse(row->local, row->inherited);
}

static void judge_cut(const lb_diff_walk *walk, const lb_cut_tensor *cut, lb_diff_row *row)
{
    char held[420], text[640];
    describe(walk, cut, held, sizeof held);
    row->local = LB_VERDICT_DIVERGED;
    if (cut->other_whole) {
        snprintf(text, sizeof text, "the whole tensor has different shapes: %s", held);
        row->why = lb_report_keep(walk->report, text);
    } else if (cut->wrong != LB_NONE && is_known(walk, cut)) {
        name_wrong(walk, cut, row);
    } else {
        row->local = LB_VERDICT_MISSING;
        snprintf(text, sizeof text, "the two sides shard it differently: %s; what follows from it is not run exactly",
                 held);
        row->why = lb_report_keep(walk->report, text);
    }
    row->verdict = row->local;
}

static void say_missing(lb_diff_walk *walk)
{
    char held[420], text[900];
    const lb_cut_tensor *first = walk->cuts.list;
    while (first->known) first++;
    describe(walk, first, held, sizeof held);
    snprintf(text, sizeof text,
             "the two sides shard %u tensor%s differently (%.200s: %s): "
             "they are compared element by element as the run begins, and what follows is not judged",
             walk->cuts.unknown, walk->cuts.unknown == 1 ? "" : "s", first->name, held);
    const uint32_t before = walk->report->n_missing;
    lb_report_missing(walk->report, text);
    walk->report->n_cuts += walk->report->n_missing - before;
}

/* Both shadows go on from one side's numbers, and so cannot say what follows from a difference that was there
 * before. */
static void flow_known(lb_diff_walk *walk, const lb_verdict *verdicts)
{
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < walk->cuts.n; i++)
            for (int k = 0; k < 2; k++)
                for (uint32_t r = 0; r < walk->cuts.list[i].n_rows[k]; r++) {
                    const lb_held_part *part = &walk->cuts.parts[k][walk->cuts.list[i].rows[k][r]];
                    const int64_t storage = lb_diff_walk_side(walk, k)->values[part->value].storage;
                    lb_taint *taint = lb_taint_of(&walk->storages[k], storage);
                    if (walk->cuts.held[k][part->op] != LB_HELD_KNOWN) continue;
                    if (!pass) *taint = LB_TAINT_CLEAN(storage);
                    if (pass) taint->carried = lb_verdict_worse(taint->carried, verdicts[i]);
                    taint->differs |= taint->carried != LB_VERDICT_IDENTICAL;
                }
}

lb_status lb_diff_walk_cuts(lb_diff_walk *walk, lb_err *err)
{
    lb_verdict *verdicts = calloc(walk->cuts.n + 1, sizeof *verdicts);
    if (!verdicts) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u tensors", walk->cuts.n);
    for (uint32_t i = 0; i < walk->cuts.n; i++) {
        const lb_cut_tensor *cut = &walk->cuts.list[i];
        lb_diff_row row = lb_diff_walk_row(walk, cut->op[0], cut->op[1]);
        row.layer = lb_report_keep(walk->report, cut->name), row.value = true;
        verdicts[i] = LB_VERDICT_IDENTICAL;
        walk->report->sources++;
        if (cut->known && cut->wrong == LB_NONE) {
            walk->report->sources_identical++;
            continue;
        }
        if (cut->known && !walk->cut)
            judge_known(walk, cut, &row);
        else
            judge_cut(walk, cut, &row);
        verdicts[i] = row.verdict;
        lb_diff_rows_report(walk, &row);
    }
    flow_known(walk, verdicts);
    free(verdicts);
    if (walk->cuts.unknown) say_missing(walk);
    return LB_OK;
}

/* ---- what the step leaves ---- */

/* What a source holds at the end, out of its image. */
static uint8_t *read_left(const lb_held_part *part, size_t element)
{
    lb_tensor image;
    if (!lb_image_bits(part->side, part->op, &image)) return NULL;
    const int64_t all = lb_layout_numel(&image.layout);
    uint8_t *bytes = malloc((size_t)part->elements * element + 1);
    const bool fits = bytes && lb_dtype_bits(image.dtype) == 8 * element && part->at + part->elements <= all;
    if (fits) memcpy(bytes, (uint8_t *)image.data + (size_t)part->at * element, (size_t)part->elements * element);
    free(image.data);
    if (!fits) free(bytes), bytes = NULL;
    return bytes;
}

bool lb_cuts_leave_other_bits(const lb_diff_walk *walk, const lb_shadow_final *final)
{
    const lb_cut_tensor *cut = &walk->cuts.list[final->cut];
    const size_t element = lb_dtype_bits(cut->dtype) / 8;
    lb_held_image image;
    bool same = lb_held_image_open(&image, &cut->whole, element);
    for (int k = 0; k < 2 && same; k++)
        for (uint32_t i = 0; i < cut->n_rows[k] && same; i++) {
            const lb_held_part *part = &walk->cuts.parts[k][cut->rows[k][i]];
            uint8_t *bytes = read_left(part, element);
            same = bytes && !lb_held_image_differs(&image, part, bytes);
            if (same) lb_held_image_draw(&image, part, bytes);
            free(bytes);
        }
    lb_held_image_release(&image);
    return !same;
}

void lb_cuts_taint(lb_diff_walk *walk, const lb_shadow_final *final, lb_verdict verdict, lb_verdict carried)
{
    const lb_cut_tensor *cut = &walk->cuts.list[final->cut];
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < cut->n_rows[k]; i++) {
            const lb_held_part *part = &walk->cuts.parts[k][cut->rows[k][i]];
            lb_taint *taint = lb_taint_of(&walk->storages[k], lb_diff_walk_side(walk, k)->values[part->value].storage);
            taint->lone[0] = taint->lone[1] = LB_NONE;
            taint->verdict = lb_verdict_worse(taint->verdict, verdict),
            taint->carried = lb_verdict_worse(taint->carried, carried);
            taint->differs |= verdict != LB_VERDICT_IDENTICAL;
        }
}

/* ---- pairs ---- */

void lb_cuts_judge(const lb_diff_walk *walk, const lb_evidence *evidence, lb_diff_row *row)
{
    const bool own =
        evidence->replayed && (evidence->own[0] == LB_VERDICT_DIVERGED || evidence->own[1] == LB_VERDICT_DIVERGED);
    if (!walk->cut || row->local != LB_VERDICT_DIVERGED || own) return;
    row->local = LB_VERDICT_MISSING, row->why = LB_WHY_CUT;
}

void lb_cuts_judge_source(const lb_diff_walk *walk, bool known, lb_diff_row *row)
{
    if (!walk->cut || row->local != LB_VERDICT_DIVERGED || known) return;
    row->local = LB_VERDICT_MISSING, row->why = LB_WHY_CUT;
}
