/* How fast a tensor is fingerprinted, against reading and copying it: `cmake --build --preset release --target
 * bench_fingerprint`.
 *
 * Each rate is the best of several rounds over a working set of that size, one thread, at each level of instructions.
 * Ratios are to a plain sum of the same words, `memcpy` and a digest (XXH3) stand beside. */
#include <lastbit/clock.h>
#include <lastbit/digest.h>
#include <lastbit/fingerprint.h>
#include <lastbit/processor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 256 << 20 };
static volatile uint64_t sink;
static char *copy;

static void read_words(const lb_tensor *t, size_t bytes)
{
    const uint64_t *w = (const uint64_t *)t->data;
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / 8; i++) sum += w[i];
    sink += sum;
}

static void copy_bytes(const lb_tensor *t, size_t bytes)
{
    memcpy(copy, t->data, bytes);
    sink += (uint64_t)copy[bytes / 2];
}

static void digest(const lb_tensor *t, size_t bytes)
{
    (void)bytes;
    sink += lb_digest_tensor(t).lo;
}

static void raw(const lb_tensor *t, size_t bytes)
{
    lb_fingerprint f;
    (void)bytes;
    if (lb_fingerprint_tensor(LB_FINGERPRINT_RAW, t, &f, NULL) == LB_OK) sink += f.a;
}

static void numbers(const lb_tensor *t, size_t bytes)
{
    lb_fingerprint f;
    (void)bytes;
    if (lb_fingerprint_tensor(LB_FINGERPRINT_NUMBERS, t, &f, NULL) == LB_OK) sink += f.a;
}

static double rate(void (*pass)(const lb_tensor *, size_t), const lb_tensor *t, size_t bytes)
{
    double best = 1e9;
    for (int round = 0; round < 9; round++) {
        const size_t times = 1 + (32u << 20) / bytes;
        const double start = lb_clock_seconds();
        for (size_t i = 0; i < times; i++) pass(t, bytes);
        const double took = (lb_clock_seconds() - start) / (double)times;
        if (took < best) best = took;
    }
    return (double)bytes / best / 1e9;
}

int main(void)
{
    static const size_t sizes[] = {65536, 4 << 20, LARGEST};
    static const lb_dtype dtypes[] = {LB_F32, LB_BF16, LB_F16, LB_F64, LB_E4M3FN};
    char *bytes = malloc(LARGEST);
    copy = malloc(LARGEST);
    if (!bytes || !copy) return 1;
    for (size_t i = 0; i < LARGEST; i++) bytes[i] = (char)((uint32_t)i * 2654435761u >> 25);
    memset(copy, 1, LARGEST);
    for (int level = LB_ISA_SCALAR; level <= (int)lb_processor_best(); level++) {
        lb_processor_limit((lb_isa)level);
        printf("%-8s %9s %8s %8s %8s %8s %8s  GB/s   raw/read numbers/read\n", lb_processor_isa_name((lb_isa)level),
               "bytes", "read", "memcpy", "digest", "raw", "numbers");
        for (size_t d = 0; d < sizeof dtypes; d++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                const int64_t n = (int64_t)(sizes[s] * 8 / lb_dtype_bits(dtypes[d]));
                const lb_tensor t = {bytes, dtypes[d], lb_layout_contiguous(1, &n)};
                const double read = rate(read_words, &t, sizes[s]), own = rate(raw, &t, sizes[s]),
                             as_f64 = rate(numbers, &t, sizes[s]);
                printf("%-8s %9zu %8.2f %8.2f %8.2f %8.2f %8.2f  %13.2f %13.2f\n", lb_dtype_name(dtypes[d]), sizes[s],
                       read, rate(copy_bytes, &t, sizes[s]), rate(digest, &t, sizes[s]), own, as_f64, own / read,
                       as_f64 / read);
            }
    }
    free(bytes), free(copy);
    return 0;
}
