/* Both sides of an aligned step replayed: see shadow_pair.h. */
#include "shadow_pair.h"

#include "final_image.h"
#include "ops.h"
#include "shadow_numbers.h"
#include "verdict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RESULTS = 64 };

/* The shadows of one op of A: f64, row-major, all results after each other. */
typedef struct kept {
    double *numbers;
    uint32_t n_results;
    int64_t elements[MAX_RESULTS]; /* -1: no shadow of that result */
    double error[MAX_RESULTS];     /* max |A - sA| / uA */
} kept;

/* The parts of a join so far: `numbers` puts them together, or adds them up; parts that come before their turn are kept by
 * place, so that a sum has one order. */
typedef struct assembly {
    double *numbers;
    uint32_t seen;
    double error[MAX_RESULTS];
    uint8_t each[MAX_RESULTS]; /* every part so far is the whole */
    bool broken;
} assembly;

/* The shadow of one final of A. */
typedef struct kept_final {
    double *numbers;
    int64_t elements;
    double error;
} kept_final;

/* What a value takes in place of its own: another value of the other side, or a slice of it. */
typedef struct taken {
    uint32_t value; /* LB_NONE: nothing */
    int32_t dim;    /* -1: the whole value */
    int64_t at;     /* first index of the slice */
} taken;

typedef struct runner {
    const lb_side *side, *other;
    const lb_alignment *alignment;
    const uint8_t *wanted;
    lb_shadow_pair *out;
    int which;            /* 0: A, 1: B */
    kept *kept;           /* per op of A */
    assembly *assemblies; /* per join */
    kept_final *finals;   /* per final */
    kept_final *images;   /* per final, of this side */
    uint64_t room;        /* bytes still allowed */
    taken *taken;         /* per value of this side */
    double *converted;    /* what was taken last, as bytes of the right dtype */
    size_t converted_room;
} runner;

/* ---- observers ---- */

/* The op of A that an event of either side speaks of; LB_NONE: of none. */
static uint32_t row_of(const runner *r, const lb_event *event, uint32_t *op)
{
    *op = lb_side_op(r->side, event->program, event->op);
    if (*op == LB_NONE || r->which == 0) return *op;
    uint32_t join = r->alignment->join_of_b[*op];
    return join != LB_NONE ? r->alignment->joins.list[join].whole : r->alignment->a_of_b[*op];
}

static bool note_own(void *context, const lb_event *event)
{
    runner *r = context;
    uint32_t op, row = row_of(r, event, &op);
    if (row == LB_NONE) return true;
    lb_shadow_row *s = &r->out->rows[row];
    bool part = r->which == 1 && r->alignment->join_of_b[op] != LB_NONE && r->alignment->place_of_b[op] > 0;
    bool worse = !part || lb_verdict_severity(event->verdict) > lb_verdict_severity(s->own[r->which]);
    if (worse) s->own[r->which] = event->verdict;
    if (!part || !(event->bound_ratio <= s->bound_ratio[r->which]))
        s->bound_ratio[r->which] = event->bound_ratio;
    return true;
}

static void keep_shadow(runner *s, uint32_t row, const lb_event *event)
{
    kept *k = &s->kept[row];
    int64_t total = 0, n;
    uint32_t count = event->n_results < MAX_RESULTS ? event->n_results : MAX_RESULTS;
    for (uint32_t i = 0; i < count; i++) {
        n = event->shadow[i].data ? lb_layout_numel(&event->shadow[i].layout) : -1;
        k->elements[i] = n;
        total += n > 0 ? n : 0;
    }
    uint64_t bytes = (uint64_t)total * sizeof(double);
    if (k->numbers) return;
    if (bytes > s->room || !(k->numbers = malloc(bytes ? bytes : 1))) {
        s->out->over_memory = true;
        return;
    }
    s->room -= bytes;
    k->n_results = count;
    int64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        n = k->elements[i];
        if (n < 0) continue;
        lb_shadow_numbers(&event->shadow[i], k->numbers + at);
        k->error[i] = 0;
        double *x = event->computed[i].data && n ? malloc((size_t)n * sizeof *x) : NULL;
        if (x) {
            lb_shadow_numbers(&event->computed[i], x);
            k->error[i] = lb_shadow_amplification(x, k->numbers + at, n, event->computed[i].dtype);
        }
        free(x);
        at += n;
    }
}

