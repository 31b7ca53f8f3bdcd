/* An adapter online and merged, in each precision, and how a merged checkpoint was made.
 *
 * With W [out, in], A [r, in], B [out, r], s the scaling, x [rows, in], and D(.) rounding to a dtype, products with f32 sums:
 *
 *   online   y = D(D(x W^T) + D(s D(D(x A^T) B^T)))                          as peft computes a LoRA layer
 *   merged   y = D(x W'^T),  W' = D(W + D(s B A))                            as peft merges: the product in f32, then to D
 *   DoRA     f = D(l / D(|row|)) of each row, l its length                   as peft's DoraLinearLayer, tuners/lora/dora.py:
 *            online y + D(D(D(f - 1) y) + D(s D(f D(D(x A^T) B^T)))), rows of D(W + D(s D(B A))); merged D(f W'), rows of W'
 *   A convolution is the same product over the columns of its kernel: x is then what lies under the kernel.
 *            Products add up in blocks of 128 terms, as tiles of libraries do; one long chain would err more in f32.
 *   e4m3     W and W' are scaled by amax / 448 per tensor and rounded to e4m3fn; all else as in bf16
 */
#include "adapter.h"

#include "elementary.h"
#include "matmul.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRECISIONS = 4 };
static const lb_dtype precisions[PRECISIONS] = {LB_F32, LB_F16, LB_BF16, LB_E4M3FN};

/* ---- inputs -------------------------------------------------------------------------------------------------------------- */

/* Unit normal numbers by Box and Muller's transform of Philox words; number i of a seed is the same everywhere. */
static void fill_normal(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i += 2) {
        uint32_t words[4];
        lb_philox(seed, i / 2, 0, words);
        double u = ((double)words[0] + 1) / 4294967296.0, angle = 6.283185307179586 * ((double)words[1] / 4294967296.0);
        double radius = sqrt(-2 * lb_log(u));
        x[i] = (float)(radius * lb_cos(angle));
        if (i + 1 < n) x[i + 1] = (float)(radius * lb_sin(angle));
    }
}

/* Recorded inputs of a module: the tensor of its name, or the one tensor that there is, [rows, in]. */
static const lb_checkpoint_piece *inputs_of(const lb_inventory *inputs, const lb_adapter_module *m)
{
    for (uint32_t i = 0; inputs && i < inputs->n_names; i++) {
        const lb_checkpoint_piece *p = &inputs->checkpoint->pieces[inputs->names[i].first];
        bool named = strstr(p->name, m->module) != NULL || inputs->n_names == 1;
        if (named && p->tensor.layout.ndim >= 2 && p->tensor.layout.shape[p->tensor.layout.ndim - 1] == m->in) return p;
    }
    return NULL;
}

static lb_status make_inputs(const lb_audit_gathering *g, const lb_inventory *inputs, const lb_adapter_module *m,
                             float **x, size_t *rows, lb_err *err)
{
    const lb_checkpoint_piece *p = inputs_of(inputs, m);
    if (p) {
        lb_whole whole = {p->tensor, NULL};
        *rows = (size_t)(lb_layout_numel(&p->tensor.layout) / m->in);
        *x = lb_whole_numbers(&whole, err);
    } else {
        *rows = g->options->rows ? g->options->rows : 16;
        *x = (float *)malloc(*rows * (size_t)m->in * sizeof **x);
        if (*x) fill_normal(*x, *rows * (size_t)m->in, g->options->seed);
    }
    return *x ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", m->module);
}

/* ---- one module -------------------------------------------------------------------------------------------------------------- */

typedef struct operands {
    size_t rows, in, out, rank;
    double s;
    const float *x, *w, *a, *b, *lengths; /* lengths: of DoRA, or NULL */
} operands;

/* Scratch of one module, of one precision at a time. */
typedef struct scratch {
    float *x, *w, *a, *b, *merged, *t, *u, *y, *z, *factors;
} scratch;

static void scratch_release(scratch *k)
{
    free(k->x), free(k->w), free(k->a), free(k->b), free(k->merged), free(k->t), free(k->u), free(k->y), free(k->z);
    free(k->factors);
}

