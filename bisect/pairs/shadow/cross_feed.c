/* Which source or decision takes what: see cross_feed.h. */
#include "shadow/cross_feed.h"

#include "pair/cut_tensors.h"
#include "kernel/ops.h"
#include "shadow/shadow_numbers.h"

#include "base/array.h"
#include <lastbit/replay.h>

#include <stdlib.h>
#include <string.h>

uint32_t lb_cross_feed_giver_of_storage(const lb_program *program, int64_t storage, uint32_t end, uint32_t *value)
{
    for (uint32_t i = end < program->n_ops ? end : program->n_ops; i-- > 0;) {
        const lb_op *op = &program->ops[i];
        if (op->flags & (LB_OP_VIEW | LB_OP_FAILED)) continue;
        for (uint32_t k = 0; k < op->results + op->written; k++) {
            uint32_t v = lb_op_outcome(program, op, k);
            if (v == LB_NONE || program->values[v].storage != storage) continue;
            *value = v;
            return i;
        }
    }
    return LB_NONE;
}

uint32_t lb_cross_feed_giver(const lb_program *program, uint32_t value, uint32_t end)
{
    uint32_t given;
    return lb_cross_feed_giver_of_storage(program, program->values[value].storage, end, &given);
}

static bool make_room(lb_cross_feed *feed, size_t bytes)
{
    if (bytes <= feed->converted_room) return true;
    double *larger = realloc(feed->converted, bytes);
    if (!larger) return false;
    feed->converted = larger, feed->converted_room = bytes;
    return true;
}

/* What of a window lies in the range of a source. */
static bool overlay(lb_cross_feed *feed, const lb_value *source, const lb_fed_value *take, char *mine)
{
    const lb_value *window = take->window;
    const int64_t all = lb_layout_numel(&source->layout), begin = window->layout.offset - source->layout.offset;
    const size_t width = lb_dtype_bits(source->dtype) / 8;
    lb_tensor theirs;
    if (lb_program_view_value(feed->other, take->value, &theirs, NULL) != LB_OK ||
        !lb_layout_same_shape(&theirs.layout, &window->layout))
        return false;
    double *numbers = malloc((size_t)lb_layout_numel(&window->layout) * sizeof *numbers + 1), *next = numbers;
    if (!numbers) return false;
    lb_shadow_numbers(&theirs, numbers);
    for (lb_rows r = lb_rows_of(&window->layout); lb_rows_next(&r);)
        for (int64_t k = 0; k < r.count; k++, next++) {
            const int64_t at = begin + r.offset + k * r.stride;
            if (at >= 0 && at < all) lb_store_f64_strided(source->dtype, mine + at * (int64_t)width, 1, next, 1, NULL);
        }
    free(numbers);
    return true;
}

/* Into a copy of the source's own numbers go those of all windows of its storage. */
static bool take_windows(lb_cross_feed *feed, const lb_value *source, lb_tensor *tensor)
{
    const lb_program *program = feed->side->program;
    const size_t bytes = lb_dtype_bytes(source->dtype, (size_t)lb_layout_numel(&source->layout));
    if (!tensor->data || lb_dtype_bits(source->dtype) < 8 || !lb_layout_is_contiguous(&tensor->layout) ||
        !make_room(feed, bytes + 1))
        return false;
    memcpy(feed->converted, tensor->data, bytes);
    for (uint32_t v = 0; v < program->n_values; v++)
        if (feed->taken[v].window && program->values[v].storage == source->storage &&
            !overlay(feed, source, &feed->taken[v], (char *)feed->converted))
            return false;
    tensor->data = feed->converted;
    return true;
}

static bool take_numbers(lb_cross_feed *s, const lb_fed_value *take, lb_tensor *tensor);

