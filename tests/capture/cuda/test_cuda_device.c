/* Values in device memory are measured and copied as lb_measure and memcpy would, whatever the order in which streams
 * run, and the host waits where it may and nowhere else. All on the stand-in driver. */
#include "host_program.h"
#include "device_kernels.h"
#include "cuda/cuda_inside.h"
#include "device/digest_kernel.h"

#include <lastbit/capture.h>

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMORY (600u << 10)

static void collect_all(lb_device *reader)
{
    reader->ops->collect(reader, NULL, true);
}

static void results_are_those_of_the_host(void **state)
{
    (void)state;
    enum { N = 60 };
    for (uint64_t seed = 1; seed <= 3; seed++) {
        host_begin(1, seed, seed % 2 ? 0 : 100);
        lb_device *reader = host_reader(NULL);
        const CUdeviceptr memory = host_memory(MEMORY, seed);
        CUstream streams[3] = {NULL, host_stream(), host_stream()};
        value *values[N];
        uint64_t random = seed;
        for (size_t at = 0; at < N;) {
            size_t n = 1 + draw(&random) % 100;
            if (n > N - at) n = N - at;
            for (size_t i = 0; i < n; i++) values[at + i] = value_drawn(memory, MEMORY, &random);
            submit_values(reader, values + at, n, streams[draw(&random) % 3], true);
            if (draw(&random) % 2) reader->ops->collect(reader, NULL, false);
            at += n;
        }
        collect_all(reader);
        for (size_t i = 0; i < N; i++) {
            value_assert_same(values[i]);
            value_free(values[i]);
        }
        assert_int_equal(skipped_by(reader), 0);
        host_end(reader);
    }
}

static void value_of_many_units_is_measured(void **state)
{
    (void)state;
    const size_t size = 2u << 20;
    host_begin(1, 5, 0);
    lb_device *reader = host_reader(NULL);
    value *v = value_dense(host_memory(size, 5), LB_U8, (int64_t)size - 1, false);
    submit_values(reader, &v, 1, NULL, false);
    collect_all(reader);
    value_assert_same(v);
    value_free(v);
    host_end(reader);
}

static void one_work_is_waited_for_and_later_ones_are_not(void **state)
{
    (void)state;
    host_begin(1, 3, 0);
    lb_device *reader = host_reader(NULL);
    const CUdeviceptr memory = host_memory(MEMORY, 3);
    value *first = value_dense(memory, LB_F32, 5000, true), *second = value_dense(memory, LB_F32, 6000, false);
    first->work.awaited = second->work.awaited = true; /* or they would be measured together */
    submit_values(reader, &first, 1, host_stream(), false);
    const CUstream stream = host_stream();
    submit_values(reader, &second, 1, stream, false);
    reader->ops->collect(reader, &first->work, true);
    value_assert_same(first);
    assert_int_equal(second->work.state, LB_WORK_UNDER_WAY);
    collect_all(reader);
    value_assert_same(second);
    reader->ops->collect(reader, &second->work, true); /* which is done */
    value_free(first);
    value_free(second);
    host_end(reader);
}

static void bytes_alone_come(void **state)
{
    (void)state;
    host_begin(1, 3, 20);
    lb_device *reader = host_reader(NULL);
    value *v = value_dense(host_memory(MEMORY, 3), LB_U8, MEMORY, true);
    v->work.measured = false;
    submit_values(reader, &v, 1, NULL, false);
    collect_all(reader);
    value_assert_same(v);
    assert_int_equal(standin_calls("cuLaunchKernel"), 0);
    value_free(v);
    host_end(reader);
}

/* ---- the host goes on -------------------------------------------------------------------------------------------- */

