/* Kernels probed from outside: the order found must be the order declared, whatever the kernel. */
#include "compensated_sum.h"
#include "orders/schedule.h"
#include "orders/schedule_tree.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static lb_probe_report probed(const lb_probe_kernel *kernel, uint64_t seed, uint32_t sample)
{
    lb_probe_options options = LB_PROBE_OPTIONS_INIT;
    options.seed = seed;
    options.sample = sample;
    lb_probe_report report;
    lb_err err = LB_ERR_INIT;
    if (lb_probe_run(kernel, &options, &report, &err) != LB_OK) fail_msg("%s", err.message);
    return report;
}

static lb_probe_kernel engine(const char *order, lb_probe_shape shape)
{
    lb_probe_kernel kernel;
    lb_err err = LB_ERR_INIT;
    if (lb_probe_schedule(&shape, order, &kernel, &err) != LB_OK) fail_msg("%s: %s", order, err.message);
    return kernel;
}

/* All results share one order, and it is the declared one. */
static void assert_finds(const char *order, lb_probe_shape shape, const char *arithmetic)
{
    const lb_sum_of of = shape.form == LB_PROBE_COLUMNS ? LB_SUM_COLUMN
                         : shape.form >= LB_PROBE_DOT   ? LB_SUM_PRODUCT
                                                        : LB_SUM_ROW;
    lb_probe_kernel kernel = engine(order, shape);
    lb_probe_report report = probed(&kernel, 1, 0);
    lb_sum_tree *declared;
    if (lb_sum_tree_named(*order ? order : "sequential", shape.n, of, shape.dtype, &declared, NULL) != LB_OK)
        fail_msg("%s", order);
    if (report.outcome != LB_PROBE_TREE)
        fail_msg("%s of %u: %s, %s", order, shape.n, lb_probe_outcome_name(report.outcome), report.groups[0].reason);
    assert_int_equal(report.n_groups, 1);
    if (!lb_sum_tree_equal(report.groups[0].tree, declared))
        fail_msg("%s of %u: another tree, %s", order, shape.n, lb_sum_tree_print(report.groups[0].tree));
    if (!*report.groups[0].names) fail_msg("%s of %u has no name", order, shape.n);
    if (report.groups[0].confirmed != report.groups[0].tried)
        fail_msg("%s of %u: %u of %u", order, shape.n, report.groups[0].confirmed, report.groups[0].tried);
    if (arithmetic && strcmp(report.groups[0].arithmetic, arithmetic))
        fail_msg("%s: %s", order, report.groups[0].arithmetic);
    lb_sum_tree_free(declared);
    lb_probe_report_release(&report);
    lb_probe_kernel_release(&kernel);
}

static const char *const orders[] = {"sequential",  "pairwise",         "cascade:8",    "cascade:16",
                                     "cascade:1",   "blocked:7",        "blocked:64",   "splitk:3",
                                     "splitk:16",   "splitk:4@2,0,3,1", "lanes:8",      "lanes:100",
                                     "butterfly:8", "butterfly:32x4",   "butterfly:64", "butterfly:256x2",
                                     "numpy",       "torch:1",          "torch:4"};
static const uint32_t counts[] = {1, 2, 3, 7, 16, 33, 129, 300, 1000};

static void every_order_of_a_sum_is_found(void **state)
{
    (void)state;
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            assert_finds(orders[o], (lb_probe_shape){LB_PROBE_SUM, LB_F32, 0, counts[c], 1, 1},
                         counts[c] > 1 ? "f32" : NULL);
}

static void every_dtype_is_probed(void **state)
{
    (void)state;
    static const lb_dtype dtypes[] = {LB_F64, LB_BF16, LB_F16};
    static const char *const arithmetic[] = {"f64", "f32, rounded to bf16 at the end",
                                             "f32, rounded to f16 at the end"};
    for (int d = 0; d < 3; d++)
        for (size_t o = 0; o < sizeof orders / sizeof *orders; o += 2)
            for (uint32_t n = 5; n < 2000; n = n * 5 + 3)
                assert_finds(orders[o], (lb_probe_shape){LB_PROBE_SUM, dtypes[d], 0, n, 1, 1},
                             n > 100 ? arithmetic[d] : NULL);
}

