/* One step of one rank: align, find the places that differ, ask each for its cause. See lastbit/explain.h. */
#include "explain/order_consensus.h"
#include "explain/explain_session.h"
#include "explain/search_work.h"

#include <lastbit/clock.h>
#include <lastbit/compare.h>
#include <lastbit/composite.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* It may have an explanation that the bytes of one side, which were not kept, would show. */
static bool lacks_bytes(const lb_match_site *site, const lb_attribution_found *found)
{
    return found->cause == LB_CAUSE_UNEXPLAINED && !strncmp(site->why, "bytes", 5) &&
           (site->subprograms[0] || site->subprograms[1]) &&
           (!site->targets[0] || !site->targets[1] ||
            (!lb_match_site_can(site, 0, 1) && !lb_match_site_can(site, 1, 0)));
}

/* Why nothing was tried at a place. */
typedef enum lack {
    LACKS_NOTHING,
    LACKS_BYTES,
    LACKS_A_WAY, /* of a larger batch's rows: what they went through cannot be run on them alone */
    LACKS
} lack;

/* Places of one kind. */
typedef struct lacking {
    const lb_matched_region *first;
    uint32_t n;
    char why[160]; /* of the first */
} lacking;

static void tell_lacking(lb_explain_session *session, const lb_step_pair *pair, const lacking *kinds)
{
    const lb_program *program = pair->sides[0].program;
    for (int kind = LACKS_BYTES; kind < LACKS; kind++) {
        const lacking *kind_of = &kinds[kind];
        char text[600];
        if (!kind_of->n) continue;
        const uint32_t op = lb_explain_place_op(pair, kind_of->first, 0);
        const int used = snprintf(
            text, sizeof text, "step %lld, rank %d: %u places that differ, the first in %.120s, could not be tried: ",
            (long long)program->step, program->rank, kind_of->n,
            op == LB_NONE ? "(outside)" : lb_op_layer(program, &program->ops[op]));
        if (kind == LACKS_BYTES)
            snprintf(text + used, sizeof text - (size_t)used,
                     "bytes were not kept on one side. Record both sides again with --level ops --steps %lld, "
                     "and --layers if that is too much",
                     (long long)program->step);
        else
            snprintf(text + used, sizeof text - (size_t)used,
                     "what rows of a larger batch went through there cannot be run on them alone (%.150s). "
                     "Record both sides with batches of one size",
                     kind_of->why);
        lb_explain_findings_add_missing(session->report, text);
    }
}

/* A collective's result that the other side has not: what made it on all ranks is told where all ranks are looked
 * at. */
static bool is_for_ranks(const lb_explain_session *session, const lb_step_pair *pair, const lb_matched_region *region)
{
    for (int side = 0; side < 2; side++) {
        const lb_matched_region_side *x = &region->sides[side];
        for (uint32_t i = 0; i < x->n_leaves; i++)
            if (x->partners[i] == LB_NONE && lb_explain_meets(session, pair, side, x->leaves[i])) return true;
    }
    return false;
}

/* It is told as what it is: no candidate could make one function of another. */
static bool is_of_other_function(const lb_step_pair *pair, const lb_matched_region *region)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; pair->other_function[k] && i < region->sides[k].n_ops; i++)
            if (pair->other_function[k][region->sides[k].ops[i]]) return true;
    return false;
}

static bool is_looked_at(const lb_explain_session *session, const lb_step_pair *pair, const lb_matched_region *region)
{
    if (!lb_explain_place_wanted(pair, region) || is_of_other_function(pair, region)) return false;
    if (!pair->ranks) return !is_for_ranks(session, pair, region);
    return lb_matched_region_meets(&pair->source, region, 0) || lb_matched_region_meets(&pair->source, region, 1);
}

