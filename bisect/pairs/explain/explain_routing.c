/* Experts chosen differently: see explain_session.h. Choices are judged, and A is replayed with B's in force, by
 * replay's routing report (lastbit/routing.h); what is known here is which value of B stands where. */
#include "explain/explain_session.h"

#include "base/array.h"
#include <lastbit/routing.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct counterparts {
    const lb_step_pair *scene;
    void **kept; /* dense copies of what lies otherwise */
    uint32_t n_kept;
} counterparts;

/* ---- which value of B ---- */

/* The part of a choice that stands at `value`, on the other side. */
static uint32_t of_choice(const lb_step_pair *pair, uint32_t value)
{
    const lb_program *a = pair->sides[0].program, *b = pair->sides[1].program;
    for (uint32_t i = 0; i < a->n_routings; i++) {
        const lb_routing *routing = &a->routings[i];
        const uint32_t parts[] = {routing->ids, routing->weights, routing->slots, routing->logits};
        int part = 0;
        while (part < 4 && parts[part] != value) part++;
        for (uint32_t k = 0; k < b->n_routings && part < 4; k++) {
            const lb_routing *y = &b->routings[k];
            const uint32_t theirs[] = {y->ids, y->weights, y->slots, y->logits};
            if (lb_matched_region_same_choice(&pair->source, routing, y)) return theirs[part];
        }
    }
    return LB_NONE;
}

/* Do both hold the same elements, row by row, under whatever shape? */
static bool is_same_window(const lb_value *x, const lb_value *y)
{
    return x->storage == y->storage && x->version == y->version && x->dtype == y->dtype &&
           x->layout.offset == y->layout.offset && lb_layout_numel(&x->layout) == lb_layout_numel(&y->layout) &&
           lb_layout_is_contiguous(&x->layout) && lb_layout_is_contiguous(&y->layout);
}

/* What goes into, or comes out of, the same call of the same module. */
static uint32_t of_module(const lb_step_pair *pair, uint32_t value)
{
    const lb_program *a = pair->sides[0].program, *b = pair->sides[1].program;
    for (uint32_t i = 0; i < a->n_boundaries; i++) {
        const lb_boundary *boundary = &a->boundaries[i];
        if (boundary->value == LB_NONE || boundary->recompute ||
            (boundary->value != value && !is_same_window(&a->values[boundary->value], &a->values[value])))
            continue;
        for (uint32_t k = 0; k < b->n_boundaries; k++)
            if (lb_matched_region_same_place(&pair->source, boundary, &b->boundaries[k])) return b->boundaries[k].value;
    }
    return LB_NONE;
}

/* The outcome of a computing op that holds the elements of `value`; `*op`: its row. */
static uint32_t made_as(const lb_program *program, uint32_t value, uint32_t *op, uint32_t *outcome)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *o = &program->ops[i];
        const uint32_t *lists[] = {lb_op_results(program, o), lb_op_written(program, o)},
                       n[] = {o->results, o->written};
        for (uint32_t k = 0; k < n[0] + n[1] && !(o->flags & LB_OP_VIEW); k++) {
            const uint32_t v = k < n[0] ? lists[0][k] : lists[1][k - n[0]];
            if (v == LB_NONE || (v != value && !is_same_window(&program->values[v], &program->values[value]))) continue;
            *op = i, *outcome = k;
            return v;
        }
    }
    return LB_NONE;
}

/* What the aligned op gives. */
static uint32_t of_op(const lb_step_pair *pair, uint32_t value)
{
    const lb_program *a = pair->sides[0].program, *b = pair->sides[1].program;
    uint32_t i, k;
    if (made_as(a, value, &i, &k) == LB_NONE) return LB_NONE;
    const uint32_t j =
        pair->alignment.b_of_a[i] != LB_NONE ? pair->alignment.b_of_a[i] : pair->alignment.source_b_of_a[i];
    if (j == LB_NONE || k >= b->ops[j].results + b->ops[j].written) return LB_NONE;
    return lb_op_outcome(b, &b->ops[j], k);
}

/* ---- its bytes ---- */

static bool bytes_of(const lb_step_pair *pair, uint32_t value, lb_tensor *tensor)
{
    uint32_t op, outcome;
    if (lb_matched_region_bytes(&pair->source, 1, value, tensor)) return true;
    const uint32_t made = made_as(pair->sides[1].program, value, &op, &outcome);
    return made != LB_NONE && made != value && lb_matched_region_bytes(&pair->source, 1, made, tensor);
}