static bool scratch_init(scratch *k, const operands *o)
{
    const size_t f = sizeof(float);
    *k = (scratch){malloc(o->rows * o->in * f + 1),  malloc(o->out * o->in * f + 1),
                   malloc(o->rank * o->in * f + 1),  malloc(o->out * o->rank * f + 1),
                   malloc(o->out * o->in * f + 1),   malloc(o->rows * o->rank * f + 1),
                   malloc(o->rows * o->out * f + 1), malloc(o->rows * o->out * f + 1),
                   malloc(o->rows * o->out * f + 1), malloc(o->out * f + 1)};
    return k->factors && k->x && k->w && k->a && k->b && k->merged && k->t && k->u && k->y && k->z;
}

static void round_all(float *x, size_t n, lb_dtype dtype)
{
    if (dtype != LB_F32) lb_round_to_grid_f32(x, n, dtype, NULL);
}

static void quantise(float *x, size_t n)
{
    float top = 0;
    for (size_t i = 0; i < n; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    const float scale = top > 0 ? top / 448 : 1;
    for (size_t i = 0; i < n; i++) x[i] /= scale;
    round_all(x, n, LB_E4M3FN);
    for (size_t i = 0; i < n; i++) x[i] *= scale;
}

/* c [m, n] = a [m, k] b [n, k]^T, dense f32. */
static lb_status product(size_t m, size_t n, size_t k, const float *a, const float *b, float *c)
{
    const lb_matrix left = {a, LB_F32, (ptrdiff_t)k, 1}, right = {b, LB_F32, 1, (ptrdiff_t)k};
    lb_matmul_options options = LB_MATMUL_OPTIONS_INIT;
    options.block = 128;
    return lb_matmul_f32(m, n, k, &left, &right, c, (ptrdiff_t)n, &options);
}

/* c [out, in] = b [out, rank] a [rank, in]. */
static lb_status outer(const operands *o, const float *a, const float *b, float *c)
{
    const lb_matrix left = {b, LB_F32, (ptrdiff_t)o->rank, 1}, right = {a, LB_F32, (ptrdiff_t)o->in, 1};
    return lb_matmul_f32(o->out, o->in, o->rank, &left, &right, c, (ptrdiff_t)o->in, NULL);
}

/* DoRA's factors: each row's length over the norm of that row of `v`. */
static void find_factors(const operands *o, const float *v, lb_dtype d, float *factors)
{
    for (size_t r = 0; r < o->out; r++) {
        double squares = 0;
        for (size_t i = 0; i < o->in; i++) squares += (double)v[r * o->in + i] * (double)v[r * o->in + i];
        float norm = (float)sqrt(squares);
        round_all(&norm, 1, d);
        factors[r] = o->lengths[r] / norm;
    }
    round_all(factors, o->out, d);
}

/* D(W + D(s B A)); `twice`: B A is rounded, too, before it is scaled. */
static lb_status add_product(const operands *o, const scratch *k, lb_dtype d, bool twice, float *to)
{
    const size_t weights = o->out * o->in;
    const float s = (float)o->s;
    LB_TRY(outer(o, k->a, k->b, to));
    if (twice) round_all(to, weights, d);
    for (size_t i = 0; i < weights; i++) to[i] *= s;
    round_all(to, weights, d);
    for (size_t i = 0; i < weights; i++) to[i] += k->w[i];
    round_all(to, weights, d);
    return LB_OK;
}

static lb_status run_merged(const operands *o, lb_dtype d, bool narrow, scratch *k)
{
    const size_t weights = o->out * o->in;
    LB_TRY(add_product(o, k, d, false, k->merged));
    if (o->lengths) {
        find_factors(o, k->merged, d, k->factors);
        for (size_t i = 0; i < weights; i++) k->merged[i] *= k->factors[i / o->in];
        round_all(k->merged, weights, d);
    }
    if (narrow) quantise(k->merged, weights);
    LB_TRY(product(o->rows, o->out, o->in, k->x, k->merged, k->z));
    round_all(k->z, o->rows * o->out, d);
    return LB_OK;
}

/* y becomes y + the adapter's, whose own result is u. */
static void add_lora(const operands *o, lb_dtype d, scratch *k)
{
    const size_t results = o->rows * o->out;
    const float s = (float)o->s;
    for (size_t i = 0; i < results && o->lengths; i++) k->u[i] *= k->factors[i % o->out];
    if (o->lengths) round_all(k->u, results, d);
    for (size_t i = 0; i < results; i++) k->u[i] *= s;
    round_all(k->u, results, d);
    if (o->lengths) {
        for (size_t r = 0; r < o->out; r++) k->factors[r] -= 1;
        round_all(k->factors, o->out, d);
        for (size_t i = 0; i < results; i++) {
            float more = k->y[i] * k->factors[i % o->out];
            round_all(&more, 1, d);
            k->u[i] += more;
        }
        round_all(k->u, results, d);
    }
    for (size_t i = 0; i < results; i++) k->y[i] += k->u[i];
    round_all(k->y, results, d);
}

static lb_status run_online(const operands *o, lb_dtype d, bool narrow, scratch *k)
{
    if (o->lengths) {
        LB_TRY(add_product(o, k, d, true, k->merged));
        find_factors(o, k->merged, d, k->factors);
    }
    if (narrow) quantise(k->w, o->out * o->in);
    LB_TRY(product(o->rows, o->out, o->in, k->x, k->w, k->y));
    LB_TRY(product(o->rows, o->rank, o->in, k->x, k->a, k->t));
    round_all(k->y, o->rows * o->out, d);
    round_all(k->t, o->rows * o->rank, d);
    LB_TRY(product(o->rows, o->out, o->rank, k->t, k->b, k->u));
    round_all(k->u, o->rows * o->out, d);
    add_lora(o, d, k);
    return LB_OK;
}

/* y: online, z: merged. */
static lb_status run_precision(const operands *o, lb_dtype dtype, scratch *k)
{
    const bool narrow = dtype == LB_E4M3FN;
    const lb_dtype d = narrow ? LB_BF16 : dtype;
    memcpy(k->x, o->x, o->rows * o->in * sizeof(float));
    memcpy(k->w, o->w, o->out * o->in * sizeof(float));
    memcpy(k->a, o->a, o->rank * o->in * sizeof(float));
    memcpy(k->b, o->b, o->out * o->rank * sizeof(float));
    round_all(k->x, o->rows * o->in, d);
    round_all(k->w, o->out * o->in, d);
    round_all(k->a, o->rank * o->in, d);
    round_all(k->b, o->out * o->rank, d);
    LB_TRY(run_merged(o, d, narrow, k));
    return run_online(o, d, narrow, k);
}

/* Over one module, or over all. */
typedef struct distance {
    double max_abs, rel_max, difference, reference; /* the last two: sums of squares */
} distance;

/* An output near zero, where large terms cancel, would make any difference a multiple of it: none is measured by less than the outputs' root mean
 * square. */
static distance measure(const float *online, const float *merged, size_t n)
{
    distance d = {0, 0, 0, 0};
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)online[i] * (double)online[i];
    const double usual = n ? sqrt(squares / (double)n) : 0;
    for (size_t i = 0; i < n; i++) {
        double y = online[i], e = fabs((double)merged[i] - y);
        if (e > d.max_abs) d.max_abs = e;
        const double by = fabs(y) > usual ? fabs(y) : usual;
        if (by > 0 && e / by > d.rel_max) d.rel_max = e / by;
        d.difference += e * e;
        d.reference += y * y;
    }
    return d;
}

