/* The stand-in driver of CUDA (capture/cuda/standin.h) as the accelerator of PyTorch uses it, with the measuring
 * kernels and one more: a kernel that calls a function of the host when its stream comes to it. */
#include "standin_device.h"

#include "device_kernels.h"
#include "standin.h"

#include <stdlib.h>
#include <string.h>

#define CALL_KERNEL "standin_call"
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != CUDA_SUCCESS) abort();                                                                           \
    } while (0)

static struct {
    CUcontext context;
    CUfunction call_kernel;
} devices[STANDIN_DEVICES];
static int n_devices;
static _Thread_local int now; /* the device whose context the thread is in */

static bool run_call(const standin_launch *how)
{
    void (*run)(void *);
    void *of;
    memcpy(&run, how->parameters[0], sizeof run);
    memcpy(&of, how->parameters[1], sizeof of);
    run(of);
    return true;
}

static void enter(void)
{
    static _Thread_local bool entered;
    if (entered) return;
    MUST(cuCtxSetCurrent(devices[now].context));
    entered = true;
}

void standin_device_at(int device)
{
    enter();
    if (device == now) return;
    MUST(cuCtxSetCurrent(devices[device].context));
    now = device;
}

static void wait_for_all(void)
{
    const int before = now;
    for (int d = 0; d < n_devices; d++) {
        standin_device_at(d);
        cuCtxSynchronize();
    }
    standin_device_at(before);
}

static void open_device(int device)
{
    CUmodule module;
    MUST(cuDevicePrimaryCtxRetain(&devices[device].context, device));
    now = device;
    MUST(cuCtxSetCurrent(devices[device].context));
    MUST(cuModuleLoadData(&module, CALL_KERNEL));
    MUST(cuModuleGetFunction(&devices[device].call_kernel, module, CALL_KERNEL));
}

void standin_device_begin(int n, uint64_t seed, unsigned delay_us)
{
    static standin_kernel kernels[8];
    memcpy(kernels, device_kernels, (size_t)n_device_kernels * sizeof *kernels);
    kernels[n_device_kernels] = (standin_kernel){CALL_KERNEL, run_call, 2, {sizeof(void *), sizeof(void *)}};
    standin_begin(&(standin_setup){.devices = n, .seed = seed, .delay_us = delay_us});
    standin_kernels(kernels, n_device_kernels + 1);
    MUST(cuInit(0));
    n_devices = n;
    for (int d = n; d-- > 0;) open_device(d);
    atexit(wait_for_all); /* what streams still do needs the rest of the process */
}

/* Preloaded into a program that is written for a device. */
__attribute__((constructor)) static void begin_for_a_program(void)
{
    if (getenv("STANDIN_BEGIN")) standin_device_begin(1, 1, 0);
}

void *standin_device_memory(size_t bytes, void **twin)
{
    CUdeviceptr at;
    enter();
    MUST(cuMemAlloc_v2(&at, bytes));
    *twin = standin_twin(at, bytes);
    return (void *)(uintptr_t)at;
}

void standin_device_leave(size_t left)
{
    const size_t all = (size_t)1 << 30, between = 3 << 12; /* of the driver's device; between its allocations */
    const size_t taken = standin_device_bytes(0) + left + between;
    CUdeviceptr at;
    enter();
    if (taken < all) MUST(cuMemAlloc_v2(&at, all - taken));
}

void standin_device_call(void *stream, void (*run)(void *), void *of)
{
    void *parameters[] = {&run, &of};
    enter();
    MUST(cuLaunchKernel(devices[now].call_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

void *standin_device_stream(void)
{
    CUstream stream;
    enter();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

void standin_device_wait(void *stream)
{
    enter();
    MUST(cuStreamSynchronize(stream));
}

void standin_device_wait_for_all(void)
{
    wait_for_all();
}

void standin_device_record(void **event, void *stream)
{
    enter();
    if (!*event) MUST(cuEventCreate((CUevent *)event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventRecord(*event, stream));
}

void standin_device_block(void *event, void *stream)
{
    enter();
    MUST(cuStreamWaitEvent(stream, event, 0));
}

bool standin_device_has_passed(void *event)
{
    enter();
    return cuEventQuery(event) == CUDA_SUCCESS;
}

void standin_device_wait_for_event(void *event)
{
    enter();
    MUST(cuEventSynchronize(event));
}

void standin_device_capture_begin(void *stream)
{
    enter();
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

void *standin_device_capture_end(void *stream)
{
    CUgraph graph;
    CUgraphExec exec;
    enter();
    if (cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS) return NULL;
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphDestroy(graph));
    return exec;
}

void standin_device_graph_launch(void *graph, void *stream)
{
    enter();
    MUST(cuGraphLaunch(graph, stream));
}

void standin_device_graph_free(void *graph)
{
    enter();
    MUST(cuGraphExecDestroy(graph));
}