/* A part of a larger tensor that lies flat takes the part; what lies behind it (padding) stays as it was recorded. */
static bool take_flat(lb_cross_feed *feed, const lb_fed_value *take, const lb_tensor *part, lb_tensor *tensor)
{
    lb_tensor shaped = *part;
    const size_t bytes = lb_dtype_bytes(tensor->dtype, (size_t)lb_layout_numel(&tensor->layout)),
                 taken = lb_dtype_bytes(part->dtype, (size_t)lb_layout_numel(&part->layout));
    if (!take_numbers(feed, take, &shaped)) return false;
    if (taken == bytes && lb_layout_is_contiguous(&shaped.layout)) {
        tensor->data = shaped.data;
        return true;
    }
    char *padded = malloc(bytes + 1);
    if (!padded) return false;
    if (tensor->data)
        memcpy(padded, tensor->data, bytes);
    else
        memset(padded, 0, bytes);
    memcpy(padded, shaped.data, taken);
    free(feed->padded);
    tensor->data = feed->padded = padded;
    return true;
}

/* ---- tensors that the sides cut differently ---- */

/* What A has of the whole goes into B's part of it; `bytes`: of all that the source holds. False: out of memory. */
static bool overlay_cut(const lb_cut_tensors *cuts, const lb_cut_tensor *cut, const lb_held_part *mine, uint8_t *bytes)
{
    const size_t element = lb_dtype_bits(cut->dtype) / 8;
    lb_held_image image;
    bool room = lb_held_image_open(&image, &cut->whole, element);
    for (uint32_t i = 0; room && i < cut->n_rows[0]; i++) {
        const lb_held_part *part = &cuts->parts[0][cut->rows[0][i]];
        uint8_t *theirs = lb_held_part_bytes(part, element);
        if (theirs) lb_held_image_draw(&image, part, theirs);
        free(theirs);
    }
    if (room) lb_held_image_cut(&image, mine, bytes + (size_t)mine->at * element);
    lb_held_image_release(&image);
    return room;
}

/* What no tensor of the other side stands for (padding) stays as it was recorded. */
static bool take_cuts(lb_cross_feed *feed, uint32_t value, lb_tensor *tensor)
{
    const lb_cut_tensors *cuts = feed->alignment->cuts;
    const size_t element = lb_dtype_bits(tensor->dtype) / 8, n = (size_t)lb_layout_numel(&tensor->layout);
    int64_t first, last;
    if (lb_layout_dense_range(&tensor->layout, &first, &last, NULL) != LB_OK || (size_t)(last - first) != n)
        return false;
    uint8_t *dense = calloc(n + 1, element);
    bool done = dense && (!tensor->data || lb_tensor_gather(tensor, dense, NULL) == LB_OK);
    for (uint32_t i = 0; done && i < cuts->n; i++)
        for (uint32_t r = 0; done && cuts->list[i].known && r < cuts->list[i].n_rows[1]; r++) {
            const lb_held_part *mine = &cuts->parts[1][cuts->list[i].rows[1][r]];
            if (mine->value == value) done = overlay_cut(cuts, &cuts->list[i], mine, dense);
        }
    if (done && !lb_layout_is_contiguous(&tensor->layout)) {
        done = make_room(feed, n * element + 1);
        const uint8_t *from = dense;
        for (lb_rows r = lb_rows_of(&tensor->layout); done && lb_rows_next(&r);)
            for (int64_t k = 0; k < r.count; k++, from += element)
                memcpy((uint8_t *)feed->converted + (size_t)(r.offset + k * r.stride) * element, from, element);
        tensor->data = feed->converted;
        free(dense);
        return done;
    }
    free(feed->padded);
    feed->padded = dense;
    if (done) tensor->data = dense;
    return done;
}

static void map_cuts(lb_cross_feed *feed)
{
    const lb_cut_tensors *cuts = feed->alignment->cuts;
    const lb_program *program = feed->side->program;
    for (uint32_t i = 0; feed->parts && cuts && i < program->n_ops; i++)
        if (cuts->held[1][i] == LB_HELD_KNOWN)
            feed->taken[lb_op_results(program, &program->ops[i])[0]] =
                (lb_fed_value){.value = LB_NONE, .dim = -1, .cut = true};
}

