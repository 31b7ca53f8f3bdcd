/* torch's CPU sum; see torch_sum.h. The loops over dimensions are torch's, the sums themselves are schedule.c's. */
#include "orders/torch_sum.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK 32 /* columns summed side by side; divides torch's own split over threads */

typedef struct dimension {
    int64_t size, in, out, dense; /* strides of the input, of torch's result (0: reduced), of `out` */
} dimension;

typedef struct plan {
    const lb_tensor *in;
    int n, reduced; /* dimensions left; the first `reduced` are summed */
    dimension dim[LB_MAX_DIMS];
    int lanes, vector; /* lanes of the accumulators, elements of a loaded vector */
    lb_dtype compute, accumulate;
} plan;

/* 1: `a` belongs after `b`, -1: before, 0: cannot tell. */
static int compare(const dimension *a, const dimension *b)
{
    if ((a->out == 0) != (b->out == 0)) return b->out == 0 ? 1 : -1;
    const int64_t strides[2][2] = {{a->out, b->out}, {a->in, b->in}};
    for (int i = 0; i < 2; i++) {
        int64_t s = strides[i][0], t = strides[i][1];
        if (!s || !t) continue;
        if (s != t) return s < t ? -1 : 1;
        if (a->size > b->size) return 1;
    }
    return 0;
}

static void sort(plan *plan)
{
    for (int i = 1; i < plan->n; i++) {
        for (int a = i - 1, b = i; a >= 0; a--) {
            int c = compare(&plan->dim[a], &plan->dim[b]);
            if (c < 0) break;
            if (c > 0) {
                dimension swap = plan->dim[a];
                plan->dim[a] = plan->dim[b], plan->dim[b] = swap;
                b = a;
            }
        }
    }
}

static void merge(plan *plan)
{
    int last = 0;
    for (int i = 1; i < plan->n; i++) {
        dimension *a = &plan->dim[last], *b = &plan->dim[i];
        bool joins = a->size * a->in == b->in && a->size * a->out == b->out && a->size * a->dense == b->dense;
        if (a->size == 1 || b->size == 1 || joins) {
            if (a->size == 1) a->in = b->in, a->out = b->out, a->dense = b->dense;
            a->size *= b->size;
        } else {
            plan->dim[++last] = *b;
        }
    }
    plan->n = last + 1;
    plan->reduced = 0;
    while (plan->reduced < plan->n && plan->dim[plan->reduced].out == 0) plan->reduced++;
}

static void make_plan(plan *plan, const lb_tensor *in, uint32_t reduced, const int64_t *kept_stride)
{
    plan->n = in->layout.ndim;
    int64_t dense = 1;
    for (int d = 0; d < plan->n; d++) { /* torch starts with the last dimension first */
        int from = plan->n - 1 - d;
        bool sum = reduced >> from & 1;
        int64_t size = in->layout.shape[from];
        plan->dim[d] = (dimension){size, in->layout.stride[from], sum ? 0 : kept_stride[from], sum ? 0 : dense};
        if (!sum) {
            if (!plan->dim[d].out) plan->dim[d].out = 1;
            dense *= size;
        }
    }
    if (plan->n == 0) plan->dim[plan->n++] = (dimension){1, 1, 0, 0};
    sort(plan);
    merge(plan);
}

/* Elements from `offset` on as f32; borrowed where they lie as such. */
static const float *row(const plan *plan, int64_t offset, int64_t stride, int64_t n, float *buffer)
{
    const char *src = (const char *)plan->in->data + offset * (int64_t)(lb_dtype_bits(plan->in->dtype) / 8);
    bool rounds = plan->compute && plan->compute != LB_F32;
    if (plan->in->dtype == LB_F32 && stride == 1 && !rounds) return (const float *)src;
    lb_load_f32_strided(buffer, plan->in->dtype, src, (ptrdiff_t)stride, (size_t)n);
    if (rounds) lb_round_to_grid_f32(buffer, (size_t)n, plan->compute, NULL);
    return buffer;
}

