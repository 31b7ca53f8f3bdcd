/* Trying things at a place: see match_site.h.
 * Everything that does not depend on a candidate (bytes, conversions, subprograms) is made once when
 * a place is opened, because hundreds of candidates are then run on it. What lacks leaves a NULL
 * and a sentence; it is no failure, since the other direction may still be tried. */
#include "explain/match_site.h"

#include "counterparts/counterpart_orders.h"
#include "counterparts/counterparts.h"

#include <lastbit/compare.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ---- */

/* The last sentence stays in `why`: it is told only where nothing could be tried at all. */
static bool recorded(lb_match_site *site, int side, uint32_t value, lb_tensor *tensor)
{
    /* Replayed bytes count where they are proven to be the recorded ones, and in no other case: an
     * input that is nearly right would exclude every candidate. */
    if (lb_matched_region_bytes(site->source, side, value, tensor)) return true;
    snprintf(site->why, sizeof site->why,
             "bytes of value %u of the %s side were not kept, and replay does not give its very bits", value,
             side ? "second" : "first");
    return false;
}

/* The same numbers in another dtype; false when some are no numbers of it.
 * There and back again: widening always passes, narrowing only where nothing is lost (bf16 weights
 * that a server holds in f32). Rounding inputs here would be a cause of its own among what is to be
 * told apart. */
static bool convert_exactly(const lb_tensor *from, lb_dtype dtype, lb_tensor *to)
{
    size_t n = (size_t)lb_layout_numel(&from->layout), bytes = lb_dtype_bytes(from->dtype, n);
    void *dense = malloc(bytes + 1), *back = malloc(bytes + 1);
    *to = (lb_tensor){malloc(lb_dtype_bytes(dtype, n) + 1), dtype,
                      lb_layout_contiguous(from->layout.ndim, from->layout.shape)};
    bool done = dense && back && to->data && lb_tensor_gather(from, dense, NULL) == LB_OK;
    if (done) {
        lb_convert(dtype, to->data, from->dtype, dense, n, NULL);
        lb_convert(from->dtype, back, dtype, to->data, n, NULL);
        lb_difference difference;
        lb_tensor x = {dense, from->dtype, to->layout}, y = {back, from->dtype, to->layout};
        done = lb_compare_numbers(&x, &y, &difference, NULL) == LB_OK && !difference.differing;
    }
    free(dense), free(back);
    if (!done) free(to->data), to->data = NULL;
    return done;
}

/* Elements where the recording has them (a weight's transpose): then replay uses them in place.
 * A library chooses its kernel by strides, too: the transpose of a weight laid out row by row may
 * run another kernel than the one that ran, and give different bits. */
static void lay_out_as(lb_tensor *tensor, const lb_layout *layout)
{
    int64_t first, last, n = lb_layout_numel(layout);
    if (lb_layout_is_contiguous(layout) || lb_layout_dense_range(layout, &first, &last, NULL) != LB_OK) return;
    /* A layout with gaps or overlaps (an expanded bias) is no rearrangement of n elements; those
     * stay contiguous. */
    if (last - first != n || first != layout->offset) return;
    lb_tensor laid = {malloc(lb_dtype_bytes(tensor->dtype, (size_t)n) + 1), tensor->dtype, *layout};
    if (laid.data && lb_tensor_scatter(&laid, tensor->data, NULL) == LB_OK) {
        free(tensor->data);
        *tensor = laid;
    } else
        free(laid.data);
}

/* Of two implementations: (24, 64) and (1, 24, 64) hold the same elements one behind the other. */
static bool in_shape_of(const lb_match_site *site, lb_tensor *given, const lb_layout *layout, void **owned)
{
    const int64_t n = lb_layout_numel(layout);
    if (!site->source->held[0] || lb_layout_numel(&given->layout) != n ||
        !lb_counterpart_orders_agree(&given->layout, layout))
        return false;
    *owned = malloc(lb_dtype_bytes(given->dtype, (size_t)n) + 1);
    if (!*owned || lb_tensor_gather(given, *owned, NULL) != LB_OK) return false;
    *given = (lb_tensor){*owned, given->dtype, lb_layout_contiguous(layout->ndim, layout->shape)};
    return true;
}

