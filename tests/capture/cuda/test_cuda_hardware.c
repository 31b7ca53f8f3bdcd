/* The CUDA back end on a real device: values against lb_measure, a graph, and how fast it measures. Skipped (77) where
 * there is none.
 *
 * Rates are printed, not judged. Large: sixteen values of 256 MiB, from their submission until all results are there;
 * numbers as weights are, and words of random bits, among which are infinities and NaN, so that each number is looked
 * at. Small: values of 4 KiB, sixteen to a call, what the host spends on one and until all are there. */
#include "cmocka_first.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_driver.h"
#include "device/kernel_image.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct CUgraph_st *graph;
typedef struct CUgraphExec_st *graph_exec;

/* What a program calls, and capture/cuda does not. */
#define PROGRAM(X)                                                                                                     \
    X(Init, cuInit, (unsigned))                                                                                        \
    X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                       \
    X(CtxSetCurrent, cuCtxSetCurrent, (CUcontext))                                                                     \
    X(CtxSynchronize, cuCtxSynchronize, (void))                                                                        \
    X(StreamBeginCapture, cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                                    \
    X(StreamEndCapture, cuStreamEndCapture, (CUstream, graph *))                                                       \
    X(GraphInstantiate, cuGraphInstantiateWithFlags, (graph_exec *, graph, unsigned long long))                        \
    X(GraphLaunch, cuGraphLaunch, (graph_exec, CUstream))

static struct {
#define FIELD(NAME, symbol, parameters) CUresult(*NAME) parameters;
    PROGRAM(FIELD)
#undef FIELD
} program;
static const lb_cuda_driver *cuda;
static lb_device *reader;
static CUstream stream;
static CUdeviceptr memory;
static unsigned char *copy; /* of the memory */

#define MEMORY (256u << 20)
#define ASSERT_CUDA(call) assert_int_equal(call, CUDA_SUCCESS)

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull; /* Knuth's MMIX constants */
    return *state >> 33;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static lb_device_work work_of(const lb_tensor *on_host, uint64_t first, uint64_t bytes)
{
    lb_device_work work = {.measured = true, .item = {.tensor = *on_host, .dense_bytes = bytes}};
    work.item.tensor.data = (void *)(uintptr_t)(memory + (uint64_t)((unsigned char *)on_host->data - copy));
    work.item.dense = (const void *)(uintptr_t)(memory + first);
    work.item.what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB;
    return work;
}

static void assert_same(const lb_device_work *work)
{
    lb_measuring host = work->item;
    assert_int_equal(work->state, LB_WORK_DONE);
    host.tensor.data = copy + ((CUdeviceptr)(uintptr_t)work->item.tensor.data - memory);
    host.dense = copy + ((CUdeviceptr)(uintptr_t)work->item.dense - memory);
    assert_true(lb_measure(&host, 1));
    assert_memory_equal(&host.out.logical, &work->item.out.logical, sizeof host.out.logical);
    assert_memory_equal(&host.out.blob, &work->item.out.blob, sizeof host.out.blob);
    assert_memory_equal(&host.out.statistics, &work->item.out.statistics, sizeof host.out.statistics);
    assert_int_equal(host.out.n_leaves, work->item.out.n_leaves);
    if (host.out.leaves) assert_memory_equal(host.out.leaves, work->item.out.leaves, 8 * host.out.n_leaves);
    if (work->bytes) assert_memory_equal(work->bytes, host.dense, host.dense_bytes);
    free(host.out.leaves);
}

static void free_work(lb_device_work *work)
{
    free(work->item.out.leaves);
    free(work->bytes);
}

/* Dense, transposed, with gaps, broadcast. */
static lb_device_work drawn_work(uint64_t *random)
{
    const lb_dtype dtype = (lb_dtype)(1 + draw(random) % (LB_DTYPE_COUNT - 1));
    const bool dense = lb_dtype_bits(dtype) < 8 || draw(random) % 2;
    const int64_t a = 1 + (int64_t)(draw(random) % 300),
                  b = 1 + (int64_t)(draw(random) % (draw(random) % 8 ? 200 : 9000));
    lb_layout layout = {.ndim = 2, .shape = {a, b}, .stride = {b, 1}};
    if (!dense && draw(random) % 3 == 0)
        layout = (lb_layout){.ndim = 2, .shape = {b, a}, .stride = {1, b}};
    else if (!dense && draw(random) % 2)
        layout = (lb_layout){.ndim = 2, .shape = {a, (b + 1) / 2}, .stride = {b, 2}};
    else if (!dense)
        layout = (lb_layout){.ndim = 3, .shape = {a, 3, b}, .stride = {b, 0, 1}};
    int64_t first, last;
    assert_int_equal(lb_layout_dense_range(&layout, &first, &last, NULL), LB_OK);
    const uint64_t bytes = lb_dtype_bytes(dtype, (size_t)(last - first)), width = (lb_dtype_bits(dtype) + 7) / 8;
    const uint64_t at = draw(random) % (MEMORY - bytes) / width * width;
    const lb_tensor on_host = {copy + at, dtype, layout};
    lb_device_work work = work_of(&on_host, at, bytes);
    if (draw(random) % 4 == 0) assert_non_null(work.bytes = malloc(bytes));
    return work;
}

static void results_are_those_of_the_host(void **state)
{
    (void)state;
    enum { N = 2000 };
    static lb_device_work works[N];
    lb_device_work *list[N];
    uint64_t random = 11;
    for (int i = 0; i < N; i++) {
        works[i] = drawn_work(&random);
        list[i] = &works[i];
    }
    for (int at = 0; at < N;) {
        int n = 1 + (int)(draw(&random) % (draw(&random) % 4 ? 3 : 40)); /* few are copied aside */
        if (n > N - at) n = N - at;
        reader->ops->submit(reader, list + at, (size_t)n, draw(&random) % 2 ? stream : NULL, true);
        at += n;
    }
    reader->ops->collect(reader, NULL, true);
    for (int i = 0; i < N; i++) {
        assert_same(&works[i]);
        free_work(&works[i]);
    }
}

/* ---- sizes where something ends ---------------------------------------------------------------------------------- */

enum { SHORT_BYTES = 300, MOST_WORKS = 4096 };
static uint64_t most_bytes = UINT64_MAX; /* of a value: a rehearsal without a device has no time for more */
static lb_device_work sized[MOST_WORKS];
static size_t n_sized;

/* `n` elements from byte `at` on. */
static void add_sized(lb_dtype dtype, int64_t n, uint64_t at)
{
    const uint64_t bytes = lb_dtype_bytes(dtype, (size_t)n);
    if (bytes > most_bytes) return;
    const lb_tensor on_host = {copy + at, dtype, {.ndim = 1, .shape = {n}, .stride = {1}}};
    assert_true(n_sized < MOST_WORKS);
    sized[n_sized++] = work_of(&on_host, at, bytes);
}

static void measure_sized(void)
{
    static lb_device_work *list[MOST_WORKS];
    for (size_t i = 0; i < n_sized; i++) list[i] = &sized[i];
    reader->ops->submit(reader, list, n_sized, stream, true);
    reader->ops->collect(reader, NULL, true);
    for (size_t i = 0; i < n_sized; i++) {
        assert_same(&sized[i]);
        free_work(&sized[i]);
    }
    n_sized = 0;
}

/* Of every type: all short ones, and an element more and less than a leaf, than what many units hold, and than what no
 * power of two is; each where 16 bytes begin, and an element behind. */
static void every_size_has_the_hosts_results(void **state)
{
    static const uint64_t edges[] = {1024, 64 << 10, 8 << 20, 33000000};
    (void)state;
    for (lb_dtype dtype = 1; dtype < LB_DTYPE_COUNT; dtype++) {
        const int64_t bits = (int64_t)lb_dtype_bits(dtype), behind = (bits + 7) / 8;
        for (int moved = 0; moved < 2; moved++) {
            for (int64_t n = 0; n * bits <= 8 * SHORT_BYTES; n++)
                add_sized(dtype, n, 4096 + (uint64_t)(moved * behind));
            for (size_t e = 0; e < sizeof edges / sizeof *edges; e++)
                for (int64_t by = -1; by <= 1; by++)
                    add_sized(dtype, (int64_t)edges[e] * 8 / bits + by, 4096 + (uint64_t)(moved * behind));
        }
        measure_sized();
    }
}

/* More elements than 32 bits count, dense and with gaps between rows. */
static void value_of_more_elements_than_32_bits_count_has_the_hosts_results(void **state)
{
    const int64_t n = (1ll << 31) + 3, row = 1 << 20;
    const uint64_t bytes = (uint64_t)n;
    const CUdeviceptr before = memory;
    unsigned char *const copy_before = copy;
    void *pinned = NULL;
    (void)state;
    if (most_bytes < bytes || cuda->MemAlloc(&memory, bytes)) skip();
    ASSERT_CUDA(cuda->MemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE));
    copy = pinned;
    for (uint64_t at = 0; at < bytes; at += MEMORY) {
        memcpy(copy + at, copy_before, bytes - at < MEMORY ? bytes - at : MEMORY);
        copy[at] = (unsigned char)(at / MEMORY); /* no two parts are the same */
    }
    ASSERT_CUDA(cuda->MemcpyHtoDAsync(memory, copy, bytes, stream));
    add_sized(LB_U8, n, 0);
    measure_sized();
    const lb_tensor rows = {copy, LB_U8, {.ndim = 2, .shape = {n / row, row - 1}, .stride = {row, 1}}};
    lb_device_work work = work_of(&rows, 0, (uint64_t)((n / row - 1) * row + row - 1)), *list[] = {&work};
    reader->ops->submit(reader, list, 1, stream, true);
    reader->ops->collect(reader, &work, true);
    assert_same(&work);
    free_work(&work);
    ASSERT_CUDA(cuda->MemFree(memory));
    ASSERT_CUDA(cuda->MemFreeHost(pinned));
    memory = before;
    copy = copy_before;
}

