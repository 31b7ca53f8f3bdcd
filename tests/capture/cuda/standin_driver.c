/* The rest of the stand-in: contexts, modules, launches and copies, and the errors that it is told to give. */
#include "standin_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
unsigned standin_delay_us;

struct CUmod_st {
    CUcontext context;
};
struct CUfunc_st {
    CUcontext context;
    standin_kernel kernel;
};

#define MOST_NAMES 64
static struct {
    const char *symbol; /* of string literals: theirs or the test's */
    int calls;
} called[MOST_NAMES];
static struct {
    const char *symbol;
    int skip;
    CUresult result;
} told[4];

static struct CUctx_st contexts[STANDIN_DEVICES];
static int n_devices;
static pid_t owner;
static const standin_kernel *kernels;
static int n_kernels;
static uint64_t seed;
static int violations;
static char first_violation[200];

#define MOST_CURRENT 16
static _Thread_local CUcontext current[MOST_CURRENT];
static _Thread_local int n_current;

uint64_t standin_draw(uint64_t *state)
{
    *state = (*state ^ seed) * 6364136223846793005ull + 1442695040888963407ull; /* Knuth's MMIX constants */
    return *state >> 33;
}

typedef struct object {
    struct object *next;
    max_align_t bytes[];
} object;
static object *objects;
static pthread_mutex_t objects_lock = PTHREAD_MUTEX_INITIALIZER;

void *standin_object(size_t bytes)
{
    object *o = calloc(1, sizeof *o + bytes);
    if (!o) abort();
    pthread_mutex_lock(&objects_lock);
    o->next = objects;
    objects = o;
    pthread_mutex_unlock(&objects_lock);
    return o->bytes;
}

static void free_objects(void)
{
    while (objects) {
        object *o = objects;
        objects = o->next;
        free(o);
    }
}

/* ---- what a test says -------------------------------------------------------------------------------------------- */

void standin_begin(const standin_setup *setup)
{
    pthread_mutex_lock(&standin_lock);
    standin_streams_begin();
    memset(called, 0, sizeof called);
    memset(told, 0, sizeof told);
    memset(contexts, 0, sizeof contexts);
    free_objects();
    n_devices = setup->devices;
    for (int d = 0; d < n_devices; d++) contexts[d].device = d;
    seed = setup->seed;
    standin_delay_us = setup->delay_us;
    owner = getpid();
    n_current = 0;
    violations = 0;
    first_violation[0] = 0;
    standin_memory_begin(n_devices);
    pthread_mutex_unlock(&standin_lock);
}

void standin_kernels(const standin_kernel *table, int n)
{
    kernels = table;
    n_kernels = n;
}

void standin_fail(const char *symbol, int skip, CUresult result)
{
    pthread_mutex_lock(&standin_lock);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        if (told[i].symbol) continue;
        told[i].symbol = symbol;
        told[i].skip = skip;
        told[i].result = result;
        break;
    }
    pthread_mutex_unlock(&standin_lock);
}

void standin_lose(int device, CUresult result)
{
    pthread_mutex_lock(&standin_lock);
    contexts[device].error = result;
    pthread_mutex_unlock(&standin_lock);
}

void standin_broke(const char *rule)
{
    if (violations++ == 0) snprintf(first_violation, sizeof first_violation, "%s", rule);
}

int standin_violations(const char **first)
{
    pthread_mutex_lock(&standin_lock);
    const int n = violations;
    if (first) *first = first_violation;
    pthread_mutex_unlock(&standin_lock);
    return n;
}

int standin_users(int device)
{
    pthread_mutex_lock(&standin_lock);
    const int users = contexts[device].users;
    pthread_mutex_unlock(&standin_lock);
    return users;
}

int standin_calls(const char *symbol)
{
    int n = 0;
    pthread_mutex_lock(&standin_lock);
    for (int i = 0; i < MOST_NAMES && called[i].symbol; i++)
        if (strcmp(called[i].symbol, symbol) == 0) n = called[i].calls;
    pthread_mutex_unlock(&standin_lock);
    return n;
}

/* ---- every call -------------------------------------------------------------------------------------------------- */