static bool input_of(lb_match_site *site, int runner, int bits, uint32_t leaf, lb_tensor *tensor, void **owned)
{
    const lb_matched_region_side *side = &site->region->sides[runner];
    uint32_t mine = side->leaves[leaf], value = runner == bits ? mine : side->partners[leaf];
    const lb_value *row = lb_matched_region_value(site->source, runner, mine);
    lb_tensor given;
    if (row->flags & LB_VALUE_UNDEFINED) { /* memory that is to be written: what it holds means nothing */
        *owned = calloc(1, lb_dtype_bytes(row->dtype, (size_t)lb_layout_numel(&row->layout)) + 1);
        *tensor = (lb_tensor){*owned, row->dtype, lb_layout_contiguous(row->layout.ndim, row->layout.shape)};
        return *owned != NULL;
    }
    if (value == LB_NONE && site->source->held[runner] && site->source->held[runner][mine])
        return recorded(site, runner, mine, tensor);
    if (value == LB_NONE || !recorded(site, bits, value, &given)) return false;
    /* Partners by alignment may still be broadcast differently; numbers would land on other
     * positions. */
    if (!lb_layout_same_shape(&given.layout, &row->layout) && !in_shape_of(site, &given, &row->layout, owned)) {
        snprintf(site->why, sizeof site->why, "the sides' inputs have other shapes");
        return false;
    }
    *tensor = given;
    if (given.dtype == row->dtype) return true;
    const bool converted = convert_exactly(&given, row->dtype, tensor);
    free(*owned), *owned = NULL;
    if (!converted) {
        snprintf(site->why, sizeof site->why, "inputs in %s are no numbers of %s", lb_dtype_name(given.dtype),
                 lb_dtype_name(row->dtype));
        return false;
    }
    lay_out_as(tensor, &row->layout);
    *owned = tensor->data;
    return true;
}

static bool gather_inputs(lb_match_site *site, int runner, int bits)
{
    uint32_t n = site->region->sides[runner].n_leaves;
    lb_tensor *inputs = calloc(n + 1, sizeof *inputs);
    void **owned = calloc(n + 1, sizeof *owned);
    bool all = inputs && owned;
    site->inputs[runner][bits] = inputs, site->owned[runner][bits] = owned;
    for (uint32_t i = 0; all && i < n; i++) all = input_of(site, runner, bits, i, &inputs[i], &owned[i]);
    /* A missing input ends this direction only; only a lack of memory is an error. */
    if (all || !inputs) return inputs && owned;
    for (uint32_t i = 0; owned && i < n; i++) free(owned[i]);
    free(inputs), free(owned);
    site->inputs[runner][bits] = NULL, site->owned[runner][bits] = NULL;
    return owned != NULL;
}

/* All outputs or none: a candidate that gives the first of two and cannot be compared with the
 * second would count as proven. */
static bool gather_targets(lb_match_site *site, int side)
{
    const lb_matched_region_side *s = &site->region->sides[side];
    if (!s->outputs) return true; /* of one side alone */
    lb_tensor *targets = calloc(site->region->n_outputs + 1, sizeof *targets);
    if (!targets) return false;
    bool all = true;
    for (uint32_t i = 0; all && i < site->region->n_outputs; i++)
        all = recorded(site, side, s->outputs[i], &targets[i]);
    if (all)
        site->targets[side] = targets;
    else
        free(targets);
    return true;
}

/* Of assemblies among what a side's op reads and gives: the recorded values, and the shapes in which they are handed to
 * it. */
typedef struct shapes {
    uint32_t *values;
    lb_layout *layouts;
} shapes;

static bool list_shapes(const lb_matched_region_source *source, int side, const uint32_t *values, uint32_t n,
                        shapes *out)
{
    *out = (shapes){malloc((n + 1) * sizeof *out->values), malloc((n + 1) * sizeof *out->layouts)};
    for (uint32_t i = 0; out->values && out->layouts && i < n; i++) {
        out->values[i] = lb_matched_region_recorded(source, side, values[i]);
        out->layouts[i] = lb_matched_region_value(source, side, values[i])->layout;
        /* -1 marks what is no assembly: a recorded value has the shape in which the op was called. */
        if (out->values[i] == values[i]) out->layouts[i].ndim = -1;
    }
    return out->values && out->layouts;
}

/* Assemblies are handed in as whole tensors under the number of one recorded value: a subprogram
 * knows the program and nothing of rows or parts. */
