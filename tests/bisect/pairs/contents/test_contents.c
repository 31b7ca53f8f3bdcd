/* Tensors matched by their numbers: every relation by a layout that makes it, and by decoys that must not match. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "contents/contents.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, COLS = 8 };

static uint64_t seed = 1;
static float number(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(int64_t)(seed >> 11) / 0x1p53);
}

static float *drawn(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = number();
    return x;
}

static lb_content_tensor matrix(const char *name, float *data, int64_t rows, int64_t cols)
{
    const int64_t shape[] = {rows, cols};
    return (lb_content_tensor){name, {data, LB_F32, lb_layout_contiguous(2, shape)}};
}

static lb_content_tensor vector(const char *name, float *data, int64_t n)
{
    return (lb_content_tensor){name, {data, LB_F32, lb_layout_contiguous(1, &n)}};
}

/* Every run says where the numbers stand, and every element that was found is in one run. */
static void check_runs(const lb_content_tensor *a, const lb_content_tensor *b, const lb_contents *c, uint32_t row)
{
    int64_t found = 0;
    if (c->list[row].relation == LB_CONTENT_NAMED) return; /* the numbers are others */
    for (uint32_t k = 0; k < c->list[row].n; k++) {
        const lb_content_run *r = &c->runs[c->list[row].first + k];
        for (int64_t i = 0; i < r->n; i++, found++)
            assert_true(((float *)a[r->tensor].tensor.data)[r->from + i * r->from_stride] ==
                        ((float *)b[row].tensor.data)[r->to + i * r->to_stride]);
    }
    assert_int_equal(found, c->list[row].found);
}

static lb_content_relation relation(const lb_content_tensor *a, uint32_t n_a, lb_content_tensor b)
{
    lb_contents c;
    assert_int_equal(lb_contents_match(a, n_a, &b, 1, &c, NULL), LB_OK);
    check_runs(a, &b, &c, 0);
    const lb_content_relation found = c.list[0].relation;
    lb_contents_release(&c);
    return found;
}

static void one_tensor_is_found_in_every_layout(void **state)
{
    (void)state;
    float *x = drawn(ROWS * COLS), other[ROWS * COLS];
    const lb_content_tensor a = matrix("w", x, ROWS, COLS);
    assert_int_equal(relation(&a, 1, matrix("w", x, ROWS, COLS)), LB_CONTENT_SAME);
    assert_int_equal(relation(&a, 1, matrix("v", x, ROWS, COLS)), LB_CONTENT_RENAMED);
    assert_int_equal(relation(&a, 1, vector("w", x, ROWS * COLS)), LB_CONTENT_RESHAPED);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) other[j * ROWS + i] = x[i * COLS + j];
    assert_int_equal(relation(&a, 1, matrix("w", other, COLS, ROWS)), LB_CONTENT_TRANSPOSED);
    for (int i = 0; i < ROWS; i++) memcpy(other + i * COLS, x + (i * 5 + 2) % ROWS * COLS, COLS * sizeof *x);
    assert_int_equal(relation(&a, 1, matrix("w", other, ROWS, COLS)), LB_CONTENT_PERMUTED);
    assert_int_equal(relation(&a, 1, matrix("w", x + COLS, ROWS - 2, COLS)), LB_CONTENT_SPLIT);
    free(x);
}

static void several_tensors_in_one_are_found_whole_and_interleaved(void **state)
{
    (void)state;
    float *q = drawn(ROWS * COLS), *k = drawn(ROWS * COLS), fused[2 * ROWS * COLS];
    const lb_content_tensor a[] = {matrix("q", q, ROWS, COLS), matrix("k", k, ROWS, COLS)};
    memcpy(fused, q, ROWS * COLS * sizeof *q), memcpy(fused + ROWS * COLS, k, ROWS * COLS * sizeof *q);
    assert_int_equal(relation(a, 2, matrix("qk", fused, 2 * ROWS, COLS)), LB_CONTENT_FUSED);
    for (int i = 0; i < 2 * ROWS; i++) memcpy(fused + i * COLS, (i % 2 ? k : q) + i / 2 * COLS, COLS * sizeof *q);
    assert_int_equal(relation(a, 2, matrix("qk", fused, 2 * ROWS, COLS)), LB_CONTENT_FUSED);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++)
            fused[j * 2 * ROWS + i] = q[i * COLS + j], fused[j * 2 * ROWS + ROWS + i] = k[i * COLS + j];
    assert_int_equal(relation(a, 2, matrix("qk", fused, COLS, 2 * ROWS)), LB_CONTENT_FUSED);
    free(q), free(k);
}

