/* Which source or decision takes what: see taking.h. */
#include "taking.h"

#include "ops.h"
#include "shadow_numbers.h"

#include <stdlib.h>
#include <string.h>

static uint32_t value_at(const lb_taking *s, int32_t rank, int64_t step, uint32_t value)
{
    for (uint32_t p = 0; p < s->side->n_parts; p++)
        if (s->side->parts[p].program->rank == rank && s->side->parts[p].program->step == step)
            return s->side->parts[p].first_value + value;
    return LB_NONE;
}

/* Both shadows must start from the same numbers: the narrower side's sources serve both, widening is exact. */
bool lb_taking_take(lb_taking *s, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    uint32_t v = value_at(s, rank, step, value);
    const lb_taken *take = v == LB_NONE ? NULL : &s->taken[v];
    lb_tensor theirs;
    if (!take || take->value == LB_NONE || lb_side_value(s->other, take->value, &theirs, NULL) != LB_OK)
        return false;
    if (take->dim >= 0) {
        int64_t stride = theirs.layout.stride[take->dim];
        theirs.data = (char *)theirs.data + take->at * stride * (int64_t)(lb_dtype_bits(theirs.dtype) / 8);
        theirs.layout.shape[take->dim] = tensor->layout.shape[take->dim];
    }
    int64_t n = lb_layout_numel(&tensor->layout);
    if (n <= 0 || lb_layout_numel(&theirs.layout) != n ||
        !lb_layout_same_shape(&theirs.layout, &tensor->layout))
        return false;
    int64_t first, last;
    if (lb_layout_dense_range(&tensor->layout, &first, &last, NULL) != LB_OK || last - first != n) return false;
    size_t bytes = lb_dtype_bytes(tensor->dtype, (size_t)n) + (size_t)n * sizeof(double);
    if (bytes > s->converted_room) {
        double *larger = realloc(s->converted, bytes);
        if (!larger) return false;
        s->converted = larger, s->converted_room = bytes;
    }
    if (theirs.dtype == tensor->dtype && lb_layout_is_contiguous(&theirs.layout) &&
        lb_layout_is_contiguous(&tensor->layout)) {
        tensor->data = theirs.data;
        return true;
    }
    lb_tensor mine = *tensor;
    mine.data = s->converted + n;
    lb_shadow_numbers(&theirs, s->converted);
    int64_t done = 0;
    for (lb_rows r = lb_rows_of(&mine.layout); lb_rows_next(&r); done += r.count)
        lb_store_f64_strided(mine.dtype,
                             (char *)mine.data + r.offset * (int64_t)(lb_dtype_bits(mine.dtype) / 8), r.stride,
                             s->converted + done, (size_t)r.count, NULL);
    tensor->data = mine.data;
    return true;
}

/* For each source of this side that should be replaced: the other side's value. */
static void map_sources(lb_taking *s)
{
    const lb_program *pa = (s->parts ? s->other : s->side)->program,
                     *pb = (s->parts ? s->side : s->other)->program;
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        uint32_t j = s->alignment->source_b_of_a[i];
        if (j == LB_NONE) continue;
        uint32_t va = lb_op_results(pa, &pa->ops[i])[0], vb = lb_op_results(pb, &pb->ops[j])[0];
        if (lb_digest_equal(pa->values[va].logical, pb->values[vb].logical)) continue;
        if (!lb_dtype_is_float(pa->values[va].dtype) || !lb_dtype_is_float(pb->values[vb].dtype)) continue;
        bool b_is_narrower =
            lb_dtype_precision(pb->values[vb].dtype) < lb_dtype_precision(pa->values[va].dtype);
        if (b_is_narrower && !s->parts) s->taken[va] = (lb_taken){vb, -1, 0};
        if (!b_is_narrower && s->parts) s->taken[vb] = (lb_taken){va, -1, 0};
    }
}

/* Sources of several programs that one of A stands for: each takes its slice, or the whole. */
static void map_joined_sources(lb_taking *s)
{
    const lb_program *pa = s->other->program, *pb = s->side->program;
    const lb_alignment *al = s->alignment;
    for (uint32_t n = 0; s->parts && n < al->joins.n; n++) {
        const lb_join *join = &al->joins.list[n];
        const lb_op *whole = &pa->ops[join->whole];
        if (strcmp(lb_op_name(pa, whole), "lb::source") != 0) continue;
        uint32_t va = lb_op_results(pa, whole)[0];
        for (uint32_t part = 0; part < join->parts; part++) {
            int64_t at;
            int dim = lb_join_outcome_dim(&al->joins, join, pa, pb, 0, part, &at);
            uint32_t vb = lb_op_results(pb, &pb->ops[al->joins.part_ops[join->first + part]])[0];
            if (lb_dtype_is_float(pb->values[vb].dtype)) s->taken[vb] = (lb_taken){va, dim < 0 ? -1 : dim, at};
        }
    }
}

