/* How flights end: their results and leaves are fetched into the mirrors of the rings, many flights at once, and given
 * to the works.
 *
 *     queued ──read is done, or may be waited for──▶ fetched on our own stream ──▶ given to the works, pieces free again
 */
#include "cuda/cuda_inside.h"
#include "measure/pool.h"

#include <stdlib.h>
#include <string.h>

/* ---- order ------------------------------------------------------------------------------------------------------- */

#define MOST_STREAMS 16

/* Of each stream only the last read matters. Flights of more streams than we remember are waited for one by one. */
bool lb_cuda_wait_for_reads(lb_cuda *device, CUstream stream, const lb_cuda_flight *from, uint64_t serial)
{
    const lb_cuda_flight *last[MOST_STREAMS];
    const uint64_t own = from ? lb_cuda_stream_id(device, stream) : 0;
    int n = 0;
    for (const lb_cuda_flight *cuda_flight = from; cuda_flight && cuda_flight->serial <= serial;
         cuda_flight = cuda_flight->next) {
        int i = 0;
        while (i < n && last[i]->stream_id != cuda_flight->stream_id) i++;
        if (cuda_flight->stream_id == own) continue;
        if (i == MOST_STREAMS && !LB_CUDA_CALL(device, StreamWaitEvent, stream, cuda_flight->read, 0)) return false;
        if (i < MOST_STREAMS) last[i] = cuda_flight;
        if (i == n && n < MOST_STREAMS) n++;
    }
    for (int i = 0; i < n; i++)
        if (!LB_CUDA_CALL(device, StreamWaitEvent, stream, last[i]->read, 0)) return false;
    return true;
}

/* Whether the device has come so far; false also when it is lost. */
static bool is_done(lb_cuda *device, CUevent event)
{
    const CUresult result = device->cuda->EventQuery(event);
    return result != CUDA_ERROR_NOT_READY && lb_cuda_ok(device, "cuEventQuery", result);
}

/* ---- fetching ---------------------------------------------------------------------------------------------------- */

typedef struct range {
    uint64_t from, to;
} range;

static bool fetch_range(lb_cuda *device, lb_cuda_ring_name ring, const range *range)
{
    const lb_cuda_ring *of = &device->rings[ring];
    if (range->from == range->to) return true;
    return LB_CUDA_CALL(device, MemcpyDtoHAsync, of->host + range->from, of->device + range->from,
                        range->to - range->from, device->own);
}

/* Pieces of flights that follow each other lie behind each other, but where the ring begins anew. */
static bool fetch_ring(lb_cuda *device, lb_cuda_ring_name ring, const lb_cuda_flight *from, uint64_t serial)
{
    range piled = {0, 0};
    for (const lb_cuda_flight *flight = from; flight && flight->serial <= serial; flight = flight->next) {
        const lb_cuda_piece *piece = &flight->pieces[ring];
        if (!piece->taken) continue;
        if (piled.to <= piece->at && piece->at - piled.to < LB_SPACE_ALIGN && piled.from != piled.to) {
            piled.to = piece->at + piece->bytes;
            continue;
        }
        if (!fetch_range(device, ring, &piled)) return false;
        piled = (range){piece->at, piece->at + piece->bytes};
    }
    return fetch_range(device, ring, &piled);
}

/* All flights up to `serial` that are not fetched yet. */
static bool fetch(lb_cuda *device, uint64_t serial)
{
    lb_cuda_flight *from = device->first, *last = NULL;
    while (from && from->fetching) from = from->next;
    for (lb_cuda_flight *cuda_flight = from; cuda_flight && cuda_flight->serial <= serial;
         cuda_flight = cuda_flight->next)
        last = cuda_flight;
    if (!last) return true;
    CUevent done = lb_cuda_take_event(device);
    if (!done || !lb_cuda_wait_for_reads(device, device->own, from, serial) ||
        !fetch_ring(device, LB_CUDA_RESULTS, from, serial) || !fetch_ring(device, LB_CUDA_SCRATCH, from, serial) ||
        !LB_CUDA_CALL(device, EventRecord, done, device->own))
        return false;
    for (lb_cuda_flight *cuda_flight = from; cuda_flight != last->next; cuda_flight = cuda_flight->next)
        cuda_flight->fetching = true;
    last->fetched = done;
    return true;
}

/* ---- copying on the host ----------------------------------------------------------------------------------------- */

#define COPY_PART (4u << 20)

typedef struct copy {
    char *to;
    const char *from;
    uint64_t bytes;
} copy;

static void copy_part(void *context, size_t i)
{
    const copy *copy = context;
    const uint64_t at = (uint64_t)i * COPY_PART, left = copy->bytes - at;
    memcpy(copy->to + at, copy->from + at, left < COPY_PART ? left : COPY_PART);
}

/* One thread copies some GB a second, less than the device sends. */
static void copy_bytes(void *to, const void *from, uint64_t bytes)
{
    copy copy = {to, from, bytes};
    lb_pool_run((size_t)((bytes + COPY_PART - 1) / COPY_PART), copy_part, &copy);
}

/* ---- giving ------------------------------------------------------------------------------------------------------ */

static bool give_leaves(const char *scratch, const lb_measuring *item, lb_measured *out)
{
    const uint64_t bytes = lb_dtype_bytes(item->tensor.dtype, (size_t)lb_layout_numel(&item->tensor.layout));
    if (!lb_layout_is_contiguous(&item->tensor.layout)) return true;
    out->n_leaves = (uint32_t)((bytes + LB_DIGEST_LEAF - 1) / LB_DIGEST_LEAF);
    out->leaves = malloc((out->n_leaves + 1) * sizeof out->leaves[0]);
    if (!out->leaves) return false;
    memcpy(out->leaves, scratch, out->n_leaves * sizeof out->leaves[0]);
    return true;
}

