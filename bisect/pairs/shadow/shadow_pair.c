/* Both sides of an aligned step replayed: see shadow_pair.h. */
#include "shadow/shadow_run.h"

#include "kernel/complex_rows.h"
#include "shadow/cross_feed.h"
#include "shadow/input_casts.h"
#include "kernel/ops.h"
#include "shadow/shadow_numbers.h"
#include "judgement/verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- complex numbers ---- */

/* The event with its complex results as numbers; `room` for two lists of tensors. */
static lb_event numbers_of(const lb_event *event, lb_tensor *room)
{
    lb_event e = *event;
    lb_tensor *computed = room, *shadow = room + event->n_results;
    for (uint32_t i = 0; i < event->n_results; i++) {
        const bool fits = lb_complex_tensor_parts(&event->computed[i], &computed[i]);
        if (!lb_complex_tensor_parts(&event->shadow[i], &shadow[i]) || !fits) computed[i].data = shadow[i].data = NULL;
    }
    e.computed = computed, e.shadow = shadow;
    return e;
}

static bool has_complex(const lb_event *event)
{
    for (uint32_t i = 0; i < event->n_results; i++)
        if (event->shadow[i].data && lb_dtype_is_complex(event->shadow[i].dtype)) return true;
    return false;
}

/* ---- events ---- */

/* The op of A that an event of either side speaks of; LB_NONE: of none. */
static uint32_t row_of(const lb_shadow_run *run, const lb_event *event, uint32_t *op)
{
    *op = lb_program_view_op(run->side, event->program, event->op);
    if (*op == LB_NONE || run->which == 0) return *op;
    uint32_t join = run->alignment->join_of_b[*op];
    return join != LB_NONE ? run->alignment->joins.list[join].whole : run->alignment->a_of_b[*op];
}

static void note_progress(const lb_shadow_run *run)
{
    enum { EVERY = 16 };
    lb_shadow_progress *p = run->told;
    if (++p->done % EVERY == 0 && p->tell)
        p->tell("running both exactly", p->done < p->total ? p->done : p->total, p->total);
}

static bool note_own(void *context, const lb_event *event)
{
    lb_shadow_run *run = context;
    uint32_t op, row = row_of(run, event, &op);
    note_progress(run);
    if (row == LB_NONE && op != LB_NONE && run->which == 1) row = lb_flip_reach_reshaped(run->reach, op);
    if (row == LB_NONE) return true;
    lb_shadow_row *s = &run->out->rows[row];
    bool part = run->which == 1 && run->alignment->join_of_b[op] != LB_NONE && run->alignment->place_of_b[op] > 0;
    bool worse = !part || lb_verdict_severity(event->verdict) > lb_verdict_severity(s->own[run->which]);
    if (worse) s->own[run->which] = event->verdict;
    if (event->verdict == LB_VERDICT_REORDERED && event->program->ops[event->op].flags & LB_OP_COLLECTIVE)
        snprintf(s->order[run->which], sizeof s->order[run->which], "%s", event->why ? event->why : "");
    if (!part || !(event->bound_ratio <= s->bound_ratio[run->which])) s->bound_ratio[run->which] = event->bound_ratio;
    return true;
}

/* An op of A whose like in different shapes may follow from a choice. */
static bool is_reshaped(const lb_shadow_run *run, uint32_t row)
{
    return run->reach->flips.n && run->alignment->reshaped_b_of_a[row] != LB_NONE;
}

/* Parts are put together, and rows that a choice moved are exchanged, by the numbers themselves. */
static bool needs_numbers(const lb_shadow_run *run, uint32_t row)
{
    return run->reach->flips.n || run->alignment->join_of_a[row] != LB_NONE;
}

static void note_numbers(lb_shadow_run *run, uint32_t op, uint32_t row, const lb_event *event)
{
    lb_shadow_run_note_finals(run, op, event);
    lb_cut_shadows_note(run->cuts, run->kind, event);
    if (run->kind == LB_SHADOW_RUN_B && row == LB_NONE) lb_shadow_run_meet_reshaped(run, op, event);
    if (row == LB_NONE || !(run->wanted[row] || is_reshaped(run, row))) return;
    if (run->kind == LB_SHADOW_RUN_A)
        run->out->over_memory |= !lb_kept_shadow_take(&run->kept[row], event, needs_numbers(run, row), &run->room);
    else if (run->kind == LB_SHADOW_RUN_DISTURBED)
        lb_kept_shadow_measure(&run->kept[row], event);
    else if (run->alignment->join_of_b[op] != LB_NONE)
        lb_shadow_run_join(run, row, op, event);
    else
        lb_shadow_run_meet(run, row, op, event);
}