static void add_row(lb_audit_gathering *g, const char *module, lb_dtype dtype, const distance *d)
{
    lb_audit_precision *row = lb_audit_add_precision(g);
    if (!row) return;
    row->module = lb_audit_text(g, module);
    row->dtype = dtype;
    row->max_abs = d->max_abs;
    row->rel_max = d->rel_max;
    row->rel_l2 = d->reference > 0 ? sqrt(d->difference / d->reference) : d->difference > 0 ? INFINITY : 0;
}

static lb_status run_module(lb_audit_gathering *g, const lb_adapter *adapter, const lb_adapter_module *m,
                            const lb_inventory *inputs, distance *all, lb_err *err)
{
    float *x = NULL, *w = NULL, *a = NULL, *b = NULL, *lengths = NULL;
    scratch k = {0};
    operands o = {.in = (size_t)m->in, .out = (size_t)m->out, .rank = (size_t)m->rank, .s = m->scaling};
    lb_status status = make_inputs(g, inputs, m, &x, &o.rows, err);
    if (status == LB_OK) status = lb_adapter_weight(m, &w, err);
    if (status == LB_OK) status = lb_adapter_numbers(adapter, m, &a, &b, err);
    if (status == LB_OK) status = lb_adapter_lengths(adapter, m, &lengths, err);
    o.x = x, o.w = w, o.a = a, o.b = b, o.lengths = lengths;
    if (status == LB_OK && !scratch_init(&k, &o)) status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", m->module);
    for (int i = 0; i < PRECISIONS && status == LB_OK; i++) {
        status = run_precision(&o, precisions[i], &k);
        distance d = measure(k.y, k.z, o.rows * o.out);
        add_row(g, m->module, precisions[i], &d);
        if (d.max_abs > all[i].max_abs) all[i].max_abs = d.max_abs;
        if (d.rel_max > all[i].rel_max) all[i].rel_max = d.rel_max;
        all[i].difference += d.difference;
        all[i].reference += d.reference;
    }
    scratch_release(&k);
    free(x), free(w), free(a), free(b), free(lengths);
    return status;
}

