/* Both sides of an aligned step replayed: see shadow_pair.h. */
#include "shadow_pair.h"

#include "complex.h"
#include "final_image.h"
#include "shadow_numbers.h"
#include "taking.h"
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
    lb_taking *taking;
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

static int dim_of(const runner *s, const lb_join *join, uint32_t outcome, uint32_t place, int64_t *at)
{
    return lb_join_outcome_dim(&s->alignment->joins, join, s->other->program, s->side->program, outcome, place,
                               at);
}

static void add_part(runner *s, const lb_join *join, assembly *y, const kept *k, const lb_event *event,
                     uint32_t i, int64_t start, uint32_t place)
{
    const lb_program *pa = s->other->program;
    int64_t at, n = event->shadow[i].data ? lb_layout_numel(&event->shadow[i].layout) : -1;
    int dim = n < 0 ? LB_JOIN_NONE : dim_of(s, join, i, place, &at);
    double error, *x = dim == LB_JOIN_NONE ? NULL : shadow_of(event, i, n, &error);
    y->broken |= !x;
    if (!x) return;
    y->error[i] = fmax(y->error[i], error);
    const lb_op *whole = &pa->ops[join->whole];
    uint32_t v =
        i < whole->results ? lb_op_results(pa, whole)[i] : lb_op_written(pa, whole)[i - whole->results];
    if (dim >= 0) {
        const lb_join_piece piece = {.to = at, .size = event->shadow[i].layout.shape[dim]};
        const lb_layout all = lb_layout_parts(&pa->values[v].layout, pa->values[v].dtype);
        lb_join_place(&all, dim, &piece, &event->shadow[i].layout, sizeof *x, x,
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
        int dim = dim_of(s, join, i, 0, &at);
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
static double *slice_of(const kept_final *whole, const lb_value *value, int dim, int64_t at,
                        const lb_layout *part)
{
    const lb_layout *shape = &value->layout;
    int64_t n = lb_layout_numel(part), outer = 1, inner = lb_dtype_is_complex(value->dtype) ? 2 : 1, done = 0;
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
    const lb_value *value = &s->other->program->values[final->whole.value];
    int64_t at = 0, n = lb_layout_numel(&event->shadow[i].layout);
    for (uint32_t before = 0; before < k && final->dim >= 0; before++)
        at += pb->values[s->out->final_parts[final->first + before].value].layout.shape[final->dim];
    if (!whole->numbers) return;
    double error, *slice = slice_of(whole, value, final->dim, at, &event->shadow[i].layout);
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
    lb_tensor recorded, t;
    if (image->numbers) return image;
    if (lb_side_value(s->side, source, &recorded, NULL) != LB_OK || !lb_tensor_parts(&recorded, &t)) return NULL;
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
        const lb_layout whole = lb_layout_parts(&source->layout, source->dtype), part = lb_layout_parts(&v->layout, v->dtype);
        double error = 0, *x = image ? shadow_of(event, i, lb_layout_numel(&part), &error) : NULL;
        if (x) {
            lb_image_paint(image->numbers, &whole, &part, sizeof *x, x);
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

static bool note_numbers(void *context, const lb_event *event)
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

static bool note_shadow(void *context, const lb_event *event)
{
    if (!event->shadow || !has_complex(event)) return note_numbers(context, event);
    lb_tensor *room = malloc(2 * event->n_results * sizeof *room);
    if (!room) return true; /* nothing is known of it then */
    const lb_event numbers = numbers_of(event, room);
    const bool goes_on = note_numbers(context, &numbers);
    free(room);
    return goes_on;
}

/* ---- runs ---- */

lb_status lb_side_replay(const lb_side *side, lb_plan plan, const lb_observer *observer,
                         lb_replay_summary *summary, lb_err *err)
{
    lb_replay *replay = NULL;
    int32_t *ranks = malloc(side->n_parts * sizeof *ranks);
    if (!ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
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

static bool take_other(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    return lb_taking_take(((runner *)context)->taking, rank, step, value, tensor);
}

static lb_status run_side(runner *s, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    lb_observer own = {.context = s, .op = note_own};
    LB_TRY(lb_side_replay(s->side, plan, &own, &summary, err));
    lb_taking taking;
    LB_TRY(lb_taking_init(s->side, s->other, s->alignment, s->which == 1, &taking, err));
    plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.shadow = true, plan.force_decisions = true;
    s->taking = &taking;
    lb_observer shadow = {.context = s, .op = note_shadow, .source = take_other, .decided = take_other};
    lb_status status = lb_side_replay(s->side, plan, &shadow, &summary, err);
    s->out->undecided[s->which] = summary.undecided;
    lb_taking_release(&taking);
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
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ops", n);
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
