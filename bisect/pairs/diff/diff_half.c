/* Two sides at one step: which is turned round, and whether they are the same step at all. See diff_half.h. */
#include "diff/diff_half.h"

#include "diff/diff_cuts.h"
#include "diff/diff_rows.h"

#include <stdio.h>
#include <stdlib.h>

bool lb_diff_half_load(lb_diff_half *half, int64_t step)
{
    bool there = (half->programs = malloc(half->n_ranks * sizeof *half->programs)) != NULL;
    for (uint32_t i = 0; i < half->n_ranks && there; i++)
        there = lb_capture_program(half->capture, half->ranks[i], step, &half->programs[i], NULL) == LB_OK;
    return there;
}

lb_status lb_diff_half_open_both(lb_diff_half *first, lb_diff_half *second, lb_rank_plan *plan, lb_err *err)
{
    lb_diff_half *halves[] = {first, second};
    const lb_program *const *const programs[] = {first->programs, second->programs};
    if (!plan->n[0])
        LB_TRY(lb_rank_plan_make(programs, (const uint32_t[]){first->n_ranks, second->n_ranks}, plan, err));
    for (int k = 0; k < 2; k++) {
        lb_diff_half *half = halves[k];
        if (!lb_rank_plan_sort(plan, k, half->programs))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", half->n_ranks);
        LB_TRY(lb_program_view_init(half->capture, half->programs, half->n_ranks, &half->side, err));
        LB_TRY(lb_rank_plan_apply(plan, k, &half->side, err));
    }
    return LB_OK;
}

void lb_diff_half_close(lb_diff_half *half)
{
    lb_program_view_release(&half->side);
    free(half->programs);
    half->programs = NULL;
}

/* A number of what a side did, by which two sides have an order whichever is named first. */
static uint64_t mark_of(const lb_program_view *side)
{
    uint64_t mark = side->program->n_ops;
    for (uint32_t i = 0; i < side->program->n_values; i++) {
        const lb_digest *digest = &side->program->values[i].logical;
        mark = (mark ^ digest->lo) * UINT64_C(0x9E3779B97F4A7C15) ^ digest->hi ^ (mark >> 31);
    }
    return mark;
}

/* Parameters of which a rank has a part only. */
static uint32_t count_parts(const lb_program *program)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < program->n_shards; i++) {
        const lb_layout whole = lb_shard_whole(program, &program->shards[i]),
                        part = lb_shard_part(program, &program->shards[i]);
        n += program->values[program->shards[i].value].flags & LB_VALUE_PARAMETER &&
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

static bool learns(const lb_program *program)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].phase == LB_PHASE_BACKWARD || program->ops[i].phase == LB_PHASE_OPTIMIZER) return true;
    return false;
}

/* What the outermost module was given first; NULL where none was called. */
static const lb_layout *entering(const lb_program *program)
{
    const lb_boundary *first = program->n_boundaries ? &program->boundaries[0] : NULL;
    return first && !first->output && first->value != LB_NONE ? &program->values[first->value].layout : NULL;
}

/* A prefill in two calls is two steps of a run where another has one: from there on steps of one number are of
 * different tokens. Said where neither learns, both go on, one of them for longer, and the outermost modules are given
 * tensors of different shapes. */
static bool are_cut_otherwise(const lb_diff_session *session, lb_diff_walk *walk)
{
    if (walk->past->other_steps) return true;
    const int64_t *steps;
    const uint32_t n[] = {lb_capture_steps(session->a, &steps), lb_capture_steps(session->b, &steps)};
    const lb_layout *x = entering(walk->pa), *y = entering(walk->pb);
    if (n[0] == n[1] || n[0] < 2 || n[1] < 2 || learns(walk->pa) || learns(walk->pb)) return false;
    if (!x || !y || lb_layout_same_shape(x, y)) return false;
    char shapes[2][160], text[640];
    lb_held_part_shape_text(x, shapes[walk->swapped], sizeof shapes[0]);
    lb_held_part_shape_text(y, shapes[!walk->swapped], sizeof shapes[0]);
    snprintf(text, sizeof text,
             "from step %lld of rank %d on: the model is given %s on the first side, %s on the second, "
             "in %u and %u steps: the sides cut their input into other steps, and those of one number are not compared",
             (long long)walk->pa->step, walk->pa->rank, shapes[0], shapes[1], n[0], n[1]);
    lb_report_missing(walk->report, text);
    return walk->past->other_steps = true;
}

