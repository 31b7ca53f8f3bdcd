/* Two sides at one step: which is turned round, and whether they are the same step at all. See diff_half.h. */
#include "diff/diff_half.h"

#include "diff/diff_cuts.h"
#include "diff/diff_rows.h"

#include <stdio.h>
#include <stdlib.h>

bool lb_diff_half_load(lb_diff_half *h, int64_t step)
{
    bool there = (h->programs = malloc(h->n_ranks * sizeof *h->programs)) != NULL;
    for (uint32_t i = 0; i < h->n_ranks && there; i++)
        there = lb_capture_program(h->capture, h->ranks[i], step, &h->programs[i], NULL) == LB_OK;
    return there;
}

lb_status lb_diff_half_open_both(lb_diff_half *first, lb_diff_half *second, lb_rank_plan *plan, lb_err *err)
{
    lb_diff_half *halves[] = {first, second};
    const lb_program *const *const programs[] = {first->programs, second->programs};
    if (!plan->n[0])
        LB_TRY(lb_rank_plan_make(programs, (const uint32_t[]){first->n_ranks, second->n_ranks}, plan, err));
    for (int k = 0; k < 2; k++) {
        lb_diff_half *h = halves[k];
        if (!lb_rank_plan_sort(plan, k, h->programs))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", h->n_ranks);
        LB_TRY(lb_program_view_init(h->capture, h->programs, h->n_ranks, &h->side, err));
        LB_TRY(lb_rank_plan_apply(plan, k, &h->side, err));
    }
    return LB_OK;
}

void lb_diff_half_close(lb_diff_half *h)
{
    lb_program_view_release(&h->side);
    free(h->programs);
    h->programs = NULL;
}

/* A number of what a side did, by which two sides have an order whichever is named first. */
static uint64_t mark_of(const lb_program_view *side)
{
    uint64_t mark = side->program->n_ops;
    for (uint32_t i = 0; i < side->program->n_values; i++) {
        const lb_digest *d = &side->program->values[i].logical;
        mark = (mark ^ d->lo) * UINT64_C(0x9E3779B97F4A7C15) ^ d->hi ^ (mark >> 31);
    }
    return mark;
}

/* Parameters of which a rank has a part only. */
static uint32_t count_parts(const lb_program *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_shards; i++) {
        const lb_layout whole = lb_shard_whole(p, &p->shards[i]), part = lb_shard_part(p, &p->shards[i]);
        n += p->values[p->shards[i].value].flags & LB_VALUE_PARAMETER &&
             lb_layout_numel(&part) < lb_layout_numel(&whole);
    }
    return n;
}

/* Who is more ranks, alone shares out its parameters, calls its layers more often, or holds its parameters in more
 * tensors, is B: rows are turned round then. Of two alike the marks decide, so that a diff is the same whichever side
 * is named first. */
static bool is_swapped(const lb_diff_half *first, const lb_diff_half *second, const lb_rank_plan *plan)
{
    if (plan->group[0]) return plan->coarse == 1;
    if (first->n_ranks != second->n_ranks) return first->n_ranks > second->n_ranks;
    const uint32_t parts[] = {count_parts(first->side.program), count_parts(second->side.program)};
    if (first->n_ranks > 1 && !parts[0] != !parts[1]) return parts[0];
    if (lb_alignment_finer(first->side.program, second->side.program)) return true;
    if (lb_alignment_finer(second->side.program, first->side.program)) return false;
    const uint32_t parameters[] = {lb_fused_sources_count(first->side.program),
                                   lb_fused_sources_count(second->side.program)};
    if (parameters[0] != parameters[1]) return parameters[0] > parameters[1];
    return mark_of(&first->side) > mark_of(&second->side);
}

static bool learns(const lb_program *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].phase == LB_PHASE_BACKWARD || p->ops[i].phase == LB_PHASE_OPTIMIZER) return true;
    return false;
}

/* What the outermost module was given first; NULL where none was called. */
static const lb_layout *entering(const lb_program *p)
{
    const lb_boundary *first = p->n_boundaries ? &p->boundaries[0] : NULL;
    return first && !first->output && first->value != LB_NONE ? &p->values[first->value].layout : NULL;
}

/* A prefill in two calls is two steps of a run where another has one: from there on steps of one number are of
 * different tokens. Said where neither learns, both go on, one of them for longer, and the outermost modules are given
 * tensors of different shapes. */
