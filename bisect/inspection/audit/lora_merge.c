/* How a merged checkpoint was made: W + s B A with which scaling, which roundings, A and B in which dtype; what was not
 * merged, and what changed though the adapter does not touch it. */
#include "audit/adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    const char *name;
    double factor;
} candidate;

/* What the bits of a merged weight may be: A and B as they are or cast to a narrow dtype first, and which products were
 * rounded on the way, to that dtype or to the merged one. */
enum { ORDERS = 3, HALVES = 3 };
static const lb_dtype halves[HALVES] = {LB_NO_DTYPE, LB_BF16, LB_F16};
static const char *const orders[HALVES][ORDERS] = {
    {"the sum in f32, rounded once", "s B A rounded, then the sum", "B A rounded, s B A rounded, then the sum"},
    {"A and B cast to bf16, the sum in f32, rounded once", "A and B cast to bf16, s B A in bf16, then the sum",
     "A and B cast to bf16, B A and s B A in bf16, then the sum"},
    {"A and B cast to f16, the sum in f32, rounded once", "A and B cast to f16, s B A in f16, then the sum",
     "A and B cast to f16, B A and s B A in f16, then the sum"},
};

/* One way to make the merged weight: W + factor * product, in that order of roundings, to `step` on the way and to
 * `dtype` in the end. */
typedef struct making {
    const float *product;
    double factor;
    int order;
    lb_dtype step, dtype;
} making;

typedef struct merge_buffers {
    float *m, *product, *magnitude, *expected;
} merge_buffers;

static void merged_weight(const lb_adapter_operands *operands, const making *making, float *to)
{
    const size_t n = operands->out * operands->in;
    memcpy(to, making->product, n * sizeof *to);
    if (making->order == 2) lb_adapter_round(to, n, making->step);
    for (size_t i = 0; i < n; i++) to[i] *= (float)making->factor;
    if (making->order >= 1) lb_adapter_round(to, n, making->step);
    for (size_t i = 0; i < n; i++) to[i] += operands->w[i];
    lb_adapter_round(to, n, making->dtype);
}

static size_t count_differing(const float *a, const float *b, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += a[i] != b[i];
    return count;
}

/* Elements of M that no order of an f32 product, no two roundings to `dtype` and none to `step` on the way explain:
 * |M - (W + s BA)| <= 2 (u_D (|M| + |s BA|) + u_S |s BA| + (r + 2) u_f32 |s| |B||A|). */
static size_t count_beyond(const lb_adapter_operands *operands, const making *making, const merge_buffers *buffers)
{
    const double unit = lb_dtype_unit_roundoff(making->dtype),
                 v = making->step == making->dtype ? unit : unit + lb_dtype_unit_roundoff(making->step),
                 tiny = lb_dtype_min_subnormal(making->dtype), s = making->factor,
                 f32_unit = ((double)operands->rank + 2) * lb_dtype_unit_roundoff(LB_F32);
    size_t count = 0;
    for (size_t i = 0; i < operands->out * operands->in; i++) {
        const double m = buffers->m[i], added = s * (double)making->product[i];
        const double bound =
            2 * (unit * fabs(m) + v * fabs(added) + f32_unit * fabs(s) * (double)buffers->magnitude[i]) + tiny;
        count += !(fabs(m - (double)buffers->expected[i]) <= bound);
    }
    return count;
}

/* The factor of least squares: <M - W, BA> / <BA, BA>. */
static double fitted(const lb_adapter_operands *operands, const float *merged, const float *outer_product)
{
    double above = 0, below = 0;
    for (size_t i = 0; i < operands->out * operands->in; i++) {
        above += ((double)merged[i] - (double)operands->w[i]) * (double)outer_product[i];
        below += (double)outer_product[i] * (double)outer_product[i];
    }
    return below > 0 ? above / below : 0;
}

