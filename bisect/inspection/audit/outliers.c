/* A tensor, row, head or expert that is off its siblings in size, or that is white noise where they are not.
 *
 * How much siblings differ is the model's own matter: sizes of rows lie within 2 of each other in one model and within
 * 80 in another. So a deviation is called out only where it stands apart: all deviations are sorted, and between it and
 * the next one is a gap. False alarms were measured, not derived: see
 * `tests/bisect/inspection/audit/test_audit_outliers.py`, whose models are real and fresh ones. */
#include "audit/inventory.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Factors from which a deviation is one, and by which it stands apart from the next. */
typedef struct rule {
    double least, gap;
} rule;
static const rule matrix_rule = {8, 4}, vector_rule = {30, 4}, row_rule = {8, 4}, channel_rule = {16, 8},
                  small_row_rule = {64, 4}, head_rule = {4, 3}, lone_row_rule = {300, 30}, lone_matrix_rule = {300, 30};

enum { FEWEST_SIBLINGS = 4, FEWEST_ROWS = 16, FEWEST_NUMBERS = 16 };

/* One deviation, as a logarithm, and of what. */
typedef struct deviation {
    double size;
    uint32_t piece;
    int64_t slice;
} deviation;

static int by_deviation(const void *a, const void *b)
{
    const double x = ((const deviation *)a)->size, y = ((const deviation *)b)->size;
    return (x < y) - (x > y);
}

/* How many of the largest stand apart from all others; at most a quarter of them. */
static uint32_t apart(deviation *deviation, uint32_t n, rule rule)
{
    uint32_t found = 0;
    if (n) qsort(deviation, n, sizeof *deviation, by_deviation);
    for (uint32_t i = 0; i + 1 < n && (i + 1) * 4 <= n && deviation[i].size >= log(rule.least); i++)
        if (deviation[i].size - fmax(deviation[i + 1].size, 0) >= log(rule.gap)) found = i + 1;
    return found;
}

static double median_of(double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, lb_by_f64);
    return n ? n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2 : 0;
}

/* ---- what of a group is judged ----------------------------------------------------------------------------------- */

typedef struct group {
    const lb_inventory *inventory;
    uint32_t *pieces, n;
    deviation *deviations;
    double *sizes;
} group;

static bool is_judged(const lb_inventory *inventory, uint32_t piece)
{
    const lb_checkpoint_piece *p = &inventory->checkpoint->pieces[piece];
    const lb_piece_measured *measured = &inventory->measured[piece];
    return lb_dtype_is_float(p->tensor.dtype) && !lb_inventory_is_state(p->name) && !lb_inventory_is_buffer(p->name) &&
           measured->first_bad < 0 && measured->statistics.elements > 1 && !lb_inventory_is_constant(measured);
}

static double size_of(const lb_inventory *inventory, uint32_t piece)
{
    const lb_statistics *statistics = &inventory->measured[piece].statistics;
    return log(sqrt(statistics->sum_squares / (double)statistics->elements));
}

static bool is_matrix(const lb_inventory *inventory, uint32_t piece)
{
    const lb_layout *layout = &inventory->checkpoint->pieces[piece].tensor.layout;
    return layout->ndim >= 2 && layout->shape[0] > 1;
}

/* ---- whole tensors ----------------------------------------------------------------------------------------------- */

static void judge_tensors(lb_audit_gathering *gathering, group *group)
{
    if (group->n < FEWEST_SIBLINGS) return;
    for (uint32_t i = 0; i < group->n; i++) group->sizes[i] = size_of(group->inventory, group->pieces[i]);
    const double middle = median_of(group->sizes, group->n);
    for (uint32_t i = 0; i < group->n; i++)
        group->deviations[i] =
            (deviation){fabs(size_of(group->inventory, group->pieces[i]) - middle), group->pieces[i], -1};
    const uint32_t n =
        apart(group->deviations, group->n, is_matrix(group->inventory, group->pieces[0]) ? matrix_rule : vector_rule);
    for (uint32_t i = 0; i < n; i++) {
        const lb_checkpoint_piece *piece = &group->inventory->checkpoint->pieces[group->deviations[i].piece];
        const double size = size_of(group->inventory, group->deviations[i].piece);
        if (!lb_audit_is_found(gathering, piece->name))
            lb_audit_find(
                gathering, LB_AUDIT_OUTLIER, lb_inventory_where(group->inventory, piece),
                "its elements are of size %.3g, %.3g times its siblings', whose others stay within %.3g times",
                exp(size), exp(size - middle), exp(group->deviations[n].size));
    }
}

