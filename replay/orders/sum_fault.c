/* Numbers that no order of addition gives: see sum_fault.h. */
#include "orders/sum_fault.h"

#include "orders/collective_hops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 8, MOST_NUMBERS = 96 };

/* Numbers that some tree over these ranks gives. */
typedef struct numbers {
    double list[MOST_NUMBERS];
    uint32_t n;
    bool full; /* there are more: nothing is proven */
} numbers;

static void add_number(numbers *numbers, double x)
{
    for (uint32_t i = 0; i < numbers->n; i++)
        if (numbers->list[i] == x) return;
    if (numbers->n == MOST_NUMBERS)
        numbers->full = true;
    else
        numbers->list[numbers->n++] = x;
}

/* All trees, subset by subset; every addition is rounded to `dtype`. What a wider accumulator gave for the whole subset
 * counts, too. */
static void grow(lb_collective_reduction reduction, const double *x, uint32_t n, lb_dtype dtype, const numbers *wide,
                 numbers *of)
{
    for (uint32_t set = 1; set < 1u << n; set++) {
        numbers *grown = &of[set];
        grown->n = 0, grown->full = false;
        for (uint32_t i = 0; i < n; i++)
            if (set == 1u << i) add_number(grown, lb_hops_rounded(dtype, x[i]));
        for (uint32_t part = (set - 1) & set; part > (set ^ part); part = (part - 1) & set)
            for (uint32_t i = 0; i < of[part].n; i++)
                for (uint32_t k = 0; k < of[set ^ part].n; k++)
                    add_number(grown, lb_hops_rounded(
                                          dtype, lb_hops_joined(reduction, of[part].list[i], of[set ^ part].list[k])));
        for (uint32_t i = 0; wide && i < wide[set].n; i++) add_number(grown, lb_hops_rounded(dtype, wide[set].list[i]));
        for (uint32_t part = (set - 1) & set; part; part = (part - 1) & set) grown->full |= of[part].full;
        if (wide) grown->full |= wide[set].full;
    }
}

static bool is_among(const numbers *numbers, double x)
{
    for (uint32_t i = 0; i < numbers->n; i++)
        if (numbers->list[i] == x) return true;
    return false;
}

/* A mean of n: terms scaled before they are added (NCCL), or the sum afterwards, by a factor or by a division, in f32
 * or wider. */
