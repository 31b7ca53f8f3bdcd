/* Diff of two captures: see lastbit/diff.h for the three questions.
 *
 * Per aligned step and rank: digests are compared op by op; only if something differs are both sides replayed
 * (shadow_pair.h); then one walk over A's program spreads the answers (diff_walk.h).
 */
#include "diff_cuts.h"
#include "diff_implementations.h"
#include "diff_orders.h"
#include "diff_rows.h"
#include "diff_structure.h"
#include "diff_values.h"
#include "exits.h"
#include "rank_plan.h"
#include "strangers.h"

#include <lastbit/lacking.h>
#include "diff_tokens.h"
#include "routing_diff.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a step ---- */

static bool has_ops(const lb_program *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (lb_op_computes(p, &p->ops[i])) return true;
    return false;
}

/* What all steps of a diff share. */
typedef struct session {
    lb_capture *a, *b; /* the first and the second side */
    const lb_diff_options *options;
    const lb_map_rules *rules;
    lb_diff_report *report;
    lb_diff_report *
        quiet; /* of steps before the window that was asked for: what they leave is known, and nothing is said; or NULL */
    bool swapped;     /* the last pair was turned round */
    uint64_t shared;  /* steps that both sides have */
    lb_lack lacks[2]; /* bytes that either side did not keep, and for want of which something could not be judged */
} session;

typedef struct wanting {
    uint8_t *read; /* per value of A: it has other bits on the other side */
    bool any;
} wanting;

static void note_wanted(void *context, uint32_t value)
{
    wanting *x = context;
    x->any |= value != LB_NONE && x->read[value];
}

/* Pairs whose shadows are compared: those that differ, and those that have the same bits although they read what differs, where rounding
 * may hide that something else is computed. malloc'ed; NULL when out of memory. */
static uint8_t *list_wanted(lb_walk *w)
{
    const lb_program *p = w->pa;
    uint8_t *wanted = malloc(p->n_ops + 1);
    wanting x = {calloc(p->n_values + 1, 1), false};
    for (uint32_t i = 0; wanted && x.read && i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        wanted[i] = w->differs[i];
        for (uint32_t k = 0; w->differs[i] && k < lb_op_outcomes(op); k++)
            if (lb_op_outcome(p, op, k) != LB_NONE) x.read[lb_op_outcome(p, op, k)] = 1;
        if (w->differs[i] || w->alignment.b_of_a[i] == LB_NONE || w->alignment.irregular[i] || w->uneven) continue;
        x.any = false;
        lb_op_each_input(p, op, note_wanted, &x);
        wanted[i] = x.any;
    }
    if (!x.read) free(wanted), wanted = NULL;
    free(x.read);
    return wanted;
}

static lb_status replay_both(lb_walk *w, const lb_diff_options *options, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    uint8_t *wanted = list_wanted(w);
    if (!wanted) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", w->pa->n_ops);
    const lb_shadow_question asked = {w->a, w->b, &w->alignment, wanted, options->memory_bytes, options->progress};
    lb_status status = lb_shadow_pair_run(&asked, &w->exits, &w->shadows, &why);
    char text[640];
    free(wanted);
    if (status == LB_ERR_NOMEM) return lb_fail(err, status, "%s", why.message);
    w->have_shadows = status == LB_OK;
    if (status != LB_OK) {
        snprintf(text, sizeof text, "step %lld rank %d could not be replayed: %s", (long long)w->pa->step, w->pa->rank,
                 why.message);
        lb_report_missing(w->report, text);
    } else if (w->shadows.over_memory) {
        lb_report_missing(w->report, "some exact shadows did not fit the memory limit; raise --memory");
    }
    if (!w->have_shadows) return LB_OK;
    status = lb_reorder_find(w->a, w->b, &w->alignment, w->differs, &w->shadows, &w->reorderings, err);
    w->report->cost.runs += w->shadows.cost.runs, w->report->cost.ops += w->shadows.cost.ops;
    return status;
}

