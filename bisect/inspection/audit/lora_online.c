/* An adapter online and merged, in each precision.
 *
 * With W [out, in], A [r, in], B [out, r], s the scaling, x [rows, in], and D(.) rounding to a dtype, products with f32
 * sums:
 *
 *   online   y = D(D(x W^T) + D(s D(D(x A^T) B^T)))                          as peft computes a LoRA layer
 *   merged   y = D(x W'^T),  W' = D(W + D(s B A))                            as peft merges: the product in f32, then
 *            to D
 *   DoRA     f = D(l / D(|row|)) of each row, l its length                   as peft's DoraLinearLayer,
 *            tuners/lora/dora.py: online y + D(D(D(f - 1) y) + D(s D(f D(D(x A^T) B^T)))), rows of D(W + D(s D(B A)));
 *            merged D(f W'), rows of W'
 *   A convolution is the same product over the columns of its kernel: x is then what lies under the kernel.
 *            Products add up in blocks of 128 terms, as tiles of libraries do; one long chain would err more in f32.
 *   e4m3     W and W' are scaled by amax / 448 per tensor and rounded to e4m3fn; all else as in bf16
 */
#include "audit/adapter.h"

#include "functions/elementary.h"
#include "orders/matmul.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRECISIONS = 4 };
static const lb_dtype precisions[PRECISIONS] = {LB_F32, LB_F16, LB_BF16, LB_E4M3FN};

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

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

/* ---- one module -------------------------------------------------------------------------------------------------- */

/* Scratch of one module, of one precision at a time. */
typedef struct scratch {
    float *x, *w, *a, *b, *merged, *t, *u, *y, *z, *factors;
} scratch;

static void scratch_release(scratch *k)
{
    free(k->x), free(k->w), free(k->a), free(k->b), free(k->merged), free(k->t), free(k->u), free(k->y), free(k->z);
    free(k->factors);
}

static bool scratch_init(scratch *k, const lb_adapter_operands *o)
{
    const size_t f = sizeof(float);
    *k = (scratch){malloc(o->rows * o->in * f + 1),  malloc(o->out * o->in * f + 1),
                   malloc(o->rank * o->in * f + 1),  malloc(o->out * o->rank * f + 1),
                   malloc(o->out * o->in * f + 1),   malloc(o->rows * o->rank * f + 1),
                   malloc(o->rows * o->out * f + 1), malloc(o->rows * o->out * f + 1),
                   malloc(o->rows * o->out * f + 1), malloc(o->out * f + 1)};
    return k->factors && k->x && k->w && k->a && k->b && k->merged && k->t && k->u && k->y && k->z;
}