bool lb_cross_feed_feeds(const lb_cross_feed *cross_feed, uint32_t value)
{
    const lb_fed_value *take = &cross_feed->taken[value];
    return take->cut || take->own || take->window || take->value != LB_NONE;
}

bool lb_cross_feed_take(lb_cross_feed *cross_feed, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    const uint32_t at = lb_program_view_part_at(cross_feed->side, rank, step);
    if (at == LB_NONE) return false;
    const uint32_t v = cross_feed->side->parts[at].first_value + value;
    const lb_fed_value *take = &cross_feed->taken[v];
    if (take->cut) return take_cuts(cross_feed, v, tensor);
    if (take->own) return true;
    if (take->window) return take_windows(cross_feed, &cross_feed->side->program->values[v], tensor);
    if (take->value == LB_NONE) return false;
    lb_tensor part = *tensor;
    return lb_program_view_shape(cross_feed->side, v, &part) ? take_flat(cross_feed, take, &part, tensor)
                                                             : take_numbers(cross_feed, take, tensor);
}

/* Of the whole what a part has: a window where that is one piece, else a copy. */
static bool cut(lb_cross_feed *feed, const lb_fed_value *take, const lb_layout *part, lb_tensor *whole)
{
    const size_t element = lb_dtype_bits(whole->dtype) / 8;
    const lb_reassembly_piece *first = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < take->n_pieces; i++)
        if (take->pieces[i].part == take->place && !n++) first = &take->pieces[i];
    if (n == 1 && take->dim != LB_REASSEMBLY_GRID) {
        const int64_t stride = whole->layout.stride[take->dim];
        whole->data = (char *)whole->data + first->to * stride * (int64_t)element;
        whole->layout.shape[take->dim] = part->shape[take->dim];
        return true;
    }
    lb_layout mine = lb_layout_contiguous(part->ndim, part->shape);
    char *dense = malloc((size_t)lb_layout_numel(&whole->layout) * element + 1);
    free(feed->cut);
    feed->cut = malloc((size_t)lb_layout_numel(&mine) * element + 1);
    const bool done = n && element && dense && feed->cut && mine.ndim == whole->layout.ndim &&
                      lb_tensor_gather(whole, dense, NULL) == LB_OK;
    if (done)
        lb_reassembly_cut(&whole->layout, take->dim, take->pieces, take->n_pieces, take->place, &mine, element, dense,
                          feed->cut);
    free(dense);
    *whole = (lb_tensor){feed->cut, whole->dtype, mine};
    return done;
}

static bool take_numbers(lb_cross_feed *feed, const lb_fed_value *take, lb_tensor *tensor)
{
    lb_tensor theirs;
    if (lb_program_view_value(feed->other, take->value, &theirs, NULL) != LB_OK) return false;
    if (take->dim >= 0 && !cut(feed, take, &tensor->layout, &theirs)) return false;
    int64_t n = lb_layout_numel(&tensor->layout);
    if (n <= 0 || lb_layout_numel(&theirs.layout) != n || !lb_layout_same_shape(&theirs.layout, &tensor->layout))
        return false;
    int64_t first, last;
    if (lb_layout_dense_range(&tensor->layout, &first, &last, NULL) != LB_OK || last - first != n) return false;
    size_t bytes = lb_dtype_bytes(tensor->dtype, (size_t)n) + (size_t)n * sizeof(double);
    if (!make_room(feed, bytes)) return false;
    if (theirs.dtype == tensor->dtype && lb_layout_is_contiguous(&theirs.layout) &&
        lb_layout_is_contiguous(&tensor->layout)) {
        tensor->data = theirs.data;
        return true;
    }
    lb_tensor mine = *tensor;
    mine.data = feed->converted + n;
    lb_shadow_numbers(&theirs, feed->converted);
    int64_t done = 0;
    for (lb_rows r = lb_rows_of(&mine.layout); lb_rows_next(&r); done += r.count)
        lb_store_f64_strided(mine.dtype, (char *)mine.data + r.offset * (int64_t)(lb_dtype_bits(mine.dtype) / 8),
                             r.stride, feed->converted + done, (size_t)r.count, NULL);
    tensor->data = mine.data;
    return true;
}