static void drop_shadow(runner *s, kept *k)
{
    for (uint32_t i = 0; i < k->n_results; i++)
        s->room += k->elements[i] > 0 ? (uint64_t)k->elements[i] * sizeof(double) : 0;
    free(k->numbers);
    k->numbers = NULL;
}

/* The shadow of a result as a dense row, and how it amplifies errors; malloc'ed. */
static double *shadow_of(const lb_event *event, uint32_t i, int64_t n, double *error)
{
    double *x = malloc((size_t)(n > 0 ? n : 1) * 2 * sizeof *x);
    if (!x) return NULL;
    lb_shadow_numbers(&event->shadow[i], x);
    *error = 0;
    if (event->computed[i].data) {
        lb_shadow_numbers(&event->computed[i], x + n);
        *error = lb_shadow_amplification(x + n, x, n, event->computed[i].dtype);
    }
    return x;
}

/* B's op has run: its shadows against the kept ones. Integers and decisions took their recorded results, so comparing the
 * shadows compares the recordings. */
static void meet_shadow(runner *s, uint32_t row, const lb_event *event)
{
    kept *k = &s->kept[row];
    if (!k->numbers) return;
    lb_agreement agreement = k->n_results == event->n_results ? LB_SHADOW_AGREES : LB_SHADOW_UNKNOWN;
    int64_t at = 0;
    bool any = false;
    for (uint32_t i = 0; i < k->n_results && agreement == LB_SHADOW_AGREES;
         at += k->elements[i] > 0 ? k->elements[i] : 0, i++) {
        int64_t n = k->elements[i];
        if (n < 0) continue;
        if (!event->shadow[i].data || lb_layout_numel(&event->shadow[i].layout) != n) {
            agreement = LB_SHADOW_UNKNOWN;
            break;
        }
        double error, *b = shadow_of(event, i, n, &error);
        if (!b) break;
        if (!lb_shadow_numbers_agree(k->numbers + at, b, n, fmax(error, k->error[i])))
            agreement = LB_SHADOW_DISAGREES;
        any = true;
        free(b);
    }
    if (any) s->out->rows[row].agreement = agreement;
    drop_shadow(s, k);
}

/* ---- joins ---- */

static int dim_of(const runner *s, const lb_join *join, uint32_t outcome, int64_t *at, uint32_t place)
{
    const lb_program *pa = s->other->program, *pb = s->side->program;
    const lb_op *whole = &pa->ops[join->whole];
    uint32_t v = outcome < whole->results ? lb_op_results(pa, whole)[outcome]
                                          : lb_op_written(pa, whole)[outcome - whole->results];
    uint32_t *values = malloc((join->parts + 1) * sizeof *values);
    int dim = LB_JOIN_NONE;
    if (values && v != LB_NONE && lb_join_values(&s->alignment->joins, join, pb, outcome, values))
        dim = lb_join_dim(pa, v, pb, values, join->parts);
    *at = 0;
    for (uint32_t k = 0; k < place && dim >= 0; k++) *at += pb->values[values[k]].layout.shape[dim];
    free(values);
    return dim;
}

static void add_part(runner *s, const lb_join *join, assembly *y, const kept *k, const lb_event *event,
                     uint32_t i, int64_t start, uint32_t place)
{
    const lb_program *pa = s->other->program;
    int64_t at, n = event->shadow[i].data ? lb_layout_numel(&event->shadow[i].layout) : -1;
    int dim = n < 0 ? LB_JOIN_NONE : dim_of(s, join, i, &at, place);
    double error, *x = dim == LB_JOIN_NONE ? NULL : shadow_of(event, i, n, &error);
    y->broken |= !x;
    if (!x) return;
    y->error[i] = fmax(y->error[i], error);
    const lb_op *whole = &pa->ops[join->whole];
    uint32_t v =
        i < whole->results ? lb_op_results(pa, whole)[i] : lb_op_written(pa, whole)[i - whole->results];
    if (dim >= 0) {
        lb_join_place(&pa->values[v].layout, dim, at, &event->shadow[i].layout, sizeof *x, x,
                      y->numbers + start);
    } else {
        y->each[i] &= lb_shadow_numbers_agree(k->numbers + start, x, n, fmax(error, k->error[i]));
        for (int64_t e = 0; e < n; e++) y->numbers[start + e] += x[e];
    }
    free(x);
}

