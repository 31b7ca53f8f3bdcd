/* Recipes as text, and what needs no reference of quantising: exact cases, threads, losses. Called with arguments it
 * quantises a file for test_recipes.py, which compares with the recipes' public definitions:
 *
 *      replay_test_quantiser ARGUMENT ROLE OWN WGRAD ROWS K MATRIX_ROWS IN OUT     f32 in, f32 out; prints the losses
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "precision/quantiser.h"

static lb_recipe parsed(const char *argument)
{
    lb_recipe recipe;
    lb_err err = LB_ERR_INIT;
    if (lb_recipe_parse(argument, &recipe, &err) != LB_OK) fail_msg("%s", err.message);
    return recipe;
}

static void refused(const char *argument, const char *because)
{
    lb_recipe recipe;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_recipe_parse(argument, &recipe, &err), LB_ERR_INVALID);
    if (!strstr(err.message, because)) fail_msg("\"%s\": \"%s\" does not say \"%s\"", argument, err.message, because);
}

/* ---- the text --------------------------------------------------------------------------------------------------- */

static void a_type_alone_is_the_region_of_old(void **state)
{
    (void)state;
    assert_int_equal(parsed("bf16").short_form, LB_BF16);
    assert_int_equal(parsed("f64").short_form, LB_F64);
    assert_int_equal(parsed("e5m2fnuz").short_form, LB_E5M2FNUZ);
    lb_recipe tf32 = parsed("tf32");
    assert_int_equal(tf32.short_form, LB_TF32);
    assert_int_equal(tf32.cast.rounding, LB_RNA);
    assert_int_equal(parsed("tf32:rz").cast.rounding, LB_RZ);
    assert_true(tf32.products_only && tf32.all_products);
    lb_recipe e2m1 = parsed("e2m1");
    assert_int_equal(e2m1.compute, LB_E2M1);
    assert_int_equal(e2m1.storage, LB_E2M1);
}

static void compute_accumulate_and_storage_are_named_separately(void **state)
{
    (void)state;
    lb_recipe recipe = parsed("compute:bf16,accumulate:f32,storage:f16");
    assert_int_equal(recipe.compute, LB_BF16);
    assert_int_equal(recipe.accumulate, LB_F32);
    assert_int_equal(recipe.storage, LB_F16);
    assert_true(recipe.casts_operands && recipe.casts_results && !recipe.products_only);
    recipe = parsed("storage:e4m3fn,round:stochastic:7,overflow:ieee,subnormals:flush");
    assert_int_equal(recipe.cast.rounding, LB_STOCHASTIC);
    assert_int_equal(recipe.cast.seed, 7);
    assert_int_equal(recipe.cast.overflow, LB_OVERFLOW_IEEE);
    assert_true(recipe.cast.flush_subnormals);
    assert_false(recipe.casts_operands);
    assert_int_equal(parsed("compute:tf32").cast.rounding, LB_RNA);
    assert_int_equal(parsed("compute:tf32,round:rz").cast.rounding, LB_RZ);
    assert_int_equal(parsed("storage:e8m0").storage, LB_E8M0);
}

