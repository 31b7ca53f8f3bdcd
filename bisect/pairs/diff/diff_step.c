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
static uint8_t *list_wanted(lb_diff_walk *walk)
{
    const lb_program *program = walk->pa;
    uint8_t *wanted = malloc(program->n_ops + 1);
    wanting x = {calloc(program->n_values + 1, 1), false};
    for (uint32_t i = 0; wanted && x.read && i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        wanted[i] = walk->differs[i];
        for (uint32_t k = 0; walk->differs[i] && k < lb_op_outcomes(op); k++)
            if (lb_op_outcome(program, op, k) != LB_NONE) x.read[lb_op_outcome(program, op, k)] = 1;
        if (walk->differs[i] || walk->alignment.b_of_a[i] == LB_NONE || walk->alignment.irregular[i] || walk->uneven)
            continue;
        x.any = false;
        lb_op_each_input(program, op, note_wanted, &x);
        wanted[i] = x.any;
    }
    if (!x.read) free(wanted), wanted = NULL;
    free(x.read);
    return wanted;
}

static lb_status replay_both(lb_diff_walk *walk, const lb_diff_options *options, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    uint8_t *wanted = list_wanted(walk);
    if (!wanted) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", walk->pa->n_ops);
    const lb_shadow_question asked = {walk->a,          walk->b, &walk->alignment, wanted, options->memory_bytes,
                                      options->progress};
    lb_status status = lb_shadow_pair_run(&asked, &walk->exits, &walk->shadows, &why);
    char text[640];
    free(wanted);
    if (status == LB_ERR_NOMEM) return lb_fail(err, status, "%s", why.message);
    walk->have_shadows = status == LB_OK;
    if (status != LB_OK) {
        snprintf(text, sizeof text, "step %lld rank %d could not be replayed: %s", (long long)walk->pa->step,
                 walk->pa->rank, why.message);
        lb_report_missing(walk->report, text);
    } else if (walk->shadows.over_memory) {
        lb_report_missing(walk->report, "some exact shadows did not fit the memory limit; raise --memory");
    }
    if (!walk->have_shadows) return LB_OK;
    status =
        lb_reorder_find(walk->a, walk->b, &walk->alignment, walk->differs, &walk->shadows, &walk->reorderings, err);
    walk->report->cost.runs += walk->shadows.cost.runs, walk->report->cost.ops += walk->shadows.cost.ops;
    return status;
}

static uint32_t find_differences(lb_diff_walk *walk)
{
    uint32_t differing = 0;
    for (uint32_t e = 0; e < walk->exits.n; e++)
        differing += !walk->exits.list[e].input && (walk->exits.list[e].differs || walk->exits.list[e].other_shape);
    for (uint32_t i = 0; i < walk->pa->n_ops; i++) {
        uint32_t j = walk->alignment.b_of_a[i], join = walk->alignment.join_of_a[i];
        bool source = lb_op_is_source(walk->pa, &walk->pa->ops[i]);
        if (j != LB_NONE)
            walk->differs[i] = lb_diff_values_of_pair_differ(walk, i, j);
        else if (join != LB_NONE && !source)
            walk->differs[i] = lb_diff_values_of_join_differ(walk, &walk->alignment.joins.list[join]);
        differing += walk->differs[i] || (source && lb_diff_values_of_source_differ(walk, i));
    }
    return differing;
}

/* Pairs that differ and that one side could not even hold against its own recording: what it did not keep. */
static void note_lacks(lb_diff_session *session, const lb_diff_walk *walk)
{
    const lb_program_view *sides[] = {walk->a, walk->b};
    for (uint32_t i = 0; walk->have_shadows && i < walk->pa->n_ops; i++) {
        const uint32_t ops[] = {i, walk->alignment.b_of_a[i]};
        for (int k = 0; k < 2 && walk->differs[i] && ops[1] != LB_NONE; k++) {
            const lb_program_view_part *part = &sides[k]->parts[lb_program_view_part_of(sides[k], ops[k])];
            if (walk->shadows.rows[i].own[k] == LB_VERDICT_MISSING &&
                walk->shadows.rows[i].agreement == LB_SHADOW_UNKNOWN)
                lb_lack_add(&session->lacks[k ^ (int)walk->swapped], part->program, ops[k] - part->first_op);
        }
    }
}

