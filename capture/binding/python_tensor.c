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

static void find_streams(lb_tensor_shortcut *shortcut)
{
    void *torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!torch) return;
    void *address = dlsym(torch, "aoti_torch_get_current_cuda_stream");
    memcpy(&shortcut->get_cuda_stream, &address, sizeof address);
    dlclose(torch);
}

static bool find_functions(lb_tensor_shortcut *shortcut)
{
    void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!torch) return false;
    int32_t (*strided)(void) = NULL;
    const struct {
        const char *name;
        void *function;
    } wanted[] = {{"aoti_torch_layout_strided", &strided},
                  {"aoti_torch_get_layout", &shortcut->get_layout},
                  {"aoti_torch_get_dtype", &shortcut->get_dtype},
                  {"aoti_torch_get_device_type", &shortcut->get_device_type},
                  {"aoti_torch_get_device_index", &shortcut->get_device_index},
                  {"aoti_torch_get_dim", &shortcut->get_dim},
                  {"aoti_torch_get_sizes", &shortcut->get_sizes},
                  {"aoti_torch_get_strides", &shortcut->get_strides},
                  {"aoti_torch_get_storage_offset", &shortcut->get_storage_offset},
                  {"aoti_torch_get_storage_size", &shortcut->get_storage_size},
                  {"aoti_torch_get_data_ptr", &shortcut->get_data_ptr}};
    bool all = true;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *address = dlsym(torch, wanted[i].name);
        memcpy(wanted[i].function, &address, sizeof address);
        all = all && address;
    }
    dlclose(torch); /* it was there before us, and stays */
    if (all) shortcut->strided = strided();
    find_streams(shortcut);
    return all;
}

bool lb_tensor_shortcut_find(lb_tensor_shortcut *shortcut, const PyObject *tensor, size_t object_bytes,
                             uint64_t implementation, uint64_t storage)
{
    if (!implementation || !storage || !find_functions(shortcut)) return false;
    return find_word(tensor, object_bytes, implementation, &shortcut->tensor_at) &&
           find_word(word_at(tensor, shortcut->tensor_at), IMPLEMENTATION_WORDS * sizeof(void *), storage,
                     &shortcut->storage_at);
}

bool lb_tensor_shortcut_learn(lb_tensor_shortcut *shortcut, PyObject *tensor, lb_dtype dtype)
{
    int32_t number;
    if (shortcut->get_dtype((char *)tensor + shortcut->tensor_at, &number) != 0 || number < 0 ||
        number >= LB_MAX_TORCH_DTYPES || (shortcut->dtypes[number] && shortcut->dtypes[number] != dtype))
        return false;
    shortcut->dtypes[number] = dtype;
    return true;
}

static bool take_layout(const lb_tensor_shortcut *shortcut, void *t, lb_layout *layout)
{
    int64_t ndim, *sizes, *strides;
    if (shortcut->get_dim(t, &ndim) != 0 || ndim < 0 || ndim > LB_MAX_DIMS || shortcut->get_sizes(t, &sizes) != 0 ||
        shortcut->get_strides(t, &strides) != 0)
        return false;
    layout->ndim = (int32_t)ndim;
    for (int64_t d = 0; d < ndim; d++) {
        layout->shape[d] = sizes[d];
        layout->stride[d] = strides[d];
    }
    return shortcut->get_storage_offset(t, &layout->offset) == 0;
}

bool lb_tensor_shortcut_take(const lb_tensor_shortcut *shortcut, PyObject *tensor, lb_host_tensor *seen)
{
    void *inner = (char *)tensor + shortcut->tensor_at, *implementation = word_at(tensor, shortcut->tensor_at),
         *data = NULL;
    int32_t layout, dtype, device, unit;
    int64_t bytes;
    if (!implementation || shortcut->get_layout(inner, &layout) != 0 || layout != shortcut->strided) return false;
    seen->storage = (int64_t)(intptr_t)word_at(implementation, shortcut->storage_at);
    if (!seen->storage || shortcut->get_dtype(inner, &dtype) != 0 || dtype < 0 || dtype >= LB_MAX_TORCH_DTYPES ||
        !shortcut->dtypes[dtype])
        return false;
    seen->dtype = shortcut->dtypes[dtype];
    if (shortcut->get_device_type(inner, &device) != 0 || shortcut->get_device_index(inner, &unit) != 0) return false;
    seen->device = device == CPU ? 0 : device == CUDA ? 1 : 2;
    seen->unit = (uint8_t)(device == CPU || unit < 0 ? 0 : unit);
    if (!take_layout(shortcut, inner, &seen->layout) || shortcut->get_storage_size(inner, &bytes) != 0 ||
        shortcut->get_data_ptr(inner, &data) != 0)
        return false;
    seen->storage_bytes = (uint64_t)bytes;
    seen->data = data;
    lb_tensor_shortcut_stream(shortcut, seen);
    return true;
}

void lb_tensor_shortcut_stream(const lb_tensor_shortcut *shortcut, lb_host_tensor *seen)
{
    if (seen->device == 1 && shortcut->get_cuda_stream && shortcut->get_cuda_stream(seen->unit, &seen->stream) != 0)
        seen->stream = NULL;
}
