/* Memory of the CUDA back end: one allocation of the device and one of pinned memory, cut into rings; and its events.
 *
 *     device   TURNS REPLAYS RESULTS │ SCRATCH GRAPHS ASIDE STAGING             left of the bar it begins as zeros
 *     pinned   mirrors of the first four, PINNED, turns_before */
#include "cuda/cuda_inside.h"

#include <stdlib.h>
#include <string.h>

/* Shares of the device's memory, one in so many. A result is 128 bytes, scratch about a thousandth of the
 * value; half is for bytes copied aside, by us and by graphs. */
static uint64_t ring_bytes(const lb_cuda *device, lb_cuda_ring_name name)
{
    static const unsigned share[LB_CUDA_RINGS] = {
        [LB_CUDA_TURNS] = 256, [LB_CUDA_REPLAYS] = 16, [LB_CUDA_RESULTS] = 64, [LB_CUDA_SCRATCH] = 8,
        [LB_CUDA_GRAPHS] = 8,  [LB_CUDA_ASIDE] = 4,    [LB_CUDA_STAGING] = 4};
    const uint64_t all = name == LB_CUDA_PINNED ? device->options.pinned_bytes : device->options.device_bytes;
    return all / (name == LB_CUDA_PINNED ? 1 : share[name]) / LB_SPACE_ALIGN * LB_SPACE_ALIGN;
}

enum { LEAST_DEVICE_BYTES = 4 << 20 }; /* below that, rings are too short to be of use */

/* What graphs take: they come and go in any order. */
static bool is_of_graphs(int name)
{
    return name == LB_CUDA_TURNS || name == LB_CUDA_REPLAYS || name == LB_CUDA_GRAPHS || name == LB_CUDA_ASIDE;
}

static bool is_on_device(int name)
{
    return name < LB_CUDA_OF_DEVICE;
}

static bool is_on_host(int name)
{
    return name < LB_CUDA_MIRRORED || name >= LB_CUDA_OF_DEVICE;
}

/* ---- allocation -------------------------------------------------------------------------------------------------- */

static uint64_t sum_of(const lb_cuda *device, bool (*counts)(int))
{
    uint64_t sum = 0;
    for (int i = 0; i < LB_CUDA_RINGS; i++)
        if (counts(i)) sum += ring_bytes(device, (lb_cuda_ring_name)i);
    return sum;
}

static void cut(lb_cuda *device)
{
    uint64_t on_device = 0, on_host = 0;
    for (int i = 0; i < LB_CUDA_RINGS; i++) {
        const uint64_t bytes = ring_bytes(device, (lb_cuda_ring_name)i);
        lb_cuda_ring *ring = &device->rings[i];
        const uint64_t size = i == LB_CUDA_REPLAYS ? bytes / device->options.replays : bytes;
        if (is_of_graphs(i))
            lb_first_fit_init(&ring->room, size);
        else
            lb_ring_space_init(&ring->space, size);
        if (is_on_device(i)) {
            ring->device = device->arena + on_device;
            on_device += bytes;
        }
        if (is_on_host(i)) {
            ring->host = device->pinned + on_host;
            on_host += bytes;
        }
    }
    device->turns_before = device->pinned + on_host;
    memset(device->rings[LB_CUDA_TURNS].host, 0, ring_bytes(device, LB_CUDA_TURNS));
}

static bool begin_as_zeros(lb_cuda *device)
{
    const CUdeviceptr end = device->rings[LB_CUDA_ZEROED].device;
    return LB_CUDA_CALL(device, MemsetD8Async, device->arena, 0, end - device->arena, device->own) &&
           LB_CUDA_CALL(device, StreamSynchronize, device->own); /* nothing else is in this stream yet */
}

/* As much as the options allow, or half of it, and so on, where a program has left less: what is kept then is less at a
 * time. */
