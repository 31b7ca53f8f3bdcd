/* The measuring kernel as it lies in this library, for a process that has a driver at run time. */
#ifndef LB_KERNEL_IMAGE_H
#define LB_KERNEL_IMAGE_H

#include <stddef.h>

#define LB_KERNEL_HEADERS 5

/* `image` is a fat binary for cuModuleLoadData: code of the architectures that capture/device/compile_kernel.cmake
 * names, and PTX of the newest of them. NULL where no nvcc was when the library was built; then `source` and its
 * headers are for NVRTC. Texts end in NUL. */
typedef struct lb_kernel_image {
    const void *image;
    size_t image_bytes;
    const char *compiled; /* of the image: "sm_80, sm_90 by nvcc 13.0" */
    const char *source;
    const char *header_names[LB_KERNEL_HEADERS], *headers[LB_KERNEL_HEADERS];
} lb_kernel_image;
lb_kernel_image lb_kernel_image_get(void);

/* What NVRTC must be told besides the architecture: without it products and sums are fused, and bits differ. */
#define LB_KERNEL_OPTIONS "--std=c++17", "--fmad=false"

#endif
