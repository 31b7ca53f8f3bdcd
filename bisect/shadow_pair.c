/* Both sides of an aligned step replayed: see shadow_pair.h. */
#include "shadow_pair.h"

#include "ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RESULTS = 64 };

/* The shadows of one op of A: f64, row-major, all results after each other. */
typedef struct kept {
    double *numbers;
    uint32_t n_results;
    int64_t elements[MAX_RESULTS]; /* -1: no shadow of that result */
    double error[MAX_RESULTS];     /* max |A − sA| / uA */
} kept;

/* The shadow of one final of A. */
typedef struct kept_final {
    double *numbers;
    int64_t elements;
    double error;
} kept_final;

typedef struct side {
    lb_capture *capture, *other;
    const lb_program *program, *other_program;
    const lb_alignment *alignment;
    const uint8_t *wanted;
    lb_shadow_pair *out;
    int which;            /* 0: A, 1: B */
    kept *kept;           /* per op of A */
    kept_final *finals;   /* per final */
    uint64_t room;        /* bytes still allowed */
    uint32_t *taken_from; /* per value: a value of the other side that is taken in its place, or LB_NONE */
    double *converted;    /* replaced source, as bytes of the right dtype */
    size_t converted_room;
} side;

/* ---- numbers ---- */

static int64_t as_f64(const lb_tensor *t, double *out)
{
    int64_t done = 0;
    for (lb_rows r = lb_rows_of(&t->layout); lb_rows_next(&r);) {
        const char *p = (const char *)t->data + r.offset * (int64_t)(lb_dtype_bits(t->dtype) / 8);
        lb_load_f64_strided(out + done, t->dtype, p, r.stride, (size_t)r.count);
        done += r.count;
    }
    return done;
}

/* max |x − s| over elements finite on both sides; infinity when finiteness differs. */
static double max_error(const double *x, const double *s, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] == s[i] || (x[i] != x[i] && s[i] != s[i])) continue;
        double d = fabs(x[i] - s[i]);
        if (!(d <= worst)) worst = d - d == 0 ? d : INFINITY;
    }
    return worst;
}

static double max_finite(const double *x, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        if (x[i] - x[i] == 0 && fabs(x[i]) > worst) worst = fabs(x[i]);
    return worst;
}

/* Where the narrow run overflowed its error says nothing about amplification: count it as none. */
static double amplification(const double *x, const double *s, int64_t n, lb_dtype dtype)
{
    double e = max_error(x, s, n), u = lb_dtype_unit_roundoff(lb_dtype_part(dtype));
    return isfinite(e) && u > 0 ? e / u : 0;
}

static bool shadows_agree(const double *a, const double *b, int64_t n, double amplified)
{
    double tolerance = 0x1p13 * amplified * 0x1p-53 + 0x1p-40 * max_finite(a, n);
    return max_error(a, b, n) <= tolerance;
}

/* ---- observers ---- */

static bool note_own(void *context, const lb_event *event)
{
    side *s = context;
    uint32_t row = s->which == 0 ? event->op : s->alignment->a_of_b[event->op];
    if (row == LB_NONE) return true;
    lb_shadow_row *r = &s->out->rows[row];
    r->own[s->which] = event->verdict;
    r->bound_ratio[s->which] = event->bound_ratio;
    return true;
}

static void keep_shadow(side *s, uint32_t row, const lb_event *event)
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
        as_f64(&event->shadow[i], k->numbers + at);
        k->error[i] = 0;
        double *x = event->computed[i].data && n ? malloc((size_t)n * sizeof *x) : NULL;
        if (x) {
            as_f64(&event->computed[i], x);
            k->error[i] = amplification(x, k->numbers + at, n, event->computed[i].dtype);
        }
        free(x);
        at += n;
    }
}

/* B's op has run: its shadows against the kept ones. Integers and decisions took their recorded results, so
 * comparing the shadows compares the recordings. */
static void meet_shadow(side *s, uint32_t row, const lb_event *event)
{
    kept *k = &s->kept[row];
    if (!k->numbers) return;
    lb_agreement agreement = k->n_results == event->n_results ? LB_SHADOW_AGREES : LB_SHADOW_UNKNOWN;
    int64_t at = 0;
    bool any = false;
    for (uint32_t i = 0; i < k->n_results && agreement == LB_SHADOW_AGREES; i++) {
        int64_t n = k->elements[i];
        if (n < 0) continue;
        if (!event->shadow[i].data || lb_layout_numel(&event->shadow[i].layout) != n) {
            agreement = LB_SHADOW_UNKNOWN;
            break;
        }
        double *b = malloc((size_t)(n ? n : 1) * 2 * sizeof *b);
        if (!b) break;
        as_f64(&event->shadow[i], b);
        double error = k->error[i];
        if (event->computed[i].data) {
            as_f64(&event->computed[i], b + n);
            error = fmax(error, amplification(b + n, b, n, event->computed[i].dtype));
        }
        if (!shadows_agree(k->numbers + at, b, n, error)) agreement = LB_SHADOW_DISAGREES;
        any = true;
        free(b);
        at += n;
    }
    if (any) s->out->rows[row].agreement = agreement;
    s->room += (uint64_t)at * sizeof(double);
    free(k->numbers);
    k->numbers = NULL;
}