/* One op, the same rows, other bits: what ran is chosen by the number of rows. */
static void tell_rows(const lb_match_site *site, const lb_batch_rows *rows, lb_attribution_found *found)
{
    char why[sizeof found->why], count[64] = "";
    lb_difference difference;
    const bool same = lb_match_site_same_inputs(site);
    if (found->cause == LB_CAUSE_INPUT || (found->cause == LB_CAUSE_UNEXPLAINED && !same)) return;
    if (same && site->targets[0] && site->targets[1] &&
        lb_compare_numbers(&site->targets[0][0], &site->targets[1][0], &difference, NULL) == LB_OK)
        snprintf(count, sizeof count, " in %lld of %lld elements", (long long)difference.differing,
                 (long long)difference.elements);
    snprintf(why, sizeof why,
             "these rows have other bits in a batch of %lld than in one of %lld from the same inputs%s%s%.160s",
             (long long)rows->many, (long long)rows->few, count, *found->why ? "; " : "", found->why);
    memcpy(found->why, why, sizeof why);
}

/* Of a larger batch's rows other ops than ours are only looked at: what other ops in another type may give is not
 * known. */
static bool lacks_a_way(const lb_step_pair *pair, const lb_matched_region *region, const lb_attribution_found *found)
{
    const uint32_t few = region->sides[0].outputs[0], many = region->sides[1].outputs[0];
    if (found->cause != LB_CAUSE_UNEXPLAINED) return false;
    return !found->elements || (region->parts && !region->sides[1].n_ops &&
                                lb_matched_region_value(&pair->source, 0, few)->dtype !=
                                    lb_matched_region_value(&pair->source, 1, many)->dtype);
}

/* What was found at a place is worth telling unless `own`. */
typedef struct outlook {
    bool own;
    lack lacks;
    char why[160]; /* it lacks something */
} outlook;

/* The same ops with the same constants, on inputs that are not known to be the same. */
static bool same_kinds(const lb_match_site *site)
{
    uint64_t kinds[2];
    for (int side = 0; side < 2; side++)
        kinds[side] = lb_work_kind(lb_matched_region_program(site->source, side), site->region->sides[side].ops,
                                   site->region->sides[side].n_ops);
    return kinds[0] == kinds[1] && !lb_match_site_same_inputs(site);
}

/* Of two implementations: both ends are known to be one quantity, for the whole step was run exactly. Where each side's
 * bits are as near to what its ops give exactly as replay's kernels come, nothing but the ops differs. */
static lb_status tell_same_quantity(const lb_match_site *site, lb_attribution_found *found, lb_err *err)
{
    bool near = found->cause == LB_CAUSE_UNEXPLAINED;
    for (int side = 0; side < 2 && near; side++)
        if (site->region->sides[side].n_ops) LB_TRY(lb_match_site_is_near(site, side, &near, err));
    if (!near) return LB_OK;
    if (same_kinds(site)) {
        found->cause = LB_CAUSE_INPUT, found->proof = LB_PROOF_EXACT;
        snprintf(found->why, sizeof found->why,
                 "the same ops on both sides, laid out otherwise; "
                 "each side's bits are as near to the exact result as its own ops come");
        return LB_OK;
    }
    found->cause = LB_CAUSE_KERNEL, found->proof = LB_PROOF_EXACT, found->reversed = false;
    found->excluded = found->tried;
    snprintf(found->schedule, sizeof found->schedule, "the second side's own ops");
    snprintf(found->why, sizeof found->why,
             "other ops, the same function: in exact arithmetic the whole step gives this quantity on both sides, "
             "and each side's bits are as near to it as its own ops come");
    return LB_OK;
}

static lb_status explain_place(lb_explain_session *session, const lb_step_pair *pair, const lb_matched_region *region,
                               lb_attribution_found *found, outlook *out, lb_err *err)
{
    lb_match_site site;
    *out = (outlook){0};
    LB_TRY(lb_match_site_open(region, &pair->source, &site, err));
    lb_status status = session->b ? lb_attribution_find(&site, &session->memory, found, err)
                                  : lb_attribution_identify(&site, &session->memory, &out->own, found, err);
    if (status == LB_OK && pair->held[0]) status = tell_same_quantity(&site, found, err);
    if (status == LB_OK && pair->rows && region->parts) tell_rows(&site, pair->rows, found);
    if (status == LB_OK && !out->own) status = lb_rank_terms_tell(&site, found, err);
    if (status == LB_OK && session->b && lacks_bytes(&site, found)) out->lacks = LACKS_BYTES;
    if (status == LB_OK && pair->rows && !out->lacks && lacks_a_way(pair, region, found)) out->lacks = LACKS_A_WAY;
    snprintf(out->why, sizeof out->why, "%s", *site.why ? site.why : "other ops there, in another type");
    lb_match_site_release(&site);
    /* A value that one side alone copies or widens is where it was. */
    out->own |= out->lacks != LACKS_NOTHING || (found->cause == LB_CAUSE_INPUT && !region->sides[0].n_ops);
    return status;
}

