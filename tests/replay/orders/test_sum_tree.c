/* Trees of additions: texts, rules, equality, names; and that a tree run has the bits of the order that made it. */
#include "kernel/product.h"
#include "orders/schedule.h"
#include "orders/schedule_tree.h"
#include "orders/tensor_core.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static lb_sum_tree *parsed(const char *text)
{
    lb_err err = LB_ERR_INIT;
    lb_sum_tree *tree;
    if (lb_sum_tree_parse(text, &tree, &err) != LB_OK) fail_msg("\"%s\": %s", text, err.message);
    return tree;
}

static void assert_prints(const char *from, const char *to)
{
    lb_sum_tree *tree = parsed(from);
    char *text = lb_sum_tree_print(tree);
    assert_string_equal(text, to);
    free(text);
    lb_sum_tree_free(tree);
}

static void trees_print_as_the_shortest_text_that_is_them(void **state)
{
    (void)state;
    assert_prints("0", "0");
    assert_prints("(1 0)", "(0 1)");
    assert_prints(" ( (3 2)\n(1 0) )", "((0 1) (2 3))");
    assert_prints("(((0 1) 2) 3)", "[0..3]");
    assert_prints("(((3 2) 1) 0)", "[3..0]");
    assert_prints("[[0..12/4] [1..13/4] [2..14/4] [3..15/4]]", "[[0..12/4] [1..13/4] [2..14/4] [3..15/4]]");
    assert_prints("(3 2 1 0)", "(0..3)");
    assert_prints("((0 1 2 3) 4 5 6 7)", "((0..3) 4..7)");
    assert_prints("(7 ((0 1) (2 3) (4 5)) 6)", "(((0 1) (2 3) (4 5)) 6 7)");
    assert_prints("[(0 1) (2 3) 4]", "[(0 1) (2 3) 4]");
    assert_prints("[4 (2 3) (0 1)]", "((0 1) [2..4])");
}

static void broken_texts_are_rejected_with_a_reason(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"", "no term"},
        {"(0", "still open"},
        {"(0 1))", "not opened"},
        {"(0 1]", "other kind"},
        {"(0)", "two operands"},
        {"(0 1) (2 3)", "more than one"},
        {"(0 0)", "twice"},
        {"(0 2)", "never added"},
        {"[0..5/2]", "last term"},
        {"[0..]", "last term"},
        {"(0 x)", "expected"},
        {"[0..3/0]", "step"},
        {"(0 99999999999)", "expected"},
        {"([0..3] [0..3])", "twice"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        lb_err err = LB_ERR_INIT;
        lb_sum_tree *tree;
        if (lb_sum_tree_parse(texts[i][0], &tree, &err) != LB_ERR_INVALID) fail_msg("\"%s\" was accepted", texts[i][0]);
        if (!strstr(err.message, texts[i][1])) fail_msg("\"%s\": %s", texts[i][0], err.message);
        assert_null(tree);
    }
    static const char *const json[] = {"{",
                                       "{}",
                                       "{\"leaves\": 2, \"nodes\": [[0]]}",
                                       "{\"leaves\": 2, \"nodes\": [[0, 2]]}",
                                       "{\"leaves\": 3, \"nodes\": [[0, 1]]}",
                                       "{\"leaves\": 2, \"nodes\": [[0, 1], [0, 2]]}",
                                       "{\"leaves\": 0, \"nodes\": []}",
                                       "{\"leaves\": 2, \"nodes\": [[0, 4294967295]]}",
                                       "{\"leaves\": 99999999, \"nodes\": []}"};
    for (size_t i = 0; i < sizeof json / sizeof *json; i++) {
        lb_sum_tree *tree;
        if (lb_sum_tree_from_json(json[i], &tree, NULL) != LB_ERR_INVALID) fail_msg("%s was accepted", json[i]);
    }
}

static uint32_t below(uint32_t n)
{
    return (uint32_t)((double)rand() / ((double)RAND_MAX + 1) * n);
}