static void biases_behind_each_other_and_permuted_are_found(void **state)
{
    (void)state;
    float *q = drawn(COLS), *k = drawn(COLS), fused[2 * COLS], turned[COLS];
    const lb_content_tensor a[] = {vector("q", q, COLS), vector("k", k, COLS)};
    memcpy(fused, q, COLS * sizeof *q), memcpy(fused + COLS, k, COLS * sizeof *q);
    assert_int_equal(relation(a, 2, vector("qk", fused, 2 * COLS)), LB_CONTENT_FUSED);
    for (int i = 0; i < COLS; i++) turned[i] = q[i / 2 + i % 2 * (COLS / 2)]; /* pairs for halves */
    lb_contents c;
    const lb_content_tensor b = vector("q", turned, COLS);
    assert_int_equal(lb_contents_match(a, 2, &b, 1, &c, NULL), LB_OK);
    check_runs(a, &b, &c, 0);
    assert_int_equal(c.list[0].relation, LB_CONTENT_PERMUTED);
    lb_contents_release(&c);
    free(q), free(k);
}

static lb_content_tensor box(const char *name, float *data, int64_t a, int64_t b, int64_t c)
{
    const int64_t shape[] = {a, b, c};
    return (lb_content_tensor){name, {data, LB_F32, lb_layout_contiguous(3, shape)}};
}

/* Projections as einsum takes them: (width, heads, 3, size) in the place of (width, 3, heads, size), and their biases
 * (heads, 3, size). */
static void weights_and_biases_of_several_dimensions_are_found(void **state)
{
    (void)state;
    enum { WIDTH = 5, HEADS = 3, SIZE = 7, ALL = 3 * HEADS * SIZE };
    float *w = drawn(WIDTH * ALL), *bias = drawn(ALL), turned[WIDTH * ALL], heads[ALL];
    for (int part = 0; part < 3; part++)
        for (int h = 0; h < HEADS; h++)
            for (int s = 0; s < SIZE; s++) {
                const int from = (part * HEADS + h) * SIZE + s, to = (h * 3 + part) * SIZE + s;
                heads[to] = bias[from];
                for (int i = 0; i < WIDTH; i++) turned[i * ALL + to] = w[i * ALL + from];
            }
    const lb_content_tensor packed = matrix("w", w, WIDTH, ALL), flat = vector("bias", bias, ALL),
                            of_heads = box("w", turned, WIDTH, 3 * HEADS, SIZE),
                            bias_of_heads = box("bias", heads, HEADS, 3, SIZE);
    assert_int_equal(relation(&packed, 1, of_heads), LB_CONTENT_PERMUTED);
    assert_int_equal(relation(&of_heads, 1, packed), LB_CONTENT_PERMUTED);
    assert_int_equal(relation(&flat, 1, bias_of_heads), LB_CONTENT_PERMUTED);
    assert_int_equal(relation(&bias_of_heads, 1, flat), LB_CONTENT_PERMUTED);
    for (int i = 0; i < ALL; i++) heads[i] = bias[i * 2 % ALL]; /* numbers of a bias in no order that a model has */
    assert_int_equal(relation(&flat, 1, box("other", heads, HEADS, 3, SIZE)), LB_CONTENT_NONE);
    free(w), free(bias);
}

enum {
    STACKED = 5,
    LAYERS = 2,
    INPUTS = 11,
    PARTS = 3,
    HEADS_OF = 4,
    SIZE_OF = 7,
    OUTPUTS = PARTS * HEADS_OF * SIZE_OF
};

/* The weights of all layers in one tensor, whose dimension d is dimension order[d] of (layer, input, part, head, size):
 * each must be found in the others, both ways. */
