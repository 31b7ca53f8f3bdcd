/* Bits and measures of values: see diff_values.h. */
#include "diff/diff_values.h"

#include "shadow/final_image.h"
#include "kernel/value_memory.h"
#include "compare/pattern.h"

#include <stdlib.h>
#include <string.h>

enum { PATTERN_ELEMENTS = 1 << 18 };

/* ---- bits ---- */

bool lb_diff_walk_value_differs(const lb_diff_walk *walk, uint32_t value_a, uint32_t value_b)
{
    if (value_a == LB_NONE || value_b == LB_NONE) return (value_a == LB_NONE) != (value_b == LB_NONE);
    return lb_program_view_values_differ(walk->a, value_a, walk->b, value_b);
}

bool lb_diff_values_of_pair_differ(const lb_diff_walk *walk, uint32_t op_a, uint32_t op_b)
{
    const lb_op *a = &walk->pa->ops[op_a], *b = &walk->pb->ops[op_b];
    if (lb_op_outcomes(a) != lb_op_outcomes(b)) return true;
    for (uint32_t i = 0; i < lb_op_outcomes(a); i++)
        if (lb_diff_walk_value_differs(walk, lb_op_outcome(walk->pa, a, i), lb_op_outcome(walk->pb, b, i))) return true;
    return false;
}

bool lb_diff_values_of_source_differ(const lb_diff_walk *walk, uint32_t op_a)
{
    uint32_t ib = walk->alignment.source_b_of_a[op_a], join = walk->alignment.join_of_a[op_a];
    const uint32_t va = lb_op_results(walk->pa, &walk->pa->ops[op_a])[0];
    if (lb_digest_is_none(walk->pa->values[va].logical))
        return false; /* no op wrote it, or it is a tensor without bytes */
    if (join != LB_NONE) return lb_diff_values_of_join_differ(walk, &walk->alignment.joins.list[join]);
    if (ib == LB_NONE) return false;
    return lb_diff_walk_value_differs(walk, walk->alignment.shown[0][op_a], walk->alignment.shown[1][ib]);
}

bool lb_diff_values_same_rounded(const lb_diff_walk *walk, uint32_t value_a, uint32_t value_b)
{
    lb_tensor a, b;
    if (walk->pa->values[value_a].dtype == walk->pb->values[value_b].dtype) return false;
    if (lb_program_view_value(walk->a, value_a, &a, NULL) != LB_OK ||
        lb_program_view_value(walk->b, value_b, &b, NULL) != LB_OK)
        return false;
    bool b_narrower = lb_dtype_precision(b.dtype) < lb_dtype_precision(a.dtype);
    const lb_tensor *wide = b_narrower ? &a : &b, *narrow = b_narrower ? &b : &a;
    int64_t n = lb_layout_numel(&wide->layout);
    if (!lb_dtype_is_float(wide->dtype) || !lb_layout_is_contiguous(&a.layout) || !lb_layout_is_contiguous(&b.layout))
        return false;
    void *rounded = malloc(lb_dtype_bytes(narrow->dtype, (size_t)n) + 1);
    if (!rounded) return false;
    lb_convert(narrow->dtype, rounded, wide->dtype, wide->data, (size_t)n, NULL);
    bool same = memcmp(rounded, narrow->data, lb_dtype_bytes(narrow->dtype, (size_t)n)) == 0;
    free(rounded);
    return same;
}

/* ---- measures ---- */

/* What is compared of a row so far. */
typedef struct measurement {
    lb_diff_walk *w;
    lb_diff_row *row;
    bool inside_noise; /* all that differs was measured and lies inside the noise */
} measurement;

/* `a`: value `va` of A; `b`: `n` values of B put together. Of large values only what may be to blame is worth the
 * passes of a pattern. */
static void add(measurement *measurement, uint32_t va, const uint32_t *vb, uint32_t n, const lb_tensor *a,
                const lb_tensor *b)
{
    lb_difference difference;
    const lb_tensor *first = measurement->w->swapped ? b : a, *second = measurement->w->swapped ? a : b;
    if (lb_compare_counted(first, second, &difference, measurement->w->report->ulp_counts, NULL) != LB_OK) {
        measurement->inside_noise = false;
        return;
    }
    if (difference.elements <= PATTERN_ELEMENTS || measurement->row->local == LB_VERDICT_DIVERGED)
        lb_pattern_find(first, second, &difference);
    measurement->inside_noise &= measurement->w->swapped ? lb_noise_covers(&measurement->w->noise, vb, n, &difference)
                                                         : lb_noise_covers(&measurement->w->noise, &va, 1, &difference);
    if (!measurement->row->measured || difference.rel_l2 > measurement->row->difference.rel_l2)
        measurement->row->difference = difference;
    measurement->row->measured = true;
}

static void add_values(measurement *measurement, uint32_t va, uint32_t vb)
{
    lb_tensor a, b;
    if (va == LB_NONE || vb == LB_NONE || !lb_diff_walk_value_differs(measurement->w, va, vb)) return;
    if (lb_program_view_value(measurement->w->a, va, &a, NULL) == LB_OK &&
        lb_program_view_value(measurement->w->b, vb, &b, NULL) == LB_OK)
        add(measurement, va, &vb, 1, &a, &b);
    else
        measurement->inside_noise = false;
}

bool lb_diff_values_measure_pair(lb_diff_walk *walk, uint32_t op_a, uint32_t op_b, lb_diff_row *row)
{
    const lb_op *a = &walk->pa->ops[op_a], *b = &walk->pb->ops[op_b];
    measurement measurement = {walk, row, true};
    for (uint32_t i = 0; i < lb_op_outcomes(a) && i < lb_op_outcomes(b); i++)
        add_values(&measurement, lb_op_outcome(walk->pa, a, i), lb_op_outcome(walk->pb, b, i));
    return row->measured && measurement.inside_noise;
}