/* The stand-in calls it a violation when the host waits for a device that is held. */
static void host_does_not_wait_inside_a_step(void **state)
{
    (void)state;
    host_begin(1, 9, 0);
    lb_device *reader = host_reader(NULL);
    const CUdeviceptr memory = host_memory(MEMORY, 9);
    CUstream streams[2] = {host_stream(), host_stream()};
    enum { N = 400 };
    value *values[N];
    uint64_t random = 9;
    for (int i = 0; i < N; i++)
        values[i] = value_dense(memory, LB_BF16, 1 + (int64_t)(draw(&random) % 2000), i % 20 == 0);
    submit_values(reader, values, 1, streams[0], false); /* memory is taken with the first value */
    const int waits = standin_waits();
    standin_hold();
    for (int i = 1; i < N; i++) {
        submit_values(reader, values + i, 1, streams[i % 2], false);
        reader->ops->order_before(reader, streams[(i + 1) % 2]);
        if (i % 16 == 0) reader->ops->collect(reader, NULL, false);
    }
    assert_int_equal(standin_waits(), waits);
    assert_int_equal(values[N - 1]->work.state, LB_WORK_UNDER_WAY);
    standin_let_go();
    collect_all(reader);
    for (int i = 0; i < N; i++) {
        value_assert_same(values[i]);
        value_free(values[i]);
    }
    host_end(reader);
}

static const lb_cuda_options small = {.device_bytes = 256u << 10, .pinned_bytes = 16u << 10, .replays = 2, .unit = -1};

static void full_ring_skips_and_counts(void **state)
{
    (void)state;
    host_begin(1, 4, 0);
    lb_device *reader = host_reader(&small);
    const CUdeviceptr memory = host_memory(MEMORY, 4);
    const CUstream stream = host_stream();
    enum { N = 200 };
    value *values[N];
    for (int i = 0; i < N; i++) values[i] = value_dense(memory, LB_F32, 100 + i, i % 4 == 0);
    submit_values(reader, values, 1, stream, false);
    standin_hold();
    for (int i = 1; i < N; i++) submit_values(reader, values + i, 1, stream, false);
    standin_let_go();
    collect_all(reader);
    uint64_t skipped = 0;
    for (int i = 0; i < N; i++) {
        if (values[i]->work.state == LB_WORK_SKIPPED)
            skipped++;
        else
            value_assert_same(values[i]);
        value_free(values[i]);
    }
    assert_in_range(skipped, 1, N - 10);
    assert_int_equal(skipped_by(reader), skipped);
    host_end(reader);
}

static void full_ring_waits_where_it_may(void **state)
{
    (void)state;
    host_begin(1, 4, 30);
    lb_device *reader = host_reader(&small);
    const CUdeviceptr memory = host_memory(MEMORY, 4);
    CUstream streams[2] = {host_stream(), host_stream()};
    enum { N = 200 };
    value *values[N];
    for (int i = 0; i < N; i++) values[i] = value_dense(memory, LB_F32, 100 + i, i % 4 == 0);
    for (int i = 0; i < N; i++) submit_values(reader, values + i, 1, streams[i % 2], true);
    collect_all(reader);
    for (int i = 0; i < N; i++) {
        value_assert_same(values[i]);
        value_free(values[i]);
    }
    assert_int_equal(skipped_by(reader), 0);
    host_end(reader);
}

/* Before CUDA 12. The event behind a copy would become that of the next stream that has the handle. */
static void nothing_is_copied_aside_where_streams_have_no_ids(void **state)
{
    (void)state;
    for (int nameless = 0; nameless < 2; nameless++) {
        host_begin(1, 4, 0);
        lb_device *reader = host_reader(NULL);
        lb_cuda *device = (lb_cuda *)reader;
        lb_cuda_driver driver = *device->cuda;
        if (nameless) driver.StreamGetId = NULL;
        device->cuda = &driver;
        value *v = value_dense(host_memory(MEMORY, 4), LB_F32, 300, false);
        submit_values(reader, &v, 1, host_stream(), false);
        assert_int_equal(standin_calls("cuMemcpyDtoDAsync_v2"), !nameless);
        collect_all(reader);
        value_assert_same(v);
        value_free(v);
        host_end(reader);
    }
}