/* Row-major, as long as the counterparts live. */
static bool straighten(counterparts *counterparts, lb_tensor *tensor)
{
    if (lb_layout_is_contiguous(&tensor->layout)) return true;
    void **grown = lb_array_grow(counterparts->kept, counterparts->n_kept, sizeof *grown);
    if (!grown) return false;
    counterparts->kept = grown;
    void *dense = malloc(lb_dtype_bytes(tensor->dtype, (size_t)lb_layout_numel(&tensor->layout)) + 1);
    if (!dense) return false;
    counterparts->kept[counterparts->n_kept++] = dense;
    if (lb_tensor_gather(tensor, dense, NULL) != LB_OK) return false;
    tensor->data = dense;
    return true;
}

/* As lb_routing_other.value: one scene is one step of one rank. */
static bool counterpart(void *context, const lb_program *program, uint32_t value, lb_tensor *tensor)
{
    counterparts *counterparts = context;
    const lb_layout *shape = &program->values[value].layout;
    uint32_t (*const ways[])(const lb_step_pair *, uint32_t) = {of_choice, of_module, of_op};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const uint32_t found = ways[i](counterparts->scene, value);
        if (found == LB_NONE || !bytes_of(counterparts->scene, found, tensor)) continue;
        if (lb_layout_numel(&tensor->layout) != lb_layout_numel(shape) || !straighten(counterparts, tensor)) continue;
        tensor->layout = lb_layout_contiguous(shape->ndim, shape->shape);
        return true;
    }
    return false;
}

/* ---- findings ---- */

typedef struct tally {
    int64_t choices, flips, ties, upstream, routers, unjudged;
    double margin;
} tally;

static tally count(const lb_routing_report *report, const char *layer)
{
    tally counted = {.margin = NAN};
    for (uint32_t i = 0; i < report->n_layers; i++) {
        const lb_routing_layer *l = &report->layers[i];
        if (strcmp(l->layer, layer) || l->flips < 0) continue;
        counted.choices += l->choices, counted.flips += l->flips, counted.routers += l->router_differences,
            counted.unjudged += l->unjudged;
        counted.margin = fmax(counted.margin, l->largest_margin);
    }
    for (uint32_t i = 0; i < report->n_flips; i++) {
        const lb_routing_flip *flip = &report->flips[i];
        if (flip->kind != LB_FLIP_NEAR_TIE || strcmp(report->layers[flip->layer].layer, layer)) continue;
        counted.ties += flip->margin <= flip->rounding, counted.upstream += flip->margin > flip->rounding;
    }
    return counted;
}

/* "; token 17: expert 5 to 6 by 0.007, …": the widest margins first; NAMED_FLIPS of them. */
static void list_flips(const lb_routing_report *report, const char *layer, char *text, size_t size)
{
    enum { NAMED_FLIPS = 3 };
    uint32_t named = 0;
    size_t used = 0;
    *text = '\0';
    for (uint32_t i = 0; i < report->n_flips && used < size; i++) {
        const lb_routing_flip *flip = &report->flips[i];
        if (strcmp(report->layers[flip->layer].layer, layer)) continue;
        if (named++ == NAMED_FLIPS) {
            snprintf(text + used, size - used, ", …");
            return;
        }
        used += (size_t)snprintf(text + used, size - used, "%s token %lld: expert %lld to ", named > 1 ? "," : ";",
                                 (long long)flip->token, (long long)flip->lost);
        if (used < size)
            used += (size_t)(flip->won < 0 ? snprintf(text + used, size - used, "none")
                                           : snprintf(text + used, size - used, "%lld", (long long)flip->won));
        if (used < size && flip->margin == flip->margin)
            used += (size_t)snprintf(text + used, size - used, " by %.3g", flip->margin);
    }
}

static const char *name_of(const tally *tally)
{
    if (tally->routers) return "another router";
    if (tally->unjudged) return "unjudged";
    return tally->upstream ? "upstream" : "near ties";
}