/* Any tree: two to four of what is there are added, until one is left. */
static lb_sum_tree *random_tree(uint32_t n)
{
    lb_tree_builder builder = lb_tree_begin(n);
    uint32_t *left = malloc(n * sizeof *left), count = n;
    for (uint32_t i = 0; i < n; i++) left[i] = i;
    while (count > 1) {
        uint32_t operands[4], take = 2 + (below(4) ? 0 : below(3));
        if (take > count) take = count;
        for (uint32_t k = 0; k < take; k++) {
            const uint32_t at = below(count);
            operands[k] = left[at];
            left[at] = left[--count];
        }
        left[count++] = lb_tree_fuse(&builder, operands, take);
    }
    free(left);
    lb_sum_tree *tree;
    assert_int_equal(lb_tree_end(&builder, &tree, NULL), LB_OK);
    return tree;
}

static void any_tree_comes_back_from_text_and_json(void **state)
{
    (void)state;
    srand(1);
    for (int trial = 0; trial < 300; trial++) {
        lb_sum_tree *tree = random_tree(1 + below(60)), *again, *third;
        char *text = lb_sum_tree_print(tree), *json = lb_sum_tree_to_json(tree, "name");
        assert_int_equal(lb_sum_tree_parse(text, &again, NULL), LB_OK);
        assert_true(lb_sum_tree_equal(tree, again));
        assert_int_equal(lb_sum_tree_from_json(json, &third, NULL), LB_OK);
        assert_true(lb_sum_tree_equal(tree, third));
        free(text);
        free(json);
        lb_sum_tree_free(tree);
        lb_sum_tree_free(again);
        lb_sum_tree_free(third);
    }
}

static void deep_trees_need_no_stack(void **state)
{
    (void)state;
    lb_sum_tree *tree, *again;
    assert_int_equal(lb_sum_tree_named("sequential", 1000000, LB_SUM_ROW, LB_F32, &tree, NULL), LB_OK);
    char *text = lb_sum_tree_print(tree);
    assert_string_equal(text, "[0..999999]");
    assert_int_equal(lb_sum_tree_parse(text, &again, NULL), LB_OK);
    assert_true(lb_sum_tree_equal(tree, again));
    free(text);
    lb_sum_tree_free(again);
    lb_sum_tree_free(tree);
    /* ten thousand open brackets */
    text = malloc(200000);
    char *at = text;
    for (int i = 0; i < 10000; i++) *at++ = '(';
    at += sprintf(at, "0");
    for (int i = 1; i <= 10000; i++) at += sprintf(at, " %d)", i);
    tree = parsed(text);
    assert_int_equal(tree->nodes, 10000);
    free(text);
    lb_sum_tree_free(tree);
}

static void operands_have_no_order_but_trees_have_a_shape(void **state)
{
    (void)state;
    lb_sum_tree *a = parsed("((0 1) (2 3))"), *b = parsed("((3 2) (0 1))"), *c = parsed("((0 2) (1 3))"),
                *d = parsed("[0..3]");
    assert_true(lb_sum_tree_equal(a, b));
    assert_false(lb_sum_tree_equal(a, c));
    assert_false(lb_sum_tree_equal(a, d));
    lb_sum_tree_free(a);
    lb_sum_tree_free(b);
    lb_sum_tree_free(c);
    lb_sum_tree_free(d);
}

