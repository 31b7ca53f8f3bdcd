/* Numbers that no order of addition gives: see sum_fault.h. */
#include "compare/sum_fault.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 8, MOST_NUMBERS = 96 };

/* Numbers that some tree over these ranks gives. */
typedef struct numbers {
    double list[MOST_NUMBERS];
    uint32_t n;
    bool full; /* there are more: nothing is proven */
} numbers;

static double rounded(lb_dtype dtype, double x)
{
    char bytes[8];
    double back;
    lb_store_f64(dtype, bytes, &x, 1, NULL);
    lb_load_f64(&back, dtype, bytes, 1);
    return back;
}

static void add_number(numbers *s, double x)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->list[i] == x) return;
    if (s->n == MOST_NUMBERS)
        s->full = true;
    else
        s->list[s->n++] = x;
}

static double joined(lb_collective_reduction reduction, double a, double b)
{
    switch (reduction) {
    case LB_REDUCE_PRODUCT: return a * b;
    case LB_REDUCE_MIN: return a < b ? a : b;
    case LB_REDUCE_MAX: return a > b ? a : b;
    default: return a + b;
    }
}

/* All trees, subset by subset; every addition is rounded to `dtype`. What a wider accumulator gave for the whole subset
 * counts, too. */
static void grow(lb_collective_reduction reduction, const double *x, uint32_t n, lb_dtype dtype, const numbers *wide,
                 numbers *of)
{
    for (uint32_t set = 1; set < 1u << n; set++) {
        numbers *s = &of[set];
        s->n = 0, s->full = false;
        for (uint32_t i = 0; i < n; i++)
            if (set == 1u << i) add_number(s, rounded(dtype, x[i]));
        for (uint32_t part = (set - 1) & set; part > (set ^ part); part = (part - 1) & set)
            for (uint32_t i = 0; i < of[part].n; i++)
                for (uint32_t k = 0; k < of[set ^ part].n; k++)
                    add_number(s, rounded(dtype, joined(reduction, of[part].list[i], of[set ^ part].list[k])));
        for (uint32_t i = 0; wide && i < wide[set].n; i++) add_number(s, rounded(dtype, wide[set].list[i]));
        for (uint32_t part = (set - 1) & set; part; part = (part - 1) & set) s->full |= of[part].full;
        if (wide) s->full |= wide[set].full;
    }
}

static bool is_among(const numbers *s, double x)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->list[i] == x) return true;
    return false;
}

/* A mean of n: terms scaled before they are added (NCCL), or the sum afterwards, by a factor or by a division, in f32
 * or wider. */
static void divide(const numbers *sums, uint32_t n, lb_dtype dtype, numbers *out)
{
    const double factor = rounded(dtype, 1.0 / n);
    for (uint32_t i = 0; i < sums->n; i++) {
        const double x = sums->list[i];
        add_number(out, rounded(dtype, x / n));
        add_number(out, rounded(dtype, x * factor));
        add_number(out, rounded(dtype, (double)(float)(x * (double)(float)(1.0 / n))));
    }
    out->full |= sums->full;
}

static lb_sum_fault_answer in_written_out(lb_collective_reduction reduction, const double *x, uint32_t n,
                                          lb_dtype dtype, double value)
{
    const uint32_t sets = 1u << n, all = sets - 1;
    const lb_dtype wider = dtype == LB_F32 || dtype == LB_F64 ? LB_F64 : LB_F32;
    double scaled[MOST_RANKS];
    bool found = false, full = false;
    numbers *wide = malloc(sets * sizeof *wide), *of = malloc(sets * sizeof *of), means = {.n = 0};
    for (int way = 0; wide && of && way < (reduction == LB_REDUCE_AVG ? 2 : 1); way++) {
        for (uint32_t i = 0; i < n; i++) scaled[i] = way ? rounded(dtype, x[i] * rounded(dtype, 1.0 / n)) : x[i];
        grow(reduction, scaled, n, wider, NULL, wide);
        grow(reduction, scaled, n, dtype, wide, of);
        if (reduction != LB_REDUCE_AVG || way)
            found |= is_among(&of[all], value), full |= of[all].full;
        else
            divide(&of[all], n, dtype, &means), divide(&wide[all], n, dtype, &means);
    }
    found |= is_among(&means, value), full |= means.full || !wide || !of;
    free(wide);
    free(of);
    return found ? LB_SUM_FAULT_NONE : full ? LB_SUM_FAULT_UNKNOWN : LB_SUM_FAULT_PROVEN;
}

