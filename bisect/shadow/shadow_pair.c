/* Both sides of an aligned step replayed: see shadow_pair.h. */
#include "shadow_pair.h"

#include "complex_rows.h"
#include "exact_match.h"
#include "final_image.h"
#include "flip_reach.h"
#include "input_casts.h"
#include "ops.h"
#include "shadow_numbers.h"
#include "cross_feed.h"
#include "verdict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The shadows of one op of A: f64, row-major, all results after each other. */
typedef struct kept {
    double *numbers;
    uint32_t n_results;
    int64_t *elements; /* per result; -1: no shadow of it, or it is a result that is listed before */
    double *noise;     /* per result */
} kept;

/* The parts of a join so far: `numbers` puts them together, or adds them up; parts that come before their turn are kept by
 * place, so that a sum has one order. */
typedef struct assembly {
    double *numbers;
    uint8_t *each; /* per result: every part so far is the whole */
    uint32_t seen;
    bool broken;
} assembly;

/* The shadow of one final, or of one exit, of A. */
typedef struct kept_value {
    double *numbers;
    int64_t elements;
    double noise;
} kept_value;

enum { RUN_A, RUN_DISTURBED, RUN_B };

typedef struct runner {
    const lb_program_view *side, *other;
    const lb_alignment *alignment;
    const uint8_t *wanted;
    lb_shadow_pair *out;
    lb_exits *exits;
    int which;            /* 0: A, 1: B */
    int run;              /* RUN_… */
    kept *kept;           /* per op of A */
    assembly *assemblies; /* per join */
    kept_value *finals;   /* per final */
    kept_value *images;   /* per final, of this run */
    kept_value *results;  /* per exit */
    lb_exact_match *match;
    lb_flip_reach *reach;
    uint8_t *input_casts; /* per op: see input_casts.h */
    uint64_t room;        /* bytes still allowed */
    uint64_t serial;
    lb_cross_feed *taking;
} runner;

/* ---- complex numbers ---- */

/* The event with its complex results as numbers; `room` for two lists of tensors. */
static lb_event numbers_of(const lb_event *event, lb_tensor *room)
{
    lb_event e = *event;
    lb_tensor *computed = room, *shadow = room + event->n_results;
    for (uint32_t i = 0; i < event->n_results; i++) {
        const bool fits = lb_tensor_parts(&event->computed[i], &computed[i]);
        if (!lb_tensor_parts(&event->shadow[i], &shadow[i]) || !fits) computed[i].data = shadow[i].data = NULL;
    }
    e.computed = computed, e.shadow = shadow;
    return e;
}

static bool has_complex(const lb_event *event)
{
    for (uint32_t i = 0; i < event->n_results; i++)
        if (event->shadow[i].data && lb_dtype_is_complex(event->shadow[i].dtype)) return true;
    return false;
}

/* ---- observers ---- */

/* The op of A that an event of either side speaks of; LB_NONE: of none. */
static uint32_t row_of(const runner *r, const lb_event *event, uint32_t *op)
{
    *op = lb_program_view_op(r->side, event->program, event->op);
    if (*op == LB_NONE || r->which == 0) return *op;
    uint32_t join = r->alignment->join_of_b[*op];
    return join != LB_NONE ? r->alignment->joins.list[join].whole : r->alignment->a_of_b[*op];
}

static bool note_own(void *context, const lb_event *event)
{
    runner *r = context;
    uint32_t op, row = row_of(r, event, &op);
    if (row == LB_NONE && op != LB_NONE && r->which == 1) row = lb_flip_reach_reshaped(r->reach, op);
    if (row == LB_NONE) return true;
    lb_shadow_row *s = &r->out->rows[row];
    bool part = r->which == 1 && r->alignment->join_of_b[op] != LB_NONE && r->alignment->place_of_b[op] > 0;
    bool worse = !part || lb_verdict_severity(event->verdict) > lb_verdict_severity(s->own[r->which]);
    if (worse) s->own[r->which] = event->verdict;
    if (!part || !(event->bound_ratio <= s->bound_ratio[r->which])) s->bound_ratio[r->which] = event->bound_ratio;
    return true;
}

static int64_t elements_of(const lb_event *event, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++) /* what is written in place is listed as a result, too */
        if (event->values[k] == event->values[i]) return -1;
    return event->shadow[i].data ? lb_layout_numel(&event->shadow[i].layout) : -1;
}

static void drop_shadow(runner *s, kept *k)
{
    for (uint32_t i = 0; i < k->n_results && k->elements; i++)
        s->room += k->elements[i] > 0 ? (uint64_t)k->elements[i] * sizeof(double) : 0;
    free(k->numbers), free(k->elements), free(k->noise);
    *k = (kept){0};
}