static void recipes_have_the_defaults_of_transformer_engine(void **state)
{
    (void)state;
    lb_recipe recipe = parsed("fp8-delayed");
    assert_int_equal(recipe.scaling, LB_SCALING_DELAYED);
    assert_int_equal(recipe.element[LB_ROLE_INPUT], LB_E4M3FN);
    assert_int_equal(recipe.element[LB_ROLE_GRADIENT], LB_E5M2);
    assert_int_equal(recipe.history, 1024);
    assert_int_equal(recipe.interval, 1);
    assert_true(recipe.margin == 0 && !recipe.most_recent && !recipe.calibrated);
    assert_int_equal(recipe.cast.overflow, LB_OVERFLOW_SATURATE);
    recipe = parsed("e4m3fn:delayed,history:4,interval:2,margin:1,algorithm:most_recent,start:calibrated,backward:"
                    "e5m2fnuz");
    assert_int_equal(recipe.element[LB_ROLE_GRADIENT], LB_E5M2FNUZ);
    assert_true(recipe.history == 4 && recipe.interval == 2 && recipe.margin == 1 && recipe.most_recent &&
                recipe.calibrated);
    assert_int_equal(parsed("fp8-block").rule, LB_SCALE_POW2);
    assert_int_equal(parsed("fp8-block,scale:f32").rule, LB_SCALE_F32);
    assert_int_equal(parsed("mxfp8").rule, LB_SCALE_RCEIL);
    assert_int_equal(parsed("e5m2:mx,scale:floor").rule, LB_SCALE_FLOOR);
    recipe = parsed("nvfp4");
    assert_true(recipe.hadamard && !recipe.flat_weights);
    assert_int_equal(recipe.gradient_cast.rounding, LB_STOCHASTIC);
    assert_int_equal(recipe.cast.rounding, LB_RNE);
    recipe = parsed("nvfp4,hadamard:off,weights:1d,gradients:rne,products:all");
    assert_true(!recipe.hadamard && recipe.flat_weights && recipe.all_products);
    assert_int_equal(recipe.gradient_cast.rounding, LB_RNE);
    assert_int_equal(parsed("nvfp4,round:rz").gradient_cast.rounding, LB_RZ);
    char text[64];
    lb_recipe_format(&recipe, LB_ROLE_WEIGHT, text, sizeof text);
    assert_string_equal(text, "e2m1 nvfp4");
    recipe = parsed("mxfp8,scale:even");
    lb_recipe_format(&recipe, LB_ROLE_INPUT, text, sizeof text);
    assert_string_equal(text, "e4m3fn mx even");
}

