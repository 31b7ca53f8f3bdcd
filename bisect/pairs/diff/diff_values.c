/* Bits and measures of values: see diff_values.h. */
#include "diff/diff_values.h"

#include "shadow/final_image.h"
#include "kernel/value_memory.h"
#include "compare/pattern.h"

#include <stdlib.h>
#include <string.h>

enum { PATTERN_ELEMENTS = 1 << 18 };

/* ---- bits ---- */

bool lb_diff_walk_value_differs(const lb_diff_walk *w, uint32_t va, uint32_t vb)
{
    if (va == LB_NONE || vb == LB_NONE) return (va == LB_NONE) != (vb == LB_NONE);
    return lb_program_view_values_differ(w->a, va, w->b, vb);
}

bool lb_diff_values_of_pair_differ(const lb_diff_walk *w, uint32_t ia, uint32_t ib)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    if (lb_op_outcomes(a) != lb_op_outcomes(b)) return true;
    for (uint32_t i = 0; i < lb_op_outcomes(a); i++)
        if (lb_diff_walk_value_differs(w, lb_op_outcome(w->pa, a, i), lb_op_outcome(w->pb, b, i))) return true;
    return false;
}

bool lb_diff_values_of_source_differ(const lb_diff_walk *w, uint32_t ia)
{
    uint32_t ib = w->alignment.source_b_of_a[ia], join = w->alignment.join_of_a[ia];
    const uint32_t va = lb_op_results(w->pa, &w->pa->ops[ia])[0];
    if (lb_digest_is_none(w->pa->values[va].logical))
        return false; /* no op wrote it, or it is a tensor without bytes */
    if (join != LB_NONE) return lb_diff_values_of_join_differ(w, &w->alignment.joins.list[join]);
    if (ib == LB_NONE) return false;
    return lb_diff_walk_value_differs(w, w->alignment.shown[0][ia], w->alignment.shown[1][ib]);
}