static void many_rows_and_columns_answer_at_a_time(void **state)
{
    (void)state;
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o += 3) {
        assert_finds(orders[o], (lb_probe_shape){LB_PROBE_ROWS, LB_F32, 0, 333, 20, 1}, "f32");
        assert_finds(orders[o], (lb_probe_shape){LB_PROBE_COLUMNS, LB_F32, 0, 333, 64, 1}, "f32");
    }
}

static void products_are_probed(void **state)
{
    (void)state;
    static const char *const products[] = {"",        "sequential", "blocked:64", "splitk:4", "splitk:3@2,0,1",
                                           "torch:2", "numpy",      "pairwise",   "lanes:16"};
    for (size_t o = 0; o < sizeof products / sizeof *products; o++) {
        const char *arithmetic = o < 6 ? "f32 fma" : "f32";
        assert_finds(products[o], (lb_probe_shape){LB_PROBE_MATMUL, LB_F32, 0, 900, 17, 19}, arithmetic);
        assert_finds(products[o], (lb_probe_shape){LB_PROBE_DOT, LB_F32, 0, 401, 1, 1}, arithmetic);
    }
}

/* Sixteen columns: of fewer the last ones have orders of their own. */
static void kernels_for_one_row_are_probed(void **state)
{
    (void)state;
    static const struct {
        const char *order, *arithmetic;
    } kernels[] = {{"halved:192", "f32 fma"},
                   {"halved:100", "f32 fma"},
                   {"eights", "f32 fma"},
                   {"folded:8,pairs", "f32 fma"},
                   {"folded:16", "f32 fma"},
                   {"folded:16,head:1,tail:again", "f32 fma"},
                   {"folded:4,rounded", "f32"},
                   {"folded:8,pairs,rounded", "f32"},
                   {"folded:4,aligned:0,tail:after,rounded", "f32"},
                   {"folded:4,aligned:3,tail:after,rounded", "f32"},
                   {"folded:4,head:1,tail:after,rounded", "f32"},
                   {"folded:8,aligned:5,tail:again", "f32 fma"}};
    static const uint32_t terms[] = {2, 7, 16, 33, 40, 79, 193, 300, 385};
    for (size_t o = 0; o < sizeof kernels / sizeof *kernels; o++)
        for (size_t t = 0; t < sizeof terms / sizeof *terms; t++) {
            const char *arithmetic = terms[t] > 30 ? kernels[o].arithmetic : NULL;
            assert_finds(kernels[o].order, (lb_probe_shape){LB_PROBE_MATMUL, LB_F32, 0, terms[t], 3, 16}, arithmetic);
        }
}

/* Of six columns the last two are a pair, in which either column has an order. */
static void last_columns_have_orders_of_their_own(void **state)
{
    (void)state;
    static const char *const kernels[] = {"folded:4,aligned:0,tail:after,rounded", "folded:16,head:1,tail:again"};
    for (int i = 0; i < 2; i++) {
        lb_probe_kernel kernel = engine(kernels[i], (lb_probe_shape){LB_PROBE_MATMUL, LB_F32, 0, 101, 1, 6});
        lb_probe_report report = probed(&kernel, 1, 0);
        assert_int_equal(report.n_groups, 3);
        assert_int_equal(report.groups[0].positions, 4);
        assert_string_equal(report.groups[0].names, kernels[i]);
        assert_true(report.groups[1].column + report.groups[2].column == 4 + 5 &&
                    report.groups[1].outcome == LB_PROBE_TREE && report.groups[2].outcome == LB_PROBE_TREE);
        lb_probe_report_release(&report);
        lb_probe_kernel_release(&kernel);
    }
}