/* A parameter's last write: A's shadow is kept, B's is held against it. */
static void note_final(side *s, uint32_t f, const lb_event *event)
{
    lb_shadow_final *final = &s->out->finals[f];
    kept_final *k = &s->finals[f];
    uint32_t i = 0;
    while (i < event->n_results && event->values[i] != final->value[s->which]) i++;
    if (i == event->n_results || !event->shadow[i].data) return;
    int64_t n = lb_layout_numel(&event->shadow[i].layout);
    double *x = malloc((size_t)(n > 0 ? n : 1) * 2 * sizeof *x);
    if (!x) return;
    as_f64(&event->shadow[i], x);
    double error = 0;
    if (event->computed[i].data) {
        as_f64(&event->computed[i], x + n);
        error = amplification(x + n, x, n, event->computed[i].dtype);
    }
    if (s->which == 0) {
        *k = (kept_final){x, n, error};
        return;
    }
    if (k->numbers && k->elements == n)
        final->agreement =
            shadows_agree(k->numbers, x, n, fmax(error, k->error)) ? LB_SHADOW_AGREES : LB_SHADOW_DISAGREES;
    free(x);
}

static bool note_shadow(void *context, const lb_event *event)
{
    side *s = context;
    for (uint32_t f = 0; event->shadow && f < s->out->n_finals; f++)
        if (s->out->finals[f].op[s->which] == event->op) note_final(s, f, event);
    uint32_t row = s->which == 0 ? event->op : s->alignment->a_of_b[event->op];
    if (row == LB_NONE || !s->wanted[row] || !event->shadow) return true;
    if (s->which == 0)
        keep_shadow(s, row, event);
    else
        meet_shadow(s, row, event);
    return true;
}

/* Both shadows must start from the same numbers: the narrower side's sources serve both, widening is exact. */
static bool take_other(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    (void)rank, (void)step;
    side *s = context;
    uint32_t other = s->taken_from[value];
    lb_tensor theirs;
    if (other == LB_NONE || lb_capture_value(s->other, s->other_program, other, &theirs, NULL) != LB_OK)
        return false;
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
    as_f64(&theirs, s->converted);
    int64_t done = 0;
    for (lb_rows r = lb_rows_of(&mine.layout); lb_rows_next(&r); done += r.count)
        lb_store_f64_strided(mine.dtype,
                             (char *)mine.data + r.offset * (int64_t)(lb_dtype_bits(mine.dtype) / 8), r.stride,
                             s->converted + done, (size_t)r.count, NULL);
    tensor->data = mine.data;
    return true;
}

/* For each source of this side that should be replaced: the other side's value. */
static void map_sources(side *s, const lb_program *pa, const lb_program *pb)
{
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        uint32_t j = s->alignment->source_b_of_a[i];
        if (j == LB_NONE) continue;
        uint32_t va = lb_op_results(pa, &pa->ops[i])[0], vb = lb_op_results(pb, &pb->ops[j])[0];
        if (lb_digest_equal(pa->values[va].logical, pb->values[vb].logical)) continue;
        if (!lb_dtype_is_float(pa->values[va].dtype) || !lb_dtype_is_float(pb->values[vb].dtype)) continue;
        bool b_is_narrower =
            lb_dtype_precision(pb->values[vb].dtype) < lb_dtype_precision(pa->values[va].dtype);
        if (b_is_narrower && s->which == 0) s->taken_from[va] = vb;
        if (!b_is_narrower && s->which == 1) s->taken_from[vb] = va;
    }
}

static bool is_continuous(const char *name)
{
    lb_op_form form;
    const lb_op_row *row = lb_op_find(name, &form);
    return row && !(row->flags & LB_ROW_DISCONTINUOUS);
}

