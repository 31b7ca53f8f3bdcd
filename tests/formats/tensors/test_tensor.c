#include "cmocka_first.h"
#include <lastbit/tensor.h>

#include <stdlib.h>
#include <string.h>

static lb_layout layout_of(int ndim, const int64_t *shape, const int64_t *stride, int64_t offset)
{
    lb_layout layout = lb_layout_contiguous(ndim, shape);
    for (int d = 0; d < ndim; d++) layout.stride[d] = stride[d];
    layout.offset = offset;
    return layout;
}
#define LAYOUT(offset, stride, ...)                                                                                    \
    layout_of(sizeof((int64_t[]){__VA_ARGS__}) / 8, (int64_t[]){__VA_ARGS__}, stride, offset)
#define STRIDE(...) ((int64_t[]){__VA_ARGS__})

static void numel_reports_overflow_and_negative_sizes(void **state)
{
    (void)state;
    lb_layout scalar = lb_layout_contiguous(0, NULL);
    assert_int_equal(lb_layout_numel(&scalar), 1);
    lb_layout plain = LAYOUT(0, STRIDE(12, 4, 1), 2, 3, 4);
    assert_int_equal(lb_layout_numel(&plain), 24);
    lb_layout large = LAYOUT(0, STRIDE(1, 1, 1), INT64_MAX / 2, 3, 1);
    assert_int_equal(lb_layout_numel(&large), -1);
    lb_layout empty = LAYOUT(0, STRIDE(1, 1, 1), INT64_MAX / 2, 3, 0);
    assert_int_equal(lb_layout_numel(&empty), 0);
    lb_layout negative = LAYOUT(0, STRIDE(1, 1), -1, 0);
    assert_int_equal(lb_layout_numel(&negative), -1);
    lb_layout nonsense = {.ndim = LB_MAX_DIMS + 1};
    assert_int_equal(lb_layout_numel(&nonsense), -1);
}

static void contiguity_ignores_strides_of_size_one(void **state)
{
    (void)state;
    lb_layout a = LAYOUT(0, STRIDE(99, 4, 77, 1), 1, 3, 1, 4);
    assert_true(lb_layout_is_contiguous(&a));
    lb_layout b = LAYOUT(0, STRIDE(1, 3), 3, 4);
    assert_false(lb_layout_is_contiguous(&b));
    lb_layout expanded = LAYOUT(0, STRIDE(0, 1), 3, 4);
    assert_false(lb_layout_is_contiguous(&expanded));
}

static void dense_range_covers_every_touched_element(void **state)
{
    (void)state;
    int64_t first, last;
    lb_layout flipped = LAYOUT(5, STRIDE(-1), 4);
    assert_int_equal(lb_layout_dense_range(&flipped, &first, &last, NULL), LB_OK);
    assert_int_equal(first, 2);
    assert_int_equal(last, 6);
    lb_layout expanded = LAYOUT(7, STRIDE(0, 2), 1000, 3);
    assert_int_equal(lb_layout_dense_range(&expanded, &first, &last, NULL), LB_OK);
    assert_int_equal(first, 7);
    assert_int_equal(last, 12);
    lb_layout empty = LAYOUT(7, STRIDE(1), 0);
    assert_int_equal(lb_layout_dense_range(&empty, &first, &last, NULL), LB_OK);
    assert_int_equal(first, 0);
    assert_int_equal(last, 0);
}

static void dense_range_refuses_what_overflows_or_starts_before_the_storage(void **state)
{
    (void)state;
    int64_t first, last;
    lb_err err = LB_ERR_INIT;
    lb_layout before = LAYOUT(2, STRIDE(-1), 4);
    assert_int_equal(lb_layout_dense_range(&before, &first, &last, &err), LB_ERR_INVALID);
    assert_non_null(strstr(err.message, "before the start"));
    lb_layout wide = LAYOUT(0, STRIDE(INT64_MAX), 4);
    assert_int_equal(lb_layout_dense_range(&wide, &first, &last, NULL), LB_ERR_INVALID);
    lb_layout end = LAYOUT(INT64_MAX, STRIDE(1), 1);
    assert_int_equal(lb_layout_dense_range(&end, &first, &last, NULL), LB_ERR_INVALID);
}

static void rows_merge_neighbours_and_keep_row_major_order(void **state)
{
    (void)state;
    lb_layout dense = LAYOUT(0, STRIDE(12, 4, 1), 2, 3, 4);
    lb_rows one = lb_rows_of(&dense);
    assert_true(lb_rows_next(&one));
    assert_int_equal(one.count, 24);
    assert_false(lb_rows_next(&one));

    lb_layout sliced = LAYOUT(0, STRIDE(20, 5, 1), 2, 3, 4);
    int64_t expected[] = {0, 5, 10, 20, 25, 30};
    size_t n = 0;
    for (lb_rows r = lb_rows_of(&sliced); lb_rows_next(&r); n++) {
        assert_true(n < 6);
        assert_int_equal(r.offset, expected[n]);
        assert_int_equal(r.count, 4);
    }
    assert_int_equal(n, 6);

    lb_layout empty = LAYOUT(0, STRIDE(1, 1), 0, 4), scalar = lb_layout_contiguous(0, NULL);
    lb_rows none = lb_rows_of(&empty), single = lb_rows_of(&scalar);
    assert_false(lb_rows_next(&none));
    assert_true(lb_rows_next(&single));
    assert_int_equal(single.count, 1);
    assert_false(lb_rows_next(&single));
}