/* First the configuration's factor, then what people set by mistake, the nearest to the fitted one. */
static candidate choose(const lb_adapter_module *module, const lb_adapter *adapter, double fit)
{
    const double r = (double)module->rank, alpha = module->alpha;
    const candidate all[] = {{adapter->rslora ? "alpha/sqrt(r)" : "alpha/r", module->scaling},
                             {adapter->rslora ? "alpha/r" : "alpha/sqrt(r)", alpha / (adapter->rslora ? r : sqrt(r))},
                             {"alpha", alpha},
                             {"1", 1},
                             {"1/r", 1 / r},
                             {"twice", 2 * module->scaling},
                             {"squared", module->scaling * module->scaling},
                             {"subtracted", -module->scaling}};
    candidate best = {"fitted", fit};
    double nearest = 0.02;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].factor != 0 && fabs(fit / all[i].factor - 1) < nearest) {
            nearest = fabs(fit / all[i].factor - 1);
            best = all[i];
        }
    return best;
}

/* The order that comes nearest to M with one factor, and A and B as `half` has them. */
typedef struct attempt {
    int half, order;
    size_t differing, beyond;
} attempt;

static attempt attempt_with(const lb_adapter_operands *operands, const merge_buffers *buffers, const float *product,
                            double factor, int half, lb_dtype dtype)
{
    making making = {product, factor, 0, half ? halves[half] : dtype, dtype};
    attempt best = {half, 0, SIZE_MAX, 0};
    for (; making.order < ORDERS; making.order++) {
        merged_weight(operands, &making, buffers->expected);
        const size_t differing = count_differing(buffers->m, buffers->expected, operands->out * operands->in);
        if (differing < best.differing) best.differing = differing, best.order = making.order;
    }
    making.order = best.order;
    merged_weight(operands, &making, buffers->expected);
    if (best.differing) best.beyond = count_beyond(operands, &making, buffers);
    return best;
}

/* The same with A and B cast first; `beyond` is all of them where memory runs out. */
static attempt attempt_cast(const lb_adapter_operands *operands, const merge_buffers *merge_buffers, double factor,
                            int half, lb_dtype dtype)
{
    const size_t a = operands->rank * operands->in, b = operands->out * operands->rank,
                 n = operands->out * operands->in;
    float *x = malloc(a * sizeof *x + 1), *y = malloc(b * sizeof *y + 1), *made = malloc(n * sizeof *made + 1);
    attempt best = {half, 0, SIZE_MAX, n};
    if (x && y && made) {
        memcpy(x, operands->a, a * sizeof *x), memcpy(y, operands->b, b * sizeof *y);
        lb_adapter_round(x, a, halves[half]), lb_adapter_round(y, b, halves[half]);
        if (lb_adapter_outer(operands, x, y, made) == LB_OK)
            best = attempt_with(operands, merge_buffers, made, factor, half, dtype);
    }
    free(x), free(y), free(made);
    return best;
}

/* With A and B as they are, unless casting them first explains what that does not, or far more of the bits. */
static attempt attempt_factor(const lb_adapter_operands *operands, const merge_buffers *merge_buffers, double factor,
                              lb_dtype dtype)
{
    attempt best = attempt_with(operands, merge_buffers, merge_buffers->product, factor, 0, dtype);
    for (int half = 1; half < HALVES && best.differing; half++) {
        const attempt now = attempt_cast(operands, merge_buffers, factor, half, dtype);
        if (!now.beyond && (best.beyond || now.differing * 4 < best.differing)) best = now;
    }
    return best;
}

/* Numbers that the merged dtype could have held were lost. */
static void tell_cast(lb_audit_gathering *gathering, const attempt *how, lb_dtype dtype, lb_audit_where where)
{
    const lb_dtype half = halves[how->half];
    if (!how->half) return;
    if (lb_dtype_unit_roundoff(dtype) < lb_dtype_unit_roundoff(half))
        lb_audit_find(gathering, LB_AUDIT_MERGE_ROUNDED, where,
                      "A and B were cast to %s before they were merged into %s: %s", lb_dtype_name(half),
                      lb_dtype_name(dtype), orders[how->half][how->order]);
    else
        lb_audit_note(gathering, LB_AUDIT_MERGE_ROUNDED, where,
                      "A and B were cast to %s before they were merged into %s", lb_dtype_name(half),
                      lb_dtype_name(dtype));
}

