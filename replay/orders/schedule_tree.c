/* The trees of named orders, and the names of trees.
 *
 * An order is written down here a second time, as the tree it makes of n terms; the engine that computes it
 * (schedule.c, product.c) knows nothing of this, and a test probes the engine from outside: the tree found must be the
 * tree declared.
 *
 * A tree is named by trying: a handful of numbers read off from it (what term 0 meets first, and how many terms are
 * below the nodes on its way to the top) say which parameters could have made it, and their trees are compared with
 * it. */
#include "orders/schedule_tree.h"
#include "orders/schedule.h"
#include "orders/tensor_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Terms base, base + step, …: `count` of them. */
typedef struct terms {
    uint32_t base, step;
    int64_t count;
} terms;

static uint32_t term(const terms *terms, int64_t i)
{
    return terms->base + (uint32_t)i * terms->step;
}
static terms part(const terms *x, int64_t from, int64_t count)
{
    return (terms){term(x, from), x->step, count};
}

/* ---- the orders -------------------------------------------------------------------------------------------------- */

static uint32_t in_order(lb_tree_builder *builder, const terms *terms)
{
    uint32_t sum = LB_TREE_NOTHING;
    for (int64_t i = 0; i < terms->count; i++) sum = lb_tree_add(builder, sum, term(terms, i));
    return sum;
}

typedef uint32_t (*chain)(lb_tree_builder *b, const terms *x);

static uint32_t in_blocks(lb_tree_builder *builder, const terms *x, int64_t block, chain in_block)
{
    uint32_t sum = LB_TREE_NOTHING;
    for (int64_t i = 0; i < x->count; i += block) {
        const terms slice = part(x, i, x->count - i < block ? x->count - i : block);
        sum = lb_tree_add(builder, sum, in_block(builder, &slice));
    }
    return sum;
}

/* `order`: slice numbers, four bits each, first one lowest; 0: ascending. */
static uint32_t in_slices(lb_tree_builder *builder, const terms *x, int64_t slices, uint64_t order)
{
    const int64_t block = x->count ? (x->count + slices - 1) / slices : 1;
    if (!order) return in_blocks(builder, x, block, in_order);
    uint32_t sum = LB_TREE_NOTHING;
    for (int64_t s = 0; s < slices; s++) {
        const int64_t from = (int64_t)(order >> 4 * s & 15) * block;
        if (from >= x->count) continue;
        const terms slice = part(x, from, x->count - from < block ? x->count - from : block);
        sum = lb_tree_add(builder, sum, in_order(builder, &slice));
    }
    return sum;
}

/* Two by two, the second of each first. */
static uint32_t in_swapped_pairs(lb_tree_builder *builder, const terms *terms)
{
    uint32_t sum = LB_TREE_NOTHING;
    for (int64_t i = 0; i < terms->count; i++)
        sum = lb_tree_add(builder, sum, term(terms, i % 2 ? i - 1 : i + 1 < terms->count ? i + 1 : i));
    return sum;
}

static uint32_t in_pairs(lb_tree_builder *builder, const terms *terms)
{
    uint32_t partial[48], sum = LB_TREE_NOTHING; /* partial[l]: 2^l terms */
    for (int64_t i = 0; i < terms->count; i++) {
        uint32_t now = term(terms, i);
        int level = 0;
        for (; i >> level & 1; level++) now = lb_tree_add(builder, partial[level], now);
        partial[level] = now;
    }
    for (int level = 0; level < 48; level++)
        if (terms->count >> level & 1) sum = lb_tree_add(builder, sum, partial[level]);
    return sum;
}

static uint32_t in_lanes(lb_tree_builder *builder, const terms *x, int64_t lanes)
{
    uint32_t sum = LB_TREE_NOTHING;
    for (int64_t l = 0; l < lanes && l < x->count; l++) {
        const terms lane = {term(x, l), x->step * (uint32_t)lanes, (x->count - l + lanes - 1) / lanes};
        sum = lb_tree_add(builder, sum, in_order(builder, &lane));
    }
    return sum;
}