/* Element k of a random view against the plain formula, out and back, for every element size. */
static void gather_and_scatter_follow_the_strides(void **state)
{
    (void)state;
    static const lb_dtype dtypes[] = {LB_U8, LB_BF16, LB_F32, LB_F64, LB_C128};
    srand(7);
    for (int round = 0; round < 300; round++) {
        lb_dtype dtype = dtypes[round % 5];
        size_t width = lb_dtype_bits(dtype) / 8;
        lb_layout layout = {.ndim = rand() % 5};
        for (int d = 0; d < layout.ndim; d++) {
            layout.shape[d] = rand() % 4 + (rand() % 8 != 0);
            layout.stride[d] = rand() % 9;
        }
        unsigned char storage[200 * 16], out[256 * 16], copy[200 * 16];
        for (size_t i = 0; i < sizeof storage; i++) storage[i] = (unsigned char)rand();
        lb_tensor tensor = {storage, dtype, layout};
        assert_int_equal(lb_tensor_gather(&tensor, out, NULL), LB_OK);
        int64_t n = lb_layout_numel(&layout);
        for (int64_t k = 0; k < n; k++) {
            int64_t rest = k, at = 0;
            for (int d = layout.ndim - 1; d >= 0; d--) {
                at += rest % layout.shape[d] * layout.stride[d];
                rest /= layout.shape[d];
            }
            assert_memory_equal(out + (size_t)k * width, storage + (size_t)at * width, width);
        }
        memset(copy, 0, sizeof copy);
        lb_tensor target = {copy, dtype, layout};
        assert_int_equal(lb_tensor_scatter(&target, out, NULL), LB_OK);
        unsigned char again[256 * 16];
        assert_int_equal(lb_tensor_gather(&target, again, NULL), LB_OK);
        assert_memory_equal(out, again, (size_t)n * width);
    }
}

static void strided_elements_below_a_byte_are_refused(void **state)
{
    (void)state;
    unsigned char bytes[4] = {0x21, 0x43, 0x65, 0x07}, out[4] = {0};
    lb_tensor dense = {bytes, LB_E2M1, LAYOUT(0, STRIDE(1), 7)};
    assert_int_equal(lb_tensor_gather(&dense, out, NULL), LB_OK);
    assert_memory_equal(bytes, out, 4);
    lb_tensor strided = {bytes, LB_E2M1, LAYOUT(0, STRIDE(2), 3)};
    assert_int_equal(lb_tensor_gather(&strided, out, NULL), LB_ERR_UNSUPPORTED);
}

static void a_slice_is_numpys(void **state)
{
    (void)state;
    lb_layout whole = LAYOUT(0, STRIDE(12, 4, 1), 2, 3, 4), part;
    static const struct {
        const char *text;
        int ndim;
        int64_t offset, shape[3], stride[3];
    } right[] = {
        {"", 3, 0, {2, 3, 4}, {12, 4, 1}},
        {"1", 2, 12, {3, 4}, {4, 1}},
        {"[-1,-1,-1]", 0, 23, {0}, {0}},
        {"...,2", 2, 2, {2, 3}, {12, 4}},
        {"0,...,1:3", 2, 1, {3, 2}, {4, 1}},
        {":,::2,::3", 3, 0, {2, 2, 2}, {12, 8, 3}},
        {"1,-2:,:-1", 2, 16, {2, 3}, {4, 1}},
        {"5:9", 3, 0, {0, 3, 4}, {12, 4, 1}},
        {":,1:1", 3, 0, {2, 0, 4}, {12, 4, 1}},
        {" 0 , 1:99 , : ", 2, 4, {2, 4}, {4, 1}},
        {"...", 3, 0, {2, 3, 4}, {12, 4, 1}},
        {"0,0,0,...", 0, 0, {0}, {0}},
        {"::9223372036854775807", 3, 0, {1, 3, 4}, {12, 4, 1}},
    };
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        lb_err err = LB_ERR_INIT;
        if (lb_layout_slice(&whole, right[i].text, &part, &err) != LB_OK)
            fail_msg("'%s': %s", right[i].text, err.message);
        assert_int_equal(part.ndim, right[i].ndim);
        assert_int_equal(part.offset, right[i].offset);
        assert_memory_equal(part.shape, right[i].shape, (size_t)part.ndim * 8);
        assert_memory_equal(part.stride, right[i].stride, (size_t)part.ndim * 8);
    }
    static const char *const wrong[] = {"2",    "-3",      "a",      "0,", "0,0,0,0", "1:2:0",
                                        "::-1", "...,...", "[0",     "0]", "1..2",    "99999999999999999999",
                                        "0 1",  ",",       "0:1:2:3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        lb_err err = LB_ERR_INIT;
        if (lb_layout_slice(&whole, wrong[i], &part, &err) != LB_ERR_INVALID) fail_msg("'%s' was taken", wrong[i]);
        assert_non_null(strstr(err.message, "slice"));
    }
}

/* Beside a size 0 the other sizes may be anything. */
static void an_empty_layout_has_no_runs_however_large_it_says_it_is(void **state)
{
    (void)state;
    lb_layout empty = LAYOUT(0, STRIDE(INT64_MAX / 2, 3, 1), 3, INT64_MAX / 2, 0);
    lb_rows rows = lb_rows_of(&empty);
    assert_false(lb_rows_next(&rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slice_is_numpys),
        cmocka_unit_test(an_empty_layout_has_no_runs_however_large_it_says_it_is),
        cmocka_unit_test(numel_reports_overflow_and_negative_sizes),
        cmocka_unit_test(contiguity_ignores_strides_of_size_one),
        cmocka_unit_test(dense_range_covers_every_touched_element),
        cmocka_unit_test(dense_range_refuses_what_overflows_or_starts_before_the_storage),
        cmocka_unit_test(rows_merge_neighbours_and_keep_row_major_order),
        cmocka_unit_test(gather_and_scatter_follow_the_strides),
        cmocka_unit_test(strided_elements_below_a_byte_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