/* Parts of the whole's own shape: the same in all, their sum, or their mean; which one is not known, and if it is none of
 * them nothing is. */
static lb_agreement judge_same(const kept *k, const assembly *y, uint32_t i, int64_t start, uint32_t parts)
{
    int64_t n = k->elements[i];
    double error = fmax(y->error[i] * parts, k->error[i]), *sum = y->numbers + start;
    if (y->each[i] || lb_shadow_numbers_agree(k->numbers + start, sum, n, error)) return LB_SHADOW_AGREES;
    for (int64_t e = 0; e < n; e++) sum[e] /= parts;
    return lb_shadow_numbers_agree(k->numbers + start, sum, n, error) ? LB_SHADOW_AGREES : LB_SHADOW_UNKNOWN;
}

/* Parts put together. In backward those of a batch that ranks share out may be that many times as large: each takes the mean of its own
 * losses, and their gradients are averaged later. */
static lb_agreement judge_pieces(const runner *s, const lb_join *join, const kept *k, const assembly *y,
                                 uint32_t i, int64_t start)
{
    const double error = fmax(y->error[i], k->error[i]);
    double *all = y->numbers + start;
    bool agree = lb_shadow_numbers_agree(k->numbers + start, all, k->elements[i], error);
    if (!agree && s->other->program->ops[join->whole].phase == LB_PHASE_BACKWARD &&
        s->side->n_parts > s->other->n_parts) {
        for (int64_t e = 0; e < k->elements[i]; e++) all[e] /= join->parts;
        agree = lb_shadow_numbers_agree(k->numbers + start, all, k->elements[i], error);
    }
    return agree ? LB_SHADOW_AGREES : LB_SHADOW_DISAGREES;
}

static lb_agreement judge_join(runner *s, const lb_join *join, const kept *k, const assembly *y)
{
    lb_agreement agreement = LB_SHADOW_UNKNOWN;
    int64_t start = 0, at;
    for (uint32_t i = 0; i<k->n_results; start += k->elements[i]> 0 ? k->elements[i] : 0, i++) {
        if (k->elements[i] < 0) continue;
        int dim = dim_of(s, join, i, &at, 0);
        lb_agreement one = LB_SHADOW_UNKNOWN;
        if (dim == LB_JOIN_SAME) one = judge_same(k, y, i, start, join->parts);
        if (dim >= 0) one = judge_pieces(s, join, k, y, i, start);
        if (one == LB_SHADOW_DISAGREES) return one;
        if (one == LB_SHADOW_UNKNOWN) return one;
        agreement = one;
    }
    return agreement;
}

static void join_shadow(runner *s, uint32_t row, uint32_t op, const lb_event *event)
{
    uint32_t number = s->alignment->join_of_b[op], place = s->alignment->place_of_b[op];
    const lb_join *join = &s->alignment->joins.list[number];
    kept *k = &s->kept[row];
    assembly *y = &s->assemblies[number];
    if (!k->numbers || y->broken) return;
    int64_t total = 0, start = 0;
    for (uint32_t i = 0; i < k->n_results; i++) total += k->elements[i] > 0 ? k->elements[i] : 0;
    if (!y->numbers) {
        y->numbers = calloc((size_t)total + 1, sizeof *y->numbers);
        memset(y->each, 1, sizeof y->each);
    }
    y->broken |= !y->numbers || k->n_results != event->n_results;
    for (uint32_t i = 0; i < k->n_results && !y->broken; start += k->elements[i] > 0 ? k->elements[i] : 0, i++)
        if (k->elements[i] >= 0) add_part(s, join, y, k, event, i, start, place);
    if (++y->seen < join->parts && !y->broken) return;
    if (!y->broken) s->out->rows[row].agreement = judge_join(s, join, k, y);
    free(y->numbers);
    y->numbers = NULL, y->broken = true;
    drop_shadow(s, k);
}

/* ---- finals ---- */

