/* The measuring kernel, run on the host, gives what lb_measure gives, bit by bit. RACES: a shorter run, for
 * ThreadSanitizer. */
#include "cmocka_first.h"
#include "host_grid.h"
#include "device/kernel_item.h"
#include "measure/leaf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef RACES
#define WORKERS 2
#define EVERY 29 /* of the small sizes */
#define VIEWS 12
#else
#define WORKERS 1
#define EVERY 1
#define VIEWS 150
#endif

static uint64_t dice = 1;

/* A linear congruential generator (Knuth's MMIX constants): tests must not depend on the C library's. */
static uint64_t random_word(void)
{
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    return dice ^ dice >> 29;
}
static int64_t random_below(int64_t n)
{
    return (int64_t)(random_word() >> 1) % n;
}

/* 16-byte aligned, and of exactly that many bytes, so that AddressSanitizer sees what is read beside them. Nearly all
 * words are those of a finite f32 that is no round number; `wild`: any bits. */
static char *new_bytes(size_t n, bool wild)
{
    char *bytes = NULL;
    assert_int_equal(posix_memalign((void **)&bytes, 16, n ? n : 1), 0);
    for (size_t i = 0; i < n; i += 4) {
        uint32_t word = (uint32_t)random_word();
        if (!wild) {
            const float x = word % 17 ? (float)(int32_t)word * 0x1p-29f : 0.0f;
            memcpy(&word, &x, sizeof word);
        }
        memcpy(bytes + i, &word, n - i < 4 ? n - i : 4);
    }
    return bytes;
}

static lb_measuring measuring_of(char *data, lb_dtype dtype, int ndim, const int64_t *shape)
{
    lb_measuring m = {.tensor = {data, dtype, lb_layout_contiguous(ndim, shape)},
                      .what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB};
    m.dense = data;
    m.dense_bytes = lb_dtype_bytes(dtype, (size_t)lb_layout_numel(&m.tensor.layout));
    return m;
}

typedef struct run {
    lb_kernel_item *items;
    lb_kernel_result *results;
    uint64_t n_results, *turn;
    size_t n;
} run;

static void run_kernel(const run *r, uint64_t seed)
{
    for (size_t at = 0, n; at < r->n; at += n) {
        lb_kernel_launch launch = {.results = (uint64_t)(uintptr_t)r->results,
                                   .n_results = r->n_results,
                                   .turn = (uint64_t)(uintptr_t)r->turn};
        for (n = r->n - at; !lb_kernel_pack(&launch, r->items + at, n);) n--;
        assert_true(n > 0 && launch.n_units > 0);
        host_kernel_measure(&launch, (host_grid){.blocks = launch.n_units, .workers = WORKERS, .seed = seed});
    }
}

static void assert_same(const lb_measured *host, const lb_kernel_result *r)
{
    const lb_measured device = lb_kernel_measured(r);
    assert_int_equal(host->logical.hi, device.logical.hi);
    assert_int_equal(host->logical.lo, device.logical.lo);
    assert_int_equal(host->blob.hi, device.blob.hi);
    assert_int_equal(host->blob.lo, device.blob.lo);
    assert_memory_equal(&host->statistics, &device.statistics, sizeof host->statistics);
}

static void assert_scratch(const lb_measured *host, const lb_kernel_item *item)
{
    const uint64_t *scratch = (const uint64_t *)(uintptr_t)item->scratch;
    if (host->n_leaves) assert_memory_equal(host->leaves, scratch, host->n_leaves * sizeof *scratch);
}

/* All of them in as few launches as hold them, and by lb_measure. */
static void check(lb_measuring *all, size_t n)
{
    static uint64_t next_slot;
    run r = {calloc(n, sizeof *r.items), calloc(n, sizeof *r.results), n, NULL, n};
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(lb_kernel_item_of(&r.items[i], &all[i], NULL), LB_OK);
        r.items[i].slot = next_slot++; /* never used twice with the same scratch, which malloc may give again */
        r.items[i].scratch = (uint64_t)(uintptr_t)malloc(lb_kernel_scratch_bytes(&r.items[i]));
    }
    run_kernel(&r, random_word());
    assert_true(lb_measure(all, n));
    for (size_t i = 0; i < n; i++) {
        const lb_kernel_result *result = &r.results[r.items[i].slot % n];
        assert_int_equal(result->whole, r.items[i].slot + 1);
        assert_int_equal(result->ended, 0);
        assert_same(&all[i].out, result);
        assert_scratch(&all[i].out, &r.items[i]);
        free(all[i].out.leaves);
        free((void *)(uintptr_t)r.items[i].scratch);
    }
    free(r.items);
    free(r.results);
}