static void keep_shadow(runner *s, uint32_t row, const lb_event *event)
{
    kept *k = &s->kept[row];
    int64_t total = 0, at = 0;
    if (k->elements) return;
    k->n_results = event->n_results;
    k->elements = malloc((event->n_results + 1) * sizeof *k->elements);
    k->noise = calloc(event->n_results + 1, sizeof *k->noise);
    for (uint32_t i = 0; k->elements && i < k->n_results; i++) {
        k->elements[i] = elements_of(event, i);
        total += k->elements[i] > 0 ? k->elements[i] : 0;
    }
    const uint64_t bytes = (uint64_t)total * sizeof(double);
    if (k->elements && k->noise && bytes <= s->room) k->numbers = malloc(bytes ? bytes : 1);
    if (!k->numbers) {
        s->out->over_memory = true;
        free(k->elements), free(k->noise);
        *k = (kept){0};
        return;
    }
    s->room -= bytes;
    for (uint32_t i = 0; i < k->n_results; at += k->elements[i] > 0 ? k->elements[i] : 0, i++)
        if (k->elements[i] >= 0) lb_shadow_numbers(&event->shadow[i], k->numbers + at);
}

/* The shadow of a result as a dense row; malloc'ed. */
static double *numbers_in(const lb_tensor *shadow, int64_t n)
{
    double *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x);
    if (x) lb_shadow_numbers(shadow, x);
    return x;
}

static void measure_noise(runner *s, uint32_t row, const lb_event *event)
{
    kept *k = &s->kept[row];
    int64_t at = 0;
    if (!k->numbers || k->n_results != event->n_results) return;
    for (uint32_t i = 0; i < k->n_results; at += k->elements[i] > 0 ? k->elements[i] : 0, i++) {
        if (k->elements[i] < 0 || elements_of(event, i) != k->elements[i]) continue;
        double *x = numbers_in(&event->shadow[i], k->elements[i]);
        if (x) k->noise[i] = lb_shadow_noise(k->numbers + at, x, k->elements[i]);
        free(x);
    }
}

/* A result of B that a choice made otherwise explains takes A's numbers where it does, and both shadows go on from there. */
static int64_t settle_flips(runner *s, uint32_t op, const lb_tensor *shadow, const double *a, double *b, double noise)
{
    const uint8_t phase = s->side->program->ops[op].phase;
    if (phase != LB_PHASE_FORWARD && phase != LB_PHASE_BACKWARD) return 0;
    const uint64_t which = lb_flip_reach_of(s->reach, op);
    const int64_t settled = which ? lb_flips_settle(&s->reach->flips, which, &shadow->layout, a, b, noise) : 0;
    if (settled) lb_shadow_put(shadow, b);
    return settled;
}

static bool keeps_to_recording(const runner *s, uint32_t row)
{
    const lb_shadow_row *out = &s->out->rows[row];
    return out->own[0] < LB_VERDICT_DIVERGED && out->own[1] < LB_VERDICT_DIVERGED;
}

/* Is a choice made otherwise all that the two ops differ by? */
static bool explain_by_flips(const runner *s, uint32_t row, uint32_t op, const lb_event *event)
{
    const uint8_t phase = event->program->ops[event->op].phase;
    if (phase != LB_PHASE_FORWARD && phase != LB_PHASE_BACKWARD) return false;
    return lb_flip_reach_of(s->reach, op) && keeps_to_recording(s, row) && lb_flip_reach_explains(s->reach, row, op);
}

/* Results of one shape become A's; returns the rows of all of them. */
static int64_t hand_over(const kept *k, const lb_event *event)
{
    int64_t at = 0, rows = 0;
    for (uint32_t i = 0; i < k->n_results && i < event->n_results; at += k->elements[i] > 0 ? k->elements[i] : 0, i++) {
        const lb_layout *l = &event->shadow[i].layout;
        if (k->elements[i] <= 0 || elements_of(event, i) != k->elements[i]) continue;
        lb_shadow_put(&event->shadow[i], k->numbers + at);
        rows += l->ndim ? k->elements[i] / l->shape[l->ndim - 1] : 1;
    }
    return rows;
}