static void disturb(lb_shadow_run *run, const lb_event *event)
{
    for (uint32_t i = 0; i < event->n_results; i++) {
        const int64_t n = lb_kept_shadow_elements(event, i);
        if (n > 0 && event->shadow[i].dtype == LB_F64) lb_shadow_disturb(&event->shadow[i], run->serial++);
    }
}

/* What the other side begins with is rounded: so does this shadow. */
static void take_rounded(const lb_shadow_run *run, uint32_t op, const lb_event *event)
{
    const lb_program *p = run->side->program;
    lb_tensor recorded;
    const int64_t n = event->n_results && event->shadow[0].data ? lb_layout_numel(&event->shadow[0].layout) : 0;
    if (!n || lb_program_view_value(run->side, lb_op_results(p, &p->ops[op])[0], &recorded, NULL) != LB_OK ||
        lb_layout_numel(&recorded.layout) != n)
        return;
    double *x = lb_shadow_numbers_copy(&recorded);
    if (x) lb_shadow_put(&event->shadow[0], x);
    free(x);
}

static bool note_shadow(void *context, const lb_event *event)
{
    lb_shadow_run *run = context;
    uint32_t op, row = row_of(run, event, &op);
    note_progress(run);
    if (op == LB_NONE || !event->shadow) return true;
    if (run->input_casts[op]) take_rounded(run, op, event);
    lb_tensor *room = has_complex(event) ? malloc(2 * event->n_results * sizeof *room) : NULL;
    const lb_event numbers = room ? numbers_of(event, room) : *event;
    if (run->kind == LB_SHADOW_RUN_DISTURBED) disturb(run, &numbers);
    if (room || !has_complex(event)) {
        note_numbers(run, op, row, &numbers);
        lb_exact_match_note(run->match, run->which, run->kind == LB_SHADOW_RUN_DISTURBED, op, &numbers);
    }
    lb_shadow_run_note_exits(run, op, event);
    free(room);
    return true;
}

/* ---- runs ---- */

static bool take_other(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    return lb_cross_feed_take(((lb_shadow_run *)context)->cross_feed, rank, step, value, tensor);
}

/* Does the op step, each element by itself: a comparison, a sign, a cast to whole numbers? */
static bool decides_by_element(const lb_program *p, const lb_op *op)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(lb_op_name(p, op), &form);
    const uint32_t wanted = LB_ROW_DISCONTINUOUS | LB_ROW_ELEMENTWISE;
    return row && (row->flags & wanted) == wanted && !(op->flags & LB_OP_DECISION);
}

typedef struct apart_question {
    const lb_shadow_run *run;
    uint32_t op;
    bool apart;
} apart_question;

static void note_apart(void *context, uint32_t value)
{
    apart_question *q = context;
    const lb_shadow_run *run = q->run;
    if (value == LB_NONE) return;
    const uint32_t giver = lb_cross_feed_giver(run->side->program, value, q->op),
                   row = giver == LB_NONE ? LB_NONE : run->alignment->a_of_b[giver];
    q->apart |= row != LB_NONE && run->out->rows[row].agreement == LB_SHADOW_DISAGREES;
}

/* The op that gives the value as it is decided; LB_NONE. A later one may write its memory again. */
static uint32_t op_of(const lb_program *p, uint32_t value)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&p->ops[i]); k++)
            if (lb_op_outcome(p, &p->ops[i], k) == value) return i;
    return LB_NONE;
}

/* Is a value decided, element by element, from numbers that are no longer the same in exact arithmetic? */
static bool is_decided_apart(const lb_shadow_run *run, uint32_t value)
{
    const lb_program *p = run->side->program;
    const uint32_t op = op_of(p, value);
    apart_question q = {run, op, false};
    if (op != LB_NONE && (decides_by_element(p, &p->ops[op]) || lb_op_is_cast(p, &p->ops[op])))
        lb_op_each_input(p, &p->ops[op], note_apart, &q);
    return q.apart;
}

/* Rounding changed no decision that follows from different numbers: a mask cast to bool of another triangle stays what
 * its side made of it. */
static bool take_decided(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    const lb_shadow_run *run = context;
    const uint32_t part = run->kind == LB_SHADOW_RUN_B ? lb_program_view_part_at(run->side, rank, step) : LB_NONE;
    const uint32_t v = part == LB_NONE ? LB_NONE : run->side->parts[part].first_value + value;
    if (v != LB_NONE && lb_cross_feed_feeds(run->cross_feed, v) && is_decided_apart(run, v)) return false;
    return take_other(context, rank, step, value, tensor);
}

static bool steps(const lb_program *p, const lb_op *op)
{
    if (!decides_by_element(p, op)) return false;
    for (uint32_t i = 0; i < op->results + op->written; i++) {
        const uint32_t v = lb_op_outcome(p, op, i);
        if (v == LB_NONE || !lb_dtype_is_float(p->values[v].dtype)) return false;
    }
    return true;
}