static void stack_and_find(const int order[STACKED], float *const weights[LAYERS])
{
    static const int64_t sizes[STACKED] = {LAYERS, INPUTS, PARTS, HEADS_OF, SIZE_OF};
    static float stacked[LAYERS * INPUTS * OUTPUTS];
    lb_content_tensor plain[LAYERS], whole = {.name = "stacked", .tensor = {stacked, LB_F32, {0}}};
    int64_t shape[STACKED], at[STACKED] = {0};
    for (int d = 0; d < STACKED; d++) shape[d] = sizes[order[d]];
    whole.tensor.layout = lb_layout_contiguous(STACKED, shape);
    for (int64_t i = 0; i < LAYERS * INPUTS * OUTPUTS; i++) {
        int64_t rest = i;
        for (int d = STACKED; d-- > 0; rest /= shape[d]) at[order[d]] = rest % shape[d];
        stacked[i] = weights[at[0]][((at[2] * HEADS_OF + at[3]) * SIZE_OF + at[4]) * INPUTS + at[1]];
    }
    for (int l = 0; l < LAYERS; l++) plain[l] = matrix(l ? "w1" : "w0", weights[l], OUTPUTS, INPUTS);
    assert_int_equal(relation(plain, LAYERS, whole), LB_CONTENT_FUSED);
    for (int l = 0; l < LAYERS; l++) assert_int_not_equal(relation(&whole, 1, plain[l]), LB_CONTENT_NONE);
}

static void stacked_layers_are_found_in_every_order_of_dimensions(void **state)
{
    (void)state;
    float *weights[LAYERS] = {drawn(OUTPUTS * INPUTS), drawn(OUTPUTS * INPUTS)};
    int orders = 0;
    for (int code = 0; code < STACKED * STACKED * STACKED * STACKED * STACKED; code++) {
        int order[STACKED], rest = code, seen = 0;
        for (int d = 0; d < STACKED; d++, rest /= STACKED) order[d] = rest % STACKED, seen |= 1 << order[d];
        if (seen != (1 << STACKED) - 1) continue;
        stack_and_find(order, weights), orders++;
    }
    assert_int_equal(orders, 120);
    for (int l = 0; l < LAYERS; l++) free(weights[l]);
}

static void padding_is_told_from_numbers_that_nothing_holds(void **state)
{
    (void)state;
    float *x = drawn((ROWS + 2) * COLS), padded[(ROWS + 2) * COLS];
    const lb_content_tensor a = matrix("w", x, ROWS, COLS);
    memcpy(padded, x, sizeof padded);
    for (int i = ROWS * COLS; i < (ROWS + 2) * COLS; i++) padded[i] = 0;
    assert_int_equal(relation(&a, 1, matrix("v", padded, ROWS + 2, COLS)), LB_CONTENT_PADDED);
    assert_int_equal(relation(&a, 1, matrix("v", x, ROWS + 2, COLS)), LB_CONTENT_NONE);
    free(x);
}

static void one_number_that_is_not_the_same_is_no_match(void **state)
{
    (void)state;
    for (int at = 0; at < ROWS * COLS; at += 5) {
        float *x = drawn(ROWS * COLS), y[ROWS * COLS];
        const lb_content_tensor a = matrix("w", x, ROWS, COLS);
        memcpy(y, x, sizeof y);
        y[at] += 1;
        assert_int_equal(relation(&a, 1, matrix("v", y, ROWS, COLS)), LB_CONTENT_NONE);
        assert_int_equal(relation(&a, 1, matrix("w", y, ROWS, COLS)), LB_CONTENT_NAMED);
        free(x);
    }
}

static void equal_tensors_meet_in_their_order(void **state)
{
    (void)state;
    float ones[COLS];
    for (int i = 0; i < COLS; i++) ones[i] = 1;
    const lb_content_tensor a[] = {vector("a.0", ones, COLS), vector("a.1", ones, COLS), vector("a.2", ones, COLS)};
    const lb_content_tensor b[] = {vector("b.0", ones, COLS), vector("b.1", ones, COLS), vector("a.0", ones, COLS)};
    lb_contents c;
    assert_int_equal(lb_contents_match(a, 3, b, 3, &c, NULL), LB_OK);
    assert_int_equal(c.list[0].relation, LB_CONTENT_RENAMED);
    assert_int_not_equal(c.list[0].tensor, c.list[1].tensor);
    assert_int_equal(c.list[2].tensor, 0); /* its name decides */
    lb_contents_release(&c);
}