static void a_tree_cut_down_is_the_order_of_the_terms_left(void **state)
{
    (void)state;
    const uint32_t kept[] = {1, 2, 5, 6, 7};
    lb_sum_tree *whole = parsed("(((0 1) (2 3)) ((4 5) (6 7)))"), *cut = lb_sum_tree_sampled(whole, kept, 5),
                *want = parsed("((0 1) (2 (3 4)))");
    assert_true(lb_sum_tree_equal(cut, want));
    lb_sum_tree_free(whole);
    lb_sum_tree_free(cut);
    lb_sum_tree_free(want);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static const char *const orders[] = {
    "sequential",       "pairwise",       "cascade:8",    "cascade:4",       "cascade:16",     "cascade:1",
    "blocked:1",        "blocked:7",      "blocked:64",   "splitk:1",        "splitk:3",       "splitk:16",
    "splitk:4@2,0,3,1", "splitk:3@2,1,0", "lanes:1",      "lanes:8",         "lanes:100",      "butterfly:1",
    "butterfly:8",      "butterfly:32x4", "butterfly:64", "butterfly:256x2", "butterfly:1024", "numpy",
    "torch:1",          "torch:4",
};
enum { ORDERS = sizeof orders / sizeof *orders };
static const int counts[] = {1, 2, 3, 7, 8, 15, 16, 33, 100, 127, 128, 129, 255, 256, 1000, 2049};
enum { COUNTS = sizeof counts / sizeof *counts, MOST = 2049 };

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)(((double)rand() / RAND_MAX - 0.5) * exp2(below(20)));
}

static void a_tree_run_has_the_bits_of_its_order(void **state)
{
    (void)state;
    static float plain[MOST], bf16[MOST];
    static double wide[MOST];
    fill(plain, MOST);
    memcpy(bf16, plain, sizeof bf16);
    lb_round_to_grid_f32(bf16, MOST, LB_BF16, NULL);
    for (int o = 0; o < ORDERS; o++)
        for (int c = 0; c < COUNTS; c++)
            for (int narrow = 0; narrow < 2; narrow++) {
                lb_schedule schedule;
                lb_sum_tree *tree;
                const lb_tree_rule rule = {.accumulate = narrow ? LB_BF16 : LB_NO_DTYPE};
                const float *x = narrow ? bf16 : plain; /* the engine rounds a first term too: 0 + x */
                for (int i = 0; i < counts[c]; i++) wide[i] = narrow ? x[i] : x[i] * 1.0000001;
                assert_int_equal(lb_schedule_parse(orders[o], &schedule, NULL), LB_OK);
                assert_int_equal(lb_schedule_tree(&schedule, (uint32_t)counts[c], LB_SUM_ROW, LB_F32, &tree, NULL),
                                 LB_OK);
                float got, want = lb_schedule_sum_f32(&schedule, x, counts[c], rule.accumulate);
                assert_int_equal(lb_sum_tree_run_f32(tree, &rule, x, 1, 1, &got), LB_OK);
                if (memcmp(&got, &want, 4))
                    fail_msg("%s of %d terms: %a, the tree gives %a", orders[o], counts[c], want, got);
                lb_sum_tree_free(tree);
                assert_int_equal(lb_schedule_tree(&schedule, (uint32_t)counts[c], LB_SUM_ROW, LB_F64, &tree, NULL),
                                 LB_OK);
                double wide_got, wide_want = lb_schedule_sum_f64(&schedule, wide, counts[c], rule.accumulate);
                assert_int_equal(lb_sum_tree_run_f64(tree, &rule, wide, 1, 1, &wide_got), LB_OK);
                if (memcmp(&wide_got, &wide_want, 8)) fail_msg("%s of %d doubles", orders[o], counts[c]);
                lb_sum_tree_free(tree);
            }
}

