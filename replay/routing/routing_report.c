/* Running a window in every routing mode, and judging flips: see lastbit/routing.h. */
#define _GNU_SOURCE /* strdup */
#include "base/array.h"
#include <lastbit/routing.h>

#include "fused/eager.h"
#include "composites/expert_flip.h"
#include "session/output_distance.h"
#include "kernel/value_memory.h"
#include "composites/router.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *lb_routing_mode_name(lb_routing_mode mode)
{
    static const char *const names[LB_ROUTING_MODES] = {"plain", "recompute", "ids", "ids+weights",
                                                        "ids+weights+slots"};
    return mode < LB_ROUTING_MODES ? names[mode] : "unknown";
}

const char *lb_routing_flip_kind_name(lb_flip_kind kind)
{
    return kind == LB_FLIP_NEAR_TIE ? "near tie" : kind == LB_FLIP_ROUTER ? "router difference" : "unjudged";
}

double lb_routing_recovered(double recomputed, double gap)
{
    return recomputed > 0 ? 1 - gap / recomputed : NAN;
}

/* Rows of both snapshot sets, which want the same values in the same order. */
typedef struct decision {
    const lb_program *program;
    lb_router router;
    uint32_t ids, scores, read; /* read: what the choice reads */
    uint32_t *inputs;           /* per row of router.path.list */
} decision;

typedef struct maker {
    lb_capture *capture;
    lb_replay *replay;
    const lb_plan *plan;
    lb_routing_report *report;
    lb_output_distance gaps;
    decision *decisions;    /* as report->layers */
    lb_snapshots *watching; /* of the run under way */
    void *routed;           /* what was last forced */
    lb_err *err;
} maker;

static lb_status no_memory(maker *maker)
{
    return lb_fail(maker->err, LB_ERR_NOMEM, "out of memory for routing replay");
}

/* ---- what is looked at ------------------------------------------------------------------------------------------- */

static uint32_t want(maker *maker, const lb_program *program, uint32_t value, uint32_t before)
{
    return lb_output_distance_want(&maker->gaps, program, value, before);
}

static lb_status add_decision(maker *maker, const lb_program *program, lb_slice_flow *flow, const lb_routing *row)
{
    lb_routing_report *report = maker->report;
    const uint32_t n = report->n_layers + 1;
    decision *decisions = lb_array_grow(maker->decisions, report->n_layers, sizeof *decisions);
    if (decisions) maker->decisions = decisions;
    lb_routing_layer *layers = lb_array_grow(report->layers, report->n_layers, sizeof *layers);
    if (layers) report->layers = layers;
    if (!decisions || !layers) return no_memory(maker);
    decision *added = &decisions[n - 1];
    *added = (decision){.program = program, .ids = LB_NONE, .scores = LB_NONE, .read = LB_NONE};
    lb_status status = lb_router_find(program, flow, row, &added->router, maker->err);
    added->inputs = calloc(added->router.path.n_list + 1, sizeof *added->inputs);
    layers[n - 1] = (lb_routing_layer){.step = program->step,
                                       .rank = program->rank,
                                       .call = row->call,
                                       .flips = -1,
                                       .recomputed = -1,
                                       .largest_margin = NAN,
                                       .largest_upstream = NAN,
                                       .layer = strdup(lb_program_text(program, program->scopes[row->scope].path))};
    report->n_layers = n;
    if (status != LB_OK) return status;
    if (!added->inputs || !layers[n - 1].layer) return no_memory(maker);
    if (added->router.topk == LB_NONE) return LB_OK;
    added->ids = want(maker, program, row->ids, added->router.topk + 1);
    added->read = want(maker, program, added->router.choice.inputs[0], added->router.topk);
    added->scores = want(maker, program, added->router.scores, added->router.made);
    for (uint32_t i = 0; i < added->router.path.n_list; i++)
        added->inputs[i] =
            want(maker, program, added->router.path.list[i], added->router.path.ops ? added->router.path.ops[0] : 0);
    return LB_OK;
}

