/* An error of the driver ends measuring on that device with the reason, and the program goes on. */
#include "host_program.h"

#include <stdlib.h>
#include <string.h>

#define MEMORY (400u << 10)
enum { N = 30 };

/* Values of all kinds, on two streams, collected now and then; the graph's calls come besides. */
static void use(lb_device *reader, CUdeviceptr memory, value **values)
{
    CUstream streams[2] = {host_stream(), host_stream()};
    for (int i = 0; i < N; i++) {
        const int64_t elements = i == 7 ? (int64_t)MEMORY : 1 + 100 * i;
        values[i] = value_dense(memory, LB_U8, elements, i % 3 == 0);
        values[i]->work.awaited = i % 4 == 1;
        submit_values(reader, values + i, 1, streams[i % 2], true);
        reader->ops->order_before(reader, streams[0]);
        if (i % 10 == 9) reader->ops->collect(reader, i % 20 == 9 ? NULL : &values[i]->work, i % 20 == 9);
    }
    reader->ops->collect(reader, NULL, true);
}

/* Small rings, so that everything that is ever called is called. */
static const lb_cuda_options options = {
    .device_bytes = 160u << 10, .pinned_bytes = 64u << 10, .replays = 2, .unit = -1};

static void assert_lost(lb_device *reader, value **values, const char *reason)
{
    if (!strstr(reader->ops->why_lost(reader), reason))
        fail_msg("\"%s\" instead of \"%s\"", reader->ops->why_lost(reader), reason);
    int lost = 0;
    for (int i = 0; i < N; i++) {
        if (values[i]->work.state == LB_WORK_LOST)
            lost++;
        else
            value_assert_same(values[i]);
    }
    assert_true(lost > 0);
}

/* What the device says is what the reason says, and calls that come later answer at once. */
static void go_on_with_a_lost_device(lb_device *reader, CUdeviceptr memory)
{
    value *v = value_dense(memory, LB_F32, 10, true);
    submit_values(reader, &v, 1, NULL, true);
    assert_int_equal(v->work.state, LB_WORK_LOST);
    reader->ops->collect(reader, &v->work, true);
    reader->ops->order_before(reader, NULL);
    assert_false(reader->ops->is_capturing(reader, NULL));
    value_free(v);
}

static void free_all(value **values)
{
    for (int i = 0; i < N; i++) value_free(values[i]);
}

typedef struct fault {
    const char *symbol;
    int skip;
    CUresult result;
    const char *reason;
} fault;

static const fault faults[] = {
    {"cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)"},
    {"cuMemHostAlloc", 0, CUDA_ERROR_OUT_OF_MEMORY, "cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY"},
    {"cuMemsetD8Async", 0, CUDA_ERROR_UNKNOWN, "cuMemsetD8Async"},
    {"cuStreamSynchronize", 0, CUDA_ERROR_LAUNCH_FAILED, "cuStreamSynchronize: CUDA_ERROR_LAUNCH_FAILED"},
    {"cuLaunchKernel", 0, CUDA_ERROR_LAUNCH_FAILED, "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED"},
    {"cuLaunchKernel", 9, CUDA_ERROR_INVALID_VALUE, "cuLaunchKernel: CUDA_ERROR_INVALID_VALUE"},
    {"cuEventCreate", 0, CUDA_ERROR_OUT_OF_MEMORY, "cuEventCreate"},
    {"cuEventCreate", 5, CUDA_ERROR_OUT_OF_MEMORY, "cuEventCreate"},
    {"cuEventRecord", 3, CUDA_ERROR_UNKNOWN, "cuEventRecord"},
    {"cuEventQuery", 0, CUDA_ERROR_LAUNCH_FAILED, "cuEventQuery"},
    {"cuEventSynchronize", 0, CUDA_ERROR_ECC_UNCORRECTABLE, "cuEventSynchronize: CUDA_ERROR_ECC_UNCORRECTABLE"},
    {"cuMemcpyDtoHAsync_v2", 0, CUDA_ERROR_UNKNOWN, "cuMemcpyDtoHAsync"},
    {"cuMemcpyDtoHAsync_v2", 9, CUDA_ERROR_UNKNOWN, "cuMemcpyDtoHAsync"},
    {"cuMemcpyDtoDAsync_v2", 1, CUDA_ERROR_UNKNOWN, "cuMemcpyDtoDAsync"},
    {"cuStreamWaitEvent", 2, CUDA_ERROR_UNKNOWN, "cuStreamWaitEvent"},
    {"cuStreamIsCapturing", 4, CUDA_ERROR_UNKNOWN, "cuStreamIsCapturing"},
    {"cuCtxGetCurrent", 6, CUDA_ERROR_UNKNOWN, "cuCtxGetCurrent"},
    {"cuThreadExchangeStreamCaptureMode", 8, CUDA_ERROR_UNKNOWN, "cuThreadExchangeStreamCaptureMode"},
};