/* B's op has run: its shadows against the kept ones. */
static void meet_shadow(runner *s, uint32_t row, uint32_t op, const lb_event *event)
{
    kept *k = &s->kept[row];
    lb_shadow_row *out = &s->out->rows[row];
    if (!k->numbers) return;
    lb_agreement agreement = k->n_results == event->n_results ? LB_SHADOW_AGREES : LB_SHADOW_UNKNOWN;
    int64_t at = 0;
    bool any = false, told = true;
    out->other_counts = k->n_results != event->n_results;
    bool real = false; /* masks and counts were taken over with the choice: that they agree says nothing */
    const int64_t before = out->flipped;
    for (uint32_t i = 0; i < k->n_results && agreement == LB_SHADOW_AGREES;
         at += k->elements[i] > 0 ? k->elements[i] : 0, i++) {
        const int64_t n = k->elements[i];
        if (n < 0) continue;
        double *b = elements_of(event, i) == n ? numbers_in(&event->shadow[i], n) : NULL;
        if (!b) {
            out->other_counts = elements_of(event, i) >= 0;
            agreement = LB_SHADOW_UNKNOWN;
            break;
        }
        if (!lb_shadow_numbers_agree(k->numbers + at, b, n, k->noise[i])) {
            const int64_t settled = settle_flips(s, op, &event->shadow[i], k->numbers + at, b, k->noise[i]);
            out->flipped += settled;
            if (!settled) agreement = LB_SHADOW_DISAGREES, out->outcome = i;
        }
        told &= lb_shadow_numbers_tell(k->numbers + at, n, k->noise[i]);
        any = true;
        for (int64_t e = 0; e < n && !real; e++) real = b[e] != nearbyint(b[e]);
        free(b);
    }
    if (any) out->agreement = agreement, out->told = told && agreement == LB_SHADOW_AGREES;
    /* What was settled here may be a sum that is not complete yet: the choice is over where the sides agree by themselves. */
    if (any && real && agreement == LB_SHADOW_AGREES && out->flipped == before) lb_flip_reach_end(s->reach, op);
    if (any && agreement != LB_SHADOW_AGREES && explain_by_flips(s, row, op, event)) {
        out->agreement = LB_SHADOW_AGREES;
        out->flipped += hand_over(k, event);
    }
    if (any && out->agreement == LB_SHADOW_AGREES)
        lb_flip_reach_meet(s->reach, row, op, out->flipped == before ? LB_MET_SAME : LB_MET_BUT_ROWS);
    drop_shadow(s, k);
}

/* ---- ops in other shapes ---- */

/* The rows of the i-th results are the same, but for what choices moved. */
static bool has_same_rows(const runner *s, uint64_t which, uint32_t row, uint32_t i, const double *a, double noise,
                          const lb_event *event)
{
    const lb_program *pa = s->other->program;
    const uint32_t va = lb_op_outcome(pa, &pa->ops[row], i);
    const lb_layout *x = va == LB_NONE ? NULL : &pa->values[va].layout, *y = &event->shadow[i].layout;
    if (!x || x->ndim != y->ndim || !x->ndim || lb_dtype_is_complex(pa->values[va].dtype)) return false;
    const int64_t width = x->ndim == 1 ? 1 : x->shape[x->ndim - 1], na = lb_layout_numel(x), nb = lb_layout_numel(y);
    if (width < 1 || (x->ndim > 1 && y->shape[y->ndim - 1] != width)) return false;
    double *b = numbers_in(&event->shadow[i], nb);
    const bool same = b && lb_flip_reach_same_rows(s->reach, which, a, na / width, b, nb / width, width, noise);
    free(b);
    return same;
}

static bool has_only_same_rows(const runner *s, uint64_t which, uint32_t row, const kept *k, const lb_event *event)
{
    int64_t at = 0;
    bool any = false;
    if (k->n_results != event->n_results) return false;
    for (uint32_t i = 0; i < k->n_results; at += k->elements[i] > 0 ? k->elements[i] : 0, i++) {
        const int64_t n = elements_of(event, i);
        if ((n < 0) != (k->elements[i] < 0)) return false;
        if (n < 0) continue;
        if (!has_same_rows(s, which, row, i, k->numbers + at, k->noise[i], event)) return false;
        any = true;
    }
    return any;
}

/* B's op of which A has the like in other shapes. What has met that way stands among the ops that are one quantity. */
static void meet_reshaped(runner *s, uint32_t op, const lb_event *event)
{
    const uint32_t row = lb_flip_reach_reshaped(s->reach, op);
    kept *k = row == LB_NONE ? NULL : &s->kept[row];
    if (!k || !k->numbers) return;
    const uint64_t which = lb_flip_reach_of(s->reach, op);
    if (which && keeps_to_recording(s, row) && has_only_same_rows(s, which, row, k, event)) {
        lb_flip_reach_meet(s->reach, row, op, LB_MET_BUT_ROWS);
    } else if (explain_by_flips(s, row, op, event)) {
        hand_over(k, event);
        lb_flip_reach_meet(s->reach, row, op, LB_MET_BUT_ROWS);
    }
    drop_shadow(s, k);
}

/* ---- joins ---- */

static int dim_of(const runner *s, const lb_reassembly *join, uint32_t outcome)
{
    return lb_reassembly_outcome_dim(&s->alignment->joins, join, s->other->program, s->side->program, outcome);
}

