/* Flights of the CUDA back end (see cuda_inside.h): what works need is planned, taken from the rings, and queued. */
#include "cuda/cuda_inside.h"

#include <stdlib.h>
#include <string.h>

/* ---- the plan of a flight ---------------------------------------------------------------------------------------- */

/* Where so many bytes more begin in the piece. */
static uint64_t grow(lb_cuda_piece *piece, uint64_t bytes)
{
    const uint64_t at = piece->bytes;
    piece->bytes += (bytes + 7) / 8 * 8;
    return at;
}

/* Bytes for the host lie as they do in STAGING, where many values have a piece each. */
static uint64_t grow_aligned(lb_cuda_piece *piece, uint64_t bytes)
{
    return grow(piece, (bytes + LB_SPACE_ALIGN - 1) / LB_SPACE_ALIGN * LB_SPACE_ALIGN);
}

/* Where the job's leaves will lie, what it measures, and its bytes, all from the beginning of the flight's pieces. */
static void add_job(lb_cuda_plan *plan, lb_device_work *work, bool copied)
{
    lb_cuda_job *job = &plan->jobs[plan->n_jobs++];
    *job = (lb_cuda_job){.work = work, .result = -1, .copied = copied};
    if (work->measured) {
        job->scratch_at = grow(&plan->pieces[LB_CUDA_SCRATCH], lb_kernel_scratch_bytes(&plan->items[plan->n_items]));
        plan->words += lb_kernel_words(&plan->items[plan->n_items]);
        plan->units += lb_kernel_units(&plan->items[plan->n_items]);
        job->result = (int64_t)plan->n_items++;
        grow(&plan->pieces[LB_CUDA_RESULTS], sizeof(lb_kernel_result));
    }
    if (copied) job->bytes_at = grow_aligned(&plan->pieces[LB_CUDA_PINNED], work->item.dense_bytes);
}

static bool could_hold(const lb_cuda *device, const lb_cuda_plan *plan)
{
    if (plan->words > LB_KERNEL_WORDS || plan->units > INT32_MAX) return false;
    for (int i = 0; i < LB_CUDA_RINGS; i++)
        if (!lb_ring_space_could_hold(&device->rings[i].space, plan->pieces[i].bytes)) return false;
    return true;
}

lb_cuda_planned lb_cuda_plan_work(lb_cuda *device, lb_cuda_plan *plan, lb_device_work *work, const lb_measuring *item,
                                  bool copied)
{
    if (plan->n_jobs == LB_CUDA_BATCH) return LB_CUDA_FULL;
    if (work->measured && lb_kernel_item_of(&plan->items[plan->n_items], item, NULL) != LB_OK)
        return LB_CUDA_UNSUPPORTED;
    lb_cuda_piece pieces[LB_CUDA_RINGS];
    const size_t n_items = plan->n_items;
    const uint64_t words = plan->words, units = plan->units;
    memcpy(pieces, plan->pieces, sizeof pieces);
    add_job(plan, work, copied);
    if (could_hold(device, plan)) return LB_CUDA_TAKEN;
    memcpy(plan->pieces, pieces, sizeof pieces);
    plan->words = words, plan->units = units, plan->n_items = n_items;
    return --plan->n_jobs ? LB_CUDA_FULL : LB_CUDA_TOO_LARGE;
}

static void clear(lb_cuda_plan *plan)
{
    lb_kernel_item *items = plan->items;
    *plan = (lb_cuda_plan){.items = items};
}

/* ---- queueing ---------------------------------------------------------------------------------------------------- */

CUresult lb_cuda_launch(lb_cuda *device, lb_kernel_launch *launch, CUstream stream)
{
    void *parameters[] = {launch};
    return device->cuda->LaunchKernel(device->kernels.measure, launch->n_units, 1, 1, LB_KERNEL_THREADS, 1, 1, 0,
                                      stream, parameters, NULL);
}

static CUdeviceptr on_device(const lb_cuda *device, const lb_cuda_flight *flight, lb_cuda_ring_name ring)
{
    return device->rings[ring].device + flight->pieces[ring].at;
}