static bool are_cut_otherwise(const lb_diff_session *s, lb_diff_walk *w)
{
    if (w->past->other_steps) return true;
    const int64_t *steps;
    const uint32_t n[] = {lb_capture_steps(s->a, &steps), lb_capture_steps(s->b, &steps)};
    const lb_layout *x = entering(w->pa), *y = entering(w->pb);
    if (n[0] == n[1] || n[0] < 2 || n[1] < 2 || learns(w->pa) || learns(w->pb)) return false;
    if (!x || !y || lb_layout_same_shape(x, y)) return false;
    char shapes[2][160], text[640];
    lb_held_part_shape_text(x, shapes[w->swapped], sizeof shapes[0]);
    lb_held_part_shape_text(y, shapes[!w->swapped], sizeof shapes[0]);
    snprintf(text, sizeof text,
             "from step %lld of rank %d on: the model is given %s on the first side, %s on the second, in %u and %u "
             "steps: the sides cut their input into other steps, and those of one number are not compared",
             (long long)w->pa->step, w->pa->rank, shapes[0], shapes[1], n[0], n[1]);
    lb_report_missing(w->report, text);
    return w->past->other_steps = true;
}

/* Calls of modules behind the last update of a step, or before it; none where it has no update. */
static uint32_t count_calls(const lb_program *p, bool behind)
{
    uint32_t last = LB_NONE, n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].phase == LB_PHASE_OPTIMIZER) last = i;
    for (uint32_t i = 0; i < p->n_boundaries && last != LB_NONE; i++) {
        const lb_boundary *b = &p->boundaries[i];
        n += b->output && !b->recompute && b->position == 0 && (b->op > last) == behind;
    }
    return n;
}

/* Of the step behind this one, before its last update. */
static uint32_t count_next_calls(const lb_program_view *side)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < side->n_parts; i++) {
        const lb_program *p = side->parts[i].program, *next;
        if (lb_capture_program(side->capture, p->rank, p->step + 1, &next, NULL) == LB_OK)
            n += count_calls(next, false);
    }
    return n;
}

/* A step ends where the next forward computes gradients: a teacher, or a generator, that is called first is of the step
 * before where it computes none (torch.no_grad), and of the next where its result is detached instead. */
static bool do_end_elsewhere(const lb_diff_session *s, lb_diff_walk *w)
{
    const lb_program_view *sides[] = {w->swapped ? w->b : w->a, w->swapped ? w->a : w->b};
    uint32_t behind[2], next[2];
    for (int k = 0; k < 2; k++) behind[k] = count_calls(sides[k]->program, true), next[k] = count_next_calls(sides[k]);
    if (behind[0] == behind[1] || behind[0] + next[0] != behind[1] + next[1]) return false;
    char text[400];
    snprintf(text, sizeof text,
             "from step %lld of rank %d on: behind its update this step calls modules on the %s side which on the "
             "other the next step "
             "begins with: steps of one number are not compared; record both with --step-at",
             (long long)w->pa->step, w->pa->rank, behind[0] > behind[1] ? "first" : "second");
    if (!s->quiet) lb_report_missing(w->report, text);
    return w->past->other_steps = true;
}

lb_status lb_diff_half_compare(lb_diff_session *s, lb_diff_half *first, lb_diff_half *second, lb_diff_walk_past *past,
                               lb_err *err)
{
    const bool swapped = s->swapped = is_swapped(first, second, &past->plan);
    lb_taints storages[2] = {past->storages[swapped], past->storages[!swapped]};
    lb_diff_walk w = {.a = swapped ? &second->side : &first->side,
                      .b = swapped ? &first->side : &second->side,
                      .report = s->quiet ? s->quiet : s->report,
                      .storages = storages,
                      .past = past,
                      .swapped = swapped};
    w.pa = w.a->program, w.pb = w.b->program;
    w.uneven = lb_program_views_are_uneven(w.a, w.b) || lb_alignment_finer(w.pb, w.pa);
    if (!s->quiet) s->shared++;
    if (!past->any) past->first = w.pa->step, past->any = true;
    lb_status status = are_cut_otherwise(s, &w) || do_end_elsewhere(s, &w) ? LB_OK : lb_diff_step(&w, s, err);
    past->storages[swapped] = storages[0], past->storages[!swapped] = storages[1];
    lb_alignment_release(&w.alignment);
    lb_shadow_pair_release(&w.shadows);
    lb_noise_release(&w.noise);
    for (int k = 0; k < 2; k++) lb_owners_free(w.owners[k]);
    lb_merged_steps_release(&w.merged);
    lb_divergences_release(&w.divergences);
    lb_step_outputs_release(&w.exits), lb_logged_scalars_release(&w.scalars);
    lb_cut_tensors_release(&w.cuts);
    for (int k = 0; k < 2; k++) lb_collective_matches_release(&w.collective_matches[k]), free(w.extents[k]);
    free(w.differs), free(w.settled), free(w.reorderings), free(w.divergence_of);
    return status;
}