static void columns_run_side_by_side(void **state)
{
    (void)state;
    enum { N = 200, W = 37 };
    static float x[N * W];
    float got[W], want[W];
    fill(x, N * W);
    for (int o = 0; o < ORDERS; o++) {
        lb_schedule schedule;
        lb_sum_tree *tree;
        lb_schedule_parse(orders[o], &schedule, NULL);
        if (schedule.kind == LB_SCHEDULE_CASCADE || schedule.kind == LB_SCHEDULE_TORCH)
            continue; /* their columns differ from their rows */
        assert_int_equal(lb_schedule_tree(&schedule, N, LB_SUM_COLUMN, LB_F32, &tree, NULL), LB_OK);
        lb_schedule_sum_columns_f32(&schedule, x, W, N, W, want, LB_NO_DTYPE);
        assert_int_equal(lb_sum_tree_run_f32(tree, &(lb_tree_rule){0}, x, W, W, got), LB_OK);
        assert_memory_equal(got, want, sizeof got);
        lb_schedule as_tree = {LB_SCHEDULE_TREE, 0, 0, tree};
        lb_schedule_sum_columns_f32(&as_tree, x, W, N, W, got, LB_NO_DTYPE);
        assert_memory_equal(got, want, sizeof got);
        lb_sum_tree_free(tree);
    }
    /* torch's whole vectors of columns, and the rest */
    lb_sum_tree *tree;
    lb_schedule schedule = {LB_SCHEDULE_CASCADE, 8, 0, NULL};
    lb_schedule_sum_columns_f32(&schedule, x, W, N, W, want, LB_NO_DTYPE);
    lb_schedule_tree(&schedule, N, LB_SUM_COLUMN, LB_F32, &tree, NULL);
    lb_sum_tree_run_f32(tree, &(lb_tree_rule){0}, x, W, 32, got);
    assert_memory_equal(got, want, 32 * sizeof *got);
    lb_sum_tree_free(tree);
    lb_sum_tree_named("cascade:1", N, LB_SUM_ROW, LB_F32, &tree, NULL);
    lb_sum_tree_run_f32(tree, &(lb_tree_rule){0}, x + 32, W, W - 32, got);
    assert_memory_equal(got, want + 32, (W - 32) * sizeof *got);
    lb_sum_tree_free(tree);
}

static void products_run_along_a_tree(void **state)
{
    (void)state;
    enum { M = 3, N = 21, K = 900 };
    static float a[M * K], b[K * N];
    float want[M * N], got[N], through[M * N];
    fill(a, M * K);
    fill(b, K * N);
    static const char *const chained[] = {"sequential",       "blocked:64", "splitk:7",
                                          "splitk:4@3,1,0,2", "torch:1",    "torch:2"};
    for (size_t o = 0; o < sizeof chained / sizeof *chained; o++) {
        lb_schedule schedule;
        lb_sum_tree *tree;
        lb_schedule_parse(chained[o], &schedule, NULL);
        const lb_product shape = {.m = M, .n = N, .k = K};
        const lb_method method = {.schedule = &schedule};
        assert_int_equal(lb_product_run(&shape, LB_F32, &method, a, b, want), LB_OK);
        assert_int_equal(lb_schedule_tree(&schedule, K, LB_SUM_PRODUCT, LB_F32, &tree, NULL), LB_OK);
        const lb_schedule as_tree = {LB_SCHEDULE_TREE, 0, 0, tree};
        const lb_method by_tree = {.schedule = &as_tree};
        assert_int_equal(lb_product_run(&shape, LB_F32, &by_tree, a, b, through), LB_OK);
        for (int i = 0; i < M; i++) {
            const lb_tree_rule rule = {.chained = true};
            assert_int_equal(lb_sum_tree_products_f32(tree, &rule, a + i * K, b, N, N, got), LB_OK);
            if (memcmp(got, want + i * N, sizeof got)) fail_msg("%s, row %d", chained[o], i);
        }
        assert_memory_equal(through, want, sizeof want);
        lb_sum_tree_free(tree);
    }
}

