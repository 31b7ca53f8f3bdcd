/* The measuring kernels of capture/device/digest_kernel.cu for the stand-in driver, compiled for the host: a launch
 * runs their source over the twin of device memory. */
#ifndef LB_DEVICE_KERNELS_H
#define LB_DEVICE_KERNELS_H

#include "standin.h"

extern const standin_kernel device_kernels[];
extern const int n_device_kernels;

#endif