static bool place_part(const runner *s, const lb_reassembly *join, uint32_t i, uint32_t place, const lb_layout *part,
                       const double *x, double *out)
{
    const lb_program *pa = s->other->program;
    const lb_value *whole = &pa->values[lb_op_outcome(pa, &pa->ops[join->whole], i)];
    const lb_layout all = lb_layout_parts(&whole->layout, whole->dtype);
    int dim;
    uint32_t n;
    lb_reassembly_piece *pieces = lb_reassembly_outcome_pieces(&s->alignment->joins, join, pa, s->side, i, &dim, &n);
    for (uint32_t k = 0; pieces && k < n; k++)
        if (pieces[k].part == place) lb_reassembly_place(&all, dim, &pieces[k], part, sizeof *x, x, out);
    free(pieces);
    return pieces;
}

static void add_part(runner *s, const lb_reassembly *join, assembly *y, const kept *k, const lb_event *event,
                     uint32_t i, int64_t start, uint32_t place)
{
    int64_t n = event->shadow[i].data ? lb_layout_numel(&event->shadow[i].layout) : -1;
    int dim = n < 0 ? LB_REASSEMBLY_NONE : dim_of(s, join, i);
    double *x = dim == LB_REASSEMBLY_NONE ? NULL : numbers_in(&event->shadow[i], n);
    y->broken |= !x;
    if (!x) return;
    if (dim >= 0) {
        y->broken |= !place_part(s, join, i, place, &event->shadow[i].layout, x, y->numbers + start);
    } else {
        y->each[i] &= lb_shadow_numbers_agree(k->numbers + start, x, n, k->noise[i]);
        for (int64_t e = 0; e < n; e++) y->numbers[start + e] += x[e];
    }
    free(x);
}

/* Parts of the whole's own shape: the same in all, their sum, or their mean; which one is not known, and if it is none of
 * them nothing is. */
static lb_agreement judge_same(const kept *k, const assembly *y, uint32_t i, int64_t start, uint32_t parts)
{
    int64_t n = k->elements[i];
    double noise = k->noise[i] * parts, *sum = y->numbers + start;
    if (y->each[i] || lb_shadow_numbers_agree(k->numbers + start, sum, n, noise)) return LB_SHADOW_AGREES;
    for (int64_t e = 0; e < n; e++) sum[e] /= parts;
    return lb_shadow_numbers_agree(k->numbers + start, sum, n, noise) ? LB_SHADOW_AGREES : LB_SHADOW_UNKNOWN;
}

/* Parts put together. In backward those of a batch that ranks share out may be that many times as large: each takes the mean of its own
 * losses, and their gradients are averaged later. */
static lb_agreement judge_pieces(const runner *s, const lb_reassembly *join, const kept *k, const assembly *y,
                                 uint32_t i, int64_t start)
{
    double *all = y->numbers + start;
    bool agree = lb_shadow_numbers_agree(k->numbers + start, all, k->elements[i], k->noise[i]);
    if (!agree && s->other->program->ops[join->whole].phase == LB_PHASE_BACKWARD &&
        s->side->n_parts > s->other->n_parts) {
        for (int64_t e = 0; e < k->elements[i]; e++) all[e] /= join->parts;
        agree = lb_shadow_numbers_agree(k->numbers + start, all, k->elements[i], k->noise[i]);
    }
    return agree ? LB_SHADOW_AGREES : LB_SHADOW_DISAGREES;
}

static lb_agreement judge_join(runner *s, const lb_reassembly *join, const kept *k, const assembly *y)
{
    lb_agreement agreement = LB_SHADOW_UNKNOWN;
    int64_t start = 0;
    for (uint32_t i = 0; i < k->n_results; start += k->elements[i] > 0 ? k->elements[i] : 0, i++) {
        if (k->elements[i] < 0) continue;
        int dim = dim_of(s, join, i);
        lb_agreement one = LB_SHADOW_UNKNOWN;
        if (dim == LB_REASSEMBLY_SAME) one = judge_same(k, y, i, start, join->parts);
        if (dim >= 0) one = judge_pieces(s, join, k, y, i, start);
        if (one != LB_SHADOW_AGREES) return one;
        agreement = one;
    }
    return agreement;
}

static void open_assembly(const kept *k, assembly *y)
{
    int64_t total = 0;
    for (uint32_t i = 0; i < k->n_results; i++) total += k->elements[i] > 0 ? k->elements[i] : 0;
    y->numbers = calloc((size_t)total + 1, sizeof *y->numbers);
    y->each = malloc(k->n_results + 1);
    y->broken |= !y->numbers || !y->each;
    if (y->each) memset(y->each, 1, k->n_results + 1);
}

