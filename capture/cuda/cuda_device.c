/* See cuda_device.h: opening and closing, and the functions of the seam. */
#include "cuda/cuda_inside.h"

#include <stdlib.h>
#include <string.h>

/* ---- entering ---------------------------------------------------------------------------------------------------- */

bool lb_cuda_ok(lb_cuda *device, const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS) return true;
    lb_cuda_failed(device->cuda, call, result, &device->lost);
    return false;
}

static bool enter(lb_cuda *device, lb_cuda_visit *visit)
{
    CUcontext current = NULL;
    *visit = (lb_cuda_visit){.pushed = false};
    device->visits++;
    if (lb_cuda_is_lost(device) || !LB_CUDA_CALL(device, CtxGetCurrent, &current)) return false;
    if (current != device->context) visit->pushed = LB_CUDA_CALL(device, CtxPushCurrent, device->context);
    return !lb_cuda_is_lost(device);
}

/* What is under way stays where the device may still write to it; only its works learn that nothing comes. */
static void lose(lb_cuda *device)
{
    while (device->first) {
        lb_cuda_flight *flight = device->first;
        for (size_t i = 0; i < flight->n; i++) flight->jobs[i].work->state = LB_WORK_LOST;
        device->first = flight->next;
        free(flight);
    }
    device->last = &device->first;
    for (size_t i = 0; i < device->gathered.n_jobs; i++) device->gathered.jobs[i].work->state = LB_WORK_LOST;
    device->gathered.n_jobs = 0;
    device->n_reads = 0;
    lb_cuda_forget_expected(device, false);
}

bool lb_cuda_relax(lb_cuda *device)
{
    if (device->relaxed || lb_cuda_is_lost(device)) return !lb_cuda_is_lost(device);
    device->mode_before = CU_STREAM_CAPTURE_MODE_RELAXED;
    device->relaxed = LB_CUDA_CALL(device, ThreadExchangeStreamCaptureMode, &device->mode_before);
    return device->relaxed;
}

bool lb_cuda_enter_briefly(lb_cuda *device, lb_cuda_visit *visit)
{
    if (enter(device, visit)) return true;
    lb_cuda_leave(device, visit);
    return false;
}

bool lb_cuda_enter(lb_cuda *device, lb_cuda_visit *visit)
{
    if (enter(device, visit) && lb_cuda_relax(device)) return true;
    lb_cuda_leave(device, visit);
    return false;
}

void lb_cuda_leave(lb_cuda *device, const lb_cuda_visit *visit)
{
    CUcontext ours;
    if (--device->visits == 0 && device->relaxed) {
        device->cuda->ThreadExchangeStreamCaptureMode(&device->mode_before);
        device->relaxed = false;
    }
    if (visit->pushed) device->cuda->CtxPopCurrent(&ours);
    if (lb_cuda_is_lost(device)) lose(device);
}

void lb_cuda_skip(lb_cuda *device, lb_device_work *work)
{
    work->state = lb_cuda_is_lost(device) ? LB_WORK_LOST : LB_WORK_SKIPPED;
    work->slot = 0;
    if (work->state == LB_WORK_SKIPPED) device->skipped++;
}

/* ---- the seam ---------------------------------------------------------------------------------------------------- */

uint64_t lb_cuda_stream_id(const lb_cuda *device, CUstream stream)
{
    unsigned long long id;
    if (device->cuda->StreamGetId && device->cuda->StreamGetId(stream, &id) == CUDA_SUCCESS) return id + 1;
    return (uint64_t)(uintptr_t)stream + 1;
}

/* The driver is asked once for each stream, where it tells them apart: an id is that of no other stream later. */
static bool is_foreign(lb_cuda *device, CUstream stream, uint64_t id)
{
    for (unsigned i = 0; device->cuda->StreamGetId && i < LB_CUDA_STREAMS; i++)
        if (device->ours[i] == id) return false;
    CUcontext context = NULL;
    const CUresult result = device->cuda->StreamGetCtx(stream, &context);
    if (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_CONTEXT ||
        result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED)
        return true;
    if (lb_cuda_is_about_capture(result) || !lb_cuda_ok(device, "cuStreamGetCtx", result)) return false;
    if (context == device->context) device->ours[device->n_ours++ % LB_CUDA_STREAMS] = id;
    return context != device->context;
}

/* What the driver says of a stream. FOREIGN: it is none of this context's (a green context's, another library's), and
 * nothing of ours can be queued there. */