/* What is told where A and B do not make the merged weight; whose base the making of the adapter changed, that is as it
 * should be. */
static void tell_unexplained(lb_audit_gathering *gathering, const lb_adapter *adapter, lb_audit_where where,
                             const char *text)
{
    if (adapter->changes_base)
        lb_audit_note(
            gathering, LB_AUDIT_MERGE_DIFFERS, where,
            "%s; init_lora_weights changed the base when the adapter was made, and this base is as it was before: "
            "--base the changed one to judge it",
            text);
    else
        lb_audit_find(gathering, LB_AUDIT_MERGE_DIFFERS, where, "%s", text);
}

/* Have rows, or columns, from..to of the merged weight the bits of the base, where the adapter should have changed
 * them? */
static bool is_as_base(const lb_adapter_operands *operands, const merge_buffers *merge_buffers, bool columns,
                       size_t from, size_t to)
{
    bool should_change = false;
    for (size_t r = columns ? 0 : from; r < (columns ? operands->out : to); r++)
        for (size_t c = columns ? from : 0; c < (columns ? to : operands->in); c++) {
            const size_t i = r * operands->in + c;
            if (merge_buffers->m[i] != operands->w[i]) return false;
            should_change |= merge_buffers->expected[i] != operands->w[i];
        }
    return should_change;
}

/* A half, a quarter or an eighth of the adapter that was not added: a shard that the merge did not have. */
static bool tell_lost_shard(lb_audit_gathering *gathering, const lb_adapter_operands *operands,
                            const merge_buffers *merge_buffers, lb_audit_where where)
{
    for (size_t parts = 2; parts <= 8; parts *= 2)
        for (int columns = 0; columns < 2; columns++) {
            const size_t length = columns ? operands->in : operands->out, width = length / parts;
            size_t lost = 0, first = 0;
            for (size_t i = parts; length % parts == 0 && i-- > 0;)
                if (is_as_base(operands, merge_buffers, columns, i * width, (i + 1) * width)) lost++, first = i;
            if (!lost || lost == parts) continue;
            where.ranks = &(int32_t){(int32_t)first}, where.n_ranks = 1;
            lb_audit_find(gathering, LB_AUDIT_SHARD_MISSING, where,
                          "its %s %zu:%zu of %zu have the bits of the base: "
                          "the adapter's shard of one of %zu ranks was not added there",
                          columns ? "columns" : "rows", first * width, (first + 1) * width, length, parts);
            return true;
        }
    return false;
}

/* A merged weight of a module, and where it stands. */
typedef struct merge {
    const lb_adapter *adapter;
    const lb_adapter_module *module;
    const lb_adapter_operands *operands;
    const merge_buffers *buffers;
    lb_dtype dtype;
    lb_audit_where where;
} merge;

/* No scaling and no order gives it: where it is off the most. */
static void tell_off(lb_audit_gathering *gathering, const merge *merge)
{
    const lb_adapter_operands *operands = merge->operands;
    const float *merged = merge->buffers->m, *expected = merge->buffers->expected;
    const double factor = merge->module->scaling;
    size_t worst = 0;
    merged_weight(operands, &(making){merge->buffers->product, factor, 0, merge->dtype, merge->dtype},
                  merge->buffers->expected);
    for (size_t i = 1; i < operands->out * operands->in; i++)
        if (fabsf(merged[i] - expected[i]) > fabsf(merged[worst] - expected[worst])) worst = i;
    if (tell_lost_shard(gathering, operands, merge->buffers, merge->where)) return;
    char text[200];
    snprintf(text, sizeof text,
             "no scaling and order of roundings gives it; with %.6g it is off by %.3g at most, at [%zu, %zu]", factor,
             fabs((double)merged[worst] - (double)expected[worst]), worst / operands->in, worst % operands->in);
    tell_unexplained(gathering, merge->adapter, merge->where, text);
}

