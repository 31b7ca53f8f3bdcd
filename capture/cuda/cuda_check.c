/* Whether the kernels find on this device what the host finds, in every way that they read and add up (kernel_cases.h):
 * see lb_cuda_check. */
#include "cuda/cuda_inside.h"
#include "device/kernel_cases.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 128 };

typedef struct cases {
    lb_device_work works[MOST], *together[MOST];
    size_t n, n_together;
} cases;

static bool same(const lb_measured *a, const lb_measured *b)
{
    return memcmp(&a->logical, &b->logical, sizeof a->logical) == 0 &&
           memcmp(&a->blob, &b->blob, sizeof a->blob) == 0 &&
           memcmp(&a->statistics, &b->statistics, sizeof a->statistics) == 0 && a->n_leaves == b->n_leaves &&
           (a->n_leaves == 0 || memcmp(a->leaves, b->leaves, a->n_leaves * sizeof a->leaves[0]) == 0);
}

/* What the device finds at `memory`, which is filled from `pinned`: in every other case where it lies, with many
 * others; in the rest in a copy, as a value that an op has alone. */
static bool find(lb_cuda *device, CUdeviceptr memory, const void *pinned, cases *checked)
{
    for (; checked->n < MOST; checked->n++) {
        checked->works[checked->n] = (lb_device_work){.measured = true};
        if (!lb_kernel_case(checked->n, (void *)(uintptr_t)memory, &checked->works[checked->n].item)) break;
        if (checked->n % 2 == 0) checked->together[checked->n_together++] = &checked->works[checked->n];
    }
    if (!LB_CUDA_CALL(device, MemcpyHtoDAsync, memory, pinned, LB_KERNEL_CASE_BYTES, device->trials)) return false;
    device->base.ops->submit(&device->base, checked->together, checked->n_together, device->trials, true);
    for (size_t i = 1; i < checked->n; i += 2) {
        lb_device_work *alone = &checked->works[i];
        device->base.ops->submit(&device->base, &alone, 1, device->trials, true);
    }
    device->base.ops->collect(&device->base, NULL, true);
    for (size_t i = 0; i < checked->n; i++)
        if (checked->works[i].state != LB_WORK_DONE) return false;
    return true;
}

static lb_status differs(lb_cuda *device, const lb_measuring *host, size_t i, lb_err *err)
{
    lb_fail(&device->lost, LB_ERR_UNSUPPORTED,
            "the measuring kernel finds another digest or other sums than the host (check %zu, of %s)", i,
            lb_dtype_name(host->tensor.dtype));
    return lb_fail(err, LB_ERR_UNSUPPORTED, "%s", device->lost.message);
}

static lb_status compare(lb_cuda *device, const cases *checked, void *pinned, lb_err *err)
{
    for (size_t i = 0; i < checked->n; i++) {
        lb_measuring host;
        lb_kernel_case(i, pinned, &host);
        if (!lb_measure(&host, 1)) return lb_fail(err, LB_ERR_NOMEM, "no memory to check a device with");
        const bool good = same(&host.out, &checked->works[i].item.out);
        free(host.out.leaves);
        if (!good) return differs(device, &host, i, err);
    }
    return LB_OK;
}

static lb_status check_with(lb_cuda *device, cases *checked, lb_err *err)
{
    CUdeviceptr memory = 0;
    void *pinned = NULL;
    lb_status status = LB_ERR_IO;
    if (LB_CUDA_CALL(device, MemAlloc, &memory, LB_KERNEL_CASE_BYTES) &&
        LB_CUDA_CALL(device, MemHostAlloc, &pinned, LB_KERNEL_CASE_BYTES, CU_MEMHOSTALLOC_PORTABLE)) {
        lb_kernel_case_fill(pinned);
        status = find(device, memory, pinned, checked) ? compare(device, checked, pinned, err) : LB_ERR_IO;
    }
    for (size_t i = 0; i < checked->n; i++) free(checked->works[i].item.out.leaves);
    if (memory) device->cuda->MemFree(memory);
    if (pinned) device->cuda->MemFreeHost(pinned);
    return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", device->lost.message);
}

static lb_status check(lb_cuda *device, lb_err *err)
{
    cases *cases = calloc(1, sizeof *cases);
    if (!cases) return lb_fail(err, LB_ERR_NOMEM, "no memory to check a device with");
    const lb_status status = check_with(device, cases, err);
    free(cases);
    return status;
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
