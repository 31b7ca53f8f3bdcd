/* The driver of CUDA that the process has loaded, as a table of the functions that the shim calls. Nothing of CUDA is
 * linked: types are those that the driver's binary interface has, handles are addresses. */
#ifndef LB_CAPTURE_STREAM_DRIVER_H
#define LB_CAPTURE_STREAM_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of cuda.h. */
enum {
    LB_CUDA_SUCCESS = 0,
    LB_CUDA_NOT_READY = 600,
    LB_CUDA_CAPTURE_FIRST = 900, /* errors that speak of a capture, from CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED on */
    LB_CUDA_CAPTURE_LAST = 908,
    LB_CUDA_POINTER_MEMORY_TYPE = 2,
    LB_CUDA_EVENT_WITHOUT_TIMING = 2,
    LB_CUDA_CAPTURE_RELAXED = 2,
    LB_CUDA_CAPTURE_ACTIVE = 1,
    LB_CUDA_STREAM_NON_BLOCKING = 1,
    LB_CUDA_DESTRUCTOR_UNSYNCHRONISED = 1,
    LB_CUDA_MOVE_REFERENCE = 1,
    LB_CUDA_REGISTER_MAPPED = 2
};

/* What copies on streams need. */
#define LB_STREAM_DRIVER(X)                                                                                            \
    X(cuPointerGetAttribute, (void *value, int attribute, uint64_t pointer))                                           \
    X(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream))                                     \
    X(cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags))                                                  \
    X(cuEventCreate, (void **event, unsigned flags))                                                                   \
    X(cuEventRecord, (void *event, void *stream))                                                                      \
    X(cuEventQuery, (void *event))                                                                                     \
    X(cuEventDestroy_v2, (void *event))                                                                                \
    X(cuStreamIsCapturing, (void *stream, int *status))                                                                \
    X(cuCtxGetCurrent, (void **context))                                                                               \
    X(cuCtxPushCurrent_v2, (void *context))                                                                            \
    X(cuCtxPopCurrent_v2, (void **context))                                                                            \
    X(cuCtxGetDevice, (int *device))                                                                                   \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))

/* What copies inside graphs need besides. */
#define LB_GRAPH_DRIVER(X)                                                                                             \
    X(cuStreamGetCtx, (void *stream, void **context))                                                                  \
    X(cuStreamGetCaptureInfo_v2,                                                                                       \
      (void *stream, int *status, uint64_t *id, void **graph, const void *const **nodes, size_t *n_nodes))             \
    X(cuUserObjectCreate, (void **object, void *of, void (*destroy)(void *), unsigned references, unsigned flags))     \
    X(cuUserObjectRelease, (void *object, unsigned references))                                                        \
    X(cuGraphRetainUserObject, (void *graph, void *object, unsigned references, unsigned flags))                       \
    X(cuModuleLoadData, (void **module, const void *image))                                                            \
    X(cuModuleGetFunction, (void **function, void *module, const char *name))                                          \
    X(cuLaunchKernel, (void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,     \
                       unsigned threads_z, unsigned shared, void *stream, void **parameters, void **extra))            \
    X(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags))                                              \
    X(cuMemHostUnregister, (void *memory))                                                                             \
    X(cuMemAlloc_v2, (uint64_t * made, size_t bytes))                                                                  \
    X(cuMemFree_v2, (uint64_t memory))                                                                                 \
    X(cuMemsetD8Async, (uint64_t to, unsigned char value, size_t bytes, void *stream))                                 \
    X(cuStreamCreate, (void **stream, unsigned flags))                                                                 \
    X(cuStreamSynchronize, (void *stream))                                                                             \
    X(cuStreamDestroy_v2, (void *stream))

typedef struct lb_stream_driver {
#define LB_STREAM_DRIVER_FIELD(name, parameters) int(*name) parameters;
    LB_STREAM_DRIVER(LB_STREAM_DRIVER_FIELD)
    LB_GRAPH_DRIVER(LB_STREAM_DRIVER_FIELD)
#undef LB_STREAM_DRIVER_FIELD
    bool whole;  /* it has all that copies need; of memory under one that has not, nothing can be said */
    bool graphs; /* and all that graphs need */
} lb_stream_driver;

/* Looks whether CUDA has been loaded. A program that makes a communicator has loaded it. */
void lb_stream_driver_look(void);
/* NULL as long as no call of lb_stream_driver_look has found one. */
const lb_stream_driver *lb_stream_driver_now(void);

/* What this thread asks for meanwhile does not end another's capture of a graph. */
typedef struct lb_stream_visit {
    int mode;
    bool entered;
} lb_stream_visit;
lb_stream_visit lb_stream_driver_enter(const lb_stream_driver *cuda, void *context);
void lb_stream_driver_leave(const lb_stream_driver *cuda, lb_stream_visit visit);

#endif