/* What `source` takes of what the other side shows. */
static lb_fed_value shown_by(const lb_program *program, uint32_t source, uint32_t shown, uint32_t theirs)
{
    return (lb_fed_value){.value = theirs, .dim = -1, .window = shown == source ? NULL : &program->values[shown]};
}

/* Both shadows must start from the same numbers: the narrower side's sources serve both, widening is exact. */
static void map_sources(lb_cross_feed *feed)
{
    const lb_program *pa = (feed->parts ? feed->other : feed->side)->program,
                     *pb = (feed->parts ? feed->side : feed->other)->program;
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        uint32_t j = feed->alignment->source_b_of_a[i];
        if (j == LB_NONE) continue;
        const uint32_t va = lb_op_results(pa, &pa->ops[i])[0], vb = lb_op_results(pb, &pb->ops[j])[0];
        const bool alike = lb_layout_same_shape(&pa->values[va].layout, &pb->values[vb].layout);
        const uint32_t shown_a = alike ? va : feed->alignment->shown[0][i],
                       shown_b = alike ? vb : feed->alignment->shown[1][j];
        const bool windows = shown_a != va || shown_b != vb; /* a range may hold a part of another window, too */
        if (!windows && lb_digest_equal(pa->values[va].logical, pb->values[vb].logical)) continue;
        const bool floats = lb_dtype_is_float(pa->values[va].dtype) && lb_dtype_is_float(pb->values[vb].dtype);
        if (!floats && pa->values[va].dtype != pb->values[vb].dtype) continue;
        bool b_is_narrower =
            floats && lb_dtype_precision(pb->values[vb].dtype) < lb_dtype_precision(pa->values[va].dtype);
        if (b_is_narrower && !feed->parts) feed->taken[va] = shown_by(pa, va, shown_a, shown_b);
        if (!b_is_narrower && feed->parts) feed->taken[vb] = shown_by(pb, vb, shown_b, shown_a);
    }
}

/* What the parts of an outcome of a join take of the whole; kept until the feed is released. */
static lb_fed_value part_of_whole(lb_cross_feed *feed, const lb_reassembly *join, uint32_t outcome, uint32_t value)
{
    lb_fed_value fed = {.value = value, .dim = -1};
    int dim;
    uint32_t n;
    lb_reassembly_piece *pieces = lb_reassembly_outcome_pieces(&feed->alignment->joins, join, feed->other->program,
                                                               feed->side, outcome, &dim, &n),
                        **grown = pieces ? lb_array_grow(feed->pieces, feed->n_pieces, sizeof *grown) : NULL;
    if (grown) {
        feed->pieces = grown, grown[feed->n_pieces++] = pieces;
        fed.dim = dim, fed.pieces = pieces, fed.n_pieces = n;
    } else if (pieces || dim >= 0) { /* out of memory: nothing is taken */
        free(pieces);
        fed.value = LB_NONE;
    }
    return fed;
}

/* Ranks that hold copies of the same part. */
static void map_copies(lb_cross_feed *feed, uint32_t join, lb_fed_value fed)
{
    const lb_program *pb = feed->side->program;
    for (uint32_t i = 0; i < pb->n_ops; i++) {
        if (feed->alignment->join_of_b[i] != join || !lb_op_is_source(pb, &pb->ops[i])) continue;
        const uint32_t v = lb_op_results(pb, &pb->ops[i])[0];
        fed.place = feed->alignment->place_of_b[i];
        if (feed->taken[v].value == LB_NONE && lb_dtype_is_float(pb->values[v].dtype)) feed->taken[v] = fed;
    }
}

