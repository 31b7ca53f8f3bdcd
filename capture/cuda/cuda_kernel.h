/* The measuring kernels on one device: the fat binary that lies in this library, or what NVRTC makes of their source.
 *
 * NVRTC is not linked either: it is found among what the process has loaded, or beside a library of CUDA that it has
 * loaded. */
#ifndef LB_CUDA_KERNEL_H
#define LB_CUDA_KERNEL_H

#include "cuda/cuda_device.h"
#include "cuda/cuda_driver.h"

typedef struct lb_cuda_kernels {
    CUmodule module;
    CUfunction measure, turn;
} lb_cuda_kernels;

/* Into the context that is current, which is of `device`. */
lb_status lb_cuda_kernels_load(lb_cuda_kernels *kernels, const lb_cuda_driver *cuda, const lb_kernel_image *code,
                               CUdevice device, lb_err *err);

/* Machine code for compute capability `architecture` (90: sm_90) from the source; malloc'ed. */
lb_status lb_cuda_compile(const lb_kernel_image *code, int architecture, void **machine_code, lb_err *err);
/* The path of the NVRTC that would do it. */
bool lb_cuda_compiler(char *path, size_t size);

#endif