/* It was seen that other ops ran, or nothing was; not what they are. */
static bool is_nameless(const lb_attribution_found *found)
{
    return found->cause == LB_CAUSE_UNEXPLAINED ||
           (found->cause == LB_CAUSE_KERNEL &&
            (found->proof != LB_PROOF_BITS || !found->matched || found->excluded == found->tried));
}

/* What fits a sum inside may fit by chance, or say nothing of slots: kernels for all of it say more. */
static bool is_inside_finalise(const lb_matched_region *region, const lb_attribution_found *found)
{
    return region->whole->composite == LB_COMPOSITE_FINALISE && found->cause != LB_CAUSE_INPUT &&
           found->excluded < found->tried;
}

static bool is_part(const lb_matched_region *part, const lb_matched_region *whole)
{
    for (int side = 0; side < 2; side++)
        for (uint32_t i = 0; i < part->sides[side].n_ops; i++) {
            bool inside = false;
            for (uint32_t k = 0; k < whole->sides[side].n_ops && !inside; k++)
                inside = whole->sides[side].ops[k] == part->sides[side].ops[i];
            if (!inside) return false;
        }
    return part->sides[0].n_ops || part->sides[1].n_ops;
}

/* A composite's kernel that gives the bits of the whole says more than its parts' ops, as does what became of a rank's
 * contribution: it is told in their place. */
static lb_status try_whole(lb_explain_session *session, const lb_step_pair *pair, lb_answer *answers, uint32_t at,
                           lb_err *err)
{
    const lb_matched_region *whole = answers[at].region->whole;
    lb_attribution_found *found = calloc(1, sizeof *found);
    outlook out;
    if (!found) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = explain_place(session, pair, whole, found, &out, err);
    if (status == LB_OK && !out.own && (found->fused || found->fault)) {
        for (uint32_t i = 0; i < pair->regions.n; i++)
            if (answers[i].region && is_part(answers[i].region, whole)) answers[i].region = NULL;
        answers[at] = (lb_answer){whole, *found};
    }
    free(found);
    return status;
}

static bool is_late(const lb_explain_session *session)
{
    return session->options->stop_after > 0 && lb_clock_seconds() - session->begun > session->options->stop_after;
}

static void tell_late(lb_explain_session *session, const lb_step_pair *pair, uint32_t places)
{
    const lb_program *program = pair->sides[0].program;
    char text[200];
    snprintf(text, sizeof text,
             "step %lld, rank %d: stopped after %g seconds, before %u of the places that differ were looked at",
             (long long)program->step, program->rank, session->options->stop_after, places);
    lb_explain_findings_add_missing(session->report, text);
}

/* A caller that asks whether all differences are orders needs nothing behind the first place where one is not. */
static bool is_settled(const lb_explain_session *session, const lb_attribution_found *found, const outlook *out)
{
    if (!session->options->only_orders) return false;
    const bool proven = found->cause == LB_CAUSE_ORDER && found->proof == LB_PROOF_BITS;
    return out->lacks != LACKS_NOTHING || (!out->own && found->cause != LB_CAUSE_INPUT && !proven);
}

