/* A program beside which capture/cuda works, for tests: it has a context on the stand-in driver, memory with known
 * bytes, values in it, and knows what lb_measure says of them. */
#ifndef LB_HOST_PROGRAM_H
#define LB_HOST_PROGRAM_H

#include "cmocka_first.h"
#include "cuda/cuda_device.h"
#include "standin.h"

uint64_t draw(uint64_t *state); /* 31 bits */

/* A stand-in with `devices` devices, the first one's context current, and the plain kernels. */
void host_begin(int devices, uint64_t seed, unsigned delay_us);
CUcontext host_context(int device);
CUstream host_stream(void);
CUevent host_event(void);
CUdeviceptr host_memory(size_t bytes, uint64_t seed); /* with numbers drawn from it, finite as f32 but for a few */
void host_synchronize(void);
extern const lb_kernel_image any_kernels;
lb_device *host_reader(const lb_cuda_options *options);

/* A value in device memory, and what is wanted of it. */
typedef struct value {
    lb_device_work work;
    lb_measured expected; /* from the twin, when the value was made */
    void *expected_bytes;
} value;
/* `layout` over elements of `dtype`, the first of them `first` elements behind `memory`. */
value *value_of(CUdeviceptr memory, int64_t first, lb_dtype dtype, const lb_layout *layout, bool bytes);
value *value_dense(CUdeviceptr memory, lb_dtype dtype, int64_t elements, bool bytes);
/* Any value inside `size` bytes at `memory`. */
value *value_drawn(CUdeviceptr memory, size_t size, uint64_t *seed);
void value_assert_same(const value *v); /* it is done, and is what was expected */
void measured_assert_same(const lb_measured *a, const lb_measured *b);
void value_free(value *v);
void submit_values(lb_device *reader, value *const *values, size_t n, CUstream stream, bool may_wait);

/* The rest of a test: nothing broke a rule of the driver. */
void host_end(lb_device *reader);
void assert_no_violation(void);
uint64_t skipped_by(const lb_device *reader);

#endif