/* Real numbers that step (signs of an optimizer, numbers of a quantiser) are taken over where the sides share the op.
 * Where each has one of its own, what was recorded stepped where rounding had it; from exact inputs both step alike,
 * and how far that can be trusted the disturbed run says. */
static bool steps_alone(void *context, int32_t rank, int64_t step, uint32_t number)
{
    const lb_shadow_run *run = context;
    const lb_program *p = run->side->program;
    const lb_alignment *al = run->alignment;
    const uint32_t part = lb_program_view_part_at(run->side, rank, step);
    if (part == LB_NONE) return false;
    const uint32_t i = run->side->parts[part].first_op + number;
    const bool shared = run->which ? al->a_of_b[i] != LB_NONE || al->join_of_b[i] != LB_NONE
                                   : al->b_of_a[i] != LB_NONE || al->join_of_a[i] != LB_NONE;
    return !shared && steps(p, &p->ops[i]);
}

static void count_run(const lb_shadow_run *run, const lb_replay_summary *summary)
{
    run->out->cost.runs++, run->out->cost.ops += summary->ops;
}

/* Each op from its recorded inputs, against the recording. */
static lb_status run_own(lb_shadow_run *run, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    lb_observer own = {.context = run, .op = note_own};
    lb_status status = lb_side_replay(run->side, plan, &own, &summary, err);
    count_run(run, &summary);
    return status;
}

static lb_status run_shadow(lb_shadow_run *run, lb_shadow_run_kind kind, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    lb_cross_feed cross_feed;
    LB_TRY(lb_cross_feed_init(run->side, run->other, run->alignment, run->which == 1, &cross_feed, err));
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.shadow = plan.shadow_only = true;
    run->cross_feed = &cross_feed, run->kind = kind, run->serial = 0;
    lb_observer shadow = {
        .context = run, .op = note_shadow, .source = take_other, .decided = take_decided, .computes = steps_alone};
    lb_status status = lb_side_replay(run->side, plan, &shadow, &summary, err);
    count_run(run, &summary);
    run->out->undecided[run->which] |= summary.undecided;
    lb_cross_feed_release(&cross_feed);
    run->cross_feed = NULL;
    return status;
}

/* ---- all of them ---- */

/* What all runs share. */
typedef struct runs {
    const lb_shadow_question *asked;
    lb_shadow_run sides[2];
    lb_kept_shadow *shadows;
    lb_shadow_assembly *assemblies;
    lb_kept_value *finals, *images[3], *results; /* images: of A, of A disturbed, of B */
    lb_exact_match match;
    lb_flip_reach reach;
    lb_cut_shadows cuts;
    uint8_t *input_casts[2];
    lb_shadow_progress told;
} runs;

static bool reserve(runs *runs, uint32_t n_exits, lb_shadow_pair *out)
{
    const uint32_t n = runs->asked->a->program->n_ops;
    out->n_rows = n;
    out->rows = calloc(n + 1, sizeof *out->rows);
    runs->shadows = calloc(n + 1, sizeof *runs->shadows);
    runs->assemblies = calloc(runs->asked->alignment->joins.n + 1, sizeof *runs->assemblies);
    runs->finals = calloc(out->n_finals + 1, sizeof *runs->finals),
    runs->results = calloc(n_exits + 1, sizeof *runs->results);
    bool room = out->rows && runs->shadows && runs->assemblies && runs->finals && runs->results;
    for (int i = 0; i < 3; i++) room &= (runs->images[i] = calloc(out->n_finals + 1, sizeof *runs->images[i])) != NULL;
    return room;
}

static lb_shadow_run run_of(runs *runs, int which, lb_step_outputs *exits, lb_shadow_pair *out)
{
    const lb_shadow_question *asked = runs->asked;
    return (lb_shadow_run){.side = which ? asked->b : asked->a,
                           .other = which ? asked->a : asked->b,
                           .alignment = asked->alignment,
                           .wanted = asked->wanted,
                           .out = out,
                           .exits = exits,
                           .which = which,
                           .kept = runs->shadows,
                           .assemblies = runs->assemblies,
                           .finals = runs->finals,
                           .images = runs->images[2 * which],
                           .results = runs->results,
                           .match = &runs->match,
                           .reach = &runs->reach,
                           .cuts = &runs->cuts,
                           .input_casts = runs->input_casts[which],
                           .told = &runs->told,
                           .room = asked->memory_bytes ? asked->memory_bytes : UINT64_C(4) << 30};
}

