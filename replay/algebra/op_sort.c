/* sort, argsort, topk.
 *
 * NaN counts as the greatest value, -0 and +0 as equal. Where equal values may stand in any order the recorded order is
 * followed (tied_choice.h): libraries differ in it. Where none is recorded it is what libstdc++ leaves, since torch
 * calls it: std::sort unless stable=True, for topk partial_sort (k * 64 <= n) or nth_element and sort (TopKImpl.h).
 * They are written out here step for step, because a router with bf16 scores meets ties all the time and the wrong one
 * routes a token elsewhere. */
#include "kernel/tied_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct item {
    double value; /* of floats */
    int64_t integer, index;
} item;

/* ---- rows in and out --------------------------------------------------------------------------------------------- */

typedef struct sorting {
    lb_frame frame;
    bool integer;
    int dim;
    uint32_t at_result; /* which result of the op the indices are */
    int64_t rows, n, k; /* k results of n elements */
    const void *x;
    lb_tensor values, indices;
    void *y;
    int64_t *at;
} sorting;

static bool sorting_begin(sorting *sorting, lb_call *call, int64_t dim, int64_t k)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    int d = lb_frame_wrap_dim(dim, self->layout.ndim);
    sorting->frame = lb_frame_begin(call);
    lb_tensor moved = d < 0 ? *self : lb_frame_dim_last(self, d);
    if (d < 0) lb_frame_fail(&sorting->frame, LB_ERR_INVALID, "no such dimension");
    sorting->integer = lb_dtype_is_integer(self->dtype);
    sorting->dim = d;
    sorting->n = self->layout.ndim && d >= 0 ? self->layout.shape[d] : 1;
    sorting->rows = sorting->n ? lb_tensor_numel(self) / sorting->n : 0;
    sorting->k = k < 0 ? sorting->n : k;
    if (sorting->k > sorting->n) lb_frame_fail(&sorting->frame, LB_ERR_INVALID, "k is larger than the dimension");
    sorting->x = sorting->integer ? (const void *)lb_frame_integers(&sorting->frame, &moved)
                                  : lb_frame_tensor(&sorting->frame, &moved);
    if (!lb_frame_ok(&sorting->frame)) return false;
    sorting->values = lb_frame_dim_last(&call->results[0], d);
    sorting->indices = lb_frame_dim_last(&call->results[1], d);
    sorting->y = sorting->integer ? (void *)lb_frame_output_view_integers(&sorting->frame, &sorting->values,
                                                                          sorting->rows * sorting->k)
                                  : lb_frame_output_view(&sorting->frame, &sorting->values, sorting->rows * sorting->k);
    sorting->at = lb_frame_output_view_integers(&sorting->frame, &sorting->indices, sorting->rows * sorting->k);
    return lb_frame_ok(&sorting->frame);
}

static void load_row(const sorting *sorting, int64_t row, item *items)
{
    for (int64_t i = 0, from = row * sorting->n; i < sorting->n; i++, from++) {
        items[i].index = i;
        if (sorting->integer)
            items[i].integer = ((const int64_t *)sorting->x)[from], items[i].value = 0;
        else
            items[i].integer = 0, items[i].value = sorting->frame.wide ? ((const double *)sorting->x)[from]
                                                                       : ((const float *)sorting->x)[from];
    }
}

static void store_row(const sorting *sorting, int64_t row, const item *items)
{
    for (int64_t i = 0; i < sorting->k; i++) sorting->at[row * sorting->k + i] = items[i].index;
}

/* The values at the positions that were chosen. */
static void gather_values(const sorting *sorting)
{
    for (int64_t r = 0; r < sorting->rows; r++)
        for (int64_t i = r * sorting->k; i < (r + 1) * sorting->k; i++) {
            const int64_t from = r * sorting->n + sorting->at[i];
            if (sorting->integer)
                ((int64_t *)sorting->y)[i] = ((const int64_t *)sorting->x)[from];
            else
                lb_frame_set(&sorting->frame, sorting->y, i, lb_frame_get(&sorting->frame, sorting->x, from));
        }
}

/* `free_order`: equal values may stand in any order. `sorted`: values are in order. */
static lb_status sorting_end(sorting *sorting, bool free_order, bool sorted)
{
    const lb_tied_choice choice = {.frame = &sorting->frame,
                                   .integer = sorting->integer,
                                   .rows = sorting->rows,
                                   .n = sorting->n,
                                   .inner = 1,
                                   .k = sorting->k,
                                   .x = sorting->x,
                                   .at = sorting->at,
                                   .unordered = !sorted};
    if (lb_frame_ok(&sorting->frame) && free_order) lb_tied_choice_follow(&choice, sorting->at_result, sorting->dim);
    if (lb_frame_ok(&sorting->frame)) gather_values(sorting);
    return lb_frame_end(&sorting->frame);
}