/* The last write of a parameter: A's shadow is kept, each part of B is held against its slice. */
static void keep_final(runner *s, uint32_t f, const lb_event *event, uint32_t i)
{
    int64_t n = lb_layout_numel(&event->shadow[i].layout);
    double error, *x = shadow_of(event, i, n, &error);
    if (x) s->finals[f] = (kept_final){x, n, error};
}

/* Elements of `whole` that a part stands for, row-major; NULL: its shapes do not fit. malloc'ed. */
static double *slice_of(const kept_final *whole, const lb_layout *shape, int dim, int64_t at,
                        const lb_layout *part)
{
    int64_t n = lb_layout_numel(part), outer = 1, inner = 1, done = 0;
    double *slice = malloc((size_t)(n > 0 ? n : 1) * sizeof *slice);
    if (dim < 0 && n != whole->elements) {
        free(slice);
        return NULL;
    }
    for (int d = 0; d < dim; d++) outer *= shape->shape[d];
    for (int d = dim + 1; dim >= 0 && d < shape->ndim; d++) inner *= shape->shape[d];
    int64_t run = dim < 0 ? n : part->shape[dim] * inner, stride = dim < 0 ? n : shape->shape[dim] * inner;
    for (int64_t o = 0; slice && o < outer; o++, done += run)
        memcpy(slice + done, whole->numbers + o * stride + at * inner, (size_t)run * sizeof *slice);
    return slice;
}

static void meet_final(runner *s, uint32_t f, uint32_t k, const lb_event *event, uint32_t i)
{
    lb_shadow_final *final = &s->out->finals[f];
    const kept_final *whole = &s->finals[f];
    const lb_program *pb = s->side->program;
    const lb_layout *shape = &s->other->program->values[final->whole.value].layout;
    int64_t at = 0, n = lb_layout_numel(&event->shadow[i].layout);
    for (uint32_t before = 0; before < k && final->dim >= 0; before++)
        at += pb->values[s->out->final_parts[final->first + before].value].layout.shape[final->dim];
    if (!whole->numbers) return;
    double error, *slice = slice_of(whole, shape, final->dim, at, &event->shadow[i].layout);
    double *x = slice ? shadow_of(event, i, n, &error) : NULL;
    if (x) {
        final->seen++;
        bool agrees = lb_shadow_numbers_agree(slice, x, n, fmax(error, whole->error));
        if (!agrees)
            final->agreement = LB_SHADOW_DISAGREES;
        else if (final->agreement == LB_SHADOW_UNKNOWN && final->seen == final->parts)
            final->agreement = LB_SHADOW_AGREES;
    }
    free(slice), free(x);
}

/* Made of what the source held when nothing was painted yet; NULL when that is not known. */
static kept_final *image_of(runner *s, uint32_t f)
{
    const lb_program *p = s->side->program;
    const uint32_t source = lb_op_results(p, &p->ops[s->out->finals[f].sources[s->which]])[0];
    kept_final *image = &s->images[f];
    lb_tensor t;
    if (image->numbers) return image;
    if (lb_side_value(s->side, source, &t, NULL) != LB_OK) return NULL;
    image->elements = lb_layout_numel(&t.layout);
    image->numbers = malloc((size_t)image->elements * sizeof *image->numbers + 1);
    if (image->numbers) lb_shadow_numbers(&t, image->numbers);
    return image->numbers ? image : NULL;
}

static void paint_final(runner *s, uint32_t f, const lb_event *event)
{
    const lb_program *p = s->side->program;
    const lb_value *source = &p->values[lb_op_results(p, &p->ops[s->out->finals[f].sources[s->which]])[0]];
    for (uint32_t i = 0; i < event->n_results; i++) {
        const uint32_t value = lb_side_value_of(s->side, event->program, event->values[i]);
        const lb_value *v = value == LB_NONE ? source : &p->values[value];
        if (v == source || v->storage != source->storage || v->dtype != source->dtype || !event->shadow[i].data)
            continue;
        kept_final *image = image_of(s, f);
        double error = 0, *x = image ? shadow_of(event, i, lb_layout_numel(&v->layout), &error) : NULL;
        if (x) {
            lb_image_paint(image->numbers, &source->layout, &v->layout, sizeof *x, x);
            image->error = fmax(image->error, error);
        }
        free(x);
    }
}