static lb_status add_layer(lb_explain_session *session, const lb_step_pair *pair, const lb_routing_report *report,
                           const lb_routing_layer *layer, const tally *tally, lb_err *err)
{
    const lb_program *program = pair->sides[0].program;
    lb_explain_report *told = session->report;
    char why[640], which[240];
    list_flips(report, layer->layer, which, sizeof which);
    snprintf(why, sizeof why,
             "%lld of %lld choices fall on other experts, the largest margin is %.3g: %lld are near ties, "
             "%lld follow from what the router was given "
             "(its scores move by more than the margin over the second side's hidden states), "
             "%lld do not: the router itself is another; %lld cannot be judged%s",
             (long long)tally->flips, (long long)tally->choices, tally->margin, (long long)tally->ties,
             (long long)tally->upstream, (long long)tally->routers, (long long)tally->unjudged, which);
    const lb_explain_finding row = {.step = program->step,
                                    .rank = program->rank,
                                    .phase = LB_PHASE_FORWARD,
                                    .layer = lb_explain_findings_keep(told, layer->layer),
                                    .op = "experts chosen",
                                    .other_op = "experts chosen",
                                    .index = LB_NONE,
                                    .other = LB_NONE,
                                    .cause = LB_CAUSE_ROUTING,
                                    .proof = LB_PROOF_BITS,
                                    .schedule = name_of(tally),
                                    .first = "",
                                    .also = "",
                                    .why = lb_explain_findings_keep(told, why),
                                    .matched = tally->choices - tally->flips,
                                    .elements = tally->choices,
                                    .local = NAN,
                                    .total = NAN};
    return lb_explain_findings_add(told, &row, err);
}

/* One finding for all calls of a layer. */
static lb_status add_layers(lb_explain_session *session, const lb_step_pair *pair, const lb_routing_report *report,
                            lb_err *err)
{
    for (uint32_t i = 0; i < report->n_layers; i++) {
        bool first = true;
        for (uint32_t k = 0; k < i && first; k++) first = strcmp(report->layers[k].layer, report->layers[i].layer) != 0;
        const tally tally = count(report, report->layers[i].layer);
        if (first && tally.flips) LB_TRY(add_layer(session, pair, report, &report->layers[i], &tally, err));
    }
    return LB_OK;
}

/* The report is the session's from now on. */
static lb_status keep_report(lb_explain_session *session, const lb_routing_report *report, lb_err *err)
{
    lb_explain_report *r = session->report;
    lb_routing_report *grown = lb_array_grow(r->routings, r->n_routings, sizeof *grown);
    if (!grown) return lb_fail(err, LB_ERR_NOMEM, "out of memory for routing");
    r->routings = grown;
    r->routings[r->n_routings++] = *report;
    return LB_OK;
}

static lb_status tell_lacking(lb_explain_session *session, const lb_step_pair *pair, int side)
{
    const lb_program *program = pair->sides[0].program;
    char text[200];
    snprintf(
        text, sizeof text,
        "step %lld, rank %d: "
        "no routing of experts was recorded on the %s side (a choice by top-k inside a module is what counts as one)",
        (long long)program->step, program->rank, side ? "second" : "first");
    lb_explain_findings_add_missing(session->report, text);
    return LB_OK;
}

lb_status lb_explain_routing(lb_explain_session *session, const lb_step_pair *scene, lb_err *err)
{
    const lb_program *program = scene->sides[0].program;
    const bool modes = session->options->routing;
    lb_plan plan = LB_PLAN_INIT;
    counterparts counterparts = {.scene = scene};
    const lb_routing_other other = {&counterparts, counterpart};
    lb_routing_report report = {0};
    lb_replay *replay = NULL;
    for (int side = 0; side < 2; side++)
        if (!scene->sides[side].program->n_routings) return modes ? tell_lacking(session, scene, side) : LB_OK;
    if (scene->sides[0].n_parts > 1 || scene->sides[1].n_parts > 1) return LB_OK;
    plan.first_step = plan.last_step = program->step;
    plan.ranks = &program->rank, plan.n_ranks = 1;
    plan.memory_bytes = session->options->memory_bytes;
    plan.compare = false;
    lb_status status = lb_replay_open(session->a, &replay, err);
    if (status == LB_OK) status = lb_routing_report_against(session->a, replay, &plan, &other, modes, &report, err);
    if (status == LB_ERR_NOT_CAPTURED) lb_err_clear(err), status = LB_OK, report.n_layers = 0;
    if (status == LB_OK) status = add_layers(session, scene, &report, err);
    const bool kept =
        status == LB_OK && modes && report.n_layers && (status = keep_report(session, &report, err)) == LB_OK;
    if (!kept) lb_routing_report_release(&report);
    lb_replay_close(replay);
    for (uint32_t i = 0; i < counterparts.n_kept; i++) free(counterparts.kept[i]);
    free(counterparts.kept);
    return status;
}