static void judge_merge(lb_audit_gathering *gathering, const merge *merge)
{
    const lb_adapter *adapter = merge->adapter;
    const lb_adapter_module *module = merge->module;
    const lb_adapter_operands *operands = merge->operands;
    const merge_buffers *buffers = merge->buffers;
    const lb_dtype dtype = merge->dtype;
    const size_t n = operands->out * operands->in;
    lb_audit_merge *row = lb_audit_add_merge(gathering);
    if (!row) return;
    row->module = lb_audit_text(gathering, module->module);
    row->order = "";
    bool stated = adapter->configured;
    candidate tried = {adapter->rslora ? "alpha/sqrt(r)" : "alpha/r", module->scaling};
    for (int round = stated ? 0 : 1; round < 2; round++) {
        if (round) tried = choose(module, adapter, fitted(operands, buffers->m, buffers->product));
        row->scaling = tried.name, row->factor = tried.factor;
        const bool same_as_base = count_differing(buffers->m, operands->w, n) == 0;
        const attempt how = attempt_factor(operands, buffers, tried.factor, dtype);
        merged_weight(operands, &(making){buffers->product, tried.factor, 0, dtype, dtype}, buffers->expected);
        if (how.differing && same_as_base && count_differing(buffers->expected, operands->w, n) > 0) {
            row->scaling = "unmerged", row->factor = 0;
            lb_audit_find(gathering, LB_AUDIT_UNMERGED, merge->where, "has the bits of the base's %s",
                          module->weight->name);
            return;
        }
        if (how.differing && how.beyond) continue;
        row->order = orders[how.half][how.order], row->exact = how.differing == 0;
        if (round && stated)
            lb_audit_find(gathering, LB_AUDIT_MERGE_SCALING, merge->where,
                          "was merged with %s (%.6g); the configuration says %.6g", tried.name, tried.factor,
                          module->scaling);
        tell_cast(gathering, &how, dtype, merge->where);
        return;
    }
    row->scaling = "none";
    tell_off(gathering, merge);
}

/* W + s B A in f64, each row brought to its length; `as_lora`: left as it is. The distance of M from it that f32 sums
 * (of a row's squares, too) and roundings to `dtype` leave. */
static size_t count_beyond_dora(const lb_adapter_operands *operands, const merge_buffers *merge_buffers, lb_dtype dtype,
                                bool as_lora)
{
    const double unit = lb_dtype_unit_roundoff(dtype), f32_unit = lb_dtype_unit_roundoff(LB_F32);
    size_t beyond = 0;
    for (size_t r = 0; r < operands->out; r++) {
        double squares = 0;
        for (size_t i = r * operands->in; i < (r + 1) * operands->in; i++) {
            const double v = (double)operands->w[i] + operands->s * (double)merge_buffers->product[i];
            squares += v * v;
        }
        const double factor = as_lora ? 1 : (double)operands->lengths[r] / sqrt(squares);
        for (size_t i = r * operands->in; i < (r + 1) * operands->in; i++) {
            const double v = factor * ((double)operands->w[i] + operands->s * (double)merge_buffers->product[i]);
            const double added = unit * fabs((double)merge_buffers->product[i]) +
                                 ((double)operands->rank + 2) * f32_unit * (double)merge_buffers->magnitude[i];
            const double bound = 2 * (fabs(v) * (4 * unit + ((double)operands->in / 2 + 2) * f32_unit) +
                                      fabs(factor * operands->s) * added);
            beyond += !(fabs((double)merge_buffers->m[i] - v) <= bound + lb_dtype_min_subnormal(dtype));
        }
    }
    return beyond;
}

