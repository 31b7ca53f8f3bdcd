/* What rounding of tensors that one side alone holds does: see slack.h. */
#include "slack.h"

#include "shadow_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_alone(const lb_implementations *x, int side, const uint8_t *given, uint32_t row)
{
    const lb_exact_side *s = &x->sides[side];
    const uint32_t v = x->sources[side].list[row].value;
    const lb_value *value = &s->program->values[v];
    bool read = false;
    for (uint32_t w = 0; w < s->program->n_values && !read; w++)
        read = s->graph.read[w] && lb_value_graph_source(&s->graph, w) == v;
    return read && !given[row] && !s->held[v] && lb_dtype_is_float(value->dtype) && lb_layout_numel(&value->layout) > 1;
}

/* Between -1 and 1, the same for the same element in every run. */
static double drawn(uint64_t serial)
{
    uint64_t z = (serial + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9), z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}

static double roundoff(lb_dtype dtype)
{
    return dtype == LB_F64 ? 0x1p-53 : dtype == LB_F32 ? 0x1p-24 : dtype == LB_F16 ? 0x1p-11 : 0x1p-8;
}

static double *disturbed(const lb_implementations *x, int side, uint32_t row)
{
    const lb_exact_side *s = &x->sides[side];
    const uint32_t v = x->sources[side].list[row].value;
    const lb_value *value = &s->program->values[v];
    const lb_tensor *t = &x->sources[side].tensors[row].tensor;
    const int64_t n = lb_layout_numel(&value->layout), last = value->layout.shape[value->layout.ndim - 1];
    double *numbers = t->data ? lb_shadow_numbers_copy(t) : NULL, most = 0;
    for (int64_t i = 0; numbers && i < n; i++)
        if (fabs(numbers[i]) < 0x1p96) most = fmax(most, fabs(numbers[i]));
    /* A buffer may be a table of angles: its error is of the largest element, and grows from row to row. */
    const bool table = !(value->flags & LB_VALUE_PARAMETER);
    const double u = roundoff(value->dtype) * (table && value->layout.ndim > 1 ? (double)(n / (last ? last : 1)) : 1);
    for (int64_t i = 0; numbers && i < n; i++)
        numbers[i] += u * (table ? most : fabs(numbers[i])) * drawn((uint64_t)i ^ (uint64_t)row << 40);
    return numbers;
}

/* The numbers that a counterpart stands for on a side; malloc'ed. */
static double *numbers_of(const lb_implementations *x, int side, const lb_counterpart *c, int64_t n)
{
    const lb_exact_side *b = &x->sides[1];
    uint8_t *known = NULL;
    double noise, *copy = NULL;
    if (!side) {
        copy = lb_counterpart_expected(&x->counterparts, c, &x->sides[0], n, &known, &noise);
        free(known);
    } else if (b->kept[c->b] && (copy = malloc((size_t)n * sizeof *copy))) {
        memcpy(copy, b->kept[c->b], (size_t)n * sizeof *copy);
    }
    return copy;
}

/* The side once more, with these numbers in the place of its own; its kept numbers and quantities stay as they were. */
static lb_status run_disturbed(lb_implementations *x, int side, lb_err *err)
{
    lb_exact_side *s = &x->sides[side];
    const uint32_t n = s->program->n_values;
    double **kept = s->kept;
    lb_quantity *quantities = s->quantities;
    s->kept = calloc(n + 1, sizeof *s->kept), s->quantities = calloc(n + 1, sizeof *s->quantities);
    lb_status status = s->kept && s->quantities ? lb_exact_side_run(s, err)
                                                : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u values", n);
    for (uint32_t i = 0; i < x->counterparts.n && status == LB_OK; i++) {
        lb_counterpart *c = &x->counterparts.list[i];
        const int64_t elements = lb_layout_numel(&x->sides[1].program->values[c->b].layout);
        if (c->kind >= LB_COUNTERPART_TURNED) continue;
        double *moved = numbers_of(x, side, c, elements), **other = s->kept;
        s->kept = kept;
        double *still = numbers_of(x, side, c, elements);
        s->kept = other;
        if (moved && still) c->slack = fmax(c->slack, lb_counterparts_distance(still, moved, elements));
        x->counterparts.most_slack = fmax(x->counterparts.most_slack, c->slack);
        free(moved), free(still);
    }
    for (uint32_t v = 0; s->kept && v < n; v++) free(s->kept[v]);
    free(s->kept), free(s->quantities);
    s->kept = kept, s->quantities = quantities;
    return status;
}

lb_status lb_slack_measure(lb_implementations *x, uint32_t *tensors, lb_err *err)
{
    lb_status status = LB_OK;
    *tensors = 0;
    for (int side = 0; side < 2 && status == LB_OK; side++) {
        const lb_step_sources *sources = &x->sources[side];
        lb_exact_side *s = &x->sides[side];
        uint8_t *given = calloc(sources->n + 1, 1);
        double **numbers = calloc(sources->n + 1, sizeof *numbers);
        uint32_t n = 0;
        if (!given || !numbers) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for %u sources", sources->n);
        for (uint32_t i = 0; i < x->contents.n && status == LB_OK; i++) {
            const lb_content *c = &x->contents.list[i];
            if (side) given[i] = c->relation != LB_CONTENT_NONE;
            for (uint32_t k = 0; k < c->n && !side; k++) given[x->contents.runs[c->first + k].tensor] = 1;
        }
        for (uint32_t i = 0; i < sources->n && status == LB_OK; i++)
            if (is_alone(x, side, given, i) && (numbers[i] = disturbed(x, side, i)))
                s->forced[sources->list[i].value] = numbers[i], n++;
        if (n && status == LB_OK) status = run_disturbed(x, side, err);
        for (uint32_t i = 0; numbers && i < sources->n; i++)
            if (numbers[i]) s->forced[sources->list[i].value] = NULL, free(numbers[i]);
        free(given), free(numbers);
        *tensors += n;
    }
    return status;
}