static void fused_nodes_are_rounded_once_or_as_a_unit_does_it(void **state)
{
    (void)state;
    lb_sum_tree *tree = parsed("((0 1 2) 3 4)");
    const float x[5] = {1, 0x1p-24f, 0x1p-60f, 0x1p-24f, -1};
    float out;
    assert_int_equal(lb_sum_tree_run_f32(tree, &(lb_tree_rule){0}, x, 1, 1, &out), LB_OK);
    assert_float_equal(out, 0x1p-23f + 0x1p-24f, 0); /* just above the tie: one rounding sees it, two would not */
    lb_sum_tree_free(tree);
    /* products on a tensor core, as the product itself computes them */
    enum { K = 75, N = 18 };
    float a[K], b[K * N], want[N], got[N];
    fill(a, K);
    fill(b, K * N);
    lb_round_to_grid_f32(a, K, LB_BF16, NULL);
    lb_round_to_grid_f32(b, K * N, LB_BF16, NULL);
    lb_tensor_core core;
    lb_schedule schedule;
    lb_schedule_parse("tensorcore:h100", &schedule, NULL);
    assert_int_equal(lb_tensor_core_find((int)schedule.size, LB_BF16, LB_BF16, LB_NO_DTYPE, &core, NULL), LB_OK);
    lb_tensor_core_product(&core, &(lb_tensor_core_shape){1, N, K, 0, false}, &(lb_matrix){a, LB_F32, K, 1},
                           &(lb_matrix){b, LB_F32, N, 1}, want);
    assert_int_equal(lb_schedule_tree(&schedule, K, LB_SUM_PRODUCT, LB_BF16, &tree, NULL), LB_OK);
    assert_int_equal(lb_sum_tree_products_f32(tree, &(lb_tree_rule){.fused = &core}, a, b, N, N, got), LB_OK);
    assert_memory_equal(got, want, sizeof got);
    lb_sum_tree_free(tree);
}

static void a_tree_says_nothing_about_other_numbers_of_terms(void **state)
{
    (void)state;
    float x[100];
    fill(x, 100);
    lb_schedule schedule;
    assert_int_equal(lb_schedule_parse("tree:[9..0]", &schedule, NULL), LB_OK);
    float own = lb_schedule_sum_f32(NULL, x, 100, LB_NO_DTYPE),
          other = lb_schedule_sum_f32(&schedule, x, 100, LB_NO_DTYPE), reversed = 0;
    assert_memory_equal(&own, &other, 4);
    for (int i = 9; i >= 0; i--) reversed += x[i];
    other = lb_schedule_sum_f32(&schedule, x, 10, LB_NO_DTYPE);
    assert_memory_equal(&reversed, &other, 4);
    lb_schedule_release(&schedule);
    assert_int_equal(lb_schedule_parse("tree:/no/such/file", &schedule, NULL), LB_ERR_IO);
    assert_int_equal(lb_schedule_parse("tree:(0 0)", &schedule, NULL), LB_ERR_INVALID);
}