/* Tables of tokens have sizes of their own. */
static bool is_lone_weight(const lb_inventory *inventory, uint32_t piece)
{
    const char *name = inventory->checkpoint->pieces[piece].name;
    const size_t n = strlen(name);
    return is_judged(inventory, piece) && is_matrix(inventory, piece) && !lb_inventory_is_table(name) && n >= 6 &&
           strcmp(name + n - 6, "weight") == 0;
}

/* A matrix that has few siblings, or none, beside all matrices of the model. */
static void judge_lone_matrices(lb_audit_gathering *gathering, group *group)
{
    const uint32_t all = group->inventory->checkpoint->n_pieces;
    uint32_t n = 0;
    for (uint32_t i = 0; i < all; i++)
        if (is_lone_weight(group->inventory, i)) group->sizes[n++] = size_of(group->inventory, i);
    const double middle = median_of(group->sizes, n);
    n = 0;
    for (uint32_t i = 0; i < all; i++)
        if (is_lone_weight(group->inventory, i))
            group->deviations[n++] = (deviation){fabs(size_of(group->inventory, i) - middle), i, -1};
    const uint32_t found = apart(group->deviations, n, lone_matrix_rule);
    for (uint32_t i = 0; i < found; i++) {
        const lb_checkpoint_piece *piece = &group->inventory->checkpoint->pieces[group->deviations[i].piece];
        const double size = size_of(group->inventory, group->deviations[i].piece);
        if (!lb_audit_is_found(gathering, piece->name))
            lb_audit_find(gathering, LB_AUDIT_OUTLIER, lb_inventory_where(group->inventory, piece),
                          "its elements are of size %.3g, %.3g times those of the matrix in the middle; "
                          "no other matrix is off by more than %.3g times",
                          exp(size), exp(size - middle), exp(group->deviations[found].size));
    }
}

/* ---- rows and columns -------------------------------------------------------------------------------------------- */

/* The slice that is farthest from the middle of its axis, above or below; slices of zeros are told elsewhere. */
static deviation farthest(group *group, uint32_t piece, int axis, bool below)
{
    const lb_profile_axis *a = &group->inventory->profiles[piece].axes[axis];
    deviation most = {-1, piece, -1};
    if (a->n < FEWEST_ROWS || group->inventory->measured[piece].statistics.elements / a->n < FEWEST_NUMBERS)
        return most;
    double *sizes = malloc((size_t)(a->n + 1) * sizeof *sizes);
    uint32_t n = 0;
    for (int64_t i = 0; sizes && i < a->n; i++)
        if (a->sizes[i] > 0) sizes[n++] = log((double)a->sizes[i]);
    const double middle = sizes ? median_of(sizes, n) : 0;
    free(sizes);
    for (int64_t i = 0; n >= FEWEST_ROWS && i < a->n; i++) {
        const double d = a->sizes[i] > 0 ? (log((double)a->sizes[i]) - middle) * (below ? -1 : 1) : -1;
        if (d > most.size) most = (deviation){d, piece, i};
    }
    return most;
}

/* The first and the last slice that are nearer to the farthest one than to what is usual, and how many there are. */
typedef struct reach {
    int64_t first, last, n;
} reach;

static reach reach_of(const lb_profile_axis *axis, const deviation *deviation, bool below, double others)
{
    const double middle = log((double)axis->sizes[deviation->slice]) - (below ? -deviation->size : deviation->size);
    reach r = {deviation->slice, deviation->slice, 0};
    for (int64_t i = 0; i < axis->n; i++) {
        const double now = axis->sizes[i] > 0 ? (log((double)axis->sizes[i]) - middle) * (below ? -1 : 1) : -1;
        if (now < (deviation->size + others) / 2) continue;
        r = (reach){i < r.first ? i : r.first, i > r.last ? i : r.last, r.n + 1};
    }
    return r;
}