static lb_status open_subprogram(lb_match_site *site, int side, lb_err *err)
{
    const lb_matched_region_source *source = site->source;
    const lb_matched_region_side *s = &site->region->sides[side];
    shapes leaves = {0}, outputs = {0};
    const bool room = list_shapes(source, side, s->leaves, s->n_leaves, &leaves) &&
                      list_shapes(source, side, s->outputs, site->region->n_outputs, &outputs);
    const lb_subprogram_parts parts = {.program = lb_matched_region_program(source, side),
                                       .ranks = source->collective_matches[side] ? side ? source->b : source->a : NULL,
                                       .ops = s->ops,
                                       .n_ops = s->n_ops,
                                       .leaves = leaves.values,
                                       .n_leaves = s->n_leaves,
                                       .outputs = outputs.values,
                                       .n_outputs = site->region->n_outputs,
                                       .leaf_layouts = leaves.layouts,
                                       .output_layouts = outputs.layouts};
    lb_status status = room ? lb_subprogram_new(&parts, &site->subprograms[side], err) : LB_ERR_NOMEM;
    free(leaves.values), free(leaves.layouts), free(outputs.values), free(outputs.layouts);
    return status;
}

lb_status lb_match_site_open(const lb_matched_region *region, const lb_matched_region_source *source,
                             lb_match_site *site, lb_err *err)
{
    *site = (lb_match_site){.region = region, .source = source};
    bool room = true;
    for (int side = 0; side < 2 && room; side++) {
        lb_err why = LB_ERR_INIT;
        /* Where B is several calls without an op of its own to run, A's ops run on what B's parts
         * make together. */
        const bool runs = region->sides[side].outputs && (!side || !region->parts || region->sides[1].n_ops);
        lb_status status = runs ? open_subprogram(site, side, &why) : LB_OK;
        if (status == LB_ERR_NOMEM) room = false;
        if (status != LB_OK) snprintf(site->why, sizeof site->why, "%.150s", why.message);
        room = room && gather_targets(site, side) && gather_inputs(site, side, 0) && gather_inputs(site, side, 1);
    }
    if (room) return LB_OK;
    lb_match_site_release(site);
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for a matched region");
}

void lb_match_site_release(lb_match_site *site)
{
    for (int runner = 0; runner < 2; runner++) {
        for (int bits = 0; bits < 2; bits++) {
            for (uint32_t i = 0; site->owned[runner][bits] && i < site->region->sides[runner].n_leaves; i++)
                free(site->owned[runner][bits][i]);
            free(site->owned[runner][bits]), free(site->inputs[runner][bits]);
        }
        lb_subprogram_free(site->subprograms[runner]);
        free(site->targets[runner]);
    }
    memset(site, 0, sizeof *site);
}

/* ---- trying ---- */

bool lb_match_score_by_chance(const lb_score *with, const lb_score *without)
{
    const int rare = -10; /* 2^rare: less often than this is no chance */
    if (!without->ran || without->matched >= without->elements) return false;
    const double hit = (double)without->matched / (double)without->elements;
    return (double)with->elements * log2(hit) >= rare;
}

/* What was computed, in the dtype of the recording, rounded as torch casts; `raw`: as it was computed.
 * Two comparisons, for they answer two questions: `d`, whether the recorded bits come out, and
 * `raw`, whether they did so without a rounding at the end. An f32 side whose results are rounded
 * to the other's bf16 gives the bits and still has another precision. */
static bool compare_result(const lb_tensor *computed, const lb_tensor *target, lb_difference *difference,
                           lb_difference *raw)
{
    lb_tensor cast = *computed;
    if (!lb_layout_same_shape(&computed->layout, &target->layout)) return false;
    if (lb_compare_numbers(target, computed, raw, NULL) != LB_OK) return false;
    if (computed->dtype != target->dtype) {
        size_t n = (size_t)lb_layout_numel(&computed->layout);
        cast.dtype = target->dtype, cast.data = malloc(lb_dtype_bytes(target->dtype, n) + 1);
        if (!cast.data) return false;
        lb_convert(target->dtype, cast.data, computed->dtype, computed->data, n, NULL);
    }
    bool done = lb_compare_numbers(target, &cast, difference, NULL) == LB_OK;
    if (cast.data != computed->data) free(cast.data);
    return done;
}

static void release_results(const lb_match_site *site, lb_tensor *results)
{
    for (uint32_t i = 0; i < site->region->n_outputs; i++) free(results[i].data);
    free(results);
}