void lb_diff_step_say_lacks(lb_diff_session *session)
{
    lb_capture *captures[] = {session->a, session->b};
    for (int k = 0; k < 2; k++) {
        const char *like =
            session->lacks[!k].ops ? NULL : lb_capture_path(captures[!k]); /* the other side kept enough */
        char *text = lb_lack_sentence(&session->lacks[k], captures[k], k ? "the second side" : "the first side", like);
        if (text) lb_report_missing(session->report, text);
        free(text);
    }
}

static lb_status measure_noise(lb_diff_walk *walk, const lb_diff_options *options, lb_err *err)
{
    char text[160];
    if (!options->n_noise) return LB_OK;
    LB_TRY(lb_noise_measure(walk->swapped ? walk->b : walk->a, options->noise, options->n_noise, &walk->noise, err));
    snprintf(text, sizeof text,
             "--noise: none of these runs has all of step %lld, rank %d: nothing is known of the noise there",
             (long long)walk->pa->step, walk->pa->rank);
    if (!walk->noise.runs) lb_report_finding(walk->report, text);
    return LB_OK;
}

/* Batches of different sizes: no op that carries their rows lines up here. explain takes the rows that both have. */
static lb_status note_rows(lb_diff_walk *walk, const lb_diff_session *session, lb_err *err)
{
    const lb_program_view *first = walk->swapped ? walk->b : walk->a, *second = walk->swapped ? walk->a : walk->b;
    lb_batch_rows rows;
    char text[600];
    if (walk->a->n_parts != 1 || walk->b->n_parts != 1 || !lb_batch_rows_apply(walk->pa, walk->pb)) return LB_OK;
    LB_TRY(lb_batch_rows_find(first, second, session->rules, NULL, &rows, err));
    if (rows.places)
        snprintf(text, sizeof text,
                 "step %lld, rank %d: the sides' batches have %lld and %lld rows (%.60s), so that what carries rows "
                 "has other "
                 "shapes and is not compared here; row %lld of the first is row %lld of the second: `lastbit explain` "
                 "holds the rows "
                 "that both have against each other, op by op",
                 (long long)walk->pa->step, walk->pa->rank, (long long)(rows.turned ? rows.many : rows.few),
                 (long long)(rows.turned ? rows.few : rows.many), rows.by,
                 (long long)(rows.turned ? rows.places[0] : 0), (long long)(rows.turned ? 0 : rows.places[0]));
    else if (*rows.missing)
        snprintf(text, sizeof text, "step %lld, rank %d: %s", (long long)walk->pa->step, walk->pa->rank, rows.missing);
    if (rows.places || *rows.missing) lb_report_finding(walk->report, text);
    lb_batch_rows_release(&rows);
    return LB_OK;
}

/* Ops that one side alone runs may leave something that is not aligned. */
static bool has_lone_ops(const lb_diff_walk *walk)
{
    for (uint32_t i = 0; i < walk->pa->n_ops; i++)
        if (walk->alignment.b_of_a[i] == LB_NONE && walk->alignment.join_of_a[i] == LB_NONE &&
            lb_op_computes(walk->pa, &walk->pa->ops[i]))
            return true;
    for (uint32_t i = 0; i < walk->pb->n_ops; i++)
        if (walk->alignment.a_of_b[i] == LB_NONE && walk->alignment.join_of_b[i] == LB_NONE &&
            lb_op_computes(walk->pb, &walk->pb->ops[i]))
            return true;
    return false;
}