static void count_replay(void *context, const lb_cuda_replay *replay)
{
    lb_device_work *work = context;
    work->state = LB_WORK_DONE;
    work->item.out.logical = replay->out.logical;
    work->item.out.blob = replay->out.blob;
    work->item.out.statistics = replay->out.statistics;
    work->slot = replay->number + 1;
}

static void graph_gives_its_results_at_each_run(void **state)
{
    (void)state;
    const lb_tensor on_host = {copy, LB_BF16, {.ndim = 1, .shape = {100000}, .stride = {1}}};
    lb_device_work work = work_of(&on_host, 0, 200000), *list[] = {&work};
    graph g;
    graph_exec exec;
    ASSERT_CUDA(program.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    reader->ops->submit(reader, list, 1, stream, false);
    assert_int_equal(work.state, LB_WORK_SKIPPED);
    ASSERT_CUDA(program.StreamEndCapture(stream, &g));
    ASSERT_CUDA(program.GraphInstantiate(&exec, g, 0));
    for (uint64_t run = 0; run < 3; run++) {
        memset(copy, (int)run + 60, 1000);
        ASSERT_CUDA(cuda->MemcpyHtoDAsync(memory, copy, 1000, stream));
        ASSERT_CUDA(program.GraphLaunch(exec, stream));
        lb_cuda_order_after(reader, stream);
        lb_cuda_replays(reader, count_replay, &work);
        assert_int_equal(work.slot, run + 1);
        lb_measuring host = {.tensor = on_host, .dense = copy, .dense_bytes = 200000, .what = LB_MEASURE_STATISTICS};
        assert_true(lb_measure(&host, 1));
        assert_memory_equal(&work.item.out.logical, &host.out.logical, sizeof host.out.logical);
        assert_memory_equal(&work.item.out.statistics, &host.out.statistics, sizeof host.out.statistics);
        free(host.out.leaves);
    }
}

/* The sum of four even draws: finite, of both signs, most of them small. */
static float number_drawn(uint64_t *random)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)draw(random) / 0x1p31f - 0.5f;
    return sum;
}