lb_status lb_match_site_try(const lb_match_site *site, int runner, int bits, const lb_candidate *candidate,
                            lb_score *score, lb_err *err)
{
    *score = (lb_score){0};
    if (!lb_match_site_can(site, runner, bits)) return LB_OK;
    lb_tensor *results = calloc(site->region->n_outputs + 1, sizeof *results);
    if (!results) return lb_fail(err, LB_ERR_NOMEM, "out of memory for results");
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_subprogram_run(site->subprograms[runner], site->inputs[runner][bits], candidate->swaps,
                                         candidate->n_swaps, results, &why);
    /* A candidate that an op refuses (an order with too few terms, a kernel for other shapes) did
     * not run, which excludes nothing and is counted nowhere. */
    score->ran = status == LB_OK;
    for (uint32_t i = 0; score->ran && i < site->region->n_outputs; i++) {
        lb_difference difference, raw;
        score->ran = results[i].data && compare_result(&results[i], &site->targets[bits][i], &difference, &raw);
        if (!score->ran) break;
        score->unrounded += raw.elements - raw.differing;
        score->elements += difference.elements, score->matched += difference.elements - difference.differing;
        /* Negated, because a comparison with NaN is false and would let it look like no distance. */
        if (!(score->distance >= raw.rel_l2)) score->distance = raw.rel_l2;
    }
    release_results(site, results);
    return status == LB_ERR_NOMEM ? lb_fail(err, status, "%s", why.message) : LB_OK;
}

lb_status lb_match_site_reaches(const lb_match_site *site, int runner, int bits, bool *reaches, lb_err *err)
{
    *reaches = false;
    /* Bounds are known for one op. Through several they would have to be multiplied up, and soon
     * allow anything. */
    if (site->region->sides[runner].n_ops != 1 || !lb_match_site_can(site, runner, bits)) return LB_OK;
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_subprogram_reaches(site->subprograms[runner], site->inputs[runner][bits], site->targets[bits],
                                             reaches, &why);
    return status == LB_ERR_NOMEM ? lb_fail(err, status, "%s", why.message) : LB_OK;
}

/* ---- the same real function? ---- */

/* f64 stands for the real numbers: its 53 bits leave 29 more than f32 has, so that roundings of
 * what was recorded are seen against it as if it were exact. */
static lb_status run_wide(const lb_match_site *site, int runner, int bits, lb_tensor *results, bool *ran, lb_err *err)
{
    const lb_swap wide = {LB_SWAP_PRECISION, "", "f64"};
    lb_err why = LB_ERR_INIT;
    lb_status status =
        lb_subprogram_run(site->subprograms[runner], site->inputs[runner][bits], &wide, 1, results, &why);
    *ran = status == LB_OK;
    return status == LB_ERR_NOMEM ? lb_fail(err, status, "%s", why.message) : LB_OK;
}

/* Far nearer to each other in f64 than to what was recorded: by 2^-16 of that distance, or by f64's own roundings.
 * The yardstick is the recording's own rounding, which two forms of one function must stay far
 * below; a fault of the recorded numbers' own size does not. The largest distance over the relative
 * one is about the size of the numbers, and 2^-40 of that is room for f64's own roundings; the floor
 * at 2^-24 keeps a nearly exact recording from opening that room without end. */
static bool agree(const lb_tensor *x, const lb_tensor *y, const lb_tensor *target)
{
    lb_difference between, away;
    if (lb_compare_numbers(x, y, &between, NULL) != LB_OK || lb_compare_numbers(target, x, &away, NULL) != LB_OK)
        return false;
    return !between.nonfinite &&
           between.max_abs <= 0x1p-16 * away.max_abs + 0x1p-40 * away.max_abs / fmax(away.rel_l2, 0x1p-24);
}

/* Are a side's recorded bits as near to what they are exactly as the runner's ops come by themselves, within a
 * factor? */
static lb_status as_near_as_ours(const lb_match_site *site, int runner, int bits, bool *near, lb_err *err)
{
    /* The error of a sum in another order varies by a small factor (blocked against sequential); a
     * wrong term in it exceeds any. Within a factor of 4 is no proof, and is told as `exact` and
     * never as bits. */
    enum { FACTOR = 4 };
    uint32_t n = site->region->n_outputs;
    lb_tensor *exact = calloc(n + 1, sizeof *exact), *ours = calloc(n + 1, sizeof *ours);
    bool ran = false;
    lb_status status = exact && ours ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for results");
    if (status == LB_OK) status = run_wide(site, runner, bits, exact, &ran, err);
    if (status == LB_OK && ran)
        /* The yardstick is replay's own kernel on the same inputs: no bound is known for several
         * ops, but how far one honest evaluation of them strays can be measured. */
        status = lb_subprogram_run(site->subprograms[runner], site->inputs[runner][bits], NULL, 0, ours, NULL);
    if (status != LB_OK && status != LB_ERR_NOMEM) status = LB_OK, ran = false;
    *near = status == LB_OK && ran;
    for (uint32_t i = 0; *near && i < n; i++) {
        lb_difference mine, theirs;
        *near = exact[i].data && ours[i].data && lb_compare_numbers(&exact[i], &ours[i], &mine, NULL) == LB_OK &&
                lb_compare_numbers(&exact[i], &site->targets[bits][i], &theirs, NULL) == LB_OK && !theirs.nonfinite &&
                theirs.max_abs <= FACTOR * mine.max_abs;
    }
    if (exact) release_results(site, exact);
    if (ours) release_results(site, ours);
    return status;
}