/* Shares of tiles, in each of which even and odd terms are chains of their own. */
static uint32_t in_tiles(lb_tree_builder *builder, const terms *x, int64_t shares)
{
    const int64_t share = lb_schedule_share(shares, x->count);
    uint32_t all = LB_TREE_NOTHING;
    for (int64_t from = 0; from < x->count; from += share) {
        const int64_t end = x->count - from < share ? x->count : from + share, tile = lb_schedule_tile(end - from);
        uint32_t sum = LB_TREE_NOTHING;
        for (int64_t i = from; i < end; i += tile) {
            const terms one = part(x, i, end - i < tile ? end - i : tile);
            sum = lb_tree_add(builder, sum, in_lanes(builder, &one, 2));
        }
        all = lb_tree_add(builder, all, sum);
    }
    return all;
}

/* The exchange over a warp: what thread 0 holds in the end. */
static uint32_t over_warp(lb_tree_builder *builder, uint32_t *acc, int threads)
{
    for (int distance = threads / 2; distance >= 1; distance /= 2)
        for (int t = 0; t < distance; t++) acc[t] = lb_tree_add(builder, acc[t], acc[t + distance]);
    return acc[0];
}

static uint32_t in_butterfly(lb_tree_builder *builder, const terms *terms, int threads, int64_t vector)
{
    uint32_t acc[LB_SCHEDULE_MAX_SIZE], warps[32];
    for (int t = 0; t < threads; t++) acc[t] = LB_TREE_NOTHING;
    for (int64_t i = 0; i < terms->count; i++) {
        uint32_t *own = &acc[i / vector % threads];
        *own = lb_tree_add(builder, *own, term(terms, i));
    }
    if (threads <= 32) return over_warp(builder, acc, threads);
    for (int g = 0; g < 32; g++) warps[g] = g < threads / 32 ? over_warp(builder, acc + g * 32, 32) : LB_TREE_NOTHING;
    return over_warp(builder, warps, 32);
}

static uint32_t in_halves(lb_tree_builder *builder, const terms *x)
{
    if (x->count > 128) {
        const int64_t half = x->count / 2 - x->count / 2 % 8;
        const terms low = part(x, 0, half), high = part(x, half, x->count - half);
        const uint32_t left = in_halves(builder, &low);
        return lb_tree_add(builder, left, in_halves(builder, &high));
    }
    uint32_t acc[8], sum = LB_TREE_NOTHING;
    const int64_t whole = x->count - x->count % 8;
    for (int r = 0; whole && r < 8; r++) {
        const terms own = {term(x, r), x->step * 8, whole / 8};
        acc[r] = in_order(builder, &own);
    }
    for (int distance = 1; whole && distance < 8; distance *= 2)
        for (int r = 0; r < 8; r += 2 * distance) acc[r] = lb_tree_add(builder, acc[r], acc[r + distance]);
    if (whole) sum = acc[0];
    for (int64_t i = whole; i < x->count; i++) sum = lb_tree_add(builder, sum, term(x, i));
    return sum;
}

/* Term i in accumulator i mod `lanes` (a power of two), which are folded: the upper half onto the lower one. */
static uint32_t in_folded_lanes(lb_tree_builder *builder, const terms *x, int64_t lanes)
{
    uint32_t acc[64];
    for (int64_t l = 0; l < lanes; l++) {
        const terms own = {term(x, l), x->step * (uint32_t)lanes, x->count / lanes};
        acc[l] = in_order(builder, &own);
    }
    for (int64_t distance = lanes / 2; distance; distance /= 2)
        for (int64_t l = 0; l < distance; l++) acc[l] = lb_tree_add(builder, acc[l], acc[l + distance]);
    return acc[0];
}

