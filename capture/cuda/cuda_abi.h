/* The part of CUDA's driver interface that the reader calls: types, constants and prototypes of its stable binary
 * interface, so that no header of CUDA is needed to build. All names are those of the public cuda.h.
 *
 * Functions are listed with the symbol that a current cuda.h maps them to (cuMemAlloc is cuMemAlloc_v2 in the library).
 * tests/capture/cuda/cuda_abi_check.c holds all of it against the real header where a toolkit has one; it includes that
 * header before this one and defines LB_CUDA_TYPES_ARE_THERE. */
#ifndef LB_CUDA_ABI_H
#define LB_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

/* X(NAME, value) */
#define LB_CUDA_CONSTANTS(X)                                                                                           \
    X(CUDA_SUCCESS, 0)                                                                                                 \
    X(CUDA_ERROR_INVALID_VALUE, 1)                                                                                     \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                                     \
    X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                                                   \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                                                                               \
    X(CUDA_ERROR_INVALID_DEVICE, 101)                                                                                  \
    X(CUDA_ERROR_INVALID_IMAGE, 200)                                                                                   \
    X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                                                 \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                                                                               \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)                                                                               \
    X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)                                                                         \
    X(CUDA_ERROR_INVALID_HANDLE, 400)                                                                                  \
    X(CUDA_ERROR_NOT_FOUND, 500)                                                                                       \
    X(CUDA_ERROR_NOT_READY, 600)                                                                                       \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                                                 \
    X(CUDA_ERROR_LAUNCH_FAILED, 719)                                                                                   \
    X(CUDA_ERROR_NOT_SUPPORTED, 801)                                                                                   \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                                                                      \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)                                                                      \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902)                                                                            \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903)                                                                        \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904)                                                                         \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905)                                                                        \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)                                                                         \
    X(CUDA_ERROR_CAPTURED_EVENT, 907)                                                                                  \
    X(CUDA_ERROR_UNKNOWN, 999)                                                                                         \
    X(CU_STREAM_DEFAULT, 0)                                                                                            \
    X(CU_STREAM_NON_BLOCKING, 1)                                                                                       \
    X(CU_EVENT_DEFAULT, 0)                                                                                             \
    X(CU_EVENT_BLOCKING_SYNC, 1)                                                                                       \
    X(CU_EVENT_DISABLE_TIMING, 2)                                                                                      \
    X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                                                                    \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                                                \
    X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                                                \
    X(CU_STREAM_CAPTURE_STATUS_NONE, 0)                                                                                \
    X(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1)                                                                              \
    X(CU_STREAM_CAPTURE_STATUS_INVALIDATED, 2)                                                                         \
    X(CU_STREAM_CAPTURE_MODE_GLOBAL, 0)                                                                                \
    X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1)                                                                          \
    X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)

#ifndef LB_CUDA_TYPES_ARE_THERE
#define LB_CUDA_ENUM(NAME, value) NAME = value,
enum lb_cuda_constant { LB_CUDA_CONSTANTS(LB_CUDA_ENUM) };
#undef LB_CUDA_ENUM
#define CU_MEMHOSTALLOC_PORTABLE 0x01
#define CU_MEMHOSTALLOC_DEVICEMAP 0x02

/* Enums are unsigned int to the compilers that build for Linux; no value of these is negative. */
typedef unsigned CUresult, CUdevice_attribute, CUstreamCaptureStatus, CUstreamCaptureMode;
typedef unsigned long long CUdeviceptr;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
#endif

/* X(NAME, symbol, parameters); all return a CUresult. These a driver may lack: they name things, tell streams apart, or
 * find a context that is not current. */
#define LB_CUDA_OPTIONAL(X)                                                                                            \
    X(GetErrorName, cuGetErrorName, (CUresult, const char **))                                                         \
    X(DriverGetVersion, cuDriverGetVersion, (int *))                                                                   \
    X(DeviceGetName, cuDeviceGetName, (char *, int, CUdevice))                                                         \
    X(DevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *))                             \
    X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                       \
    X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice))                                               \
    X(StreamGetId, cuStreamGetId, (CUstream, unsigned long long *))
/* Without these nothing is measured. */
#define LB_CUDA_FUNCTIONS(X)                                                                                           \
    X(DeviceGetAttribute, cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                                 \
    X(CtxGetCurrent, cuCtxGetCurrent, (CUcontext *))                                                                   \
    X(CtxGetDevice, cuCtxGetDevice, (CUdevice *))                                                                      \
    X(CtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext))                                                                \
    X(CtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext *))                                                                \
    X(ModuleLoadData, cuModuleLoadData, (CUmodule *, const void *))                                                    \
    X(ModuleUnload, cuModuleUnload, (CUmodule))                                                                        \
    X(ModuleGetFunction, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                  \
    X(LaunchKernel, cuLaunchKernel,                                                                                    \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))  \
    X(MemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                \
    X(MemFree, cuMemFree_v2, (CUdeviceptr))                                                                            \
    X(MemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned))                                                       \
    X(MemFreeHost, cuMemFreeHost, (void *))                                                                            \
    X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                            \
    X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                  \
    X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                             \
    X(MemsetD8Async, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                  \
    X(StreamCreate, cuStreamCreate, (CUstream *, unsigned))                                                            \
    X(StreamDestroy, cuStreamDestroy_v2, (CUstream))                                                                   \
    X(StreamSynchronize, cuStreamSynchronize, (CUstream))                                                              \
    X(StreamWaitEvent, cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                               \
    X(StreamGetCtx, cuStreamGetCtx, (CUstream, CUcontext *))                                                           \
    X(StreamIsCapturing, cuStreamIsCapturing, (CUstream, CUstreamCaptureStatus *))                                     \
    X(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *))                     \
    X(EventCreate, cuEventCreate, (CUevent *, unsigned))                                                               \
    X(EventDestroy, cuEventDestroy_v2, (CUevent))                                                                      \
    X(EventRecord, cuEventRecord, (CUevent, CUstream))                                                                 \
    X(EventQuery, cuEventQuery, (CUevent))                                                                             \
    X(EventSynchronize, cuEventSynchronize, (CUevent))

#endif