static uint32_t find_differences(lb_walk *w)
{
    uint32_t differing = 0;
    for (uint32_t e = 0; e < w->exits.n; e++)
        differing += !w->exits.list[e].input && (w->exits.list[e].differs || w->exits.list[e].other_shape);
    for (uint32_t i = 0; i < w->pa->n_ops; i++) {
        uint32_t j = w->alignment.b_of_a[i], join = w->alignment.join_of_a[i];
        bool source = lb_op_is_source(w->pa, &w->pa->ops[i]);
        if (j != LB_NONE)
            w->differs[i] = lb_walk_pair_differs(w, i, j);
        else if (join != LB_NONE && !source)
            w->differs[i] = lb_walk_join_differs(w, &w->alignment.joins.list[join]);
        differing += w->differs[i] || (source && lb_walk_source_differs(w, i));
    }
    return differing;
}

/* Pairs that differ and that one side could not even hold against its own recording: what it did not keep. */
static void note_lacks(session *s, const lb_walk *w)
{
    const lb_program_view *sides[] = {w->a, w->b};
    for (uint32_t i = 0; w->have_shadows && i < w->pa->n_ops; i++) {
        const uint32_t ops[] = {i, w->alignment.b_of_a[i]};
        for (int k = 0; k < 2 && w->differs[i] && ops[1] != LB_NONE; k++) {
            const lb_program_view_part *part = &sides[k]->parts[lb_program_view_part_of(sides[k], ops[k])];
            if (w->shadows.rows[i].own[k] == LB_VERDICT_MISSING && w->shadows.rows[i].agreement == LB_SHADOW_UNKNOWN)
                lb_lack_add(&s->lacks[k ^ (int)w->swapped], part->program, ops[k] - part->first_op);
        }
    }
}

/* Which side is to be recorded again, and how, so that the pair can be judged. */
static void say_lacks(session *s)
{
    lb_capture *captures[] = {s->a, s->b};
    for (int k = 0; k < 2; k++) {
        const char *like = s->lacks[!k].ops ? NULL : lb_capture_path(captures[!k]); /* the other side kept enough */
        char *text = lb_lack_sentence(&s->lacks[k], captures[k], k ? "the second side" : "the first side", like);
        if (text) lb_report_missing(s->report, text);
        free(text);
    }
}

static lb_status measure_noise(lb_walk *w, const lb_diff_options *options, lb_err *err)
{
    char text[160];
    if (!options->n_noise) return LB_OK;
    LB_TRY(lb_noise_measure(w->swapped ? w->b : w->a, options->noise, options->n_noise, &w->noise, err));
    snprintf(text, sizeof text,
             "--noise: none of these runs has all of step %lld, rank %d: what differs there is held against no noise",
             (long long)w->pa->step, w->pa->rank);
    if (!w->noise.runs) lb_report_finding(w->report, text);
    return LB_OK;
}

/* Batches of other sizes: no op that carries their rows lines up here. explain takes the rows that both have. */
static lb_status note_rows(lb_walk *w, const session *s, lb_err *err)
{
    const lb_program_view *first = w->swapped ? w->b : w->a, *second = w->swapped ? w->a : w->b;
    lb_batch_rows rows;
    char text[600];
    if (w->a->n_parts != 1 || w->b->n_parts != 1 || !lb_batch_rows_apply(w->pa, w->pb)) return LB_OK;
    LB_TRY(lb_batch_rows_find(first, second, s->rules, NULL, &rows, err));
    if (rows.places)
        snprintf(text, sizeof text,
                 "step %lld, rank %d: the sides' batches have %lld and %lld rows (%.60s), so that what carries rows "
                 "has other "
                 "shapes and is not compared here; row %lld of the first is row %lld of the second: `lastbit explain` "
                 "holds the rows "
                 "that both have against each other, op by op",
                 (long long)w->pa->step, w->pa->rank, (long long)(rows.turned ? rows.many : rows.few),
                 (long long)(rows.turned ? rows.few : rows.many), rows.by,
                 (long long)(rows.turned ? rows.places[0] : 0), (long long)(rows.turned ? 0 : rows.places[0]));
    else if (*rows.missing)
        snprintf(text, sizeof text, "step %lld, rank %d: %s", (long long)w->pa->step, w->pa->rank, rows.missing);
    if (rows.places || *rows.missing) lb_report_finding(w->report, text);
    lb_batch_rows_release(&rows);
    return LB_OK;
}