static void tell_slice(lb_audit_gathering *gathering, const group *group, const deviation *deviation, int axis,
                       bool below, double others)
{
    const lb_checkpoint_piece *piece = &group->inventory->checkpoint->pieces[deviation->piece];
    const char *word = axis == 2                                            ? "column"
                       : axis == 1 || !lb_inventory_is_stacked(piece->name) ? "row"
                                                                            : "expert",
               *how = below ? "small" : "large";
    const reach reach = reach_of(&group->inventory->profiles[deviation->piece].axes[axis], deviation, below, others);
    if (lb_audit_is_found(gathering, piece->name)) return;
    if (reach.n == 1)
        lb_audit_find(gathering, LB_AUDIT_OUTLIER, lb_inventory_where(group->inventory, piece),
                      "its %s %lld is %.3g times as %s as its %ss are in the middle; "
                      "in its siblings none is more than %.3g times",
                      word, (long long)deviation->slice, exp(deviation->size), how, word, exp(others));
    else
        lb_audit_find(gathering, LB_AUDIT_OUTLIER, lb_inventory_where(group->inventory, piece),
                      "%lld of its %ss, %lld to %lld, are up to %.3g times as %s as its %ss are in the middle; "
                      "in its siblings none is more than %.3g times",
                      (long long)reach.n, word, (long long)reach.first, (long long)reach.last, exp(deviation->size),
                      how, word, exp(others));
}

/* Without siblings a row stands apart from the other rows of its tensor. */
static void judge_alone(lb_audit_gathering *gathering, group *group, uint32_t piece, int axis)
{
    const lb_profile_axis *a = &group->inventory->profiles[piece].axes[axis];
    const deviation most = farthest(group, piece, axis, false);
    double next = 0;
    if (most.slice < 0 || most.size < log(lone_row_rule.least)) return;
    const double middle = log((double)a->sizes[most.slice]) - most.size;
    for (int64_t i = 0; i < a->n; i++)
        if (i != most.slice && a->sizes[i] > 0) next = fmax(next, log((double)a->sizes[i]) - middle);
    if (most.size - next >= log(lone_row_rule.gap)) tell_slice(gathering, group, &most, axis, false, next);
}

static void judge_slices(lb_audit_gathering *gathering, group *group, int axis, bool below)
{
    const bool convolution = group->inventory->checkpoint->pieces[group->pieces[0]].tensor.layout.ndim > 2 &&
                             !lb_inventory_is_stacked(group->inventory->checkpoint->pieces[group->pieces[0]].name);
    if (below && convolution) return; /* a channel that the weights' decay has switched off is how such networks are */
    for (uint32_t i = 0; i < group->n && group->n < FEWEST_SIBLINGS && !below; i++)
        judge_alone(gathering, group, group->pieces[i], axis);
    if (group->n < FEWEST_SIBLINGS) return;
    for (uint32_t i = 0; i < group->n; i++) group->deviations[i] = farthest(group, group->pieces[i], axis, below);
    const uint32_t n = apart(group->deviations, group->n,
                             below         ? small_row_rule
                             : convolution ? channel_rule
                                           : row_rule);
    for (uint32_t i = 0; i < n; i++)
        tell_slice(gathering, group, &group->deviations[i], axis, below, fmax(group->deviations[n].size, 0));
}

/* ---- heads and experts ------------------------------------------------------------------------------------------- */

static const char *block_word(const lb_checkpoint_piece *piece)
{
    return lb_inventory_is_stacked(piece->name) && piece->tensor.layout.ndim > 2 ? "expert" : "block";
}

static deviation farthest_block(const group *group, uint32_t piece, int side)
{
    const lb_profile_blocks *blocks = &group->inventory->profiles[piece].sides[side];
    deviation most = {-1, piece, -1};
    double *sizes = malloc((size_t)(blocks->n + 1) * sizeof *sizes);
    uint32_t n = 0;
    for (int64_t i = 0; sizes && i < blocks->n; i++)
        if (blocks->list[i].size > 0) sizes[n++] = log((double)blocks->list[i].size);
    const double middle = sizes && n ? median_of(sizes, n) : 0;
    free(sizes);
    for (int64_t i = 0; n >= 2 && i < blocks->n; i++) {
        const double d = blocks->list[i].size > 0 ? fabs(log((double)blocks->list[i].size) - middle) : -1;
        if (d > most.size) most = (deviation){d, piece, i};
    }
    return most;
}

static void judge_sizes_of_blocks(lb_audit_gathering *gathering, group *group, int side)
{
    for (uint32_t i = 0; i < group->n; i++) group->deviations[i] = farthest_block(group, group->pieces[i], side);
    const uint32_t n = apart(group->deviations, group->n, head_rule);
    for (uint32_t i = 0; i < n; i++) {
        const deviation *deviation = &group->deviations[i];
        const lb_checkpoint_piece *piece = &group->inventory->checkpoint->pieces[deviation->piece];
        const lb_profile_blocks *blocks = &group->inventory->profiles[deviation->piece].sides[side];
        if (!lb_audit_is_found(gathering, piece->name))
            lb_audit_find(gathering, LB_AUDIT_OUTLIER, lb_inventory_where(group->inventory, piece),
                          "its %s %lld (%s %lld:%lld) is of size %.3g, %.3g times off its others; "
                          "in its siblings none is more than %.3g times",
                          block_word(piece), (long long)deviation->slice, side ? "columns" : "rows",
                          (long long)(deviation->slice * blocks->width),
                          (long long)((deviation->slice + 1) * blocks->width),
                          (double)blocks->list[deviation->slice].size, exp(deviation->size),
                          exp(fmax(group->deviations[n].size, 0)));
    }
}

