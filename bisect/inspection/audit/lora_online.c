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
static const lb_checkpoint_piece *inputs_of(const lb_inventory *inputs, const lb_adapter_module *module)
{
    for (uint32_t i = 0; inputs && i < inputs->n_names; i++) {
        const lb_checkpoint_piece *piece = &inputs->checkpoint->pieces[inputs->names[i].first];
        bool named = strstr(piece->name, module->module) != NULL || inputs->n_names == 1;
        if (named && piece->tensor.layout.ndim >= 2 &&
            piece->tensor.layout.shape[piece->tensor.layout.ndim - 1] == module->in)
            return piece;
    }
    return NULL;
}

static lb_status make_inputs(const lb_audit_gathering *gathering, const lb_inventory *inputs,
                             const lb_adapter_module *module, float **x, size_t *rows, lb_err *err)
{
    const lb_checkpoint_piece *piece = inputs_of(inputs, module);
    if (piece) {
        lb_whole whole = {piece->tensor, NULL};
        *rows = (size_t)(lb_layout_numel(&piece->tensor.layout) / module->in);
        *x = lb_whole_numbers(&whole, err);
    } else {
        *rows = gathering->options->rows ? gathering->options->rows : 16;
        *x = (float *)malloc(*rows * (size_t)module->in * sizeof **x);
        if (*x) fill_normal(*x, *rows * (size_t)module->in, gathering->options->seed);
    }
    return *x ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", module->module);
}

/* ---- one module -------------------------------------------------------------------------------------------------- */

/* Scratch of one module, of one precision at a time. */
typedef struct scratch {
    float *x, *w, *a, *b, *merged, *t, *u, *y, *z, *factors;
} scratch;

static void scratch_release(scratch *scratch)
{
    free(scratch->x), free(scratch->w), free(scratch->a), free(scratch->b), free(scratch->merged), free(scratch->t),
        free(scratch->u), free(scratch->y), free(scratch->z);
    free(scratch->factors);
}

