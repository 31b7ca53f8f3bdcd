/* Orders of recorded sums: see recorded_order.h. */
#include "ranks/recorded_order.h"

#include "orders/sum_fault.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_nan(lb_dtype dtype, const char *bytes)
{
    return lb_dtype_is_float(dtype) && !lb_dtype_is_complex(dtype) && isnan(lb_to_f64(dtype, bytes));
}

bool lb_recorded_order_gives(const lb_recorded_sum *sum, const char *reduced)
{
    const lb_dtype dtype = sum->terms.dtype;
    const size_t size = lb_dtype_bits(dtype) / 8;
    for (uint32_t p = 0; p < sum->n_parts; p++) {
        const lb_recorded_part *part = &sum->parts[p];
        const char *ours = reduced + (size_t)part->first * size;
        if (!memcmp(ours, part->bytes, (size_t)part->n * size)) continue;
        for (int64_t i = 0; i < part->n; i++) {
            const char *a = ours + (size_t)i * size, *b = part->bytes + (size_t)i * size;
            if (memcmp(a, b, size) && !(is_nan(dtype, a) && is_nan(dtype, b))) return false;
        }
    }
    return true;
}

/* n - 1 additions, each of which rounds to within half of an ulp of a partial sum, as many of f64 here, and some for a
 * mean's factor. A wider accumulator rounds less. */
static bool is_inside(const lb_recorded_sum *sum, int64_t at, double value)
{
    const lb_rank_terms *terms = &sum->terms;
    const size_t size = lb_dtype_bits(terms->dtype) / 8;
    double exact = 0, absolute = 0;
    for (uint32_t r = 0; r < terms->n; r++) {
        const double x = lb_to_f64(terms->dtype, (const char *)terms->inputs[r] + (size_t)at * size);
        exact += x, absolute += fabs(x);
    }
    if (!isfinite(absolute)) return !isfinite(value);
    const double tiny = terms->dtype == LB_F64 ? 0x1p-1074 : terms->dtype == LB_F16 ? 0x1p-24 : 0x1p-149;
    const double bound = (ldexp(absolute, -lb_dtype_precision(terms->dtype)) + tiny) * (2 * terms->n + 3) * 1.01;
    if (sum->reduction == LB_REDUCE_AVG) return fabs(value * terms->n - exact) <= bound * 2;
    return fabs(value - exact) <= bound;
}

/* Notes the elements that this order gives. */
static void note_legal(const lb_recorded_sum *sum, const char *reduced)
{
    const size_t size = lb_dtype_bits(sum->terms.dtype) / 8;
    for (uint32_t p = 0; p < sum->n_parts; p++)
        for (int64_t i = 0; i < sum->parts[p].n; i++)
            sum->parts[p].legal[i] |= !memcmp(reduced + (size_t)(sum->parts[p].first + i) * size,
                                              sum->parts[p].bytes + (size_t)i * size, size);
}

/* All ranks that receive the same elements received the same bits. */
static bool parts_agree(const lb_recorded_sum *sum)
{
    const size_t size = lb_dtype_bits(sum->terms.dtype) / 8;
    for (uint32_t p = 1; p < sum->n_parts; p++)
        for (uint32_t q = 0; q < p; q++)
            if (sum->parts[q].first == sum->parts[p].first && sum->parts[q].n == sum->parts[p].n) {
                if (memcmp(sum->parts[q].bytes, sum->parts[p].bytes, (size_t)sum->parts[p].n * size)) return false;
                break;
            }
    return true;
}

static bool all_inside(const lb_recorded_sum *sum)
{
    enum { MOST_ASKED = 512 };
    const lb_dtype dtype = sum->terms.dtype;
    const size_t size = lb_dtype_bits(dtype) / 8;
    uint32_t asked = 0;
    if (sum->reduction != LB_REDUCE_SUM && sum->reduction != LB_REDUCE_AVG) return false;
    if (dtype != LB_F32 && dtype != LB_F64 && dtype != LB_BF16 && dtype != LB_F16) return false;
    if (!parts_agree(sum)) return false;
    for (uint32_t p = 0; p < sum->n_parts; p++)
        for (int64_t i = 0; i < sum->parts[p].n; i++) {
            const lb_recorded_part *part = &sum->parts[p];
            const char *value = part->bytes + (size_t)i * size;
            if (part->legal[i]) continue;
            if (!is_inside(sum, part->first + i, lb_to_f64(dtype, value))) return false;
            if (asked++ < MOST_ASKED &&
                lb_sum_fault_of(sum->reduction, &sum->terms, part->first + i, value) == LB_SUM_FAULT_PROVEN)
                return false;
        }
    return true;
}

lb_status lb_recorded_order_find(const lb_recorded_sum *sum, char *room, lb_sum_verdict *verdict)
{
    *verdict = (lb_sum_verdict){"", false};
    char name[LB_COLLECTIVE_ORDER_NAME];
    for (const char *at = LB_COLLECTIVE_ORDERS; lb_collective_order_next(&at, name);) {
        lb_collective_order order;
        LB_TRY(lb_collective_order_parse(name, &order, NULL));
        const lb_status status = sum->reduce(sum->context, &order, room);
        if (status == LB_ERR_NOMEM) return status;
        if (status != LB_OK) continue;
        if (lb_recorded_order_gives(sum, room)) {
            snprintf(verdict->order, sizeof verdict->order, "%s", name);
            return LB_OK;
        }
        note_legal(sum, room);
    }
    verdict->inside = all_inside(sum);
    return LB_OK;
}