/* Below 4 standard errors a block may be noise; it is called so where no other block lies below 10, so that nothing is
 * between. */
enum { MAY_BE_NOISE = 4, IS_NONE = 10, FEWEST_BLOCKS = 8 };

static void tell_noise(lb_audit_gathering *gathering, const group *group, int side, uint32_t piece, int64_t block,
                       int64_t others)
{
    const lb_checkpoint_piece *p = &group->inventory->checkpoint->pieces[piece];
    const lb_profile_blocks *blocks = &group->inventory->profiles[piece].sides[side];
    if (lb_audit_is_found(gathering, p->name)) return;
    lb_audit_find(gathering, LB_AUDIT_FRESH, lb_inventory_where(group->inventory, p),
                  "its %s %lld (%s %lld:%lld) is white noise of deviation %.4g, as an initialiser leaves it, "
                  "and %lld others in it and its siblings are not",
                  block_word(p), (long long)block, side ? "columns" : "rows", (long long)(block * blocks->width),
                  (long long)((block + 1) * blocks->width), (double)blocks->list[block].size, (long long)others);
}

static void judge_noise(lb_audit_gathering *gathering, const group *group, int side)
{
    int64_t noise = 0, between = 0, all = 0;
    for (uint32_t i = 0; i < group->n; i++) {
        const lb_profile_blocks *blocks = &group->inventory->profiles[group->pieces[i]].sides[side];
        for (int64_t k = 0; k < blocks->n; k++)
            all++, noise += blocks->list[k].unlikeness < MAY_BE_NOISE,
                between += blocks->list[k].unlikeness >= MAY_BE_NOISE && blocks->list[k].unlikeness < IS_NONE;
    }
    if (all < FEWEST_BLOCKS || !noise || between || noise * 8 > all) return;
    for (uint32_t i = 0; i < group->n; i++) {
        const lb_profile_blocks *blocks = &group->inventory->profiles[group->pieces[i]].sides[side];
        for (int64_t k = 0; k < blocks->n; k++)
            if (blocks->list[k].unlikeness < MAY_BE_NOISE)
                tell_noise(gathering, group, side, group->pieces[i], k, all - noise);
    }
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

/* Rows before heads before the whole: what one row explains is not told of its tensor. */
static void judge_group(lb_audit_gathering *gathering, group *group)
{
    const bool rows = is_matrix(group->inventory, group->pieces[0]) &&
                      !lb_inventory_is_table(group->inventory->checkpoint->pieces[group->pieces[0]].name);
    for (int axis = 0; rows && axis < LB_PROFILE_AXES; axis++)
        for (int below = 0; below < 2; below++) judge_slices(gathering, group, axis, below == 1);
    for (int side = 0; rows && side < LB_PROFILE_SIDES; side++) {
        if (group->n >= FEWEST_SIBLINGS) judge_sizes_of_blocks(gathering, group, side);
        judge_noise(gathering, group, side);
    }
    judge_tensors(gathering, group);
}

void lb_audit_outliers(lb_audit_gathering *gathering, const lb_inventory *inventory)
{
    const uint32_t all = inventory->checkpoint->n_pieces + 1;
    group group = {inventory, malloc(all * sizeof(uint32_t)), 0, malloc(all * sizeof(deviation)),
                   malloc(all * sizeof(double))};
    const bool made = group.pieces && group.deviations && group.sizes;
    gathering->failed |= !made;
    for (uint32_t i = 0, end; made && i < inventory->n_names; i = end) {
        end = lb_inventory_group(inventory, i);
        group.n = 0;
        for (uint32_t k = i; k < end; k++) {
            const lb_inventory_name *name = &inventory->names[inventory->siblings[k]];
            for (uint32_t part = 0; part < name->n; part++)
                if (is_judged(inventory, name->first + part)) group.pieces[group.n++] = name->first + part;
        }
        if (group.n) judge_group(gathering, &group);
    }
    if (made) judge_lone_matrices(gathering, &group);
    free(group.pieces), free(group.deviations), free(group.sizes);
}