static void check_sizes(const int64_t *sizes, size_t n, lb_dtype dtype, bool wild)
{
    lb_measuring *all = calloc(n, sizeof *all);
    for (size_t i = 0; i < n; i++)
        all[i] = measuring_of(new_bytes(lb_dtype_bytes(dtype, (size_t)sizes[i]), wild), dtype, 1, &sizes[i]);
    check(all, n);
    for (size_t i = 0; i < n; i++) free(all[i].tensor.data);
    free(all);
}

static void small_sizes_of_bytes(void **state)
{
    (void)state;
    int64_t sizes[330];
    size_t n = 0;
    for (int64_t size = 0; size <= 300; size += EVERY) sizes[n++] = size;
    for (int64_t near = 512; near <= 4096; near *= 2)
        for (int64_t d = -1; d <= 1; d++) sizes[n++] = near + d;
    sizes[n++] = 4096 + 63;
    sizes[n++] = 4096 + 64;
    sizes[n++] = 4096 + 65;
    check_sizes(sizes, n, LB_U8, true);
}

static void every_dtype(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 7, 15, 16, 17, 31, 33, 100, 255, 257, 1023, 1025, 2047, 4097};
    for (lb_dtype dtype = 1; dtype < LB_DTYPE_COUNT; dtype++)
        for (int wild = 0; wild < 2; wild++) check_sizes(sizes, sizeof sizes / sizeof *sizes, dtype, wild);
}

/* Each code of 8 bits in whole blocks of zeros: sums and bounds show what it was read as. */
static void every_code(void **state)
{
    (void)state;
    static const lb_dtype dtypes[] = {LB_E4M3FN, LB_E5M2, LB_E4M3FNUZ, LB_E5M2FNUZ, LB_E8M0, LB_I8, LB_U8, LB_BOOL};
    const int64_t n = 4096;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        lb_measuring all[256];
        size_t count = 0;
        for (int code = 0; code < 256; code += EVERY > 1 ? 37 : 1) {
            char *bytes = calloc(1, (size_t)n);
            bytes[code] = (char)code;
            all[count++] = measuring_of(bytes, dtypes[d], 1, &n);
        }
        check(all, count);
        for (size_t i = 0; i < count; i++) free(all[i].tensor.data);
    }
}

/* Around the ends of leaves (65536 bytes) and pieces (65536 numbers), in both ways of cutting. */
static void several_leaves(void **state)
{
    (void)state;
    static const int64_t sizes[] = {65535, 65536, 65537, 131071, 131072, 131073, 200001};
    static const lb_dtype dtypes[] = {LB_U8, LB_BF16, LB_F32, LB_C32, LB_E2M1, LB_F64, LB_F16, LB_I64};
    const size_t n_sizes = sizeof sizes / sizeof *sizes;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        const size_t from = d < 2 ? 0 : n_sizes - 2, n = EVERY > 1 ? 1 : n_sizes - from;
        if (EVERY > 1 && d > 4) break;
        check_sizes(sizes + from, n, dtypes[d], false);
        if (d == 2) check_sizes(sizes + from, n, dtypes[d], true);
    }
}

static void one_number_that_is_none(void **state)
{
    (void)state;
    const int64_t n = 9000;
    static const uint32_t odd[] = {0x7fc00000u, 0x7f800000u, 0xff800000u};
    lb_measuring all[3];
    for (int i = 0; i < 3; i++) {
        all[i] = measuring_of(new_bytes((size_t)n * 4, false), LB_F32, 1, &n);
        memcpy((char *)all[i].tensor.data + 4 * random_below(n), &odd[i], 4);
    }
    check(all, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(lb_statistics_nonfinite(&all[i].out.statistics), 1);
        free(all[i].tensor.data);
    }
}