/* A mebibyte, over and over. */
static void put_numbers(lb_dtype dtype)
{
    uint64_t random = 5;
    unsigned char part[1 << 20];
    for (size_t i = 0; i < sizeof part; i += lb_dtype_bytes(dtype, 1)) {
        const float number = number_drawn(&random);
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        if (dtype == LB_F32)
            memcpy(part + i, &number, sizeof number);
        else if (dtype == LB_BF16)
            part[i] = (unsigned char)(bits >> 16), part[i + 1] = (unsigned char)(bits >> 24);
        else
            part[i] = dtype == LB_BOOL ? bits & 1 : (unsigned char)bits;
    }
    for (size_t at = 0; at < MEMORY; at += sizeof part) memcpy(copy + at, part, sizeof part);
    ASSERT_CUDA(cuda->MemcpyHtoDAsync(memory, copy, MEMORY, stream));
    ASSERT_CUDA(program.CtxSynchronize());
}

static lb_device_work works[16384];
static lb_device_work *list[16384];

static double rate_of(lb_dtype dtype, size_t at_once)
{
    double best = 1e9;
    const int64_t n = (int64_t)MEMORY * 8 / (int64_t)lb_dtype_bits(dtype);
    const lb_tensor on_host = {copy, dtype, {.ndim = 1, .shape = {n}, .stride = {1}}};
    for (int round = 0; round < 10; round++) {
        for (size_t w = 0; w < at_once; w++) works[w] = work_of(&on_host, 0, MEMORY), list[w] = &works[w];
        const double begin = now();
        reader->ops->submit(reader, list, at_once, stream, true);
        reader->ops->collect(reader, NULL, true);
        if (now() - begin < best) best = now() - begin;
        for (size_t w = 0; w < at_once; w++) free_work(&works[w]);
    }
    return (double)at_once * (double)MEMORY / best * 1e-9;
}

