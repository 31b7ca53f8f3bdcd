/* An op of B against the op of A that it stands against. Numbers that agree are one quantity; numbers that do not may
 * still be it, where an expert was chosen differently before them: then B goes on from A's numbers, so that the choice
 * is told once, and not of all that follows. */
#include "shadow/shadow_run.h"

#include "shadow/block_sums.h"
#include "shadow/shadow_numbers.h"

#include <math.h>
#include <stdlib.h>

/* B's op, as it has run, and A's. */
typedef struct meeting {
    lb_shadow_run *run;
    uint32_t row, op; /* of A, of B */
    const lb_event *event;
    lb_kept_shadow *kept;
    lb_shadow_row *out;
} meeting;

/* What its results say together. */
typedef struct met {
    lb_agreement agreement;
    bool any, told;
    /* some number is no integer: masks and counts were taken over with the choice, that they agree says nothing */
    bool real;
} met;

/* ---- choices made differently ---- */

/* A choice flips what is computed of it, forward and back; updates and collectives have other reasons to differ. */
static bool may_follow_from_choice(const lb_op *op)
{
    return op->phase == LB_PHASE_FORWARD || op->phase == LB_PHASE_BACKWARD;
}

/* A result of B that a choice made differently explains takes A's numbers where it does, and both shadows go on from
 * there. */
static int64_t settle_flips(const meeting *meeting, uint32_t i, double *b)
{
    lb_shadow_run *s = meeting->run;
    const lb_tensor *shadow = &meeting->event->shadow[i];
    const double *a = meeting->kept->numbers + meeting->kept->starts[i];
    if (!may_follow_from_choice(&s->side->program->ops[meeting->op])) return 0;
    const uint64_t which = lb_flip_reach_of(s->reach, meeting->op);
    const int64_t settled =
        which ? lb_flips_settle(&s->reach->flips, which, &shadow->layout, a, b, meeting->kept->noise[i]) : 0;
    if (settled) lb_shadow_put(shadow, b);
    return settled;
}

/* What does not keep to its own recording is wrong by itself: no choice is to blame for it. */
static bool keeps_to_recording(const meeting *meeting)
{
    return lb_verdict_is_accounted_for(meeting->out->own[0]) && lb_verdict_is_accounted_for(meeting->out->own[1]);
}

/* Is a choice made differently all that the two ops differ by? */
static bool explain_by_flips(const meeting *meeting)
{
    if (!may_follow_from_choice(&meeting->event->program->ops[meeting->event->op])) return false;
    return lb_flip_reach_of(meeting->run->reach, meeting->op) && keeps_to_recording(meeting) &&
           lb_flip_reach_explains(meeting->run->reach, meeting->row, meeting->op);
}

/* Results of one shape become A's; returns the rows of all of them. */
static int64_t hand_over(const meeting *meeting)
{
    const lb_kept_shadow *k = meeting->kept;
    int64_t rows = 0;
    for (uint32_t i = 0; i < k->n_results && i < meeting->event->n_results; i++) {
        const lb_layout *l = &meeting->event->shadow[i].layout;
        if (k->elements[i] <= 0 || lb_kept_shadow_elements(meeting->event, i) != k->elements[i]) continue;
        lb_shadow_put(&meeting->event->shadow[i], k->numbers + k->starts[i]);
        rows += l->ndim ? k->elements[i] / l->shape[l->ndim - 1] : 1;
    }
    return rows;
}

/* ---- ops of the same shapes ---- */

/* The same of one whose sums are kept: no choice was made differently in such a run. */
static bool meet_sums(const meeting *meeting, uint32_t i, met *all)
{
    const int64_t n = meeting->kept->elements[i], mine = lb_kept_shadow_elements(meeting->event, i),
                  count = lb_block_sums_count(n);
    const double *a = meeting->kept->numbers + meeting->kept->starts[i], noise = meeting->kept->noise[i],
                 largest = meeting->kept->largest[i];
    double *b = mine == n ? malloc((size_t)(count + 1) * sizeof *b) : NULL;
    bool real;
    if (!b) {
        meeting->out->other_counts = mine >= 0;
        return false;
    }
    lb_block_sums_of(&meeting->event->shadow[i], b, NULL, &real);
    if (!lb_block_sums_agree(a, b, count, noise, largest))
        all->agreement = LB_SHADOW_DISAGREES, meeting->out->outcome = i;
    all->told &= lb_block_sums_tell(largest, noise);
    all->any = true, all->real |= real;
    free(b);
    return true;
}

/* Result `i` of both; false where there is nothing to hold against the kept one. */
static bool meet_result(const meeting *meeting, uint32_t i, met *all)
{
    if (meeting->kept->summed) return meet_sums(meeting, i, all);
    const int64_t n = meeting->kept->elements[i], mine = lb_kept_shadow_elements(meeting->event, i);
    const double *a = meeting->kept->numbers + meeting->kept->starts[i], noise = meeting->kept->noise[i];
    double *b = mine == n ? lb_shadow_numbers_copy(&meeting->event->shadow[i]) : NULL;
    if (!b) {
        meeting->out->other_counts = mine >= 0;
        return false;
    }
    if (!lb_shadow_numbers_agree(a, b, n, noise)) {
        const int64_t settled = settle_flips(meeting, i, b);
        meeting->out->flipped += settled;
        if (!settled) all->agreement = LB_SHADOW_DISAGREES, meeting->out->outcome = i;
    }
    all->told &= lb_shadow_numbers_tell(a, n, noise);
    all->any = true;
    for (int64_t e = 0; e < n && !all->real; e++) all->real = b[e] != nearbyint(b[e]);
    free(b);
    return true;
}

