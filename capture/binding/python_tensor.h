/* A tensor's storage, shape and type without a call of Python for each: torch's own C interface for compiled models
 * asks them of the C++ tensor, which lies inside the Python object.
 *
 * Where it lies is no part of any interface. So it is looked for in tensors whose answers are known, and used only when
 * every answer for every one of them is the same both ways; otherwise Python is asked, as for everything that is not
 * plainly a torch.Tensor. */
#ifndef LB_PYTHON_TENSOR_H
#define LB_PYTHON_TENSOR_H

#include "binding/python_api.h"

#include <lastbit/capture.h>

#define LB_MAX_TORCH_DTYPES 64

typedef struct lb_tensor_shortcut {
    bool works;
    size_t tensor_at;  /* of the C++ tensor in the Python object; a pointer to its implementation */
    size_t storage_at; /* of the pointer to the storage in the implementation */
    int32_t strided;
    lb_dtype dtypes[LB_MAX_TORCH_DTYPES]; /* by torch's number; 0: unknown */
    int32_t (*get_layout)(void *tensor, int32_t *layout);
    int32_t (*get_dtype)(void *tensor, int32_t *dtype);
    int32_t (*get_device_type)(void *tensor, int32_t *device);
    int32_t (*get_device_index)(void *tensor, int32_t *unit);
    int32_t (*get_cuda_stream)(int32_t unit, void **stream); /* NULL: a torch without CUDA */
    int32_t (*get_dim)(void *tensor, int64_t *ndim);
    int32_t (*get_sizes)(void *tensor, int64_t **sizes);
    int32_t (*get_strides)(void *tensor, int64_t **strides);
    int32_t (*get_storage_offset)(void *tensor, int64_t *offset);
    int32_t (*get_storage_size)(void *tensor, int64_t *bytes);
    int32_t (*get_data_ptr)(void *tensor, void **data);
} lb_tensor_shortcut;

/* Finds the functions, and where things lie in this one; false when there is nothing to go by. It works only after the
 * caller has compared its answers. `implementation`, `storage`: the addresses that Python gives. */
bool lb_tensor_shortcut_find(lb_tensor_shortcut *shortcut, const PyObject *tensor, size_t object_bytes,
                             uint64_t implementation, uint64_t storage);
bool lb_tensor_shortcut_learn(lb_tensor_shortcut *shortcut, PyObject *tensor, lb_dtype dtype);
/* All of `seen` but for the storage's reference; false: ask Python. */
bool lb_tensor_shortcut_take(const lb_tensor_shortcut *shortcut, PyObject *tensor, lb_host_tensor *seen);
/* The calling thread's stream on the tensor's device, for devices whose streams torch tells of (CUDA). */
void lb_tensor_shortcut_stream(const lb_tensor_shortcut *shortcut, lb_host_tensor *seen);

#endif
