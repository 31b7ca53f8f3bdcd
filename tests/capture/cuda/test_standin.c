/* The stand-in driver does what a driver does where tests of capture/cuda lean on it. */
#include "cmocka_first.h"
#include "standin.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static CUcontext context;

static void begin(unsigned delay_us)
{
    standin_begin(&(standin_setup){.devices = 2, .seed = 7, .delay_us = delay_us});
    assert_int_equal(cuInit(0), CUDA_SUCCESS);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    assert_int_equal(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

static CUdeviceptr device_bytes(size_t n)
{
    CUdeviceptr at;
    assert_int_equal(cuMemAlloc_v2(&at, n), CUDA_SUCCESS);
    return at;
}

static CUstream new_stream(void)
{
    CUstream s;
    assert_int_equal(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return s;
}

static void assert_no_violation(void)
{
    const char *first;
    if (standin_violations(&first)) fail_msg("%s", first);
}

static void device_memory_is_none_of_the_hosts(void **state)
{
    (void)state;
    begin(0);
    const CUdeviceptr at = device_bytes(100);
    assert_non_null(standin_twin(at, 100));
    assert_null(standin_twin(at, 101));
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        _exit(*(volatile char *)(uintptr_t)at ? 1 : 2);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) <= 2 && WEXITSTATUS(status) > 0);
    assert_int_equal(standin_device_bytes(0), 100);
    assert_int_equal(cuMemFree_v2(at), CUDA_SUCCESS);
    assert_null(standin_twin(at, 1));
    assert_no_violation();
}

/* Without the event the copy would overtake: it is asked of a stream that has nothing else to do. */
static void streams_run_late_and_events_order_them(void **state)
{
    (void)state;
    begin(300);
    const CUdeviceptr a = device_bytes(64), b = device_bytes(64);
    CUstream first = new_stream(), second = new_stream();
    CUevent event;
    assert_int_equal(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    standin_hold();
    for (int i = 0; i < 20; i++) assert_int_equal(cuMemsetD8Async(a, (unsigned char)i, 64, first), CUDA_SUCCESS);
    assert_int_equal(cuEventRecord(event, first), CUDA_SUCCESS);
    assert_int_equal(cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemcpyDtoDAsync_v2(b, a, 64, second), CUDA_SUCCESS);
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    assert_int_equal(standin_waits(), 0);
    standin_let_go();
    assert_int_equal(cuStreamSynchronize(second), CUDA_SUCCESS);
    assert_int_equal(((unsigned char *)standin_twin(b, 64))[63], 19);
    assert_int_equal(cuEventQuery(event), CUDA_SUCCESS);
    assert_int_equal(cuEventDestroy_v2(event), CUDA_SUCCESS);
    assert_no_violation();
}

static void legacy_stream_waits_for_blocking_ones(void **state)
{
    (void)state;
    begin(300);
    const CUdeviceptr a = device_bytes(8), b = device_bytes(8);
    CUstream blocking;
    assert_int_equal(cuStreamCreate(&blocking, CU_STREAM_DEFAULT), CUDA_SUCCESS);
    for (int i = 0; i < 5; i++) assert_int_equal(cuMemsetD8Async(a, 3, 8, blocking), CUDA_SUCCESS);
    assert_int_equal(cuMemcpyDtoDAsync_v2(b, a, 8, NULL), CUDA_SUCCESS);
    assert_int_equal(cuMemsetD8Async(a, 4, 8, blocking), CUDA_SUCCESS);
    assert_int_equal(cuCtxSynchronize(), CUDA_SUCCESS);
    assert_int_equal(*(unsigned char *)standin_twin(b, 8), 3);
}

static void graphs_run_when_they_are_launched(void **state)
{
    (void)state;
    begin(50);
    const CUdeviceptr a = device_bytes(8), b = device_bytes(8);
    CUstream main_stream = new_stream(), side = new_stream();
    CUevent fork_event, join;
    cuEventCreate(&fork_event, 0);
    cuEventCreate(&join, 0);
    CUgraph graph;
    CUgraphExec exec;
    assert_int_equal(cuStreamBeginCapture_v2(main_stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    cuMemsetD8Async(a, 1, 8, main_stream);
    cuEventRecord(fork_event, main_stream);
    cuStreamWaitEvent(side, fork_event, 0);
    cuMemcpyDtoDAsync_v2(b, a, 8, side);
    CUstreamCaptureStatus status;
    assert_int_equal(cuStreamIsCapturing(side, &status), CUDA_SUCCESS);
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    cuEventRecord(join, side);
    cuStreamWaitEvent(main_stream, join, 0);
    assert_int_equal(cuStreamEndCapture(main_stream, &graph), CUDA_SUCCESS);
    assert_int_equal(*(unsigned char *)standin_twin(b, 8), 0xA5);
    assert_int_equal(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    assert_int_equal(cuGraphLaunch(exec, main_stream), CUDA_SUCCESS);
    assert_int_equal(cuStreamSynchronize(main_stream), CUDA_SUCCESS);
    assert_int_equal(*(unsigned char *)standin_twin(b, 8), 1);
    cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
    cuEventDestroy_v2(fork_event);
    cuEventDestroy_v2(join);
}

static void what_a_capture_forbids_invalidates_it(void **state)
{
    (void)state;
    begin(0);
    CUstream s = new_stream();
    CUgraph graph;
    CUdeviceptr at;
    cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(cuMemAlloc_v2(&at, 8), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuThreadExchangeStreamCaptureMode(&mode);
    assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(cuMemAlloc_v2(&at, 8), CUDA_SUCCESS);
    cuThreadExchangeStreamCaptureMode(&mode);
    assert_int_equal(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    cuGraphDestroy(graph);
}

static void errors_come_where_they_are_told(void **state)
{
    (void)state;
    begin(0);
    CUdeviceptr at;
    standin_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(cuMemAlloc_v2(&at, 8), CUDA_SUCCESS);
    assert_int_equal(cuMemAlloc_v2(&at, 8), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(cuMemAlloc_v2(&at, 8), CUDA_SUCCESS);
    assert_int_equal(standin_calls("cuMemAlloc_v2"), 3);
    standin_lose(0, CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_int_equal(cuMemAlloc_v2(&at, 8), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

static void a_forked_child_has_no_driver(void **state)
{
    (void)state;
    begin(0);
    const pid_t child = fork();
    if (child == 0) {
        CUcontext c;
        _exit(cuCtxGetCurrent(&c) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_memory_is_none_of_the_hosts),
        cmocka_unit_test(streams_run_late_and_events_order_them),
        cmocka_unit_test(legacy_stream_waits_for_blocking_ones),
        cmocka_unit_test(graphs_run_when_they_are_launched),
        cmocka_unit_test(what_a_capture_forbids_invalidates_it),
        cmocka_unit_test(errors_come_where_they_are_told),
        cmocka_unit_test(a_forked_child_has_no_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