bool lb_diff_values_same_rounded(const lb_diff_walk *w, uint32_t va, uint32_t vb)
{
    lb_tensor a, b;
    if (w->pa->values[va].dtype == w->pb->values[vb].dtype) return false;
    if (lb_program_view_value(w->a, va, &a, NULL) != LB_OK || lb_program_view_value(w->b, vb, &b, NULL) != LB_OK)
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
static void add(measurement *m, uint32_t va, const uint32_t *vb, uint32_t n, const lb_tensor *a, const lb_tensor *b)
{
    lb_difference d;
    const lb_tensor *first = m->w->swapped ? b : a, *second = m->w->swapped ? a : b;
    if (lb_compare_counted(first, second, &d, m->w->report->ulp_counts, NULL) != LB_OK) {
        m->inside_noise = false;
        return;
    }
    if (d.elements <= PATTERN_ELEMENTS || m->row->local == LB_VERDICT_DIVERGED) lb_pattern_find(first, second, &d);
    m->inside_noise &=
        m->w->swapped ? lb_noise_covers(&m->w->noise, vb, n, &d) : lb_noise_covers(&m->w->noise, &va, 1, &d);
    if (!m->row->measured || d.rel_l2 > m->row->difference.rel_l2) m->row->difference = d;
    m->row->measured = true;
}

static void add_values(measurement *m, uint32_t va, uint32_t vb)
{
    lb_tensor a, b;
    if (va == LB_NONE || vb == LB_NONE || !lb_diff_walk_value_differs(m->w, va, vb)) return;
    if (lb_program_view_value(m->w->a, va, &a, NULL) == LB_OK && lb_program_view_value(m->w->b, vb, &b, NULL) == LB_OK)
        add(m, va, &vb, 1, &a, &b);
    else
        m->inside_noise = false;
}

bool lb_diff_values_measure_pair(lb_diff_walk *w, uint32_t ia, uint32_t ib, lb_diff_row *row)
{
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    measurement m = {w, row, true};
    for (uint32_t i = 0; i < lb_op_outcomes(a) && i < lb_op_outcomes(b); i++)
        add_values(&m, lb_op_outcome(w->pa, a, i), lb_op_outcome(w->pb, b, i));
    return row->measured && m.inside_noise;
}

bool lb_diff_walk_measure_values(lb_diff_walk *w, uint32_t va, uint32_t vb, lb_diff_row *row)
{
    measurement m = {w, row, true};
    add_values(&m, va, vb);
    return row->measured && m.inside_noise;
}

/* ---- joins ---- */

/* Result `i` of the whole, and its parts (room for all of them in `values`) put together (data malloc'ed). False when
 * they lack bytes or are a sum. */
static bool assemble(const lb_diff_walk *w, const lb_reassembly *join, uint32_t i, uint32_t *va, uint32_t *values,
                     lb_tensor *a, lb_tensor *b)
{
    const lb_reassembling how = {.b = w->b};
    *va = lb_op_outcome(w->pa, &w->pa->ops[join->whole], i);
    bool done = values && *va != LB_NONE && lb_reassembly_values(&w->alignment.joins, join, w->pb, i, values);
    if (done) {
        int dim = lb_reassembly_dim(NULL, w->pa, *va, w->pb, values, join->parts);
        done = dim >= 0 && lb_program_view_value(w->a, *va, a, NULL) == LB_OK &&
               lb_reassembly_assemble(&how, &w->pa->values[*va].layout, dim, values, join->parts, b);
    }
    return done;
}

/* The first part that is not the whole although it has its shape. */
static void add_unlike_part(measurement *m, const lb_reassembly *join, uint32_t i)
{
    const lb_diff_walk *w = m->w;
    uint32_t va = lb_op_outcome(w->pa, &w->pa->ops[join->whole], i);
    for (uint32_t k = 0; k < join->parts && !m->row->measured; k++) {
        const lb_op *part = &w->pb->ops[w->alignment.joins.part_ops[join->first + k]];
        add_values(m, va, lb_op_outcome(w->pb, part, i));
    }
}

/* Are all parts the whole, bit for bit? */
static bool each_is_whole(const lb_diff_walk *w, const lb_reassembly *join, uint32_t i)
{
    const lb_op *whole = &w->pa->ops[join->whole];
    uint32_t va = lb_op_outcome(w->pa, whole, i);
    for (uint32_t k = 0; k < join->parts; k++) {
        const lb_op *part = &w->pb->ops[w->alignment.joins.part_ops[join->first + k]];
        uint32_t vb = i < lb_op_outcomes(part) ? lb_op_outcome(w->pb, part, i) : LB_NONE;
        if (va == LB_NONE || vb == LB_NONE) return va == vb;
        if (lb_digest_is_none(w->pa->values[va].logical) || lb_diff_walk_value_differs(w, va, vb)) return false;
    }
    return true;
}

bool lb_diff_values_of_join_differ(const lb_diff_walk *w, const lb_reassembly *join)
{
    uint32_t *values = malloc((join->parts + 1) * sizeof *values), va;
    bool same = true;
    for (uint32_t i = 0; i < lb_op_outcomes(&w->pa->ops[join->whole]) && same; i++) {
        lb_tensor a, b;
        if (each_is_whole(w, join, i)) continue;
        same = assemble(w, join, i, &va, values, &a, &b);
        if (!same) break;
        same = lb_memory_tensor_same(&a, &b);
        free(b.data);
    }
    free(values);
    return !same;
}

bool lb_diff_values_measure_join(lb_diff_walk *w, const lb_reassembly *join, lb_diff_row *row)
{
    measurement m = {w, row, true};
    bool source = strcmp(row->op, "lb::source") == 0;
    uint32_t *values = malloc((join->parts + 1) * sizeof *values), va;
    for (uint32_t i = 0; i < lb_op_outcomes(&w->pa->ops[join->whole]); i++) {
        lb_tensor a, b;
        if (!assemble(w, join, i, &va, values, &a, &b)) {
            if (source) add_unlike_part(&m, join, i);
            m.inside_noise &= source;
            continue;
        }
        add(&m, va, values, join->parts, &a, &b);
        free(b.data);
    }
    free(values);
    return row->measured && m.inside_noise;
}

bool lb_diff_values_measure_final(lb_diff_walk *w, const lb_shadow_final *final, lb_diff_row *row)
{
    measurement m = {w, row, true};
    const lb_shadow_part *parts = &w->shadows.final_parts[final->first];
    const lb_reassembling how = {.b = w->b};
    uint32_t *values = malloc((final->parts + 1) * sizeof *values);
    lb_tensor a, b;
    if (final->pieces && lb_image_bits(w->a, final->sources[0], &a)) {
        const bool both = lb_image_bits(w->b, final->sources[1], &b);
        if (both) add(&m, final->whole.value, &parts->value, 1, &a, &b), free(b.data);
        free(a.data);
    }
    for (uint32_t k = 0; values && !final->pieces && k < final->parts; k++) {
        values[k] = parts[k].value;
        if (final->dim == LB_REASSEMBLY_SAME && !row->measured) add_values(&m, final->whole.value, values[k]);
    }
    if (values && !final->pieces && final->dim >= 0 &&
        lb_program_view_value(w->a, final->whole.value, &a, NULL) == LB_OK &&
        lb_reassembly_assemble(&how, &a.layout, final->dim, values, final->parts, &b)) {
        add(&m, final->whole.value, values, final->parts, &a, &b);
        free(b.data);
    }
    free(values);
    return row->measured && m.inside_noise;
}