static void judge_images(runner sides[2], lb_shadow_pair *out)
{
    for (uint32_t f = 0; f < out->n_finals; f++) {
        if (!out->finals[f].pieces) continue;
        const kept_final *a = image_of(&sides[0], f), *b = image_of(&sides[1], f);
        if (!a || !b || a->elements != b->elements) continue;
        const double error = fmax(a->error, b->error);
        out->finals[f].agreement = lb_shadow_numbers_agree(a->numbers, b->numbers, a->elements, error)
                                       ? LB_SHADOW_AGREES
                                       : LB_SHADOW_DISAGREES;
    }
}

static void note_finals(runner *s, uint32_t op, const lb_event *event)
{
    for (uint32_t f = 0; f < s->out->n_finals; f++) {
        const lb_shadow_final *final = &s->out->finals[f];
        if (final->pieces) {
            paint_final(s, f, event);
            continue;
        }
        const lb_shadow_part *list = s->which == 0 ? &final->whole : &s->out->final_parts[final->first];
        for (uint32_t k = 0, i; k < (s->which == 0 ? 1 : final->parts); k++) {
            if (list[k].op != op) continue;
            for (i = 0; i < event->n_results; i++)
                if (lb_side_value_of(s->side, event->program, event->values[i]) == list[k].value) break;
            if (i == event->n_results || !event->shadow[i].data) continue;
            if (s->which == 0)
                keep_final(s, f, event, i);
            else
                meet_final(s, f, k, event, i);
        }
    }
}

static bool note_shadow(void *context, const lb_event *event)
{
    runner *s = context;
    uint32_t op, row = row_of(s, event, &op);
    if (op == LB_NONE || !event->shadow) return true;
    note_finals(s, op, event);
    if (row == LB_NONE || !s->wanted[row]) return true;
    if (s->which == 0)
        keep_shadow(s, row, event);
    else if (s->alignment->join_of_b[op] != LB_NONE)
        join_shadow(s, row, op, event);
    else
        meet_shadow(s, row, event);
    return true;
}

/* ---- taking the other side's numbers ---- */

static uint32_t value_at(const runner *s, int32_t rank, int64_t step, uint32_t value)
{
    for (uint32_t p = 0; p < s->side->n_parts; p++)
        if (s->side->parts[p].program->rank == rank && s->side->parts[p].program->step == step)
            return s->side->parts[p].first_value + value;
    return LB_NONE;
}

/* Both shadows must start from the same numbers: the narrower side's sources serve both, widening is exact. */
static bool take_other(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    runner *s = context;
    uint32_t v = value_at(s, rank, step, value);
    const taken *take = v == LB_NONE ? NULL : &s->taken[v];
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
static void map_sources(runner *s)
{
    const lb_program *pa = (s->which ? s->other : s->side)->program,
                     *pb = (s->which ? s->side : s->other)->program;
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        uint32_t j = s->alignment->source_b_of_a[i];
        if (j == LB_NONE) continue;
        uint32_t va = lb_op_results(pa, &pa->ops[i])[0], vb = lb_op_results(pb, &pb->ops[j])[0];
        if (lb_digest_equal(pa->values[va].logical, pb->values[vb].logical)) continue;
        if (!lb_dtype_is_float(pa->values[va].dtype) || !lb_dtype_is_float(pb->values[vb].dtype)) continue;
        bool b_is_narrower =
            lb_dtype_precision(pb->values[vb].dtype) < lb_dtype_precision(pa->values[va].dtype);
        if (b_is_narrower && s->which == 0) s->taken[va] = (taken){vb, -1, 0};
        if (!b_is_narrower && s->which == 1) s->taken[vb] = (taken){va, -1, 0};
    }
}