static char *on_host(const lb_cuda *device, const lb_cuda_flight *flight, lb_cuda_ring_name ring)
{
    return device->rings[ring].host + flight->pieces[ring].at;
}

bool lb_cuda_measure(lb_cuda *device, const lb_cuda_flight *flight, lb_kernel_item *items, size_t n_items)
{
    for (size_t i = 0; i < flight->n; i++) {
        const lb_cuda_job *job = &flight->jobs[i];
        if (job->result < 0) continue;
        items[job->result].scratch = on_device(device, flight, LB_CUDA_SCRATCH) + job->scratch_at;
        items[job->result].slot = flight->first_slot + (uint64_t)job->result;
    }
    lb_kernel_launch *launch = &device->launch;
    launch->results = device->rings[LB_CUDA_RESULTS].device;
    launch->n_results = device->rings[LB_CUDA_RESULTS].space.size / sizeof(lb_kernel_result);
    launch->turn = 0;
    return lb_kernel_pack(launch, items, n_items) && /* as it was planned */
           lb_cuda_ok(device, "cuLaunchKernel", lb_cuda_launch(device, launch, flight->stream));
}

/* Bytes are copied aside on the program's stream, or straight to the host where there is no room for that. */
static bool read_bytes(lb_cuda *device, const lb_cuda_flight *flight)
{
    const bool aside = flight->pieces[LB_CUDA_STAGING].taken;
    for (size_t i = 0; i < flight->n; i++) {
        const lb_cuda_job *job = &flight->jobs[i];
        const CUdeviceptr from = (CUdeviceptr)(uintptr_t)job->work->item.dense;
        const uint64_t bytes = job->work->item.dense_bytes;
        if (!job->copied || bytes == 0) continue;
        const bool good =
            aside ? LB_CUDA_CALL(device, MemcpyDtoDAsync, on_device(device, flight, LB_CUDA_STAGING) + job->bytes_at,
                                 from, bytes, flight->stream)
                  : LB_CUDA_CALL(device, MemcpyDtoHAsync, on_host(device, flight, LB_CUDA_PINNED) + job->bytes_at, from,
                                 bytes, flight->stream);
        if (!good) return false;
    }
    return true;
}

static bool send_bytes(lb_cuda *device, const lb_cuda_flight *flight)
{
    if (!flight->pieces[LB_CUDA_STAGING].taken) return true;
    return LB_CUDA_CALL(device, StreamWaitEvent, device->own, flight->read, 0) &&
           LB_CUDA_CALL(device, MemcpyDtoHAsync, on_host(device, flight, LB_CUDA_PINNED),
                        on_device(device, flight, LB_CUDA_STAGING), flight->pieces[LB_CUDA_PINNED].bytes, device->own);
}

static void append(lb_cuda *device, lb_cuda_flight *flight)
{
    flight->serial = ++device->serial;
    *device->last = flight;
    device->last = &flight->next;
    for (size_t i = 0; i < flight->n; i++) {
        flight->jobs[i].work->state = LB_WORK_UNDER_WAY;
        flight->jobs[i].work->slot = flight->serial;
    }
}

/* The slots of a flight follow those of its piece, in another lap each time: the kernel says in a result whose it
 * is. */
static uint64_t first_slot(lb_cuda *device, const lb_cuda_flight *flight)
{
    const uint64_t n = device->rings[LB_CUDA_RESULTS].space.size / sizeof(lb_kernel_result);
    return ++device->slots * n + flight->pieces[LB_CUDA_RESULTS].at / sizeof(lb_kernel_result);
}

static lb_cuda_flight *new_flight(const lb_cuda_plan *plan, CUstream stream, uint64_t id)
{
    lb_cuda_flight *flight = malloc(sizeof *flight + plan->n_jobs * sizeof flight->jobs[0]);
    if (!flight) return NULL;
    *flight = (lb_cuda_flight){.stream = stream, .stream_id = id, .n = plan->n_jobs};
    memcpy(flight->pieces, plan->pieces, sizeof flight->pieces);
    memcpy(flight->jobs, plan->jobs, plan->n_jobs * sizeof plan->jobs[0]);
    return flight;
}