static uint32_t row_flags(const char *name)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(name, &form);
    return row ? row->flags : 0;
}

/* A decision that rounding changed (a near tie of the router) would part the shadows for good: B's takes A's. `dim`: the
 * result of B is a slice of A's along it, from `at` on. */
static void map_decision(lb_taking *s, const lb_op *a, const lb_op *b, uint32_t result, int dim, int64_t at)
{
    const lb_program *pa = s->other->program, *pb = s->side->program;
    uint32_t va = lb_op_results(pa, a)[result], vb = lb_op_results(pb, b)[result];
    if (va == LB_NONE || vb == LB_NONE || pa->values[va].dtype != pb->values[vb].dtype) return;
    if (dim < 0 && lb_digest_equal(pa->values[va].logical, pb->values[vb].logical)) return;
    s->taken[vb] = (lb_taken){va, dim, at};
}

static bool is_decision(const lb_taking *s, const lb_op *a, const lb_op *b, uint32_t parts)
{
    const lb_program *pa = s->other->program, *pb = s->side->program;
    return a->results == b->results && !(a->flags & LB_OP_RANDOM) && lb_op_same_args(pa, a, pb, b, parts) &&
           row_flags(lb_op_name(pa, a)) & LB_ROW_DISCONTINUOUS;
}

/* Slices of a decision are decisions of their own where every element is decided by itself, or along another dimension. */
static bool can_slice(const lb_program *p, const lb_op *op, int dim)
{
    if (row_flags(lb_op_name(p, op)) & LB_ROW_ELEMENTWISE) return true;
    uint32_t v = lb_op_results(p, op)[0];
    return strcmp(lb_op_name(p, op), "aten::topk") == 0 && v != LB_NONE && dim < p->values[v].layout.ndim - 1;
}

static void map_decisions(lb_taking *s)
{
    const lb_program *pa = s->other->program, *pb = s->side->program;
    const lb_alignment *al = s->alignment;
    for (uint32_t i = 0; s->parts && i < pa->n_ops; i++) {
        uint32_t j = al->b_of_a[i];
        if (j == LB_NONE || al->irregular[i] || !is_decision(s, &pa->ops[i], &pb->ops[j], 0)) continue;
        for (uint32_t k = 0; k < pa->ops[i].results; k++) map_decision(s, &pa->ops[i], &pb->ops[j], k, -1, 0);
    }
    for (uint32_t n = 0; s->parts && n < al->joins.n; n++) {
        const lb_join *join = &al->joins.list[n];
        const lb_op *whole = &pa->ops[join->whole];
        for (uint32_t part = 0; part < join->parts; part++) {
            const lb_op *b = &pb->ops[al->joins.part_ops[join->first + part]];
            if (!is_decision(s, whole, b, join->parts)) break;
            for (uint32_t k = 0; k < whole->results; k++) {
                int64_t at;
                int dim = lb_join_outcome_dim(&al->joins, join, pa, pb, k, part, &at);
                if (dim >= 0 && can_slice(pa, whole, dim)) map_decision(s, whole, b, k, dim, at);
            }
        }
    }
}

lb_status lb_taking_init(const lb_side *side, const lb_side *other, const lb_alignment *alignment, bool parts,
                         lb_taking *taking, lb_err *err)
{
    const uint32_t n = side->program->n_values;
    *taking = (lb_taking){.side = side, .other = other, .alignment = alignment, .parts = parts};
    taking->taken = malloc((n + 1) * sizeof *taking->taken);
    if (!taking->taken) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u values", n);
    for (uint32_t v = 0; v < n; v++) taking->taken[v] = (lb_taken){LB_NONE, -1, 0};
    map_sources(taking), map_joined_sources(taking), map_decisions(taking);
    return LB_OK;
}

void lb_taking_release(lb_taking *taking)
{
    free(taking->taken), free(taking->converted);
    *taking = (lb_taking){0};
}