bool lb_diff_walk_measure_values(lb_diff_walk *walk, uint32_t value_a, uint32_t value_b, lb_diff_row *row)
{
    measurement measurement = {walk, row, true};
    add_values(&measurement, value_a, value_b);
    return row->measured && measurement.inside_noise;
}

/* ---- joins ---- */

/* Result `i` of the whole, and its parts (room for all of them in `values`) put together (data malloc'ed). False when
 * they lack bytes or are a sum. */
static bool assemble(const lb_diff_walk *walk, const lb_reassembly *join, uint32_t i, uint32_t *va, uint32_t *values,
                     lb_tensor *a, lb_tensor *b)
{
    const lb_reassembling how = {.b = walk->b};
    *va = lb_op_outcome(walk->pa, &walk->pa->ops[join->whole], i);
    bool done = values && *va != LB_NONE && lb_reassembly_values(&walk->alignment.joins, join, walk->pb, i, values);
    if (done) {
        int dim = lb_reassembly_dim(NULL, walk->pa, *va, walk->pb, values, join->parts);
        done = dim >= 0 && lb_program_view_value(walk->a, *va, a, NULL) == LB_OK &&
               lb_reassembly_assemble(&how, &walk->pa->values[*va].layout, dim, values, join->parts, b);
    }
    return done;
}

/* The first part that is not the whole although it has its shape. */
static void add_unlike_part(measurement *measurement, const lb_reassembly *join, uint32_t i)
{
    const lb_diff_walk *walk = measurement->w;
    uint32_t va = lb_op_outcome(walk->pa, &walk->pa->ops[join->whole], i);
    for (uint32_t k = 0; k < join->parts && !measurement->row->measured; k++) {
        const lb_op *part = &walk->pb->ops[walk->alignment.joins.part_ops[join->first + k]];
        add_values(measurement, va, lb_op_outcome(walk->pb, part, i));
    }
}

/* Are all parts the whole, bit for bit? */
static bool each_is_whole(const lb_diff_walk *walk, const lb_reassembly *join, uint32_t i)
{
    const lb_op *whole = &walk->pa->ops[join->whole];
    uint32_t va = lb_op_outcome(walk->pa, whole, i);
    for (uint32_t k = 0; k < join->parts; k++) {
        const lb_op *part = &walk->pb->ops[walk->alignment.joins.part_ops[join->first + k]];
        uint32_t vb = i < lb_op_outcomes(part) ? lb_op_outcome(walk->pb, part, i) : LB_NONE;
        if (va == LB_NONE || vb == LB_NONE) return va == vb;
        if (lb_digest_is_none(walk->pa->values[va].logical) || lb_diff_walk_value_differs(walk, va, vb)) return false;
    }
    return true;
}

bool lb_diff_values_of_join_differ(const lb_diff_walk *walk, const lb_reassembly *join)
{
    uint32_t *values = malloc((join->parts + 1) * sizeof *values), va;
    bool same = true;
    for (uint32_t i = 0; i < lb_op_outcomes(&walk->pa->ops[join->whole]) && same; i++) {
        lb_tensor a, b;
        if (each_is_whole(walk, join, i)) continue;
        same = assemble(walk, join, i, &va, values, &a, &b);
        if (!same) break;
        same = lb_memory_tensor_same(&a, &b);
        free(b.data);
    }
    free(values);
    return !same;
}

bool lb_diff_values_measure_join(lb_diff_walk *walk, const lb_reassembly *join, lb_diff_row *row)
{
    measurement measurement = {walk, row, true};
    bool source = strcmp(row->op, "lb::source") == 0;
    uint32_t *values = malloc((join->parts + 1) * sizeof *values), va;
    for (uint32_t i = 0; i < lb_op_outcomes(&walk->pa->ops[join->whole]); i++) {
        lb_tensor a, b;
        if (!assemble(walk, join, i, &va, values, &a, &b)) {
            if (source) add_unlike_part(&measurement, join, i);
            measurement.inside_noise &= source;
            continue;
        }
        add(&measurement, va, values, join->parts, &a, &b);
        free(b.data);
    }
    free(values);
    return row->measured && measurement.inside_noise;
}

bool lb_diff_values_measure_final(lb_diff_walk *walk, const lb_shadow_final *final, lb_diff_row *row)
{
    measurement measurement = {walk, row, true};
    const lb_shadow_part *parts = &walk->shadows.final_parts[final->first];
    const lb_reassembling how = {.b = walk->b};
    uint32_t *values = malloc((final->parts + 1) * sizeof *values);
    lb_tensor a, b;
    if (final->pieces && lb_image_bits(walk->a, final->sources[0], &a)) {
        const bool both = lb_image_bits(walk->b, final->sources[1], &b);
        if (both) add(&measurement, final->whole.value, &parts->value, 1, &a, &b), free(b.data);
        free(a.data);
    }
    for (uint32_t k = 0; values && !final->pieces && k < final->parts; k++) {
        values[k] = parts[k].value;
        if (final->dim == LB_REASSEMBLY_SAME && !row->measured) add_values(&measurement, final->whole.value, values[k]);
    }
    if (values && !final->pieces && final->dim >= 0 &&
        lb_program_view_value(walk->a, final->whole.value, &a, NULL) == LB_OK &&
        lb_reassembly_assemble(&how, &a.layout, final->dim, values, final->parts, &b)) {
        add(&measurement, final->whole.value, values, final->parts, &a, &b);
        free(b.data);
    }
    free(values);
    return row->measured && measurement.inside_noise;
}
