/* Whether the kernels find on this device what the host finds (see lb_cuda_check). The value has every block of a leaf,
 * a second leaf, and elements that are not finite. */
#include "cuda/cuda_inside.h"

#include <stdlib.h>
#include <string.h>

enum { ELEMENTS = 24000, BYTES = 4 * ELEMENTS };

static void fill(float *x)
{
    for (int i = 0; i < ELEMENTS; i++) x[i] = (float)(i % 1013 - 500) / (float)(1 + i % 7);
    const uint32_t odd[] = {0x7f800000u, 0xff800000u, 0x7fc00000u};
    memcpy(x + 777, odd, sizeof odd);
}

static bool same(const lb_measured *a, const lb_measured *b)
{
    return memcmp(&a->logical, &b->logical, sizeof a->logical) == 0 &&
           memcmp(&a->blob, &b->blob, sizeof a->blob) == 0 &&
           memcmp(&a->statistics, &b->statistics, sizeof a->statistics) == 0;
}

static lb_measuring item_of(void *data)
{
    return (lb_measuring){.tensor = {data, LB_F32, {.ndim = 1, .shape = {ELEMENTS}, .stride = {1}}},
                          .dense = data,
                          .dense_bytes = BYTES,
                          .what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB};
}

/* What the device finds at `memory`, which is filled from `pinned`. */
static bool find(lb_cuda *device, CUdeviceptr memory, const void *pinned, lb_device_work *work)
{
    lb_device_work *works[] = {work};
    *work = (lb_device_work){.measured = true, .item = item_of((void *)(uintptr_t)memory)};
    if (!LB_CUDA_CALL(device, MemcpyHtoDAsync, memory, pinned, BYTES, device->uploads)) return false;
    device->base.ops->submit(&device->base, works, 1, device->uploads, true);
    device->base.ops->collect(&device->base, work, true);
    return work->state == LB_WORK_DONE;
}

static lb_status compare(lb_cuda *device, const lb_device_work *work, void *pinned, lb_err *err)
{
    lb_measuring host = item_of(pinned);
    if (!lb_measure(&host, 1)) return lb_fail(err, LB_ERR_NOMEM, "no memory to check a device with");
    const bool good = same(&host.out, &work->item.out);
    free(host.out.leaves);
    if (good) return LB_OK;
    lb_fail(&device->lost, LB_ERR_UNSUPPORTED, "the measuring kernel finds another digest or other sums than the host");
    return lb_fail(err, LB_ERR_UNSUPPORTED, "%s", device->lost.message);
}

static lb_status check(lb_cuda *device, lb_err *err)
{
    CUdeviceptr memory = 0;
    void *pinned = NULL;
    lb_device_work work = {.state = LB_WORK_NEW};
    lb_status status = LB_ERR_IO;
    if (LB_CUDA_CALL(device, MemAlloc, &memory, BYTES) &&
        LB_CUDA_CALL(device, MemHostAlloc, &pinned, BYTES, CU_MEMHOSTALLOC_PORTABLE)) {
        fill(pinned);
        status = find(device, memory, pinned, &work) ? compare(device, &work, pinned, err) : LB_ERR_IO;
    }
    free(work.item.out.leaves);
    if (memory) device->cuda->MemFree(memory);
    if (pinned) device->cuda->MemFreeHost(pinned);
    return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", device->lost.message);
}

lb_status lb_cuda_check(lb_device *base, lb_err *err)
{
    lb_cuda *device = (lb_cuda *)base;
    lb_cuda_visit visit;
    if (!lb_cuda_enter(device, &visit)) return lb_fail(err, LB_ERR_IO, "%s", device->lost.message);
    const lb_status status = check(device, err);
    lb_cuda_leave(device, &visit);
    return status;
}
