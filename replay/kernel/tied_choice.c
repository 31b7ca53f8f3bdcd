/* Choices among equal values: see tied_choice.h. */
#include "kernel/tied_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One element as it is compared: floats in `real`, integers in `integer`. */
typedef struct element {
    double real;
    int64_t integer;
} element;

static element element_of(const lb_tied_choice *choice, int64_t row, int64_t position)
{
    const int64_t i = (row / choice->inner * choice->n + position) * choice->inner + row % choice->inner;
    if (choice->integer) return (element){0, ((const int64_t *)choice->x)[i]};
    return (element){lb_frame_get(choice->frame, choice->x, i), 0};
}

/* In torch's order: NaN is the greatest and equal to itself, -0 is +0. */
static int compare(const void *first, const void *second)
{
    const element *a = first, *b = second;
    if (a->integer != b->integer) return a->integer < b->integer ? -1 : 1;
    if (isnan(a->real) || isnan(b->real)) return isnan(a->real) - isnan(b->real);
    return a->real < b->real ? -1 : a->real > b->real;
}

static bool in_range(const lb_tied_choice *choice, const int64_t *at)
{
    for (int64_t i = 0; i < choice->k; i++)
        if (at[i] < 0 || at[i] >= (choice->prefix ? i + 1 : choice->n)) return false;
    return true;
}

/* `seen`: n bytes, all 0 before and after. */
static bool distinct(const lb_tied_choice *choice, const int64_t *at, char *seen)
{
    bool twice = false;
    for (int64_t i = 0; i < choice->k; i++) twice |= seen[at[i]], seen[at[i]] = 1;
    for (int64_t i = 0; i < choice->k; i++) seen[at[i]] = 0;
    return !twice;
}

/* `values`: room for 2 k elements. */
static bool same_values(const lb_tied_choice *choice, int64_t row, const int64_t *at, element *values)
{
    element *own = values, *theirs = values + choice->k;
    for (int64_t i = 0; i < choice->k; i++) {
        own[i] = element_of(choice, row, choice->at[row * choice->k + i]);
        theirs[i] = element_of(choice, row, at[i]);
    }
    if (choice->unordered) {
        qsort(own, (size_t)choice->k, sizeof *own, compare);
        qsort(theirs, (size_t)choice->k, sizeof *theirs, compare);
    }
    for (int64_t i = 0; i < choice->k; i++)
        if (compare(&own[i], &theirs[i])) return false;
    return true;
}

void lb_tied_choice_follow(const lb_tied_choice *choice, uint32_t result, int dim)
{
    const lb_call *call = choice->frame->call;
    if (!call->branch || !call->branch[result].data || !lb_dtype_is_integer(call->branch[result].dtype)) return;
    const lb_tensor *branch = &call->branch[result];
    if (lb_tensor_numel(branch) != choice->rows * choice->k || choice->k < 1 || !lb_frame_ok(choice->frame)) return;
    const lb_tensor moved = dim < 0 || dim >= branch->layout.ndim ? *branch : lb_frame_dim_last(branch, dim);
    const int64_t *recorded = lb_frame_integers(choice->frame, &moved);
    element *values = lb_frame_scratch(choice->frame, (size_t)choice->k * 2 * sizeof *values);
    char *seen = lb_frame_scratch(choice->frame, (size_t)choice->n);
    if (!lb_frame_ok(choice->frame)) return;
    memset(seen, 0, (size_t)choice->n);
    for (int64_t r = 0; r < choice->rows; r++) {
        const int64_t *at = recorded + r * choice->k;
        if (!in_range(choice, at) || (!choice->prefix && !distinct(choice, at, seen)) ||
            !same_values(choice, r, at, values))
            continue;
        memcpy(choice->at + r * choice->k, at, (size_t)choice->k * sizeof *at);
    }
}