/* Calls of modules behind the last update of a step, or before it; none where it has no update. */
static uint32_t count_calls(const lb_program *program, bool behind)
{
    uint32_t last = LB_NONE, n = 0;
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].phase == LB_PHASE_OPTIMIZER) last = i;
    for (uint32_t i = 0; i < program->n_boundaries && last != LB_NONE; i++) {
        const lb_boundary *boundary = &program->boundaries[i];
        n += boundary->output && !boundary->recompute && boundary->position == 0 && (boundary->op > last) == behind;
    }
    return n;
}

/* Of the step behind this one, before its last update. */
static uint32_t count_next_calls(const lb_program_view *side)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < side->n_parts; i++) {
        const lb_program *program = side->parts[i].program, *next;
        if (lb_capture_program(side->capture, program->rank, program->step + 1, &next, NULL) == LB_OK)
            n += count_calls(next, false);
    }
    return n;
}

/* A step ends where the next forward computes gradients: a teacher, or a generator, that is called first is of the step
 * before where it computes none (torch.no_grad), and of the next where its result is detached instead. */
static bool do_end_elsewhere(const lb_diff_session *session, lb_diff_walk *walk)
{
    const lb_program_view *sides[] = {walk->swapped ? walk->b : walk->a, walk->swapped ? walk->a : walk->b};
    uint32_t behind[2], next[2];
    for (int k = 0; k < 2; k++) behind[k] = count_calls(sides[k]->program, true), next[k] = count_next_calls(sides[k]);
    if (behind[0] == behind[1] || behind[0] + next[0] != behind[1] + next[1]) return false;
    char text[400];
    snprintf(text, sizeof text,
             "from step %lld of rank %d on: "
             "behind its update this step calls modules on the %s side which on the other the next step begins with: "
             "steps of one number are not compared; record both with --step-at",
             (long long)walk->pa->step, walk->pa->rank, behind[0] > behind[1] ? "first" : "second");
    if (!session->quiet) lb_report_missing(walk->report, text);
    return walk->past->other_steps = true;
}

lb_status lb_diff_half_compare(lb_diff_session *session, lb_diff_half *first, lb_diff_half *second,
                               lb_diff_walk_past *past, lb_err *err)
{
    const bool swapped = session->swapped = is_swapped(first, second, &past->plan);
    lb_taints storages[2] = {past->storages[swapped], past->storages[!swapped]};
    lb_diff_walk walk = {.a = swapped ? &second->side : &first->side,
                         .b = swapped ? &first->side : &second->side,
                         .report = session->quiet ? session->quiet : session->report,
                         .storages = storages,
                         .past = past,
                         .swapped = swapped};
    walk.pa = walk.a->program, walk.pb = walk.b->program;
    walk.uneven = lb_program_views_are_uneven(walk.a, walk.b) || lb_alignment_finer(walk.pb, walk.pa);
    if (!session->quiet) session->shared++;
    if (!past->any) past->first = walk.pa->step, past->any = true;
    lb_status status = are_cut_otherwise(session, &walk) || do_end_elsewhere(session, &walk)
                           ? LB_OK
                           : lb_diff_step(&walk, session, err);
    past->storages[swapped] = storages[0], past->storages[!swapped] = storages[1];
    lb_alignment_release(&walk.alignment);
    lb_shadow_pair_release(&walk.shadows);
    lb_noise_release(&walk.noise);
    for (int k = 0; k < 2; k++) lb_owners_free(walk.owners[k]);
    lb_merged_steps_release(&walk.merged);
    lb_divergences_release(&walk.divergences);
    lb_step_outputs_release(&walk.exits), lb_logged_scalars_release(&walk.scalars);
    lb_cut_tensors_release(&walk.cuts);
    for (int k = 0; k < 2; k++) lb_collective_matches_release(&walk.collective_matches[k]), free(walk.extents[k]);
    free(walk.differs), free(walk.settled), free(walk.reorderings), free(walk.divergence_of);
    return status;
}