static void quantise(float *x, size_t n)
{
    float top = 0;
    for (size_t i = 0; i < n; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    const float scale = top > 0 ? top / 448 : 1;
    for (size_t i = 0; i < n; i++) x[i] /= scale;
    lb_adapter_round(x, n, LB_E4M3FN);
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

/* DoRA's factors: each row's length over the norm of that row of `v`. */
static void find_factors(const lb_adapter_operands *o, const float *v, lb_dtype d, float *factors)
{
    for (size_t r = 0; r < o->out; r++) {
        double squares = 0;
        for (size_t i = 0; i < o->in; i++) squares += (double)v[r * o->in + i] * (double)v[r * o->in + i];
        float norm = (float)sqrt(squares);
        lb_adapter_round(&norm, 1, d);
        factors[r] = o->lengths[r] / norm;
    }
    lb_adapter_round(factors, o->out, d);
}

/* D(W + D(s B A)); `twice`: B A is rounded, too, before it is scaled. */
static lb_status add_product(const lb_adapter_operands *o, const scratch *k, lb_dtype d, bool twice, float *to)
{
    const size_t weights = o->out * o->in;
    const float s = (float)o->s;
    LB_TRY(lb_adapter_outer(o, k->a, k->b, to));
    if (twice) lb_adapter_round(to, weights, d);
    for (size_t i = 0; i < weights; i++) to[i] *= s;
    lb_adapter_round(to, weights, d);
    for (size_t i = 0; i < weights; i++) to[i] += k->w[i];
    lb_adapter_round(to, weights, d);
    return LB_OK;
}

static lb_status run_merged(const lb_adapter_operands *o, lb_dtype d, bool narrow, scratch *k)
{
    const size_t weights = o->out * o->in;
    LB_TRY(add_product(o, k, d, false, k->merged));
    if (o->lengths) {
        find_factors(o, k->merged, d, k->factors);
        for (size_t i = 0; i < weights; i++) k->merged[i] *= k->factors[i / o->in];
        lb_adapter_round(k->merged, weights, d);
    }
    if (narrow) quantise(k->merged, weights);
    LB_TRY(product(o->rows, o->out, o->in, k->x, k->merged, k->z));
    lb_adapter_round(k->z, o->rows * o->out, d);
    return LB_OK;
}

/* y becomes y + the adapter's, whose own result is u. */
static void add_lora(const lb_adapter_operands *o, lb_dtype d, scratch *k)
{
    const size_t results = o->rows * o->out;
    const float s = (float)o->s;
    for (size_t i = 0; i < results && o->lengths; i++) k->u[i] *= k->factors[i % o->out];
    if (o->lengths) lb_adapter_round(k->u, results, d);
    for (size_t i = 0; i < results; i++) k->u[i] *= s;
    lb_adapter_round(k->u, results, d);
    if (o->lengths) {
        for (size_t r = 0; r < o->out; r++) k->factors[r] -= 1;
        lb_adapter_round(k->factors, o->out, d);
        for (size_t i = 0; i < results; i++) {
            float more = k->y[i] * k->factors[i % o->out];
            lb_adapter_round(&more, 1, d);
            k->u[i] += more;
        }
        lb_adapter_round(k->u, results, d);
    }
    for (size_t i = 0; i < results; i++) k->y[i] += k->u[i];
    lb_adapter_round(k->y, results, d);
}

static lb_status run_online(const lb_adapter_operands *o, lb_dtype d, bool narrow, scratch *k)
{
    if (o->lengths) {
        LB_TRY(add_product(o, k, d, true, k->merged));
        find_factors(o, k->merged, d, k->factors);
    }
    if (narrow) quantise(k->w, o->out * o->in);
    LB_TRY(product(o->rows, o->out, o->in, k->x, k->w, k->y));
    LB_TRY(product(o->rows, o->rank, o->in, k->x, k->a, k->t));
    lb_adapter_round(k->y, o->rows * o->out, d);
    lb_adapter_round(k->t, o->rows * o->rank, d);
    LB_TRY(product(o->rows, o->out, o->rank, k->t, k->b, k->u));
    lb_adapter_round(k->u, o->rows * o->out, d);
    add_lora(o, d, k);
    return LB_OK;
}

/* y: online, z: merged. */
static lb_status run_precision(const lb_adapter_operands *o, lb_dtype dtype, scratch *k)
{
    const bool narrow = dtype == LB_E4M3FN;
    const lb_dtype d = narrow ? LB_BF16 : dtype;
    memcpy(k->x, o->x, o->rows * o->in * sizeof(float));
    memcpy(k->w, o->w, o->out * o->in * sizeof(float));
    memcpy(k->a, o->a, o->rank * o->in * sizeof(float));
    memcpy(k->b, o->b, o->out * o->rank * sizeof(float));
    lb_adapter_round(k->x, o->rows * o->in, d);
    lb_adapter_round(k->w, o->out * o->in, d);
    lb_adapter_round(k->a, o->rank * o->in, d);
    lb_adapter_round(k->b, o->out * o->rank, d);
    LB_TRY(run_merged(o, d, narrow, k));
    return run_online(o, d, narrow, k);
}

/* Over one module, or over all. */
typedef struct distance {
    double max_abs, rel_max, difference, reference; /* the last two: sums of squares */
} distance;

/* An output near zero, where large terms cancel, would make any difference a multiple of it: none is measured by less
 * than the outputs' root mean square. */
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
    lb_adapter_operands o = {.in = (size_t)m->in, .out = (size_t)m->out, .rank = (size_t)m->rank, .s = m->scaling};
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

lb_status lb_lora_online_audit(lb_audit_gathering *g, const lb_adapter *adapter, lb_err *err)
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