static void each_call_may_fail(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        host_begin(1, i, 10);
        lb_device *reader = host_reader(&options);
        standin_fail(faults[i].symbol, faults[i].skip, faults[i].result);
        const CUdeviceptr memory = host_memory(MEMORY, 1);
        value *values[N];
        use(reader, memory, values);
        assert_lost(reader, values, faults[i].reason);
        go_on_with_a_lost_device(reader, memory);
        host_synchronize(); /* the program's own calls work */
        reader->ops->close(reader);
        host_synchronize();
        assert_no_violation();
        free_all(values);
    }
}

/* A program that has filled its device leaves less than was asked for: it is measured with half of that, or half of the
 * half. */
static void with_less_memory_than_wished_values_are_measured(void **state)
{
    (void)state;
    host_begin(1, 1, 0);
    lb_device *reader =
        host_reader(&(lb_cuda_options){.device_bytes = 32u << 20, .pinned_bytes = 1u << 20, .replays = 2, .unit = -1});
    const CUdeviceptr memory = host_memory(MEMORY, 1);
    for (int i = 0; i < 2; i++) standin_fail("cuMemAlloc_v2", 0, CUDA_ERROR_OUT_OF_MEMORY);
    value *v = value_dense(memory, LB_F32, 1000, true);
    submit_values(reader, &v, 1, NULL, true);
    reader->ops->collect(reader, NULL, true);
    value_assert_same(v);
    uint64_t bytes, skipped;
    reader->ops->account(reader, &bytes, &skipped);
    assert_in_range(bytes, 4u << 20, 8u << 20);
    assert_int_equal(standin_device_bytes(0), MEMORY + bytes);
    value_free(v);
    host_end(reader);
}

/* The memory that the program lacks is not held by us. */
static void without_memory_nothing_is_held(void **state)
{
    (void)state;
    host_begin(1, 1, 0);
    lb_device *reader = host_reader(&options);
    const CUdeviceptr memory = host_memory(MEMORY, 1);
    standin_fail("cuMemHostAlloc", 0, CUDA_ERROR_OUT_OF_MEMORY);
    value *v = value_dense(memory, LB_F32, 10, false);
    submit_values(reader, &v, 1, NULL, true);
    assert_int_equal(v->work.state, LB_WORK_LOST);
    assert_int_equal(standin_device_bytes(0), MEMORY);
    value_free(v);
    reader->ops->close(reader);
    assert_no_violation();
}

/* A kernel of anybody fails, or the device goes: the context is in error from then on, ours and the program's. */
static void device_that_fails_is_lost(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        host_begin(1, 3, 20);
        lb_device *reader = host_reader(&options);
        const CUdeviceptr memory = host_memory(MEMORY, 1);
        const CUstream stream = host_stream();
        value *values[N];
        for (int k = 0; k < N; k++) values[k] = value_dense(memory, LB_F32, 10 + k, k % 3 == 0);
        submit_values(reader, values, 5, stream, true);
        reader->ops->collect(reader, NULL, true);
        if (i) standin_fail("kernel", 2, CUDA_ERROR_LAUNCH_FAILED);
        submit_values(reader, values + 5, 10, stream, true);
        submit_values(reader, values + 15, 5, stream, true);
        submit_values(reader, values + 20, 10, stream, true);
        if (!i) standin_lose(0, CUDA_ERROR_DEVICE_UNAVAILABLE);
        reader->ops->collect(reader, NULL, true);
        assert_lost(reader, values, i ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_DEVICE_UNAVAILABLE");
        reader->ops->close(reader);
        assert_no_violation();
        free_all(values);
    }
}

/* Whichever function meets the error: nobody waits for works of which nothing comes. */
static void works_under_way_learn_of_it(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        host_begin(1, 3, 0);
        lb_device *reader = host_reader(&options);
        const CUstream stream = host_stream();
        value *v = value_dense(host_memory(MEMORY, 1), LB_F32, 1000, true);
        submit_values(reader, &v, 1, stream, true);
        assert_int_equal(v->work.state, LB_WORK_UNDER_WAY);
        standin_fail(i < 2 ? "cuCtxGetCurrent" : "cuStreamIsCapturing", 0, CUDA_ERROR_UNKNOWN);
        if (i == 0) reader->ops->collect(reader, &v->work, true);
        if (i == 1) lb_cuda_order_after(reader, stream);
        if (i == 2) reader->ops->order_before(reader, host_stream());
        if (i == 3) reader->ops->is_capturing(reader, stream);
        assert_int_equal(v->work.state, LB_WORK_LOST);
        reader->ops->close(reader);
        value_free(v);
        host_end(NULL);
    }
}

