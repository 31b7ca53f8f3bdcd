/* Our transcendentals against the C library's long double ones (64-bit significands), and against themselves on every
 * instruction set. */
#include "cmocka_first.h"

#include <lastbit/dtype.h>
#include <lastbit/processor.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "functions/elementary.h"

static long double softplus_l(long double x)
{
    return fmaxl(x, 0) + log1pl(expl(-fabsl(x)));
}
static long double sigmoid_l(long double x)
{
    return x < 0 ? expl(x) / (1 + expl(x)) : 1 / (1 + expl(-x));
}

typedef struct function {
    const char *name;
    double (*one)(double);
    void (*f32)(float *, const float *, size_t);
    void (*f64)(double *, const double *, size_t);
    long double (*reference)(long double);
    double ulps;      /* bound asserted */
    double low, high; /* where a random argument says most */
} function;

#define OURS(name) #name, lb_##name, lb_##name##_f32, lb_##name##_f64
static const function functions[] = {
    {OURS(exp), expl, 0.7, -746, 710}, {OURS(exp2), exp2l, 0.7, -1076, 1025},  {OURS(expm1), expm1l, 0.9, -5, 5},
    {OURS(log), logl, 0.9, 0, 4},      {OURS(log2), log2l, 0.9, 0, 4},         {OURS(log10), log10l, 0.9, 0, 4},
    {OURS(log1p), log1pl, 0.9, -1, 3}, {OURS(sin), sinl, 0.9, -20, 20},        {OURS(cos), cosl, 0.9, -20, 20},
    {OURS(tanh), tanhl, 2, -3, 3},     {OURS(sigmoid), sigmoid_l, 2, -30, 30}, {OURS(softplus), softplus_l, 2, -30, 30},
    {OURS(erfc), erfcl, 5, -6, 27},    {OURS(erf), erfl, 1.5, -4, 4},
};
#define N_FUNCTIONS (sizeof functions / sizeof *functions)
#define N 40000

static double uniform(uint64_t seed, uint64_t i)
{
    uint32_t w[4];
    lb_philox(seed, i, 0, w);
    return ((double)w[0] + (double)w[1] * 0x1p-32) * 0x1p-32;
}

/* A third each: the interesting interval, random bits, magnitudes from 2^-60 to 2^60; then the special values. */
static void arguments(double *x, const function *function, uint64_t seed)
{
    static const double special[] = {0.0,
                                     -0.0,
                                     INFINITY,
                                     -INFINITY,
                                     NAN,
                                     1.0,
                                     -1.0,
                                     0x1p-1074,
                                     0.5,
                                     -0x1p-1074,
                                     0x1p-1022,
                                     709.7,
                                     -745.1,
                                     1e308,
                                     -1e308,
                                     0x1.921fb54442d18p0,
                                     1e22,
                                     6381956970095103.0 * 0x1p797,
                                     0x1.fffffffffffffp-2,
                                     0.41,
                                     -0.29,
                                     1e6,
                                     0x1p20};
    for (size_t i = 0; i < N; i++) {
        const double u = uniform(seed, i), v = uniform(seed + 1, i);
        uint64_t bits = (uint64_t)(u * 0x1p64);
        if (i % 3 == 0)
            x[i] = function->low + (function->high - function->low) * u;
        else if (i % 3 == 1)
            memcpy(x + i, &bits, sizeof bits);
        else
            x[i] = (v < 0.5 ? -1.0 : 1.0) * exp2(120 * u - 60);
    }
    memcpy(x, special, sizeof special);
}

static double ulp_of(double y)
{
    int exponent;
    if (y == 0 || fabs(y) < 0x1p-1022) return 0x1p-1074;
    frexp(y, &exponent);
    return ldexp(1, exponent - 53);
}