/* Ops that one side alone runs may leave something that is not aligned. */
static bool has_lone_ops(const lb_walk *w)
{
    for (uint32_t i = 0; i < w->pa->n_ops; i++)
        if (w->alignment.b_of_a[i] == LB_NONE && w->alignment.join_of_a[i] == LB_NONE &&
            lb_op_computes(w->pa, &w->pa->ops[i]))
            return true;
    for (uint32_t i = 0; i < w->pb->n_ops; i++)
        if (w->alignment.a_of_b[i] == LB_NONE && w->alignment.join_of_b[i] == LB_NONE &&
            lb_op_computes(w->pb, &w->pb->ops[i]))
            return true;
    return false;
}

static lb_status find_exits(lb_walk *w, const lb_map_rules *rules_a, const lb_map_rules *rules_b, lb_err *err)
{
    char lone[300], text[400];
    const lb_aligned_views views = lb_walk_views(w);
    LB_TRY(lb_exits_find(&views, (const lb_map_rules *const[]){rules_a, rules_b}, &w->exits, lone, err));
    snprintf(text, sizeof text, "step %lld, rank %d: %s", (long long)w->pa->step, w->pa->rank, lone);
    if (*lone) lb_report_finding(w->report, text);
    LB_TRY(lb_logged_scalars_find(&views, w->swapped, &w->scalars, err));
    return lb_logged_scalars_add(&w->scalars, &views, &w->exits, err);
}

/* A cache, or what else an earlier step rounded: floats that come in, and are neither parameters nor states nor what the model is given first. */
static bool begins_with_floats(const lb_program *p)
{
    const uint32_t given = p->n_boundaries && !p->boundaries[0].output ? p->boundaries[0].value : LB_NONE;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const uint32_t v = lb_op_is_source(p, &p->ops[i]) ? lb_op_results(p, &p->ops[i])[0] : LB_NONE;
        if (v == LB_NONE || !lb_dtype_is_float(p->values[v].dtype)) continue;
        if (given != LB_NONE && p->values[v].storage == p->values[given].storage) continue;
        if (!(p->values[v].flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE))) return true;
    }
    return false;
}

/* A side that computes again what the other has in a cache is given all tokens, and the other the last of them. */
static bool is_given_more(const lb_walk *w)
{
    if (w->pa->step == w->past->first || !(begins_with_floats(w->pa) || begins_with_floats(w->pb))) return false;
    for (uint32_t e = 0; e < w->exits.n; e++)
        if (w->exits.list[e].other_shape && w->exits.list[e].rows >= 0) return true;
    return false;
}

static uint64_t count_computing(const lb_program *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) n += lb_op_computes(p, &p->ops[i]);
    return n;
}