/* Microseconds from the submission of a value until its results are there, by its size and layout. What a program's
 * stream waits is less, by the way to the host: ncu says it of each launch. */
static void waits(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        lb_layout layout;
    } values[] = {
        {"8 KiB", {.ndim = 1, .shape = {4096}, .stride = {1}}},
        {"64 KiB", {.ndim = 1, .shape = {32768}, .stride = {1}}},
        {"1 MiB", {.ndim = 1, .shape = {1 << 19}, .stride = {1}}},
        {"8 MiB", {.ndim = 1, .shape = {1 << 22}, .stride = {1}}},
        {"32 MiB", {.ndim = 1, .shape = {1 << 24}, .stride = {1}}},
        {"128 MiB", {.ndim = 1, .shape = {1 << 26}, .stride = {1}}},
        {"32 MiB, heads of 64 beside each other", {.ndim = 3, .shape = {32, 8192, 64}, .stride = {64, 2048, 1}}},
        {"32 MiB, transposed", {.ndim = 2, .shape = {2048, 8192}, .stride = {1, 2048}}},
        {"32 MiB, transposed, odd", {.ndim = 2, .shape = {2047, 8191}, .stride = {1, 2049}}},
    };
    put_numbers(LB_BF16);
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        const lb_tensor on_host = {copy, LB_BF16, values[v].layout};
        double best = 1e9;
        for (int round = 0; round < 10; round++) {
            works[0] = work_of(&on_host, 0, MEMORY / 2), list[0] = &works[0];
            works[0].item.what = LB_MEASURE_STATISTICS;
            const double begin = now();
            reader->ops->submit(reader, list, 1, stream, true);
            reader->ops->collect(reader, NULL, true);
            if (now() - begin < best) best = now() - begin;
            free_work(&works[0]);
        }
        printf("bf16, %s: %.0f us\n", values[v].what, best * 1e6);
    }
}