static lb_status answer_all(lb_explain_session *session, const lb_step_pair *pair, lb_answer *answers, lb_err *err)
{
    lacking kinds[LACKS] = {{0}};
    uint32_t late = 0;
    for (uint32_t i = 0; i < pair->regions.n; i++) {
        const lb_matched_region *region = &pair->regions.list[i];
        outlook out;
        if (session->options->progress) session->options->progress("explaining", i, pair->regions.n);
        if (!is_looked_at(session, pair, region)) continue;
        if (is_late(session)) {
            late++;
            continue;
        }
        LB_TRY(explain_place(session, pair, region, &answers[i].found, &out, err));
        if (!kinds[out.lacks].n++) {
            kinds[out.lacks].first = region;
            snprintf(kinds[out.lacks].why, sizeof kinds[out.lacks].why, "%s", out.why);
        }
        if (!out.own) answers[i].region = region;
        if (is_settled(session, &answers[i].found, &out)) {
            session->settled = true;
            break;
        }
    }
    tell_lacking(session, pair, kinds);
    if (late) tell_late(session, pair, late);
    if (session->settled) return LB_OK;
    for (uint32_t i = 0; i < pair->regions.n && session->b && !late; i++)
        if (answers[i].region && answers[i].region->whole &&
            (is_nameless(&answers[i].found) || is_inside_finalise(answers[i].region, &answers[i].found)))
            LB_TRY(try_whole(session, pair, answers, i, err));
    return session->b ? lb_order_consensus_reach(&pair->source, answers, pair->regions.n, &session->memory.digests, err)
                      : LB_OK;
}

lb_status lb_explain_places(lb_explain_session *session, const lb_step_pair *scene, lb_err *err)
{
    lb_answer *answers = calloc(scene->regions.n + 1, sizeof *answers);
    if (!answers) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u places", scene->regions.n);
    lb_status status = answer_all(session, scene, answers, err);
    for (uint32_t i = 0; i < scene->regions.n && status == LB_OK; i++)
        if (answers[i].region)
            status = lb_explain_findings_add_place(session, scene, answers[i].region, &answers[i].found, err);
    free(answers);
    return status;
}

static void count_ops(lb_explain_session *session, const lb_step_pair *pair)
{
    const lb_program *program = pair->sides[0].program;
    for (uint32_t i = 0; i < program->n_ops; i++)
        session->report->ops += pair->alignment.b_of_a[i] != LB_NONE ||
                                (pair->alignment.join_of_a[i] != LB_NONE && lb_op_computes(program, &program->ops[i]));
    for (uint32_t i = 0; i < program->n_ops && pair->selected; i++) session->chosen += pair->selected[i];
    for (uint32_t i = 0; i < pair->regions.n; i++)
        session->report->differing +=
            pair->regions.list[i].pair || (pair->rows && pair->regions.list[i].sides[1].op != LB_NONE);
}

static void count_regenerated(lb_explain_session *session, const lb_regenerated *bytes, uint32_t fraction)
{
    if (!bytes->program || !bytes->n_wanted) return;
    session->report->cost.runs++;
    for (uint32_t i = 0; i < bytes->program->n_ops / (fraction ? fraction : 1); i++)
        session->report->cost.ops += lb_op_computes(bytes->program, &bytes->program->ops[i]);
}

void lb_explain_grant_work(lb_explain_session *session, const lb_program_pair *matter)
{
    enum { PROBES = 3 };
    static const double LEAST = 1 << 25;
    double work = 0;
    session->memory.probe_ops = 0;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < matter->n[k]; i++)
            session->memory.probe_ops += (uint64_t)PROBES * matter->programs[k][i]->n_ops;
    if (!(session->options->most_replays > 0)) return;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < matter->n[k]; i++) work += lb_work_of_ops(matter->programs[k][i], NULL, 0);
    session->memory.work = 0;
    session->memory.most_work = fmax(session->options->most_replays * work, LEAST);
}

static lb_status explain_scene(lb_explain_session *session, const lb_program_pair *matter, lb_step_pair *pair,
                               lb_err *err)
{
    lb_explain_grant_work(session, matter);
    LB_TRY(lb_step_pair_align(session, matter, pair, err));
    LB_TRY(lb_step_pair_mark_passes(pair, err));
    LB_TRY(lb_step_pair_read(session, pair, err));
    for (int k = 0; k < 2; k++) count_regenerated(session, &pair->bytes[k], 0);
    count_ops(session, pair);
    session->report->turned |= session->turned;
    if (pair->rows) LB_TRY(lb_explain_findings_add_rows(session->report, pair, err));
    if (session->b) LB_TRY(lb_explain_sources(session, pair, err));
    const uint32_t first = session->report->n_findings;
    lb_explain_note_passes(session, pair);
    LB_TRY(lb_explain_passes(session, pair, err));
    LB_TRY(lb_explain_places(session, pair, err));
    LB_TRY(lb_explain_findings_add_layers(session->report, first, err));
    if (session->b && !session->turned && !session->selector && !pair->rows && !session->settled)
        LB_TRY(lb_explain_routing(session, pair, err));
    return lb_explain_note_step_end(session, pair, err);
}