static void matrix_units_are_recognised(void **state)
{
    (void)state;
    assert_finds("tensorcore:v100", (lb_probe_shape){LB_PROBE_MATMUL, LB_F16, LB_F32, 61, 9, 17}, "tensor core v100");
    assert_finds("tensorcore:a100", (lb_probe_shape){LB_PROBE_MATMUL, LB_BF16, LB_F32, 200, 9, 17}, "tensor core a100");
    assert_finds("tensorcore:h100", (lb_probe_shape){LB_PROBE_MATMUL, LB_BF16, LB_F32, 200, 33, 17},
                 "tensor core h100");
    assert_finds("tensorcore:h100:64", (lb_probe_shape){LB_PROBE_MATMUL, LB_F16, LB_F32, 200, 9, 17},
                 "tensor core h100");
    assert_finds("tensorcore:b200", (lb_probe_shape){LB_PROBE_MATMUL, LB_F32, 0, 50, 9, 17}, NULL);
}

/* Half a thousand terms out of many name the order; the name is then checked on all terms. */
static void long_sums_are_named_from_a_sample(void **state)
{
    (void)state;
    static const char *const long_orders[] = {"cascade:8",    "numpy",           "torch:4",   "lanes:64",
                                              "blocked:4096", "butterfly:512x4", "sequential"};
    for (size_t o = 0; o < sizeof long_orders / sizeof *long_orders; o++) {
        lb_probe_kernel kernel = engine(long_orders[o], (lb_probe_shape){LB_PROBE_SUM, LB_F32, 0, 100003, 1, 1});
        lb_probe_report report = probed(&kernel, 3, 300);
        assert_int_equal(report.outcome, LB_PROBE_TREE);
        assert_true(report.n_sample <= 300 && report.n_sample > 200);
        if (strncmp(report.groups[0].names, long_orders[o], strlen(long_orders[o])))
            fail_msg("%s is named \"%s\"", long_orders[o], report.groups[0].names);
        assert_int_equal(report.groups[0].confirmed, report.groups[0].tried);
        lb_probe_report_release(&report);
        lb_probe_kernel_release(&kernel);
    }
}

/* ---- kernels made for the purpose -------------------------------------------------------------------------------- */

typedef struct made {
    float (*sum)(const float *x, int64_t n, uint32_t row, uint32_t call);
    uint32_t n, rows, call;
} made;

static lb_status run_made(void *context, uint32_t calls, const void *terms, const void *factors, double *sums,
                          lb_err *err)
{
    (void)factors;
    (void)err;
    made *m = context;
    for (uint32_t c = 0; c < calls; c++, m->call++)
        for (uint32_t r = 0; r < m->rows; r++)
            sums[c * m->rows + r] = m->sum((const float *)terms + ((size_t)c * m->rows + r) * m->n, m->n, r, m->call);
    return LB_OK;
}

static lb_probe_report probed_function(float (*sum)(const float *, int64_t, uint32_t, uint32_t), uint32_t n,
                                       uint32_t rows)
{
    made m = {sum, n, rows, 0};
    const lb_probe_kernel kernel = {{LB_PROBE_ROWS, LB_F32, 0, n, rows, 1}, &m, run_made, NULL};
    return probed(&kernel, 5, 0);
}

static lb_sum_tree *secret;

static float along_secret(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    (void)n, (void)row, (void)call;
    float sum;
    lb_sum_tree_run_f32(secret, &(lb_tree_rule){0}, x, 1, 1, &sum);
    return sum;
}

/* Any tree of two-way additions, and fused ones that keep 24 bits below the largest term. */
static void any_tree_is_found(void **state)
{
    (void)state;
    srand(7);
    for (int trial = 0; trial < 60; trial++) {
        const uint32_t n = 1 + (uint32_t)rand() % 200;
        lb_tree_builder builder = lb_tree_begin(n);
        uint32_t left[200], count = n;
        for (uint32_t i = 0; i < n; i++) left[i] = i;
        for (; count > 1;) {
            const uint32_t i = (uint32_t)rand() % count, x = left[i];
            left[i] = left[--count];
            const uint32_t j = (uint32_t)rand() % count;
            left[j] = lb_tree_add(&builder, x, left[j]);
        }
        assert_int_equal(lb_tree_end(&builder, &secret, NULL), LB_OK);
        lb_probe_report report = probed_function(along_secret, n, 1 + (uint32_t)rand() % 5);
        assert_int_equal(report.outcome, LB_PROBE_TREE);
        assert_true(lb_sum_tree_equal(report.groups[0].tree, secret));
        assert_int_equal(report.groups[0].confirmed, report.groups[0].tried);
        lb_probe_report_release(&report);
        lb_sum_tree_free(secret);
    }
}