static void close_assembly(assembly *y)
{
    free(y->numbers), free(y->each);
    y->numbers = NULL, y->each = NULL, y->broken = true;
}

static void join_shadow(runner *s, uint32_t row, uint32_t op, const lb_event *event)
{
    uint32_t number = s->alignment->join_of_b[op], place = s->alignment->place_of_b[op];
    const lb_reassembly *join = &s->alignment->joins.list[number];
    kept *k = &s->kept[row];
    assembly *y = &s->assemblies[number];
    if (!k->numbers || y->broken) return;
    if (!y->numbers) open_assembly(k, y);
    y->broken |= k->n_results != event->n_results;
    int64_t start = 0;
    for (uint32_t i = 0; i < k->n_results && !y->broken; start += k->elements[i] > 0 ? k->elements[i] : 0, i++)
        if (k->elements[i] >= 0) add_part(s, join, y, k, event, i, start, place);
    if (++y->seen < join->parts && !y->broken) return;
    if (!y->broken) s->out->rows[row].agreement = judge_join(s, join, k, y);
    close_assembly(y);
    drop_shadow(s, k);
}

/* ---- values that leave ---- */

/* Of A: kept, and disturbed once more to know its noise. */
static void keep_value(const runner *s, kept_value *v, const lb_tensor *shadow)
{
    const int64_t n = lb_layout_numel(&shadow->layout);
    double *x = numbers_in(shadow, n);
    if (s->run == RUN_DISTURBED) {
        if (x && v->numbers && v->elements == n) v->noise = lb_shadow_noise(v->numbers, x, n);
        free(x);
    } else {
        free(v->numbers);
        *v = (kept_value){x, n, 0};
    }
}

/* ---- finals ---- */

/* Elements of `whole` that part `k` stands for, row-major; NULL: its shapes do not fit. malloc'ed. */
static double *slice_of(const runner *s, const lb_shadow_final *final, uint32_t k, const kept_value *whole,
                        const lb_layout *part)
{
    const lb_value *value = &s->other->program->values[final->whole.value];
    const lb_layout all = lb_layout_parts(&value->layout, value->dtype);
    const int64_t n = lb_layout_numel(part);
    if (final->dim < 0 && n != whole->elements) return NULL;
    double *slice = malloc((size_t)(n > 0 ? n : 1) * sizeof *slice);
    if (slice && final->dim < 0) memcpy(slice, whole->numbers, (size_t)n * sizeof *slice);
    if (!slice || final->dim < 0) return slice;
    uint32_t *values = malloc((final->parts + 1) * sizeof *values), n_pieces;
    for (uint32_t i = 0; values && i < final->parts; i++) values[i] = s->out->final_parts[final->first + i].value;
    lb_reassembly_piece *pieces =
        values ? lb_reassembly_pieces(NULL, &value->layout, final->dim, s->side, values, final->parts, &n_pieces)
               : NULL;
    if (pieces)
        lb_reassembly_cut(&all, final->dim, pieces, n_pieces, k, part, sizeof *slice, whole->numbers, slice);
    else
        free(slice), slice = NULL;
    free(values), free(pieces);
    return slice;
}

static void meet_final(runner *s, uint32_t f, uint32_t k, const lb_event *event, uint32_t i)
{
    lb_shadow_final *final = &s->out->finals[f];
    const kept_value *whole = &s->finals[f];
    const int64_t n = lb_layout_numel(&event->shadow[i].layout);
    if (!whole->numbers) return;
    double *slice = slice_of(s, final, k, whole, &event->shadow[i].layout);
    double *x = slice ? numbers_in(&event->shadow[i], n) : NULL;
    if (x) {
        final->seen++;
        if (!lb_shadow_numbers_agree(slice, x, n, whole->noise))
            final->agreement = LB_SHADOW_DISAGREES;
        else if (final->agreement == LB_SHADOW_UNKNOWN && final->seen == final->parts)
            final->agreement = LB_SHADOW_AGREES;
    }
    free(slice), free(x);
}

/* Made of what the source held when nothing was painted yet; NULL when that is not known. Both sides begin with A's. */
static kept_value *image_of(runner *s, uint32_t f)
{
    const lb_program_view *a = s->which ? s->other : s->side;
    const uint32_t source = lb_op_results(a->program, &a->program->ops[s->out->finals[f].sources[0]])[0];
    kept_value *image = &s->images[f];
    lb_tensor recorded, t;
    if (image->numbers) return image;
    if (lb_program_view_value(a, source, &recorded, NULL) != LB_OK || !lb_tensor_parts(&recorded, &t)) return NULL;
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
        const uint32_t value = lb_program_view_value_of(s->side, event->program, event->values[i]);
        const lb_value *v = value == LB_NONE ? source : &p->values[value];
        if (v == source || v->storage != source->storage || v->dtype != source->dtype || !event->shadow[i].data)
            continue;
        kept_value *image = image_of(s, f);
        const lb_layout whole = lb_layout_parts(&source->layout, source->dtype),
                        part = lb_layout_parts(&v->layout, v->dtype);
        double *x = image ? numbers_in(&event->shadow[i], lb_layout_numel(&part)) : NULL;
        if (x) lb_image_paint(image->numbers, &whole, &part, sizeof *x, x);
        free(x);
    }
}