/* Rings have room, or get it: at once from what is done, by waiting where that is allowed. */
static bool take_room(lb_cuda *device, lb_cuda_piece *pieces, bool may_wait)
{
    if (lb_cuda_take(device, pieces)) return true;
    lb_cuda_drain(device, device->serial, may_wait);
    return !lb_cuda_is_lost(device) && lb_cuda_take(device, pieces);
}

static void take_staging(lb_cuda *device, lb_cuda_flight *flight)
{
    lb_cuda_piece *piece = &flight->pieces[LB_CUDA_STAGING];
    piece->bytes = flight->pieces[LB_CUDA_PINNED].bytes;
    piece->taken = piece->bytes > 0 &&
                   lb_ring_space_take(&device->rings[LB_CUDA_STAGING].space, piece->bytes, &piece->at, &piece->name);
}

static void skip_jobs(lb_cuda *device, lb_cuda_plan *plan)
{
    for (size_t i = 0; i < plan->n_jobs; i++) {
        lb_cuda_skip(device, plan->jobs[i].work);
        lb_cuda_give_piece(device, LB_CUDA_STAGING, &plan->jobs[i].aside);
    }
    clear(plan);
}

lb_cuda_flight *lb_cuda_take_off(lb_cuda *device, lb_cuda_plan *plan, CUstream stream, uint64_t id, bool may_wait)
{
    if (!take_room(device, plan->pieces, may_wait)) return NULL;
    lb_cuda_flight *flight = new_flight(plan, stream, id);
    if (!flight) {
        lb_cuda_give(device, plan->pieces);
        skip_jobs(device, plan);
        return NULL;
    }
    flight->first_slot = first_slot(device, flight);
    append(device, flight);
    clear(plan);
    return flight;
}

/* Whatever fails here has ended measuring on the device: the flight is in the list, its works learn it with the
 * others. */
static void start(lb_cuda *device, lb_cuda_plan *plan, CUstream stream, uint64_t id, bool may_wait)
{
    const size_t n_items = plan->n_items;
    lb_cuda_flight *flight = lb_cuda_take_off(device, plan, stream, id, may_wait);
    if (!flight) {
        skip_jobs(device, plan);
        return;
    }
    take_staging(device, flight);
    flight->read = lb_cuda_take_event(device);
    if (!flight->read || (n_items && !lb_cuda_measure(device, flight, device->items, n_items)) ||
        !read_bytes(device, flight) || !LB_CUDA_CALL(device, EventRecord, flight->read, stream))
        return;
    lb_cuda_note_read(device, flight);
    send_bytes(device, flight);
}

/* Bytes that no ring holds: the host waits for them, where it may. */
static void copy_large(lb_cuda *device, lb_cuda_plan *plan, lb_device_work *work, CUstream stream, bool may_wait)
{
    if (!may_wait || (work->measured && lb_cuda_plan_work(device, plan, work, &work->item, false) != LB_CUDA_TAKEN)) {
        lb_cuda_skip(device, work);
        return;
    }
    if (!lb_cuda_copy_in_turns(device, work->bytes, (CUdeviceptr)(uintptr_t)work->item.dense, work->item.dense_bytes,
                               stream))
        return;
    if (!work->measured) work->state = LB_WORK_DONE;
}

void lb_cuda_fly(lb_cuda *device, lb_device_work *const *works, size_t n, CUstream stream, uint64_t id, bool may_wait)
{
    lb_cuda_plan together = {.items = device->items};
    for (size_t i = 0; i < n && !lb_cuda_is_lost(device);) {
        lb_device_work *work = works[i];
        const lb_cuda_planned planned = lb_cuda_plan_work(device, &together, work, &work->item, work->bytes != NULL);
        if (planned == LB_CUDA_FULL) {
            start(device, &together, stream, id, may_wait);
            continue;
        }
        i++;
        if (planned == LB_CUDA_TOO_LARGE && work->bytes)
            copy_large(device, &together, work, stream, may_wait);
        else if (planned != LB_CUDA_TAKEN)
            lb_cuda_skip(device, work);
    }
    if (together.n_jobs && !lb_cuda_is_lost(device)) start(device, &together, stream, id, may_wait);
}