static uint32_t in_torch_dot(lb_tree_builder *builder, const terms *x)
{
    const int64_t body = x->count - x->count % 64, vectors = x->count - x->count % 16;
    uint32_t sum = LB_TREE_NOTHING;
    if (body) {
        const terms whole = part(x, 0, body);
        sum = in_folded_lanes(builder, &whole, 64);
    }
    if (vectors > body) {
        const terms left = part(x, body, vectors - body);
        sum = lb_tree_add(builder, sum, in_folded_lanes(builder, &left, 8));
    }
    for (int64_t i = vectors; i < x->count; i++) sum = lb_tree_add(builder, sum, term(x, i));
    return sum;
}

/* Lanes folded onto lane 0; `pairs`: neighbours first. */
static uint32_t fold(lb_tree_builder *builder, uint32_t *lane, int64_t lanes, bool pairs)
{
    const int64_t step = pairs ? 2 : 1;
    for (int64_t l = 0; pairs && l < lanes; l += 2) lane[l] = lb_tree_add(builder, lane[l], lane[l + 1]);
    for (int64_t distance = lanes / 2; distance >= step; distance /= 2)
        for (int64_t l = 0; l < distance; l += step) lane[l] = lb_tree_add(builder, lane[l], lane[l + distance]);
    return lane[0];
}

/* As it is in the columns of which there are whole fours. */
static uint32_t in_folded(lb_tree_builder *builder, const terms *x, const lb_schedule *schedule)
{
    uint32_t lane[LB_FOLDED_MAX_LANES];
    const bool again = schedule->vector & LB_FOLDED_TAIL_AGAIN, after = schedule->vector & LB_FOLDED_TAIL_AFTER,
               pairs = schedule->vector & LB_FOLDED_PAIRS;
    const int64_t head = lb_schedule_head(schedule, x->count), body = x->count - head,
                  whole = again || after ? body - body % schedule->size : body;
    const terms first = part(x, 0, head);
    for (int64_t l = 0; l < schedule->size; l++) lane[l] = LB_TREE_NOTHING;
    lane[0] = in_order(builder, &first);
    for (int64_t i = 0; i < whole; i++)
        lane[i % schedule->size] = lb_tree_add(builder, lane[i % schedule->size], term(x, head + i));
    uint32_t sum = fold(builder, lane, schedule->size, pairs);
    for (int64_t i = whole; after && i < body; i++) sum = lb_tree_add(builder, sum, term(x, head + i));
    if (!again || whole == body) return sum;
    for (int64_t l = 0; l < schedule->size; l++)
        lane[l] = whole + l < body ? term(x, head + whole + l) : LB_TREE_NOTHING;
    lane[0] = lb_tree_add(builder, sum, lane[0]);
    return fold(builder, lane, schedule->size, pairs);
}

/* As it is in the columns of which there are whole sixteens. */
static uint32_t in_eights(lb_tree_builder *builder, const terms *terms)
{
    uint32_t sum = LB_TREE_NOTHING;
    int64_t i = 0;
    for (; i + 8 <= terms->count; i += 8) {
        sum = lb_tree_add(builder, lb_tree_add(builder, sum, term(terms, i + 6)), term(terms, i + 4));
        sum = lb_tree_add(builder, sum, lb_tree_add(builder, term(terms, i + 7), term(terms, i + 5)));
        const uint32_t even = lb_tree_add(builder, term(terms, i + 2), term(terms, i));
        sum = lb_tree_add(builder, sum,
                          lb_tree_add(builder, even, lb_tree_add(builder, term(terms, i + 3), term(terms, i + 1))));
    }
    for (; i < terms->count; i++) sum = lb_tree_add(builder, sum, term(terms, i));
    return sum;
}