/* Items of equal order compare false both ways. `descending`: greatest first. */
static inline bool before(const item *a, const item *b, bool descending)
{
    if (descending) {
        const item *swap = a;
        a = b, b = swap;
    }
    if (a->integer != b->integer) return a->integer < b->integer;
    if (isnan(b->value)) return !isnan(a->value);
    return a->value < b->value;
}

/* ---- stable sort ------------------------------------------------------------------------------------------------- */

static void merge_sort(item *items, item *other, int64_t n, bool descending)
{
    item *from = items, *to = other;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t low = 0; low < n; low += 2 * width) {
            int64_t middle = low + width < n ? low + width : n, high = low + 2 * width < n ? low + 2 * width : n;
            int64_t a = low, b = middle;
            for (int64_t i = low; i < high; i++)
                to[i] = b >= high || (a < middle && !before(&from[b], &from[a], descending)) ? from[a++] : from[b++];
        }
        item *swap = from;
        from = to, to = swap;
    }
    if (from != items) memcpy(items, from, (size_t)n * sizeof *items);
}

/* ---- libstdc++'s algorithms --------------------------------------------------------------------------------------- *
 * [first, last) as in C++. `largest` is the comparison's direction. */

static void swap_items(item *a, item *b)
{
    item t = *a;
    *a = *b, *b = t;
}

static void push_heap(item *first, int64_t hole, int64_t top, item value, bool largest)
{
    for (int64_t parent = (hole - 1) / 2; hole > top && before(&first[parent], &value, largest);
         parent = (hole - 1) / 2) {
        first[hole] = first[parent];
        hole = parent;
    }
    first[hole] = value;
}

static void adjust_heap(item *first, int64_t hole, int64_t n, item value, bool largest)
{
    int64_t top = hole, child = hole;
    while (child < (n - 1) / 2) {
        child = 2 * (child + 1);
        if (before(&first[child], &first[child - 1], largest)) child--;
        first[hole] = first[child];
        hole = child;
    }
    if ((n & 1) == 0 && child == (n - 2) / 2) {
        child = 2 * (child + 1);
        first[hole] = first[child - 1];
        hole = child - 1;
    }
    push_heap(first, hole, top, value, largest);
}

static void pop_heap(item *first, item *last, item *result, bool largest)
{
    item value = *result;
    *result = *first;
    adjust_heap(first, 0, last - first, value, largest);
}

static void heap_select(item *first, item *middle, item *last, bool largest)
{
    int64_t n = middle - first;
    for (int64_t parent = n >= 2 ? (n - 2) / 2 : -1; parent >= 0; parent--)
        adjust_heap(first, parent, n, first[parent], largest);
    for (item *i = middle; i < last; i++)
        if (before(i, first, largest)) pop_heap(first, middle, i, largest);
}

static void partial_sort(item *first, item *middle, item *last, bool largest)
{
    heap_select(first, middle, last, largest);
    while (middle - first > 1) {
        middle--;
        pop_heap(first, middle, middle, largest);
    }
}

static void median_to_first(item *result, item *a, item *b, item *c, bool largest)
{
    if (before(a, b, largest)) {
        if (before(b, c, largest))
            swap_items(result, b);
        else if (before(a, c, largest))
            swap_items(result, c);
        else
            swap_items(result, a);
    } else if (before(a, c, largest)) {
        swap_items(result, a);
    } else if (before(b, c, largest)) {
        swap_items(result, c);
    } else {
        swap_items(result, b);
    }
}

static item *partition_pivot(item *first, item *last, bool largest)
{
    item *pivot = first;
    median_to_first(first, first + 1, first + (last - first) / 2, last - 1, largest);
    first++;
    while (true) {
        while (before(first, pivot, largest)) first++;
        last--;
        while (before(pivot, last, largest)) last--;
        if (!(first < last)) return first;
        swap_items(first, last);
        first++;
    }
}

static void linear_insert(item *last, bool largest)
{
    item value = *last;
    for (item *next = last - 1; before(&value, next, largest); next--) {
        *last = *next;
        last = next;
    }
    *last = value;
}

static void insertion_sort(item *first, item *last, bool largest)
{
    if (first == last) return;
    for (item *i = first + 1; i < last; i++) {
        if (before(i, first, largest)) {
            item value = *i;
            memmove(first + 1, first, (size_t)(i - first) * sizeof *first);
            *first = value;
        } else {
            linear_insert(i, largest);
        }
    }
}

static int floor_log2(int64_t n)
{
    return 63 - __builtin_clzll((uint64_t)n);
}

