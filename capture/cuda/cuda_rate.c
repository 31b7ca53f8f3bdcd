/* How fast the kernels measure on a device: see cuda_device.h. */
#include "cuda/cuda_inside.h"

#include <lastbit/capture.h>
#include <stdlib.h>
#include <time.h>

enum {
    ROUNDS = 4,
    AT_ONCE = 16
}; /* at once: or what is timed is the way there and back, some 30 us of a host, as long as 128 MiB take */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static lb_device_work work_of(CUdeviceptr memory, uint64_t bytes)
{
    void *data = (void *)(uintptr_t)memory;
    const int64_t elements = (int64_t)(bytes / sizeof(float));
    return (lb_device_work){
        .measured = true,
        .item = {.tensor = {data, LB_F32, {.ndim = 1, .shape = {elements}, .stride = {1}}},
                 .dense = data,
                 .dense_bytes = (uint64_t)elements * sizeof(float),
                 .what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB},
    };
}

/* Seconds from the submission of AT_ONCE values until all results are there; 0 where one did not come. */
static double time_all(lb_cuda *device, CUdeviceptr memory, uint64_t bytes)
{
    lb_device_work works[AT_ONCE], *list[AT_ONCE];
    bool done = true;
    for (int i = 0; i < AT_ONCE; i++) works[i] = work_of(memory, bytes), list[i] = &works[i];
    const double began = now();
    device->base.ops->submit(&device->base, list, AT_ONCE, device->trials, true);
    device->base.ops->collect(&device->base, NULL, true);
    const double took = now() - began;
    for (int i = 0; i < AT_ONCE; i++) {
        done = done && works[i].state == LB_WORK_DONE;
        free(works[i].item.out.leaves);
    }
    return done ? took : 0;
}

static lb_status best_of(lb_cuda *device, CUdeviceptr memory, uint64_t bytes, double *rate, lb_err *err)
{
    for (int round = 0; round < ROUNDS; round++) {
        const double took = time_all(device, memory, bytes), all = (double)bytes * AT_ONCE;
        if (took <= 0) return lb_fail(err, LB_ERR_IO, "a value was not measured: %s", device->lost.message);
        if (all / took > *rate) *rate = all / took;
    }
    return LB_OK;
}

static lb_status measure_rate(lb_cuda *device, uint64_t bytes, double *rate, lb_err *err)
{
    CUdeviceptr memory = 0;
    lb_status status = LB_ERR_IO;
    if (LB_CUDA_CALL(device, MemAlloc, &memory, bytes) &&
        LB_CUDA_CALL(device, MemsetD8Async, memory, 0, bytes, device->trials))
        status = best_of(device, memory, bytes, rate, err);
    else
        lb_fail(err, status, "%s", device->lost.message);
    if (memory) device->cuda->MemFree(memory);
    return status;
}

lb_status lb_cuda_rate(lb_device *base, uint64_t bytes, double *rate, lb_err *err)
{
    lb_cuda *device = (lb_cuda *)base;
    lb_cuda_visit visit;
    *rate = 0;
    if (!lb_cuda_enter(device, &visit)) return lb_fail(err, LB_ERR_IO, "%s", device->lost.message);
    const lb_status status = measure_rate(device, bytes, rate, err);
    lb_cuda_leave(device, &visit);
    return status;
}

lb_status lb_measuring_rate(double *rate, lb_err *err)
{
    lb_device *device = NULL;
    const lb_cuda_options options = LB_CUDA_OPTIONS_INIT;
    *rate = 0;
    LB_TRY(lb_cuda_open(&device, &options, err));
    if (!device) return lb_fail(err, LB_ERR_STATE, "this thread has no context of a CUDA device");
    lb_status status = lb_cuda_check(device, err);
    if (status == LB_OK) status = lb_cuda_rate(device, 128u << 20, rate, err);
    device->ops->close(device);
    return status;
}
