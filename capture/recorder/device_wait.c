/* What a call of the recorder would wait for in the middle of its work, told before it begins: the host waits for that
 * with no lock of ours, and the call itself finds a device that has come so far.
 *
 * A thread that waits with a lock may wait for ever: what the device waits for may be another thread's to queue. */
#include "recorder/operation.h"
#include "recorder/recorder.h"
#include "recorder/value_intake.h"
#include "cuda/cuda_device.h"

void lb_device_wait_for(const lb_device_wait *wait)
{
    if (wait->context) lb_cuda_wait(wait->context, wait->stream);
}

/* Of CUDA nothing is named that cannot be waited for. */
static bool name(lb_device_wait *wait, const lb_device *device, int64_t storage, void *stream)
{
    *wait = (lb_device_wait){.storage = storage, .stream = stream};
    wait->copies = !device->ops->asynchronous;
    wait->context = wait->copies ? NULL : lb_cuda_context(device);
    return wait->copies || wait->context;
}

/* As lb_value_intake_value has it: bytes that no op of the program made are read, others are compared where that is
 * asked for. */
static bool is_read(lb_recorder *recorder, const lb_host_tensor *seen, bool compared)
{
    lb_tracked *storage = lb_tracked_set_find(&recorder->storages, seen->storage);
    if (!storage || storage->program != recorder->serial) return true;
    if (lb_graph_is_ahead(&recorder->run, storage) || !lb_device_bytes_readable(storage, seen)) return false;
    const size_t width = lb_dtype_bits(seen->dtype) / 8;
    if (lb_tracked_map_has(&storage->map, &seen->layout, width, LB_BYTES_UNKNOWN) ||
        lb_tracked_map_has(&storage->map, &seen->layout, width, LB_BYTES_LEFT))
        return true;
    const lb_tracked_window *window = lb_tracked_find_window(storage, lb_tracked_window_hash(seen));
    return window && window->row != LB_NONE && (storage->escaped || (compared && !window->verified));
}

static bool waits(lb_recorder *recorder, const lb_host_tensor *seen, bool made, bool compared, lb_device_wait *wait)
{
    const lb_device *device = lb_device_of(recorder, seen);
    if (!device || seen->storage_bytes == 0 || *device->ops->why_lost(device)) return false;
    if (device->ops->asynchronous && (made || !is_read(recorder, seen, compared))) return false;
    return name(wait, device, seen->storage, seen->stream);
}

bool lb_recorder_waits(lb_recorder *recorder, const lb_host_tensor *const *tensors, uint32_t n,
                       const lb_pending *pending, bool compared, lb_device_wait *wait)
{
    bool found = false;
    pthread_mutex_lock(&recorder->lock);
    const bool reads = !recorder->dead && recorder->program && !lb_graph_is_captured(recorder);
    const lb_host_tensor *from = reads && pending ? lb_operation_late_from(pending) : NULL;
    for (uint32_t i = 0; i < n && reads && !found; i++) found = waits(recorder, tensors[i], pending, compared, wait);
    if (from && !found) found = waits(recorder, from, true, false, wait);
    pthread_mutex_unlock(&recorder->lock);
    return found;
}

uint32_t lb_recorder_waits_at_end(lb_recorder *recorder, lb_device_wait *list, uint32_t room)
{
    uint32_t n = 0;
    pthread_mutex_lock(&recorder->lock);
    const lb_device *device;
    void *stream;
    for (const lb_in_flight *in_flight = recorder->dead ? NULL : recorder->in_flight.first;
         n < room && (in_flight = lb_in_flight_next(in_flight, &device, &stream));
         in_flight = lb_in_flight_after(in_flight)) {
        bool known = false;
        const bool named = name(&list[n], device, 0, stream);
        for (uint32_t i = 0; i < n; i++) known |= list[i].stream == stream && list[i].context == list[n].context;
        n += named && !known;
    }
    pthread_mutex_unlock(&recorder->lock);
    return n;
}