lb_status lb_match_site_is_near(const lb_match_site *site, int side, bool *near, lb_err *err)
{
    *near = false;
    return lb_match_site_can(site, side, side) ? as_near_as_ours(site, side, side, near, err) : LB_OK;
}

lb_status lb_match_site_same_function(const lb_match_site *site, bool *same, lb_err *err)
{
    *same = false;
    if (site->region->parts) return lb_match_site_can(site, 0, 1) ? as_near_as_ours(site, 0, 1, same, err) : LB_OK;
    /* Either side's inputs would do for a comparison of functions, so long as both programs get the
     * same ones. */
    int bits = lb_match_site_can(site, 0, 1) && lb_match_site_can(site, 1, 1) ? 1 : 0;
    if (!lb_match_site_can(site, 0, bits) || !lb_match_site_can(site, 1, bits)) return LB_OK;
    uint32_t n = site->region->n_outputs;
    lb_tensor *x = calloc(n + 1, sizeof *x), *y = calloc(n + 1, sizeof *y);
    bool ran_x = false, ran_y = false;
    lb_status status = x && y ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for results");
    if (status == LB_OK) status = run_wide(site, 0, bits, x, &ran_x, err);
    if (status == LB_OK) status = run_wide(site, 1, bits, y, &ran_y, err);
    *same = status == LB_OK && ran_x && ran_y;
    for (uint32_t i = 0; *same && i < n; i++)
        *same = x[i].data && y[i].data && agree(&x[i], &y[i], &site->targets[bits][i]);
    if (x) release_results(site, x);
    if (y) release_results(site, y);
    return status;
}

/* Does part `at`, `size` along `dim`, of two values of one shape and dtype hold the same numbers? */
/* A part is a view of both: only begin and length change, nothing is copied. */
static bool same_part(const lb_tensor *x, const lb_tensor *y, int dim, int64_t at, int64_t size)
{
    lb_tensor parts[] = {*x, *y};
    lb_difference difference;
    for (int i = 0; i < 2; i++) {
        lb_tensor *t = &parts[i];
        t->data = (char *)t->data + at * t->layout.stride[dim] * (int64_t)(lb_dtype_bits(t->dtype) / 8);
        t->layout.shape[dim] = size;
    }
    return lb_compare_numbers(&parts[0], &parts[1], &difference, NULL) == LB_OK && !difference.differing;
}

lb_status lb_match_site_parts(const lb_match_site *site, const lb_candidate *candidate, uint8_t *matched, lb_err *err)
{
    const uint32_t output = site->region->sides[1].outputs[0], n_values = site->source->b->program->n_values;
    /* Rows from n_values on are assemblies; a recorded value has no pieces that could be told
     * apart. */
    if (!lb_match_site_can(site, 0, 1) || output < n_values || site->region->n_outputs != 1) return LB_OK;
    const lb_assembly *assembly = &site->source->assemblies->list[output - n_values];
    lb_tensor result;
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_subprogram_run(site->subprograms[0], site->inputs[0][1], candidate->swaps, candidate->n_swaps,
                                         &result, &why);
    if (status == LB_ERR_NOMEM) return lb_fail(err, status, "%s", why.message);
    if (status != LB_OK || !result.data) return LB_OK;
    /* A result in another dtype has no part with the same bits, and comparing rounded ones would
     * say less than bits. */
    for (uint32_t i = 0; i < assembly->n; i++) matched[i] = result.dtype == site->targets[1][0].dtype;
    for (uint32_t i = 0; i < assembly->n_pieces; i++) { /* a part may lie in several pieces */
        const lb_reassembly_piece *piece = &assembly->pieces[i];
        if (matched[piece->part])
            matched[piece->part] = same_part(&result, &site->targets[1][0], assembly->dim, piece->to, piece->size);
    }
    free(result.data);
    return LB_OK;
}

bool lb_match_site_same_inputs(const lb_match_site *site)
{
    const lb_matched_region_side *side = &site->region->sides[0];
    for (uint32_t i = 0; i < side->n_leaves; i++)
        /* An input without a partner is unknown, which is not the same: by_bounds in fallback_proof.c
         * rests on this answer. */
        if (side->partners[i] == LB_NONE || lb_matched_region_differs(site->source, side->leaves[i], side->partners[i]))
            return false;
    return true;
}
