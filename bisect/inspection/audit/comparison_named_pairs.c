/* Tensors of two checkpoints that meet by their names, compared: see comparison.h. Each pair is a unit of work. */
#include "audit/comparison.h"

#include "parts/parts_each.h"

#include <stdio.h>
#include <string.h>

/* ---- two tensors ------------------------------------------------------------------------------------------------- */

static lb_tensor transposed(const lb_tensor *tensor)
{
    lb_tensor turned = *tensor;
    const int n = tensor->layout.ndim;
    turned.layout.shape[n - 2] = tensor->layout.shape[n - 1], turned.layout.shape[n - 1] = tensor->layout.shape[n - 2];
    turned.layout.stride[n - 2] = tensor->layout.stride[n - 1],
                             turned.layout.stride[n - 1] = tensor->layout.stride[n - 2];
    return turned;
}

/* The better of: as it is, its last two dimensions exchanged. False when neither has b's shape. */
static lb_status match_either_way(const lb_tensor *a, const lb_tensor *b, lb_value_match *match, bool *fits,
                                  bool *turned, lb_err *err)
{
    lb_value_match other;
    *fits = lb_layout_same_shape(&a->layout, &b->layout);
    *turned = false;
    if (*fits) LB_TRY(lb_value_match_of(a, b, match, err));
    if (a->layout.ndim < 2 || a->layout.ndim != b->layout.ndim || (*fits && match->match != LB_AUDIT_IS_DIFFERENT) ||
        lb_dtype_bits(a->dtype) < 8)
        return LB_OK;
    lb_tensor t = transposed(a);
    if (!lb_layout_same_shape(&t.layout, &b->layout)) return LB_OK;
    LB_TRY(lb_value_match_of(&t, b, &other, err));
    if (!*fits || other.match != LB_AUDIT_IS_DIFFERENT) *match = other, *turned = true;
    *fits = true;
    return LB_OK;
}

/* Along which dimension shards of ranks' files make up a tensor of this shape; -1: each is a copy of it. */
static int shard_dimension(const lb_inventory *inventory, const lb_inventory_name *name, const lb_layout *target)
{
    const lb_checkpoint_piece *piece = &inventory->checkpoint->pieces[name->first];
    if (!inventory->checkpoint->rank_files || name->n < 2 || lb_layout_same_shape(&piece->tensor.layout, target))
        return -1;
    for (int d = 0; d < piece->tensor.layout.ndim && piece->tensor.layout.ndim == target->ndim; d++) {
        int64_t sum = 0;
        bool others = true;
        for (uint32_t i = 0; i < name->n; i++) sum += piece[i].tensor.layout.shape[d];
        for (int k = 0; k < target->ndim; k++) others &= k == d || piece->tensor.layout.shape[k] == target->shape[k];
        if (others && sum == target->shape[d]) return d;
    }
    return -1;
}

static lb_status open_both(const lb_comparison_side *a, uint32_t i, const lb_comparison_side *b, uint32_t k,
                           lb_whole *x, lb_whole *y, lb_err *err)
{
    const lb_inventory_name *na = &a->inventory->names[i], *nb = &b->inventory->names[k];
    const lb_layout *la = &a->inventory->checkpoint->pieces[na->first].whole,
                    *lb = &b->inventory->checkpoint->pieces[nb->first].whole;
    const bool both = a->inventory->checkpoint->rank_files && b->inventory->checkpoint->rank_files && na->n == nb->n;
    LB_TRY(lb_whole_init(a->inventory, na, both ? 0 : shard_dimension(a->inventory, na, lb), x, err));
    lb_status status = lb_whole_init(b->inventory, nb, both ? 0 : shard_dimension(b->inventory, nb, la), y, err);
    if (status != LB_OK) lb_whole_release(x);
    return status;
}

/* Bits that are known to be equal are not read again. */
static lb_status compare(const lb_comparison *comparison, const lb_comparison_named_pair *pair,
                         lb_comparison_outcome *out, lb_err *err)
{
    const lb_comparison_side *a = &comparison->a, *b = &comparison->b;
    const uint32_t first[] = {a->inventory->names[pair->a].first, b->inventory->names[pair->b].first};
    lb_whole x, y;
    *out = (lb_comparison_outcome){.match = {LB_AUDIT_IS_IDENTICAL, LB_NO_DTYPE, {0}, -1}, .fits = true};
    LB_TRY(open_both(a, pair->a, b, pair->b, &x, &y, err));
    out->a = x.tensor, out->b = y.tensor, out->joined = x.owned || y.owned;
    out->a.data = out->b.data = NULL;
    lb_status status = LB_OK;
    if (!out->joined &&
        lb_digest_equal(a->inventory->measured[first[0]].digest, b->inventory->measured[first[1]].digest))
        out->match.difference =
            (lb_difference){.elements = lb_layout_numel(&x.tensor.layout), .first = -1, .cosine = 1};
    else
        status = match_either_way(&x.tensor, &y.tensor, &out->match, &out->fits, &out->turned, err);
    lb_whole_release(&x), lb_whole_release(&y);
    return status;
}