static bool scratch_init(scratch *k, const lb_adapter_operands *operands)
{
    const size_t f = sizeof(float);
    *k = (scratch){malloc(operands->rows * operands->in * f + 1),  malloc(operands->out * operands->in * f + 1),
                   malloc(operands->rank * operands->in * f + 1),  malloc(operands->out * operands->rank * f + 1),
                   malloc(operands->out * operands->in * f + 1),   malloc(operands->rows * operands->rank * f + 1),
                   malloc(operands->rows * operands->out * f + 1), malloc(operands->rows * operands->out * f + 1),
                   malloc(operands->rows * operands->out * f + 1), malloc(operands->out * f + 1)};
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
static void find_factors(const lb_adapter_operands *operands, const float *v, lb_dtype dtype, float *factors)
{
    for (size_t r = 0; r < operands->out; r++) {
        double squares = 0;
        for (size_t i = 0; i < operands->in; i++)
            squares += (double)v[r * operands->in + i] * (double)v[r * operands->in + i];
        float norm = (float)sqrt(squares);
        lb_adapter_round(&norm, 1, dtype);
        factors[r] = operands->lengths[r] / norm;
    }
    lb_adapter_round(factors, operands->out, dtype);
}

/* D(W + D(s B A)); `twice`: B A is rounded, too, before it is scaled. */
static lb_status add_product(const lb_adapter_operands *operands, const scratch *scratch, lb_dtype dtype, bool twice,
                             float *to)
{
    const size_t weights = operands->out * operands->in;
    const float s = (float)operands->s;
    LB_TRY(lb_adapter_outer(operands, scratch->a, scratch->b, to));
    if (twice) lb_adapter_round(to, weights, dtype);
    for (size_t i = 0; i < weights; i++) to[i] *= s;
    lb_adapter_round(to, weights, dtype);
    for (size_t i = 0; i < weights; i++) to[i] += scratch->w[i];
    lb_adapter_round(to, weights, dtype);
    return LB_OK;
}

static lb_status run_merged(const lb_adapter_operands *operands, lb_dtype dtype, bool narrow, scratch *scratch)
{
    const size_t weights = operands->out * operands->in;
    LB_TRY(add_product(operands, scratch, dtype, false, scratch->merged));
    if (operands->lengths) {
        find_factors(operands, scratch->merged, dtype, scratch->factors);
        for (size_t i = 0; i < weights; i++) scratch->merged[i] *= scratch->factors[i / operands->in];
        lb_adapter_round(scratch->merged, weights, dtype);
    }
    if (narrow) quantise(scratch->merged, weights);
    LB_TRY(product(operands->rows, operands->out, operands->in, scratch->x, scratch->merged, scratch->z));
    lb_adapter_round(scratch->z, operands->rows * operands->out, dtype);
    return LB_OK;
}

/* y becomes y + the adapter's, whose own result is u. */
static void add_lora(const lb_adapter_operands *operands, lb_dtype dtype, scratch *scratch)
{
    const size_t results = operands->rows * operands->out;
    const float s = (float)operands->s;
    for (size_t i = 0; i < results && operands->lengths; i++) scratch->u[i] *= scratch->factors[i % operands->out];
    if (operands->lengths) lb_adapter_round(scratch->u, results, dtype);
    for (size_t i = 0; i < results; i++) scratch->u[i] *= s;
    lb_adapter_round(scratch->u, results, dtype);
    if (operands->lengths) {
        for (size_t r = 0; r < operands->out; r++) scratch->factors[r] -= 1;
        lb_adapter_round(scratch->factors, operands->out, dtype);
        for (size_t i = 0; i < results; i++) {
            float more = scratch->y[i] * scratch->factors[i % operands->out];
            lb_adapter_round(&more, 1, dtype);
            scratch->u[i] += more;
        }
        lb_adapter_round(scratch->u, results, dtype);
    }
    for (size_t i = 0; i < results; i++) scratch->y[i] += scratch->u[i];
    lb_adapter_round(scratch->y, results, dtype);
}

static lb_status run_online(const lb_adapter_operands *operands, lb_dtype dtype, bool narrow, scratch *scratch)
{
    if (operands->lengths) {
        LB_TRY(add_product(operands, scratch, dtype, true, scratch->merged));
        find_factors(operands, scratch->merged, dtype, scratch->factors);
    }
    if (narrow) quantise(scratch->w, operands->out * operands->in);
    LB_TRY(product(operands->rows, operands->out, operands->in, scratch->x, scratch->w, scratch->y));
    LB_TRY(product(operands->rows, operands->rank, operands->in, scratch->x, scratch->a, scratch->t));
    lb_adapter_round(scratch->y, operands->rows * operands->out, dtype);
    lb_adapter_round(scratch->t, operands->rows * operands->rank, dtype);
    LB_TRY(product(operands->rows, operands->out, operands->rank, scratch->t, scratch->b, scratch->u));
    lb_adapter_round(scratch->u, operands->rows * operands->out, dtype);
    add_lora(operands, dtype, scratch);
    return LB_OK;
}

/* y: online, z: merged. */
static lb_status run_precision(const lb_adapter_operands *operands, lb_dtype dtype, scratch *scratch)
{
    const bool narrow = dtype == LB_E4M3FN;
    const lb_dtype type = narrow ? LB_BF16 : dtype;
    memcpy(scratch->x, operands->x, operands->rows * operands->in * sizeof(float));
    memcpy(scratch->w, operands->w, operands->out * operands->in * sizeof(float));
    memcpy(scratch->a, operands->a, operands->rank * operands->in * sizeof(float));
    memcpy(scratch->b, operands->b, operands->out * operands->rank * sizeof(float));
    lb_adapter_round(scratch->x, operands->rows * operands->in, type);
    lb_adapter_round(scratch->w, operands->out * operands->in, type);
    lb_adapter_round(scratch->a, operands->rank * operands->in, type);
    lb_adapter_round(scratch->b, operands->out * operands->rank, type);
    LB_TRY(run_merged(operands, type, narrow, scratch));
    return run_online(operands, type, narrow, scratch);
}

/* Over one module, or over all. */
typedef struct distance {
    double max_abs, rel_max, difference, reference; /* the last two: sums of squares */
} distance;

/* An output near zero, where large terms cancel, would make any difference a multiple of it: none is measured by less
 * than the outputs' root mean square. */
static distance measure(const float *online, const float *merged, size_t n)
{
    distance distance = {0, 0, 0, 0};
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)online[i] * (double)online[i];
    const double usual = n ? sqrt(squares / (double)n) : 0;
    for (size_t i = 0; i < n; i++) {
        double y = online[i], e = fabs((double)merged[i] - y);
        if (e > distance.max_abs) distance.max_abs = e;
        const double by = fabs(y) > usual ? fabs(y) : usual;
        if (by > 0 && e / by > distance.rel_max) distance.rel_max = e / by;
        distance.difference += e * e;
        distance.reference += y * y;
    }
    return distance;
}

