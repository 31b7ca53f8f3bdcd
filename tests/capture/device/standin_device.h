/* What the stand-in accelerator of PyTorch calls of the stand-in driver of CUDA. A thread is in the context of its
 * first device until it says which (standin_device_at): there streams and events are made, and NULL is its stream.
 * A stream is a CUstream, an event a CUevent. What fails ends the process: the driver was told to do nothing wrong. */
#ifndef LB_STANDIN_DEVICE_H
#define LB_STANDIN_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STANDIN_DEVICE_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Of `n` devices, at most 4. Operations begin up to `delay_us` later than they could, by a seed. */
STANDIN_DEVICE_API void standin_device_begin(int n, uint64_t seed, unsigned delay_us);
STANDIN_DEVICE_API void standin_device_at(int device);
/* Its addresses, and where kernels find the bytes. Each device reaches the memory of the others. */
STANDIN_DEVICE_API void *standin_device_memory(size_t bytes, void **twin);
/* The program takes all of the device but `left` bytes. */
STANDIN_DEVICE_API void standin_device_leave(size_t left);
/* A kernel that calls run(of), when the stream comes to it. */
STANDIN_DEVICE_API void standin_device_call(void *stream, void (*run)(void *), void *of);
STANDIN_DEVICE_API void *standin_device_stream(void);
STANDIN_DEVICE_API void standin_device_wait(void *stream);
STANDIN_DEVICE_API void standin_device_wait_for_all(void);
/* *event: NULL, or one to be used again. */
STANDIN_DEVICE_API void standin_device_record(void **event, void *stream);
STANDIN_DEVICE_API void standin_device_block(void *event, void *stream);
STANDIN_DEVICE_API bool standin_device_has_passed(void *event);
STANDIN_DEVICE_API void standin_device_wait_for_event(void *event);
/* What is queued on the stream becomes a graph, until `end`. NULL: something that no capture allows broke it. */
STANDIN_DEVICE_API void standin_device_capture_begin(void *stream);
STANDIN_DEVICE_API void *standin_device_capture_end(void *stream);
STANDIN_DEVICE_API void standin_device_graph_launch(void *graph, void *stream);
STANDIN_DEVICE_API void standin_device_graph_free(void *graph);

#ifdef __cplusplus
}
#endif
#endif