/* Further from the exact sum than n roundings of the sum of absolute values, and some for a mean's factor. */
static lb_sum_fault_answer beyond_bound(lb_collective_reduction reduction, const double *x, uint32_t n, lb_dtype dtype,
                                        double value)
{
    double sum = 0, absolute = 0;
    if (reduction != LB_REDUCE_SUM && reduction != LB_REDUCE_AVG) return LB_SUM_FAULT_UNKNOWN;
    for (uint32_t i = 0; i < n; i++) sum += x[i], absolute += fabs(x[i]);
    if (reduction == LB_REDUCE_AVG) sum /= n, absolute /= n;
    const double bound = ldexp(absolute, -lb_dtype_precision(dtype)) * (n + 3) * 1.01;
    return fabs(value - sum) > bound ? LB_SUM_FAULT_PROVEN : LB_SUM_FAULT_UNKNOWN;
}

static bool is_tiny(lb_dtype dtype, double x)
{
    const double least = dtype == LB_F64 ? 0x1p-900 : dtype == LB_F16 ? 0x1p-14 : 0x1p-120;
    return x != 0 && fabs(x) < least;
}

static bool is_plain_float(lb_dtype dtype)
{
    return dtype == LB_F32 || dtype == LB_F64 || dtype == LB_BF16 || dtype == LB_F16;
}

lb_sum_fault_answer lb_sum_fault_of(lb_collective_reduction reduction, const lb_rank_terms *terms, int64_t at,
                                    const void *value)
{
    double x[LB_COLLECTIVE_MAX_RANKS], v, absolute = 0;
    const size_t width = lb_dtype_bits(terms->dtype) / 8;
    if (!is_plain_float(terms->dtype) || reduction > LB_REDUCE_MAX || terms->n > LB_COLLECTIVE_MAX_RANKS)
        return LB_SUM_FAULT_UNKNOWN;
    lb_load_f64(&v, terms->dtype, value, 1);
    for (uint32_t r = 0; r < terms->n; r++) {
        lb_load_f64(&x[r], terms->dtype, (const char *)terms->inputs[r] + (size_t)at * width, 1);
        if (!isfinite(x[r]) || is_tiny(terms->dtype, x[r])) return LB_SUM_FAULT_UNKNOWN;
        absolute += fabs(x[r]);
    }
    if (is_tiny(terms->dtype, v) || !isfinite(rounded(terms->dtype, absolute))) return LB_SUM_FAULT_UNKNOWN;
    if (!isfinite(v)) return reduction == LB_REDUCE_PRODUCT ? LB_SUM_FAULT_UNKNOWN : LB_SUM_FAULT_PROVEN;
    /* Products leave the range of the type, or come below it, on some ways and not on others. */
    if (reduction == LB_REDUCE_PRODUCT && (terms->n > MOST_RANKS || absolute > 0x1p12)) return LB_SUM_FAULT_UNKNOWN;
    return terms->n <= MOST_RANKS ? in_written_out(reduction, x, terms->n, terms->dtype, v)
                                  : beyond_bound(reduction, x, terms->n, terms->dtype, v);
}

/* ---- rings ------------------------------------------------------------------------------------------------------- */

bool lb_sum_fault_path(const lb_collective_order *order, const lb_rank_terms *terms, int64_t at, uint16_t *path)
{
    lb_collective_pieces pieces;
    bool ring = order->kind == LB_ORDER_GLOO || order->kind == LB_ORDER_RING || order->kind == LB_ORDER_MPI_RING;
    if (!ring || terms->n < 2 ||
        lb_collective_order_pieces(order, terms->n, terms->count, lb_dtype_bits(terms->dtype) / 8, &pieces, NULL) !=
            LB_OK)
        return false;
    ring = false;
    for (uint32_t i = 0; i < pieces.n && !ring; i++) {
        const lb_collective_slice *piece = &pieces.pieces[i];
        if (at < piece->first || at >= piece->last) continue;
        /* The first rank's register takes in one rank after the other (ring_folds of collective_order.c). */
        ring = true, path[0] = piece->folds[0].dst;
        for (uint32_t k = 0; k + 1 < terms->n; k++) path[k + 1] = piece->folds[k].src;
    }
    lb_collective_pieces_release(&pieces);
    return ring;
}

