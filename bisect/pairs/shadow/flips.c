/* Rows that follow from a choice made differently: see flips.h. */
#include "shadow/flips.h"

#include "shadow/shadow_numbers.h"
#include "shadow/cross_feed.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

static int64_t rows_of(const lb_layout *layout)
{
    int64_t rows = 1;
    if (layout->ndim < 2) return lb_layout_numel(layout);
    for (int d = 0; d + 1 < layout->ndim; d++) rows *= layout->shape[d];
    return rows;
}

/* Integers as f64: ids and positions are far below 2^53. */
static double *numbers_of(const lb_program_view *side, uint32_t value, int64_t n)
{
    lb_tensor t;
    if (lb_program_view_value(side, value, &t, NULL) != LB_OK || lb_layout_numel(&t.layout) != n) return NULL;
    double *x = malloc((size_t)n * sizeof *x);
    if (x) lb_shadow_numbers(&t, x);
    return x;
}

/* False: out of memory. Values that were not kept flip nothing. */
static bool add_flip(lb_flips *flips, uint32_t op, int64_t rows, int64_t width, const double *a, const double *b)
{
    lb_flip *list = lb_array_grow(flips->list, flips->n, sizeof *list);
    if (!list) return false;
    flips->list = list;
    uint8_t *flipped = calloc((size_t)rows + 1, 1);
    if (!flipped) return false;
    for (int64_t r = 0; r < rows; r++)
        flipped[r] = memcmp(a + r * width, b + r * width, (size_t)width * sizeof *a) != 0;
    flips->list[flips->n++] = (lb_flip){op, rows, width, flipped};
    return true;
}

static bool add_pair(lb_flips *flips, const lb_program_view *a, uint32_t va, const lb_program_view *b, uint32_t vb,
                     uint32_t op)
{
    const lb_value *x = &a->program->values[va], *y = &b->program->values[vb];
    if (x->dtype != y->dtype || !lb_dtype_is_integer(x->dtype) || !lb_layout_same_shape(&x->layout, &y->layout))
        return true;
    if (!lb_program_view_values_differ(a, va, b, vb)) return true;
    const int64_t n = lb_layout_numel(&x->layout), rows = rows_of(&x->layout);
    if (n <= 0) return true;
    double *p = numbers_of(a, va, n), *q = numbers_of(b, vb, n);
    const bool done = !p || !q || add_flip(flips, op, rows, n / rows, p, q);
    free(p), free(q);
    return done;
}

lb_status lb_flips_find(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                        lb_flips *flips, lb_err *err)
{
    *flips = (lb_flips){0};
    for (uint32_t ib = 0; ib < b->program->n_ops; ib++) {
        const uint32_t ia = alignment->a_of_b[ib];
        if (ia == LB_NONE || !lb_cross_feed_rebases(alignment, a, ia, b, ib)) continue;
        const lb_op *x = &a->program->ops[ia], *y = &b->program->ops[ib];
        for (uint32_t i = 0; i < x->results && i < y->results; i++) {
            const uint32_t va = lb_op_results(a->program, x)[i], vb = lb_op_results(b->program, y)[i];
            if (va == LB_NONE || vb == LB_NONE || add_pair(flips, a, va, b, vb, ib)) continue;
            lb_flips_release(flips);
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for the choices of %u ops", b->program->n_ops);
        }
    }
    return LB_OK;
}

void lb_flips_release(lb_flips *flips)
{
    for (uint32_t i = 0; i < flips->n; i++) free(flips->list[i].flipped);
    free(flips->list);
    *flips = (lb_flips){0};
}

int64_t lb_flips_count(const lb_flip *flip)
{
    int64_t n = 0;
    for (int64_t r = 0; r < flip->rows; r++) n += flip->flipped[r];
    return n * flip->width;
}

/* Is there a leading part of the shape that counts `rows`? */
static bool has_rows(const lb_layout *layout, int64_t rows)
{
    int64_t n = 1;
    for (int d = 0; d < layout->ndim && n < rows; d++) n *= layout->shape[d];
    return n == rows;
}

/* Copies A's rows for flipped tokens where the others agree. */
static int64_t settle(const uint8_t *flipped, int64_t rows, int64_t n, const double *a, double *b, double noise)
{
    const int64_t width = n / rows;
    const size_t bytes = (size_t)n * sizeof *b;
    int64_t settled = 0;
    double *mended = malloc(bytes);
    if (!mended) return 0;
    memcpy(mended, b, bytes);
    for (int64_t r = 0; r < rows; r++) {
        if (!flipped[r]) continue;
        settled += memcmp(a + r * width, b + r * width, (size_t)width * sizeof *b) != 0;
        memcpy(mended + r * width, a + r * width, (size_t)width * sizeof *b);
    }
    if (!lb_shadow_numbers_agree(a, mended, n, noise)) settled = 0;
    if (settled) memcpy(b, mended, bytes);
    free(mended);
    return settled;
}

/* Several choices of as many rows (two layers of experts) explain together what none explains alone. */
int64_t lb_flips_settle(const lb_flips *flips, uint64_t which, const lb_layout *layout, const double *a, double *b,
                        double noise)
{
    const int64_t n = lb_layout_numel(layout);
    for (uint32_t i = 0; i < flips->n; i++) {
        const int64_t rows = flips->list[i].rows;
        if (!(which & lb_flips_bit(i)) || n <= 0 || n % rows || !has_rows(layout, rows)) continue;
        uint8_t *any = calloc((size_t)rows, 1);
        if (!any) return 0;
        for (uint32_t k = 0; k < flips->n; k++)
            for (int64_t r = 0; which & lb_flips_bit(k) && flips->list[k].rows == rows && r < rows; r++)
                any[r] |= flips->list[k].flipped[r];
        const int64_t settled = settle(any, rows, n, a, b, noise);
        free(any);
        if (settled) return settled;
    }
    return 0;
}