/* Distance in ulps of the true value; 0 when both are the same special value, infinity when only one is. */
static double ulps_off(double got, long double want)
{
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want) ? 0 : INFINITY;
    if (isinf(got) || isinf((double)want)) return (double)want == got ? 0 : INFINITY;
    if (want == 0) return got == 0 && !signbit(got) == !signbit(want) ? 0 : INFINITY;
    const double off = (double)(fabsl((long double)got - want) / ulp_of((double)want));
    return fabs(got) <= 0x1p-1022 ? off - 0.5 : off; /* a subnormal may be rounded twice */
}

static void doubles_are_within_their_stated_error(void **state)
{
    (void)state;
    double *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    for (size_t k = 0; k < N_FUNCTIONS; k++) {
        const function *function = functions + k;
        arguments(x, function, 10 * k);
        function->f64(y, x, N);
        double worst = 0, at = 0;
        for (size_t i = 0; i < N; i++) {
            const double off = ulps_off(y[i], function->reference(x[i]));
            if (off > worst) worst = off, at = x[i];
        }
        if (worst > function->ulps)
            print_error("%s(%a): %.3f ulp, bound %.2f\n", function->name, at, worst, function->ulps);
        assert_true(worst <= function->ulps);
    }
    free(x), free(y);
}

static void floats_are_correctly_rounded(void **state)
{
    (void)state;
    double *x = malloc(N * sizeof *x);
    float *in = malloc(N * sizeof *in), *out = malloc(N * sizeof *out);
    for (size_t k = 0; k < N_FUNCTIONS; k++) {
        const function *function = functions + k;
        arguments(x, function, 1000 + 10 * k);
        for (size_t i = 0; i < N; i++) in[i] = (float)x[i];
        function->f32(out, in, N);
        size_t wrong = 0;
        for (size_t i = 0; i < N; i++) {
            const float want = (float)function->reference(in[i]);
            if (out[i] == want ? !signbit(out[i]) != !signbit(want) : !(isnan(out[i]) && isnan(want))) {
                if (!wrong++) print_error("%s(%a) = %a, not %a\n", function->name, in[i], out[i], want);
            }
        }
        assert_int_equal(wrong, 0);
    }
    free(x), free(in), free(out);
}

static void one_value_and_arrays_and_instruction_sets_agree(void **state)
{
    (void)state;
    double *x = malloc(N * sizeof *x), *y[3];
    float *in = malloc(N * sizeof *in), *out[3];
    for (int isa = 0; isa < 3; isa++) y[isa] = malloc(N * sizeof *x), out[isa] = malloc(N * sizeof *in);
    for (size_t k = 0; k < N_FUNCTIONS; k++) {
        const function *function = functions + k;
        arguments(x, function, 2000 + 10 * k);
        for (size_t i = 0; i < N; i++) in[i] = (float)x[i];
        for (int isa = 0; isa < 3; isa++) {
            lb_processor_limit((lb_isa)isa);
            memcpy(y[isa], x, N * sizeof *x); /* in place, and from an odd start */
            function->f64(y[isa] + 1, y[isa] + 1, N - 1);
            function->f64(y[isa], y[isa], 1);
            function->f32(out[isa], in, N);
        }
        lb_processor_limit(LB_ISA_AVX512);
        for (size_t i = 0; i < N; i++) {
            const double one = function->one(x[i]);
            assert_memory_equal(&one, &y[0][i], sizeof one);
        }
        for (int isa = 1; isa < 3; isa++) {
            assert_memory_equal(y[0], y[isa], N * sizeof *x);
            assert_memory_equal(out[0], out[isa], N * sizeof *in);
        }
    }
    for (int isa = 0; isa < 3; isa++) free(y[isa]), free(out[isa]);
    free(x), free(in);
}

