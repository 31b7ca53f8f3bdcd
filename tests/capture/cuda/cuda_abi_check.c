/* What cuda_abi.h declares is what the public cuda.h declares: this file compiles, or it is not. Nothing of it runs. */
#define __CUDA_API_VERSION_INTERNAL /* every version of a function under its own name */
#include <cuda.h>
#define LB_CUDA_TYPES_ARE_THERE
#include "cuda/cuda_abi.h"

#define SAME_VALUE(NAME, value) _Static_assert((NAME) == (value), #NAME " has another value");
LB_CUDA_CONSTANTS(SAME_VALUE)

#define SAME_TYPE(NAME, symbol, parameters)                                                                            \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), CUresult(*) parameters),                          \
                   #symbol " has another type");
LB_CUDA_FUNCTIONS(SAME_TYPE)
LB_CUDA_OPTIONAL(SAME_TYPE)

_Static_assert(CU_MEMHOSTALLOC_PORTABLE == 1 && CU_MEMHOSTALLOC_DEVICEMAP == 2, "flags of cuMemHostAlloc");
_Static_assert(sizeof(CUresult) == sizeof(unsigned) && sizeof(CUdeviceptr) == 8 && sizeof(CUdevice) == 4 &&
                   sizeof(CUstreamCaptureMode) == 4,
               "sizes of what is passed by value");