/* A decision that rounding changed (a near tie of the router) would part the shadows for good: B's takes A's. */
static void map_decisions(side *s, const lb_program *pa, const lb_program *pb)
{
    for (uint32_t i = 0; s->which == 1 && i < pa->n_ops; i++) {
        uint32_t j = s->alignment->b_of_a[i];
        if (j == LB_NONE || s->alignment->irregular[i]) continue;
        const lb_op *a = &pa->ops[i], *b = &pb->ops[j];
        if (a->results != b->results || a->flags & LB_OP_RANDOM || is_continuous(lb_op_name(pa, a))) continue;
        for (uint32_t k = 0; k < a->results; k++) {
            uint32_t va = lb_op_results(pa, a)[k], vb = lb_op_results(pb, b)[k];
            if (va == LB_NONE || vb == LB_NONE || pa->values[va].dtype != pb->values[vb].dtype) continue;
            if (lb_digest_equal(pa->values[va].logical, pb->values[vb].logical)) continue;
            if (lb_op_same_args(pa, a, pb, b)) s->taken_from[vb] = va;
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

lb_status lb_shadow_pair_init(const lb_program *pa, const lb_program *pb, const lb_alignment *alignment,
                              lb_shadow_pair *out, lb_err *err)
{
    memset(out, 0, sizeof *out);
    out->finals = calloc(pa->n_ops + 1, sizeof *out->finals);
    if (!out->finals) return lb_fail(err, LB_ERR_NOMEM, "diff: out of memory for %u ops", pa->n_ops);
    for (uint32_t i = 0; i < pa->n_ops; i++) {
        uint32_t j = alignment->source_b_of_a[i];
        if (j == LB_NONE) continue;
        const lb_value *a = &pa->values[lb_op_results(pa, &pa->ops[i])[0]];
        const lb_value *b = &pb->values[lb_op_results(pb, &pb->ops[j])[0]];
        if (lb_program_text(pa, a->name)[0] == '\0') continue;
        lb_shadow_final f = {.agreement = LB_SHADOW_UNKNOWN};
        f.op[0] = last_write(pa, a->storage, &f.value[0]), f.op[1] = last_write(pb, b->storage, &f.value[1]);
        if (f.op[0] == LB_NONE || f.op[1] == LB_NONE) continue;
        a = &pa->values[f.value[0]], b = &pb->values[f.value[1]];
        if (lb_digest_is_none(a->logical) || lb_digest_is_none(b->logical) ||
            lb_digest_equal(a->logical, b->logical))
            continue;
        out->finals[out->n_finals++] = f;
    }
    return LB_OK;
}

/* ---- runs ---- */

static lb_status run_side(side *s, const lb_program *pa, const lb_program *pb, lb_err *err)
{
    lb_replay *replay = NULL;
    LB_TRY(lb_replay_open(s->capture, &replay, err));
    lb_plan plan = LB_PLAN_INIT;
    plan.first_step = plan.last_step = s->program->step;
    plan.ranks = &s->program->rank, plan.n_ranks = 1;
    lb_replay_summary summary = {0};
    lb_observer own = {.context = s, .op = note_own};
    lb_status status = lb_replay_run(replay, &plan, &own, &summary, err);
    s->taken_from = malloc((s->program->n_values + 1) * sizeof(uint32_t));
    if (status == LB_OK && s->taken_from) {
        memset(s->taken_from, 0xFF, s->program->n_values * sizeof(uint32_t));
        map_sources(s, pa, pb);
        map_decisions(s, pa, pb);
        plan.mode = LB_REPLAY_CHAINED, plan.compare = false, plan.shadow = true, plan.force_decisions = true;
        lb_observer shadow = {.context = s, .op = note_shadow, .source = take_other, .decided = take_other};
        status = lb_replay_run(replay, &plan, &shadow, &summary, err);
        s->out->undecided[s->which] = summary.undecided;
    }
    free(s->taken_from);
    free(s->converted);
    lb_replay_close(replay);
    return status;
}

lb_status lb_shadow_pair_run(lb_capture *a, lb_capture *b, const lb_program *pa, const lb_program *pb,
                             const lb_alignment *alignment, const uint8_t *wanted, uint64_t memory_bytes,
                             lb_shadow_pair *out, lb_err *err)
{
    out->n_rows = pa->n_ops;
    out->rows = calloc(pa->n_ops + 1, sizeof *out->rows);
    kept *shadows = calloc(pa->n_ops + 1, sizeof *shadows);
    kept_final *finals = calloc(out->n_finals + 1, sizeof *finals);
    lb_status status = LB_OK;
    if (!out->rows || !shadows || !finals)
        status = lb_fail(err, LB_ERR_NOMEM, "diff: out of memory for %u ops", pa->n_ops);
    for (uint32_t i = 0; status == LB_OK && i < pa->n_ops; i++)
        out->rows[i] = (lb_shadow_row){LB_SHADOW_UNKNOWN, {LB_VERDICT_MISSING, LB_VERDICT_MISSING}, {NAN, NAN}};
    side sides[2] = {
        {a, b, pa, pb, alignment, wanted, out, 0, shadows, finals,
         memory_bytes ? memory_bytes : UINT64_C(4) << 30, NULL, NULL, 0},
        {b, a, pb, pa, alignment, wanted, out, 1, shadows, finals, 0, NULL, NULL, 0},
    };
    for (int i = 0; i < 2 && status == LB_OK; i++) status = run_side(&sides[i], pa, pb, err);
    for (uint32_t i = 0; shadows && i < pa->n_ops; i++) free(shadows[i].numbers);
    for (uint32_t i = 0; finals && i < out->n_finals; i++) free(finals[i].numbers);
    free(shadows), free(finals);
    if (status != LB_OK) lb_shadow_pair_release(out);
    return status;
}

void lb_shadow_pair_release(lb_shadow_pair *pair)
{
    free(pair->rows), free(pair->finals);
    memset(pair, 0, sizeof *pair);
}
