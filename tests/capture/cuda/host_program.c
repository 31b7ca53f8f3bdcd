/* See host_program.h. */
#include "host_program.h"
#include "device_kernels.h"

#include <stdlib.h>
#include <string.h>

#define ASSERT_CUDA(call) assert_int_equal(call, CUDA_SUCCESS)

uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull; /* Knuth's MMIX constants */
    return *state >> 33;
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

void host_begin(int devices, uint64_t seed, unsigned delay_us)
{
    standin_begin(&(standin_setup){.devices = devices, .seed = seed, .delay_us = delay_us});
    standin_kernels(device_kernels, n_device_kernels);
    ASSERT_CUDA(cuInit(0));
    ASSERT_CUDA(cuCtxSetCurrent(host_context(0)));
}

CUcontext host_context(int device)
{
    CUcontext context;
    ASSERT_CUDA(cuDevicePrimaryCtxRetain(&context, device));
    return context;
}

CUstream host_stream(void)
{
    CUstream stream;
    ASSERT_CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

CUevent host_event(void)
{
    CUevent event;
    ASSERT_CUDA(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

CUdeviceptr host_memory(size_t bytes, uint64_t seed)
{
    CUdeviceptr at;
    ASSERT_CUDA(cuMemAlloc_v2(&at, bytes));
    char *twin = standin_twin(at, bytes);
    for (size_t i = 0; i + sizeof(float) <= bytes; i += sizeof(float)) {
        const uint64_t word = draw(&seed);
        const float x = word % 5003 == 0 ? (float)(1 / 0.0)
                        : word % 13 == 0 ? 0.0f
                                         : (float)(int64_t)(word - (1u << 30)) * 0x1p-28f;
        memcpy(twin + i, &x, sizeof x);
    }
    return at;
}

void host_synchronize(void)
{
    ASSERT_CUDA(cuCtxSynchronize());
}

/* The stand-in finds kernels by their names, whatever they are loaded from. */
const lb_kernel_image any_kernels = {.image = "any"};

lb_device *host_reader(const lb_cuda_options *options)
{
    lb_cuda_options all = {.device_bytes = 8u << 20, .pinned_bytes = 1u << 20, .replays = 4, .unit = -1};
    lb_err err = LB_ERR_INIT;
    lb_device *reader;
    if (options) all = *options;
    all.code = &any_kernels;
    if (lb_cuda_open(&reader, &all, &err) != LB_OK) fail_msg("%s", err.message);
    assert_non_null(reader);
    return reader;
}

void assert_no_violation(void)
{
    const char *first;
    if (standin_violations(&first)) fail_msg("%s", first);
}

void host_end(lb_device *reader)
{
    if (reader) {
        if (reader->ops->why_lost(reader)[0]) fail_msg("%s", reader->ops->why_lost(reader));
        reader->ops->close(reader);
    }
    host_synchronize();
    assert_no_violation();
}

uint64_t skipped_by(const lb_device *reader)
{
    uint64_t memory, skipped;
    reader->ops->account(reader, &memory, &skipped);
    return skipped;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* The same item over the twin, where the host may read. */
static void expect(value *v)
{
    lb_measuring twin = v->work.item;
    const char *dense = standin_twin((CUdeviceptr)(uintptr_t)twin.dense, twin.dense_bytes);
    assert_non_null(dense);
    twin.tensor.data = (char *)(uintptr_t)dense + ((const char *)twin.tensor.data - (const char *)twin.dense);
    twin.dense = dense;
    assert_true(lb_measure(&twin, 1));
    v->expected = twin.out;
    if (!v->work.bytes) return;
    v->expected_bytes = malloc(twin.dense_bytes + 1);
    assert_non_null(v->expected_bytes);
    memcpy(v->expected_bytes, dense, twin.dense_bytes);
}

value *value_of(CUdeviceptr memory, int64_t first, lb_dtype dtype, const lb_layout *layout, bool bytes)
{
    value *v = calloc(1, sizeof *v);
    assert_non_null(v);
    const int64_t bits = (int64_t)lb_dtype_bits(dtype);
    int64_t from, to;
    assert_int_equal(lb_layout_dense_range(layout, &from, &to, NULL), LB_OK);
    char *const storage =
        (char *)(uintptr_t)memory + first * bits / 8; /* element 0 of the storage: layout->offset lies behind */
    v->work = (lb_device_work){.measured = true};
    lb_measuring *item = &v->work.item;
    item->tensor = (lb_tensor){storage + layout->offset * bits / 8, dtype, *layout};
    item->dense = storage + from * bits / 8;
    item->dense_bytes = lb_dtype_bytes(dtype, (size_t)(to - from));
    item->what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB;
    if (bytes) assert_non_null(v->work.bytes = malloc(item->dense_bytes + 1));
    expect(v);
    return v;
}

value *value_dense(CUdeviceptr memory, lb_dtype dtype, int64_t elements, bool bytes)
{
    const lb_layout layout = lb_layout_contiguous(1, &elements);
    return value_of(memory, 0, dtype, &layout, bytes);
}

static const lb_dtype drawn_types[] = {LB_F32, LB_BF16, LB_F16,    LB_F64, LB_I64, LB_U8,
                                       LB_I8,  LB_BOOL, LB_E4M3FN, LB_C64, LB_I32, LB_E2M1};

value *value_drawn(CUdeviceptr memory, size_t size, uint64_t *seed)
{
    const lb_dtype dtype = drawn_types[draw(seed) % (sizeof drawn_types / sizeof *drawn_types)];
    const int64_t room = (int64_t)(size * 8 / lb_dtype_bits(dtype)), most = draw(seed) % 4 ? 3000 : room;
    const int64_t n = 1 + (int64_t)(draw(seed) % (uint64_t)(most < room ? most : room));
    const int64_t rows = 1 + (int64_t)(draw(seed) % 40), columns = n / rows > 0 ? n / rows : 1;
    const bool bytes = draw(seed) % 3 == 0;
    lb_layout layout = lb_layout_contiguous(1, &n);
    const uint64_t kind = dtype == LB_E2M1 || columns * rows > room ? 0 : draw(seed) % 6;
    if (kind == 1) layout = (lb_layout){.ndim = 2, .shape = {columns, rows}, .stride = {1, columns}};
    if (kind == 2) layout = (lb_layout){.ndim = 3, .shape = {rows, 4, columns}, .stride = {columns, 0, 1}};
    if (kind == 3) layout = (lb_layout){.ndim = 2, .shape = {rows, (columns + 1) / 2}, .stride = {columns, 2}};
    if (kind == 4) layout = (lb_layout){.ndim = 2, .shape = {rows, 0}, .stride = {1, 1}};
    if (kind == 5) layout = (lb_layout){.ndim = 0};
    const int64_t largest = kind == 0 ? n : rows * columns;
    const int64_t width = (int64_t)lb_dtype_bits(dtype) < 8 ? 0 : 1;
    return value_of(memory, width * (int64_t)(draw(seed) % (uint64_t)(room - largest + 1)), dtype, &layout, bytes);
}

void measured_assert_same(const lb_measured *a, const lb_measured *b)
{
    assert_memory_equal(&a->logical, &b->logical, sizeof a->logical);
    assert_memory_equal(&a->blob, &b->blob, sizeof a->blob);
    assert_memory_equal(&a->statistics, &b->statistics, sizeof a->statistics);
}

void value_assert_same(const value *v)
{
    const lb_measured *found = &v->work.item.out, *expected = &v->expected;
    assert_int_equal(v->work.state, LB_WORK_DONE);
    if (v->work.measured) {
        measured_assert_same(found, expected);
        assert_int_equal(found->n_leaves, expected->n_leaves);
        assert_int_equal(found->leaves != NULL, expected->leaves != NULL);
        if (found->leaves)
            assert_memory_equal(found->leaves, expected->leaves, found->n_leaves * sizeof found->leaves[0]);
    }
    if (v->work.bytes) assert_memory_equal(v->work.bytes, v->expected_bytes, v->work.item.dense_bytes);
}

void value_free(value *v)
{
    free(v->work.item.out.leaves);
    free(v->expected.leaves);
    free(v->work.bytes);
    free(v->expected_bytes);
    free(v);
}

void submit_values(lb_device *reader, value *const *values, size_t n, CUstream stream, bool may_wait)
{
    lb_device_work **works = malloc(n * sizeof(lb_device_work *));
    assert_non_null(works);
    for (size_t i = 0; i < n; i++) works[i] = &values[i]->work;
    reader->ops->submit(reader, works, n, stream, may_wait);
    free(works);
}