static void what_makes_no_sense_is_refused_with_a_reason(void **state)
{
    (void)state;
    refused("f8", "precisions are");
    refused("", "empty");
    refused("compute:", "types are");
    refused("compute:bf16,", "empty");
    refused("compute:i32", "types are");
    refused("bf16,round:rz", "takes no keys");
    refused("round:rz", "name compute");
    refused("tf32:stochastic:1", "compute:tf32");
    refused("tf32:up", "roundings are");
    refused("accumulate:bf16,round:rz", "round is for");
    refused("fp8-current,compute:bf16", "leave compute out");
    refused("fp8-current,history:4", "not a key of this recipe");
    refused("fp8-delayed,history:0", "from 1 to");
    refused("fp8-delayed,history:1.5", "whole number");
    refused("fp8-delayed,start:warm", "cold, calibrated");
    refused("fp8-current,forward:f32", "scales are for");
    refused("nvfp4,forward:e4m3fn", "two levels");
    refused("mxfp8,scale:pow2", "floor, ceil, even, rceil");
    refused("compute:bf16,round:stochastic", "stochastic:SEED");
    refused("compute:bf16,bf16", "KEY:VALUE");
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static void run(const char *argument, lb_precision_role role, float *x, int64_t rows, int64_t k,
                lb_precision_loss *loss)
{
    lb_recipe recipe = parsed(argument);
    lb_quantiser quantiser = lb_quantiser_of(&recipe, role, false);
    quantiser.rows = rows, quantiser.k = k;
    assert_int_equal(lb_quantise(&quantiser, x, loss, NULL), LB_OK);
}

/* Published golden scale bytes of MXFP8 blocks: amax 448, 449, 1, 1.75, 1.76, 512. */
static void mx_scales_are_the_published_ones(void **state)
{
    (void)state;
    static const float amax[] = {448, 449, 1, 1.75f, 1.76f, 512};
    static const int rceil_bytes[] = {127, 128, 119, 119, 120, 128}, floor_bytes[] = {127, 127, 119, 119, 119, 128};
    for (int i = 0; i < 6; i++)
        for (int f = 0; f < 2; f++) {
            float x[32] = {amax[i]};
            lb_precision_loss loss = {0};
            run(f ? "mxfp8,scale:floor" : "mxfp8", LB_ROLE_INPUT, x, 1, 32, &loss);
            assert_true(loss.scale_high == ldexp(1, 127 - (f ? floor_bytes : rceil_bytes)[i]));
        }
}

static void losses_count_what_rounding_did(void **state)
{
    (void)state;
    /* As e4m3fn, unscaled: 0x1p-11 vanishes, 1e6 and 464 + overflow, 448 does not, 1.0625 loses its last bit. */
    float x[] = {0, 0x1p-11f, -0x1p-11f, 1e6f, -1e6f, 448, 464, 463, 1.0625f, INFINITY, NAN, 2};
    lb_precision_loss loss = {0};
    run("compute:e4m3fn", LB_ROLE_INPUT, x, 1, 12, &loss);
    assert_int_equal(loss.elements, 10);
    assert_int_equal(loss.nonfinite, 2);
    assert_int_equal(loss.nonzero, 9);
    assert_int_equal(loss.underflow, 2);
    assert_int_equal(loss.overflow, 3);
    assert_true(loss.amax == 1e6);
    assert_true(x[8] == 1.0f && x[3] == 448 && x[9] == 448 && isnan(x[10]));
    const double error = 2 * 0x1p-22 + 2 * (1e6 - 448) * (1e6 - 448) + 16 * 16 + 15 * 15 + 0.0625 * 0.0625;
    assert_true(fabs(loss.error - error) < 1e-6 * error);
    assert_true(fabs(lb_precision_loss_mse(&loss) - error / 10) < 1e-6 * error);
    assert_true(fabs(lb_precision_loss_sqnr(&loss) - 10 * log10(loss.signal / loss.error)) < 1e-12);
}

static void powers_of_two_survive_every_recipe(void **state)
{
    (void)state;
    static const char *const all[] = {"fp8-current", "fp8-block", "mxfp8",       "mxfp8,scale:floor",
                                      "mxfp4",       "nvfp4",     "compute:e5m2"};
    for (size_t a = 0; a < sizeof all / sizeof *all; a++) {
        float x[256], y[256];
        for (int i = 0; i < 256; i++) x[i] = y[i] = ldexpf(i % 3 ? 1 : -1, -(i % 2));
        run(all[a], LB_ROLE_WEIGHT, y, 2, 128, NULL);
        /* amax 1 is 6/6 in nvfp4, and a half of it is 3 of 6. */
        assert_memory_equal(x, y, sizeof x);
    }
}

static void threads_and_absent_losses_change_nothing(void **state)
{
    (void)state;
    enum { ROWS = 300, K = 700 };
    float *x = malloc(ROWS * K * 4), *a = malloc(ROWS * K * 4), *b = malloc(ROWS * K * 4);
    for (int i = 0; i < ROWS * K; i++) {
        uint32_t words[4];
        lb_philox(4, (uint64_t)i, 0, words);
        x[i] = ((float)words[0] * 0x1p-32f - 0.5f) * ldexpf(1, (int)(words[1] % 20) - 10);
    }
    static const char *const all[] = {"fp8-current", "fp8-block", "mxfp8", "nvfp4", "nvfp4,round:stochastic:3"};
    const int threads = omp_get_max_threads();
    for (size_t r = 0; r < sizeof all / sizeof *all; r++) {
        lb_precision_loss one = {0}, many = {0};
        memcpy(a, x, ROWS * K * 4);
        memcpy(b, x, ROWS * K * 4);
        omp_set_num_threads(1);
        run(all[r], LB_ROLE_WEIGHT, a, ROWS, K, &one);
        omp_set_num_threads(4);
        run(all[r], LB_ROLE_WEIGHT, b, ROWS, K, &many);
        assert_memory_equal(a, b, ROWS * K * 4);
        assert_memory_equal(&one, &many, sizeof one);
        memcpy(b, x, ROWS * K * 4);
        run(all[r], LB_ROLE_WEIGHT, b, ROWS, K, NULL);
        assert_memory_equal(a, b, ROWS * K * 4);
    }
    omp_set_num_threads(threads);
    free(x), free(a), free(b);
}

/* The rotation is orthogonal and applied to both factors: their product stays what it was. */
static void rotated_factors_have_the_same_product(void **state)
{
    (void)state;
    float a[32], b[32];
    double before = 0, after = 0;
    lb_recipe recipe = parsed("nvfp4");
    for (int i = 0; i < 32; i++)
        a[i] = (float)((i * 7 + 3) % 11 - 5), b[i] = (float)((i * 5 + 1) % 13 - 6), before += (double)a[i] * b[i];
    for (int which = 0; which < 2; which++) {
        lb_quantiser quantiser = lb_quantiser_of(&recipe, LB_ROLE_GRADIENT, true);
        assert_true(quantiser.rotate);
        quantiser.scaling = LB_SCALING_NONE, quantiser.element = LB_F32, quantiser.cast = (lb_cast){0};
        quantiser.rows = 1, quantiser.k = 32;
        assert_int_equal(lb_quantise(&quantiser, which ? b : a, NULL, NULL), LB_OK);
    }
    for (int i = 0; i < 32; i++) after += (double)a[i] * b[i];
    assert_true(before == after);
    assert_true(a[0] != -2);
}

/* ---- for test_recipes.py ----------------------------------------------------------------------------------------- */

static float *read_file(const char *path, size_t n)
{
    float *x = malloc(n * sizeof *x + 1);
    FILE *f = fopen(path, "rb");
    if (!x || !f || fread(x, sizeof *x, n, f) != n) exit(2);
    fclose(f);
    return x;
}

static int quantise_file(char **argv)
{
    lb_recipe recipe;
    lb_err err = LB_ERR_INIT;
    if (lb_recipe_parse(argv[1], &recipe, &err) != LB_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 2;
    }
    lb_precision_role role = LB_ROLE_INPUT;
    for (int r = 0; r < LB_ROLES; r++)
        if (!strcmp(argv[2], lb_precision_role_name((lb_precision_role)r))) role = (lb_precision_role)r;
    lb_quantiser quantiser = lb_quantiser_of(&recipe, role, atoi(argv[4]) != 0);
    quantiser.own = lb_dtype_parse(argv[3]);
    quantiser.rows = atoll(argv[5]), quantiser.k = atoll(argv[6]), quantiser.matrix_rows = atoll(argv[7]);
    const size_t n = (size_t)(quantiser.rows * quantiser.k);
    float *x = read_file(argv[8], n);
    lb_precision_loss loss = {0};
    if (lb_quantise(&quantiser, x, &loss, &err) != LB_OK) return 2;
    FILE *f = fopen(argv[9], "wb");
    if (!f || fwrite(x, sizeof *x, n, f) != n || fclose(f)) return 2;
    printf("{\"elements\": %llu, \"nonfinite\": %llu, \"spoiled\": %llu, \"masked\": %llu, \"underflow\": %llu, "
           "\"overflow\": %llu, \"amax\": %.17g, \"mse\": %.17g, \"sqnr\": %.17g}\n",
           (unsigned long long)loss.elements, (unsigned long long)loss.nonfinite, (unsigned long long)loss.spoiled,
           (unsigned long long)loss.masked, (unsigned long long)loss.underflow, (unsigned long long)loss.overflow,
           loss.amax, lb_precision_loss_mse(&loss), lb_precision_loss_sqnr(&loss));
    free(x);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 10) return quantise_file(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_type_alone_is_the_region_of_old),
        cmocka_unit_test(compute_accumulate_and_storage_are_named_separately),
        cmocka_unit_test(recipes_have_the_defaults_of_transformer_engine),
        cmocka_unit_test(what_makes_no_sense_is_refused_with_a_reason),
        cmocka_unit_test(mx_scales_are_the_published_ones),
        cmocka_unit_test(losses_count_what_rounding_did),
        cmocka_unit_test(powers_of_two_survive_every_recipe),
        cmocka_unit_test(threads_and_absent_losses_change_nothing),
        cmocka_unit_test(rotated_factors_have_the_same_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