typedef enum stream_state { IDLE, CAPTURING, BROKEN, FOREIGN } stream_state;

/* The legacy stream cannot be used while another is captured: nothing can be queued then either. */
static stream_state state_of(lb_cuda *device, CUstream stream, uint64_t *id)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    *id = lb_cuda_stream_id(device, stream);
    if (is_foreign(device, stream, *id)) return FOREIGN;
    const CUresult result = device->cuda->StreamIsCapturing(stream, &status);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return BROKEN;
    lb_cuda_ok(device, "cuStreamIsCapturing", result);
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CAPTURING
           : status == CU_STREAM_CAPTURE_STATUS_NONE ? IDLE
                                                     : BROKEN;
}

/* A few values are copied aside, where no thread waits for them; the others are measured where they lie. */
static void read_works(lb_cuda *device, lb_device_work *const *works, size_t n, CUstream stream, uint64_t id,
                       bool may_wait)
{
    lb_device_work *others[LB_CUDA_FEW];
    size_t n_others = 0;
    if (n > LB_CUDA_FEW) {
        lb_cuda_fly(device, works, n, stream, id, may_wait);
        return;
    }
    for (size_t i = 0; i < n && !lb_cuda_is_lost(device); i++)
        if (works[i]->awaited || !lb_cuda_gather(device, works[i], stream, id, may_wait)) others[n_others++] = works[i];
    if (n_others) lb_cuda_fly(device, others, n_others, stream, id, may_wait);
}

static void submit_entered(lb_cuda *device, lb_device_work *const *works, size_t n, CUstream stream, bool may_wait)
{
    uint64_t id;
    const stream_state state = state_of(device, stream, &id);
    if (lb_cuda_is_lost(device) || !lb_cuda_allocate(device)) return;
    if (state == CAPTURING && lb_cuda_relax(device))
        lb_cuda_capture(device, works, n, stream);
    else if (state == IDLE)
        read_works(device, works, n, stream, id, may_wait);
    else
        for (size_t i = 0; i < n; i++) lb_cuda_skip(device, works[i]);
}

static void submit(lb_device *base, lb_device_work *const *works, size_t n, void *stream, bool may_wait)
{
    lb_cuda *device = (lb_cuda *)base;
    lb_cuda_visit visit;
    for (size_t i = 0; i < n; i++) works[i]->state = LB_WORK_NEW;
    if (lb_cuda_enter_briefly(device, &visit)) {
        submit_entered(device, works, n, stream, may_wait);
        lb_cuda_leave(device, &visit);
    }
    for (size_t i = 0; i < n && lb_cuda_is_lost(device); i++)
        if (works[i]->state == LB_WORK_NEW) works[i]->state = LB_WORK_LOST;
}

static void capture(lb_device *base, lb_device_work *const *works, size_t n, void *stream)
{
    submit(base, works, n, stream, false);
}

enum { RESERVED_HANDLES = 2 }; /* 1: the default stream, as NULL is; 2: the default one of each thread */

/* Whether all that is read is read on that stream, so that nothing has to be ordered. The default stream is always the
 * same one, the others are told apart by their ids. */
static bool reads_there_alone(const lb_cuda *device, CUstream stream)
{
    if (device->unlisted || device->n_reads > 1) return false;
    if (device->n_reads == 0) return true;
    if (device->reads[0].stream != stream) return false;
    return !stream ||
           ((uintptr_t)stream > RESERVED_HANDLES && device->reads[0].stream_id == lb_cuda_stream_id(device, stream));
}

static void order_before(lb_device *base, void *stream)
{
    lb_cuda *device = (lb_cuda *)base;
    lb_cuda_visit visit;
    uint64_t id;
    if (lb_cuda_is_lost(device) || reads_there_alone(device, stream) || !lb_cuda_enter_briefly(device, &visit)) return;
    const stream_state state = state_of(device, stream, &id);
    if (state == IDLE && !lb_cuda_is_lost(device)) {
        lb_cuda_wait_for_program(device, stream, id);
    } else if (state == FOREIGN && lb_cuda_flush(device, true)) {
        lb_cuda_drain(device, device->serial, true); /* it cannot be told to wait */
    }
    lb_cuda_leave(device, &visit);
}

