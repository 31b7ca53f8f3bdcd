/* Our stated-order products beside OpenBLAS, one thread each: GFLOP/s and the ratio. Usage: bench_matmul [m n k]. */
#include <lastbit/dtype.h>
#include <lastbit/processor.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../replay/matmul.h"
#if __has_include(<cblas.h>)
#include <cblas.h>
extern void openblas_set_num_threads(int);
#endif

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
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

/* Best time of a few dozen milliseconds of runs, as GFLOP/s. */
#define RATE(statement)                                                                                      \
    ({                                                                                                       \
        double best = 1e9, start = now();                                                                    \
        do {                                                                                                 \
            double t = now();                                                                                \
            statement;                                                                                       \
            t = now() - t;                                                                                   \
            if (t < best) best = t;                                                                          \
        } while (now() - start < 0.06);                                                                      \
        2.0 * (double)m * (double)n * (double)k / best * 1e-9;                                               \
    })

static void compare(size_t m, size_t n, size_t k)
{
    float *a = filled(LB_F32, m * k), *b = filled(LB_F32, k * n), *c = filled(LB_F32, m * n);
    void *ha = filled(LB_BF16, m * k), *hb = filled(LB_BF16, k * n);
    double *da = filled(LB_F64, m * k), *db = filled(LB_F64, k * n), *dc = filled(LB_F64, m * n);
    const lb_matrix ma = {a, LB_F32, (ptrdiff_t)k, 1}, mb = {b, LB_F32, (ptrdiff_t)n, 1}, turned = {b, LB_F32, 1, (ptrdiff_t)k},
                    mha = {ha, LB_BF16, (ptrdiff_t)k, 1}, mhb = {hb, LB_BF16, 1, (ptrdiff_t)k},
                    mda = {da, LB_F64, (ptrdiff_t)k, 1}, mdb = {db, LB_F64, (ptrdiff_t)n, 1};
    lb_matmul_options one = LB_MATMUL_OPTIONS_INIT, rounded = one, blocked = one;
    one.threads = rounded.threads = blocked.threads = 1;
    rounded.accumulate = LB_BF16;
    blocked.block = 64;
    double blas = 0, dblas = 0;
#if __has_include(<cblas.h>)
    blas = RATE(cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1, a, (int)k, b, (int)n, 0, c, (int)n));
    dblas = RATE(cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1, da, (int)k, db, (int)n, 0, dc, (int)n));
#endif
    printf("%4zu x %4zu x %4zu  openblas %6.1f %6.1f(f64)", m, n, k, blas, dblas);
    for (int isa = LB_ISA_AVX2; isa <= LB_ISA_AVX512; isa++) {
        lb_processor_limit((lb_isa)isa);
        if (lb_processor_isa() != (lb_isa)isa) continue;
        const double f32 = RATE(lb_matmul_f32(m, n, k, &ma, &mb, c, (ptrdiff_t)n, &one));
        const double linear = RATE(lb_matmul_f32(m, n, k, &ma, &turned, c, (ptrdiff_t)n, &one));
        const double bf16 = RATE(lb_matmul_f32(m, n, k, &mha, &mhb, c, (ptrdiff_t)n, &one));
        const double f64 = RATE(lb_matmul_f64(m, n, k, &mda, &mdb, dc, (ptrdiff_t)n, &one));
        const double blocks = RATE(lb_matmul_f32(m, n, k, &ma, &mb, c, (ptrdiff_t)n, &blocked));
        const double narrow = RATE(lb_matmul_f32(m, n, k, &ma, &mb, c, (ptrdiff_t)n, &rounded));
        printf(" | %s f32 %6.1f (%.2f)  transposed %.1f  bf16 %.1f  f64 %.1f (%.2f)  blocked:64 %.1f  acc bf16 %.1f",
               lb_isa_name((lb_isa)isa), f32, blas ? f32 / blas : 0, linear, bf16, f64, dblas ? f64 / dblas : 0, blocks, narrow);
    }
    printf("\n");
    lb_processor_limit(LB_ISA_AVX512);
    free(a), free(b), free(c), free(ha), free(hb), free(da), free(db), free(dc);
}

int main(int argc, char **argv)
{
#if __has_include(<cblas.h>)
    openblas_set_num_threads(1);
#endif
    if (argc == 4) {
        compare(strtoul(argv[1], NULL, 0), strtoul(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
        return 0;
    }
    static const size_t sizes[][3] = {{1024, 1024, 1024}, {512, 1024, 256}, {512, 256, 1024}, {512, 512, 512}, {128, 128, 128},
                                      {64, 64, 64}, {32, 256, 256}, {32, 32, 32}, {16, 64, 64}, {1, 1024, 1024}, {512, 1, 512}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) compare(sizes[i][0], sizes[i][1], sizes[i][2]);
    lb_matmul_release();
    return 0;
}