static void divide(const numbers *sums, uint32_t n, lb_dtype dtype, numbers *out)
{
    const double factor = lb_hops_rounded(dtype, 1.0 / n);
    for (uint32_t i = 0; i < sums->n; i++) {
        const double x = sums->list[i];
        add_number(out, lb_hops_rounded(dtype, x / n));
        add_number(out, lb_hops_rounded(dtype, x * factor));
        add_number(out, lb_hops_rounded(dtype, (double)(float)(x * (double)(float)(1.0 / n))));
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
        for (uint32_t i = 0; i < n; i++)
            scaled[i] = way ? lb_hops_rounded(dtype, x[i] * lb_hops_rounded(dtype, 1.0 / n)) : x[i];
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
    if (is_tiny(terms->dtype, v) || !isfinite(lb_hops_rounded(terms->dtype, absolute))) return LB_SUM_FAULT_UNKNOWN;
    if (!isfinite(v)) return reduction == LB_REDUCE_PRODUCT ? LB_SUM_FAULT_UNKNOWN : LB_SUM_FAULT_PROVEN;
    /* Products leave the range of the type, or come below it, on some ways and not on others. */
    if (reduction == LB_REDUCE_PRODUCT && (terms->n > MOST_RANKS || absolute > 0x1p12)) return LB_SUM_FAULT_UNKNOWN;
    return terms->n <= MOST_RANKS ? in_written_out(reduction, x, terms->n, terms->dtype, v)
                                  : beyond_bound(reduction, x, terms->n, terms->dtype, v);
}

/* ---- hops -------------------------------------------------------------------------------------------------------- */

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

/* One element, what its members brought of it, and what they received. */
typedef struct hop_search {
    const lb_collective_order *order;
    lb_collective_reduction reduction;
    lb_dtype dtype;
    size_t width;
    uint32_t n;
    lb_collective_hops hops;
    double brought[LB_COLLECTIVE_HOPS_RANKS];
    uint64_t received[LB_COLLECTIVE_HOPS_RANKS]; /* bits */
    bool receives[LB_COLLECTIVE_HOPS_RANKS];
    lb_sum_fault_hop *out;
    uint32_t room, found;
} hop_search;

static uint64_t bits_of(const hop_search *hop_search, double x)
{
    unsigned char bytes[8] = {0};
    uint64_t word;
    lb_store_f64(hop_search->dtype, bytes, &x, 1, NULL);
    memcpy(&word, bytes, 8);
    return word;
}

/* Do members hold what they received, with these bits of that hop turned over? */
static bool gives_received(const hop_search *hop_search, uint32_t hop, uint64_t mask, double *held)
{
    const lb_hops_element element = {hop_search->order, hop_search->reduction, hop_search->dtype, hop_search->n,
                                     hop_search->brought};
    lb_collective_hops_run(&hop_search->hops, &element, (lb_hops_flip){hop, mask}, held);
    for (uint32_t r = 0; r < hop_search->n; r++)
        if (hop_search->receives[r] && bits_of(hop_search, held[r]) != hop_search->received[r]) return false;
    return true;
}

static void try_mask(hop_search *hop_search, uint32_t hop, uint64_t mask)
{
    double held[LB_COLLECTIVE_HOPS_RANKS];
    const lb_collective_hop *h = &hop_search->hops.list[hop];
    if (!gives_received(hop_search, hop, mask, held)) return;
    if (hop_search->found < hop_search->room)
        hop_search->out[hop_search->found].from = h->from, hop_search->out[hop_search->found].to = h->to,
        hop_search->out[hop_search->found].bits = mask;
    hop_search->found++;
}

static void try_pairs(hop_search *hop_search, uint32_t hop)
{
    for (uint32_t a = 0; a < hop_search->width * 8; a++)
        for (uint32_t b = 0; b < a; b++) try_mask(hop_search, hop, (uint64_t)1 << a | (uint64_t)1 << b);
}

/* One bit first; then what a copied result shows to have changed, and two bits of a partial sum. */
static void try_hops(hop_search *hop_search)
{
    enum { FEW_RANKS = 8 };
    double right[LB_COLLECTIVE_HOPS_RANKS];
    if (gives_received(hop_search, 0, 0, right)) return;
    for (uint32_t h = 0; h < hop_search->hops.n; h++)
        for (uint32_t bit = 0;
             bit < hop_search->width * 8 && hop_search->hops.list[h].from != hop_search->hops.list[h].to; bit++)
            try_mask(hop_search, h, (uint64_t)1 << bit);
    const bool several = !hop_search->found;
    bool some_right = false; /* else any bits at all would explain a result that one member alone received */
    for (uint32_t r = 0; r < hop_search->n; r++)
        some_right |= hop_search->receives[r] && bits_of(hop_search, right[r]) == hop_search->received[r];
    for (uint32_t h = 0; h < hop_search->hops.n && several && some_right; h++) {
        const lb_collective_hop *hop = &hop_search->hops.list[h];
        const uint64_t changed =
            hop_search->receives[hop->to] ? bits_of(hop_search, right[hop->to]) ^ hop_search->received[hop->to] : 0;
        if (hop->from != hop->to && !hop->adds && changed) try_mask(hop_search, h, changed);
    }
    for (uint32_t h = 0; h < hop_search->hops.n && several && hop_search->n <= FEW_RANKS; h++)
        if (hop_search->hops.list[h].from != hop_search->hops.list[h].to && hop_search->hops.list[h].adds)
            try_pairs(hop_search, h);
}

uint32_t lb_sum_fault_hops(const lb_collective_order *order, lb_collective_reduction reduction,
                           const lb_rank_terms *terms, int64_t at, const void *const *received, lb_sum_fault_hop *hops,
                           uint32_t room)
{
    hop_search hop_search = {.order = order,
                             .reduction = reduction,
                             .dtype = terms->dtype,
                             .width = lb_dtype_bits(terms->dtype) / 8,
                             .n = terms->n,
                             .out = hops,
                             .room = room};
    if (!is_plain_float(terms->dtype) || reduction > LB_REDUCE_MAX || terms->n > LB_COLLECTIVE_HOPS_RANKS) return 0;
    if (lb_collective_hops_list(order, terms->n, terms->count, hop_search.width, at, &hop_search.hops, NULL) != LB_OK)
        return 0;
    for (uint32_t r = 0; r < terms->n; r++) {
        lb_load_f64(&hop_search.brought[r], terms->dtype,
                    (const char *)terms->inputs[r] + (size_t)at * hop_search.width, 1);
        hop_search.receives[r] = received[r] != NULL;
        if (received[r]) memcpy(&hop_search.received[r], received[r], hop_search.width);
    }
    try_hops(&hop_search);
    lb_collective_hops_release(&hop_search.hops);
    return hop_search.found;
}

static bool is_known_way(const lb_sum_fault_way *ways, uint32_t n, const lb_sum_fault_way *way)
{
    for (uint32_t i = 0; i < n; i++)
        if (ways[i].possible == way->possible && !memcmp(ways[i].hops, way->hops, way->n * sizeof *way->hops))
            return true;
    return false;
}

static void try_way(const lb_sum_fault_question *question, const char *text, lb_sum_fault_way *ways, uint32_t *n,
                    uint32_t room)
{
    lb_sum_fault_way way;
    lb_collective_order order;
    memset(&way, 0, sizeof way);
    snprintf(way.order, sizeof way.order, "%s", text);
    if (*n == room || lb_collective_order_parse(text, &order, NULL) != LB_OK ||
        !question->fits(question->context, &order))
        return;
    way.possible = lb_sum_fault_hops(&order, question->reduction, question->terms, question->at, question->received,
                                     way.hops, LB_SUM_FAULT_HOPS);
    way.n = way.possible < LB_SUM_FAULT_HOPS ? way.possible : LB_SUM_FAULT_HOPS;
    if (way.n && !is_known_way(ways, *n, &way)) ways[(*n)++] = way;
}

uint32_t lb_sum_fault_ways(const lb_sum_fault_question *question, lb_sum_fault_way *ways, uint32_t room)
{
    uint32_t n = 0;
    char name[LB_COLLECTIVE_ORDER_NAME];
    if (question->told) try_way(question, question->told, ways, &n, room);
    for (const char *at = LB_COLLECTIVE_ORDERS; lb_collective_order_next(&at, name);)
        try_way(question, name, ways, &n, room);
    return n;
}

int lb_sum_fault_one_bit(uint64_t bits)
{
    int at = 0;
    if (!bits || bits & (bits - 1)) return -1;
    while (!(bits >> at & 1)) at++;
    return at;
}