lb_status lb_audit_precisions(lb_audit_gathering *g, const lb_adapter *adapter, lb_err *err)
{
    lb_checkpoint *checkpoint = NULL;
    lb_inventory *inputs = NULL;
    distance all[PRECISIONS] = {{0, 0, 0, 0}};
    uint32_t done = 0;
    lb_status status = LB_OK;
    if (g->options->inputs) status = lb_checkpoint_open(g->options->inputs, &checkpoint, err);
    if (checkpoint) status = lb_inventory_new(checkpoint, false, g, &inputs, err);
    for (uint32_t i = 0; i < adapter->n && status == LB_OK; i++) {
        const lb_adapter_module *m = &adapter->modules[i];
        lb_audit_progress(g, "online and merged", i, adapter->n);
        if (!m->weight || strstr(m->a->name, "embedding_A")) continue;
        if (inputs && !inputs_of(inputs, m))
            lb_audit_note(g, LB_AUDIT_SHAPE, (lb_audit_where){m->module, NULL, NULL, 0},
                          "--inputs has no [rows, %lld] for it: unit normal numbers are taken", (long long)m->in);
        status = run_module(g, adapter, m, inputs, all, err);
        done++;
    }
    for (int i = 0; i < PRECISIONS && done; i++) add_row(g, NULL, precisions[i], &all[i]);
    lb_inventory_free(inputs);
    lb_checkpoint_close(checkpoint);
    return status;
}

/* ---- how a checkpoint was merged ------------------------------------------------------------------------------------------ */

typedef struct candidate {
    const char *name;
    double factor;
} candidate;

/* What the bits of a merged weight may be: A and B as they are or cast to a narrow dtype first, and which products were rounded on the way, to
 * that dtype or to the merged one. */
enum { ORDERS = 3, HALVES = 3 };
static const lb_dtype halves[HALVES] = {LB_NO_DTYPE, LB_BF16, LB_F16};
static const char *const orders[HALVES][ORDERS] = {
    {"the sum in f32, rounded once", "s B A rounded, then the sum", "B A rounded, s B A rounded, then the sum"},
    {"A and B cast to bf16, the sum in f32, rounded once", "A and B cast to bf16, s B A in bf16, then the sum",
     "A and B cast to bf16, B A and s B A in bf16, then the sum"},
    {"A and B cast to f16, the sum in f32, rounded once", "A and B cast to f16, s B A in f16, then the sum",
     "A and B cast to f16, B A and s B A in f16, then the sum"},
};

/* `step`: the dtype of what is rounded on the way. */
static void merged_weight(const operands *o, const float *outer_product, double s, int order, lb_dtype step,
                          lb_dtype dtype, float *to)
{
    const size_t n = o->out * o->in;
    memcpy(to, outer_product, n * sizeof *to);
    if (order == 2) round_all(to, n, step);
    for (size_t i = 0; i < n; i++) to[i] *= (float)s;
    if (order >= 1) round_all(to, n, step);
    for (size_t i = 0; i < n; i++) to[i] += o->w[i];
    round_all(to, n, dtype);
}

static size_t count_differing(const float *a, const float *b, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += a[i] != b[i];
    return count;
}

/* Elements that no order of an f32 product, no two roundings to `dtype` and none to `step` on the way explain:
 * |M - (W + s BA)| <= 2 (u_D (|M| + |s BA|) + u_S |s BA| + (r + 2) u_f32 |s| |B||A|). */
