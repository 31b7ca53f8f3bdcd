/* Values that are copied aside behind their op, and measured together: see cuda_inside.h.
 *
 *     gathered   copies on the streams of the program, and on each an event behind the last one
 *     flight     `side` waits for these events; one launch measures all of the copies
 *
 * To copy some kilobytes takes the program's stream a fraction of the time that measuring them there would. What the
 * program does with its memory afterwards does not matter: it was read where the op had put it. */
#include "cuda/cuda_inside.h"

/* ---- what is read where ------------------------------------------------------------------------------------------ */

static lb_cuda_read *find(lb_cuda *device, uint64_t id)
{
    for (unsigned i = 0; i < device->n_reads; i++)
        if (device->reads[i].stream_id == id) return &device->reads[i];
    return NULL;
}

static bool has_room(lb_cuda *device, uint64_t id)
{
    return device->n_reads < LB_CUDA_READS || find(device, id);
}

/* Its caller says at once what is read. NULL: there is no room. */
static lb_cuda_read *get(lb_cuda *device, CUstream stream, uint64_t id)
{
    lb_cuda_read *read = find(device, id);
    if (read || device->n_reads == LB_CUDA_READS) return read;
    read = &device->reads[device->n_reads++];
    *read = (lb_cuda_read){.stream = stream, .stream_id = id};
    return read;
}

void lb_cuda_note_read(lb_cuda *device, const lb_cuda_flight *flight)
{
    lb_cuda_read *read = get(device, flight->stream, flight->stream_id);
    if (!read) {
        device->unlisted = flight->serial;
        return;
    }
    read->last = flight->read; /* which is behind the copies that were made there */
    read->serial = flight->serial;
}

void lb_cuda_forget_reads(lb_cuda *device, uint64_t serial)
{
    for (unsigned i = 0; i < device->n_reads;) {
        lb_cuda_read *read = &device->reads[i];
        if (read->serial > serial) {
            i++;
        } else if (read->gathered) { /* the event of that flight is about to be another's */
            read->last = read->copied;
            read->serial = LB_CUDA_GATHERED;
            i++;
        } else {
            lb_cuda_give_event(device, read->copied);
            *read = device->reads[--device->n_reads];
        }
    }
    if (device->unlisted <= serial) device->unlisted = 0;
}

void lb_cuda_wait_for_program(lb_cuda *device, CUstream stream, uint64_t id)
{
    for (unsigned i = 0; i < device->n_reads; i++) {
        const lb_cuda_read *read = &device->reads[i];
        if (read->stream_id != id && !LB_CUDA_CALL(device, StreamWaitEvent, stream, read->last, 0)) return;
    }
    if (device->unlisted) lb_cuda_wait_for_reads(device, stream, device->first, device->unlisted);
}

/* ---- gathering --------------------------------------------------------------------------------------------------- */

static uint64_t most_bytes(const lb_cuda *device)
{
    const uint64_t share = device->rings[LB_CUDA_STAGING].space.size / 16;
    return share < LB_CUDA_ASIDE_BYTES ? share : LB_CUDA_ASIDE_BYTES;
}

/* The same value in its copy. */
static lb_measuring moved(const lb_cuda *device, const lb_device_work *work, const lb_cuda_piece *aside)
{
    lb_measuring item = work->item;
    if (!aside->taken) return item; /* it has no bytes */
    const uintptr_t data = (uintptr_t)item.tensor.data, dense = (uintptr_t)item.dense,
                    there = (uintptr_t)(device->rings[LB_CUDA_STAGING].device + aside->at);
    item.tensor.data = (void *)(there + (data - dense));
    item.dense = (const void *)there;
    return item;
}

static bool plan(lb_cuda *device, lb_device_work *work, const lb_cuda_piece *aside, bool may_wait)
{
    lb_cuda_plan *gathered = &device->gathered;
    const lb_measuring item = moved(device, work, aside);
    gathered->items = device->gathered_items;
    lb_cuda_planned planned = lb_cuda_plan_work(device, gathered, work, &item, work->bytes);
    if (planned == LB_CUDA_FULL && lb_cuda_flush(device, may_wait))
        planned = lb_cuda_plan_work(device, gathered, work, &item, work->bytes);
    if (planned != LB_CUDA_TAKEN) return false;
    gathered->jobs[gathered->n_jobs - 1].aside = *aside;
    device->gathered_bytes += aside->bytes;
    work->state = LB_WORK_UNDER_WAY;
    work->slot = LB_CUDA_GATHERED;
    return true;
}

