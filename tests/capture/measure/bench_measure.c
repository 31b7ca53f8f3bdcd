/* How fast a value is digested and summarised, against reading it: `cmake --build --preset release --target
 * bench_measure`.
 *
 * Each rate is the best of several rounds over a working set of that size; ratios are to a plain sum of the same
 * words. */
#include "measure/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile uint64_t sink;

static void read_words(const lb_tensor *t, size_t bytes)
{
    const uint64_t *w = (const uint64_t *)t->data;
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / 8; i++) sum += w[i];
    sink += sum;
}

static void hash(const lb_tensor *t, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LB_DIGEST_LEAF)
        sink += XXH3_64bits_withSeed((const char *)t->data + at,
                                     bytes - at < LB_DIGEST_LEAF ? bytes - at : LB_DIGEST_LEAF, at);
}

static void statistics(const lb_tensor *t, size_t bytes)
{
    (void)bytes;
    lb_statistics s = lb_statistics_of(t);
    sink += (uint64_t)s.zero;
}

static void measure(const lb_tensor *t, size_t bytes)
{
    lb_measuring item = {.tensor = *t, .dense = t->data, .dense_bytes = bytes, .what = LB_MEASURE_STATISTICS};
    if (!lb_measure(&item, 1)) exit(1);
    sink += item.out.logical.lo;
    free(item.out.leaves);
}

static double rate(void (*pass)(const lb_tensor *, size_t), const lb_tensor *t, size_t bytes)
{
    double best = 1e9;
    for (int round = 0; round < 15; round++) {
        size_t times = 1 + (16u << 20) / bytes;
        double start = now();
        for (size_t i = 0; i < times; i++) pass(t, bytes);
        double took = (now() - start) / (double)times;
        if (took < best) best = took;
    }
    return (double)bytes / best / 1e9;
}

int main(void)
{
    static const size_t sizes[] = {256, 4096, 65536, 1 << 20, 16 << 20, 128 << 20};
    static const struct {
        const char *name;
        lb_dtype dtype;
    } types[] = {{"f32", LB_F32}, {"bf16", LB_BF16}, {"f64", LB_F64}, {"i64", LB_I64}};
    char *bytes = malloc(128 << 20);
    if (!bytes) return 1;
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        const size_t width = lb_dtype_bits(types[d].dtype) / 8;
        for (size_t i = 0; i < (128u << 20) / width; i++) {
            const float x = (float)(int32_t)(i * 2654435761u) / 1e9f;
            const double y = (double)x;
            const int64_t n = (int64_t)i;
            if (types[d].dtype == LB_F32) memcpy(bytes + 4 * i, &x, 4);
            if (types[d].dtype == LB_BF16) memcpy(bytes + 2 * i, (const char *)&x + 2, 2);
            if (types[d].dtype == LB_F64) memcpy(bytes + 8 * i, &y, 8);
            if (types[d].dtype == LB_I64) memcpy(bytes + 8 * i, &n, 8);
        }
        printf("%s\n%12s %10s %10s %10s %10s   GB/s\n", types[d].name, "bytes", "read", "xxh3", "statistics",
               "measure");
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            int64_t shape[1] = {(int64_t)(sizes[s] / width)};
            lb_tensor t = {bytes, types[d].dtype, lb_layout_contiguous(1, shape)};
            printf("%12zu %10.2f %10.2f %10.2f %10.2f\n", sizes[s], rate(read_words, &t, sizes[s]),
                   rate(hash, &t, sizes[s]), rate(statistics, &t, sizes[s]), rate(measure, &t, sizes[s]));
        }
    }
    free(bytes);
    return 0;
}