/* Its room in the ring is the oldest: what comes behind would find none, however often that is fetched. */
static void a_value_that_no_other_joins_is_measured_when_room_is_short(void **state)
{
    (void)state;
    host_begin(1, 4, 0);
    lb_device *reader = host_reader(&small);
    const CUdeviceptr memory = host_memory(MEMORY, 4);
    const CUstream stream = host_stream();
    value *alone = value_dense(memory, LB_F32, 300, true);
    submit_values(reader, &alone, 1, stream, false);
    enum { N = 40 };
    value *others[N];
    for (int i = 0; i < N; i++) {
        others[i] = value_dense(memory, LB_F32, 900, true);
        others[i]->work.awaited = true;
        submit_values(reader, &others[i], 1, stream, false);
        reader->ops->collect(reader, NULL, false);
        host_synchronize();
    }
    assert_int_equal(alone->work.state, LB_WORK_DONE); /* and nothing has waited for it */
    collect_all(reader);
    for (int i = 0; i < N; i++) {
        value_assert_same(others[i]);
        value_free(others[i]);
    }
    assert_int_equal(skipped_by(reader), 0);
    value_assert_same(alone);
    value_free(alone);
    host_end(reader);
}

/* More bytes than the pinned ring has: through it in turns, or not at all. */
static void bytes_that_no_ring_holds(void **state)
{
    (void)state;
    host_begin(1, 6, 10);
    lb_device *reader = host_reader(&small);
    const CUdeviceptr memory = host_memory(MEMORY, 6);
    value *before = value_dense(memory, LB_F32, 100, true), *large = value_dense(memory, LB_F32, MEMORY / 4 - 3, true);
    value *both[] = {before, large}, *again = value_dense(memory, LB_F32, MEMORY / 4, true);
    submit_values(reader, both, 2, NULL, true);
    submit_values(reader, &again, 1, NULL, false);
    assert_int_equal(again->work.state, LB_WORK_SKIPPED);
    collect_all(reader);
    value_assert_same(before);
    value_assert_same(large);
    value_free(before);
    value_free(large);
    value_free(again);
    host_end(reader);
}

static void memory_of_the_device_is_bounded(void **state)
{
    (void)state;
    host_begin(1, 6, 0);
    lb_device *reader = host_reader(&small);
    uint64_t memory_bytes, skipped;
    const size_t before = standin_device_bytes(0);
    reader->ops->account(reader, &memory_bytes, &skipped);
    assert_int_equal(memory_bytes, 0); /* nothing before the first value */
    assert_int_equal(before, 0);
    value *v = value_dense(host_memory(400, 1), LB_F32, 100, false);
    submit_values(reader, &v, 1, NULL, false);
    reader->ops->account(reader, &memory_bytes, &skipped);
    assert_int_equal(memory_bytes, standin_device_bytes(0) - 400);
    assert_in_range(memory_bytes, small.device_bytes / 2, small.device_bytes);
    reader->ops->close(reader);
    value_assert_same(v);
    assert_int_equal(standin_device_bytes(0), 400);
    assert_int_equal(standin_pinned_bytes(), 0);
    value_free(v);
    host_end(NULL);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Memory is taken with the first value, and not by a test that counts on what waits. */
static void warm(lb_device *reader)
{
    value *v = value_dense(host_memory(4, 1), LB_F32, 1, false);
    submit_values(reader, &v, 1, NULL, true);
    collect_all(reader);
    value_assert_same(v);
    value_free(v);
}

/* Made on one stream, measured on another that waits for it by an event. */
static void side_streams_are_ordered_by_events(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        host_begin(1, seed, 200);
        lb_device *reader = host_reader(NULL);
        const CUdeviceptr made = host_memory(64 << 10, 1), final = host_memory(64 << 10, 2);
        const CUstream maker = host_stream(), side = host_stream();
        const CUevent event = host_event();
        value *v = value_dense(final, LB_F32, 16 << 10, true);
        v->work.item.tensor.data = (void *)(uintptr_t)made;
        v->work.item.dense = (const void *)(uintptr_t)made;
        assert_int_equal(cuMemcpyDtoDAsync_v2(made, final, 64 << 10, maker), CUDA_SUCCESS);
        assert_int_equal(cuEventRecord(event, maker), CUDA_SUCCESS);
        assert_int_equal(cuStreamWaitEvent(side, event, 0), CUDA_SUCCESS);
        submit_values(reader, &v, 1, side, false);
        collect_all(reader);
        value_assert_same(v);
        value_free(v);
        cuEventDestroy_v2(event);
        host_end(reader);
    }
}