static float in_f64(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    (void)row, (void)call;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return (float)sum;
}

static float in_bf16(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    (void)row, (void)call;
    float sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i];
        lb_round_to_grid_f32(&sum, 1, LB_BF16, NULL);
    }
    return sum;
}

static float mean(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    (void)row, (void)call;
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum / (float)n;
}

static void wider_sums_and_means_are_told_apart(void **state)
{
    (void)state;
    lb_probe_report report = probed_function(in_f64, 100, 2);
    assert_int_equal(report.outcome, LB_PROBE_TREE);
    assert_string_equal(report.groups[0].names, "sequential");
    assert_string_equal(report.groups[0].arithmetic, "f64, rounded to f32 at the end");
    lb_probe_report_release(&report);
    report = probed_function(mean, 77, 2);
    assert_int_equal(report.outcome, LB_PROBE_TREE);
    assert_string_equal(report.groups[0].arithmetic, "f32, divided by n");
    lb_probe_report_release(&report);
    /* f32 terms, but only 8 bits of them count: the tree is found, the arithmetic is none of those known */
    report = probed_function(in_bf16, 100, 2);
    assert_int_equal(report.outcome, LB_PROBE_TREE);
    assert_string_equal(report.groups[0].arithmetic, "");
    lb_probe_report_release(&report);
}

static float exact(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    (void)row, (void)call;
    const lb_schedule schedule = {LB_SCHEDULE_EXACT, 0, 0, NULL};
    return lb_schedule_sum_f32(&schedule, x, n, LB_NO_DTYPE);
}

static float compensated(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    (void)row, (void)call;
    return compensated_sum(x, n);
}

static float wavering(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[(i + (row ? 0 : call)) % n];
    return sum;
}