/* Sources of several programs that one of A stands for: each takes its slice, or the whole. */
static void map_joined_sources(runner *s)
{
    const lb_program *pa = s->other->program, *pb = s->side->program;
    const lb_alignment *al = s->alignment;
    for (uint32_t n = 0; s->which == 1 && n < al->joins.n; n++) {
        const lb_join *join = &al->joins.list[n];
        const lb_op *whole = &pa->ops[join->whole];
        if (strcmp(lb_op_name(pa, whole), "lb::source") != 0) continue;
        uint32_t va = lb_op_results(pa, whole)[0];
        for (uint32_t part = 0; part < join->parts; part++) {
            int64_t at;
            int dim = dim_of(s, join, 0, &at, part);
            uint32_t vb = lb_op_results(pb, &pb->ops[al->joins.part_ops[join->first + part]])[0];
            if (lb_dtype_is_float(pb->values[vb].dtype)) s->taken[vb] = (taken){va, dim < 0 ? -1 : dim, at};
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
static void map_decision(runner *s, const lb_op *a, const lb_op *b, uint32_t result, int dim, int64_t at)
{
    const lb_program *pa = s->other->program, *pb = s->side->program;
    uint32_t va = lb_op_results(pa, a)[result], vb = lb_op_results(pb, b)[result];
    if (va == LB_NONE || vb == LB_NONE || pa->values[va].dtype != pb->values[vb].dtype) return;
    if (dim < 0 && lb_digest_equal(pa->values[va].logical, pb->values[vb].logical)) return;
    s->taken[vb] = (taken){va, dim, at};
}

static bool is_decision(const runner *s, const lb_op *a, const lb_op *b, uint32_t parts)
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

static void map_decisions(runner *s)
{
    const lb_program *pa = s->other->program, *pb = s->side->program;
    const lb_alignment *al = s->alignment;
    for (uint32_t i = 0; s->which == 1 && i < pa->n_ops; i++) {
        uint32_t j = al->b_of_a[i];
        if (j == LB_NONE || al->irregular[i] || !is_decision(s, &pa->ops[i], &pb->ops[j], 0)) continue;
        for (uint32_t k = 0; k < pa->ops[i].results; k++) map_decision(s, &pa->ops[i], &pb->ops[j], k, -1, 0);
    }
    for (uint32_t n = 0; s->which == 1 && n < al->joins.n; n++) {
        const lb_join *join = &al->joins.list[n];
        const lb_op *whole = &pa->ops[join->whole];
        for (uint32_t part = 0; part < join->parts; part++) {
            const lb_op *b = &pb->ops[al->joins.part_ops[join->first + part]];
            if (!is_decision(s, whole, b, join->parts)) break;
            for (uint32_t k = 0; k < whole->results; k++) {
                int64_t at;
                int dim = dim_of(s, join, k, &at, part);
                if (dim >= 0 && can_slice(pa, whole, dim)) map_decision(s, whole, b, k, dim, at);
            }
        }
    }
}

/* ---- finals ---- */

/* The last op that writes `storage`, and the value of it that left; LB_NONE when none does. */
static uint32_t last_write(const lb_program *p, int64_t storage, uint32_t *value)
{
    for (uint32_t i = p->n_ops; i-- > 0;) {
        const lb_op *op = &p->ops[i];
        for (uint32_t k = 0; k < op->written; k++) {
            uint32_t v = lb_op_written(p, op)[k];
            if (v == LB_NONE || p->values[v].storage != storage) continue;
            *value = v;
            return i;
        }
    }
    return LB_NONE;
}

/* Value and last write of what was a source of `storage`; false when nothing wrote it. */
static bool find_last(const lb_program *p, uint32_t source, lb_shadow_part *last)
{
    last->op = last_write(p, p->values[lb_op_results(p, &p->ops[source])[0]].storage, &last->value);
    return last->op != LB_NONE;
}

static bool same_digest(const lb_program *pa, uint32_t a, const lb_program *pb, uint32_t b)
{
    lb_digest x = pa->values[a].logical, y = pb->values[b].logical;
    return lb_digest_is_none(x) || lb_digest_is_none(y) || lb_digest_equal(x, y);
}

static bool is_part(const lb_program *p, uint32_t source, const lb_shadow_part *last)
{
    const lb_value *whole = &p->values[lb_op_results(p, &p->ops[source])[0]];
    return !lb_layout_same_shape(&whole->layout, &p->values[last->value].layout);
}

/* Where one side writes only a part at last, or nothing of what the other writes; false when that is not so. */
static bool add_pieces(const lb_program *pa, const lb_program *pb, uint32_t i, uint32_t j, lb_shadow_pair *out)
{
    lb_shadow_part a, b;
    const uint32_t va = lb_op_results(pa, &pa->ops[i])[0], vb = lb_op_results(pb, &pb->ops[j])[0];
    const lb_value *x = &pa->values[va], *y = &pb->values[vb];
    const bool writes_a = find_last(pa, i, &a), writes_b = find_last(pb, j, &b);
    const bool held = x->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE);
    if (!(writes_a && is_part(pa, i, &a)) && !(writes_b && is_part(pb, j, &b)) &&
        !(held && writes_a != writes_b))
        return false;
    if (x->dtype != y->dtype || !lb_layout_is_contiguous(&x->layout) || !lb_layout_is_contiguous(&y->layout) ||
        !lb_layout_same_shape(&x->layout, &y->layout) || lb_dtype_bits(x->dtype) < 8)
        return false;
    if (!lb_image_may_differ(pa, i, pb, j)) return true;
    out->final_parts[out->n_final_parts] = writes_b ? b : (lb_shadow_part){j, vb};
    out->finals[out->n_finals++] = (lb_shadow_final){.whole = writes_a ? a : (lb_shadow_part){i, va},
                                                     .first = out->n_final_parts++,
                                                     .parts = 1,
                                                     .dim = LB_JOIN_SAME,
                                                     .pieces = true,
                                                     .sources = {i, j},
                                                     .agreement = LB_SHADOW_UNKNOWN};
    return true;
}

/* `sources`: those of B that A's source `i` stands for. */
static void add_final(const lb_program *pa, const lb_program *pb, uint32_t i, const uint32_t *sources,
                      uint32_t n, uint32_t *values, lb_shadow_pair *out)
{
    lb_shadow_final f = {.first = out->n_final_parts, .parts = n, .agreement = LB_SHADOW_UNKNOWN};
    lb_shadow_part *parts = out->final_parts + f.first;
    if (n == 1 && add_pieces(pa, pb, i, sources[0], out)) return;
    if (!find_last(pa, i, &f.whole)) return;
    bool same = true;
    for (uint32_t k = 0; k < n; k++) {
        if (!find_last(pb, sources[k], &parts[k])) return;
        values[k] = parts[k].value;
        same &= same_digest(pa, f.whole.value, pb, values[k]);
    }
    f.dim = lb_join_dim(pa, f.whole.value, pb, values, n);
    if (f.dim == LB_JOIN_NONE || (f.dim == LB_JOIN_SAME && same)) return;
    out->n_final_parts += n;
    out->finals[out->n_finals++] = f;
}

lb_status lb_shadow_pair_init(const lb_side *side_a, const lb_side *side_b, const lb_alignment *alignment,
                              lb_shadow_pair *out, lb_err *err)
{
    const lb_program *pa = side_a->program, *pb = side_b->program;
    memset(out, 0, sizeof *out);
    out->finals = calloc(pa->n_ops + 1, sizeof *out->finals);
    out->final_parts = calloc(pb->n_ops + 1, sizeof *out->final_parts);
    uint32_t *values = calloc(pb->n_ops + 1, sizeof *values);
    bool room = out->finals && out->final_parts && values;
    for (uint32_t i = 0; room && i < pa->n_ops; i++) {
        uint32_t j = alignment->source_b_of_a[i], join = alignment->join_of_a[i];
        bool source = strcmp(lb_op_name(pa, &pa->ops[i]), "lb::source") == 0 && pa->ops[i].results;
        if (!source || !*lb_program_text(pa, pa->values[lb_op_results(pa, &pa->ops[i])[0]].name)) continue;
        if (j != LB_NONE) add_final(pa, pb, i, &j, 1, values, out);
        if (join == LB_NONE) continue;
        const lb_join *parts = &alignment->joins.list[join];
        add_final(pa, pb, i, alignment->joins.part_ops + parts->first, parts->parts, values, out);
    }
    free(values);
    if (room) return LB_OK;
    lb_shadow_pair_release(out);
    return lb_fail(err, LB_ERR_NOMEM, "diff: out of memory for %u ops", pa->n_ops);
}

/* ---- runs ---- */

lb_status lb_side_replay(const lb_side *side, lb_plan plan, const lb_observer *observer,
                         lb_replay_summary *summary, lb_err *err)
{
    lb_replay *replay = NULL;
    int32_t *ranks = malloc(side->n_parts * sizeof *ranks);
    if (!ranks) return lb_fail(err, LB_ERR_NOMEM, "diff: out of memory");
    plan.first_step = INT64_MAX, plan.last_step = INT64_MIN, plan.ranks = ranks;
    for (uint32_t p = 0; p < side->n_parts; p++) {
        const lb_program *program = side->parts[p].program;
        if (program->step < plan.first_step) plan.first_step = program->step;
        if (program->step > plan.last_step) plan.last_step = program->step;
        ranks[plan.n_ranks++] = program->rank;
    }
    lb_status status = lb_replay_open(side->capture, &replay, err);
    if (status == LB_OK) status = lb_replay_run(replay, &plan, observer, summary, err);
    lb_replay_close(replay);
    free(ranks);
    return status;
}

static lb_status run_side(runner *s, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    lb_observer own = {.context = s, .op = note_own};
    LB_TRY(lb_side_replay(s->side, plan, &own, &summary, err));
    uint32_t n = s->side->program->n_values;
    s->taken = malloc((n + 1) * sizeof *s->taken);
    if (!s->taken) return lb_fail(err, LB_ERR_NOMEM, "diff: out of memory for %u values", n);
    for (uint32_t v = 0; v < n; v++) s->taken[v] = (taken){LB_NONE, -1, 0};
    map_sources(s), map_joined_sources(s), map_decisions(s);
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.shadow = true, plan.force_decisions = true;
    lb_observer shadow = {.context = s, .op = note_shadow, .source = take_other, .decided = take_other};
    lb_status status = lb_side_replay(s->side, plan, &shadow, &summary, err);
    s->out->undecided[s->which] = summary.undecided;
    free(s->taken), free(s->converted);
    return status;
}

lb_status lb_shadow_pair_run(const lb_side *a, const lb_side *b, const lb_alignment *alignment,
                             const uint8_t *wanted, uint64_t memory_bytes, lb_shadow_pair *out, lb_err *err)
{
    uint32_t n = a->program->n_ops, n_joins = alignment->joins.n;
    out->n_rows = n;
    out->rows = calloc(n + 1, sizeof *out->rows);
    kept *shadows = calloc(n + 1, sizeof *shadows);
    assembly *assemblies = calloc(n_joins + 1, sizeof *assemblies);
    kept_final *finals =
        calloc(3 * (out->n_finals + 1), sizeof *finals); /* of A's whole, and both sides' images */
    lb_status status = LB_OK;
    if (!out->rows || !shadows || !finals || !assemblies)
        status = lb_fail(err, LB_ERR_NOMEM, "diff: out of memory for %u ops", n);
    for (uint32_t i = 0; status == LB_OK && i < n; i++)
        out->rows[i] = (lb_shadow_row){LB_SHADOW_UNKNOWN, {LB_VERDICT_MISSING, LB_VERDICT_MISSING}, {NAN, NAN}};
    runner sides[2] = {
        {.side = a, .other = b, .room = memory_bytes ? memory_bytes : UINT64_C(4) << 30},
        {.side = b, .other = a, .which = 1},
    };
    for (int i = 0; i < 2 && status == LB_OK; i++) {
        sides[i].alignment = alignment, sides[i].wanted = wanted, sides[i].out = out;
        sides[i].kept = shadows, sides[i].assemblies = assemblies, sides[i].finals = finals;
        sides[i].images = finals + (i + 1) * (out->n_finals + 1);
        status = run_side(&sides[i], err);
    }
    for (uint32_t i = 0; shadows && i < n; i++) free(shadows[i].numbers);
    if (status == LB_OK) judge_images(sides, out);
    for (uint32_t i = 0; finals && i < 3 * (out->n_finals + 1); i++) free(finals[i].numbers);
    for (uint32_t i = 0; assemblies && i < n_joins; i++) free(assemblies[i].numbers);
    free(shadows), free(finals), free(assemblies);
    if (status == LB_OK) return LB_OK;
    free(out->rows); /* which parameters differ is still known */
    out->rows = NULL, out->n_rows = 0;
    for (uint32_t i = 0; i < out->n_finals; i++) out->finals[i].agreement = LB_SHADOW_UNKNOWN;
    return status;
}

void lb_shadow_pair_release(lb_shadow_pair *pair)
{
    free(pair->rows), free(pair->finals), free(pair->final_parts);
    memset(pair, 0, sizeof *pair);
}