uint32_t lb_sum_fault_late(const lb_collective_order *order, const lb_rank_terms *terms, int64_t at, const bool *wrong,
                           lb_sum_fault_hop *hop)
{
    uint16_t path[LB_COLLECTIVE_MAX_RANKS];
    const uint32_t n = terms->n;
    uint32_t first = 0;
    if (n > LB_COLLECTIVE_MAX_RANKS || !lb_sum_fault_path(order, terms, at, path)) return 0;
    /* The last of the path has the sum first, then it goes around. */
    for (uint32_t k = 0; k < n; k++) first += !wrong[path[(n - 1 + k) % n]];
    for (uint32_t k = 0; k < n; k++)
        if (wrong[path[(n - 1 + k) % n]] != (k >= first)) return 0;
    if (!first || first == n) return 0;
    *hop = (lb_sum_fault_hop){path[(n - 1 + first - 1) % n], path[(n - 1 + first) % n], -1};
    return 1;
}

int lb_sum_fault_bit(const void *a, const void *b, size_t bytes)
{
    int found = -1;
    for (size_t i = 0; i < bytes * 8; i++) {
        const unsigned differs = (((const unsigned char *)a)[i / 8] ^ ((const unsigned char *)b)[i / 8]) >> i % 8 & 1;
        if (differs && found >= 0) return -1;
        if (differs) found = (int)i;
    }
    return found;
}

/* The sum along the path, with one bit of what hop `hop` carries turned over. */
static double along(lb_collective_reduction reduction, const double *x, uint32_t n, lb_dtype dtype, uint32_t hop,
                    int bit)
{
    double sum = x[0];
    for (uint32_t k = 1; k < n; k++) {
        if (k == hop) {
            unsigned char bytes[8];
            lb_store_f64(dtype, bytes, &sum, 1, NULL);
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
            lb_load_f64(&sum, dtype, bytes, 1);
        }
        sum = rounded(dtype, joined(reduction, sum, x[k]));
    }
    return sum;
}

uint32_t lb_sum_fault_hops(const lb_collective_order *order, lb_collective_reduction reduction,
                           const lb_rank_terms *terms, int64_t at, const void *value, lb_sum_fault_hop *hops,
                           uint32_t room)
{
    double x[LB_COLLECTIVE_MAX_RANKS], v;
    uint16_t path[LB_COLLECTIVE_MAX_RANKS];
    const lb_dtype dtype = terms->dtype;
    const size_t width = lb_dtype_bits(dtype) / 8;
    const bool mean = reduction == LB_REDUCE_AVG, divides = mean && order->kind == LB_ORDER_GLOO;
    uint32_t found = 0;
    if (!is_plain_float(dtype) || reduction > LB_REDUCE_MAX || terms->n > LB_COLLECTIVE_MAX_RANKS) return 0;
    if (!lb_sum_fault_path(order, terms, at, path)) return 0;
    lb_load_f64(&v, dtype, value, 1);
    for (uint32_t k = 0; k < terms->n; k++) {
        lb_load_f64(&x[k], dtype, (const char *)terms->inputs[path[k]] + (size_t)at * width, 1);
        if (mean && !divides) x[k] = rounded(dtype, x[k] * rounded(dtype, 1.0 / terms->n));
    }
    for (uint32_t hop = 1; hop < terms->n; hop++)
        for (int bit = 0; bit < (int)width * 8; bit++) {
            double sum = along(reduction, x, terms->n, dtype, hop, bit);
            if (divides) sum = rounded(dtype, sum / terms->n);
            if (!(sum == v || (isnan(sum) && isnan(v)))) continue;
            if (found < room) hops[found] = (lb_sum_fault_hop){path[hop - 1], path[hop], bit};
            found++;
        }
    return found;
}
