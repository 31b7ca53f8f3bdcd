/* One step of both sides: see diff_step.h. */
#include "diff/diff_step.h"

#include "diff/diff_cuts.h"
#include "diff/diff_rows.h"
#include "diff/diff_structure.h"
#include "diff/diff_tokens.h"
#include "diff/diff_values.h"
#include "shadow/step_outputs.h"
#include "diff/routing_diff.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool lb_diff_step_has_ops(const lb_program *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (lb_op_computes(p, &p->ops[i])) return true;
    return false;
}

typedef struct wanting {
    uint8_t *read; /* per value of A: it has different bits on the other side */
    bool any;
} wanting;

static void note_wanted(void *context, uint32_t value)
{
    wanting *x = context;
    x->any |= value != LB_NONE && x->read[value];
}

/* Pairs whose shadows are compared: those that differ, and those that have the same bits although they read what
 * differs, where rounding may hide that something else is computed. malloc'ed; NULL when out of memory. */
static uint8_t *list_wanted(lb_diff_walk *w)
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

static lb_status replay_both(lb_diff_walk *w, const lb_diff_options *options, lb_err *err)
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

static uint32_t find_differences(lb_diff_walk *w)
{
    uint32_t differing = 0;
    for (uint32_t e = 0; e < w->exits.n; e++)
        differing += !w->exits.list[e].input && (w->exits.list[e].differs || w->exits.list[e].other_shape);
    for (uint32_t i = 0; i < w->pa->n_ops; i++) {
        uint32_t j = w->alignment.b_of_a[i], join = w->alignment.join_of_a[i];
        bool source = lb_op_is_source(w->pa, &w->pa->ops[i]);
        if (j != LB_NONE)
            w->differs[i] = lb_diff_values_of_pair_differ(w, i, j);
        else if (join != LB_NONE && !source)
            w->differs[i] = lb_diff_values_of_join_differ(w, &w->alignment.joins.list[join]);
        differing += w->differs[i] || (source && lb_diff_values_of_source_differ(w, i));
    }
    return differing;
}

/* Pairs that differ and that one side could not even hold against its own recording: what it did not keep. */
static void note_lacks(lb_diff_session *s, const lb_diff_walk *w)
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

void lb_diff_step_say_lacks(lb_diff_session *s)
{
    lb_capture *captures[] = {s->a, s->b};
    for (int k = 0; k < 2; k++) {
        const char *like = s->lacks[!k].ops ? NULL : lb_capture_path(captures[!k]); /* the other side kept enough */
        char *text = lb_lack_sentence(&s->lacks[k], captures[k], k ? "the second side" : "the first side", like);
        if (text) lb_report_missing(s->report, text);
        free(text);
    }
}

static lb_status measure_noise(lb_diff_walk *w, const lb_diff_options *options, lb_err *err)
{
    char text[160];
    if (!options->n_noise) return LB_OK;
    LB_TRY(lb_noise_measure(w->swapped ? w->b : w->a, options->noise, options->n_noise, &w->noise, err));
    snprintf(text, sizeof text,
             "--noise: none of these runs has all of step %lld, rank %d: nothing is known of the noise there",
             (long long)w->pa->step, w->pa->rank);
    if (!w->noise.runs) lb_report_finding(w->report, text);
    return LB_OK;
}

/* Batches of different sizes: no op that carries their rows lines up here. explain takes the rows that both have. */
static lb_status note_rows(lb_diff_walk *w, const lb_diff_session *s, lb_err *err)
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
static bool has_lone_ops(const lb_diff_walk *w)
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

static lb_status find_exits(lb_diff_walk *w, const lb_layer_names_map *rules_a, const lb_layer_names_map *rules_b,
                            lb_err *err)
{
    char lone[300], text[400];
    const lb_aligned_views views = lb_diff_walk_views(w);
    LB_TRY(lb_step_outputs_find(&views, (const lb_layer_names_map *const[]){rules_a, rules_b}, &w->exits, lone, err));
    snprintf(text, sizeof text, "step %lld, rank %d: %s", (long long)w->pa->step, w->pa->rank, lone);
    if (*lone) lb_report_finding(w->report, text);
    LB_TRY(lb_logged_scalars_find(&views, w->swapped, &w->scalars, err));
    return lb_logged_scalars_add(&w->scalars, &views, &w->exits, err);
}

/* A cache, or what else an earlier step rounded: floats that come in, and are neither parameters nor states nor what
 * the model is given first. */
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
static bool is_given_more(const lb_diff_walk *w)
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

lb_status lb_diff_step(lb_diff_walk *w, lb_diff_session *s, lb_err *err)
{
    const lb_diff_options *options = s->options;
    const lb_layer_names_map *rules_a = w->swapped ? NULL : s->rules, *rules_b = w->swapped ? s->rules : NULL;
    if (lb_diff_step_has_ops(w->pa) && lb_diff_step_has_ops(w->pb)) LB_TRY(note_rows(w, s, err));
    LB_TRY(lb_alignment_make_by_parameter(w->a, w->b, rules_a, rules_b, &w->alignment, err));
    LB_TRY(lb_fused_sources_join(&w->past->fused, w->a, w->b, &w->alignment, err));
    LB_TRY(lb_cut_tensors_find(w->a, w->b, (const lb_layer_names_map *const[]){rules_a, rules_b}, &w->alignment,
                               &w->cuts, err));
    w->cut = w->past->cut |= w->cuts.unknown > 0;
    if (w->pa->step > w->past->first)
        LB_TRY(lb_fused_sources_apart(w->a, w->b, &w->alignment, &w->held_otherwise, err));
    LB_TRY(lb_met_storages_pair(&w->past->met, w->a, w->b, w->swapped, &w->alignment, err));
    w->differs = calloc(w->pa->n_ops + 1, 1), w->settled = calloc((size_t)w->pa->n_ops + w->pb->n_ops + 1, 1);
    if (!w->differs || !w->settled) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", w->pa->n_ops);
    /* A write that one side alone makes shows in no pair, but in what a parameter holds at the end. */
    LB_TRY(lb_shadow_pair_init(w->a, w->b, &w->alignment, &w->shadows, err));
    for (int k = 0; k < 2; k++)
        if ((k ? w->b : w->a)->n_parts > 1)
            LB_TRY(lb_collective_matches_find(k ? w->b : w->a, &w->collective_matches[k], err));
    LB_TRY(find_exits(w, rules_a, rules_b, err));
    w->given_more = is_given_more(w);
    uint32_t differing = find_differences(w) + w->shadows.n_finals + has_lone_ops(w);
    if (differing) LB_TRY(measure_noise(w, options, err));
    w->report->recorded_ops += count_computing(w->pa) + count_computing(w->pb);
    if (differing && !options->digests_only && !s->without_replay) LB_TRY(replay_both(w, options, err));
    LB_TRY(lb_diff_walk_cuts(w, err));
    if (s->quiet) return lb_diff_walk_program(w, err);
    note_lacks(s, w);
    LB_TRY(lb_diff_structure_list_parameters(w, err));
    LB_TRY(lb_diff_walk_program(w, err));
    if (lb_diff_step_has_ops(w->pa) && lb_diff_step_has_ops(w->pb)) lb_diff_walk_list_structure(w);
    if (options->digests_only) return LB_OK;
    const lb_program_view *first = w->swapped ? w->b : w->a, *second = w->swapped ? w->a : w->b;
    LB_TRY(lb_routing_diff_add(first, second, s->rules, w->report, err));
    return lb_diff_tokens_add(first, second, options, w->report, err);
}