static lb_status diff_step(lb_walk *w, session *s, lb_err *err)
{
    const lb_diff_options *options = s->options;
    const lb_map_rules *rules_a = w->swapped ? NULL : s->rules, *rules_b = w->swapped ? s->rules : NULL;
    if (has_ops(w->pa) && has_ops(w->pb)) LB_TRY(note_rows(w, s, err));
    LB_TRY(lb_alignment_make_by_parameter(w->a, w->b, rules_a, rules_b, &w->alignment, err));
    LB_TRY(lb_fused_sources_join(&w->past->fused, w->a, w->b, &w->alignment, err));
    LB_TRY(
        lb_cut_tensors_find(w->a, w->b, (const lb_map_rules *const[]){rules_a, rules_b}, &w->alignment, &w->cuts, err));
    w->cut = w->past->cut |= w->cuts.unknown > 0;
    w->held_otherwise = w->pa->step > w->past->first && lb_fused_sources_apart(w->a, w->b, &w->alignment);
    LB_TRY(lb_met_storages_pair(&w->past->met, w->a, w->b, w->swapped, &w->alignment, err));
    w->differs = calloc(w->pa->n_ops + 1, 1), w->settled = calloc((size_t)w->pa->n_ops + w->pb->n_ops + 1, 1);
    if (!w->differs || !w->settled) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", w->pa->n_ops);
    /* A write that one side alone makes shows in no pair, but in what a parameter holds at the end. */
    LB_TRY(lb_shadow_pair_init(w->a, w->b, &w->alignment, &w->shadows, err));
    for (int k = 0; k < 2; k++)
        if ((k ? w->b : w->a)->n_parts > 1) LB_TRY(lb_collective_matches_find(k ? w->b : w->a, &w->meetings[k], err));
    LB_TRY(find_exits(w, rules_a, rules_b, err));
    w->given_more = is_given_more(w);
    uint32_t differing = find_differences(w) + w->shadows.n_finals + has_lone_ops(w);
    if (differing) LB_TRY(measure_noise(w, options, err));
    w->report->recorded_ops += count_computing(w->pa) + count_computing(w->pb);
    if (differing && !options->digests_only) LB_TRY(replay_both(w, options, err));
    LB_TRY(lb_walk_cuts(w, err));
    if (s->quiet) return lb_walk_program(w, err);
    note_lacks(s, w);
    LB_TRY(lb_walk_list_parameters(w, err));
    LB_TRY(lb_walk_program(w, err));
    if (has_ops(w->pa) && has_ops(w->pb)) lb_walk_list_structure(w);
    if (options->digests_only) return LB_OK;
    const lb_program_view *first = w->swapped ? w->b : w->a, *second = w->swapped ? w->a : w->b;
    LB_TRY(lb_routing_diff_add(first, second, s->rules, w->report, err));
    return lb_diff_tokens_add(first, second, options, w->report, err);
}

/* The programs of one side, and what they become. */
typedef struct half {
    lb_capture *capture;
    const int32_t *ranks;
    uint32_t n_ranks;
    const lb_program **programs; /* of the step at hand, in the order in which they are put together */
    lb_program_view side;
} half;

/* False: the half has no such step. */
static bool load_half(half *h, int64_t step)
{
    bool there = (h->programs = malloc(h->n_ranks * sizeof *h->programs)) != NULL;
    for (uint32_t i = 0; i < h->n_ranks && there; i++)
        there = lb_capture_program(h->capture, h->ranks[i], step, &h->programs[i], NULL) == LB_OK;
    return there;
}

/* The first step that both sides have says which ranks stand against each other in all. */
static lb_status open_halves(half *first, half *second, lb_rank_plan *plan, lb_err *err)
{
    half *halves[] = {first, second};
    const lb_program *const *const programs[] = {first->programs, second->programs};
    if (!plan->n[0])
        LB_TRY(lb_rank_plan_make(programs, (const uint32_t[]){first->n_ranks, second->n_ranks}, plan, err));
    for (int k = 0; k < 2; k++) {
        half *h = halves[k];
        if (!lb_rank_plan_sort(plan, k, h->programs))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", h->n_ranks);
        LB_TRY(lb_program_view_init(h->capture, h->programs, h->n_ranks, &h->side, err));
        LB_TRY(lb_rank_plan_apply(plan, k, &h->side, err));
    }
    return LB_OK;
}

static void close_half(half *h)
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

/* Who is more ranks, alone shares out its parameters, calls its layers more often, or holds its parameters in more tensors, is B: rows are turned round then. Of two alike the marks decide, so that a diff is
 * the same whichever side is named first. */
static bool is_swapped(const half *first, const half *second, const lb_rank_plan *plan)
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

/* A prefill in two calls is two steps of a run where another has one: from there on steps of one number are of other tokens. Said where neither
 * learns, both go on, one of them for longer, and the outermost modules are given tensors of other shapes. */