/* Where nothing is aligned. */
static void any_address(void **state)
{
    (void)state;
    lb_measuring all[24];
    char *bytes[24];
    for (int i = 0; i < 24; i++) {
        const int64_t n = 700 + 301 * i, offset = i % 3 == 2 ? 0 : 1 + i / 2;
        const lb_dtype dtype = i % 3 == 0 ? LB_U8 : i % 3 == 1 ? LB_BF16 : LB_F32;
        const size_t width = lb_dtype_bits(dtype) / 8;
        bytes[i] = new_bytes((size_t)(n + offset) * width, false);
        all[i] = measuring_of(bytes[i] + (size_t)offset * width, dtype, 1, &n);
    }
    check(all, 24);
    for (int i = 0; i < 24; i++) free(bytes[i]);
}

/* A view of a buffer of its own: sizes, order of dimensions, steps, dimensions that are expanded or overlap. */
static lb_measuring random_view(char **bytes)
{
    static const lb_dtype dtypes[] = {LB_U8, LB_BF16, LB_F32, LB_F64, LB_C64, LB_C128, LB_E5M2, LB_C32, LB_I32};
    lb_layout layout = {.ndim = 1 + (int32_t)random_below(5)};
    const bool large = random_below(12) == 0;
    int64_t step = 1;
    for (int d = 0; d < layout.ndim; d++) layout.shape[d] = random_below(40) ? 1 + random_below(large ? 13 : 7) : 0;
    for (int d = layout.ndim - 1; d >= 0; d--) {
        const int64_t kind = random_below(8);
        layout.stride[d] = kind == 0 ? 0 : kind == 1 ? 1 + random_below(3) : step * (1 + (kind == 2));
        step *= layout.shape[d] ? layout.shape[d] * (1 + (kind == 2)) : 1;
    }
    for (int d = layout.ndim - 1; d > 0 && random_below(2); d--) {
        const int other = (int)random_below(d + 1);
        const int64_t shape = layout.shape[d], stride = layout.stride[d];
        layout.shape[d] = layout.shape[other];
        layout.stride[d] = layout.stride[other];
        layout.shape[other] = shape;
        layout.stride[other] = stride;
    }
    const lb_dtype dtype = dtypes[random_below(sizeof dtypes)];
    const size_t width = lb_dtype_bits(dtype) / 8;
    int64_t first, last;
    layout.offset = random_below(5);
    assert_int_equal(lb_layout_dense_range(&layout, &first, &last, NULL), LB_OK);
    *bytes = new_bytes((size_t)last * width, random_below(3) == 0);
    return (lb_measuring){.tensor = {*bytes + layout.offset * (int64_t)width, dtype, layout},
                          .dense = *bytes + first * (int64_t)width,
                          .dense_bytes = (size_t)(last - first) * width,
                          .what = (unsigned)random_below(4)};
}

static void views(void **state)
{
    (void)state;
    lb_measuring all[VIEWS];
    char *bytes[VIEWS];
    for (int i = 0; i < VIEWS; i++) all[i] = random_view(&bytes[i]);
    check(all, VIEWS);
    for (int i = 0; i < VIEWS; i++) free(bytes[i]);
}