/* Reads are under way when the same memory is written: behind them on their own stream, on another one after
 * order_before. */
static void memory_used_again_is_written_after_the_read(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        host_begin(1, seed, 200);
        lb_device *reader = host_reader(NULL);
        const CUdeviceptr memory = host_memory(64 << 10, seed), other = host_memory(64 << 10, seed + 100);
        const CUstream stream = host_stream(), side = host_stream();
        value *values[] = {value_dense(memory, LB_F32, 16 << 10, true), value_dense(other, LB_BF16, 32 << 10, true)};
        warm(reader);
        standin_hold();
        submit_values(reader, values, 2, stream, false);
        assert_int_equal(cuMemsetD8Async(memory, 1, 64 << 10, stream), CUDA_SUCCESS);
        reader->ops->order_before(reader, side);
        assert_int_equal(cuMemsetD8Async(other, 2, 64 << 10, side), CUDA_SUCCESS);
        standin_let_go();
        collect_all(reader);
        for (int i = 0; i < 2; i++) {
            value_assert_same(values[i]);
            value_free(values[i]);
        }
        host_end(reader);
    }
}

/* ---- devices, contexts, processes -------------------------------------------------------------------------------- */

static void two_devices_have_a_reader_each(void **state)
{
    (void)state;
    host_begin(2, 8, 50);
    lb_device *readers[2];
    CUdeviceptr memory[2];
    CUstream streams[2];
    for (int d = 0; d < 2; d++) {
        assert_int_equal(cuCtxSetCurrent(host_context(d)), CUDA_SUCCESS);
        readers[d] = host_reader(NULL);
        memory[d] = host_memory(MEMORY, 8);
        streams[d] = host_stream();
    }
    value *values[40];
    for (int i = 0; i < 40; i++) values[i] = value_dense(memory[i % 2], LB_F32, 1000 * i + 1, i % 5 == 0);
    for (int i = 0; i < 40; i++) submit_values(readers[i % 2], values + i, 1, streams[i % 2], true);
    for (int d = 0; d < 2; d++) collect_all(readers[d]);
    CUcontext current;
    assert_int_equal(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    assert_ptr_equal(current, host_context(1)); /* the program's, as before */
    for (int i = 0; i < 40; i++) {
        value_assert_same(values[i]);
        value_free(values[i]);
    }
    readers[0]->ops->close(readers[0]);
    host_end(readers[1]);
}

static void thread_without_context_has_no_reader(void **state)
{
    (void)state;
    host_begin(1, 1, 0);
    assert_int_equal(cuCtxSetCurrent(NULL), CUDA_SUCCESS);
    lb_device *reader = (lb_device *)&reader;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_cuda_open(&reader, &small, &err), LB_OK);
    assert_null(reader);
}