static bool are_cut_otherwise(const session *s, lb_walk *w)
{
    if (w->past->other_steps) return true;
    const int64_t *steps;
    const uint32_t n[] = {lb_capture_steps(s->a, &steps), lb_capture_steps(s->b, &steps)};
    const lb_layout *x = entering(w->pa), *y = entering(w->pb);
    if (n[0] == n[1] || n[0] < 2 || n[1] < 2 || learns(w->pa) || learns(w->pb)) return false;
    if (!x || !y || lb_layout_same_shape(x, y)) return false;
    char shapes[2][160], text[640];
    lb_cut_shape_text(x, shapes[w->swapped], sizeof shapes[0]);
    lb_cut_shape_text(y, shapes[!w->swapped], sizeof shapes[0]);
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

/* A step ends where the next forward computes gradients: a teacher, or a generator, that is called first is of the step before where it computes
 * none (torch.no_grad), and of the next where its result is detached instead. */
static bool do_end_elsewhere(const session *s, lb_walk *w)
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

static lb_status diff_halves(session *s, half *first, half *second, lb_walk_past *past, lb_err *err)
{
    const bool swapped = s->swapped = is_swapped(first, second, &past->plan);
    lb_taints storages[2] = {past->storages[swapped], past->storages[!swapped]};
    lb_walk w = {.a = swapped ? &second->side : &first->side,
                 .b = swapped ? &first->side : &second->side,
                 .report = s->quiet ? s->quiet : s->report,
                 .storages = storages,
                 .past = past,
                 .swapped = swapped};
    w.pa = w.a->program, w.pb = w.b->program;
    w.uneven = lb_program_views_are_uneven(w.a, w.b) || lb_alignment_finer(w.pb, w.pa);
    if (!s->quiet) s->shared++;
    if (!past->any) past->first = w.pa->step, past->any = true;
    lb_status status = are_cut_otherwise(s, &w) || do_end_elsewhere(s, &w) ? LB_OK : diff_step(&w, s, err);
    past->storages[swapped] = storages[0], past->storages[!swapped] = storages[1];
    lb_alignment_release(&w.alignment);
    lb_shadow_pair_release(&w.shadows);
    lb_noise_release(&w.noise);
    for (int k = 0; k < 2; k++) lb_owners_free(w.owners[k]);
    lb_merged_steps_release(&w.merged);
    lb_divergences_release(&w.divergences);
    lb_exits_release(&w.exits), lb_logged_scalars_release(&w.scalars);
    lb_cut_tensors_release(&w.cuts);
    for (int k = 0; k < 2; k++) lb_collective_matches_release(&w.meetings[k]), free(w.extents[k]);
    free(w.differs), free(w.settled), free(w.reorderings), free(w.divergence_of);
    return status;
}

/* ---- steps and ranks ---- */

/* Tensors of one moment: that other steps are not there is no gap. */
static bool is_checkpoint(const half *h)
{
    const int64_t *steps;
    const lb_program *p;
    return lb_capture_steps(h->capture, &steps) == 1 &&
           lb_capture_program(h->capture, h->ranks[0], steps[0], &p, NULL) == LB_OK && !has_ops(p);
}

/* Steps that the second side alone has: the first side's program ended before them, or they were not recorded there. */
static void list_lone_steps(session *s, half *first, half *second)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(s->b, &steps);
    char text[160];
    for (uint32_t i = 0; i < n; i++) {
        if (steps[i] < s->options->first_step || steps[i] > s->options->last_step) continue;
        if (load_half(second, steps[i]) && !load_half(first, steps[i]) && !is_checkpoint(first)) {
            snprintf(text, sizeof text, "step %lld of rank %d was captured on the second side only",
                     (long long)steps[i], second->ranks[0]);
            lb_report_missing(s->report, text);
        }
        close_half(first), close_half(second);
    }
}

/* A step in which one side's program ended, by an exception: what it did not come to is no difference, and the step is not compared. Of two
 * that ended there, each is what there is. */
static bool is_cut_off(const session *s, const half *first, const half *second)
{
    bool complete[2] = {true, true};
    char text[240];
    for (uint32_t i = 0; i < first->n_ranks; i++) complete[0] &= first->programs[i]->complete != 0;
    for (uint32_t i = 0; i < second->n_ranks; i++) complete[1] &= second->programs[i]->complete != 0;
    if (complete[0] == complete[1]) return false;
    snprintf(text, sizeof text,
             "step %lld of rank %d is incomplete on the %s side: its program, or the recording of it, ended there; "
             "that step is not compared",
             (long long)first->programs[0]->step, first->ranks[0], complete[0] ? "second" : "first");
    if (!s->quiet) lb_report_missing(s->report, text);
    return true;
}