/* ---- its record -------------------------------------------------------------------------------------------------- */

static void dtype_both(lb_part_record *record, lb_dtype *dtype)
{
    uint32_t word = *dtype;
    lb_part_record_word(record, &word, LB_DTYPE_COUNT - 1);
    *dtype = (lb_dtype)word;
}

/* Anyone may have written a part: how many elements there are is a number. */
static void shape_both(lb_part_record *record, lb_tensor *tensor)
{
    uint32_t n = (uint32_t)tensor->layout.ndim;
    int64_t shape[LB_MAX_DIMS] = {0}, elements = 1;
    bool whole = true;
    dtype_both(record, &tensor->dtype);
    lb_part_record_word(record, &n, LB_MAX_DIMS);
    for (uint32_t d = 0; d < n; d++) {
        if (!record->reading) shape[d] = tensor->layout.shape[d];
        lb_part_record_i64(record, &shape[d]);
        whole &= shape[d] >= 0 && !__builtin_mul_overflow(elements, shape[d] ? shape[d] : 1, &elements);
    }
    if (!whole && record->status == LB_OK)
        record->status = lb_cursor_fail(&record->cursor, "shape", "of more elements than there are");
    if (record->reading && whole) tensor->layout = lb_layout_contiguous((int)n, shape);
}

static void difference_both(lb_part_record *record, lb_difference *difference)
{
    uint32_t pattern = difference->pattern;
    const char *detail = difference->detail;
    int64_t *const counts[] = {&difference->elements, &difference->differing, &difference->nonfinite,
                               &difference->first};
    double *const numbers[] = {&difference->max_abs, &difference->max_rel, &difference->rel_l2,
                               &difference->cosine,  &difference->max_ulp, &difference->p99_ulp};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) lb_part_record_i64(record, counts[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) lb_part_record_f64(record, numbers[i]);
    lb_part_record_word(record, &pattern, LB_PATTERN_SCATTERED);
    lb_part_record_text(record, &detail);
    difference->pattern = (lb_pattern)pattern;
    if (record->reading) snprintf(difference->detail, sizeof difference->detail, "%s", detail ? detail : "");
}

static void outcome_both(lb_part_record *record, lb_comparison_outcome *outcome)
{
    uint32_t match = outcome->match.match;
    lb_part_record_word(record, &match, LB_AUDIT_IS_DIFFERENT);
    outcome->match.match = (lb_audit_match)match;
    dtype_both(record, &outcome->match.rounded), difference_both(record, &outcome->match.difference);
    lb_part_record_i64(record, &outcome->match.worst);
    lb_part_record_bool(record, &outcome->fits), lb_part_record_bool(record, &outcome->turned),
        lb_part_record_bool(record, &outcome->joined);
    shape_both(record, &outcome->a), shape_both(record, &outcome->b);
}

/* ---- pairs as units of work -------------------------------------------------------------------------------------- */

static uint64_t weigh_pair(void *context, uint64_t unit)
{
    const lb_comparison *comparison = context;
    const lb_inventory *inventory = comparison->a.inventory;
    const int64_t n =
        lb_layout_numel(&inventory->checkpoint->pieces[inventory->names[comparison->named_pairs[unit].a].first].whole);
    return n > 0 ? (uint64_t)n : 0;
}

static lb_status work_pair(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    const lb_comparison *comparison = context;
    lb_comparison_outcome outcome;
    lb_audit_progress(comparison->gathering, "comparing", unit, comparison->n_named_pairs);
    LB_TRY(compare(comparison, &comparison->named_pairs[unit], &outcome, err));
    outcome_both(record, &outcome);
    return LB_OK;
}

static lb_status fold_pair(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    lb_comparison_outcome outcome = {0};
    outcome_both(record, &outcome);
    return record->status == LB_OK ? lb_comparison_take(context, unit, &outcome, err) : record->status;
}

lb_status lb_comparison_named_pairs(lb_comparison *comparison, lb_err *err)
{
    const lb_parts_loop loop = {"pair", comparison->n_named_pairs, work_pair, fold_pair, comparison, weigh_pair};
    return lb_parts_each(comparison->gathering->options->parts, &loop, err);
}
