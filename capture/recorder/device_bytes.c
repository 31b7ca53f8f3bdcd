/* Bytes and digests of values wherever they lie: in memory of the host, or on a device that the host program
 * registered.
 *
 * What was fetched last is remembered, so that a value that is measured and then kept comes from the device once. */
#include "recorder/recorder.h"
#include "device/device_copy.h"

#include "base/array.h"
#include <stdlib.h>
#include <sys/mman.h>

struct lb_device_entry {
    uint8_t device, unit;
    lb_device *back_end;
};

#define MOST_FETCHED (64u << 20) /* bytes that are held between two ops */

lb_status lb_recorder_device(lb_recorder *recorder, uint8_t device, uint8_t unit, const lb_device_access *access,
                             lb_err *err)
{
    if (access->size != sizeof *access)
        return lb_fail(err, LB_ERR_INVALID, "lb_device_access of another version of lastbit");
    if (device == 0 || !access->copy)
        return lb_fail(err, LB_ERR_INVALID, "a device has a number above 0 and a function that copies from it");
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status != LB_OK) return lb_recorder_unlock(recorder, status);
    lb_device *back_end = lb_device_copy_new(access);
    status = back_end ? lb_devices_add(&recorder->devices, device, unit, back_end, err) : lb_recorder_no_memory(err);
    return lb_recorder_unlock(recorder, status);
}

lb_status lb_devices_add(lb_devices *devices, uint8_t device, uint8_t unit, lb_device *back_end, lb_err *err)
{
    lb_device_entry *list = lb_array_grow(devices->list, devices->n, sizeof *list);
    if (!list) {
        back_end->ops->close(back_end);
        return lb_recorder_no_memory(err);
    }
    devices->list = list;
    list[devices->n++] = (lb_device_entry){device, unit, back_end};
    return LB_OK;
}

/* The newest registration that fits. */
static lb_device *registered(const lb_devices *devices, uint8_t device, uint8_t unit)
{
    for (uint32_t i = devices->n; i-- > 0;)
        if (devices->list[i].device == device && devices->list[i].unit == unit) return devices->list[i].back_end;
    return NULL;
}

lb_device *lb_device_of(lb_recorder *recorder, const lb_host_tensor *seen)
{
    if (seen->device == 0) return NULL;
    lb_device *device = registered(&recorder->devices, seen->device, seen->unit);
    if (!device) device = lb_device_cuda(recorder, seen);
    return device ? device : registered(&recorder->devices, seen->device, LB_EVERY_UNIT);
}

void lb_devices_close(lb_devices *devices, bool forked)
{
    for (uint32_t i = 0; i < devices->n; i++) {
        lb_device *device = devices->list[i].back_end;
        if (forked)
            device->ops->abandon(device);
        else
            device->ops->close(device);
    }
    free(devices->list);
    free(devices->fetched.bytes);
    *devices = (lb_devices){0};
}

void lb_devices_run(const lb_tape *tape)
{
    for (uint32_t i = 0; i < tape->n_devices; i++) {
        const lb_taped_device *of = &tape->devices[i];
        of->device->ops->runs(of->device, of->first, of->last);
    }
}

void lb_devices_ran(const lb_tape *tape, bool launched, void *stream)
{
    for (uint32_t i = 0; i < tape->n_devices; i++) {
        const lb_taped_device *of = &tape->devices[i];
        if (launched)
            of->device->ops->ran(of->device, of->first, of->last, stream);
        else
            of->device->ops->failed(of->device, of->first, of->last);
    }
}

void lb_devices_hear(lb_recorder *recorder)
{
    uint64_t unheard = 0;
    for (uint32_t i = 0; i < recorder->devices.n; i++) {
        lb_device *device = recorder->devices.list[i].back_end;
        if (device->ops->unheard) unheard += device->ops->unheard(device);
    }
    if (unheard > recorder->devices.n_unreported_runs)
        lb_recorder_note(recorder, "graph", "a graph ran by other means than its replay(): its ops are in no step");
    recorder->devices.n_unreported_runs = unheard;
}

json_t *lb_devices_account(const lb_devices *devices)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < devices->n; i++) {
        const lb_device_entry *entry = &devices->list[i];
        uint64_t memory = 0, skipped = 0;
        entry->back_end->ops->account(entry->back_end, &memory, &skipped);
        if (entry->unit == LB_EVERY_UNIT && !skipped && !memory) continue; /* it stands by */
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:o, s:I, s:I}", "kind", entry->device == 1 ? "cuda" : "other",
                                        "back_end", entry->back_end->ops->name, "unit",
                                        entry->unit == LB_EVERY_UNIT ? json_null() : json_integer(entry->unit),
                                        "memory_bytes", (json_int_t)memory, "skipped", (json_int_t)skipped));
    }
    if (json_array_size(list)) return list;
    json_decref(list);
    return NULL;
}

static bool device_answers(const lb_device *device)
{
    return !*device->ops->why_lost(device);
}

/* What the host program copies it must know, and it has freed what has a key of ours: there only a graph reads, while
 * it runs. */
static bool can_be_read(const lb_tracked *storage)
{
    return device_answers(storage->device) &&
           (storage->device->ops->asynchronous || storage->ahead || !lb_tape_is_ours(storage->key));
}

bool lb_device_bytes_readable(const lb_tracked *storage, const lb_host_tensor *seen)
{
    if (!storage->base || lb_dtype_bits(seen->dtype) / 8 == 0) return false;
    return seen->device == 0 || (storage->device && can_be_read(storage));
}

/* ---- what was fetched -------------------------------------------------------------------------------------------- */