static float twice_the_first(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    (void)row, (void)call;
    float sum = x[0];
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

static float two_groupings(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    (void)row, (void)call;
    float up = 0, down = 0;
    for (int64_t i = 0; i < n; i++) up += x[i] / 2;
    for (int64_t i = n - 1; i >= 0; i--) down += x[i] / 2;
    return up + down;
}

static void what_is_no_tree_is_said_to_be_none(void **state)
{
    (void)state;
    static const struct {
        float (*sum)(const float *, int64_t, uint32_t, uint32_t);
        lb_probe_outcome outcome;
    } cases[] = {{exact, LB_PROBE_EXACT},
                 {compensated, LB_PROBE_EXACT},
                 {wavering, LB_PROBE_UNSTABLE},
                 {twice_the_first, LB_PROBE_NO_SUM},
                 {two_groupings, LB_PROBE_NO_TREE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lb_probe_report report = probed_function(cases[i].sum, 50, 3);
        if (report.outcome != cases[i].outcome)
            fail_msg("case %zu: %s, %s", i, lb_probe_outcome_name(report.outcome), report.groups[0].reason);
        lb_probe_report_release(&report);
    }
}

/* Rows 0, 3, 6, … forwards, the others in pairs. */
static float by_row(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    (void)call;
    const lb_schedule schedule = {row % 3 ? LB_SCHEDULE_PAIRWISE : LB_SCHEDULE_SEQUENTIAL, 0, 0, NULL};
    return lb_schedule_sum_f32(&schedule, x, n, LB_NO_DTYPE);
}

static void results_with_orders_of_their_own_are_told_apart(void **state)
{
    (void)state;
    lb_probe_report report = probed_function(by_row, 60, 10);
    assert_int_equal(report.outcome, LB_PROBE_TREE);
    assert_int_equal(report.n_groups, 2);
    assert_int_equal(report.groups[0].positions, 6);
    assert_int_equal(report.groups[0].row, 1);
    assert_string_equal(report.groups[0].names, "pairwise");
    assert_int_equal(report.groups[1].positions, 4);
    assert_string_equal(report.groups[1].names, "sequential");
    lb_probe_report_release(&report);
    /* torch's columns: whole vectors, and the rest */
    lb_probe_kernel kernel = engine("cascade:8", (lb_probe_shape){LB_PROBE_COLUMNS, LB_F32, 0, 200, 37, 1});
    report = probed(&kernel, 1, 0);
    assert_int_equal(report.n_groups, 2);
    assert_int_equal(report.groups[0].positions, 32);
    assert_string_equal(report.groups[0].names, "cascade:8 = cascade:4 = cascade:16 = blocked:16");
    assert_int_equal(report.groups[1].positions, 5);
    assert_string_equal(report.groups[1].names, "cascade:1");
    lb_probe_report_release(&report);
    lb_probe_kernel_release(&kernel);
}

static float first_fails(const float *x, int64_t n, uint32_t row, uint32_t call)
{
    (void)x, (void)n, (void)row, (void)call;
    return 0;
}

static lb_status failing(void *context, uint32_t calls, const void *terms, const void *factors, double *sums,
                         lb_err *err)
{
    (void)context, (void)calls, (void)terms, (void)factors, (void)sums;
    return lb_fail(err, LB_ERR_IO, "the kernel is gone");
}

static void a_kernel_that_fails_ends_the_probing(void **state)
{
    (void)state;
    const lb_probe_kernel kernel = {{LB_PROBE_SUM, LB_F32, 0, 10, 1, 1}, NULL, failing, NULL};
    lb_probe_report report;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_probe_run(&kernel, NULL, &report, &err), LB_ERR_IO);
    assert_string_equal(err.message, "the kernel is gone");
    report = probed_function(first_fails, 10, 1);
    assert_int_equal(report.outcome, LB_PROBE_NO_SUM);
    lb_probe_report_release(&report);
}

static void few_probes_are_needed(void **state)
{
    (void)state;
    static const struct {
        const char *order;
        uint64_t most; /* with n = 1024; a term's first pivot costs 1023 */
    } cases[] = {{"sequential", 4000}, {"tree", 4000},    {"pairwise", 6000},     {"numpy", 6000},
                 {"cascade:8", 6000},  {"lanes:8", 5500}, {"butterfly:256", 6000}};
    char reversed[32] = "tree:[1023..0]";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *order = strcmp(cases[i].order, "tree") ? cases[i].order : reversed;
        lb_probe_kernel kernel = engine(order, (lb_probe_shape){LB_PROBE_SUM, LB_F32, 0, 1024, 1, 1});
        lb_probe_report report = probed(&kernel, 11, 0);
        assert_int_equal(report.outcome, LB_PROBE_TREE);
        printf("%-14s %6llu probes of 1024 terms\n", order, (unsigned long long)report.probes);
        if (report.probes > cases[i].most) fail_msg("%s: %llu probes", order, (unsigned long long)report.probes);
        lb_probe_report_release(&report);
        lb_probe_kernel_release(&kernel);
    }
}

int main(void)
{
    omp_set_num_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_of_a_sum_is_found),
        cmocka_unit_test(every_dtype_is_probed),
        cmocka_unit_test(many_rows_and_columns_answer_at_a_time),
        cmocka_unit_test(products_are_probed),
        cmocka_unit_test(kernels_for_one_row_are_probed),
        cmocka_unit_test(last_columns_have_orders_of_their_own),
        cmocka_unit_test(matrix_units_are_recognised),
        cmocka_unit_test(long_sums_are_named_from_a_sample),
        cmocka_unit_test(any_tree_is_found),
        cmocka_unit_test(wider_sums_and_means_are_told_apart),
        cmocka_unit_test(what_is_no_tree_is_said_to_be_none),
        cmocka_unit_test(results_with_orders_of_their_own_are_told_apart),
        cmocka_unit_test(a_kernel_that_fails_ends_the_probing),
        cmocka_unit_test(few_probes_are_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