static void count(const char *symbol)
{
    int i = 0;
    while (i < MOST_NAMES - 1 && called[i].symbol && strcmp(called[i].symbol, symbol) != 0) i++;
    called[i].symbol = symbol;
    called[i].calls++;
}

static CUresult told_result(const char *symbol)
{
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        if (!told[i].symbol || strcmp(told[i].symbol, symbol) != 0 || told[i].skip-- > 0) continue;
        told[i].symbol = NULL;
        return told[i].result;
    }
    return CUDA_SUCCESS;
}

CUcontext standin_current(void)
{
    return n_current ? current[n_current - 1] : NULL;
}

CUcontext standin_context_of(int device)
{
    return &contexts[device];
}

CUresult standin_enter(const char *symbol, bool needs_context)
{
    if (getpid() != owner) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&standin_lock);
    count(symbol);
    CUresult result = told_result(symbol);
    if (!result && needs_context) {
        CUcontext context = standin_current();
        result = context ? context->error : CUDA_ERROR_INVALID_CONTEXT;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* ---- contexts and devices ---------------------------------------------------------------------------------------- */

CUresult cuInit(unsigned flags)
{
    (void)flags;
    return standin_enter("cuInit", false);
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    switch (error) {
#define NAME_OF(NAME, value)                                                                                           \
    case value: *name = #NAME; return CUDA_SUCCESS;
        NAME_OF(CUDA_ERROR_INVALID_VALUE, 1)
        NAME_OF(CUDA_ERROR_OUT_OF_MEMORY, 2)
        NAME_OF(CUDA_ERROR_NOT_INITIALIZED, 3)
        NAME_OF(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)
        NAME_OF(CUDA_ERROR_INVALID_IMAGE, 200)
        NAME_OF(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)
        NAME_OF(CUDA_ERROR_ECC_UNCORRECTABLE, 214)
        NAME_OF(CUDA_ERROR_ILLEGAL_ADDRESS, 700)
        NAME_OF(CUDA_ERROR_LAUNCH_FAILED, 719)
        NAME_OF(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)
#undef NAME_OF
    default: *name = NULL; return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDriverGetVersion(int *version)
{
    *version = 12080;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *to, CUdevice_attribute attribute, CUdevice device)
{
    const CUresult result = standin_enter("cuDeviceGetAttribute", false);
    if (result) return result;
    if (device < 0 || device >= n_devices) return CUDA_ERROR_INVALID_DEVICE;
    *to = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9
          : attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT   ? 4
                                                                    : 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *to, int room, CUdevice device)
{
    const CUresult result = standin_enter("cuDeviceGetName", false);
    if (result) return result;
    if (device < 0 || device >= n_devices) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(to, (size_t)room, "stand-in %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    const CUresult result = standin_enter("cuDevicePrimaryCtxRetain", false);
    if (result) return result;
    if (device < 0 || device >= n_devices) return CUDA_ERROR_INVALID_DEVICE;
    *context = &contexts[device];
    pthread_mutex_lock(&standin_lock);
    contexts[device].users++;
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    const CUresult result = standin_enter("cuDevicePrimaryCtxRelease_v2", false);
    if (result) return result;
    if (device < 0 || device >= n_devices) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&standin_lock);
    const bool held = contexts[device].users > 0;
    contexts[device].users -= held;
    pthread_mutex_unlock(&standin_lock);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    const CUresult result = standin_enter("cuDevicePrimaryCtxGetState", false);
    if (result) return result;
    if (device < 0 || device >= n_devices) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = standin_users(device) > 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    const CUresult result = standin_enter("cuCtxGetCurrent", false);
    if (!result) *context = standin_current();
    return result;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    const CUresult result = standin_enter("cuCtxSetCurrent", false);
    if (result) return result;
    if (n_current == 0) n_current = 1;
    current[n_current - 1] = context;
    if (!context) n_current--;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    const CUresult result = standin_enter("cuCtxPushCurrent_v2", false);
    if (result) return result;
    if (n_current == MOST_CURRENT || !context) return CUDA_ERROR_INVALID_CONTEXT;
    current[n_current++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    const CUresult result = standin_enter("cuCtxPopCurrent_v2", false);
    if (result) return result;
    if (n_current == 0) return CUDA_ERROR_INVALID_CONTEXT;
    n_current--;
    if (context) *context = current[n_current];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    const CUresult result = standin_enter("cuCtxGetDevice", true);
    if (!result) *device = standin_current()->device;
    return result;
}

/* ---- modules and launches ---------------------------------------------------------------------------------------- */

CUresult cuModuleLoadData(CUmodule *to, const void *image)
{
    CUresult result = standin_enter("cuModuleLoadData", true);
    if (result) return result;
    pthread_mutex_lock(&standin_lock);
    result = standin_forbidden();
    pthread_mutex_unlock(&standin_lock);
    if (result) return result;
    if (!image) return CUDA_ERROR_INVALID_IMAGE;
    *to = standin_object(sizeof **to);
    (*to)->context = standin_current();
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    (void)module;
    return standin_enter("cuModuleUnload", true);
}

CUresult cuModuleGetFunction(CUfunction *to, CUmodule module, const char *name)
{
    const CUresult result = standin_enter("cuModuleGetFunction", true);
    if (result) return result;
    for (int i = 0; i < n_kernels; i++) {
        if (strcmp(kernels[i].name, name) != 0) continue;
        *to = standin_object(sizeof **to);
        **to = (struct CUfunc_st){module->context, kernels[i]};
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

static char *parameters_of(const standin_kernel *kernel, void **parameters)
{
    size_t bytes = 0;
    for (int i = 0; i < kernel->n_parameters; i++) bytes += (kernel->sizes[i] + 15) / 16 * 16;
    char *all = aligned_alloc(16, bytes ? bytes : 16), *at = all;
    if (!all) abort();
    for (int i = 0; i < kernel->n_parameters; i++) {
        memcpy(at, parameters[i], kernel->sizes[i]);
        at += (kernel->sizes[i] + 15) / 16 * 16;
    }
    return all;
}

/* Adds an action to the stream behind a handle of the current context. */
static CUresult add(CUstream handle, action *what)
{
    CUstream stream;
    pthread_mutex_lock(&standin_lock);
    CUresult result = standin_stream_of(handle, &stream);
    if (result)
        standin_action_release(what);
    else
        result = standin_add(stream, what);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **parameters, void **extra)
{
    (void)shared;
    CUresult result = standin_enter("cuLaunchKernel", true);
    if (result) return result;
    if (extra || !gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024 || gy > 65535 || gz > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (f->context != standin_current()) return CUDA_ERROR_INVALID_HANDLE;
    action what = {.kind = ACTION_KERNEL, .kernel = f->kernel, .grid = {gx, gy, gz}, .block = {bx, by, bz}};
    what.parameters = parameters_of(&f->kernel, parameters);
    return add(stream, &what);
}

static CUresult add_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, const void *host)
{
    pthread_mutex_lock(&standin_lock);
    if (host && !standin_is_pinned(host, bytes)) standin_broke("a copy between device and memory that is not pinned");
    pthread_mutex_unlock(&standin_lock);
    if (bytes == 0) return CUDA_SUCCESS;
    action what = {.kind = ACTION_COPY, .to = to, .from = from, .bytes = bytes};
    return add(stream, &what);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    const CUresult result = standin_enter("cuMemcpyHtoDAsync_v2", true);
    return result ? result : add_copy(to, (CUdeviceptr)(uintptr_t)from, bytes, stream, from);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    const CUresult result = standin_enter("cuMemcpyDtoHAsync_v2", true);
    return result ? result : add_copy((CUdeviceptr)(uintptr_t)to, from, bytes, stream, to);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    const CUresult result = standin_enter("cuMemcpyDtoDAsync_v2", true);
    return result ? result : add_copy(to, from, bytes, stream, NULL);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    const CUresult result = standin_enter("cuMemsetD8Async", true);
    action what = {.kind = ACTION_FILL, .to = to, .bytes = bytes, .value = value};
    return result ? result : add(stream, &what);
}