static met meet_results(const meeting *meeting)
{
    met all = {.agreement = LB_SHADOW_AGREES, .told = true};
    meeting->out->other_counts = meeting->kept->n_results != meeting->event->n_results;
    if (meeting->out->other_counts) all.agreement = LB_SHADOW_UNKNOWN;
    for (uint32_t i = 0; i < meeting->kept->n_results && all.agreement == LB_SHADOW_AGREES; i++)
        if (meeting->kept->elements[i] >= 0 && !meet_result(meeting, i, &all)) all.agreement = LB_SHADOW_UNKNOWN;
    return all;
}

static void judge_meeting(const meeting *meeting)
{
    lb_shadow_row *out = meeting->out;
    const int64_t before = out->flipped;
    const met all = meet_results(meeting);
    if (!all.any) return;
    out->agreement = all.agreement, out->told = all.told && all.agreement == LB_SHADOW_AGREES;
    /* What was settled here may be a sum that is not complete yet: the choice is over where the sides agree by
     * themselves. */
    if (all.real && all.agreement == LB_SHADOW_AGREES && out->flipped == before)
        lb_flip_reach_end(meeting->run->reach, meeting->op);
    if (all.agreement != LB_SHADOW_AGREES && explain_by_flips(meeting)) {
        out->agreement = LB_SHADOW_AGREES;
        out->flipped += hand_over(meeting);
    }
    if (out->agreement == LB_SHADOW_AGREES)
        lb_flip_reach_meet(meeting->run->reach, meeting->row, meeting->op,
                           out->flipped == before ? LB_MET_SAME : LB_MET_BUT_ROWS);
}

void lb_shadow_run_meet(lb_shadow_run *run, uint32_t row, uint32_t op, const lb_event *event)
{
    const meeting m = {run, row, op, event, &run->kept[row], &run->out->rows[row]};
    if (!m.kept->numbers) return;
    judge_meeting(&m);
    lb_kept_shadow_release(m.kept, &run->room);
}

/* ---- ops in different shapes ---- */

/* The rows of the i-th results are the same, but for what choices moved. */
static bool has_same_rows(const meeting *meeting, uint64_t which, uint32_t i)
{
    const lb_program *pa = meeting->run->other->program;
    const uint32_t va = lb_op_outcome(pa, &pa->ops[meeting->row], i);
    const lb_layout *x = va == LB_NONE ? NULL : &pa->values[va].layout, *y = &meeting->event->shadow[i].layout;
    if (!x || x->ndim != y->ndim || !x->ndim || lb_dtype_is_complex(pa->values[va].dtype)) return false;
    const int64_t width = x->ndim == 1 ? 1 : x->shape[x->ndim - 1], na = lb_layout_numel(x), nb = lb_layout_numel(y);
    if (width < 1 || (x->ndim > 1 && y->shape[y->ndim - 1] != width)) return false;
    double *b = lb_shadow_numbers_copy(&meeting->event->shadow[i]);
    const lb_shadow_rows rows_a = {meeting->kept->numbers + meeting->kept->starts[i], na / width, width},
                         rows_b = {b, nb / width, width};
    const bool same =
        b && lb_flip_reach_same_rows(meeting->run->reach, which, &rows_a, &rows_b, meeting->kept->noise[i]);
    free(b);
    return same;
}

static bool has_only_same_rows(const meeting *meeting, uint64_t which)
{
    const lb_kept_shadow *k = meeting->kept;
    bool any = false;
    if (k->n_results != meeting->event->n_results) return false;
    for (uint32_t i = 0; i < k->n_results; i++) {
        const int64_t n = lb_kept_shadow_elements(meeting->event, i);
        if ((n < 0) != (k->elements[i] < 0)) return false;
        if (n < 0) continue;
        if (!has_same_rows(meeting, which, i)) return false;
        any = true;
    }
    return any;
}

/* What has met that way stands among the ops that are one quantity. Rows are asked for first, for they are evidence;
 * what the ops read only says that nothing else can have made them differ. */
void lb_shadow_run_meet_reshaped(lb_shadow_run *run, uint32_t op, const lb_event *event)
{
    const uint32_t row = lb_flip_reach_reshaped(run->reach, op);
    if (row == LB_NONE || !run->kept[row].numbers) return;
    const meeting m = {run, row, op, event, &run->kept[row], &run->out->rows[row]};
    const uint64_t which = lb_flip_reach_of(run->reach, op);
    if (which && keeps_to_recording(&m) && has_only_same_rows(&m, which)) {
        lb_flip_reach_meet(run->reach, row, op, LB_MET_BUT_ROWS);
    } else if (explain_by_flips(&m)) {
        hand_over(&m);
        lb_flip_reach_meet(run->reach, row, op, LB_MET_BUT_ROWS);
    }
    lb_kept_shadow_release(m.kept, &run->room);
}