static void large_views(void **state)
{
    (void)state;
    static const struct {
        int64_t shape[3], stride[3];
        lb_dtype dtype;
    } cases[] = {
        {{300, 257, 1}, {1, 300, 7}, LB_BF16},   /* transposed */
        {{90, 3, 400}, {0, 400, 1}, LB_F16},     /* expanded */
        {{41, 41, 41}, {20, 3, 5}, LB_F32},      /* overlapping */
        {{2, 40000, 1}, {80001, 2, 1}, LB_E5M2}, /* every other element, of rows that do not meet */
        {{4, 301, 64}, {64, 256, 1}, LB_BF16},   /* heads beside each other: chunks of 16 bytes, */
        {{4, 301, 12}, {12, 60, 1}, LB_F16},     /* of 8, */
        {{3, 999, 6}, {6, 18, 1}, LB_BF16},      /* of 4, */
        {{3, 999, 6}, {6, 19, 1}, LB_I16},       /* of 2, for rows begin anywhere, */
        {{7, 501, 10}, {5010, 10, 1}, LB_U8},    /* of none: these are contiguous, */
        {{7, 501, 9}, {9, 70, 1}, LB_BOOL}       /* and of 1 */
    };
    for (size_t i = 0; i < (EVERY > 1 ? 1 : sizeof cases / sizeof *cases); i++) {
        lb_layout layout = {.ndim = 3};
        memcpy(layout.shape, cases[i].shape, sizeof cases[i].shape);
        memcpy(layout.stride, cases[i].stride, sizeof cases[i].stride);
        int64_t first, last;
        assert_int_equal(lb_layout_dense_range(&layout, &first, &last, NULL), LB_OK);
        const size_t width = lb_dtype_bits(cases[i].dtype) / 8, size = (size_t)last * width;
        char *bytes = new_bytes(size, false);
        lb_measuring m = {.tensor = {bytes, cases[i].dtype, layout},
                          .dense = bytes,
                          .dense_bytes = size,
                          .what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB};
        check(&m, 1);
        free(bytes);
    }
}

/* Beyond 2^32 elements: the last units of a value whose memory is nearly all never touched, against the leaf and the
 * lanes alone. */
static void far_away(void **state)
{
    (void)state;
    const int64_t n = (5ll << 30) + 777;
    char *bytes = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) skip();
    const size_t from = (size_t)n / LB_DIGEST_LEAF * LB_DIGEST_LEAF, rest = (size_t)n - from;
    for (size_t i = 0; i < rest; i++) bytes[from + i] = (char)random_word();
    for (int strided = 0; strided < 2; strided++) {
        lb_measuring m = measuring_of(bytes, LB_I8, 1, &n);
        if (strided) m.tensor.layout = (lb_layout){.ndim = 2, .shape = {n / 3, 3}, .stride = {3, 1}};
        lb_kernel_item item;
        assert_int_equal(lb_kernel_item_of(&item, &m, NULL), LB_OK);
        if (strided) { /* the way of strided views, over bytes whose leaves are known */
            item.contiguous = 0;
            item.granule = item.width;
            item.n_sizes = 1;
            item.sizes[0] = (uint64_t)n / 3 * 3;
            item.strides[0] = 1;
        }
        uint64_t *scratch = calloc(lb_kernel_scratch_bytes(&item), 1);
        item.scratch = (uint64_t)(uintptr_t)scratch;
        lb_kernel_result result = {0};
        lb_kernel_launch launch = {.results = (uint64_t)(uintptr_t)&result, .n_results = 1};
        assert_true(lb_kernel_pack(&launch, &item, 1));
        const uint32_t units = launch.n_units;
        host_kernel_measure(&launch, (host_grid){.blocks = units, .first_block = units - 1});

        const size_t leaf = from / LB_DIGEST_LEAF, size = (size_t)(strided ? n / 3 * 3 : n) - from;
        lb_statistics_state lanes;
        lb_statistics_begin(&lanes);
        assert_int_equal(scratch[leaf], lb_leaf_measure(bytes + from, size, leaf, LB_I8, size, &lanes));
        const lb_statistics s = lb_statistics_end(&lanes);
        const uint64_t *record = scratch + leaf + 1 + (units - 1) * LB_KERNEL_RECORD_WORDS;
        assert_memory_equal(&s.sum, record, 8);
        assert_memory_equal(&s.sum_squares, record + 1, 8);
        assert_int_equal(s.zero, record[4] & 0xffffffffu);
        free(scratch);
    }
    munmap(bytes, (size_t)n);
}