/* torch's multi_row_sum */
static uint32_t in_levels(lb_tree_builder *builder, const terms *terms)
{
    int log = 0;
    while (((int64_t)1 << log) < terms->count) log++;
    const int power = log / 4 > 4 ? log / 4 : 4;
    const int64_t step = (int64_t)1 << power;
    uint32_t acc[4] = {LB_TREE_NOTHING, LB_TREE_NOTHING, LB_TREE_NOTHING, LB_TREE_NOTHING};
    int64_t i = 0;
    while (i + step <= terms->count) {
        for (const int64_t end = i + step; i < end; i++) acc[0] = lb_tree_add(builder, acc[0], term(terms, i));
        for (int j = 1; j < 4; j++) {
            acc[j] = lb_tree_add(builder, acc[j], acc[j - 1]);
            acc[j - 1] = LB_TREE_NOTHING;
            if (i & ((step - 1) << (j * power))) break;
        }
    }
    for (; i < terms->count; i++) acc[0] = lb_tree_add(builder, acc[0], term(terms, i));
    for (int j = 1; j < 4; j++) acc[0] = lb_tree_add(builder, acc[0], acc[j]);
    return acc[0];
}

/* torch's row_sum: four rows of every fourth term, what is left over goes to the first. */
static uint32_t in_four_rows(lb_tree_builder *builder, const terms *x)
{
    uint32_t row[4];
    for (int r = 0; r < 4; r++) {
        const terms own = {term(x, r), x->step * 4, x->count / 4};
        row[r] = own.count ? in_levels(builder, &own) : LB_TREE_NOTHING;
    }
    for (int64_t i = x->count / 4 * 4; i < x->count; i++) row[0] = lb_tree_add(builder, row[0], term(x, i));
    for (int r = 1; r < 4; r++) row[0] = lb_tree_add(builder, row[0], row[r]);
    return row[0];
}

/* torch's sum of a row: the tail first, then the lanes. */
static uint32_t in_cascade(lb_tree_builder *builder, const terms *x, int64_t lanes)
{
    if (x->count < lanes) lanes = 1;
    if (lanes == 1) return in_four_rows(builder, x);
    const int64_t whole = x->count / lanes * lanes;
    uint32_t sum = LB_TREE_NOTHING;
    for (int64_t i = whole; i < x->count; i++) sum = lb_tree_add(builder, sum, term(x, i));
    for (int64_t l = 0; l < lanes; l++) {
        const terms lane = {term(x, l), x->step * (uint32_t)lanes, whole / lanes};
        sum = lb_tree_add(builder, sum, in_four_rows(builder, &lane));
    }
    return sum;
}

/* torch's sum over threads: a piece for each, their sums as a row with zeros for idle threads. */
static uint32_t in_pieces(lb_tree_builder *builder, const terms *x, int64_t threads, int64_t lanes)
{
    enum { GRAIN = 32768 };
    const int64_t most = (x->count + GRAIN - 1) / GRAIN, used = most < threads ? most : threads;
    if (x->count < GRAIN || threads == 1) return in_cascade(builder, x, lanes);
    uint32_t sums[LB_SCHEDULE_MAX_SIZE];
    for (int64_t tree = 0; tree < threads; tree++) sums[tree] = LB_TREE_NOTHING;
    const int64_t size = (x->count + used - 1) / used;
    for (int64_t i = 0, tree = 0; i < x->count; i += size, tree++) {
        const terms piece = part(x, i, x->count - i < size ? x->count - i : size);
        sums[tree] = in_cascade(builder, &piece, lanes);
    }
    /* The final row has one number per thread. Its own tree over positions is built, then the sums put in their
     * place. */
    lb_tree_builder row = lb_tree_begin((uint32_t)threads);
    const terms places = {0, 1, threads};
    in_cascade(&row, &places, lanes);
    const lb_sum_tree *tree = row.tree;
    uint32_t *now = malloc(((size_t)threads * 2 + 1) * sizeof *now), last = LB_TREE_NOTHING;
    builder->failed |= !now || row.failed;
    for (int64_t i = 0; !builder->failed && i < threads; i++) now[i] = sums[i];
    for (uint32_t i = 0; !builder->failed && i < tree->nodes; i++)
        now[threads + i] = last =
            lb_tree_add(builder, now[tree->operand[tree->first[i]]], now[tree->operand[tree->first[i] + 1]]);
    free(now);
    lb_sum_tree_free(row.tree);
    return last;
}