/* A step of the first side, against the second's. */
static lb_status diff_one(session *s, half *first, half *second, int64_t step, lb_walk_past *past, lb_err *err)
{
    char text[160];
    lb_status status = LB_OK;
    if (load_half(first, step)) {
        if (load_half(second, step)) {
            const bool cut_off = is_cut_off(s, first, second);
            if (cut_off) s->shared++;
            if (!cut_off) status = open_halves(first, second, &past->plan, err);
            if (status == LB_OK && !cut_off) status = diff_halves(s, first, second, past, err);
        } else if (!is_checkpoint(second) && !s->quiet) {
            snprintf(text, sizeof text, "step %lld of rank %d was captured on the first side only", (long long)step,
                     first->ranks[0]);
            lb_report_missing(s->report, text);
        }
    }
    close_half(first), close_half(second);
    return status;
}

/* A window that begins in the middle of what both sides recorded: the steps before it say what it begins with. */
static lb_status diff_quietly(session *s, half *first, half *second, int64_t step, lb_walk_past *past, lb_err *err)
{
    s->quiet = calloc(1, sizeof *s->quiet);
    if (!s->quiet) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = diff_one(s, first, second, step, past, err);
    lb_diff_report_free(s->quiet);
    s->quiet = NULL;
    return status;
}

static lb_status diff_steps(session *s, half *first, half *second, lb_err *err)
{
    const int64_t *steps;
    uint32_t n_steps = lb_capture_steps(s->a, &steps);
    lb_walk_past past = {
        .read = {LB_VERDICT_IDENTICAL, 0, false}}; /* a parameter hands its verdict on over the steps */
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < n_steps && status == LB_OK; i++) {
        if (steps[i] > s->options->last_step) continue;
        if (s->options->progress) s->options->progress("comparing steps", i, n_steps);
        status = steps[i] < s->options->first_step && !s->options->digests_only
                     ? diff_quietly(s, first, second, steps[i], &past, err)
                 : steps[i] < s->options->first_step ? LB_OK
                                                     : diff_one(s, first, second, steps[i], &past, err);
    }
    if (status == LB_OK) list_lone_steps(s, first, second);
    lb_taints_release(&past.storages[0]), lb_taints_release(&past.storages[1]);
    lb_fused_sources_release(&past.fused);
    lb_met_storages_release(&past.met);
    lb_rank_plan_release(&past.plan);
    return status;
}

static bool holds_world(lb_capture *capture, const int32_t *ranks, uint32_t n, int32_t *world)
{
    const int64_t *steps;
    const lb_program *p;
    if (!n || !lb_capture_steps(capture, &steps)) return false;
    if (lb_capture_program(capture, ranks[0], steps[0], &p, NULL) != LB_OK) return false;
    *world = p->world > 0 ? p->world : 1;
    return (uint32_t)*world == n;
}

static bool communicates(lb_capture *capture, int32_t rank)
{
    const int64_t *steps;
    const lb_program *p;
    return lb_capture_steps(capture, &steps) && lb_capture_program(capture, rank, steps[0], &p, NULL) == LB_OK &&
           p->n_collectives;
}

/* All ranks of a run against all of one that has several times as many: each rank, or the one process, is held against that many of the
 * other side put together. Of as many ranks, each is held against its own, and what a collective gives to one against what all
 * brought. */
static bool are_taken_together(const session *s, const half *first, const half *second)
{
    int32_t world_a, world_b;
    const uint32_t few = first->n_ranks < second->n_ranks ? first->n_ranks : second->n_ranks,
                   many = first->n_ranks < second->n_ranks ? second->n_ranks : first->n_ranks;
    if (!few || many % few || many == 1 || !holds_world(s->a, first->ranks, first->n_ranks, &world_a) ||
        !holds_world(s->b, second->ranks, second->n_ranks, &world_b))
        return false;
    return few != many || communicates(s->a, first->ranks[0]);
}

