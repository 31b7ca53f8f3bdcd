/* Devices of CUDA found as their tensors are met: the back end works in the context that the host program made, so none
 * is opened before. Where it cannot be opened, the host program's own copy (lb_recorder_device) stands in. */
#include "recorder/recorder.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_driver.h"

#define CUDA 1 /* lb_host_tensor.device */
#define MOST_UNITS 64

lb_status lb_recorder_cuda(lb_recorder *recorder, uint64_t device_bytes, lb_err *err)
{
    lb_status status = lb_recorder_lock(recorder, false, err);
    if (status == LB_OK) recorder->cuda.bytes = device_bytes ? device_bytes : LB_CUDA_DEVICE_BYTES;
    return lb_recorder_unlock(recorder, status);
}

static void give_up(lb_recorder *recorder, uint8_t unit, const lb_err *why)
{
    char text[sizeof why->message + 64];
    recorder->cuda.tried |= 1ull << unit;
    if (why->status == LB_OK) return;
    snprintf(text, sizeof text, "device %u of CUDA is not measured where its values lie: %s", unit, why->message);
    lb_recorder_note(recorder, "device", text);
}

lb_device *lb_device_cuda(lb_recorder *recorder, const lb_host_tensor *seen)
{
    const uint8_t unit = seen->unit;
    if (seen->device != CUDA || !recorder->cuda.bytes || unit >= MOST_UNITS || recorder->cuda.tried >> unit & 1)
        return NULL;
    lb_err why = LB_ERR_INIT;
    const lb_cuda_driver *cuda = lb_cuda_driver_get(&why);
    lb_device *device = NULL;
    lb_cuda_options options = LB_CUDA_OPTIONS_INIT;
    options.device_bytes = recorder->cuda.bytes;
    options.code = recorder->cuda.code;
    options.unit = unit;
    if (cuda && lb_cuda_open(&device, &options, &why) == LB_OK && !device) return NULL; /* not yet */
    if (device && lb_cuda_check(device, &why) != LB_OK) {
        device->ops->close(device);
        device = NULL;
    }
    give_up(recorder, unit, &why); /* it is not tried again in any case */
    return device && lb_devices_add(&recorder->devices, CUDA, unit, device, NULL) == LB_OK ? device : NULL;
}