/* Sources of several programs that one of A stands for: each takes its slice, or the whole. */
static void map_joined_sources(lb_cross_feed *feed)
{
    const lb_program *pa = feed->other->program, *pb = feed->side->program;
    const lb_alignment *al = feed->alignment;
    for (uint32_t n = 0; feed->parts && n < al->joins.n; n++) {
        const lb_reassembly *join = &al->joins.list[n];
        const lb_op *whole = &pa->ops[join->whole];
        if (!lb_op_is_source(pa, whole)) continue;
        lb_fed_value fed = part_of_whole(feed, join, 0, lb_op_results(pa, whole)[0]);
        for (fed.place = 0; fed.place < join->parts; fed.place++) {
            uint32_t vb = lb_op_results(pb, &pb->ops[al->joins.part_ops[join->first + fed.place]])[0];
            if (lb_dtype_is_float(pb->values[vb].dtype)) feed->taken[vb] = fed;
        }
        map_copies(feed, n, fed);
    }
}

static uint32_t row_flags(const char *name)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(name, &form);
    return row ? row->flags : 0;
}

/* `fed`: what the result of B is of A's. Integers only of their own type; floats are converted. */
static void map_outcome(lb_cross_feed *feed, const lb_fed_value *fed, uint32_t vb)
{
    const lb_program *pa = feed->other->program, *pb = feed->side->program;
    if (fed->value == LB_NONE || vb == LB_NONE) return;
    const lb_value *a = &pa->values[fed->value], *b = &pb->values[vb];
    if (a->dtype != b->dtype && !(lb_dtype_is_float(a->dtype) && lb_dtype_is_float(b->dtype))) return;
    if (fed->dim < 0 && (lb_digest_equal(a->logical, b->logical) || !lb_layout_same_shape(&a->layout, &b->layout)))
        return;
    feed->taken[vb] = *fed;
}

/* By other numbers a part decides something else: which of the ids lie in its own part of a vocabulary. */
static bool is_decision(const lb_cross_feed *feed, const lb_op *a, const lb_op *b)
{
    const lb_program *pa = feed->other->program, *pb = feed->side->program;
    return a->results == b->results && !(a->flags & LB_OP_RANDOM) && lb_op_same_args(pa, a, pb, b, 0) &&
           lb_op_kind_is_discontinuous(pa, a);
}

/* Slices of a decision are decisions of their own where every element is decided by itself, or along another
 * dimension. */
static bool can_slice(const lb_program *program, const lb_op *op, int dim)
{
    if (row_flags(lb_op_name(program, op)) & LB_ROW_ELEMENTWISE) return true;
    uint32_t v = lb_op_results(program, op)[0];
    return strcmp(lb_op_name(program, op), "aten::topk") == 0 && v != LB_NONE &&
           dim < program->values[v].layout.ndim - 1;
}

/* ---- pairs in layers that the sides compute in different ops ---- */

typedef struct inputs {
    uint32_t list[8], n;
} inputs;

static void note_input(void *context, uint32_t value)
{
    inputs *in = context;
    if (in->n < sizeof in->list / sizeof *in->list) in->list[in->n] = value;
    in->n++;
}

bool lb_cross_feed_op_hands_on(const lb_program *program, const lb_op *op)
{
    static const char *const names[] = {"aten::_to_copy", "aten::clone", "aten::contiguous", "aten::detach"};
    return lb_op_name_among(program, op, names, 4) >= 0;
}

/* What gave the value in the first place: casts and copies hand on what they read, and one side may have some that the
 * other has not. */
static uint32_t origin_of(const lb_program *program, uint32_t value, uint32_t end)
{
    uint32_t op = lb_cross_feed_giver(program, value, end);
    while (op != LB_NONE && program->ops[op].args && lb_cross_feed_op_hands_on(program, &program->ops[op])) {
        const lb_arg *from = &lb_op_args(program, &program->ops[op])[0];
        if (from->tag != LB_ARG_VALUE || from->u.value == LB_NONE) break;
        op = lb_cross_feed_giver(program, from->u.value, op);
    }
    return op;
}

