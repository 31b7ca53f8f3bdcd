/* The driver as a table of functions, found at run time in the library that the host program has loaded.
 *
 * Nothing of CUDA is linked and nothing is loaded here: a process that has no libcuda.so.1 has no device memory to be
 * read. No function here makes a context or initialises the driver. The table is found once per process and stays. */
#ifndef LB_CUDA_DRIVER_H
#define LB_CUDA_DRIVER_H

#include "cuda/cuda_abi.h"

#include <lastbit/error.h>

typedef struct lb_cuda_driver {
#define LB_CUDA_FIELD(NAME, symbol, parameters) CUresult(*NAME) parameters;
    LB_CUDA_FUNCTIONS(LB_CUDA_FIELD)
    LB_CUDA_OPTIONAL(LB_CUDA_FIELD) /* NULL where the driver has none */
#undef LB_CUDA_FIELD
    int version; /* 12080 for 12.8; 0: it does not say */
} lb_cuda_driver;

/* NULL where the process has not loaded the driver (no error), or where a function is missing that no device can be
 * measured without (error). */
const lb_cuda_driver *lb_cuda_driver_get(lb_err *err);
/* "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED" as an error of `err`: LB_ERR_NOMEM where memory is short, else
 * LB_ERR_IO. */
lb_status lb_cuda_failed(const lb_cuda_driver *cuda, const char *call, CUresult result, lb_err *err);

#endif