static void judge_images(runner sides[2], kept_value *disturbed, lb_shadow_pair *out)
{
    for (uint32_t f = 0; f < out->n_finals; f++) {
        if (!out->finals[f].pieces) continue;
        const kept_value *a = image_of(&sides[0], f), *b = image_of(&sides[1], f), *d = &disturbed[f];
        if (!a || !b || a->elements != b->elements) continue;
        const double noise =
            d->numbers && d->elements == a->elements ? lb_shadow_noise(a->numbers, d->numbers, a->elements) : 0;
        out->finals[f].agreement = lb_shadow_numbers_agree(a->numbers, b->numbers, a->elements, noise)
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
                if (lb_program_view_value_of(s->side, event->program, event->values[i]) == list[k].value) break;
            if (i == event->n_results || !event->shadow[i].data) continue;
            if (s->which == 0)
                keep_value(s, &s->finals[f], &event->shadow[i]);
            else
                meet_final(s, f, k, event, i);
        }
    }
}

/* ---- exits ---- */

static void meet_exit(runner *s, uint32_t e, const lb_tensor *shadow)
{
    const kept_value *a = &s->results[e];
    const int64_t n = lb_layout_numel(&shadow->layout);
    double *x = a->numbers && a->elements == n ? numbers_in(shadow, n) : NULL;
    if (x)
        s->exits->list[e].agreement =
            lb_shadow_numbers_agree(a->numbers, x, n, a->noise) ? LB_SHADOW_AGREES : LB_SHADOW_DISAGREES;
    free(x);
}

/* A result may be a view of what its op gave: the window is read right after the op that wrote its storage last. */
static void note_exits(runner *s, uint32_t op, const lb_event *event)
{
    for (uint32_t e = 0; e < s->exits->n; e++) {
        lb_exit *exit = &s->exits->list[e];
        lb_tensor window, numbers;
        uint32_t row;
        if (exit->op[s->which] != op || exit->other_shape || !exit->differs) continue;
        if (lb_program_view_recorded(s->side, exit->value[s->which], &row) != event->program) continue;
        if (!lb_event_exact(event, row, &window) || !lb_tensor_parts(&window, &numbers)) continue;
        if (s->which == 0)
            keep_value(s, &s->results[e], &numbers);
        else
            meet_exit(s, e, &numbers);
    }
}

/* ---- events of a shadow ---- */

/* An op of A whose like in other shapes may follow from a choice. */
static bool is_reshaped(const runner *s, uint32_t row)
{
    return s->reach->flips.n && s->alignment->reshaped_b_of_a[row] != LB_NONE;
}

static void note_numbers(runner *s, uint32_t op, uint32_t row, const lb_event *event)
{
    note_finals(s, op, event);
    if (s->run == RUN_B && row == LB_NONE) meet_reshaped(s, op, event);
    if (row == LB_NONE || !(s->wanted[row] || is_reshaped(s, row))) return;
    if (s->run == RUN_A)
        keep_shadow(s, row, event);
    else if (s->run == RUN_DISTURBED)
        measure_noise(s, row, event);
    else if (s->alignment->join_of_b[op] != LB_NONE)
        join_shadow(s, row, op, event);
    else
        meet_shadow(s, row, op, event);
}

static void disturb(runner *s, const lb_event *event)
{
    for (uint32_t i = 0; i < event->n_results; i++) {
        const int64_t n = elements_of(event, i);
        if (n > 0 && event->shadow[i].dtype == LB_F64) lb_shadow_disturb(&event->shadow[i], s->serial++);
    }
}

/* What the other side begins with is rounded: so does this shadow. */
static void take_rounded(const runner *s, uint32_t op, const lb_event *event)
{
    const lb_program *p = s->side->program;
    lb_tensor recorded;
    const int64_t n = event->n_results && event->shadow[0].data ? lb_layout_numel(&event->shadow[0].layout) : 0;
    if (!n || lb_program_view_value(s->side, lb_op_results(p, &p->ops[op])[0], &recorded, NULL) != LB_OK ||
        lb_layout_numel(&recorded.layout) != n)
        return;
    double *x = numbers_in(&recorded, n);
    if (x) lb_shadow_put(&event->shadow[0], x);
    free(x);
}