static size_t count_beyond(const operands *o, const float *m, const float *expected, const float *magnitude, double s,
                           lb_dtype step, lb_dtype dtype, const float *outer_product)
{
    const double u = lb_dtype_unit_roundoff(dtype), v = step == dtype ? u : u + lb_dtype_unit_roundoff(step),
                 tiny = lb_dtype_min_subnormal(dtype), f = ((double)o->rank + 2) * lb_dtype_unit_roundoff(LB_F32);
    size_t count = 0;
    for (size_t i = 0; i < o->out * o->in; i++) {
        double bound =
            2 * (u * fabs((double)m[i]) + v * fabs(s * (double)outer_product[i]) + f * fabs(s) * (double)magnitude[i]) +
            tiny;
        count += !(fabs((double)m[i] - (double)expected[i]) <= bound);
    }
    return count;
}

/* The factor of least squares: <M - W, BA> / <BA, BA>. */
static double fitted(const operands *o, const float *m, const float *outer_product)
{
    double above = 0, below = 0;
    for (size_t i = 0; i < o->out * o->in; i++) {
        above += ((double)m[i] - (double)o->w[i]) * (double)outer_product[i];
        below += (double)outer_product[i] * (double)outer_product[i];
    }
    return below > 0 ? above / below : 0;
}

/* First the configuration's factor, then what people set by mistake, the nearest to the fitted one. */
static candidate choose(const lb_adapter_module *m, const lb_adapter *adapter, double fit)
{
    const double r = (double)m->rank, alpha = m->alpha;
    const candidate all[] = {{adapter->rslora ? "alpha/sqrt(r)" : "alpha/r", m->scaling},
                             {adapter->rslora ? "alpha/r" : "alpha/sqrt(r)", alpha / (adapter->rslora ? r : sqrt(r))},
                             {"alpha", alpha},
                             {"1", 1},
                             {"1/r", 1 / r},
                             {"twice", 2 * m->scaling},
                             {"squared", m->scaling * m->scaling},
                             {"subtracted", -m->scaling}};
    candidate best = {"fitted", fit};
    double nearest = 0.02;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].factor != 0 && fabs(fit / all[i].factor - 1) < nearest) {
            nearest = fabs(fit / all[i].factor - 1);
            best = all[i];
        }
    return best;
}

typedef struct merge_buffers {
    float *m, *product, *magnitude, *expected;
} merge_buffers;

/* The order that comes nearest to M with one factor, and A and B as `half` has them. */
typedef struct attempt {
    int half, order;
    size_t differing, beyond;
} attempt;

static attempt attempt_with(const operands *o, const merge_buffers *k, const float *product, double factor, int half,
                            lb_dtype dtype)
{
    const lb_dtype step = half ? halves[half] : dtype;
    attempt best = {half, 0, SIZE_MAX, 0};
    for (int order = 0; order < ORDERS; order++) {
        merged_weight(o, product, factor, order, step, dtype, k->expected);
        const size_t differing = count_differing(k->m, k->expected, o->out * o->in);
        if (differing < best.differing) best.differing = differing, best.order = order;
    }
    merged_weight(o, product, factor, best.order, step, dtype, k->expected);
    if (best.differing) best.beyond = count_beyond(o, k->m, k->expected, k->magnitude, factor, step, dtype, product);
    return best;
}

/* The same with A and B cast first; `beyond` is all of them where memory runs out. */
static attempt attempt_cast(const operands *o, const merge_buffers *k, double factor, int half, lb_dtype dtype)
{
    const size_t a = o->rank * o->in, b = o->out * o->rank, n = o->out * o->in;
    float *x = malloc(a * sizeof *x + 1), *y = malloc(b * sizeof *y + 1), *made = malloc(n * sizeof *made + 1);
    attempt best = {half, 0, SIZE_MAX, n};
    if (x && y && made) {
        memcpy(x, o->a, a * sizeof *x), memcpy(y, o->b, b * sizeof *y);
        round_all(x, a, halves[half]), round_all(y, b, halves[half]);
        if (outer(o, x, y, made) == LB_OK) best = attempt_with(o, k, made, factor, half, dtype);
    }
    free(x), free(y), free(made);
    return best;
}

/* With A and B as they are, unless casting them first explains what that does not, or far more of the bits. */
static attempt attempt_factor(const operands *o, const merge_buffers *k, double factor, lb_dtype dtype)
{
    attempt best = attempt_with(o, k, k->product, factor, 0, dtype);
    for (int half = 1; half < HALVES && best.differing; half++) {
        const attempt now = attempt_cast(o, k, factor, half, dtype);
        if (!now.beyond && (best.beyond || now.differing * 4 < best.differing)) best = now;
    }
    return best;
}