static bool is_fetched(const lb_device_fetched *fetched, const lb_tracked *storage, uint64_t first, uint64_t last)
{
    return fetched->last > fetched->first && fetched->id == storage->id && fetched->version == storage->version &&
           fetched->first <= first && fetched->last >= last;
}

#define LARGE_PAGE (2u << 20)

/* A large room is asked of the system in large pages, where it has them: touching half a gigabyte for the first time
 * takes longer in small ones than the device takes to send it. */
static uint8_t *new_room(uint64_t bytes)
{
    void *room = NULL;
    if (bytes < 4 * LARGE_PAGE) return malloc(bytes ? bytes : 1);
    if (posix_memalign(&room, LARGE_PAGE, bytes)) return NULL;
    madvise(room, bytes, MADV_HUGEPAGE);
    return room;
}

static uint8_t *room_for(lb_device_fetched *fetched, uint64_t bytes)
{
    fetched->first = fetched->last = 0;
    if (fetched->capacity >= bytes && fetched->bytes) return fetched->bytes;
    free(fetched->bytes);
    fetched->bytes = new_room(bytes);
    fetched->capacity = fetched->bytes ? bytes : 0;
    return fetched->bytes;
}

void lb_device_bytes_trim(lb_devices *devices)
{
    lb_device_fetched *fetched = &devices->fetched;
    if (fetched->capacity <= MOST_FETCHED) return;
    free(fetched->bytes);
    *fetched = (lb_device_fetched){0};
}

void lb_device_bytes_missing(lb_recorder *recorder, const lb_device *device, lb_work_state state)
{
    if (state == LB_WORK_LOST) {
        char text[300];
        snprintf(text, sizeof text, "a device is not read any more: %s", device->ops->why_lost(device));
        lb_recorder_note(recorder, "device", text);
    } else {
        lb_recorder_note(recorder, "device",
                         "a value was not read: a graph was being captured, or no room was left for it");
    }
}

/* True when the device gave what the work asks for. */
static bool run(lb_recorder *recorder, const lb_tracked *storage, lb_device_work *work)
{
    lb_device *device = storage->device;
    lb_device_work *works[] = {work};
    work->awaited = true;
    device->ops->submit(device, works, 1, storage->stream, true);
    if (work->state == LB_WORK_UNDER_WAY) device->ops->collect(device, work, true);
    if (work->state == LB_WORK_DONE) return true;
    lb_device_bytes_missing(recorder, device, work->state);
    return false;
}

void lb_device_bytes_arrive(lb_recorder *recorder, const lb_tracked *storage)
{
    if (storage->late > recorder->in_flight.n_arrived) lb_in_flight_wait(&recorder->in_flight);
}

static const uint8_t *of_host(lb_recorder *recorder, const lb_tracked *storage)
{
    lb_device_bytes_arrive(recorder, storage);
    return storage->base;
}

bool lb_device_bytes_wait(lb_recorder *recorder, lb_tracked *storage)
{
    return storage->bytes == 0 || (storage->device && lb_device_bytes_fresh(recorder, storage, 0, 1));
}

const uint8_t *lb_device_bytes_of(lb_recorder *recorder, const lb_tracked *storage, uint64_t first, uint64_t last)
{
    if (!storage->device) return of_host(recorder, storage) + first;
    lb_device_fetched *fetched = &recorder->devices.fetched;
    if (lb_graph_is_ahead(&recorder->run, storage)) return NULL;
    if (is_fetched(fetched, storage, first, last)) return fetched->bytes + (first - fetched->first);
    return lb_device_bytes_fresh(recorder, storage, first, last);
}

const uint8_t *lb_device_bytes_fresh(lb_recorder *recorder, const lb_tracked *storage, uint64_t first, uint64_t last)
{
    if (!storage->device) return of_host(recorder, storage) + first;
    lb_device_fetched *fetched = &recorder->devices.fetched;
    if (lb_graph_is_ahead(&recorder->run, storage)) return NULL;
    uint8_t *room = can_be_read(storage) ? room_for(fetched, last - first) : NULL;
    if (!room) return NULL;
    lb_device_work work = {.item = {.dense = storage->base + first, .dense_bytes = (size_t)(last - first)},
                           .bytes = room,
                           .storage = storage->key,
                           .first = first};
    if (!run(recorder, storage, &work)) return NULL;
    fetched->id = storage->id, fetched->version = storage->version, fetched->first = first, fetched->last = last;
    return room;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

lb_status lb_device_bytes_take(lb_recorder *recorder, const lb_tracked *storage, lb_measuring *item, bool bytes,
                               bool *there, lb_err *err)
{
    if (!storage->device) {
        lb_device_bytes_arrive(recorder, storage);
        *there = lb_measure(item, 1);
        return *there ? LB_OK : lb_recorder_no_memory(err);
    }
    *there = !bytes && lb_ahead_take(&recorder->ahead, item);
    if (*there) return LB_OK;
    lb_device_fetched *fetched = &recorder->devices.fetched;
    const uint64_t first = (uint64_t)((const uint8_t *)item->dense - storage->base);
    lb_device_work work = {.item = *item,
                           .measured = true,
                           .bytes = bytes ? room_for(fetched, item->dense_bytes) : NULL,
                           .storage = storage->key,
                           .first = first};
    *there = !lb_graph_is_ahead(&recorder->run, storage) && can_be_read(storage) && run(recorder, storage, &work);
    if (!*there) return LB_OK;
    item->out = work.item.out;
    if (work.bytes)
        fetched->id = storage->id, fetched->version = storage->version, fetched->first = first,
        fetched->last = first + item->dense_bytes;
    return LB_OK;
}