static lb_status find_exits(lb_diff_walk *walk, const lb_layer_names_map *rules_a, const lb_layer_names_map *rules_b,
                            lb_err *err)
{
    char lone[300], text[400];
    const lb_aligned_views views = lb_diff_walk_views(walk);
    LB_TRY(
        lb_step_outputs_find(&views, (const lb_layer_names_map *const[]){rules_a, rules_b}, &walk->exits, lone, err));
    snprintf(text, sizeof text, "step %lld, rank %d: %s", (long long)walk->pa->step, walk->pa->rank, lone);
    if (*lone) lb_report_finding(walk->report, text);
    LB_TRY(lb_logged_scalars_find(&views, walk->swapped, &walk->scalars, err));
    return lb_logged_scalars_add(&walk->scalars, &views, &walk->exits, err);
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
static bool is_given_more(const lb_diff_walk *walk)
{
    if (walk->pa->step == walk->past->first || !(begins_with_floats(walk->pa) || begins_with_floats(walk->pb)))
        return false;
    for (uint32_t e = 0; e < walk->exits.n; e++)
        if (walk->exits.list[e].other_shape && walk->exits.list[e].rows >= 0) return true;
    return false;
}

static uint64_t count_computing(const lb_program *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) n += lb_op_computes(p, &p->ops[i]);
    return n;
}

lb_status lb_diff_step(lb_diff_walk *walk, lb_diff_session *session, lb_err *err)
{
    const lb_diff_options *options = session->options;
    const lb_layer_names_map *rules_a = walk->swapped ? NULL : session->rules,
                             *rules_b = walk->swapped ? session->rules : NULL;
    if (lb_diff_step_has_ops(walk->pa) && lb_diff_step_has_ops(walk->pb)) LB_TRY(note_rows(walk, session, err));
    LB_TRY(lb_alignment_make_by_parameter(walk->a, walk->b, rules_a, rules_b, &walk->alignment, err));
    LB_TRY(lb_fused_sources_join(&walk->past->fused, walk->a, walk->b, &walk->alignment, err));
    LB_TRY(lb_cut_tensors_find(walk->a, walk->b, (const lb_layer_names_map *const[]){rules_a, rules_b},
                               &walk->alignment, &walk->cuts, err));
    walk->cut = walk->past->cut |= walk->cuts.unknown > 0;
    if (walk->pa->step > walk->past->first)
        LB_TRY(lb_fused_sources_apart(walk->a, walk->b, &walk->alignment, &walk->held_otherwise, err));
    LB_TRY(lb_met_storages_pair(&walk->past->met, walk->a, walk->b, walk->swapped, &walk->alignment, err));
    walk->differs = calloc(walk->pa->n_ops + 1, 1),
    walk->settled = calloc((size_t)walk->pa->n_ops + walk->pb->n_ops + 1, 1);
    if (!walk->differs || !walk->settled)
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", walk->pa->n_ops);
    /* A write that one side alone makes shows in no pair, but in what a parameter holds at the end. */
    LB_TRY(lb_shadow_pair_init(walk->a, walk->b, &walk->alignment, &walk->shadows, err));
    for (int k = 0; k < 2; k++)
        if ((k ? walk->b : walk->a)->n_parts > 1)
            LB_TRY(lb_collective_matches_find(k ? walk->b : walk->a, &walk->collective_matches[k], err));
    LB_TRY(find_exits(walk, rules_a, rules_b, err));
    walk->given_more = is_given_more(walk);
    uint32_t differing = find_differences(walk) + walk->shadows.n_finals + has_lone_ops(walk);
    if (differing) LB_TRY(measure_noise(walk, options, err));
    walk->report->recorded_ops += count_computing(walk->pa) + count_computing(walk->pb);
    if (differing && !options->digests_only && !session->without_replay) LB_TRY(replay_both(walk, options, err));
    LB_TRY(lb_diff_walk_cuts(walk, err));
    if (session->quiet) return lb_diff_walk_program(walk, err);
    note_lacks(session, walk);
    LB_TRY(lb_diff_structure_list_parameters(walk, err));
    LB_TRY(lb_diff_walk_program(walk, err));
    if (lb_diff_step_has_ops(walk->pa) && lb_diff_step_has_ops(walk->pb)) lb_diff_walk_list_structure(walk);
    if (options->digests_only) return LB_OK;
    const lb_program_view *first = walk->swapped ? walk->b : walk->a, *second = walk->swapped ? walk->a : walk->b;
    LB_TRY(lb_routing_diff_add(first, second, session->rules, walk->report, err));
    return lb_diff_tokens_add(first, second, options, walk->report, err);
}