/* Numbers that the merged dtype could have held were lost. */
static void tell_cast(lb_audit_gathering *g, const attempt *how, lb_dtype dtype, lb_audit_where where)
{
    const lb_dtype half = halves[how->half];
    if (!how->half) return;
    if (lb_dtype_unit_roundoff(dtype) < lb_dtype_unit_roundoff(half))
        lb_audit_find(g, LB_AUDIT_MERGE_ROUNDED, where, "A and B were cast to %s before they were merged into %s: %s",
                      lb_dtype_name(half), lb_dtype_name(dtype), orders[how->half][how->order]);
    else
        lb_audit_note(g, LB_AUDIT_MERGE_ROUNDED, where, "A and B were cast to %s before they were merged into %s",
                      lb_dtype_name(half), lb_dtype_name(dtype));
}

/* What is told where A and B do not make the merged weight; whose base the making of the adapter changed, that is as it should be. */
static void tell_unexplained(lb_audit_gathering *g, const lb_adapter *adapter, lb_audit_where where, const char *text)
{
    if (adapter->changes_base)
        lb_audit_note(
            g, LB_AUDIT_MERGE_DIFFERS, where,
            "%s; init_lora_weights changed the base when the adapter was made, and this base is as it was before: "
            "--base the changed one to judge it",
            text);
    else
        lb_audit_find(g, LB_AUDIT_MERGE_DIFFERS, where, "%s", text);
}

static void judge_merge(lb_audit_gathering *g, const lb_adapter *adapter, const lb_adapter_module *m, const operands *o,
                        const merge_buffers *k, lb_dtype dtype, lb_audit_where where)
{
    const size_t n = o->out * o->in;
    lb_audit_merge *row = lb_audit_add_merge(g);
    if (!row) return;
    row->module = lb_audit_text(g, m->module);
    row->order = "";
    bool stated = adapter->configured;
    candidate tried = {adapter->rslora ? "alpha/sqrt(r)" : "alpha/r", m->scaling};
    for (int round = stated ? 0 : 1; round < 2; round++) {
        if (round) tried = choose(m, adapter, fitted(o, k->m, k->product));
        row->scaling = tried.name, row->factor = tried.factor;
        const bool same_as_base = count_differing(k->m, o->w, n) == 0;
        const attempt how = attempt_factor(o, k, tried.factor, dtype);
        merged_weight(o, k->product, tried.factor, 0, dtype, dtype, k->expected);
        if (how.differing && same_as_base && count_differing(k->expected, o->w, n) > 0) {
            row->scaling = "unmerged", row->factor = 0;
            lb_audit_find(g, LB_AUDIT_UNMERGED, where, "has the bits of the base's %s", m->weight->name);
            return;
        }
        if (how.differing && how.beyond) continue;
        row->order = orders[how.half][how.order], row->exact = how.differing == 0;
        if (round && stated)
            lb_audit_find(g, LB_AUDIT_MERGE_SCALING, where, "was merged with %s (%.6g); the configuration says %.6g",
                          tried.name, tried.factor, m->scaling);
        tell_cast(g, &how, dtype, where);
        return;
    }
    size_t worst = 0;
    merged_weight(o, k->product, m->scaling, 0, dtype, dtype, k->expected);
    for (size_t i = 1; i < n; i++)
        if (fabsf(k->m[i] - k->expected[i]) > fabsf(k->m[worst] - k->expected[worst])) worst = i;
    row->scaling = "none";
    char text[200];
    snprintf(text, sizeof text,
             "no scaling and order of roundings gives it; with %.6g it is off by %.3g at most, at [%zu, %zu]",
             m->scaling, fabs((double)k->m[worst] - (double)k->expected[worst]), worst / o->in, worst % o->in);
    tell_unexplained(g, adapter, where, text);
}

/* W + s B A in f64, each row brought to its length; `as_lora`: left as it is. The distance of M from it that f32 sums (of a row's
 * squares, too) and roundings to `dtype` leave. */