static void numbers_rounded_to_another_dtype_are_a_cast(void **state)
{
    (void)state;
    float *x = drawn(ROWS * COLS);
    uint16_t narrow[ROWS * COLS];
    lb_convert(LB_BF16, narrow, LB_F32, x, ROWS * COLS, NULL);
    lb_content_tensor a = matrix("w", x, ROWS, COLS), b = a;
    b.name = "v", b.tensor.data = narrow, b.tensor.dtype = LB_BF16;
    lb_contents c;
    assert_int_equal(lb_contents_match(&a, 1, &b, 1, &c, NULL), LB_OK);
    assert_int_equal(c.list[0].relation, LB_CONTENT_RENAMED);
    assert_true(c.list[0].cast);
    lb_contents_release(&c);
    free(x);
}

static void a_view_is_read_as_it_lies(void **state)
{
    (void)state;
    float *x = drawn(ROWS * COLS), turned[ROWS * COLS];
    lb_content_tensor a = matrix("w", x, COLS, ROWS);
    a.tensor.layout.stride[0] = 1, a.tensor.layout.stride[1] = COLS; /* the transpose of [ROWS, COLS] */
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) turned[j * ROWS + i] = x[i * COLS + j];
    lb_contents c;
    const lb_content_tensor b = matrix("v", turned, COLS, ROWS);
    assert_int_equal(lb_contents_match(&a, 1, &b, 1, &c, NULL), LB_OK);
    assert_int_equal(c.list[0].relation, LB_CONTENT_RENAMED);
    assert_int_equal(c.list[0].found, ROWS * COLS);
    lb_contents_release(&c);
    free(x);
}

static void rows_of_zeros_are_found_behind_each_other(void **state)
{
    (void)state;
    enum { PADDING = 20000 }; /* each of them is like all others: looked up one by one this would take minutes */
    float *x = calloc((size_t)(ROWS + PADDING) * COLS, sizeof *x), *drawn_rows = drawn(ROWS * COLS);
    assert_non_null(x);
    memcpy(x, drawn_rows, ROWS * COLS * sizeof *x);
    memcpy(x + (ROWS - 2) * COLS, x, COLS * sizeof *x); /* and a row that is there twice */
    const lb_content_tensor a = matrix("w", x, ROWS + PADDING, COLS), b = matrix("v", x, ROWS - 1 + PADDING, COLS);
    lb_contents c;
    assert_int_equal(lb_contents_match(&a, 1, &b, 1, &c, NULL), LB_OK);
    check_runs(&a, &b, &c, 0);
    assert_int_equal(c.list[0].relation, LB_CONTENT_SPLIT);
    assert_int_equal(c.list[0].found, c.list[0].all);
    lb_contents_release(&c);
    free(x), free(drawn_rows);
}

static void two_narrow_dtypes_are_casts_in_one_go(void **state)
{
    (void)state;
    float *x = drawn(ROWS * COLS), *y = drawn(ROWS * COLS);
    uint16_t brain[ROWS * COLS], half[ROWS * COLS];
    lb_convert(LB_BF16, brain, LB_F32, x, ROWS * COLS, NULL);
    lb_convert(LB_F16, half, LB_F32, y, ROWS * COLS, NULL);
    const lb_content_tensor a[] = {matrix("w", x, ROWS, COLS), matrix("v", y, ROWS, COLS)};
    lb_content_tensor b[] = {a[0], a[1]};
    b[0].tensor.data = brain, b[0].tensor.dtype = LB_BF16, b[1].tensor.data = half, b[1].tensor.dtype = LB_F16;
    lb_contents c;
    assert_int_equal(lb_contents_match(a, 2, b, 2, &c, NULL), LB_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c.list[i].relation, LB_CONTENT_SAME);
        assert_true(c.list[i].cast);
    }
    lb_contents_release(&c);
    free(x), free(y);
}

/* Codes from -127 to 127, rows of them in another order, and weights of each times its scale, rounded to `dtype`; with
 * `turned` the codes lie (columns, rows). */