/* Behind what was queued on the stream by now. False: the device is lost. */
static bool copy(lb_cuda *device, const lb_device_work *work, uint64_t at, CUstream stream, uint64_t id)
{
    lb_cuda_read *read = get(device, stream, id); /* flushing makes no entry, so that there is room still */
    if (!read->copied && !(read->copied = lb_cuda_take_event(device))) return false;
    read->last = read->copied;
    read->serial = LB_CUDA_GATHERED;
    read->gathered = true;
    return LB_CUDA_CALL(device, MemcpyDtoDAsync, device->rings[LB_CUDA_STAGING].device + at,
                        (CUdeviceptr)(uintptr_t)work->item.dense, work->item.dense_bytes, stream) &&
           LB_CUDA_CALL(device, EventRecord, read->copied, stream);
}

bool lb_cuda_gather(lb_cuda *device, lb_device_work *work, CUstream stream, uint64_t id, bool may_wait)
{
    const uint64_t bytes = work->item.dense_bytes;
    lb_cuda_piece aside = {.bytes = bytes};
    if (!work->measured || bytes > most_bytes(device) || !has_room(device, id)) return false;
    if (!device->cuda->StreamGetId) return false; /* the event of a stream may be that of its handle's next one */
    if (bytes && !lb_cuda_take_piece(device, LB_CUDA_STAGING, &aside)) return false;
    if (!plan(device, work, &aside, may_wait)) {
        lb_cuda_give_piece(device, LB_CUDA_STAGING, &aside);
        return false;
    }
    if (bytes && !copy(device, work, aside.at, stream, id)) return true;
    if (device->gathered.n_jobs >= LB_CUDA_TOGETHER || device->gathered_bytes >= 4 * most_bytes(device))
        lb_cuda_flush(device, false);
    return true;
}

/* ---- measuring together ------------------------------------------------------------------------------------------ */

static bool wait_for_copies(lb_cuda *device, uint64_t serial)
{
    for (unsigned i = 0; i < device->n_reads; i++) {
        lb_cuda_read *read = &device->reads[i];
        if (!read->gathered) continue;
        if (!LB_CUDA_CALL(device, StreamWaitEvent, device->side, read->copied, 0)) return false;
        read->gathered = false;
        if (read->serial == LB_CUDA_GATHERED) read->serial = serial;
    }
    return true;
}

/* Bytes that are wanted go to the host from where they were copied. Those of values that follow each other lie behind
 * each other there as here, but where a ring begins anew or a value is there whose bytes are not wanted. */
static bool send(lb_cuda *device, const lb_cuda_flight *flight)
{
    const lb_cuda_ring *from = &device->rings[LB_CUDA_STAGING], *to = &device->rings[LB_CUDA_PINNED];
    uint64_t first = 0, at = 0, bytes = 0; /* a run of them, from `first` there to `at` here */
    if (!flight->pieces[LB_CUDA_PINNED].taken) return true;
    if (!LB_CUDA_CALL(device, StreamWaitEvent, device->own, flight->read, 0)) return false;
    for (size_t i = 0; i <= flight->n; i++) {
        const lb_cuda_job *job = i < flight->n ? &flight->jobs[i] : NULL;
        if (job && (!job->copied || !job->aside.taken)) continue;
        if (job && bytes && job->aside.at - first < bytes + LB_SPACE_ALIGN) { /* then so it is in PINNED */
            bytes = job->aside.at - first + job->aside.bytes;
            continue;
        }
        if (bytes && !LB_CUDA_CALL(device, MemcpyDtoHAsync, to->host + flight->pieces[LB_CUDA_PINNED].at + at,
                                   from->device + first, bytes, device->own))
            return false;
        if (job) first = job->aside.at, at = job->bytes_at, bytes = job->aside.bytes;
    }
    return true;
}

bool lb_cuda_flush(lb_cuda *device, bool may_wait)
{
    lb_cuda_plan *gathered = &device->gathered;
    const size_t n_items = gathered->n_items;
    if (!gathered->n_jobs) return true;
    lb_cuda_flight *flight = lb_cuda_take_off(device, gathered, device->side, device->side_id, may_wait);
    if (!gathered->n_jobs) device->gathered_bytes = 0;
    if (!flight) return !gathered->n_jobs && !lb_cuda_is_lost(device);
    flight->aside = true;
    flight->read = lb_cuda_take_event(device);
    return flight->read && wait_for_copies(device, flight->serial) &&
           lb_cuda_measure(device, flight, device->gathered_items, n_items) &&
           LB_CUDA_CALL(device, EventRecord, flight->read, device->side) && send(device, flight);
}