static void add_row(lb_audit_gathering *gathering, const char *module, lb_dtype dtype, const distance *distance)
{
    lb_audit_precision *row = lb_audit_add_precision(gathering);
    if (!row) return;
    row->module = lb_audit_text(gathering, module);
    row->dtype = dtype;
    row->max_abs = distance->max_abs;
    row->rel_max = distance->rel_max;
    row->rel_l2 = distance->reference > 0    ? sqrt(distance->difference / distance->reference)
                  : distance->difference > 0 ? INFINITY
                                             : 0;
}

static lb_status run_module(lb_audit_gathering *gathering, const lb_adapter *adapter, const lb_adapter_module *module,
                            const lb_inventory *inputs, distance *all, lb_err *err)
{
    float *x = NULL, *weight = NULL, *a = NULL, *b = NULL, *lengths = NULL;
    scratch scratch = {0};
    lb_adapter_operands operands = {
        .in = (size_t)module->in, .out = (size_t)module->out, .rank = (size_t)module->rank, .s = module->scaling};
    lb_status status = make_inputs(gathering, inputs, module, &x, &operands.rows, err);
    if (status == LB_OK) status = lb_adapter_weight(module, &weight, err);
    if (status == LB_OK) status = lb_adapter_numbers(adapter, module, &a, &b, err);
    if (status == LB_OK) status = lb_adapter_lengths(adapter, module, &lengths, err);
    operands.x = x, operands.w = weight, operands.a = a, operands.b = b, operands.lengths = lengths;
    if (status == LB_OK && !scratch_init(&scratch, &operands))
        status = lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", module->module);
    for (int i = 0; i < PRECISIONS && status == LB_OK; i++) {
        status = run_precision(&operands, precisions[i], &scratch);
        distance d = measure(scratch.y, scratch.z, operands.rows * operands.out);
        add_row(gathering, module->module, precisions[i], &d);
        if (d.max_abs > all[i].max_abs) all[i].max_abs = d.max_abs;
        if (d.rel_max > all[i].rel_max) all[i].rel_max = d.rel_max;
        all[i].difference += d.difference;
        all[i].reference += d.reference;
    }
    scratch_release(&scratch);
    free(x), free(weight), free(a), free(b), free(lengths);
    return status;
}

lb_status lb_lora_online_audit(lb_audit_gathering *gathering, const lb_adapter *adapter, lb_err *err)
{
    lb_checkpoint *checkpoint = NULL;
    lb_inventory *inputs = NULL;
    distance all[PRECISIONS] = {{0, 0, 0, 0}};
    uint32_t done = 0;
    lb_status status = LB_OK;
    if (gathering->options->inputs) status = lb_checkpoint_open(gathering->options->inputs, &checkpoint, err);
    if (checkpoint) status = lb_inventory_new(checkpoint, false, gathering, &inputs, err);
    for (uint32_t i = 0; i < adapter->n && status == LB_OK; i++) {
        const lb_adapter_module *module = &adapter->modules[i];
        lb_audit_progress(gathering, "online and merged", i, adapter->n);
        if (!module->weight || strstr(module->a->name, "embedding_A")) continue;
        if (inputs && !inputs_of(inputs, module))
            lb_audit_note(gathering, LB_AUDIT_SHAPE, (lb_audit_where){module->module, NULL, NULL, 0},
                          "--inputs has no [rows, %lld] for it: unit normal numbers are taken", (long long)module->in);
        status = run_module(gathering, adapter, module, inputs, all, err);
        done++;
    }
    for (int i = 0; i < PRECISIONS && done; i++) add_row(gathering, NULL, precisions[i], &all[i]);
    lb_inventory_free(inputs);
    lb_checkpoint_close(checkpoint);
    return status;
}