/* One contiguous row by vectors. Rows of 16-bit elements enter two halves at a time. */
static float sum_row(const plan *plan, const float *x, int64_t n, float *buffer)
{
    int64_t vectors = n / plan->vector, tail = n % plan->vector;
    if (plan->vector == 2 * plan->lanes) {
        for (int64_t v = 0; v < vectors; v++) /* buffer may be x: what is written was read before */
            for (int l = 0; l < plan->lanes; l++)
                buffer[v * plan->lanes + l] = x[v * plan->vector + l] + x[v * plan->vector + plan->lanes + l];
        if (plan->accumulate) lb_round_to_grid_f32(buffer, (size_t)(vectors * plan->lanes), plan->accumulate, NULL);
        return lb_schedule_cascade_f32(buffer, vectors, plan->lanes, x + n - tail, tail, plan->accumulate);
    }
    return lb_schedule_cascade_f32(x, vectors, plan->lanes, x + n - tail, tail, plan->accumulate);
}

static float sum_scalar_row(const plan *plan, int64_t offset, int64_t stride, int64_t n, float *buffer)
{
    return lb_schedule_cascade_f32(row(plan, offset, stride, n, buffer), n, 1, NULL, 0, plan->accumulate);
}

typedef enum way { INNER_VECTORS, OUTER_VECTORS, INNER_SCALARS, OUTER_SCALARS } way;

/* Two dimensions that are summed at a time: all of `down`, for each place of `across`. */
typedef struct plane {
    way how;
    const dimension *down, *across;
} plane;

/* `width` <= BLOCK places of `across` from `offset` on. */
static void sum_columns(const plan *plan, const plane *of, int64_t offset, int64_t width, float *buffer, float *out)
{
    const lb_schedule schedule = {LB_SCHEDULE_CASCADE, of->how == OUTER_VECTORS ? plan->lanes : 1, 0};
    const int64_t n = of->down->size, stride = of->down->in, step = of->across->in;
    bool rounds = plan->compute && plan->compute != LB_F32;
    if (plan->in->dtype == LB_F32 && step == 1 && !rounds) {
        lb_schedule_sum_columns_f32(&schedule, (const float *)plan->in->data + offset, stride, n, width, out,
                                    plan->accumulate);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const float *x = row(plan, offset + i * stride, step, width, buffer + i * width);
        if (x != buffer + i * width) memcpy(buffer + i * width, x, (size_t)width * sizeof *x);
    }
    lb_schedule_sum_columns_f32(&schedule, buffer, width, n, width, out, plan->accumulate);
}

static void add_to_result(const plan *plan, float *out, float value)
{
    *out += value;
    if (plan->accumulate) lb_round_to_grid_f32(out, 1, plan->accumulate, NULL);
}

static way choose(const plan *plan, const dimension *d0, const dimension *d1)
{
    if (d0->in == 1 && d0->size >= plan->vector) return INNER_VECTORS;
    if (d1->in == 1 && d1->size >= plan->vector) return OUTER_VECTORS;
    return d0->in < d1->in ? INNER_SCALARS : OUTER_SCALARS;
}

/* The sums at places first..first+count of `across`, added to `out` with stride across->dense (0: all to one). */
static void sum_plane(const plan *plan, const plane *of, int64_t offset, int64_t first, int64_t count, float *buffer,
                      float *out)
{
    const dimension *d0 = of->down, *d1 = of->across;
    if (of->how == INNER_VECTORS || of->how == INNER_SCALARS) {
        for (int64_t j = first; j < first + count; j++) {
            int64_t at = offset + j * d1->in;
            float sum = of->how == INNER_SCALARS ? sum_scalar_row(plan, at, d0->in, d0->size, buffer)
                                                 : sum_row(plan, row(plan, at, 1, d0->size, buffer), d0->size, buffer);
            add_to_result(plan, out + j * d1->dense, sum);
        }
        return;
    }
    float sums[BLOCK];
    for (int64_t j = first; j < first + count; j += BLOCK) {
        int64_t width = first + count - j < BLOCK ? first + count - j : BLOCK;
        sum_columns(plan, of, offset + j * d1->in, width, buffer, sums);
        for (int64_t k = 0; k < width; k++) add_to_result(plan, out + (j + k) * d1->dense, sums[k]);
    }
}