static void other_device_goes_on(void **state)
{
    (void)state;
    host_begin(2, 3, 20);
    lb_device *readers[2];
    value *v[2];
    for (int d = 0; d < 2; d++) {
        assert_int_equal(cuCtxSetCurrent(host_context(d)), CUDA_SUCCESS);
        readers[d] = host_reader(&options);
        v[d] = value_dense(host_memory(MEMORY, 1), LB_F32, 1000, true);
        submit_values(readers[d], &v[d], 1, NULL, true);
    }
    standin_lose(0, CUDA_ERROR_DEVICE_UNAVAILABLE);
    for (int d = 0; d < 2; d++) readers[d]->ops->collect(readers[d], NULL, true);
    assert_int_equal(v[0]->work.state, LB_WORK_LOST);
    value_assert_same(v[1]);
    readers[0]->ops->close(readers[0]);
    value_free(v[0]);
    value_free(v[1]);
    host_end(readers[1]);
}

/* As a green context's is, or one that a library beside the program made. */
static void stream_of_another_context_costs_its_values_alone(void **state)
{
    (void)state;
    host_begin(2, 3, 20);
    assert_int_equal(cuCtxSetCurrent(host_context(1)), CUDA_SUCCESS);
    const CUstream foreign = host_stream();
    assert_int_equal(cuCtxSetCurrent(host_context(0)), CUDA_SUCCESS);
    lb_device *reader = host_reader(&options);
    const CUdeviceptr memory = host_memory(MEMORY, 1);
    value *v[3];
    for (int i = 0; i < 3; i++) v[i] = value_dense(memory, LB_F32, 1000 + i, true);
    submit_values(reader, &v[0], 1, NULL, false);
    submit_values(reader, &v[1], 1, foreign, true);
    assert_int_equal(v[1]->work.state, LB_WORK_SKIPPED);
    assert_false(reader->ops->is_capturing(reader, foreign));
    reader->ops->order_before(reader, foreign); /* it may write from here on */
    memset(standin_twin(memory, MEMORY), 0, MEMORY);
    reader->ops->collect(reader, NULL, true);
    value_assert_same(v[0]);
    value_free(v[2]);
    v[2] = value_dense(memory, LB_F32, 500, true);
    submit_values(reader, &v[2], 1, NULL, true);
    reader->ops->collect(reader, NULL, true);
    value_assert_same(v[2]);
    assert_int_equal(skipped_by(reader), 1);
    for (int i = 0; i < 3; i++) value_free(v[i]);
    host_end(reader);
}

static void device_that_cannot_be_opened_says_why(void **state)
{
    (void)state;
    static const fault at_open[] = {
        {"cuModuleLoadData", 0, CUDA_ERROR_OUT_OF_MEMORY, "cuModuleLoadData: CUDA_ERROR_OUT_OF_MEMORY"},
        {"cuModuleGetFunction", 1, CUDA_ERROR_NOT_FOUND, "cuModuleGetFunction"},
        {"cuStreamCreate", 0, CUDA_ERROR_OUT_OF_MEMORY, "cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY"},
        {"cuCtxGetDevice", 0, CUDA_ERROR_UNKNOWN, "cuCtxGetDevice"},
    };
    for (size_t i = 0; i < sizeof at_open / sizeof *at_open; i++) {
        host_begin(1, 1, 0);
        standin_fail(at_open[i].symbol, at_open[i].skip, at_open[i].result);
        lb_cuda_options all = options;
        all.code = &any_kernels;
        lb_device *reader;
        lb_err err = LB_ERR_INIT;
        assert_true(lb_cuda_open(&reader, &all, &err) != LB_OK);
        assert_null(reader);
        if (!strstr(err.message, at_open[i].reason)) fail_msg("%s", err.message);
        host_end(NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_may_fail),
        cmocka_unit_test(with_less_memory_than_wished_values_are_measured),
        cmocka_unit_test(without_memory_nothing_is_held),
        cmocka_unit_test(device_that_fails_is_lost),
        cmocka_unit_test(works_under_way_learn_of_it),
        cmocka_unit_test(other_device_goes_on),
        cmocka_unit_test(stream_of_another_context_costs_its_values_alone),
        cmocka_unit_test(device_that_cannot_be_opened_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