/* A graph that runs three times fills three turns of a ring that holds two. */
static void ring_turns(void **state)
{
    (void)state;
    const int64_t n = 1000;
    char *bytes = new_bytes((size_t)n * 4, false);
    lb_kernel_result ring[4] = {{0}};
    lb_kernel_item items[2];
    uint64_t turn = 0, scratch[2][64];
    for (int i = 0; i < 2; i++) {
        const lb_measuring m = measuring_of(bytes, i ? LB_F32 : LB_I32, 1, &n);
        assert_int_equal(lb_kernel_item_of(&items[i], &m, NULL), LB_OK);
        assert_true(lb_kernel_scratch_bytes(&items[i]) <= sizeof scratch[i]);
        items[i].scratch = (uint64_t)(uintptr_t)scratch[i];
        items[i].slot = (uint64_t)i;
    }
    const run r = {items, ring, 4, &turn, 2};
    for (int i = 0; i < 3; i++) {
        bytes[0] = (char)i;
        run_kernel(&r, (uint64_t)i);
        host_kernel_turn(&turn, 2);
    }
    static const uint64_t whole[4] = {5, 6, 3, 4};
    for (int i = 0; i < 4; i++) assert_int_equal(ring[i].whole, whole[i]);
    for (int i = 0; i < 4; i++) {
        bytes[0] = i < 2 ? 2 : 1;
        lb_measuring m = measuring_of(bytes, i % 2 ? LB_F32 : LB_I32, 1, &n);
        assert_true(lb_measure(&m, 1));
        assert_same(&m.out, &ring[i]);
        free(m.out.leaves);
    }
    free(bytes);
}

static void orders_of_threads_do_not_matter(void **state)
{
    (void)state;
    const int64_t n = 70000;
    lb_measuring m = measuring_of(new_bytes((size_t)n * 2, false), LB_BF16, 1, &n);
    for (int i = 0; i < 4; i++) check(&m, 1);
    free(m.tensor.data);
}

/* More leaves than one round adds, and than the words of one round of hashing. */
static void many_leaves(void **state)
{
    (void)state;
    const int64_t n = (EVERY > 1 ? 3 : 2 * LB_KERNEL_TOGETHER + 3) * 65536 + 5;
    lb_measuring m = measuring_of(new_bytes((size_t)n, true), LB_I8, 1, &n);
    check(&m, 1);
    free(m.tensor.data);
}

/* Of a value of a gigabyte only its end is run: all units but the last one are said to have ended, with leaves and
 * records of any bits. */
static void the_end_of_a_large_value(void **state)
{
    (void)state;
    const int64_t n = (5ll << 28) + 777;
    char *bytes = mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) skip();
    lb_measuring m = measuring_of(bytes, LB_U8, 1, &n);
    lb_kernel_item item;
    lb_kernel_result result = {0};
    assert_int_equal(lb_kernel_item_of(&item, &m, NULL), LB_OK);
    const uint64_t words = lb_kernel_scratch_bytes(&item) / 8;
    const size_t n_leaves = ((size_t)n + LB_DIGEST_LEAF - 1) / LB_DIGEST_LEAF;
    uint64_t *scratch = calloc(words, 8), *records = scratch + n_leaves;
    for (size_t i = 0; i < n_leaves; i++) scratch[i] = random_word();
    double sums[LB_KERNEL_TOGETHER * 8], *all = sums;
    item.scratch = (uint64_t)(uintptr_t)scratch;
    lb_kernel_launch launch = {.results = (uint64_t)(uintptr_t)&result, .n_results = 1};
    assert_true(lb_kernel_pack(&launch, &item, 1));
    const uint32_t units = launch.n_units;
    assert_in_range(units, LB_KERNEL_TOGETHER + 1, LB_KERNEL_TOGETHER * 8); /* so that there are two rounds */
    for (uint32_t u = 0; u < units; u++) {
        sums[u] = u + 1 < units ? (double)(int64_t)random_word() * 0x1p-40 : 0;
        memcpy(records + u * LB_KERNEL_RECORD_WORDS, &sums[u], 8);
        records[u * LB_KERNEL_RECORD_WORDS + 4] = 3 | 2ull << 32; /* zeros and NaN */
    }
    result.ended = units - 1;
    host_kernel_measure(&launch, (host_grid){.blocks = units, .first_block = units - 1});
    for (uint32_t left = units; left > 1; left = (left + 1) / 2)
        for (uint32_t i = 0; i < (left + 1) / 2; i++)
            all[i] = 2 * i + 1 < left ? all[2 * i] + all[2 * i + 1] : all[2 * i];
    const lb_digest digest = lb_digest_of_leaves(scratch, n_leaves, &m.tensor),
                    blob = lb_digest_of_byte_leaves(scratch, n_leaves, (uint64_t)n);
    const lb_measured found = lb_kernel_measured(&result);
    assert_true(lb_digest_equal(found.logical, digest) && lb_digest_equal(found.blob, blob));
    assert_true(found.statistics.sum == all[0]);
    assert_int_equal(found.statistics.nan, 2 * (units - 1));
    free(scratch);
    munmap(bytes, (size_t)n);
}