static lb_contents match_codes(lb_dtype dtype, bool turned, int wrong, int8_t *codes, char *weights)
{
    enum { LONG = 32 };
    float scales[ROWS];
    for (int r = 0; r < ROWS; r++) scales[r] = 0.001f + fabsf(number()) / 100;
    for (int i = 0; i < ROWS * LONG; i++) codes[i] = (int8_t)(number() * 127 * (wrong < 0 || i % 3 ? 1 : -1));
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < LONG; c++) {
            const int from = (ROWS - 1 - r) * LONG + c, at = turned ? c * ROWS + ROWS - 1 - r : from;
            float x = (float)codes[at] * scales[r];
            if (r * LONG + c == wrong) x += 20 * scales[r];
            lb_convert(dtype, weights + (size_t)(r * LONG + c) * lb_dtype_bits(dtype) / 8, LB_F32, &x, 1, NULL);
        }
    lb_content_tensor a = matrix("codes", (float *)codes, turned ? LONG : ROWS, turned ? ROWS : LONG);
    lb_content_tensor b = matrix("weight", (float *)weights, ROWS, LONG);
    a.tensor.dtype = LB_I8, b.tensor.dtype = dtype;
    lb_contents c;
    assert_int_equal(lb_contents_match_scaled(&a, 1, &b, 1, 4, &c, NULL), LB_OK);
    return c;
}

static void weights_are_rows_of_codes_times_a_scale_each(void **state)
{
    (void)state;
    static const lb_dtype dtypes[] = {LB_F32, LB_F16, LB_BF16};
    int8_t codes[ROWS * 32];
    char weights[ROWS * 32 * sizeof(float)];
    for (int k = 0; k < 3 * 2 * 20; k++) {
        const lb_dtype dtype = dtypes[k % 3];
        const bool turned = k / 3 % 2;
        lb_contents c = match_codes(dtype, turned, -1, codes, weights);
        assert_int_equal(c.list[0].found, ROWS * 32);
        assert_int_equal(c.list[0].n, ROWS); /* each row has its own factor: none are put together */
        for (int r = 0; r < ROWS; r++) {
            const lb_content_run *run = &c.runs[c.list[0].first + (uint32_t)r];
            assert_int_equal(run->to, r * 32);
            assert_int_equal(run->from, turned ? ROWS - 1 - r : (ROWS - 1 - r) * 32);
            assert_int_equal(run->from_stride, turned ? ROWS : 1);
        }
        lb_contents_release(&c);
        c = match_codes(dtype, turned, (int)(seed >> 33) % (ROWS * 32), codes, weights);
        assert_int_equal(c.list[0].relation, LB_CONTENT_NONE);
        lb_contents_release(&c);
    }
}

/* No rounding makes a number infinite, or an infinite one a number. */
static void infinite_numbers_are_near_none(void **state)
{
    (void)state;
    double *mask = malloc(COLS * sizeof *mask);
    float *x = drawn(COLS);
    for (int i = 0; i < COLS; i++) mask[i] = -INFINITY, x[i] = -1 - fabsf(x[i]);
    lb_content_tensor a = vector("mask", (float *)mask, COLS), b = vector("decay", x, COLS);
    a.tensor.dtype = LB_F64;
    lb_contents c;
    assert_int_equal(lb_contents_match_roundings(&a, 1, &b, 1, 4, &c, NULL), LB_OK);
    assert_int_equal(c.list[0].relation, LB_CONTENT_NONE);
    lb_contents_release(&c);
    free(mask), free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tensor_is_found_in_every_layout),
        cmocka_unit_test(several_tensors_in_one_are_found_whole_and_interleaved),
        cmocka_unit_test(biases_behind_each_other_and_permuted_are_found),
        cmocka_unit_test(weights_and_biases_of_several_dimensions_are_found),
        cmocka_unit_test(stacked_layers_are_found_in_every_order_of_dimensions),
        cmocka_unit_test(padding_is_told_from_numbers_that_nothing_holds),
        cmocka_unit_test(one_number_that_is_not_the_same_is_no_match),
        cmocka_unit_test(equal_tensors_meet_in_their_order),
        cmocka_unit_test(numbers_rounded_to_another_dtype_are_a_cast),
        cmocka_unit_test(a_view_is_read_as_it_lies),
        cmocka_unit_test(rows_of_zeros_are_found_behind_each_other),
        cmocka_unit_test(two_narrow_dtypes_are_casts_in_one_go),
        cmocka_unit_test(weights_are_rows_of_codes_times_a_scale_each),
        cmocka_unit_test(infinite_numbers_are_near_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
