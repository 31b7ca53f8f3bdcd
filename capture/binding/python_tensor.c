/* See python_tensor.h. */
#define _GNU_SOURCE /* RTLD_NOLOAD */
#include "binding/python_tensor.h"

#include <dlfcn.h>
#include <string.h>

enum { CPU, CUDA };            /* c10::DeviceType: numbers that torch keeps for ever */
#define IMPLEMENTATION_WORDS 8 /* the storage is among the first members */

static void *word_at(const void *object, size_t offset)
{
    void *word;
    memcpy(&word, (const char *)object + offset, sizeof word);
    return word;
}

static bool find_word(const void *object, size_t bytes, uint64_t wanted, size_t *offset)
{
    for (*offset = 0; *offset + sizeof(void *) <= bytes; *offset += sizeof(void *))
        if ((uint64_t)(uintptr_t)word_at(object, *offset) == wanted) return true;
    return false;
}

static void find_streams(lb_tensor_shortcut *s)
{
    void *torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!torch) return;
    void *address = dlsym(torch, "aoti_torch_get_current_cuda_stream");
    memcpy(&s->get_cuda_stream, &address, sizeof address);
    dlclose(torch);
}

static bool find_functions(lb_tensor_shortcut *s)
{
    void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!torch) return false;
    int32_t (*strided)(void) = NULL;
    const struct {
        const char *name;
        void *function;
    } wanted[] = {{"aoti_torch_layout_strided", &strided},
                  {"aoti_torch_get_layout", &s->get_layout},
                  {"aoti_torch_get_dtype", &s->get_dtype},
                  {"aoti_torch_get_device_type", &s->get_device_type},
                  {"aoti_torch_get_device_index", &s->get_device_index},
                  {"aoti_torch_get_dim", &s->get_dim},
                  {"aoti_torch_get_sizes", &s->get_sizes},
                  {"aoti_torch_get_strides", &s->get_strides},
                  {"aoti_torch_get_storage_offset", &s->get_storage_offset},
                  {"aoti_torch_get_storage_size", &s->get_storage_size},
                  {"aoti_torch_get_data_ptr", &s->get_data_ptr}};
    bool all = true;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *address = dlsym(torch, wanted[i].name);
        memcpy(wanted[i].function, &address, sizeof address);
        all = all && address;
    }
    dlclose(torch); /* it was there before us, and stays */
    if (all) s->strided = strided();
    find_streams(s);
    return all;
}

bool lb_tensor_shortcut_find(lb_tensor_shortcut *s, const PyObject *tensor, size_t object_bytes,
                             uint64_t implementation, uint64_t storage)
{
    if (!implementation || !storage || !find_functions(s)) return false;
    return find_word(tensor, object_bytes, implementation, &s->tensor_at) &&
           find_word(word_at(tensor, s->tensor_at), IMPLEMENTATION_WORDS * sizeof(void *), storage, &s->storage_at);
}

bool lb_tensor_shortcut_learn(lb_tensor_shortcut *s, PyObject *tensor, lb_dtype dtype)
{
    int32_t number;
    if (s->get_dtype((char *)tensor + s->tensor_at, &number) != 0 || number < 0 || number >= LB_MAX_TORCH_DTYPES ||
        (s->dtypes[number] && s->dtypes[number] != dtype))
        return false;
    s->dtypes[number] = dtype;
    return true;
}

static bool take_layout(const lb_tensor_shortcut *s, void *t, lb_layout *layout)
{
    int64_t ndim, *sizes, *strides;
    if (s->get_dim(t, &ndim) != 0 || ndim < 0 || ndim > LB_MAX_DIMS || s->get_sizes(t, &sizes) != 0 ||
        s->get_strides(t, &strides) != 0)
        return false;
    layout->ndim = (int32_t)ndim;
    for (int64_t d = 0; d < ndim; d++) {
        layout->shape[d] = sizes[d];
        layout->stride[d] = strides[d];
    }
    return s->get_storage_offset(t, &layout->offset) == 0;
}

bool lb_tensor_shortcut_take(const lb_tensor_shortcut *s, PyObject *tensor, lb_host_tensor *seen)
{
    void *t = (char *)tensor + s->tensor_at, *implementation = word_at(tensor, s->tensor_at), *data = NULL;
    int32_t layout, dtype, device, unit;
    int64_t bytes;
    if (!implementation || s->get_layout(t, &layout) != 0 || layout != s->strided) return false;
    seen->storage = (int64_t)(intptr_t)word_at(implementation, s->storage_at);
    if (!seen->storage || s->get_dtype(t, &dtype) != 0 || dtype < 0 || dtype >= LB_MAX_TORCH_DTYPES ||
        !s->dtypes[dtype])
        return false;
    seen->dtype = s->dtypes[dtype];
    if (s->get_device_type(t, &device) != 0 || s->get_device_index(t, &unit) != 0) return false;
    seen->device = device == CPU ? 0 : device == CUDA ? 1 : 2;
    seen->unit = (uint8_t)(device == CPU || unit < 0 ? 0 : unit);
    if (!take_layout(s, t, &seen->layout) || s->get_storage_size(t, &bytes) != 0 || s->get_data_ptr(t, &data) != 0)
        return false;
    seen->storage_bytes = (uint64_t)bytes;
    seen->data = data;
    lb_tensor_shortcut_stream(s, seen);
    return true;
}

void lb_tensor_shortcut_stream(const lb_tensor_shortcut *s, lb_host_tensor *seen)
{
    if (seen->device == 1 && s->get_cuda_stream && s->get_cuda_stream(seen->unit, &seen->stream) != 0)
        seen->stream = NULL;
}