static bool note_shadow(void *context, const lb_event *event)
{
    runner *s = context;
    uint32_t op, row = row_of(s, event, &op);
    if (op == LB_NONE || !event->shadow) return true;
    if (s->input_casts[op]) take_rounded(s, op, event);
    lb_tensor *room = has_complex(event) ? malloc(2 * event->n_results * sizeof *room) : NULL;
    const lb_event numbers = room ? numbers_of(event, room) : *event;
    if (s->run == RUN_DISTURBED) disturb(s, &numbers);
    if (room || !has_complex(event)) {
        note_numbers(s, op, row, &numbers);
        lb_exact_match_note(s->match, s->which, s->run == RUN_DISTURBED, op, &numbers);
    }
    note_exits(s, op, event);
    free(room);
    return true;
}

/* ---- runs ---- */

static bool take_other(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    return lb_cross_feed_take(((runner *)context)->taking, rank, step, value, tensor);
}

static bool steps(const lb_program *p, const lb_op *op)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(lb_op_name(p, op), &form);
    const uint32_t wanted = LB_ROW_DISCONTINUOUS | LB_ROW_ELEMENTWISE;
    if (!row || (row->flags & wanted) != wanted || op->flags & LB_OP_DECISION) return false;
    for (uint32_t i = 0; i < op->results + op->written; i++) {
        const uint32_t v = lb_op_outcome(p, op, i);
        if (v == LB_NONE || !lb_dtype_is_float(p->values[v].dtype)) return false;
    }
    return true;
}

/* Real numbers that step (signs of an optimizer, numbers of a quantiser) are taken over where the sides share the op. Where each has one of
 * its own, what was recorded stepped where rounding had it; from exact inputs both step alike, and how far that can be trusted the disturbed
 * run says. */
static bool steps_alone(void *context, int32_t rank, int64_t step, uint32_t number)
{
    const runner *s = context;
    const lb_program *p = s->side->program;
    const lb_alignment *al = s->alignment;
    for (uint32_t k = 0; k < s->side->n_parts; k++) {
        const lb_program_view_part *part = &s->side->parts[k];
        if (part->program->rank != rank || part->program->step != step) continue;
        const uint32_t i = part->first_op + number;
        const bool shared = s->which ? al->a_of_b[i] != LB_NONE || al->join_of_b[i] != LB_NONE
                                     : al->b_of_a[i] != LB_NONE || al->join_of_a[i] != LB_NONE;
        return !shared && steps(p, &p->ops[i]);
    }
    return false;
}

/* Each op from its recorded inputs, against the recording. */
static lb_status run_own(runner *s, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    lb_observer own = {.context = s, .op = note_own};
    return lb_side_replay(s->side, plan, &own, &summary, err);
}

static lb_status run_shadow(runner *s, int run, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    lb_cross_feed taking;
    LB_TRY(lb_cross_feed_init(s->side, s->other, s->alignment, s->which == 1, &taking, err));
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.shadow = true, plan.force_decisions = true;
    s->taking = &taking, s->run = run, s->serial = 0;
    lb_observer shadow = {
        .context = s, .op = note_shadow, .source = take_other, .decided = take_other, .computes = steps_alone};
    lb_status status = lb_side_replay(s->side, plan, &shadow, &summary, err);
    s->out->undecided[s->which] |= summary.undecided;
    lb_cross_feed_release(&taking);
    s->taking = NULL;
    return status;
}

static void free_values(kept_value *list, uint32_t n)
{
    for (uint32_t i = 0; list && i < n; i++) free(list[i].numbers);
    free(list);
}

/* What all runs share. */
typedef struct runs {
    runner sides[2];
    kept *shadows;
    assembly *assemblies;
    kept_value *finals, *images[3], *results; /* images: of A, of A disturbed, of B */
    lb_exact_match match;
    lb_flip_reach reach;
    uint8_t *input_casts[2];
} runs;