static CUcontext current_context(void)
{
    CUcontext current;
    assert_int_equal(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    return current;
}

static void device_is_read_in_the_primary_context_that_the_program_made_for_it(void **state)
{
    (void)state;
    host_begin(2, 1, 0);
    lb_cuda_options options = small;
    options.code = &any_kernels;
    options.unit = 1;
    lb_device *reader;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_cuda_open(&reader, &options, &err), LB_OK);
    assert_null(reader); /* nobody has used device 1 yet, and none is made for it */
    assert_int_equal(standin_users(1), 0);

    CUcontext first = current_context(), second = host_context(1);
    assert_int_equal(cuCtxSetCurrent(second), CUDA_SUCCESS);
    const CUdeviceptr memory = host_memory(MEMORY, 8);
    CUstream stream = host_stream();
    for (int away = 0; away < 2;
         away++) { /* the program is at another device, as with layers spread over several; or in no context */
        assert_int_equal(cuCtxSetCurrent(away ? NULL : first), CUDA_SUCCESS);
        assert_int_equal(lb_cuda_open(&reader, &options, &err), LB_OK);
        assert_non_null(reader);
        assert_int_equal(standin_users(1), 2);
        value *v = value_dense(memory, LB_F32, 1000, true);
        submit_values(reader, &v, 1, stream, true);
        collect_all(reader);
        value_assert_same(v);
        value_free(v);
        assert_ptr_equal(current_context(), away ? NULL : first);
        reader->ops->close(reader);
        assert_int_equal(standin_users(1), 1);
    }
    assert_int_equal(cuCtxSetCurrent(second), CUDA_SUCCESS);
    assert_int_equal(lb_cuda_open(&reader, &options, &err), LB_OK);
    assert_int_equal(standin_users(1), 1); /* the current one is borrowed */
    host_end(reader);
}

static void rate_of_a_device_is_measured_and_leaves_nothing(void **state)
{
    (void)state;
    host_begin(1, 1, 0);
    lb_device *reader = host_reader(NULL);
    lb_err err = LB_ERR_INIT;
    double rate = -1;
    assert_int_equal(lb_cuda_check(reader, &err), LB_OK);
    const uint64_t before = standin_device_bytes(0);
    assert_int_equal(lb_cuda_rate(reader, 256u << 10, &rate, &err), LB_OK);
    assert_true(rate > 0);
    assert_int_equal(standin_device_bytes(0), before);
    standin_fail("cuLaunchKernel", 0, CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(lb_cuda_rate(reader, 256u << 10, &rate, &err), LB_ERR_IO);
    assert_non_null(strstr(err.message, "CUDA_ERROR_LAUNCH_FAILED"));
    reader->ops->close(reader);
    assert_no_violation();
}

static void thread_without_context_has_no_rate(void **state)
{
    (void)state;
    host_begin(1, 1, 0);
    assert_int_equal(cuCtxSetCurrent(NULL), CUDA_SUCCESS);
    lb_err err = LB_ERR_INIT;
    double rate = -1;
    assert_int_equal(lb_measuring_rate(&rate, &err), LB_ERR_STATE);
    assert_true(rate == 0 && strstr(err.message, "no context"));
}

/* A kernel that does its work, and adds a little to the sum of a result. */
static bool lie(const standin_launch *how)
{
    lb_kernel_launch launch;
    memcpy(&launch, how->parameters[0], sizeof launch);
    if (!device_kernels[0].run(how)) return false;
    lb_kernel_result *results = standin_twin(launch.results, launch.n_results * sizeof *results);
    for (uint64_t i = 0; i < launch.n_results; i++) results[i].sum += 1;
    return true;
}

static void device_that_finds_other_numbers_is_refused(void **state)
{
    (void)state;
    host_begin(1, 1, 0);
    lb_err err = LB_ERR_INIT;
    lb_device *reader = host_reader(NULL);
    assert_int_equal(lb_cuda_check(reader, &err), LB_OK);
    assert_in_range(standin_calls("cuMemcpyDtoDAsync_v2"), 20, 60); /* cases that were copied aside, and others */
    host_end(reader);
    host_begin(1, 1, 0);
    standin_kernel lying[2] = {device_kernels[0], device_kernels[1]};
    lying[0].run = lie;
    standin_kernels(lying, 2);
    reader = host_reader(NULL);
    assert_int_equal(lb_cuda_check(reader, &err), LB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "other sums than the host"));
    value *v = value_dense(host_memory(400, 1), LB_F32, 100, false);
    submit_values(reader, &v, 1, NULL, true);
    assert_int_equal(v->work.state, LB_WORK_LOST);
    value_free(v);
    reader->ops->close(reader);
    host_end(NULL);
}