static lb_status open_runs(runs *runs, lb_step_outputs *exits, lb_shadow_pair *out, lb_err *err)
{
    const lb_shadow_question *asked = runs->asked;
    const lb_program_view *a = asked->a, *b = asked->b;
    const uint32_t n = a->program->n_ops;
    if (!reserve(runs, exits->n, out)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", n);
    for (uint32_t i = 0; i < n; i++)
        out->rows[i] = (lb_shadow_row){.own = {LB_VERDICT_MISSING, LB_VERDICT_MISSING}, .bound_ratio = {NAN, NAN}};
    LB_TRY(lb_exact_match_init(a, b, asked->alignment, &runs->match, err));
    LB_TRY(lb_flip_reach_open(a, b, asked->alignment, asked->wanted, &runs->reach, err));
    LB_TRY(lb_cut_shadows_open(a, b, asked->alignment->cuts, &runs->cuts, err));
    out->first_flip = runs->reach.flips.n ? runs->reach.flips.list[0].op : LB_NONE;
    runs->input_casts[0] = lb_input_casts_find(a, b), runs->input_casts[1] = lb_input_casts_find(b, a);
    if (!runs->input_casts[0] || !runs->input_casts[1])
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", n);
    /* By itself and exactly, and A disturbed besides. */
    runs->told = (lb_shadow_progress){asked->progress, 0, 3 * (uint64_t)n + 2 * (uint64_t)b->program->n_ops};
    for (int i = 0; i < 2; i++) runs->sides[i] = run_of(runs, i, exits, out);
    return LB_OK;
}

static void close_runs(runs *runs, const lb_shadow_pair *out, uint32_t n_exits)
{
    uint64_t room = 0;
    for (uint32_t i = 0; runs->shadows && i < out->n_rows; i++) lb_kept_shadow_release(&runs->shadows[i], &room);
    for (uint32_t i = 0; runs->assemblies && i < runs->asked->alignment->joins.n; i++)
        lb_shadow_assembly_release(&runs->assemblies[i]);
    free(runs->shadows), free(runs->assemblies);
    lb_kept_values_free(runs->finals, out->n_finals), lb_kept_values_free(runs->results, n_exits);
    for (int i = 0; i < 3; i++) lb_kept_values_free(runs->images[i], out->n_finals);
    lb_exact_match_release(&runs->match);
    lb_flip_reach_close(&runs->reach);
    lb_cut_shadows_close(&runs->cuts);
    free(runs->input_casts[0]), free(runs->input_casts[1]);
}

/* What has met in different shapes is one quantity like what has met by its numbers. */
static void note_reshaped(const runs *runs, lb_shadow_pair *out)
{
    const lb_alignment *al = runs->sides[0].alignment;
    for (uint32_t i = 0; runs->reach.flips.n && i < out->n_rows; i++) {
        const uint32_t b = al->b_of_a[i] == LB_NONE ? runs->reach.met_of[0][i] : LB_NONE;
        if (b != LB_NONE && out->meets[0][i] == LB_NONE && out->meets[1][b] == LB_NONE)
            out->meets[0][i] = b, out->meets[1][b] = i;
    }
}

static lb_status run_all(runs *runs, lb_shadow_pair *out, lb_err *err)
{
    LB_TRY(run_own(&runs->sides[0], err));
    LB_TRY(run_own(&runs->sides[1], err));
    LB_TRY(run_shadow(&runs->sides[0], LB_SHADOW_RUN_A, err));
    runs->sides[0].images = runs->images[1];
    lb_status status = run_shadow(&runs->sides[0], LB_SHADOW_RUN_DISTURBED, err);
    runs->sides[0].images = runs->images[0];
    if (status == LB_OK) status = run_shadow(&runs->sides[1], LB_SHADOW_RUN_B, err);
    if (status != LB_OK) return status;
    lb_shadow_run_judge_images(runs->sides, runs->images[1]);
    lb_cut_shadows_judge(&runs->cuts, out);
    LB_TRY(lb_exact_match_find(&runs->match, out, err));
    note_reshaped(runs, out);
    return LB_OK;
}

lb_status lb_shadow_pair_run(const lb_shadow_question *asked, lb_step_outputs *exits, lb_shadow_pair *out, lb_err *err)
{
    runs r = {.asked = asked};
    lb_status status = open_runs(&r, exits, out, err);
    if (status == LB_OK) status = run_all(&r, out, err);
    close_runs(&r, out, exits->n);
    if (status == LB_OK) return LB_OK;
    free(out->rows); /* which parameters differ is still known */
    out->rows = NULL, out->n_rows = 0;
    for (uint32_t i = 0; i < out->n_finals; i++) out->finals[i].agreement = LB_SHADOW_UNKNOWN;
    for (uint32_t i = 0; i < exits->n; i++) exits->list[i].agreement = LB_SHADOW_UNKNOWN;
    return status;
}

void lb_shadow_pair_release(lb_shadow_pair *pair)
{
    free(pair->rows), free(pair->finals), free(pair->final_parts);
    free(pair->meets[0]), free(pair->meets[1]);
    memset(pair, 0, sizeof *pair);
}