static size_t count_beyond_dora(const operands *o, const merge_buffers *k, lb_dtype dtype, bool as_lora)
{
    const double u = lb_dtype_unit_roundoff(dtype), f = lb_dtype_unit_roundoff(LB_F32);
    size_t beyond = 0;
    for (size_t r = 0; r < o->out; r++) {
        double squares = 0;
        for (size_t i = r * o->in; i < (r + 1) * o->in; i++) {
            const double v = (double)o->w[i] + o->s * (double)k->product[i];
            squares += v * v;
        }
        const double factor = as_lora ? 1 : (double)o->lengths[r] / sqrt(squares);
        for (size_t i = r * o->in; i < (r + 1) * o->in; i++) {
            const double v = factor * ((double)o->w[i] + o->s * (double)k->product[i]);
            const double added = u * fabs((double)k->product[i]) + ((double)o->rank + 2) * f * (double)k->magnitude[i];
            const double bound = 2 * (fabs(v) * (4 * u + ((double)o->in / 2 + 2) * f) + fabs(factor * o->s) * added);
            beyond += !(fabs((double)k->m[i] - v) <= bound + lb_dtype_min_subnormal(dtype));
        }
    }
    return beyond;
}

static void judge_dora(lb_audit_gathering *g, const lb_adapter *adapter, const lb_adapter_module *m, const operands *o,
                       const merge_buffers *k, lb_dtype dtype, lb_audit_where where)
{
    lb_audit_merge *row = lb_audit_add_merge(g);
    if (!row) return;
    row->module = lb_audit_text(g, m->module);
    row->order = "", row->scaling = "none", row->factor = m->scaling;
    if (!count_beyond_dora(o, k, dtype, false)) {
        row->scaling = "DoRA", row->order = "W + s B A, each row brought to its length";
    } else if (!count_differing(k->m, o->w, o->out * o->in)) {
        row->scaling = "unmerged", row->factor = 0;
        lb_audit_find(g, LB_AUDIT_UNMERGED, where, "has the bits of the base's %s", m->weight->name);
    } else if (!count_beyond_dora(o, k, dtype, true)) {
        row->scaling = "LoRA";
        lb_audit_find(g, LB_AUDIT_MERGE_DIFFERS, where,
                      "was merged as a LoRA: W + s B A without the lengths of its rows (lora_magnitude_vector)");
    } else {
        char text[120];
        snprintf(text, sizeof text, "is not W + %.6g B A with each row brought to its length", m->scaling);
        tell_unexplained(g, adapter, where, text);
    }
}

/* |B| |A|, which bounds what a sum of products in f32 may err. */
static lb_status magnitude_of(const operands *o, float *to, lb_err *err)
{
    const size_t n_a = o->rank * o->in, n_b = o->out * o->rank;
    float *a = malloc(n_a * sizeof *a + 1), *b = malloc(n_b * sizeof *b + 1);
    for (size_t i = 0; a && i < n_a; i++) a[i] = fabsf(o->a[i]);
    for (size_t i = 0; b && i < n_b; i++) b[i] = fabsf(o->b[i]);
    lb_status status = a && b ? outer(o, a, b, to) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    free(a), free(b);
    return status;
}

static lb_status check_merge(lb_audit_gathering *g, const lb_adapter *adapter, const lb_adapter_module *m,
                             const lb_inventory *merged, const lb_named *name, lb_err *err)
{
    const lb_checkpoint_piece *p = &merged->checkpoint->pieces[name->first];
    lb_adapter_module there = *m;
    float *w = NULL, *a = NULL, *b = NULL, *lengths = NULL;
    merge_buffers k = {NULL, NULL, NULL, NULL};
    operands o = {.in = (size_t)m->in, .out = (size_t)m->out, .rank = (size_t)m->rank, .s = m->scaling};
    const size_t n = o.out * o.in;
    there.held = merged, there.weight = name;
    lb_status status = lb_adapter_weight(m, &w, err);
    if (status == LB_OK) status = lb_adapter_weight(&there, &k.m, err);
    if (status == LB_OK) status = lb_adapter_numbers(adapter, m, &a, &b, err);
    if (status == LB_OK) status = lb_adapter_lengths(adapter, m, &lengths, err);
    k.product = (float *)malloc(n * sizeof(float) + 1);
    k.magnitude = (float *)malloc(n * sizeof(float) + 1);
    k.expected = (float *)malloc(n * sizeof(float) + 1);
    if (status == LB_OK && (!k.product || !k.magnitude || !k.expected))
        status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", m->module);
    o.w = w, o.a = a, o.b = b, o.lengths = lengths;
    if (status == LB_OK) status = outer(&o, a, b, k.product);
    if (status == LB_OK) status = magnitude_of(&o, k.magnitude, err);
    if (status == LB_OK && lengths)
        judge_dora(g, adapter, m, &o, &k, p->tensor.dtype, lb_where(merged, p));
    else if (status == LB_OK)
        judge_merge(g, adapter, m, &o, &k, p->tensor.dtype, lb_where(merged, p));
    free(w), free(a), free(b), free(lengths);
    free(k.m), free(k.product), free(k.magnitude), free(k.expected);
    return status;
}