static void options_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    host_begin(1, 1, 0);
    lb_device *reader;
    lb_err err = LB_ERR_INIT;
    const lb_cuda_options none = {.device_bytes = 1000, .pinned_bytes = 1 << 20, .replays = 1, .unit = -1};
    assert_int_equal(lb_cuda_open(&reader, &none, &err), LB_ERR_INVALID);
    assert_null(reader);
    assert_non_null(strstr(err.message, "64 KiB"));
}

/* The child frees what is the host's, and calls nothing of a driver that it does not have. */
static void forked_child_abandons_and_the_parent_goes_on(void **state)
{
    (void)state;
    host_begin(1, 2, 0);
    lb_device *reader = host_reader(NULL);
    const CUdeviceptr memory = host_memory(MEMORY, 2);
    value *v = value_dense(memory, LB_F32, 5000, true);
    submit_values(reader, &v, 1, host_stream(), false);
    const pid_t child = fork();
    if (child == 0) {
        reader->ops->abandon(reader);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    collect_all(reader);
    value_assert_same(v);
    value_free(v);
    host_end(reader);
}

/* Reads that are queued on a stream stay under way when it is destroyed. One that is made then may get its handle, and
 * is ordered behind them like any other. */
static void stream_under_the_handle_of_another_waits_for_its_reads(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        host_begin(1, seed, 200);
        lb_device *reader = host_reader(NULL);
        const CUdeviceptr memory = host_memory(64 << 10, seed);
        const CUstream before = host_stream();
        CUstream stream;
        value *v = value_dense(memory, LB_F32, 16 << 10, true);
        warm(reader);
        standin_hold();
        submit_values(reader, &v, 1, before, false);
        assert_int_equal(cuStreamDestroy_v2(before), CUDA_SUCCESS);
        assert_int_equal(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        assert_ptr_equal(stream, before);
        reader->ops->order_before(reader, stream);
        assert_int_equal(cuMemsetD8Async(memory, 1, 64 << 10, stream), CUDA_SUCCESS);
        standin_let_go();
        collect_all(reader);
        value_assert_same(v);
        value_free(v);
        host_end(reader);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_under_the_handle_of_another_waits_for_its_reads),
        cmocka_unit_test(results_are_those_of_the_host),
        cmocka_unit_test(value_of_many_units_is_measured),
        cmocka_unit_test(one_work_is_waited_for_and_later_ones_are_not),
        cmocka_unit_test(bytes_alone_come),
        cmocka_unit_test(host_does_not_wait_inside_a_step),
        cmocka_unit_test(full_ring_skips_and_counts),
        cmocka_unit_test(full_ring_waits_where_it_may),
        cmocka_unit_test(nothing_is_copied_aside_where_streams_have_no_ids),
        cmocka_unit_test(a_value_that_no_other_joins_is_measured_when_room_is_short),
        cmocka_unit_test(bytes_that_no_ring_holds),
        cmocka_unit_test(memory_of_the_device_is_bounded),
        cmocka_unit_test(side_streams_are_ordered_by_events),
        cmocka_unit_test(memory_used_again_is_written_after_the_read),
        cmocka_unit_test(two_devices_have_a_reader_each),
        cmocka_unit_test(thread_without_context_has_no_reader),
        cmocka_unit_test(device_is_read_in_the_primary_context_that_the_program_made_for_it),
        cmocka_unit_test(rate_of_a_device_is_measured_and_leaves_nothing),
        cmocka_unit_test(thread_without_context_has_no_rate),
        cmocka_unit_test(device_that_finds_other_numbers_is_refused),
        cmocka_unit_test(options_that_make_no_sense_are_refused),
        cmocka_unit_test(forked_child_abandons_and_the_parent_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