/* Splits a flat index over dims first..n into offsets; dims are counted fastest first. */
static void locate(const plan *plan, int first, int end, int64_t index, int64_t *in, int64_t *dense)
{
    for (int d = first; d < end; d++) {
        int64_t i = index % plan->dim[d].size;
        index /= plan->dim[d].size;
        *in += i * plan->dim[d].in;
        *dense += i * plan->dim[d].dense;
    }
}

static int64_t count(const plan *plan, int first, int end)
{
    int64_t n = 1;
    for (int d = first; d < end; d++) n *= plan->dim[d].size;
    return n;
}

static bool run(const plan *plan, float *out)
{
    static const dimension one = {1, 0, 0, 0};
    bool plane_reduced = plan->reduced >= 2;
    const dimension *d0 = &plan->dim[0], *d1 = plan->n > 1 ? &plan->dim[1] : &one;
    const plane of = {choose(plan, d0, d1), d0, d1};
    int first_kept = plane_reduced ? plan->reduced : plan->n < 2 ? 1 : 2;
    int64_t outer = plane_reduced ? count(plan, 2, plan->reduced) : 1, kept = count(plan, first_kept, plan->n);
    int64_t pieces = plane_reduced ? 1 : (d1->size + BLOCK - 1) / BLOCK;
    bool failed = false;
    int64_t room = d0->size * (of.how == INNER_VECTORS || of.how == INNER_SCALARS ? 1 : BLOCK);
#pragma omp parallel if (kept * pieces > 1 && d0->size * d1->size * kept * outer > 65536)
    {
        float *buffer = malloc((size_t)room * sizeof *buffer + 64);
        if (!buffer) {
#pragma omp atomic write
            failed = true;
        }
#pragma omp for schedule(static)
        for (int64_t task = 0; task < kept * pieces; task++) {
            int64_t in = 0, dense = 0, piece = task % pieces * BLOCK;
            if (!buffer) continue;
            locate(plan, first_kept, plan->n, task / pieces, &in, &dense);
            int64_t width = plane_reduced ? d1->size : d1->size - piece < BLOCK ? d1->size - piece : BLOCK;
            for (int64_t o = 0; o < outer; o++) {
                int64_t at = in, none = 0;
                if (plane_reduced) locate(plan, 2, plan->reduced, o, &at, &none);
                sum_plane(plan, &of, at, piece, width, buffer, out + dense);
            }
        }
        free(buffer);
    }
    return !failed;
}

lb_status lb_torch_sum(const lb_tensor *in, const lb_torch_sum_way *way, float *out, lb_err *err)
{
    plan plan = {.in = in, .lanes = way->lanes, .vector = way->lanes};
    plan.compute = way->compute, plan.accumulate = way->accumulate;
    if (in->dtype == way->dtype && lb_dtype_bits(way->dtype) == 16) plan.vector = 2 * way->lanes;
    make_plan(&plan, in, way->reduced, way->kept_stride);
    int64_t n = count(&plan, plan.reduced, plan.n);
    memset(out, 0, (size_t)n * sizeof *out);
    if (lb_layout_numel(&in->layout) == 0) return LB_OK;
    if (plan.reduced == 0) { /* nothing is summed: 0 + x */
        for (int64_t i = 0; i < n; i++) {
            int64_t at = 0, dense = 0;
            float x;
            locate(&plan, 0, plan.n, i, &at, &dense);
            out[dense] += *row(&plan, at, 2, 1, &x);
        }
        return LB_OK;
    }
    if (!run(&plan, out)) return lb_fail(err, LB_ERR_NOMEM, "no memory for a row of a sum");
    return LB_OK;
}