static bool is_capturing(lb_device *base, void *stream)
{
    lb_cuda *device = (lb_cuda *)base;
    lb_cuda_visit visit;
    uint64_t id;
    if (!lb_cuda_enter(device, &visit)) return false;
    const stream_state state = state_of(device, stream, &id);
    lb_cuda_leave(device, &visit);
    return state == CAPTURING || state == BROKEN;
}

#define OPS_BETWEEN_LOOKS 4

/* Results take their room until they are fetched: half of it is time enough, with one fetch for many. A device that has
 * not come so far is not asked at each op, before room is short. */
static bool is_time_to_fetch(lb_cuda *device)
{
    bool half = false, more = false;
    static const lb_cuda_ring_name rings[] = {LB_CUDA_RESULTS, LB_CUDA_SCRATCH, LB_CUDA_STAGING, LB_CUDA_PINNED};
    for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
        const lb_ring_space *space = &device->rings[rings[i]].space;
        half |= space->head - space->tail > space->size / 2;
        more |= space->head - space->tail > space->size / 4 * 3;
    }
    return more || (half && device->looks++ % OPS_BETWEEN_LOOKS == 0);
}

/* What was gathered long ago would keep the room behind it in the ring. */
static void collect_entered(lb_cuda *device, const lb_device_work *work, bool wait)
{
    const bool fetching = device->first && device->first->fetching;
    const bool flushed = wait ? !work || work->slot == LB_CUDA_GATHERED : !fetching;
    if (flushed) lb_cuda_flush(device, wait);
    lb_cuda_drain(device, work ? work->slot : device->serial, wait);
}

static void collect(lb_device *base, const lb_device_work *work, bool wait)
{
    lb_cuda *device = (lb_cuda *)base;
    lb_cuda_visit visit;
    const bool wanted = work ? work->state == LB_WORK_UNDER_WAY : device->first || device->gathered.n_jobs;
    if (wanted && (wait || is_time_to_fetch(device)) && lb_cuda_enter(device, &visit)) {
        collect_entered(device, work, wait);
        lb_cuda_leave(device, &visit);
    }
    if (wait) lb_cuda_give_expected(device);
}

static void account(const lb_device *base, uint64_t *memory_bytes, uint64_t *skipped)
{
    const lb_cuda *device = (const lb_cuda *)base;
    *memory_bytes = device->ready ? device->arena_bytes : 0;
    *skipped = device->skipped;
}

static const char *why_lost(const lb_device *base)
{
    return ((const lb_cuda *)base)->lost.message;
}