static bool allocate_arena(lb_cuda *device)
{
    for (;;) {
        device->arena_bytes = sum_of(device, is_on_device);
        const CUresult result = device->cuda->MemAlloc(&device->arena, device->arena_bytes);
        const uint64_t half = device->options.device_bytes / 2;
        if (result != CUDA_ERROR_OUT_OF_MEMORY || half < LEAST_DEVICE_BYTES)
            return lb_cuda_ok(device, "cuMemAlloc", result);
        device->options.device_bytes = half;
    }
}

bool lb_cuda_allocate(lb_cuda *device)
{
    if (device->ready) return true;
    if (!lb_cuda_relax(device) || !allocate_arena(device)) return false;
    const uint64_t on_host = sum_of(device, is_on_host) + ring_bytes(device, LB_CUDA_TURNS);
    void *pinned = NULL;
    if (LB_CUDA_CALL(device, MemHostAlloc, &pinned, on_host, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)) {
        device->pinned = pinned;
        device->ready = true;
        cut(device);
        if (begin_as_zeros(device)) return true;
    }
    lb_cuda_free_memory(device); /* which is neither read nor written yet */
    return false;
}

/* Freeing waits for the device, so that nothing is on its way into memory that is gone. */
void lb_cuda_free_memory(lb_cuda *device)
{
    if (device->arena) device->cuda->MemFree(device->arena);
    if (device->pinned) device->cuda->MemFreeHost(device->pinned);
    device->arena = 0;
    device->pinned = NULL;
    device->ready = false;
}

/* ---- pieces of the rings ----------------------------------------------------------------------------------------- */

bool lb_cuda_take_piece(lb_cuda *device, lb_cuda_ring_name ring, lb_cuda_piece *piece)
{
    lb_cuda_ring *from = &device->rings[ring];
    if (is_of_graphs(ring))
        piece->taken = piece->bytes > 0 && lb_first_fit_take(&from->room, piece->bytes, &piece->at);
    else
        piece->taken = piece->bytes > 0 && lb_ring_space_take(&from->space, piece->bytes, &piece->at, &piece->name);
    return piece->taken;
}

void lb_cuda_give_piece(lb_cuda *device, lb_cuda_ring_name ring, lb_cuda_piece *piece)
{
    if (piece->taken && is_of_graphs(ring))
        lb_first_fit_give(&device->rings[ring].room, piece->at);
    else if (piece->taken)
        lb_ring_space_give(&device->rings[ring].space, piece->name);
    piece->taken = false;
}

bool lb_cuda_take(lb_cuda *device, lb_cuda_piece pieces[LB_CUDA_RINGS])
{
    for (int i = 0; i < LB_CUDA_RINGS; i++) {
        lb_cuda_piece *cuda_piece = &pieces[i];
        lb_cuda_take_piece(device, (lb_cuda_ring_name)i, cuda_piece);
        if (cuda_piece->taken || cuda_piece->bytes == 0) continue;
        lb_cuda_give(device, pieces);
        return false;
    }
    return true;
}

void lb_cuda_give(lb_cuda *device, lb_cuda_piece pieces[LB_CUDA_RINGS])
{
    for (int i = 0; i < LB_CUDA_RINGS; i++) lb_cuda_give_piece(device, (lb_cuda_ring_name)i, &pieces[i]);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

CUevent lb_cuda_take_event(lb_cuda *device)
{
    CUevent event = NULL;
    if (device->n_events) return device->events[--device->n_events];
    return lb_cuda_relax(device) && LB_CUDA_CALL(device, EventCreate, &event, CU_EVENT_DISABLE_TIMING) ? event : NULL;
}

void lb_cuda_give_event(lb_cuda *device, CUevent event)
{
    if (!event) return;
    if (device->n_events == device->events_room) {
        const size_t room = device->events_room ? 2 * device->events_room : 64;
        CUevent *more = realloc(device->events, room * sizeof *more);
        if (!more) {
            device->cuda->EventDestroy(event);
            return;
        }
        device->events = more;
        device->events_room = room;
    }
    device->events[device->n_events++] = event;
}