static lb_status add_ending(maker *maker, const lb_program *program)
{
    lb_routing_report *report = maker->report;
    const uint32_t n = report->n_endings + 1;
    lb_routing_step_end *endings = lb_array_grow(report->endings, report->n_endings, sizeof *endings);
    if (!endings) return no_memory(maker);
    report->endings = endings;
    LB_TRY(lb_output_distance_add_end(&maker->gaps, program, maker->err));
    lb_routing_step_end *end = &endings[n - 1];
    *end = (lb_routing_step_end){
        .step = program->step, .rank = program->rank, .output = strdup(maker->gaps.ends[n - 1].layer)};
    for (int i = 0; i < LB_ROUTING_MODES; i++) end->gaps[i] = (lb_routing_gap){NAN, NAN};
    report->n_endings = n;
    return end->output ? LB_OK : no_memory(maker);
}

/* Made again in backward, under activation checkpointing. */
static bool is_repeated(const lb_program *program, const lb_routing *row)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].scope == row->scope && program->ops[i].call == row->call &&
            lb_slice_op_defines(program, &program->ops[i]))
            return (program->ops[i].flags & LB_OP_RECOMPUTE) != 0;
    return false;
}

static lb_status add_program(void *context, const lb_program *program, lb_err *err)
{
    maker *maker = context;
    lb_slice_flow *flow = NULL;
    (void)err; /* is maker->err */
    LB_TRY(add_ending(maker, program));
    if (!program->n_routings) return LB_OK;
    LB_TRY(lb_slice_flow_new(program, &flow, maker->err));
    lb_status status = LB_OK;
    for (uint32_t r = 0; r < program->n_routings && status == LB_OK; r++)
        if (!is_repeated(program, &program->routings[r]))
            status = add_decision(maker, program, flow, &program->routings[r]);
    lb_slice_flow_free(flow);
    return status;
}

