/* Opens the back end of a CUDA device when the recorder first sees a tensor on it. */
#ifndef LB_DEVICE_CUDA_H
#define LB_DEVICE_CUDA_H

#include "device/device.h"
#include "device/kernel_image.h"

#include <lastbit/capture.h>

typedef struct lb_device_cuda_units {
    uint64_t bytes;              /* of each device, for what is measured there; 0: CUDA is not measured where it lies */
    uint64_t tried;              /* a bit per unit that has a back end, or will get none */
    const lb_kernel_image *code; /* NULL: the kernels that lie in this library */
} lb_device_cuda_units;

/* The back end of the tensor's device, opened now; NULL: there is none, or not yet. */
lb_device *lb_device_cuda(lb_recorder *recorder, const lb_host_tensor *seen);

#endif
