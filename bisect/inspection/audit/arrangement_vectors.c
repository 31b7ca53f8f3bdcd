/* Vectors that a conversion changed: norms of 1 + w, and biases of matrices that were scaled or that a norm was folded
 * into. See arrangement.h.
 *
 *      y = W (g x + c) + b        W g x + (W c + b)        b's place holds b + W c, and neither b nor c is anywhere */
#include "audit/arrangement.h"

#include "contents/content_features.h"

#include "base/array.h"
#include <lastbit/program.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_vector(lb_shelf *shelf, uint32_t i)
{
    const lb_layout layout = lb_shelf_layout(shelf, i);
    const lb_dtype dtype = lb_shelf_piece(shelf, i)->tensor.dtype;
    return layout.ndim >= 1 && layout.ndim <= 2 && lb_layout_numel(&layout) <= 1 << 16 && lb_dtype_is_float(dtype) &&
           lb_dtype_bits(dtype) >= 16 && lb_shelf_open(shelf, i, NULL) == LB_OK;
}

static int64_t count(const lb_shelf *shelf, uint32_t i)
{
    const lb_layout layout = lb_shelf_layout(shelf, i);
    return lb_layout_numel(&layout);
}

static lb_dtype dtype_of(const lb_shelf *shelf, uint32_t i)
{
    return lb_shelf_piece(shelf, i)->tensor.dtype;
}

static size_t alike(const char *x, const char *y)
{
    size_t n = 0;
    while (x[n] && x[n] == y[n]) n++;
    return n;
}

/* ---- 1 + w ---- */

