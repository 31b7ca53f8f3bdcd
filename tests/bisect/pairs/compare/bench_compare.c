/* Rate of lb_compare_numbers in GB/s of both inputs read, one thread: `bench_compare MEBIBYTES`. The limit is memory
 * bandwidth, for which memcmp of the same bytes stands; values of an archive are aligned like these. bench_compare.py
 * sets the figures beside NumPy's and torch's. */
#include <lastbit/compare.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Best of five: the machine may be shared. */
static double rate(const lb_tensor *a, const lb_tensor *b, size_t bytes, int memory_only)
{
    double best = 1e30;
    volatile int sink = 0;
    for (int i = 0; i < 5; i++) {
        double start = now();
        lb_difference d;
        if (memory_only)
            sink += memcmp(a->data, b->data, bytes);
        else if (lb_compare_numbers(a, b, &d, NULL) != LB_OK)
            abort();
        double took = now() - start;
        best = took < best ? took : best;
    }
    return 2e-9 * (double)bytes / best;
}

/* Between -1 and 1. */
static float noise(uint32_t *seed)
{
    *seed = *seed * 1664525 + 1013904223;
    return (float)(int32_t)*seed * 0x1p-31f;
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 1 ? (size_t)atol(argv[1]) : 64) << 20;
    int64_t shape[1] = {(int64_t)(bytes / 4)};
    lb_tensor a = {aligned_alloc(64, bytes), LB_F32, lb_layout_contiguous(1, shape)}, b = a;
    b.data = aligned_alloc(64, bytes);
    float *x = a.data, *y = b.data;
    for (int64_t i = 0; i < shape[0]; i++) x[i] = y[i] = (float)(i % 1009) - 500.5f;
    double limit = rate(&a, &b, bytes, 1), equal = rate(&a, &b, bytes, 0);
    for (int64_t i = 0; i < shape[0]; i += 1000) y[i] *= 1.0001f;
    double few = rate(&a, &b, bytes, 0);
    for (int64_t i = 0; i < shape[0]; i++) y[i] = x[i] * 1.0001f;
    double all = rate(&a, &b, bytes, 0);
    uint32_t seed = 1; /* distances of every size, as between two kernels */
    for (int64_t i = 0; i < shape[0]; i++) x[i] = noise(&seed), y[i] = x[i] + 1e-3f * noise(&seed);
    double noisy = rate(&a, &b, bytes, 0);
    printf("{\"memcmp\": %.3f, \"equal\": %.3f, \"one_in_1000\": %.3f, \"all_differ\": %.3f, \"noise\": %.3f}\n", limit,
           equal, few, all, noisy);
    free(a.data), free(b.data);
    return 0;
}