static lb_status diff_ranks(session *s, lb_err *err)
{
    half all_a = {.capture = s->a}, all_b = {.capture = s->b};
    all_a.n_ranks = lb_capture_ranks(s->a, &all_a.ranks), all_b.n_ranks = lb_capture_ranks(s->b, &all_b.ranks);
    if (are_taken_together(s, &all_a, &all_b)) return diff_steps(s, &all_a, &all_b, err);
    for (uint32_t i = 0; i < all_a.n_ranks; i++) {
        half first = {.capture = s->a, .ranks = &all_a.ranks[i], .n_ranks = 1};
        half second = {.capture = s->b, .ranks = first.ranks, .n_ranks = 1};
        uint32_t j = 0;
        while (j < all_b.n_ranks && all_b.ranks[j] != all_a.ranks[i]) j++;
        if (j < all_b.n_ranks) {
            LB_TRY(diff_steps(s, &first, &second, err));
        } else {
            char text[80];
            snprintf(text, sizeof text, "rank %d was captured on the first side only", all_a.ranks[i]);
            lb_report_missing(s->report, text);
        }
    }
    return LB_OK;
}

/* ---- by aligned ops, or by values ---- */

/* Ops of forward or backward without a partner: the sides spell something differently. */
static bool is_spelled_differently(const lb_diff_report *r)
{
    for (uint32_t i = 0; i < r->n_structures; i++)
        if (r->structures[i].phase == LB_PHASE_FORWARD || r->structures[i].phase == LB_PHASE_BACKWARD) return true;
    return false;
}

/* What the other report knows of tokens and routing goes with the answer. */
static void take_over(lb_diff_report *to, lb_diff_report *from)
{
    to->tokens = from->tokens, to->n_tokens = from->n_tokens, to->tokens_approximate = from->tokens_approximate;
    to->routings = from->routings, to->n_routings = from->n_routings;
    for (uint32_t i = 0; i < to->n_tokens; i++) to->tokens[i].kind = lb_report_keep(to, to->tokens[i].kind);
    for (uint32_t i = 0; i < to->n_routings; i++) to->routings[i].layer = lb_report_keep(to, to->routings[i].layer);
    from->tokens = NULL, from->n_tokens = 0, from->routings = NULL, from->n_routings = 0;
}

/* Arguments and lines of a row live as long as their report. */
static void keep_texts(lb_diff_report *to, lb_diff_row *row)
{
    for (uint32_t i = 0; i < row->n_arguments; i++) {
        lb_diff_argument *x = &row->arguments[i];
        x->name = lb_report_keep(to, x->name), x->group = lb_report_keep(to, x->group);
        x->first = lb_report_keep(to, x->first), x->second = lb_report_keep(to, x->second);
    }
    for (int k = 0; k < 2; k++) row->lines[k] = lb_report_keep_line(to, &row->lines[k]);
}

/* All places that differ by themselves, beside the first that the walk over aligned ops has named. */
static void take_differences(lb_diff_report *to, const lb_diff_report *from)
{
    for (uint32_t i = 0; i < from->n_differences; i++) {
        lb_diff_difference d = from->differences[i];
        d.row.layer = lb_report_keep(to, d.row.layer), d.row.op = lb_report_keep(to, d.row.op),
        d.row.why = lb_report_keep(to, d.row.why);
        if (d.row.parameter) d.row.parameter = lb_report_keep(to, d.row.parameter);
        if (d.row.means) d.row.means = lb_report_keep(to, d.row.means);
        if (d.row.before) d.row.before = lb_report_keep(to, d.row.before);
        if (d.row.after) d.row.after = lb_report_keep(to, d.row.after);
        keep_texts(to, &d.row);
        if (d.layer_b) d.layer_b = lb_report_keep(to, d.layer_b);
        if (d.op_b) d.op_b = lb_report_keep(to, d.op_b);
        APPEND(to->differences, to->n_differences, d);
    }
}

/* Judged by values alone; the answer stands in the place of the report where it says more: it proves that both are one function, or names a
 * place where the walk over aligned ops could not judge. */
