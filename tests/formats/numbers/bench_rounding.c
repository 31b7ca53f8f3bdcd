/* bench_rounding [MIB]: rounding f32 to narrower types, in Gelt/s of one thread.
 *
 *   grid   lb_round_to_grid_f32, in place: 8 bytes of traffic per element, as CPFloat's and torch's round trips have
 *   store  lb_store_f32, to codes
 *   load   lb_load_f32, from codes
 * on 32 KiB, where only instructions count; on MIB (default 256), where memory does; and on as much memory in huge
 * pages, which spares the walks of the page table. The line "copy" is what memory gives: memcpy of the f32 array, 8
 * bytes of traffic per element. bench_rounding.py sets torch and ml_dtypes beside it. */
#include <lastbit/dtype.h>
#include <lastbit/processor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* Processor time of this thread: others share the machine. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Best of rounds of at least two milliseconds, as Gelt/s. */
#define RATE(n, statement)                                                                                             \
    ({                                                                                                                 \
        double best = 1e9, start = now();                                                                              \
        const size_t repeat = (n) > 2000000 ? 1 : 2000000 / (n);                                                       \
        do {                                                                                                           \
            double t = now();                                                                                          \
            for (size_t round_ = 0; round_ < repeat; round_++) statement;                                              \
            t = (now() - t) / (double)repeat;                                                                          \
            if (t < best) best = t;                                                                                    \
        } while (now() - start < 0.15);                                                                                \
        (double)(n) / best * 1e-9;                                                                                     \
    })

typedef struct row {
    const char *name;
    lb_dtype dtype;
    lb_cast cast;
} row;

static const row rows[] = {
    {"bf16 rne", LB_BF16, {LB_RNE}},
    {"bf16 rz", LB_BF16, {LB_RZ}},
    {"bf16 stochastic", LB_BF16, {.rounding = LB_STOCHASTIC, .seed = 1}},
    {"f16 rne", LB_F16, {LB_RNE}},
    {"f16 rz", LB_F16, {LB_RZ}},
    {"f16 stochastic", LB_F16, {.rounding = LB_STOCHASTIC, .seed = 1}},
    {"tf32 rne", LB_TF32, {LB_RNE}},
    {"tf32 rz", LB_TF32, {LB_RZ}},
    {"e4m3fn rne", LB_E4M3FN, {LB_RNE}},
    {"e4m3fn rne, saturating", LB_E4M3FN, {LB_RNE, LB_OVERFLOW_SATURATE}},
    {"e4m3fn rz", LB_E4M3FN, {LB_RZ}},
    {"e4m3fn stochastic", LB_E4M3FN, {.rounding = LB_STOCHASTIC, .seed = 1}},
    {"e5m2 rne", LB_E5M2, {LB_RNE}},
    {"e5m2 rna", LB_E5M2, {LB_RNA}},
    {"e5m2 stochastic", LB_E5M2, {.rounding = LB_STOCHASTIC, .seed = 1}},
    {"e4m3fnuz rne", LB_E4M3FNUZ, {LB_RNE}},
    {"e2m1 rne", LB_E2M1, {LB_RNE}},
    {"e8m0 rne", LB_E8M0, {LB_RNE}},
};

static void *pages(size_t bytes, bool huge)
{
    void *p = aligned_alloc(1 << 21, (bytes + (1 << 21) - 1) >> 21 << 21);
    if (!p) exit(1);
    madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return p;
}

static void measure(const char *where, size_t n, bool huge, const float *pattern, size_t n_pattern)
{
    float *x = pages(n * sizeof *x, huge), *y = pages(n * sizeof *y, huge);
    void *codes = pages(n * sizeof(uint16_t), huge);
    for (size_t i = 0; i < n; i++) x[i] = y[i] = pattern[i % n_pattern];
    memset(codes, 0, n * sizeof(uint16_t));
    printf("\n%-24s %10s %10s %10s\n", where, "grid", "store", "load");
    printf("%-24s %10.2f\n", "copy", RATE(n, memcpy(y, x, n * sizeof *x)));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        /* Rounding is idempotent: the second time does the same work on the same bits. */
        memcpy(y, x, n * sizeof *y);
        printf("%-24s %10.2f", r->name, RATE(n, lb_round_to_grid_f32(y, n, r->dtype, &r->cast)));
        if (lb_dtype_valid(r->dtype)) {
            printf(" %10.2f", RATE(n, lb_store_f32(r->dtype, codes, x, n, &r->cast)));
            printf(" %10.2f", RATE(n, lb_load_f32(y, r->dtype, codes, n)));
        }
        printf("\n");
        fflush(stdout);
    }
    free(x), free(y), free(codes);
}

int main(int argc, char **argv)
{
    enum { PATTERN = 8192 };
    static float pattern[PATTERN];
    const size_t large = (size_t)(argc > 1 ? atoi(argv[1]) : 256) << 18;
    for (size_t i = 0; i < PATTERN; i++) {
        uint32_t words[4];
        lb_philox(5, i, 0, words);
        pattern[i] = ((float)words[0] / 4294967296.0f - 0.5f) * 16;
    }
    printf("Gelt/s of one thread, instructions: %s\n", lb_processor_isa_name(lb_processor_isa()));
    measure("32 KiB", PATTERN, false, pattern, PATTERN);
    measure("memory, pages of 4 KiB", large, false, pattern, PATTERN);
    measure("memory, huge pages", large, true, pattern, PATTERN);
    return 0;
}