/* Any items, as many as a launch says that it holds: the words are those of the items, one behind the other, and one
 * more is refused. */
static void a_launch_holds_what_it_says(void **state)
{
    (void)state;
    enum { MOST = 64 };
    for (int round = 0; round < 40; round++) {
        lb_kernel_item items[MOST];
        lb_kernel_launch launch = {.results = 0};
        uint64_t words = 0;
        size_t n = 0;
        for (; n < MOST; n++) {
            lb_measuring m = measuring_of(NULL, LB_F32, 0, NULL);
            m.tensor.layout.ndim = (int)random_below(round % 2 ? LB_MAX_DIMS + 1 : 4);
            for (int d = 0; d < m.tensor.layout.ndim; d++) {
                m.tensor.layout.shape[d] = 1 + random_below(3);
                m.tensor.layout.stride[d] = random_below(50);
            }
            assert_int_equal(lb_kernel_item_of(&items[n], &m, NULL), LB_OK);
            words += lb_kernel_words(&items[n]);
            assert_int_equal(lb_kernel_pack(&launch, items, n + 1), words <= LB_KERNEL_WORDS);
            if (words > LB_KERNEL_WORDS) break;
        }
        assert_in_range(n, 7, MOST - 1);
        assert_true(lb_kernel_pack(&launch, items, n));
        assert_int_equal(launch.n_items, n);
        for (size_t i = 0, at = n, unit = 0; i < n; i++) {
            const lb_kernel_item *item = &items[i];
            assert_int_equal(launch.words[i], unit | at << 32);
            assert_memory_equal(launch.words + at, item, 8 * LB_KERNEL_FIXED_WORDS);
            at += LB_KERNEL_FIXED_WORDS;
            assert_memory_equal(launch.words + at, item->shape, 8 * item->ndim);
            at += item->ndim;
            assert_memory_equal(launch.words + at, item->sizes, 8 * item->n_sizes);
            at += item->n_sizes;
            assert_memory_equal(launch.words + at, item->strides, 8 * item->n_sizes);
            at += item->n_sizes;
            unit += lb_kernel_units(item);
        }
    }
}

static void a_value_without_digest_is_refused(void **state)
{
    (void)state;
    lb_kernel_item item;
    lb_err err = {0};
    const int64_t shape[2] = {4, 4};
    lb_measuring m = measuring_of(NULL, LB_E2M1, 2, shape);
    m.tensor.layout.stride[0] = 8;
    assert_int_equal(lb_kernel_item_of(&item, &m, &err), LB_ERR_UNSUPPORTED);
    m.tensor.layout.stride[0] = 4;
    m.tensor.dtype = LB_TF32;
    assert_int_equal(lb_kernel_item_of(&item, &m, NULL), LB_ERR_UNSUPPORTED);
    m.tensor.dtype = LB_U8;
    m.tensor.layout.shape[0] = -1;
    assert_int_equal(lb_kernel_item_of(&item, &m, NULL), LB_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_sizes_of_bytes),
        cmocka_unit_test(every_dtype),
        cmocka_unit_test(every_code),
        cmocka_unit_test(several_leaves),
        cmocka_unit_test(one_number_that_is_none),
        cmocka_unit_test(any_address),
        cmocka_unit_test(views),
        cmocka_unit_test(large_views),
        cmocka_unit_test(far_away),
        cmocka_unit_test(ring_turns),
        cmocka_unit_test(orders_of_threads_do_not_matter),
        cmocka_unit_test(many_leaves),
        cmocka_unit_test(the_end_of_a_large_value),
        cmocka_unit_test(a_launch_holds_what_it_says),
        cmocka_unit_test(a_value_without_digest_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