static void give_job(lb_cuda *device, const lb_cuda_flight *flight, const lb_cuda_job *job)
{
    lb_device_work *work = job->work;
    if (job->result >= 0) {
        const lb_kernel_result *result = (const lb_kernel_result *)(const void *)(device->rings[LB_CUDA_RESULTS].host +
                                                                                  flight->pieces[LB_CUDA_RESULTS].at) +
                                         job->result;
        const char *scratch =
            device->rings[LB_CUDA_SCRATCH].host + flight->pieces[LB_CUDA_SCRATCH].at + job->scratch_at;
        if (result->whole != 1 + flight->first_slot + (uint64_t)job->result) {
            lb_fail(&device->lost, LB_ERR_IO, "the measuring kernel ended without a result");
            work->state = LB_WORK_LOST;
            return;
        }
        work->item.out = lb_kernel_measured(result);
        if (!give_leaves(scratch, &work->item, &work->item.out)) {
            lb_cuda_skip(device, work);
            return;
        }
    }
    if (job->copied)
        copy_bytes(work->bytes, device->rings[LB_CUDA_PINNED].host + flight->pieces[LB_CUDA_PINNED].at + job->bytes_at,
                   work->item.dense_bytes);
    work->state = LB_WORK_DONE;
}

static void finish_first(lb_cuda *device)
{
    lb_cuda_flight *flight = device->first;
    for (size_t i = 0; i < flight->n; i++) give_job(device, flight, &flight->jobs[i]);
    device->first = flight->next;
    if (!device->first) device->last = &device->first;
    for (size_t i = 0; i < flight->n; i++) lb_cuda_give_piece(device, LB_CUDA_STAGING, &flight->jobs[i].aside);
    lb_cuda_give(device, flight->pieces);
    lb_cuda_forget_reads(device, flight->serial);
    lb_cuda_give_event(device, flight->read);
    lb_cuda_give_event(device, flight->fetched);
    free(flight);
}

/* Finishes the flights that were fetched together first; false when they are not there yet, or none are fetched. */
static bool finish_group(lb_cuda *device, bool wait)
{
    const lb_cuda_flight *last = device->first;
    if (!last || !last->fetching) return false;
    while (!last->fetched) last = last->next;
    const bool done = wait ? LB_CUDA_CALL(device, EventSynchronize, last->fetched) : is_done(device, last->fetched);
    if (!done) return false;
    for (const uint64_t serial = last->serial; device->first && device->first->serial <= serial;) finish_first(device);
    return true;
}

/* Without waiting: a fetch is queued behind all that is under way, one at a time. */
void lb_cuda_drain(lb_cuda *device, uint64_t serial, bool wait)
{
    if (!device->first || !lb_cuda_relax(device)) return;
    while (!lb_cuda_is_lost(device) && finish_group(device, false)) {
    }
    if (lb_cuda_is_lost(device) || (!wait && device->first && device->first->fetching)) return;
    if (!fetch(device, wait ? serial : device->serial)) return;
    while (wait && device->first && device->first->serial <= serial && !lb_cuda_is_lost(device))
        if (!finish_group(device, true)) return;
}

/* ---- bytes that no ring holds ------------------------------------------------------------------------------------ */

/* While one half of the ring is copied on, the other one is filled. */
typedef struct turns {
    char *halves[2];
    CUevent there[2];
    uint64_t half; /* bytes */
    CUdeviceptr from;
    uint64_t bytes;
    CUstream stream;
} turns;

static uint64_t turn_bytes(const turns *turns, uint64_t turn)
{
    const uint64_t at = turn * turns->half;
    return at >= turns->bytes ? 0 : turns->bytes - at < turns->half ? turns->bytes - at : turns->half;
}

static bool begin_turn(lb_cuda *device, const turns *turns, uint64_t turn)
{
    const uint64_t n = turn_bytes(turns, turn);
    return n == 0 || (LB_CUDA_CALL(device, MemcpyDtoHAsync, turns->halves[turn % 2], turns->from + turn * turns->half,
                                   n, turns->stream) &&
                      LB_CUDA_CALL(device, EventRecord, turns->there[turn % 2], turns->stream));
}

bool lb_cuda_copy_in_turns(lb_cuda *device, void *to, CUdeviceptr from, uint64_t bytes, CUstream stream)
{
    lb_cuda_ring *ring = &device->rings[LB_CUDA_PINNED];
    lb_cuda_drain(device, device->serial, true);
    if (!lb_cuda_relax(device)) return false;
    const uint64_t half = ring->space.size / 2;
    turns turns = {{ring->host, ring->host + half}, {lb_cuda_take_event(device), NULL}, half, from, bytes, stream};
    turns.there[1] = turns.there[0] ? lb_cuda_take_event(device) : NULL;
    bool good = turns.there[1] && begin_turn(device, &turns, 0);
    for (uint64_t turn = 0; good && turn_bytes(&turns, turn); turn++) {
        good = begin_turn(device, &turns, turn + 1) && LB_CUDA_CALL(device, EventSynchronize, turns.there[turn % 2]);
        if (good) copy_bytes((char *)to + turn * half, turns.halves[turn % 2], turn_bytes(&turns, turn));
    }
    if (!good) device->cuda->StreamSynchronize(stream); /* nothing writes to the ring any more */
    for (int i = 0; i < 2; i++) lb_cuda_give_event(device, turns.there[i]);
    return good;
}
