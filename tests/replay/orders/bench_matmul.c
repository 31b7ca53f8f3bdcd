/* Our stated-order products beside OpenBLAS's in single precision, one thread each, as rates and their ratio:
 *
 *      bench_matmul             the shapes below, every operand as it lies and transposed, fp32 and bf16
 *      bench_matmul M N K [B]   one shape (B products of it)
 *
 * The goal is 0.7 of OpenBLAS for each; a bf16 product is held against OpenBLAS in fp32, which reads twice the
 * bytes. Rates of both come from processor time, the best of many runs that alternate, so that other work disturbs
 * them least. */
#include <lastbit/dtype.h>
#include <lastbit/processor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "orders/matmul.h"
#if __has_include(<cblas.h>)
#include <cblas.h>
extern void openblas_set_num_threads(int);
#endif

typedef struct shape {
    const char *what;
    size_t m, n, k, batch;
} shape;

static const shape SHAPES[] = {
    {"square", 1024, 1024, 1024, 1}, {"square", 512, 512, 512, 1},    {"square", 256, 256, 256, 1},
    {"square", 128, 128, 128, 1},    {"square", 64, 64, 64, 1},       {"square", 32, 32, 32, 1},
    {"layer", 512, 256, 256, 1},     {"layer", 512, 1024, 256, 1},    {"layer", 512, 256, 1024, 1},
    {"gradient", 256, 256, 512, 1},  {"smollm", 128, 576, 576, 1},    {"smollm", 128, 1536, 576, 1},
    {"head", 128, 49152, 576, 1},    {"attention", 128, 128, 64, 16}, {"attention", 128, 64, 128, 16},
    {"small bmm", 32, 32, 32, 64},   {"small bmm", 16, 16, 8, 256},   {"small bmm", 8, 64, 16, 128},
    {"skinny", 1, 1024, 1024, 1},    {"skinny", 4, 1024, 1024, 1},    {"skinny", 1024, 4, 1024, 1},
    {"skinny", 512, 1, 512, 1},      {"skinny", 1024, 1024, 4, 1},    {"skinny", 16, 64, 4096, 1},
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *filled(lb_dtype dtype, size_t n)
{
    float *x = malloc(n * sizeof *x);
    void *y = aligned_alloc(64, (lb_dtype_bytes(dtype, n) + 63) / 64 * 64);
    for (size_t i = 0; i < n; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    lb_store_f32(dtype, y, x, n, NULL);
    free(x);
    return y;
}

/* Runs `statement` often enough to be measured; keeps the best seconds of one run in `best`. */
#define TIME(best, runs, statement)                                                                                    \
    do {                                                                                                               \
        double t_ = now();                                                                                             \
        for (size_t r_ = 0; r_ < (runs); r_++) statement;                                                              \
        t_ = (now() - t_) / (double)(runs);                                                                            \
        if (t_ < (best)) best = t_;                                                                                    \
    } while (0)

typedef struct sides {
    const shape *s;
    void *a, *b; /* as they lie, of `dtype` */
    float *fa, *fb, *c;
    lb_dtype dtype;
    bool ta, tb;
} sides;

static void ours(const sides *sides, const lb_matmul_options *options)
{
    const shape *shape = sides->s;
    const lb_matrix a = {sides->a, sides->dtype, sides->ta ? 1 : (ptrdiff_t)shape->k,
                         sides->ta ? (ptrdiff_t)shape->m : 1};
    const lb_matrix b = {sides->b, sides->dtype, sides->tb ? 1 : (ptrdiff_t)shape->n,
                         sides->tb ? (ptrdiff_t)shape->k : 1};
    const lb_matmul_batch batch = {shape->batch, (ptrdiff_t)(shape->m * shape->k), (ptrdiff_t)(shape->k * shape->n),
                                   (ptrdiff_t)(shape->m * shape->n)};
    if (lb_matmul_batched_f32(&batch, shape->m, shape->n, shape->k, &a, &b, sides->c, (ptrdiff_t)shape->n, options) !=
        LB_OK)
        abort();
}

static void openblas(const sides *sides)
{
#if __has_include(<cblas.h>)
    const shape *shape = sides->s;
    const int m = (int)shape->m, n = (int)shape->n, k = (int)shape->k;
    for (size_t i = 0; i < shape->batch; i++)
        cblas_sgemm(CblasRowMajor, sides->ta ? CblasTrans : CblasNoTrans, sides->tb ? CblasTrans : CblasNoTrans, m, n,
                    k, 1, sides->fa + i * shape->m * shape->k, sides->ta ? m : k, sides->fb + i * shape->k * shape->n,
                    sides->tb ? k : n, 0, sides->c + i * shape->m * shape->n, n);
#else
    (void)sides;
#endif
}

typedef struct rates {
    double ours, blas;
} rates;

static rates measure(const sides *sides, const lb_matmul_options *options)
{
    const shape *shape = sides->s;
    const double flops = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k * (double)shape->batch;
    const size_t runs = flops > 2e7 ? 1 : (size_t)(2e7 / flops) + 1;
    double us = 1e9, them = 1e9, start = now();
    do {
        TIME(us, runs, ours(sides, options));
        TIME(them, runs, openblas(sides));
    } while (now() - start < 0.12);
    return (rates){flops / us * 1e-9, flops / them * 1e-9};
}

static double worst_ratio = 1e9, emulated_per_add = 1e9, emulated_blocks = 1e9;

static void compare(const shape *shape)
{
    lb_matmul_options plain = LB_MATMUL_OPTIONS_INIT, rounded = plain, blocked = plain;
    plain.threads = rounded.threads = blocked.threads = 1;
    rounded.accumulate = LB_BF16;
    blocked.block = 64;
    sides sides = {.s = shape};
    const size_t na = shape->m * shape->k * shape->batch, nb = shape->k * shape->n * shape->batch;
    sides.fa = filled(LB_F32, na), sides.fb = filled(LB_F32, nb);
    sides.c = malloc(shape->m * shape->n * shape->batch * sizeof *sides.c);
    void *ha = filled(LB_BF16, na), *hb = filled(LB_BF16, nb);
    printf("%-9s %4zu x%5zu x%5zu", shape->what, shape->m, shape->n, shape->k);
    printf(shape->batch > 1 ? " x%3zu " : "      ", shape->batch);
    for (int dtype = 0; dtype < 2; dtype++)
        for (int t = 0; t < 4; t++) {
            sides.dtype = dtype ? LB_BF16 : LB_F32;
            sides.a = dtype ? ha : sides.fa, sides.b = dtype ? hb : sides.fb;
            sides.ta = t & 2, sides.tb = t & 1;
            const rates r = measure(&sides, &plain);
            const double ratio = r.blas > 0 ? r.ours / r.blas : 0;
            if (ratio < worst_ratio) worst_ratio = ratio;
            printf("  %s%c%c %5.1f/%5.1f %4.2f%c", dtype ? "bf16 " : "", sides.ta ? 'T' : 'N', sides.tb ? 'T' : 'N',
                   r.ours, r.blas, ratio, ratio < 0.7 ? '!' : ' ');
        }
    sides.a = sides.fa, sides.b = sides.fb, sides.dtype = LB_F32, sides.ta = sides.tb = false;
    const double whole = measure(&sides, &plain).ours, blocks = measure(&sides, &blocked).ours / whole,
                 adds = measure(&sides, &rounded).ours;
    printf("  blocked:64 %4.2f of it, bf16 adds %4.1f\n", blocks, adds);
    if (adds < emulated_per_add) emulated_per_add = adds;
    if (shape->k > 64 && blocks < emulated_blocks) emulated_blocks = blocks;
    fflush(stdout);
    free(sides.fa), free(sides.fb), free(sides.c), free(ha), free(hb);
}

int main(int argc, char **argv)
{
#if __has_include(<cblas.h>)
    openblas_set_num_threads(1);
#endif
    printf("GFLOP/s ours/OpenBLAS and their ratio (! below 0.7), %s, one thread; N as it lies, T transposed\n",
           lb_processor_isa_name(lb_processor_isa()));
    if (argc >= 4) {
        const shape one = {"given", strtoul(argv[1], NULL, 0), strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0),
                           argc > 4 ? strtoul(argv[4], NULL, 0) : 1};
        compare(&one);
    } else {
        for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) compare(&SHAPES[i]);
        printf("least ratio %.2f; a rounding at every addition: at least %.1f GFLOP/s; "
               "blocked:64 at least %.2f of the plain chain\n",
               worst_ratio, emulated_per_add, emulated_blocks);
    }
    lb_matmul_release();
    return 0;
}