/* MKL's products: blocks of k in each thread's share of it. */
static uint32_t in_shares(lb_tree_builder *builder, const terms *x, int64_t threads)
{
    if (lb_schedule_block(x->count) == x->count) threads = 1;
    uint32_t all = LB_TREE_NOTHING;
    for (int64_t t = 0; t < threads; t++) {
        const int64_t from = x->count * t / threads, end = x->count * (t + 1) / threads;
        uint32_t sum = LB_TREE_NOTHING;
        for (int64_t i = from, size; i < end; i += size) {
            size = lb_schedule_block(end - i);
            const terms block = part(x, i, size);
            sum = lb_tree_add(builder, sum, in_order(builder, &block));
        }
        all = lb_tree_add(builder, all, sum);
    }
    return all;
}

/* Fused sums of `width` terms and the sum before them; a new chain every `promote` terms. */
static uint32_t in_fused_groups(lb_tree_builder *builder, const terms *terms, int64_t width, int64_t promote)
{
    uint32_t operand[65], all = LB_TREE_NOTHING;
    for (int64_t from = 0; from < terms->count; from += promote) {
        const int64_t end = terms->count - from < promote ? terms->count : from + promote;
        uint32_t sum = LB_TREE_NOTHING;
        for (int64_t i = from; i < end; i += width) {
            uint32_t n = 0;
            operand[n++] = sum;
            for (int64_t k = i; k < end && k < i + width; k++) operand[n++] = term(terms, k);
            sum = lb_tree_fuse(builder, operand, n);
        }
        all = lb_tree_add(builder, all, sum);
    }
    return all;
}

/* ---- names to trees ---------------------------------------------------------------------------------------------- */

static bool build(lb_tree_builder *builder, const lb_schedule *schedule, lb_sum_of of, int64_t lanes,
                  const terms *terms)
{
    switch (schedule->kind) {
    case LB_SCHEDULE_SEQUENTIAL: in_order(builder, terms); return true;
    case LB_SCHEDULE_PAIRWISE: in_pairs(builder, terms); return true;
    case LB_SCHEDULE_CASCADE:
        if (of == LB_SUM_COLUMN)
            in_levels(builder, terms);
        else
            in_cascade(builder, terms, schedule->size);
        return true;
    case LB_SCHEDULE_BLOCKED: in_blocks(builder, terms, schedule->size, in_order); return true;
    case LB_SCHEDULE_DPBF16: in_blocks(builder, terms, schedule->size, in_swapped_pairs); return true;
    case LB_SCHEDULE_TDPBF16: in_tiles(builder, terms, schedule->size); return true;
    case LB_SCHEDULE_TORCHDOT: in_torch_dot(builder, terms); return true;
    case LB_SCHEDULE_HALVED:
        in_blocks(builder, terms, lb_schedule_halved(schedule->size, terms->count), in_order);
        return true;
    case LB_SCHEDULE_FOLDED: in_folded(builder, terms, schedule); return true;
    case LB_SCHEDULE_EIGHTS: in_eights(builder, terms); return true;
    case LB_SCHEDULE_SPLITK: in_slices(builder, terms, schedule->size, (uint64_t)schedule->vector); return true;
    case LB_SCHEDULE_LANES: in_lanes(builder, terms, schedule->size); return true;
    case LB_SCHEDULE_BUTTERFLY: in_butterfly(builder, terms, (int)schedule->size, schedule->vector); return true;
    case LB_SCHEDULE_NUMPY: in_halves(builder, terms); return true;
    case LB_SCHEDULE_TORCH:
        if (of == LB_SUM_PRODUCT)
            in_shares(builder, terms, schedule->size);
        else if (of == LB_SUM_COLUMN)
            in_levels(builder, terms);
        else
            in_pieces(builder, terms, schedule->size, lanes);
        return true;
    default: return false;
    }
}