/* All that its ops read and give was asked for. */
static bool is_read(const lb_step_pair *pair, const lb_matched_region *region)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < region->sides[k].n_ops; i++)
            if (region->sides[k].ops[i] >= pair->sides[k].program->n_ops / pair->fraction) return false;
    return true;
}

/* The first place that is no order, where it lies among the first ops. */
static lb_status look_at_first(lb_explain_session *session, const lb_program_pair *matter, lb_step_pair *pair,
                               lb_err *err)
{
    LB_TRY(lb_step_pair_align(session, matter, pair, err));
    LB_TRY(lb_step_pair_mark_passes(pair, err));
    LB_TRY(lb_step_pair_read(session, pair, err));
    for (int k = 0; k < 2; k++) count_regenerated(session, &pair->bytes[k], pair->fraction);
    for (uint32_t i = 0; i < pair->regions.n && !session->settled && is_read(pair, &pair->regions.list[i]); i++) {
        lb_attribution_found found = {0};
        outlook out;
        if (!is_looked_at(session, pair, &pair->regions.list[i])) continue;
        LB_TRY(explain_place(session, pair, &pair->regions.list[i], &found, &out, err));
        session->settled = is_settled(session, &found, &out);
    }
    return LB_OK;
}

/* Most pairs whose differences are no orders are settled by the first: that takes a part of the replays, and of the
 * memory, that all places take. */
static lb_status screen(lb_explain_session *session, const lb_program_pair *matter, lb_err *err)
{
    enum { FRACTION = 4 };
    lb_step_pair pair = {.fraction = FRACTION};
    if (!session->options->only_orders || !session->b || session->rows.places) return LB_OK;
    lb_explain_grant_work(session, matter);
    lb_status status = look_at_first(session, matter, &pair, err);
    lb_step_pair_close(&pair);
    return status;
}

static lb_status explain_programs(lb_explain_session *session, const lb_program_pair *matter, lb_err *err)
{
    lb_step_pair pair = {0};
    session->shared++;
    LB_TRY(screen(session, matter, err));
    if (session->settled) return LB_OK;
    lb_status status = explain_scene(session, matter, &pair, err);
    lb_step_pair_close(&pair);
    return status;
}

/* Batches of different sizes: which rows are whose. `*strange`: they cannot be compared, and it was said
 * why. */
static lb_status find_rows(lb_explain_session *session, const lb_program_pair *pair, bool *strange, lb_err *err)
{
    lb_capture *captures[] = {session->a, session->b};
    const lb_program *program = pair->programs[0][0];
    const lb_batch_rows before = session->rows;
    lb_program_view sides[2] = {{0}};
    lb_status status = LB_OK;
    for (int k = 0; k < 2 && status == LB_OK; k++)
        status = lb_program_view_init(captures[k], pair->programs[k], pair->n[k], &sides[k], err);
    if (status == LB_OK)
        status = lb_batch_rows_find(&sides[0], &sides[1], session->rules, &before, &session->rows, err);
    for (int k = 0; k < 2; k++) lb_program_view_release(&sides[k]);
    if (status != LB_OK) return status;
    free(before.places);
    *strange = *session->rows.missing;
    if (session->rows.places) session->turned = session->rows.turned;
    if (!*strange) return LB_OK;
    char text[600];
    snprintf(text, sizeof text, "step %lld, rank %d: %s", (long long)program->step, program->rank,
             session->rows.missing);
    lb_explain_findings_add_missing(session->report, text);
    session->shared++;
    return LB_OK;
}

