/* A driver without a device: libcuda.so.1 as far as capture/cuda and a program beside it call it, from the public
 * cuda.h.
 *
 *     device memory   one file in memory, mapped twice: at its device addresses nobody may touch it, at the twin's
 *                     kernels do
 *     stream          a queue and a thread that works it off late: the order between streams is drawn from a seed
 *     kernel          a C function that a test gives under the kernel's name
 *     graph           nodes and their edges; a launch runs them in an order that the edges allow, drawn as well
 *     errors          any call can be told to fail; a kernel that fails leaves the context in error, as a device does
 *
 * It follows the driver's rules where breaking them would go unseen: calls that a capture forbids invalidate it,
 * streams and events belong to their context, copies to the host need pinned memory, a forked child has no driver. What
 * breaks a rule without an error in the driver's interface is a violation: counted, and its text kept. */
#ifndef LB_STANDIN_H
#define LB_STANDIN_H

#include "cuda/cuda_abi.h"

#include <stdbool.h>

#define STANDIN_API __attribute__((visibility("default")))

typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

/* ---- what a program calls and capture/cuda does not -------------------------------------------------------------- */
STANDIN_API CUresult cuInit(unsigned flags);
STANDIN_API CUresult cuCtxSetCurrent(CUcontext context);
STANDIN_API CUresult cuCtxSynchronize(void);
STANDIN_API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
STANDIN_API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
STANDIN_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
STANDIN_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
STANDIN_API CUresult cuGraphExecDestroy(CUgraphExec exec);
STANDIN_API CUresult cuGraphDestroy(CUgraph graph);
#define STANDIN_DECLARE(NAME, symbol, parameters) STANDIN_API CUresult symbol parameters;
LB_CUDA_FUNCTIONS(STANDIN_DECLARE)
LB_CUDA_OPTIONAL(STANDIN_DECLARE)
#undef STANDIN_DECLARE

/* ---- what a test says -------------------------------------------------------------------------------------------- */
typedef struct standin_setup {
    int devices;       /* at most STANDIN_DEVICES */
    uint64_t seed;     /* of delays and orders */
    unsigned delay_us; /* an operation begins up to so much later; 0: at once */
} standin_setup;
#define STANDIN_DEVICES 4
/* Empties everything and begins anew; no call of the driver may be under way. */
STANDIN_API void standin_begin(const standin_setup *setup);

typedef struct standin_launch {
    unsigned grid[3], block[3];
    void **parameters; /* addresses of the kernel's parameters, as cuLaunchKernel has them */
} standin_launch;
typedef struct standin_kernel {
    const char *name;
    bool (*run)(const standin_launch *launch); /* false: an address was none of the device's */
    int n_parameters;
    size_t sizes[8];
} standin_kernel;
/* What modules find from now on. The array stays the caller's. */
STANDIN_API void standin_kernels(const standin_kernel *kernels, int n);
/* Where a kernel finds `bytes` bytes of a device address: NULL where some of them are not allocated. */
STANDIN_API void *standin_twin(CUdeviceptr address, size_t bytes);

/* Streams stop before their next operation, until they are let go on. */
STANDIN_API void standin_hold(void);
STANDIN_API void standin_let_go(void);
/* The call `symbol` that comes after `skip` others returns `result` and does nothing; a symbol "kernel" is the kernel
 * that runs then: its context is left in that error. */
STANDIN_API void standin_fail(const char *symbol, int skip, CUresult result);
STANDIN_API void standin_lose(int device, CUresult result); /* its context is in error from now on */

STANDIN_API int standin_users(int device);           /* of its primary context: retained and not released */
STANDIN_API int standin_waits(void);                 /* times that the host waited for a device */
STANDIN_API int standin_calls(const char *symbol);   /* since standin_begin */
STANDIN_API size_t standin_device_bytes(int device); /* allocated now */
STANDIN_API size_t standin_pinned_bytes(void);
STANDIN_API int standin_violations(const char **first); /* and the text of the first; NULL: not asked for */

#endif