lb_status lb_schedule_tree(const lb_schedule *schedule, uint32_t n, lb_sum_of of, lb_dtype dtype, lb_sum_tree **tree,
                           lb_err *err)
{
    *tree = NULL;
    if (!n || n > LB_TREE_MAX_LEAVES)
        return lb_fail(err, LB_ERR_INVALID, "a tree has 1 to %u terms, not %u", LB_TREE_MAX_LEAVES, n);
    lb_tree_builder builder = lb_tree_begin(n);
    const terms terms = {0, 1, n};
    bool known = true;
    if (schedule->kind == LB_SCHEDULE_TENSOR_CORE) {
        lb_tensor_core core;
        const lb_status status = lb_tensor_core_find((int)schedule->size, dtype, dtype, LB_NO_DTYPE, &core, err);
        if (status != LB_OK) {
            lb_sum_tree_free(builder.tree);
            return status;
        }
        in_fused_groups(&builder, &terms, core.terms, schedule->vector ? schedule->vector : n);
    } else
        known = build(&builder, schedule, of, dtype == LB_F64 ? 4 : 8, &terms);
    if (known) return lb_tree_end(&builder, tree, err);
    lb_sum_tree_free(builder.tree);
    return lb_fail(err, LB_ERR_INVALID, "the order \"exact\" is not a tree");
}

/* "fused:W": what tensor cores of any kind do, without saying which. */
static bool parse_fused(const char *name, int64_t *width)
{
    char *end;
    if (strncmp(name, "fused:", 6)) return false;
    *width = strtoll(name + 6, &end, 10);
    return end != name + 6 && !*end && *width >= 2 && *width <= 64;
}

lb_status lb_sum_tree_named(const char *name, uint32_t n, lb_sum_of of, lb_dtype dtype, lb_sum_tree **tree, lb_err *err)
{
    const bool reversed = !strcmp(name, "reversed");
    int64_t width;
    *tree = NULL;
    if (!n || n > LB_TREE_MAX_LEAVES)
        return lb_fail(err, LB_ERR_INVALID, "a tree has 1 to %u terms, not %u", LB_TREE_MAX_LEAVES, n);
    if (reversed || parse_fused(name, &width)) {
        lb_tree_builder builder = lb_tree_begin(n);
        const terms terms = {reversed ? n - 1 : 0, reversed ? UINT32_MAX : 1, n};
        if (reversed)
            in_order(&builder, &terms);
        else
            in_fused_groups(&builder, &terms, width, n);
        return lb_tree_end(&builder, tree, err);
    }
    char plain[128];
    const char *suffix = strstr(name, " of columns");
    if (suffix && !suffix[11] && suffix - name < (ptrdiff_t)sizeof plain) {
        snprintf(plain, sizeof plain, "%.*s", (int)(suffix - name), name);
        name = plain;
        of = LB_SUM_COLUMN;
    }
    lb_schedule schedule;
    LB_TRY(lb_schedule_parse(name, &schedule, err));
    lb_status status =
        lb_schedule_applies(&schedule, n) ? LB_OK : lb_fail(err, LB_ERR_INVALID, "that tree has not %u terms", n);
    if (status == LB_OK && schedule.kind == LB_SCHEDULE_TREE)
        *tree = schedule.tree, schedule.tree = NULL;
    else if (status == LB_OK)
        status = lb_schedule_tree(&schedule, n, of, dtype, tree, err);
    lb_schedule_release(&schedule);
    return status;
}