static void nth_element(item *first, item *nth, item *last, bool largest)
{
    if (first == last || nth == last) return;
    int depth = floor_log2(last - first) * 2;
    while (last - first > 3) {
        if (depth-- == 0) {
            heap_select(first, nth + 1, last, largest);
            swap_items(first, nth);
            return;
        }
        item *cut = partition_pivot(first, last, largest);
        if (cut <= nth)
            first = cut;
        else
            last = cut;
    }
    insertion_sort(first, last, largest);
}

static void introsort(item *first, item *last, int depth, bool largest)
{
    while (last - first > 16) {
        if (depth-- == 0) {
            partial_sort(first, last, last, largest);
            return;
        }
        item *cut = partition_pivot(first, last, largest);
        introsort(cut, last, depth, largest);
        last = cut;
    }
}

static void std_sort(item *first, item *last, bool largest)
{
    if (first == last) return;
    introsort(first, last, floor_log2(last - first) * 2, largest);
    if (last - first <= 16) {
        insertion_sort(first, last, largest);
        return;
    }
    insertion_sort(first, first + 16, largest);
    for (item *i = first + 16; i < last; i++) linear_insert(i, largest);
}

/* ---- the ops ----------------------------------------------------------------------------------------------------- */

/* torch.sort without stable=True is std::sort. */
static lb_status sort_run(lb_call *call, int64_t dim, bool descending, bool stable, uint32_t at_result)
{
    sorting sorting;
    if (!sorting_begin(&sorting, call, dim, -1)) return lb_frame_end(&sorting.frame);
    sorting.at_result = at_result;
    item *items = lb_frame_scratch(&sorting.frame, (size_t)sorting.n * 2 * sizeof *items);
    for (int64_t r = 0; items && r < sorting.rows; r++) {
        load_row(&sorting, r, items);
        if (stable)
            merge_sort(items, items + sorting.n, sorting.n, descending);
        else
            std_sort(items, items + sorting.n, descending);
        store_row(&sorting, r, items);
    }
    return sorting_end(&sorting, !stable, true);
}

static lb_status sort(lb_call *call)
{
    return sort_run(call, lb_frame_arg_int(call, 1, -1), lb_frame_arg_int(call, 2, 0), false, 1);
}
static lb_status sort_stable(lb_call *call)
{
    return sort_run(call, lb_frame_arg_int(call, 2, -1), lb_frame_arg_int(call, 3, 0), lb_frame_arg_int(call, 1, 0), 1);
}

/* Its only result is the indices. */
static lb_status argsort(lb_call *call)
{
    lb_tensor results[2] = {*lb_frame_arg_tensor(call, 0), call->results[0]};
    results[0].data = NULL;
    lb_call inner = *call;
    inner.results = results;
    inner.n_results = 2;
    return sort_run(&inner, lb_frame_arg_int(call, 1, -1), lb_frame_arg_int(call, 2, 0), false, 0);
}

/* Args: self, k, dim, largest, sorted. */
static lb_status topk(lb_call *call)
{
    sorting sorting;
    bool largest = lb_frame_arg_int(call, 3, 1), sorted = lb_frame_arg_int(call, 4, 1);
    if (!sorting_begin(&sorting, call, lb_frame_arg_int(call, 2, -1), lb_frame_arg_int(call, 1, 1)) || sorting.k < 1)
        return lb_frame_end(&sorting.frame);
    sorting.at_result = 1;
    item *items = lb_frame_scratch(&sorting.frame, (size_t)sorting.n * sizeof *items);
    for (int64_t r = 0; items && r < sorting.rows; r++) {
        load_row(&sorting, r, items);
        if (sorting.k * 64 <= sorting.n) {
            partial_sort(items, items + sorting.k, items + sorting.n, largest);
        } else {
            nth_element(items, items + sorting.k - 1, items + sorting.n, largest);
            if (sorted) std_sort(items, items + sorting.k - 1, largest);
        }
        store_row(&sorting, r, items);
    }
    return sorting_end(&sorting, true, sorted);
}

/* The values are copies, but which ones is a decision. */
#define CHOICE (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS | LB_ROW_CHOOSES)
const lb_op_row lb_rows_sort[] = {
    {.name = "aten::sort", .args = "self! dim descending", .kernel = sort, .flags = CHOICE, .samples = "sort"},
    {.name = "aten::sort.stable",
     .args = "self! stable dim descending",
     .kernel = sort_stable,
     .flags = CHOICE,
     .samples = "sort_stable"},
    {.name = "aten::argsort", .args = "self! dim descending", .kernel = argsort, .flags = CHOICE, .samples = "sort"},
    {.name = "aten::topk", .args = "self! k dim largest sorted", .kernel = topk, .flags = CHOICE, .samples = "topk"},
    {NULL},
};