/* Two names of one tied weight: the same bits before, and the same bits after. */
static bool follows_tied(const lb_adapter *adapter, const lb_inventory *merged, const lb_named *name,
                         const lb_named *there)
{
    const lb_inventory *base = adapter->base;
    for (uint32_t i = 0; i < base->n_names; i++) {
        const lb_named *other = &base->names[i],
                       *now = adapter->touched[i] ? lb_inventory_find(merged, other->name) : NULL;
        if (now && lb_digest_equal(base->measured[other->first].digest, base->measured[name->first].digest) &&
            lb_digest_equal(merged->measured[now->first].digest, merged->measured[there->first].digest))
            return true;
    }
    return false;
}

/* Weights that the adapter does not touch are the base's. */
static void check_untouched(lb_audit_gathering *g, const lb_adapter *adapter, const lb_inventory *merged)
{
    for (uint32_t i = 0; i < adapter->base->n_names; i++) {
        const lb_named *name = &adapter->base->names[i], *there = lb_inventory_find(merged, name->name);
        if (adapter->touched[i] || !there || there->n != 1 || name->n != 1) continue;
        const lb_checkpoint_piece *p = &merged->checkpoint->pieces[there->first];
        if (p->tensor.dtype == adapter->base->checkpoint->pieces[name->first].tensor.dtype &&
            !lb_digest_equal(merged->measured[there->first].digest, adapter->base->measured[name->first].digest) &&
            !follows_tied(adapter, merged, name, there))
            lb_audit_find(g, LB_AUDIT_DIFFERS, lb_where(merged, p),
                          "is not the base's, and the adapter does not touch it");
    }
}

/* What a grouped convolution's adapter adds, and its weight cannot hold, is lost in a merged checkpoint. */
static void tell_lost(lb_audit_gathering *g, const lb_adapter *adapter, const lb_adapter_module *m,
                      const lb_inventory *merged)
{
    const lb_named *name = lb_weight_of(merged, m->in_base);
    if (name && !lb_is_zero(&adapter->v->measured[m->b->first]))
        lb_audit_find(g, LB_AUDIT_UNMERGED, lb_where(merged, &merged->checkpoint->pieces[name->first]),
                      "what the adapter adds to it is lost: a convolution of %lld groups cannot hold it",
                      (long long)m->groups);
}

lb_status lb_audit_merged(lb_audit_gathering *g, const lb_adapter *adapter, const lb_inventory *merged, lb_err *err)
{
    for (uint32_t i = 0; i < adapter->n; i++) {
        const lb_adapter_module *m = &adapter->modules[i];
        lb_audit_progress(g, "merged weights", i, adapter->n);
        if (m->unmergeable) tell_lost(g, adapter, m, merged);
        if (!m->weight) continue;
        const lb_named *name = lb_weight_of(merged, m->in_base);
        const lb_layout *has = name ? &merged->checkpoint->pieces[name->first].whole : NULL,
                        *wants = &m->held->checkpoint->pieces[m->weight->first].whole;
        if (!name)
            lb_audit_find(g, LB_AUDIT_MISSING, (lb_audit_where){m->weight->name, NULL, NULL, 0},
                          "%s has no %s to hold what was merged", merged->checkpoint->path, m->weight->name);
        else if (!lb_layout_same_shape(has, wants))
            lb_audit_find(g, LB_AUDIT_SHAPE, lb_where(merged, &merged->checkpoint->pieces[name->first]),
                          "has another shape than the base's");
        else
            LB_TRY(check_merge(g, adapter, m, merged, name, err));
    }
    LB_TRY(lb_audit_saved(g, adapter, merged, err));
    check_untouched(g, adapter, merged);
    return LB_OK;
}