static void slices_may_be_added_in_any_order(void **state)
{
    (void)state;
    char text[96];
    lb_schedule schedule;
    assert_int_equal(lb_schedule_parse("splitk:4@2,0,3,1", &schedule, NULL), LB_OK);
    assert_string_equal(lb_schedule_print(&schedule, text), "splitk:4@2,0,3,1");
    static const char *const wrong[] = {"splitk:4@2,0,3", "splitk:4@2,0,3,3",  "splitk:4@2,0,3,4", "splitk:4@",
                                        "splitk:17@0",    "splitk:4@2,0,3,1,", "blocked:4@0,1,2,3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (lb_schedule_parse(wrong[i], &schedule, NULL) != LB_ERR_INVALID) fail_msg("\"%s\" was accepted", wrong[i]);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static void assert_named(const char *order, uint32_t n, lb_sum_of of, lb_dtype dtype, const char *want)
{
    lb_sum_tree *tree;
    char names[256];
    assert_int_equal(lb_sum_tree_named(order, n, of, dtype, &tree, NULL), LB_OK);
    if (!lb_sum_tree_name(tree, of, dtype, names, sizeof names)) fail_msg("%s of %u has no name", order, n);
    if (want && strcmp(names, want)) fail_msg("%s of %u is named \"%s\", not \"%s\"", order, n, names, want);
    for (char *at = names; at; at = strstr(at, " = ") ? strstr(at, " = ") + 3 : NULL) { /* every name makes the tree */
        char one[64];
        lb_sum_tree *again;
        snprintf(one, sizeof one, "%.*s", (int)(strstr(at, " = ") ? strstr(at, " = ") - at : (long)strlen(at)), at);
        if (lb_sum_tree_named(one, n, of, dtype, &again, NULL) != LB_OK)
            fail_msg("%s of %u is named \"%s\", which is no order", order, n, one);
        assert_true(lb_sum_tree_equal(tree, again));
        lb_sum_tree_free(again);
    }
    lb_sum_tree_free(tree);
}

static void trees_are_named_by_the_orders_that_make_them(void **state)
{
    (void)state;
    for (int o = 0; o < ORDERS; o++)
        for (int c = 0; c < COUNTS; c++) assert_named(orders[o], (uint32_t)counts[c], LB_SUM_ROW, LB_F32, NULL);
    assert_named("sequential", 1000, LB_SUM_ROW, LB_F32, "sequential");
    assert_named("pairwise", 1000, LB_SUM_ROW, LB_F32, "pairwise");
    assert_named("numpy", 1000, LB_SUM_ROW, LB_F32, "numpy");
    assert_named("cascade:8", 1000, LB_SUM_ROW, LB_F32, "cascade:8");
    assert_named("cascade:8", 1000, LB_SUM_COLUMN, LB_F32, NULL);
    assert_named("blocked:96", 1000, LB_SUM_ROW, LB_F32, "blocked:96");
    assert_named("splitk:4", 1000, LB_SUM_PRODUCT, LB_F32, "blocked:250 = splitk:4 = torch:4");
    assert_named("splitk:4@2,0,3,1", 1000, LB_SUM_PRODUCT, LB_F32,
                 "splitk:4@0,2,3,1"); /* of the first two either comes first */
    assert_named("splitk:7@6,5,4,3,2,1,0", 1000, LB_SUM_PRODUCT, LB_F32, "splitk:7@5,6,4,3,2,1,0");
    assert_named("lanes:12", 1000, LB_SUM_ROW, LB_F32, "lanes:12");
    assert_named("butterfly:256x8", 5000, LB_SUM_ROW, LB_F32, "butterfly:256x8");
    assert_named("butterfly:96", 1000, LB_SUM_ROW, LB_F32, "butterfly:96");
    assert_named("torch:2", 40000, LB_SUM_ROW, LB_F32, "torch:2");
    assert_named("torch:2", 1000, LB_SUM_PRODUCT, LB_F32, NULL);
    assert_named("tensorcore:h100", 1000, LB_SUM_PRODUCT, LB_BF16, "fused:16 = tensorcore:h100 = tensorcore:b200");
    assert_named("tensorcore:a100", 100, LB_SUM_PRODUCT, LB_F16, "fused:8 = tensorcore:a100 = tensorcore:ada");
    assert_named("tensorcore:h100-fp8:128", 1000, LB_SUM_PRODUCT, LB_E4M3FN, NULL);
    assert_named("sequential", 1, LB_SUM_ROW, LB_F32, "sequential");
    char names[256];
    lb_sum_tree *odd = parsed("((0 3) ((1 4) (2 5)))"), *back = parsed("[99..0]");
    assert_false(lb_sum_tree_name(odd, LB_SUM_ROW, LB_F32, names, sizeof names));
    assert_string_equal(names, "");
    assert_true(lb_sum_tree_name(back, LB_SUM_ROW, LB_F32, names, sizeof names));
    assert_string_equal(names, "reversed");
    lb_sum_tree_free(odd);
    lb_sum_tree_free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_print_as_the_shortest_text_that_is_them),
        cmocka_unit_test(broken_texts_are_rejected_with_a_reason),
        cmocka_unit_test(any_tree_comes_back_from_text_and_json),
        cmocka_unit_test(deep_trees_need_no_stack),
        cmocka_unit_test(operands_have_no_order_but_trees_have_a_shape),
        cmocka_unit_test(a_tree_cut_down_is_the_order_of_the_terms_left),
        cmocka_unit_test(a_tree_run_has_the_bits_of_its_order),
        cmocka_unit_test(columns_run_side_by_side),
        cmocka_unit_test(products_run_along_a_tree),
        cmocka_unit_test(fused_nodes_are_rounded_once_or_as_a_unit_does_it),
        cmocka_unit_test(a_tree_says_nothing_about_other_numbers_of_terms),
        cmocka_unit_test(slices_may_be_added_in_any_order),
        cmocka_unit_test(trees_are_named_by_the_orders_that_make_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