/* Values of 4 KiB, of which ops have `at_once` each: one is copied aside, many are measured where they lie. */
static void time_small(int at_once)
{
    enum { SMALL = 16384 };
    for (int i = 0; i < SMALL; i++) {
        const lb_tensor on_host = {copy + 4096 * i, LB_BF16, {.ndim = 1, .shape = {2048}, .stride = {1}}};
        works[i] = work_of(&on_host, 4096 * (uint64_t)i, 4096);
        list[i] = &works[i];
    }
    const double begin = now();
    for (int i = 0; i < SMALL; i += at_once) reader->ops->submit(reader, list + i, (size_t)at_once, stream, true);
    const double queued = now();
    ASSERT_CUDA(cuda->StreamSynchronize(stream));
    const double read = now();
    reader->ops->collect(reader, NULL, true);
    printf("small: %.2f us of the host for each op of %d values; a value holds its stream for at most %.2f us,"
           " and is there after %.2f\n",
           (queued - begin) * 1e6 / (SMALL / at_once), at_once, (read - begin) * 1e6 / SMALL,
           (now() - begin) * 1e6 / SMALL);
    for (int i = 0; i < SMALL; i++) free_work(&works[i]);
}

static void rates(void **state)
{
    (void)state;
    enum { AT_ONCE = 16 };
    static const lb_dtype types[] = {LB_BF16, LB_F32, LB_U8, LB_I8, LB_BOOL};
    for (int t = 0; t < 2; t++)
        printf("large %s, any bits: %.0f GB/s\n", lb_dtype_name(types[t]), rate_of(types[t], AT_ONCE));
    for (int t = 0; t < 5; t++) {
        put_numbers(types[t]);
        printf("large %s, numbers: %.0f GB/s; one value alone %.0f GB/s\n", lb_dtype_name(types[t]),
               rate_of(types[t], AT_ONCE), rate_of(types[t], 1));
    }
    time_small(AT_ONCE);
    time_small(1);
}

static bool find_device(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CUcontext context;
    if (!library) return false;
#define FIND(NAME, symbol, parameters) *(void **)(void *)&program.NAME = dlsym(library, #symbol);
    PROGRAM(FIND)
#undef FIND
    return program.Init && program.Init(0) == CUDA_SUCCESS &&
           program.DevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
           program.CtxSetCurrent(context) == CUDA_SUCCESS;
}

static int set_up(void **state)
{
    (void)state;
    lb_err err = LB_ERR_INIT;
    char name[100] = "";
    const lb_kernel_image code = lb_kernel_image_get();
    lb_cuda_options options = LB_CUDA_OPTIONS_INIT;
    options.code = &code;
    cuda = lb_cuda_driver_get(&err);
    if (!cuda || lb_cuda_open(&reader, &options, &err) != LB_OK || !reader) {
        print_error("%s\n", err.message);
        return 1;
    }
    if (cuda->DeviceGetName) cuda->DeviceGetName(name, sizeof name, 0);
    printf("%s, driver %d, kernels %s\n", name, cuda->version, code.image ? "of nvcc" : "of NVRTC");
    uint64_t random = 1;
    void *pinned;
    if (cuda->StreamCreate(&stream, CU_STREAM_NON_BLOCKING) || cuda->MemAlloc(&memory, MEMORY) ||
        cuda->MemHostAlloc(&pinned, MEMORY, CU_MEMHOSTALLOC_PORTABLE))
        return 1;
    copy = pinned;
    for (size_t i = 0; i < MEMORY; i += 4) {
        const uint32_t word = (uint32_t)(draw(&random) << 1);
        memcpy(copy + i, &word, sizeof word);
    }
    return cuda->MemcpyHtoDAsync(memory, copy, MEMORY, stream) || program.CtxSynchronize() ? 1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    reader->ops->close(reader);
    return 0;
}

/* The name of a test: only that one; and how many bytes its values have at most. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_those_of_the_host),
        cmocka_unit_test(every_size_has_the_hosts_results),
        cmocka_unit_test(value_of_more_elements_than_32_bits_count_has_the_hosts_results),
        cmocka_unit_test(graph_gives_its_results_at_each_run),
        cmocka_unit_test(rates),
        cmocka_unit_test(waits),
    };
    if (!find_device()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (argc > 2) most_bytes = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