/* `taken`: weights of A that a vector of B is made of already. */
static lb_status try_shift(lb_arrangements *arrangements, uint32_t b, const double *x, uint8_t *taken, lb_err *err)
{
    const int64_t n = count(&arrangements->b, b);
    lb_arrangement *arrangement = &arrangements->list[b];
    for (uint32_t i = 0; i < arrangements->a.n; i++) {
        if (!lb_shelf_is_pending(&arrangements->a, i) || taken[i] || count(&arrangements->a, i) != n ||
            !is_vector(&arrangements->a, i))
            continue;
        double *y = lb_arrangement_numbers(&arrangements->a.list[i].whole.tensor);
        if (!y) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        const double room = lb_content_transform_room(dtype_of(&arrangements->a, i), dtype_of(&arrangements->b, b));
        lb_content_transform t = {LB_CONTENT_SHIFTED, -1, 0};
        bool shifted = lb_content_transform_holds(&t, y, x, n, room);
        if (!shifted) t.by = 1, shifted = lb_content_transform_holds(&t, y, x, n, room);
        free(y);
        if (!shifted) continue;
        arrangement->relation = LB_CONTENT_RENAMED, taken[i] = 1;
        return lb_arrangement_add(arrangement, (lb_content_run){i, 0, 1, 0, 1, n})
                   ? LB_OK
                   : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    return LB_OK;
}

lb_status lb_arrangement_search_shifts(lb_arrangements *arrangements, lb_err *err)
{
    uint8_t *taken = calloc(arrangements->a.n + 1u, 1);
    lb_status status = taken ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t b = 0; b < arrangements->b.n && status == LB_OK; b++) {
        if (!lb_shelf_is_pending(&arrangements->b, b) || arrangements->list[b].relation != LB_CONTENT_NONE ||
            !is_vector(&arrangements->b, b))
            continue;
        double *x = lb_arrangement_numbers(&arrangements->b.list[b].whole.tensor);
        status = x ? try_shift(arrangements, b, x, taken, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
        free(x);
    }
    free(taken);
    return status;
}

/* ---- beside a matrix ---- */

typedef struct finder {
    lb_arrangements *all;
    lb_content_tensor *layouts; /* of A's shelf */
    uint32_t *product_in;       /* by B's shelf: the bias of A that all of it, times a matrix, is in; LB_NONE */
    uint8_t *folded[2];         /* by A's shelf and by B's: its product was found */
    bool failed;
} finder;

/* What B's vector is made of, where the rows of one matrix stand. */
typedef struct question {
    uint32_t vector, matrix; /* of B's shelf */
    const lb_content_order *order;
    const double *b;
    double *moved; /* W c of each row, where a norm was folded in; NULL: nothing is to be added */
    double *size;  /* of |W| |c| of each row */
    uint32_t bias; /* c */
    bool of_b;     /* c is B's: A's vector has the product in it */
} question;

static const lb_arrangement_change *change_of(const lb_arrangement *arrangement, uint32_t tensor)
{
    for (uint32_t i = 0; i < arrangement->n_changes; i++)
        if (arrangement->changes[i].of == tensor) return &arrangement->changes[i];
    return NULL;
}

/* Of the row of that number among those that the weight gave. */
static double scale_of(const lb_arrangement_change *change, int64_t row)
{
    if (!change) return 1;
    switch (change->is.kind) {
    case LB_CONTENT_SCALED:
    case LB_CONTENT_COLUMNS_SCALED: return change->is.by;
    case LB_CONTENT_SOME_ROWS_SCALED: return change->rows && change->rows[row] ? change->is.by : 1;
    default: return 1;
    }
}

/* Does A's vector hold what B's holds, in the rows of one of A's matrices? NULL: that side has none there. */
static bool stands_beside(const finder *finder, const question *question, uint32_t matrix, const double *a, double room)
{
    const lb_arrangement_change *change = change_of(&finder->all->list[question->matrix], matrix);
    for (int64_t i = 0, row = 0; i < question->order->n; i++) {
        if (question->order->list[i].tensor != matrix) continue;
        const double scale = scale_of(change, row++);
        double x = a ? a[question->order->list[i].at] : 0, y = question->b ? question->b[i] : 0;
        const double size =
            fmax(fabs(scale * x), fabs(y)) + (question->moved ? 4 * fmax(1, scale) * question->size[i] : 0);
        if (question->moved && !question->of_b) x += question->moved[i];
        x *= scale;
        if (question->moved && question->of_b) y += question->moved[i];
        if (!(fabs(x - y) <= room * size + 0x1p-126)) return false;
    }
    return true;
}

static uint32_t find_beside(finder *finder, const question *question, uint32_t matrix)
{
    lb_shelf *a = &finder->all->a;
    const int64_t n = lb_content_features_in(&finder->layouts[matrix].tensor.layout, question->order->of_columns[0]);
    uint32_t best = LB_NONE;
    size_t most = 0;
    for (uint32_t i = 0; i < a->n && !finder->failed; i++) {
        if (i == matrix || count(a, i) != n || !is_vector(a, i)) continue;
        const size_t now = 1 + alike(lb_shelf_name(a, i), lb_shelf_name(a, matrix));
        double *x = now > most ? lb_arrangement_numbers(&a->list[i].whole.tensor) : NULL;
        finder->failed |= now > most && !x;
        const lb_dtype other =
            dtype_of(&finder->all->b, question->vector == LB_NONE ? question->matrix : question->vector);
        if (x && stands_beside(finder, question, matrix, x, lb_content_transform_room(dtype_of(a, i), other)))
            best = i, most = now;
        free(x);
    }
    return best;
}

/* No vector of A: B's is a product alone. */
static const uint32_t NOTHING = LB_NONE - 1;

/* Each matrix of A in the order, with the vector beside it, or NOTHING for all. False: some have none. */
static bool find_all_beside(finder *finder, const question *question, uint32_t *beside)
{
    uint32_t last = LB_NONE;
    bool nothing = false;
    memset(beside, 0xFF, finder->all->a.n * sizeof *beside);
    for (int64_t i = 0; i < question->order->n && !finder->failed; i++) {
        const uint32_t matrix = question->order->list[i].tensor;
        if (matrix == last || beside[matrix] != LB_NONE) continue;
        beside[matrix] = find_beside(finder, question, matrix), last = matrix;
        const bool alone =
            beside[matrix] == LB_NONE && question->moved && !question->of_b &&
            stands_beside(finder, question, matrix, NULL,
                          lb_content_transform_room(LB_F32, dtype_of(&finder->all->b, question->vector)));
        if (alone) beside[matrix] = NOTHING;
        if (beside[matrix] == LB_NONE || (i && (beside[matrix] == NOTHING) != nothing)) return false;
        nothing = beside[matrix] == NOTHING;
    }
    return !finder->failed;
}

/* What was done to the rows of the matrix was done to the vector, which was compared here. */
static void add_changes(finder *finder, const question *question, const uint32_t *beside)
{
    lb_arrangement *arrangement = &finder->all->list[question->vector];
    const lb_arrangement *matrix = &finder->all->list[question->matrix];
    for (int64_t i = 0; i < question->order->n && !finder->failed; i++) {
        const uint32_t of = beside[question->order->list[i].tensor];
        if (change_of(arrangement, of)) continue;
        lb_arrangement_change *more = lb_array_grow(arrangement->changes, arrangement->n_changes, sizeof *more);
        if ((finder->failed |= !more)) return;
        arrangement->changes = more;
        lb_arrangement_change now = {.of = of, .vector = LB_NONE};
        const lb_arrangement_change *theirs = change_of(matrix, question->order->list[i].tensor);
        if (question->moved)
            now.is = (lb_content_transform){LB_CONTENT_PRODUCT_ADDED, 1, 0}, now.vector = question->bias,
            now.of_b = question->of_b;
        else if (theirs && (theirs->is.kind == LB_CONTENT_SCALED || theirs->is.kind == LB_CONTENT_SOME_ROWS_SCALED))
            now.is = theirs->is;
        arrangement->changes[arrangement->n_changes++] = now;
    }
    arrangement->equal = true;
}

/* B's vector is what stands beside these rows, with what was done to them. */
static void take(finder *finder, const question *question, const uint32_t *beside)
{
    lb_arrangement *arrangement = &finder->all->list[question->vector];
    bool several = false;
    for (int64_t i = 0; i < question->order->n && !finder->failed; i++) {
        const lb_content_feature *row = &question->order->list[i];
        lb_content_run *last = arrangement->n ? &arrangement->runs[arrangement->n - 1] : NULL;
        const uint32_t from = beside[row->tensor];
        several |= last && last->tensor != from;
        if (last && last->tensor == from && last->from + last->n == row->at && last->to + last->n == i)
            last->n++;
        else
            finder->failed |= !lb_arrangement_add(arrangement, (lb_content_run){from, row->at, 1, i, 1, 1});
    }
    if (finder->failed) return;
    arrangement->relation = several ? LB_CONTENT_FUSED
                            : count(&finder->all->a, arrangement->runs[0].tensor) > question->order->n
                                ? LB_CONTENT_SPLIT
                                : LB_CONTENT_RENAMED;
    add_changes(finder, question, beside);
}

/* A vector that is nowhere by itself: `other` has it, a matrix or a bias of the other side. */
static void tell_vector(lb_arrangements *arrangements, bool of_b, uint32_t vector, uint32_t other)
{
    lb_shelf *shelf = of_b ? &arrangements->b : &arrangements->a;
    const lb_tensor tensor = {NULL, dtype_of(shelf, vector), lb_shelf_layout(shelf, vector)};
    const char *own = lb_shelf_name(shelf, vector),
               *there = lb_shelf_name(of_b ? &arrangements->a : &arrangements->b, other);
    const lb_comparison_pair pair = {of_b ? there : own, of_b ? own : there, "folded in", &tensor, &tensor, NULL, true};
    const lb_value_match match = {
        LB_AUDIT_IS_ROUNDING, LB_NO_DTYPE, {.elements = count(shelf, vector), .first = -1, .cosine = 1}, -1};
    const lb_audit_where where = {0};
    lb_comparison_add(arrangements->comparison->gathering, &pair, &match, &where);
    shelf->list[vector].used = count(shelf, vector);
    shelf->side->states[shelf->list[vector].row] = LB_COMPARISON_ARRANGED;
}

/* A side whose matrix has no bias has one once a norm's is folded in: all of A's is the product. */
static void take_lone(finder *finder, const question *question, const uint32_t *beside)
{
    lb_shelf *a = &finder->all->a;
    for (int64_t i = 0; i < question->order->n; i++) a->list[beside[question->order->list[i].tensor]].used++;
    finder->product_in[question->bias] = beside[question->order->list[0].tensor];
    for (uint32_t i = 0; i < a->n; i++) {
        bool here = false;
        for (int64_t k = 0; k < question->order->n && !here; k++) here = beside[question->order->list[k].tensor] == i;
        if (!here || a->side->states[a->list[i].row] != LB_COMPARISON_OPEN) continue;
        a->side->states[a->list[i].row] = LB_COMPARISON_ARRANGED;
    }
}

static void take_lone_of_b(finder *finder, const question *question)
{
    lb_shelf *b = &finder->all->b;
    b->side->states[b->list[question->vector].row] = LB_COMPARISON_ARRANGED;
    if (lb_shelf_is_pending(&finder->all->a, question->bias))
        tell_vector(finder->all, false, question->bias, question->vector);
}

static bool try_question(finder *finder, const question *question)
{
    uint32_t *beside = malloc((finder->all->a.n + 1) * sizeof *beside);
    finder->failed |= !beside;
    const bool found = beside && find_all_beside(finder, question, beside);
    if (found && beside[question->order->list[0].tensor] == NOTHING)
        take_lone_of_b(finder, question);
    else if (found && question->b)
        take(finder, question, beside);
    else if (found)
        take_lone(finder, question, beside);
    free(beside);
    return found && !finder->failed;
}

/* The vector whose name is most like that of the one that was folded in, and that is nowhere by itself. */
static uint32_t bias_beside(finder *finder, const lb_arrangement_change *fold)
{
    lb_shelf *shelf = fold->of_b ? &finder->all->b : &finder->all->a;
    uint32_t best = LB_NONE;
    for (uint32_t i = 0; i < shelf->n; i++)
        if (i != fold->vector && (lb_shelf_is_pending(shelf, i) || finder->folded[fold->of_b][i]) &&
            count(shelf, i) == count(shelf, fold->vector) && is_vector(shelf, i) &&
            (best == LB_NONE || alike(lb_shelf_name(shelf, i), lb_shelf_name(shelf, fold->vector)) >
                                    alike(lb_shelf_name(shelf, best), lb_shelf_name(shelf, fold->vector))))
            best = i;
    return best;
}

/* W c of each row of B's matrix, whose unfolded numbers are `w`. */
static void multiply(const lb_content_order *order, const lb_layout *layout, const double *weights,
                     const double *vector, double *moved, double *size)
{
    const int64_t width = layout->shape[layout->ndim - 1],
                  each = order->of_columns[1] ? layout->shape[layout->ndim - 2] : width;
    for (int64_t i = 0; i < order->n; i++) {
        const int64_t first = order->of_columns[1] ? i / width * width * each + i % width : i * width;
        moved[i] = size[i] = 0;
        for (int64_t k = 0; k < each; k++) {
            const double term = weights[first + k * (order->of_columns[1] ? width : 1)] * vector[k];
            moved[i] += term, size[i] += fabs(term);
        }
    }
}

static lb_status unfolded_numbers(finder *finder, uint32_t matrix, bool of_b, double **w, lb_err *err)
{
    const lb_tensor *b = &finder->all->b.list[matrix].whole.tensor;
    lb_tensor made = {0};
    if (!of_b) LB_TRY(lb_arrangement_gather(finder->all, &finder->all->list[matrix], b, &made, err));
    *w = lb_arrangement_numbers(of_b ? b : &made);
    free(made.data);
    return *w ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

/* Was the same norm folded into all parts of a matrix? */
static bool is_folded_alike(const lb_arrangement *arrangement, const lb_arrangement_change *fold)
{
    bool all = true;
    for (uint32_t i = 0; i < arrangement->n_changes; i++)
        all &= arrangement->changes[i].is.kind == LB_CONTENT_COLUMNS_SCALED &&
               arrangement->changes[i].vector == fold->vector && arrangement->changes[i].of_b == fold->of_b;
    return all;
}

/* A norm was folded into the matrix: its bias is in the one beside it. */
static lb_status try_folded(finder *finder, question *question, const lb_arrangement_change *fold, bool *found,
                            lb_err *err)
{
    const uint32_t bias = bias_beside(finder, fold);
    lb_shelf *shelf = fold->of_b ? &finder->all->b : &finder->all->a;
    double *weights = NULL;
    if (bias == LB_NONE || !is_folded_alike(&finder->all->list[question->matrix], fold)) return LB_OK;
    LB_TRY(unfolded_numbers(finder, question->matrix, fold->of_b, &weights, err));
    double *bias_numbers = lb_arrangement_numbers(&shelf->list[bias].whole.tensor);
    question->moved = malloc((size_t)question->order->n * sizeof *question->moved + 1);
    question->size = malloc((size_t)question->order->n * sizeof *question->size + 1);
    question->bias = bias, question->of_b = fold->of_b;
    finder->failed |= !bias_numbers || !question->moved || !question->size;
    if (!finder->failed) {
        multiply(question->order, &finder->all->b.list[question->matrix].whole.tensor.layout, weights, bias_numbers,
                 question->moved, question->size);
        *found = try_question(finder, question);
        finder->folded[fold->of_b][bias] |= *found;
    }
    free(weights), free(bias_numbers), free(question->moved), free(question->size);
    question->moved = question->size = NULL;
    return LB_OK;
}

static const lb_arrangement_change *fold_in(const lb_arrangement *arrangement)
{
    for (uint32_t i = 0; i < arrangement->n_changes; i++)
        if (arrangement->changes[i].is.kind == LB_CONTENT_COLUMNS_SCALED) return &arrangement->changes[i];
    return NULL;
}

/* One vector beside one matrix. */
static lb_status try_matrix(finder *finder, uint32_t vector, uint32_t matrix, const double *b, bool *found, lb_err *err)
{
    const lb_arrangement *arrangement = &finder->all->list[matrix];
    const lb_layout layout = lb_shelf_layout(&finder->all->b, matrix);
    lb_content_order order;
    if (!lb_content_order_of(arrangement->runs, arrangement->n, finder->layouts, &layout, &order))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    question q = {.vector = vector, .matrix = matrix, .order = &order, .b = b};
    lb_status status = LB_OK;
    if (order.list && (vector == LB_NONE || order.n == count(&finder->all->b, vector))) {
        const lb_arrangement_change *fold = fold_in(arrangement);
        *found = vector != LB_NONE && try_question(finder, &q);
        if (!*found && fold) status = try_folded(finder, &q, fold, found, err);
    }
    free(order.list);
    return status;
}

static bool is_changed(const lb_arrangement *arrangement)
{
    for (uint32_t i = 0; i < arrangement->n_changes; i++)
        if (arrangement->changes[i].is.kind != LB_CONTENT_UNTRANSFORMED) return true;
    return false;
}

/* The matrix that is to be asked next: the one whose name begins most like the vector's first, since zeros stand beside
 * all; LB_NONE: all were. */
static uint32_t next_matrix(const finder *finder, uint32_t vector, const uint8_t *asked)
{
    const char *name = lb_shelf_name(&finder->all->b, vector);
    uint32_t best = LB_NONE;
    for (uint32_t i = 0; i < finder->all->b.n; i++)
        if (i != vector && !asked[i] && is_changed(&finder->all->list[i]) &&
            (best == LB_NONE ||
             alike(lb_shelf_name(&finder->all->b, i), name) > alike(lb_shelf_name(&finder->all->b, best), name)))
            best = i;
    return best;
}

static lb_status find_vector(finder *finder, uint32_t vector, lb_err *err)
{
    double *b = lb_arrangement_numbers(&finder->all->b.list[vector].whole.tensor);
    uint8_t *asked = calloc(finder->all->b.n + 1u, 1);
    lb_status status = b && asked ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    bool found = false;
    for (uint32_t i; status == LB_OK && !found && (i = next_matrix(finder, vector, asked)) != LB_NONE;) {
        asked[i] = 1;
        status = try_matrix(finder, vector, i, b, &found, err);
    }
    free(b), free(asked);
    return status == LB_OK && finder->failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory") : status;
}

/* Biases of A that are products alone. */
static lb_status find_lone(finder *finder, uint32_t matrix, lb_err *err)
{
    bool found = false;
    const lb_arrangement_change *fold = fold_in(&finder->all->list[matrix]);
    if (!fold || !fold->of_b) return LB_OK;
    LB_TRY(try_matrix(finder, LB_NONE, matrix, NULL, &found, err));
    return finder->failed ? lb_fail(err, LB_ERR_NOMEM, "out of memory") : LB_OK;
}

lb_status lb_arrangement_search_beside(lb_arrangements *arrangements, lb_err *err)
{
    finder finder = {.all = arrangements,
                     .layouts = calloc(arrangements->a.n + 1u, sizeof *finder.layouts),
                     .product_in = malloc((arrangements->b.n + 1u) * sizeof *finder.product_in),
                     .folded = {calloc(arrangements->a.n + 1u, 1), calloc(arrangements->b.n + 1u, 1)}};
    lb_status status = finder.layouts && finder.product_in && finder.folded[0] && finder.folded[1]
                           ? LB_OK
                           : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < arrangements->a.n && finder.layouts; i++)
        finder.layouts[i] = (lb_content_tensor){lb_shelf_name(&arrangements->a, i),
                                                {NULL, LB_F32, lb_shelf_layout(&arrangements->a, i)}};
    for (uint32_t i = 0; i < arrangements->b.n && status == LB_OK; i++)
        if (lb_shelf_is_pending(&arrangements->b, i) && arrangements->list[i].relation == LB_CONTENT_NONE &&
            is_vector(&arrangements->b, i))
            status = find_vector(&finder, i, err);
    for (uint32_t i = 0; i < arrangements->b.n && finder.product_in; i++) finder.product_in[i] = LB_NONE;
    for (uint32_t i = 0; i < arrangements->b.n && status == LB_OK; i++) status = find_lone(&finder, i, err);
    for (uint32_t i = 0; i < arrangements->b.n && status == LB_OK; i++)
        if (finder.product_in[i] != LB_NONE) tell_vector(arrangements, true, i, finder.product_in[i]);
    free(finder.layouts), free(finder.product_in), free(finder.folded[0]), free(finder.folded[1]);
    return status;
}

/* ---- what was folded in ---- */

/* Of a norm that was folded in, one of ones or zeros may stand in its place. */
static void release_partner(lb_arrangements *arrangements, bool of_b, uint32_t vector)
{
    lb_shelf *shelf = of_b ? &arrangements->b : &arrangements->a, *other = of_b ? &arrangements->a : &arrangements->b;
    const uint32_t partner = shelf->side->partners[shelf->list[vector].row];
    if (partner == LB_NONE || other->side->states[partner] != LB_COMPARISON_OPEN) return;
    const lb_inventory *inventory = other->side->inventory;
    if (lb_inventory_is_constant(&inventory->measured[inventory->names[partner].first]))
        other->side->states[partner] = LB_COMPARISON_ARRANGED;
}

void lb_arrangement_tell_folded(lb_arrangements *arrangements)
{
    for (uint32_t b = 0; b < arrangements->b.n; b++)
        for (uint32_t i = 0; i < arrangements->list[b].n_changes; i++) {
            const lb_arrangement_change *change = &arrangements->list[b].changes[i];
            lb_shelf *shelf = change->of_b ? &arrangements->b : &arrangements->a;
            if (change->vector == LB_NONE) continue;
            if (lb_shelf_is_pending(shelf, change->vector))
                tell_vector(arrangements, change->of_b, change->vector,
                            change->of_b ? arrangements->list[b].runs[0].tensor : b);
            release_partner(arrangements, change->of_b, change->vector);
        }
}