lb_status lb_explain_rank_step(lb_explain_session *session, int32_t rank, int64_t step, lb_err *err)
{
    const lb_program *programs[2];
    lb_capture *captures[] = {session->a, session->b ? session->b : session->a};
    for (int k = 0; k < 2; k++)
        if (lb_capture_program(captures[k], rank, step, &programs[k], NULL) != LB_OK) {
            char text[160];
            snprintf(text, sizeof text, "step %lld of rank %d was captured on the %s side only", (long long)step, rank,
                     k ? "first" : "second");
            lb_explain_findings_add_missing(session->report, text);
            session->absent++;
            return LB_OK;
        }
    const lb_program_pair pair = {{&programs[0], &programs[1]}, {1, 1}};
    bool strange = false;
    if (session->implementations) return lb_explain_implementations(session, &pair, &session->sources, err);
    session->turned = session->b && lb_alignment_finer(programs[0], programs[1]);
    if (session->b && lb_batch_rows_apply(programs[0], programs[1]))
        LB_TRY(find_rows(session, &pair, &strange, err));
    else
        lb_batch_rows_release(&session->rows); /* those of a step before */
    return strange ? LB_OK : explain_programs(session, &pair, err);
}

/* ---- a prefill and decode steps against one forward pass ---- */

/* All steps of a rank if they are forward passes alone; malloc'ed, NULL when they are not. */
static const lb_program **forward_passes(lb_capture *capture, int32_t rank, uint32_t *n)
{
    const int64_t *steps;
    uint32_t n_steps = lb_capture_steps(capture, &steps);
    const lb_program **list = malloc((n_steps + 1) * sizeof *list);
    *n = 0;
    for (uint32_t i = 0; list && i < n_steps; i++) {
        if (lb_capture_program(capture, rank, steps[i], &list[*n], NULL) != LB_OK) continue;
        bool forward = list[*n]->n_groups == 0;
        for (uint32_t k = 0; forward && k < list[*n]->n_ops; k++) {
            const uint8_t phase = list[*n]->ops[k].phase;
            forward = phase != LB_PHASE_BACKWARD && phase != LB_PHASE_OPTIMIZER;
        }
        if (!forward) {
            free(list);
            return NULL;
        }
        ++*n;
    }
    return list;
}

/* One side is one forward pass and the other several, which are taken together. Programs are the caller's to free. */
static bool is_decoding(const lb_explain_session *session, int32_t rank, lb_program_pair *pair)
{
    *pair = (lb_program_pair){{NULL, NULL}, {0, 0}};
    if (!session->b || session->options->first_step != INT64_MIN || session->implementations) return false;
    pair->programs[0] = forward_passes(session->a, rank, &pair->n[0]);
    if (pair->programs[0]) pair->programs[1] = forward_passes(session->b, rank, &pair->n[1]);
    return pair->programs[1] && pair->n[0] && pair->n[1] && (pair->n[0] == 1) != (pair->n[1] == 1);
}

lb_status lb_explain_rank_decoding(lb_explain_session *session, int32_t rank, lb_err *err)
{
    lb_program_pair pair;
    lb_status status = LB_OK;
    if (is_decoding(session, rank, &pair)) {
        session->turned = pair.n[0] > 1;
        status = explain_programs(session, &pair, err);
    }
    free(pair.programs[0]), free(pair.programs[1]);
    return status;
}

/* Rows of a batch are looked for where they stood in the step before. */
static bool have_other_batches(const lb_explain_session *session, int32_t rank)
{
    const int64_t *steps;
    const lb_program *programs[2];
    const uint32_t n = session->b ? lb_capture_steps(session->a, &steps) : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (steps[i] < session->options->first_step || steps[i] > session->options->last_step) continue;
        if (lb_capture_program(session->a, rank, steps[i], &programs[0], NULL) == LB_OK &&
            lb_capture_program(session->b, rank, steps[i], &programs[1], NULL) == LB_OK)
            return lb_batch_rows_apply(programs[0], programs[1]);
    }
    return false;
}

lb_explain_cut lb_explain_cut_of(const lb_explain_session *session, int32_t rank)
{
    lb_program_pair pair;
    if (!session->b) return LB_EXPLAIN_CUT_RANK; /* of its own bits one step alone may say too little */
    const bool decoding = is_decoding(session, rank, &pair);
    free(pair.programs[0]), free(pair.programs[1]);
    if (decoding) return LB_EXPLAIN_CUT_DECODING;
    return session->implementations || have_other_batches(session, rank) ? LB_EXPLAIN_CUT_RANK : LB_EXPLAIN_CUT_STEPS;
}