void lb_cuda_wait(void *context, void *stream)
{
    CUcontext ours;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    const lb_cuda_driver *cuda = lb_cuda_driver_get(NULL);
    if (!cuda || cuda->CtxPushCurrent(context) != CUDA_SUCCESS) return;
    if (cuda->ThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS) {
        if (cuda->StreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE)
            cuda->StreamSynchronize(stream);
        cuda->ThreadExchangeStreamCaptureMode(&mode);
    }
    cuda->CtxPopCurrent(&ours);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void free_host(lb_cuda *device)
{
    lb_cuda_forget_expected(device, true);
    while (device->first) {
        lb_cuda_flight *flight = device->first;
        device->first = flight->next;
        free(flight);
    }
    while (device->captured) {
        lb_cuda_captured *captured = device->captured;
        device->captured = captured->next;
        free(captured);
    }
    for (int i = 0; i < LB_CUDA_RINGS; i++) {
        lb_ring_space_release(&device->rings[i].space);
        lb_first_fit_release(&device->rings[i].room);
    }
    free(device->events);
    free(device);
}

static void abandon(lb_device *base)
{
    free_host((lb_cuda *)base);
}

/* A graph of the program may be launched after this: its nodes go on writing to memory of ours, so that this stays. */
static void give_back(lb_cuda *device)
{
    const lb_cuda_driver *const cuda = device->cuda;
    lb_cuda_forget_reads(device, UINT64_MAX);
    while (device->n_events) cuda->EventDestroy(device->events[--device->n_events]);
    if (device->captured) return;
    lb_cuda_free_memory(device);
    cuda->StreamDestroy(device->own);
    cuda->StreamDestroy(device->side);
    cuda->StreamDestroy(device->trials);
    cuda->ModuleUnload(device->kernels.module);
}

static void release_context(const lb_cuda *device)
{
    if (device->retained) device->cuda->DevicePrimaryCtxRelease(device->options.unit);
}

/* What a lost device holds is left alone: its handles may mean nothing any more. */
static void close_device(lb_device *base)
{
    lb_cuda *device = (lb_cuda *)base;
    lb_cuda_visit visit;
    lb_cuda_forget_expected(device, true);
    collect(base, NULL, true);
    if (lb_cuda_enter(device, &visit)) {
        give_back(device);
        lb_cuda_leave(device, &visit);
    }
    release_context(device);
    free_host(device);
}

static const lb_device_ops cuda_ops = {
    .name = "cuda",
    .asynchronous = true,
    .submit = submit,
    .order_before = order_before,
    .is_capturing = is_capturing,
    .capture = capture,
    .expect = lb_cuda_expect,
    .runs = lb_cuda_runs,
    .ran = lb_cuda_ran,
    .failed = lb_cuda_run_failed,
    .forget = lb_cuda_forget,
    .unheard = lb_cuda_unheard,
    .collect = collect,
    .account = account,
    .why_lost = why_lost,
    .close = close_device,
    .abandon = abandon,
};

void *lb_cuda_context(const lb_device *device)
{
    return device->ops == &cuda_ops ? ((const lb_cuda *)device)->context : NULL;
}

static lb_status open_entered(lb_cuda *device)
{
    const lb_kernel_image code = device->options.code ? *device->options.code : lb_kernel_image_get();
    if (LB_CUDA_CALL(device, CtxGetDevice, &device->device) &&
        lb_cuda_kernels_load(&device->kernels, device->cuda, &code, device->device, &device->lost) == LB_OK &&
        LB_CUDA_CALL(device, StreamCreate, &device->own, CU_STREAM_NON_BLOCKING) &&
        LB_CUDA_CALL(device, StreamCreate, &device->side, CU_STREAM_NON_BLOCKING) &&
        LB_CUDA_CALL(device, StreamCreate, &device->trials, CU_STREAM_NON_BLOCKING))
        device->side_id = lb_cuda_stream_id(device, device->side);
    return device->lost.status;
}

/* The context that the host program has for the device; NULL: none. `retained`: it is to be released. None is made
 * here. */
static CUcontext context_of(const lb_cuda_driver *cuda, int unit, bool *retained)
{
    CUcontext context = NULL;
    CUdevice current = -1;
    unsigned flags = 0;
    int active = 0;
    *retained = false;
    if (cuda->CtxGetCurrent(&context) != CUDA_SUCCESS) return NULL;
    if (unit < 0 || (context && cuda->CtxGetDevice(&current) == CUDA_SUCCESS && current == unit)) return context;
    if (!cuda->DevicePrimaryCtxGetState || !cuda->DevicePrimaryCtxRetain || !cuda->DevicePrimaryCtxRelease) return NULL;
    if (cuda->DevicePrimaryCtxGetState(unit, &flags, &active) != CUDA_SUCCESS || !active) return NULL;
    *retained = cuda->DevicePrimaryCtxRetain(&context, unit) == CUDA_SUCCESS;
    return *retained ? context : NULL;
}

lb_status lb_cuda_open(lb_device **out, const lb_cuda_options *options, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    lb_cuda_visit visit;
    *out = NULL;
    const lb_cuda_driver *cuda = lb_cuda_driver_get(&why);
    if (!cuda) return why.status ? lb_fail(err, why.status, "%s", why.message) : LB_OK;
    if (options->device_bytes < 64 << 10 || options->pinned_bytes < 4 << 10 || options->replays == 0)
        return lb_fail(err, LB_ERR_INVALID,
                       "a device is measured with at least 64 KiB of its memory, 4 KiB of pinned memory, "
                       "and 1 run of a graph kept");
    lb_cuda *device = calloc(1, sizeof *device);
    if (!device) return lb_fail(err, LB_ERR_NOMEM, "no memory for the back end of a device");
    device->context = context_of(cuda, options->unit, &device->retained);
    if (!device->context) {
        free(device);
        return LB_OK;
    }
    device->base.ops = &cuda_ops;
    device->cuda = cuda;
    device->options = *options;
    device->last = &device->first;
    device->last_captured = &device->captured;
    lb_status status = LB_ERR_IO;
    if (lb_cuda_enter(device, &visit)) {
        status = open_entered(device);
        lb_cuda_leave(device, &visit);
    }
    if (status == LB_OK) {
        *out = &device->base;
        return LB_OK;
    }
    lb_fail(err, device->lost.status, "%s", device->lost.message);
    release_context(device);
    free_host(device);
    return status;
}