static lb_status try_implementations(session *s, bool strangers, bool spelled, lb_err *err)
{
    lb_diff_report *by_value = calloc(1, sizeof *by_value);
    bool judged = false;
    if (!by_value) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_diff_implementations(s->a, s->b, s->options, by_value, &judged, &why);
    if (status == LB_ERR_NOMEM) {
        lb_diff_report_free(by_value);
        return lb_fail(err, status, "%s", why.message);
    }
    const bool same = by_value->verdict != LB_VERDICT_DIVERGED, missing = s->report->verdict == LB_VERDICT_MISSING;
    /* Of sides whose ops line up places are the walk's; values alone prove that nothing differs, which names could not. */
    const bool proves = same && (missing || spelled);
    if (status == LB_OK && judged && !same && !missing && !strangers)
        take_differences(s->report, by_value);
    else if (status == LB_OK && judged && (strangers || proves || missing)) {
        take_over(by_value, s->report);
        lb_diff_report *old = s->report;
        s->report = by_value, by_value = old;
    }
    lb_diff_report_free(by_value);
    return LB_OK;
}

/* Does a side compute in 16 bits or fewer? There finite numbers of exact arithmetic may stand for what overflowed. */
static bool is_narrow(lb_capture *capture)
{
    const int32_t *ranks;
    const int64_t *steps;
    const lb_program *p;
    if (!lb_capture_ranks(capture, &ranks) || !lb_capture_steps(capture, &steps)) return false;
    if (lb_capture_program(capture, ranks[0], steps[0], &p, NULL) != LB_OK) return false;
    for (uint32_t i = 0; i < p->n_values; i++)
        if (lb_dtype_is_float(p->values[i].dtype) && lb_dtype_bits(p->values[i].dtype) <= 16) return true;
    return false;
}

static lb_status judge_by_value(session *s, lb_err *err)
{
    const lb_verdict verdict = s->report->verdict;
    const bool unsure = verdict == LB_VERDICT_MISSING || verdict == LB_VERDICT_DIVERGED || s->report->n_missing;
    if (s->options->digests_only || !unsure || !lb_strangers_may_be_compared(s->a, s->b)) return LB_OK;
    const bool strangers = lb_strangers_are(s->a, s->b);
    if (!strangers && (is_narrow(s->a) || is_narrow(s->b))) return LB_OK;
    const bool spelled = is_spelled_differently(s->report);
    if (!strangers && !spelled && verdict != LB_VERDICT_DIVERGED && verdict != LB_VERDICT_MISSING) return LB_OK;
    return try_implementations(s, strangers, spelled, err);
}

lb_status lb_diff_run(lb_capture *a, lb_capture *b, const lb_diff_options *options, lb_diff_report **out, lb_err *err)
{
    lb_map_rules *rules = NULL;
    LB_TRY(lb_map_rules_new(options->maps, options->n_maps, &rules, err));
    session s = {.a = a, .b = b, .options = options, .rules = rules, .report = calloc(1, sizeof *s.report)};
    lb_status status = s.report ? diff_ranks(&s, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const int64_t *steps;
    for (int k = 0; k < 2 && status == LB_OK && s.shared == 0; k++)
        if (!lb_capture_steps(k ? b : a, &steps)) status = lb_capture_lacks(k ? b : a, INT64_MIN, INT64_MAX, err);
    if (status == LB_OK && s.shared == 0)
        status =
            lb_fail(err, LB_ERR_NOT_FOUND, "%s and %s share no step of one rank; see `lastbit ls` for what each holds",
                    lb_capture_path(a), lb_capture_path(b));
    lb_map_rules_free(rules);
    if (status == LB_OK && s.shared) status = judge_by_value(&s, err);
    if (status == LB_OK && s.report->verdict == LB_VERDICT_MISSING) say_lacks(&s);
    if (status == LB_OK && s.report->unseen && !s.report->identical && s.report->verdict == LB_VERDICT_IDENTICAL)
        lb_report_missing(s.report, "no op has results with digests on both sides: their bits were not compared");
    if (status == LB_OK && s.report->n_missing)
        s.report->verdict = lb_report_worse(s.report->verdict, LB_VERDICT_MISSING);
    if (status == LB_OK) lb_diff_tokens_finish(s.report);
    if (status == LB_OK) lb_diff_name_orders(s.report, a, b, options, s.swapped);
    if (status == LB_OK)
        *out = s.report;
    else
        lb_diff_report_free(s.report);
    return status;
}