static lb_status open_runs(runs *r, const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                           const uint8_t *wanted, lb_exits *exits, uint64_t memory_bytes, lb_shadow_pair *out,
                           lb_err *err)
{
    const uint32_t n = a->program->n_ops;
    out->n_rows = n;
    out->rows = calloc(n + 1, sizeof *out->rows);
    r->shadows = calloc(n + 1, sizeof *r->shadows);
    r->assemblies = calloc(alignment->joins.n + 1, sizeof *r->assemblies);
    r->finals = calloc(out->n_finals + 1, sizeof *r->finals), r->results = calloc(exits->n + 1, sizeof *r->results);
    bool room = out->rows && r->shadows && r->assemblies && r->finals && r->results;
    for (int i = 0; i < 3; i++) room &= (r->images[i] = calloc(out->n_finals + 1, sizeof(kept_value))) != NULL;
    if (!room) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", n);
    for (uint32_t i = 0; i < n; i++)
        out->rows[i] = (lb_shadow_row){.own = {LB_VERDICT_MISSING, LB_VERDICT_MISSING}, .bound_ratio = {NAN, NAN}};
    LB_TRY(lb_exact_match_init(a, b, alignment, &r->match, err));
    LB_TRY(lb_flip_reach_open(a, b, alignment, wanted, &r->reach, err));
    out->first_flip = r->reach.flips.n ? r->reach.flips.list[0].op : LB_NONE;
    r->input_casts[0] = lb_input_casts_find(a, b), r->input_casts[1] = lb_input_casts_find(b, a);
    if (!r->input_casts[0] || !r->input_casts[1]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", n);
    for (int i = 0; i < 2; i++)
        r->sides[i] = (runner){.side = i ? b : a,
                               .other = i ? a : b,
                               .alignment = alignment,
                               .wanted = wanted,
                               .out = out,
                               .exits = exits,
                               .which = i,
                               .kept = r->shadows,
                               .assemblies = r->assemblies,
                               .finals = r->finals,
                               .images = r->images[2 * i],
                               .results = r->results,
                               .match = &r->match,
                               .reach = &r->reach,
                               .input_casts = r->input_casts[i],
                               .room = memory_bytes ? memory_bytes : UINT64_C(4) << 30};
    return LB_OK;
}

static void close_runs(runs *r, const lb_shadow_pair *out, const lb_alignment *alignment, uint32_t n_exits)
{
    for (uint32_t i = 0; r->shadows && i < out->n_rows; i++)
        free(r->shadows[i].numbers), free(r->shadows[i].elements), free(r->shadows[i].noise);
    for (uint32_t i = 0; r->assemblies && i < alignment->joins.n; i++) close_assembly(&r->assemblies[i]);
    free(r->shadows), free(r->assemblies);
    free_values(r->finals, out->n_finals), free_values(r->results, n_exits);
    for (int i = 0; i < 3; i++) free_values(r->images[i], out->n_finals);
    lb_exact_match_release(&r->match);
    lb_flip_reach_close(&r->reach);
    free(r->input_casts[0]), free(r->input_casts[1]);
}

/* What has met in other shapes is one quantity like what has met by its numbers. */
static void note_reshaped(const runs *r, lb_shadow_pair *out)
{
    const lb_alignment *al = r->sides[0].alignment;
    for (uint32_t i = 0; r->reach.flips.n && i < out->n_rows; i++) {
        const uint32_t b = al->b_of_a[i] == LB_NONE ? r->reach.met_of[0][i] : LB_NONE;
        if (b != LB_NONE && out->meets[0][i] == LB_NONE && out->meets[1][b] == LB_NONE)
            out->meets[0][i] = b, out->meets[1][b] = i;
    }
}

static lb_status run_all(runs *r, lb_shadow_pair *out, lb_err *err)
{
    LB_TRY(run_own(&r->sides[0], err));
    LB_TRY(run_own(&r->sides[1], err));
    LB_TRY(run_shadow(&r->sides[0], RUN_A, err));
    r->sides[0].images = r->images[1];
    lb_status status = run_shadow(&r->sides[0], RUN_DISTURBED, err);
    r->sides[0].images = r->images[0];
    if (status == LB_OK) status = run_shadow(&r->sides[1], RUN_B, err);
    if (status != LB_OK) return status;
    judge_images(r->sides, r->images[1], out);
    LB_TRY(lb_exact_match_find(&r->match, out, err));
    note_reshaped(r, out);
    return LB_OK;
}

lb_status lb_shadow_pair_run(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                             const uint8_t *wanted, lb_exits *exits, uint64_t memory_bytes, lb_shadow_pair *out,
                             lb_err *err)
{
    runs r = {0};
    lb_status status = open_runs(&r, a, b, alignment, wanted, exits, memory_bytes, out, err);
    if (status == LB_OK) status = run_all(&r, out, err);
    close_runs(&r, out, alignment, exits->n);
    if (status == LB_OK) return LB_OK;
    free(out->rows); /* which parameters differ is still known */
    out->rows = NULL, out->n_rows = 0;
    for (uint32_t i = 0; i < out->n_finals; i++) out->finals[i].agreement = LB_SHADOW_UNKNOWN;
    for (uint32_t i = 0; i < exits->n; i++) exits->list[i].agreement = LB_SHADOW_UNKNOWN;
    return status;
}

void lb_shadow_pair_release(lb_shadow_pair *pair)
{
    free(pair->rows), free(pair->finals), free(pair->final_parts);
    free(pair->meets[0]), free(pair->meets[1]);
    memset(pair, 0, sizeof *pair);
}