static void powers_are_within_one_ulp(void **state)
{
    (void)state;
    double worst = 0, at[2] = {0, 0};
    for (size_t i = 0; i < N; i++) {
        const double u = uniform(50, i), v = uniform(51, i);
        const double x = i % 2 ? exp2(40 * u - 20) : 1 + (u - 0.5) * exp2(-30 * v);
        const double y = i % 3 ? 60 * v - 30 : (v - 0.5) * 700 / fmax(fabs(log(x)), 1e-12);
        const double off = ulps_off(lb_pow(x, y), powl(x, y));
        if (off > worst) worst = off, at[0] = x, at[1] = y;
    }
    if (worst > 0.8) print_error("pow(%a, %a): %.3f ulp\n", at[0], at[1], worst);
    assert_true(worst <= 0.8);
}

static void powers_of_special_values_are_those_of_ieee754(void **state)
{
    (void)state;
    static const double values[] = {0.0,
                                    -0.0,
                                    1.0,
                                    -1.0,
                                    2.0,
                                    -2.0,
                                    3.0,
                                    -3.0,
                                    0.5,
                                    -0.5,
                                    2.5,
                                    -2.5,
                                    1e30,
                                    -1e30,
                                    1e-30,
                                    INFINITY,
                                    -INFINITY,
                                    NAN,
                                    0x1p-1074,
                                    9007199254740991.0,
                                    -9007199254740991.0,
                                    9007199254740992.0,
                                    1e308,
                                    0.99,
                                    7.0};
    const size_t n = sizeof values / sizeof *values;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            const double got = lb_pow(values[i], values[j]);
            const double off = ulps_off(got, powl(values[i], values[j]));
            if (off > 1) print_error("pow(%a, %a) = %a\n", values[i], values[j], got);
            assert_true(off <= 1);
        }
}

static void powers_of_arrays_agree_on_every_instruction_set(void **state)
{
    (void)state;
    enum { M = 1003 };
    double x[M], y[M], out[3][M];
    float fx[M], fy[M], fout[3][M];
    for (int i = 0; i < M; i++) {
        x[i] = (uniform(60, i) - 0.3) * 10;
        y[i] = i % 5 ? (uniform(61, i) - 0.5) * 20 : (double)(i % 7);
        fx[i] = (float)x[i], fy[i] = (float)y[i];
    }
    for (int isa = 0; isa < 3; isa++) {
        lb_processor_limit((lb_isa)isa);
        lb_pow_f64(out[isa], x, y, M);
        lb_pow_f32(fout[isa], fx, fy, M);
    }
    lb_processor_limit(LB_ISA_AVX512);
    for (int i = 0; i < M; i++) {
        const float want = (float)powl(fx[i], fy[i]);
        assert_true(isnan(want) ? isnan(fout[0][i]) : fout[0][i] == want);
        assert_true(isnan(out[0][i]) || out[0][i] == lb_pow(x[i], y[i]));
    }
    for (int isa = 1; isa < 3; isa++) {
        assert_memory_equal(out[0], out[isa], sizeof out[0]);
        assert_memory_equal(fout[0], fout[isa], sizeof fout[0]);
    }
}

static void large_angles_are_reduced_exactly(void **state)
{
    (void)state;
    /* glibc's double sin and cos reduce exactly too, and are within 0.56 ulp. */
    for (size_t i = 0; i < N; i++) {
        const double x = exp2(1003 * uniform(70, i) + 20.0) * (1 + uniform(71, i));
        assert_true(ulps_off(lb_sin(x), sinl(x)) <= 0.9);
        assert_true(ulps_off(lb_cos(-x), cosl(x)) <= 0.9);
    }
    assert_true(isnan(lb_sin(INFINITY)) && isnan(lb_cos(-INFINITY)) && isnan(lb_sin(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_are_within_their_stated_error),
        cmocka_unit_test(floats_are_correctly_rounded),
        cmocka_unit_test(one_value_and_arrays_and_instruction_sets_agree),
        cmocka_unit_test(powers_are_within_one_ulp),
        cmocka_unit_test(powers_of_special_values_are_those_of_ieee754),
        cmocka_unit_test(powers_of_arrays_agree_on_every_instruction_set),
        cmocka_unit_test(large_angles_are_reduced_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