static void judge_dora(lb_audit_gathering *gathering, const merge *merge)
{
    const lb_adapter_module *module = merge->module;
    const lb_adapter_operands *operands = merge->operands;
    const merge_buffers *buffers = merge->buffers;
    const lb_dtype dtype = merge->dtype;
    lb_audit_merge *row = lb_audit_add_merge(gathering);
    if (!row) return;
    row->module = lb_audit_text(gathering, module->module);
    row->order = "", row->scaling = "none", row->factor = module->scaling;
    if (!count_beyond_dora(operands, buffers, dtype, false)) {
        row->scaling = "DoRA", row->order = "W + s B A, each row brought to its length";
    } else if (!count_differing(buffers->m, operands->w, operands->out * operands->in)) {
        row->scaling = "unmerged", row->factor = 0;
        lb_audit_find(gathering, LB_AUDIT_UNMERGED, merge->where, "has the bits of the base's %s",
                      module->weight->name);
    } else if (!count_beyond_dora(operands, buffers, dtype, true)) {
        row->scaling = "LoRA";
        lb_audit_find(gathering, LB_AUDIT_MERGE_DIFFERS, merge->where,
                      "was merged as a LoRA: W + s B A without the lengths of its rows (lora_magnitude_vector)");
    } else {
        char text[120];
        snprintf(text, sizeof text, "is not W + %.6g B A with each row brought to its length", module->scaling);
        tell_unexplained(gathering, merge->adapter, merge->where, text);
    }
}

/* |B| |A|, which bounds what a sum of products in f32 may err. */
static lb_status magnitude_of(const lb_adapter_operands *operands, float *to, lb_err *err)
{
    const size_t n_a = operands->rank * operands->in, n_b = operands->out * operands->rank;
    float *a = malloc(n_a * sizeof *a + 1), *b = malloc(n_b * sizeof *b + 1);
    for (size_t i = 0; a && i < n_a; i++) a[i] = fabsf(operands->a[i]);
    for (size_t i = 0; b && i < n_b; i++) b[i] = fabsf(operands->b[i]);
    lb_status status = a && b ? lb_adapter_outer(operands, a, b, to) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    free(a), free(b);
    return status;
}

static lb_status check_merge(lb_audit_gathering *gathering, const lb_adapter *adapter, const lb_adapter_module *module,
                             const lb_inventory *merged, const lb_inventory_name *name, lb_err *err)
{
    const lb_checkpoint_piece *piece = &merged->checkpoint->pieces[name->first];
    lb_adapter_module there = *module;
    float *weight = NULL, *a = NULL, *b = NULL, *lengths = NULL;
    merge_buffers merge_buffers = {NULL, NULL, NULL, NULL};
    lb_adapter_operands operands = {
        .in = (size_t)module->in, .out = (size_t)module->out, .rank = (size_t)module->rank, .s = module->scaling};
    const size_t n = operands.out * operands.in;
    there.held = merged, there.weight = name;
    lb_status status = lb_adapter_weight(module, &weight, err);
    if (status == LB_OK) status = lb_adapter_weight(&there, &merge_buffers.m, err);
    if (status == LB_OK) status = lb_adapter_numbers(adapter, module, &a, &b, err);
    if (status == LB_OK) status = lb_adapter_lengths(adapter, module, &lengths, err);
    merge_buffers.product = (float *)malloc(n * sizeof(float) + 1);
    merge_buffers.magnitude = (float *)malloc(n * sizeof(float) + 1);
    merge_buffers.expected = (float *)malloc(n * sizeof(float) + 1);
    if (status == LB_OK && (!merge_buffers.product || !merge_buffers.magnitude || !merge_buffers.expected))
        status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", module->module);
    operands.w = weight, operands.a = a, operands.b = b, operands.lengths = lengths;
    if (status == LB_OK) status = lb_adapter_outer(&operands, a, b, merge_buffers.product);
    if (status == LB_OK) status = magnitude_of(&operands, merge_buffers.magnitude, err);
    const merge merge = {
        adapter, module, &operands, &merge_buffers, piece->tensor.dtype, lb_inventory_where(merged, piece)};
    if (status == LB_OK && lengths)
        judge_dora(gathering, &merge);
    else if (status == LB_OK)
        judge_merge(gathering, &merge);
    free(weight), free(a), free(b), free(lengths);
    free(merge_buffers.m), free(merge_buffers.product), free(merge_buffers.magnitude), free(merge_buffers.expected);
    return status;
}