/* Partners by their names alone are partners by what they read, too, when partners gave it. */
static bool read_alike(const lb_alignment *al, const lb_program *pa, uint32_t ia, const lb_program *pb, uint32_t ib)
{
    inputs x = {.n = 0}, y = {.n = 0};
    lb_op_each_input(pa, &pa->ops[ia], note_input, &x), lb_op_each_input(pb, &pb->ops[ib], note_input, &y);
    if (x.n != y.n || !x.n || x.n > sizeof x.list / sizeof *x.list) return false;
    for (uint32_t k = 0; k < x.n; k++) {
        if (x.list[k] == LB_NONE || y.list[k] == LB_NONE) {
            if (x.list[k] != y.list[k]) return false;
            continue;
        }
        const uint32_t a = origin_of(pa, x.list[k], ia), b = origin_of(pb, y.list[k], ib);
        if (a == LB_NONE || b == LB_NONE || (al->b_of_a[a] != b && al->source_b_of_a[a] != b)) return false;
    }
    return true;
}

/* A decision that rounding changed (a near tie of the router) would part the shadows for good, and so do other draws,
 * other ranks, and results that stand in for an op. Where the names and shapes of a layer only nearly fit, a pair may
 * be none: nothing is taken then, but for draws, which have no inputs that could tell. */
bool lb_cross_feed_rebases(const lb_alignment *al, const lb_program_view *side_a, uint32_t ia,
                           const lb_program_view *side_b, uint32_t ib)
{
    const lb_program *pa = side_a->program, *pb = side_b->program;
    const lb_op *a = &pa->ops[ia], *b = &pb->ops[ib];
    const char *name = lb_op_name(pa, a);
    if (a->results != b->results || a->written != b->written || strcmp(name, lb_op_name(pb, b))) return false;
    if (a->flags & LB_OP_RANDOM || row_flags(name) & LB_ROW_RANDOM) return true;
    if (a->flags & LB_OP_COLLECTIVE) return true; /* asked only where the members are not here */
    if (!lb_op_same_args(pa, a, pb, b, 0)) return false;
    if (!lb_op_kind_is_discontinuous(pa, a) && !(a->flags & LB_OP_DECISION) && lb_replay_knows(name)) return false;
    return !al->irregular[ia] || read_alike(al, pa, ia, pb, ib);
}

/* Of an opaque op A keeps its own recorded result, and B takes that. An op that a row knows may be refused for its
 * arguments, so that all pairs are offered that differ in nothing but their inputs; an op that computes does not
 * ask. */
static bool may_stand_in(const lb_cross_feed *feed, uint32_t ia, uint32_t ib)
{
    const lb_program_view *a = feed->parts ? feed->other : feed->side, *b = feed->parts ? feed->side : feed->other;
    const lb_op *x = &a->program->ops[ia], *y = &b->program->ops[ib];
    if (lb_cross_feed_rebases(feed->alignment, a, ia, b, ib)) return true;
    return !feed->alignment->irregular[ia] && x->results == y->results && x->written == y->written &&
           lb_op_same_args(a->program, x, b->program, y, 0);
}

static void map_pairs(lb_cross_feed *feed)
{
    const lb_program *pa = (feed->parts ? feed->other : feed->side)->program,
                     *pb = (feed->parts ? feed->side : feed->other)->program;
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        const uint32_t j = feed->alignment->b_of_a[i];
        if (j == LB_NONE || !may_stand_in(feed, i, j)) continue;
        const lb_op *a = &pa->ops[i], *b = &pb->ops[j];
        for (uint32_t k = 0; k < a->results + a->written; k++) {
            const uint32_t va = lb_op_outcome(pa, a, k);
            if (feed->parts)
                map_outcome(feed, &(lb_fed_value){.value = va, .dim = -1}, lb_op_outcome(pb, b, k));
            else if (va != LB_NONE && feed->taken[va].value == LB_NONE)
                feed->taken[va].own = true;
            if (feed->parts && lb_op_outcome(pb, b, k) != LB_NONE &&
                feed->taken[lb_op_outcome(pb, b, k)].value == LB_NONE)
                feed->taken[lb_op_outcome(pb, b, k)].own = true; /* the same bits */
        }
    }
}