static lb_status add_window(maker *maker)
{
    LB_TRY(lb_output_distance_each_window(maker->capture, maker->plan, add_program, maker, maker->err));
    if (maker->gaps.reference.failed || maker->gaps.current.failed) return no_memory(maker);
    if (maker->report->n_layers) return LB_OK;
    return lb_fail(maker->err, LB_ERR_NOT_CAPTURED,
                   "no routing of experts was recorded in these steps: "
                   "a choice by top-k inside a module is what counts as one");
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static bool recorded(const maker *maker, const lb_program *program, uint32_t value, uint32_t row, lb_tensor *tensor)
{
    return lb_output_distance_recorded(&maker->gaps, program, value, row, tensor);
}

static void note_gaps(maker *maker, lb_routing_mode mode)
{
    for (uint32_t i = 0; i < maker->report->n_endings; i++) {
        lb_routing_gap *gap = &maker->report->endings[i].gaps[mode];
        lb_output_distance_measure(&maker->gaps, i, &gap->output, &gap->loss);
    }
}

/* ---- one decision ------------------------------------------------------------------------------------------------ */

/* Both sides of a decision, row-major. NULL: not to be had. */
typedef struct choices {
    int64_t tokens, per_token, experts;
    int64_t *then, *now;
    double *scores, *upstream; /* recorded; of the recorded router over what the replay gave it */
    lb_dtype dtype;            /* of the scores */
} choices;

static bool load_ids(const lb_tensor *tensor, int64_t **ids)
{
    *ids = malloc((size_t)lb_layout_numel(&tensor->layout) * sizeof **ids + 1);
    return *ids && lb_expert_flip_load_ids(tensor, *ids);
}

static const lb_routing_other *other_of(const maker *maker)
{
    return maker->gaps.other;
}

static bool others(maker *maker, const lb_program *program, uint32_t value, lb_tensor *tensor)
{
    return value != LB_NONE && other_of(maker)->value(other_of(maker)->context, program, value, tensor);
}

static bool load_then(maker *maker, const decision *decision, choices *loaded)
{
    lb_tensor tensor;
    *loaded = (choices){0};
    if (decision->router.topk == LB_NONE ||
        !recorded(maker, decision->program, decision->router.row->ids, decision->ids, &tensor) ||
        tensor.layout.ndim < 1)
        return false;
    loaded->per_token = tensor.layout.shape[tensor.layout.ndim - 1];
    if (loaded->per_token < 1 || loaded->per_token > LB_MOST_CHOICES || !load_ids(&tensor, &loaded->then)) return false;
    loaded->tokens = lb_layout_numel(&tensor.layout) / loaded->per_token;
    if (!recorded(maker, decision->program, decision->router.scores, decision->scores, &tensor) ||
        tensor.layout.ndim < 1)
        return true;
    loaded->experts = tensor.layout.shape[tensor.layout.ndim - 1], loaded->dtype = tensor.dtype;
    if (lb_layout_numel(&tensor.layout) == loaded->tokens * loaded->experts)
        loaded->scores = lb_expert_flip_scores(&tensor);
    return true;
}

static void release_choices(choices *choices)
{
    free(choices->then), free(choices->now), free(choices->scores), free(choices->upstream);
}

static lb_tensor room_for(const lb_program *program, uint32_t value)
{
    const lb_value *v = &program->values[value];
    lb_tensor tensor = {NULL, v->dtype, lb_layout_contiguous(v->layout.ndim, v->layout.shape)};
    tensor.data = malloc(lb_dtype_bytes(v->dtype, (size_t)lb_layout_numel(&v->layout)) + 1);
    return tensor;
}

/* What the router would choose now: the ids that the run holds may be forced ones. Another recording has chosen. */
static bool choose_now(maker *maker, const decision *decision, choices *choices)
{
    lb_tensor inputs[LB_COMPOSITE_INPUTS] = {{0}}, outputs[LB_COMPOSITE_OUTPUTS] = {{0}}, chosen;
    lb_err quiet = LB_ERR_INIT;
    if (other_of(maker))
        return others(maker, decision->program, decision->router.row->ids, &chosen) &&
               lb_layout_numel(&chosen.layout) == choices->tokens * choices->per_token &&
               load_ids(&chosen, &choices->now);
    const lb_tensor *read = lb_snapshots_of(&maker->gaps.current, decision->read);
    if (!read) return false;
    inputs[0] = *read, outputs[0] = room_for(decision->program, decision->router.row->ids);
    const bool done = outputs[0].data && lb_eager_run(&decision->router.choice, inputs, outputs, &quiet) == LB_OK &&
                      load_ids(&outputs[0], &choices->now);
    free(outputs[0].data);
    return done;
}

/* Input `i` of the router's scores: its own as recorded, else what the replay gave it, or what the other recording has
 * there; the latter in the dtype that was recorded here, which then is in `*owned`. */
static bool load_input(maker *maker, const decision *decision, uint32_t i, lb_tensor *tensor, void **owned)
{
    const uint32_t value = decision->router.path.list[i];
    const lb_tensor *now =
        decision->router.own[i] || other_of(maker) ? NULL : lb_snapshots_of(&maker->gaps.current, decision->inputs[i]);
    if (now) *tensor = *now;
    if (now) return true;
    if (decision->router.own[i] || !other_of(maker))
        return recorded(maker, decision->program, value, decision->inputs[i], tensor);
    lb_tensor given;
    if (!others(maker, decision->program, value, &given)) return false;
    *tensor = room_for(decision->program, value);
    *owned = tensor->data;
    if (tensor->data) lb_memory_tensor_copy(tensor, &given, NULL);
    return tensor->data;
}

/* The scores of the recorded router over what the replay gave it, or over what the other recording has. */
static void score_upstream(maker *maker, const decision *decision, choices *choices)
{
    const lb_composite *path = &decision->router.path;
    lb_tensor *inputs = calloc(LB_COMPOSITE_INPUTS + path->n_list + 1, sizeof *inputs),
              outputs[LB_COMPOSITE_OUTPUTS] = {{0}};
    void **owned = calloc(path->n_list + 1, sizeof *owned);
    lb_err quiet = LB_ERR_INIT;
    bool known = inputs && owned && path->n_ops && choices->scores;
    for (uint32_t i = 0; known && i < path->n_list; i++)
        known = load_input(maker, decision, i, &inputs[LB_COMPOSITE_INPUTS + i], &owned[i]);
    if (known) outputs[0] = room_for(decision->program, decision->router.scores);
    if (outputs[0].data && lb_eager_run(path, inputs, outputs, &quiet) == LB_OK)
        choices->upstream = lb_expert_flip_scores(&outputs[0]);
    for (uint32_t i = 0; owned && i < path->n_list; i++) free(owned[i]);
    free(outputs[0].data);
    free(inputs), free(owned);
}

static lb_routing_flip judge(const choices *choices, int64_t token, lb_expert_flip pair)
{
    lb_routing_flip flip = {.kind = LB_FLIP_UNJUDGED,
                            .token = token,
                            .lost = pair.lost,
                            .won = pair.won,
                            .margin = NAN,
                            .upstream = NAN,
                            .rounding = NAN};
    if (!choices->scores || pair.won < 0 || pair.lost >= choices->experts || pair.won >= choices->experts) return flip;
    const double *then = choices->scores + token * choices->experts;
    flip.margin = then[pair.lost] - then[pair.won],
    flip.rounding = lb_expert_flip_rounding(then, choices->experts, choices->dtype);
    if (!choices->upstream || isnan(flip.margin)) return flip;
    const double *moved = choices->upstream + token * choices->experts;
    flip.upstream = fabs(moved[pair.lost] - then[pair.lost]) + fabs(moved[pair.won] - then[pair.won]);
    flip.kind = flip.margin <= flip.upstream + flip.rounding ? LB_FLIP_NEAR_TIE : LB_FLIP_ROUTER;
    return flip;
}

static bool in_range(const choices *choices)
{
    for (int64_t i = 0; choices->scores && i < choices->tokens * choices->per_token; i++)
        if (choices->then[i] < 0 || choices->then[i] >= choices->experts || choices->now[i] < 0 ||
            choices->now[i] >= choices->experts)
            return false;
    return true;
}

static bool add_flip(lb_routing_report *report, const lb_routing_flip *flip)
{
    lb_routing_layer *layer = &report->layers[flip->layer];
    lb_routing_flip *more = lb_array_grow(report->flips, report->n_flips, sizeof *more);
    if (!more) return false;
    report->flips = more;
    report->flips[report->n_flips++] = *flip;
    layer->flips++;
    layer->near_ties += flip->kind == LB_FLIP_NEAR_TIE, layer->router_differences += flip->kind == LB_FLIP_ROUTER;
    layer->unjudged += flip->kind == LB_FLIP_UNJUDGED;
    layer->largest_margin = fmax(layer->largest_margin, flip->margin); /* the one that is no NaN */
    layer->largest_upstream = fmax(layer->largest_upstream, flip->upstream);
    return true;
}

/* Flips with the recorded ids in force, or those of the other recording. */
static lb_status judge_layer(maker *maker, uint32_t at)
{
    choices choices;
    lb_routing_layer *layer = &maker->report->layers[at];
    lb_status status = LB_OK;
    if (load_then(maker, &maker->decisions[at], &choices)) {
        layer->tokens = choices.tokens, layer->choices = choices.tokens * choices.per_token;
        if (choose_now(maker, &maker->decisions[at], &choices) && in_range(&choices)) {
            score_upstream(maker, &maker->decisions[at], &choices);
            layer->flips = 0;
            for (int64_t t = 0; t < choices.tokens && status == LB_OK; t++) {
                lb_expert_flip pairs[LB_MOST_CHOICES];
                const int64_t n =
                    lb_flips_of(choices.then + t * choices.per_token, choices.now + t * choices.per_token,
                                choices.per_token, choices.scores ? choices.scores + t * choices.experts : NULL, pairs);
                for (int64_t i = 0; i < n && status == LB_OK; i++) {
                    lb_routing_flip flip = judge(&choices, t, pairs[i]);
                    flip.layer = at;
                    if (!add_flip(maker->report, &flip)) status = no_memory(maker);
                }
            }
        }
    }
    release_choices(&choices);
    return status;
}

/* The choices that a run is compared with: the recorded ones, or those of the other recording. */
static bool load_reference(maker *maker, const decision *decision, choices *choices)
{
    if (!load_then(maker, decision, choices) || !other_of(maker)) return choices->then;
    const bool known = choose_now(maker, decision, choices);
    int64_t *mine = choices->then;
    choices->then = choices->now, choices->now = mine;
    free(choices->now), choices->now = NULL;
    return known;
}

/* Choices that differ in a run whose routing is its own. */
static void count_recomputed(maker *maker, uint32_t at)
{
    choices choices;
    lb_expert_flip pairs[LB_MOST_CHOICES];
    const decision *decision = &maker->decisions[at];
    const lb_tensor *now = lb_snapshots_of(&maker->gaps.current, decision->ids);
    if (load_reference(maker, decision, &choices) && now && load_ids(now, &choices.now) &&
        lb_layout_numel(&now->layout) == choices.tokens * choices.per_token) {
        maker->report->layers[at].recomputed = 0;
        for (int64_t t = 0; t < choices.tokens; t++)
            maker->report->layers[at].recomputed +=
                lb_flips_of(choices.then + t * choices.per_token, choices.now + t * choices.per_token,
                            choices.per_token, NULL, pairs);
    }
    release_choices(&choices);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* As lb_observer.routed: what the other recording chose, as this one holds it. */
static bool route(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    maker *maker = context;
    const lb_program *program = NULL;
    lb_tensor given;
    for (uint32_t i = 0; i < maker->report->n_layers && !program; i++)
        if (maker->report->layers[i].step == step && maker->report->layers[i].rank == rank)
            program = maker->decisions[i].program;
    if (!program || !others(maker, program, value, &given)) return false;
    free(maker->routed);
    const lb_tensor room = room_for(program, value);
    maker->routed = room.data;
    if (!maker->routed) return false;
    lb_memory_tensor_copy(&room, &given, NULL);
    *tensor = room;
    return true;
}

static bool watch(void *context, const lb_event *event)
{
    maker *maker = context;
    return lb_snapshots_watch(maker->watching, event);
}

static lb_status run(maker *maker, lb_routing_mode mode)
{
    lb_plan plan = *maker->plan;
    lb_observer observer = {.context = maker, .op = watch, .routed = other_of(maker) ? route : NULL};
    lb_replay_summary summary = {0};
    const uint32_t n = mode == LB_ROUTING_PLAIN ? 0 : maker->plan->n_swaps + 1;
    lb_swap *swaps = calloc(n + 1, sizeof *swaps);
    uint64_t *touched = calloc(n + 1, sizeof *touched);
    maker->watching = mode == LB_ROUTING_PLAIN ? &maker->gaps.reference : &maker->gaps.current;
    if (swaps && touched) {
        for (uint32_t i = 0; i + 1 < n; i++) swaps[i] = maker->plan->swaps[i];
        if (n) swaps[n - 1] = (lb_swap){LB_SWAP_ROUTING, "", lb_routing_mode_name(mode)};
        plan.mode = LB_REPLAY_CHAINED, plan.swaps = swaps, plan.n_swaps = n, plan.touched = touched, plan.select = NULL;
    }
    lb_status status =
        swaps && touched ? lb_replay_run(maker->replay, &plan, &observer, &summary, maker->err) : no_memory(maker);
    for (uint32_t i = 0; status == LB_OK && i + 1 < n && maker->plan->touched; i++)
        maker->plan->touched[i] = touched[i];
    free(swaps);
    free(touched);
    if (status == LB_OK && maker->watching->failed) status = no_memory(maker);
    maker->report->undecided[mode] = summary.undecided;
    if (summary.undecided && !*maker->report->undecided_at)
        snprintf(maker->report->undecided_at, sizeof maker->report->undecided_at, "%s", summary.undecided_at);
    return status;
}

/* What is to be known of the run that stands in `current`. */
static lb_status look_at(maker *maker, lb_routing_mode mode)
{
    note_gaps(maker, mode);
    for (uint32_t i = 0; i < maker->report->n_layers; i++) {
        if (mode == LB_ROUTING_RECOMPUTE) count_recomputed(maker, i);
        if (mode == (other_of(maker) ? LB_ROUTING_RECOMPUTE : LB_ROUTING_IDS)) LB_TRY(judge_layer(maker, i));
    }
    return LB_OK;
}

/* Where there is no swap, the run without swaps is the one that recomputes. */
static lb_status run_mode(maker *maker, lb_routing_mode mode)
{
    const bool plain = mode == LB_ROUTING_PLAIN, again = mode == LB_ROUTING_RECOMPUTE && !maker->plan->n_swaps;
    if (!again) LB_TRY(run(maker, mode));
    const lb_snapshots mine = maker->gaps.current;
    if (plain || again) maker->gaps.current = maker->gaps.reference;
    if (again) maker->report->undecided[mode] = maker->report->undecided[LB_ROUTING_PLAIN];
    const lb_status status = look_at(maker, mode);
    if (plain || again)
        maker->gaps.current = mine;
    else
        lb_snapshots_clear(&maker->gaps.current);
    return status;
}

static int by_weight(const void *a, const void *b)
{
    const lb_routing_flip *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind == LB_FLIP_ROUTER ? -1 : y->kind == LB_FLIP_ROUTER ? 1 : (int)x->kind - (int)y->kind;
    const double p = isnan(x->margin) ? -INFINITY : x->margin, q = isnan(y->margin) ? -INFINITY : y->margin;
    if (p != q) return p > q ? -1 : 1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return x->token != y->token ? (x->token < y->token ? -1 : 1) : x->lost < y->lost ? -1 : x->lost > y->lost;
}

lb_status lb_routing_report_against(lb_capture *capture, lb_replay *replay, const lb_plan *plan,
                                    const lb_routing_other *other, bool modes, lb_routing_report *report, lb_err *err)
{
    maker maker = {.gaps = {.capture = capture, .other = other},
                   .capture = capture,
                   .replay = replay,
                   .plan = plan,
                   .report = report,
                   .err = err};
    *report = (lb_routing_report){.against = other != NULL};
    lb_status status = add_window(&maker);
    const int last = modes ? LB_ROUTING_MODES : LB_ROUTING_RECOMPUTE + 1;
    for (int mode = 0; mode < last && status == LB_OK; mode++) status = run_mode(&maker, (lb_routing_mode)mode);
    if (status == LB_OK && report->n_flips) qsort(report->flips, report->n_flips, sizeof *report->flips, by_weight);
    for (uint32_t i = 0; i < report->n_layers; i++)
        lb_router_release(&maker.decisions[i].router), free(maker.decisions[i].inputs);
    lb_output_distance_release(&maker.gaps);
    free(maker.decisions), free(maker.routed);
    return status;
}

lb_status lb_routing_report_make(lb_capture *capture, lb_replay *replay, const lb_plan *plan, lb_routing_report *report,
                                 lb_err *err)
{
    return lb_routing_report_against(capture, replay, plan, NULL, true, report, err);
}

void lb_routing_report_release(lb_routing_report *report)
{
    for (uint32_t i = 0; i < report->n_layers; i++) free(report->layers[i].layer);
    for (uint32_t i = 0; i < report->n_endings; i++) free(report->endings[i].output);
    free(report->layers), free(report->endings), free(report->flips);
    *report = (lb_routing_report){0};
}