/* Two names of one tied weight: the same bits before, and the same bits after. */
static bool follows_tied(const lb_adapter *adapter, const lb_inventory *merged, const lb_inventory_name *name,
                         const lb_inventory_name *there)
{
    const lb_inventory *base = adapter->base;
    for (uint32_t i = 0; i < base->n_names; i++) {
        const lb_inventory_name *other = &base->names[i],
                                *now = adapter->touched[i] ? lb_inventory_find(merged, other->name) : NULL;
        if (now && lb_digest_equal(base->measured[other->first].digest, base->measured[name->first].digest) &&
            lb_digest_equal(merged->measured[now->first].digest, merged->measured[there->first].digest))
            return true;
    }
    return false;
}

/* Weights that the adapter does not touch are the base's. */
static void check_untouched(lb_audit_gathering *gathering, const lb_adapter *adapter, const lb_inventory *merged)
{
    for (uint32_t i = 0; i < adapter->base->n_names; i++) {
        const lb_inventory_name *name = &adapter->base->names[i], *there = lb_inventory_find(merged, name->name);
        if (adapter->touched[i] || !there || there->n != 1 || name->n != 1) continue;
        const lb_checkpoint_piece *piece = &merged->checkpoint->pieces[there->first];
        if (piece->tensor.dtype == adapter->base->checkpoint->pieces[name->first].tensor.dtype &&
            !lb_digest_equal(merged->measured[there->first].digest, adapter->base->measured[name->first].digest) &&
            !follows_tied(adapter, merged, name, there))
            lb_audit_find(gathering, LB_AUDIT_DIFFERS, lb_inventory_where(merged, piece),
                          "is not the base's, and the adapter does not touch it");
    }
}

/* What a grouped convolution's adapter adds, and its weight cannot hold, is lost in a merged checkpoint. */
static void tell_lost(lb_audit_gathering *gathering, const lb_adapter *adapter, const lb_adapter_module *module,
                      const lb_inventory *merged)
{
    const lb_inventory_name *name = lb_adapter_weight_named(merged, module->in_base);
    if (name && !lb_inventory_is_zero(&adapter->inventory->measured[module->b->first]))
        lb_audit_find(gathering, LB_AUDIT_UNMERGED,
                      lb_inventory_where(merged, &merged->checkpoint->pieces[name->first]),
                      "what the adapter adds to it is lost: a convolution of %lld groups cannot hold it",
                      (long long)module->groups);
}

lb_status lb_lora_merge_audit(lb_audit_gathering *gathering, const lb_adapter *adapter, const lb_inventory *merged,
                              lb_err *err)
{
    for (uint32_t i = 0; i < adapter->n; i++) {
        const lb_adapter_module *module = &adapter->modules[i];
        lb_audit_progress(gathering, "merged weights", i, adapter->n);
        if (module->unmergeable) tell_lost(gathering, adapter, module, merged);
        if (!module->weight) continue;
        const lb_inventory_name *name = lb_adapter_weight_named(merged, module->in_base);
        const lb_layout *has = name ? &merged->checkpoint->pieces[name->first].whole : NULL,
                        *wants = &module->held->checkpoint->pieces[module->weight->first].whole;
        if (!name)
            lb_audit_find(gathering, LB_AUDIT_MISSING, (lb_audit_where){module->weight->name, NULL, NULL, 0},
                          "%s has no %s to hold what was merged", merged->checkpoint->path, module->weight->name);
        else if (!lb_layout_same_shape(has, wants))
            lb_audit_find(gathering, LB_AUDIT_SHAPE,
                          lb_inventory_where(merged, &merged->checkpoint->pieces[name->first]),
                          "has another shape than the base's");
        else
            LB_TRY(check_merge(gathering, adapter, module, merged, name, err));
    }
    LB_TRY(lb_lora_saved_audit(gathering, adapter, merged, err));
    check_untouched(gathering, adapter, merged);
    return LB_OK;
}