static const lb_reassembly_piece *first_piece(const lb_fed_value *fed, uint32_t part)
{
    for (uint32_t i = 0; i < fed->n_pieces; i++)
        if (fed->pieces[i].part == part) return &fed->pieces[i];
    return NULL;
}

/* Ranks of a grid that stand for the same elements hold the same: each of them decided what the whole decides. */
static bool decide_alike(const lb_cross_feed *feed, const lb_reassembly *join, uint32_t outcome,
                         const lb_fed_value *fed)
{
    const lb_program *pb = feed->side->program;
    const uint32_t *ops = feed->alignment->joins.part_ops + join->first;
    for (uint32_t k = 1; fed->dim == LB_REASSEMBLY_GRID && k < join->parts; k++)
        for (uint32_t i = 0; i < k; i++) {
            const lb_reassembly_piece *x = first_piece(fed, i), *y = first_piece(fed, k);
            const uint32_t u = lb_op_results(pb, &pb->ops[ops[i]])[outcome],
                           v = lb_op_results(pb, &pb->ops[ops[k]])[outcome];
            if (!x || !y || u == LB_NONE || v == LB_NONE) return false;
            if (x->to == y->to && !lb_digest_equal(pb->values[u].logical, pb->values[v].logical)) return false;
        }
    return true;
}

static void map_joins(lb_cross_feed *feed)
{
    const lb_program *pa = feed->other->program, *pb = feed->side->program;
    const lb_alignment *al = feed->alignment;
    for (uint32_t n = 0; feed->parts && n < al->joins.n; n++) {
        const lb_reassembly *join = &al->joins.list[n];
        const lb_op *whole = &pa->ops[join->whole];
        for (uint32_t part = 0; part < join->parts; part++) {
            const lb_op *b = &pb->ops[al->joins.part_ops[join->first + part]];
            if (!is_decision(feed, whole, b)) break;
            for (uint32_t k = 0; k < whole->results; k++) {
                lb_fed_value fed = part_of_whole(feed, join, k, lb_op_results(pa, whole)[k]);
                fed.place = part;
                if (fed.dim >= 0 && can_slice(pa, whole, fed.dim) && decide_alike(feed, join, k, &fed))
                    map_outcome(feed, &fed, lb_op_results(pb, b)[k]);
            }
        }
    }
}

lb_status lb_cross_feed_init(const lb_program_view *side, const lb_program_view *other, const lb_alignment *alignment,
                             bool parts, lb_cross_feed *cross_feed, lb_err *err)
{
    const uint32_t n = side->program->n_values;
    *cross_feed = (lb_cross_feed){.side = side, .other = other, .alignment = alignment, .parts = parts};
    cross_feed->taken = malloc((n + 1) * sizeof *cross_feed->taken);
    if (!cross_feed->taken) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u values", n);
    for (uint32_t v = 0; v < n; v++) cross_feed->taken[v] = (lb_fed_value){.value = LB_NONE, .dim = -1};
    map_sources(cross_feed), map_joined_sources(cross_feed), map_pairs(cross_feed), map_joins(cross_feed),
        map_cuts(cross_feed);
    return LB_OK;
}

void lb_cross_feed_release(lb_cross_feed *cross_feed)
{
    free(cross_feed->taken), free(cross_feed->converted), free(cross_feed->padded), free(cross_feed->cut);
    for (uint32_t i = 0; i < cross_feed->n_pieces; i++) free(cross_feed->pieces[i]);
    free(cross_feed->pieces);
    *cross_feed = (lb_cross_feed){0};
}
