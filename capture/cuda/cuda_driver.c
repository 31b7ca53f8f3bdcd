/* See cuda_driver.h. */
#include "cuda/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>

static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;
static lb_cuda_driver driver;
static bool found;

/* POSIX gives functions as data pointers; C has no cast between the two that a strict compiler takes. */
static bool find_function(void *library, const char *symbol, void *function)
{
    void *const address = dlsym(library, symbol);
    *(void **)function = address;
    return address != NULL;
}

static lb_status fill(lb_cuda_driver *to, void *library, lb_err *err)
{
#define FIND(NAME, symbol, parameters)                                                                                 \
    if (!find_function(library, #symbol, &to->NAME))                                                                   \
        return lb_fail(err, LB_ERR_UNSUPPORTED, "libcuda.so.1 has no %s: the driver is older than CUDA 11", #symbol);
    LB_CUDA_FUNCTIONS(FIND)
#undef FIND
#define FIND(NAME, symbol, parameters) find_function(library, #symbol, &to->NAME);
    LB_CUDA_OPTIONAL(FIND)
#undef FIND
    if (!to->DriverGetVersion || to->DriverGetVersion(&to->version) != CUDA_SUCCESS) to->version = 0;
    return LB_OK;
}

const lb_cuda_driver *lb_cuda_driver_get(lb_err *err)
{
    pthread_mutex_lock(&finding);
    if (!found) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (library) found = fill(&driver, library, err) == LB_OK;
    }
    const lb_cuda_driver *const answer = found ? &driver : NULL;
    pthread_mutex_unlock(&finding);
    return answer;
}

lb_status lb_cuda_failed(const lb_cuda_driver *cuda, const char *call, CUresult result, lb_err *err)
{
    const char *name = NULL;
    if (!cuda->GetErrorName || cuda->GetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "an error that the driver has no name for";
    const lb_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? LB_ERR_NOMEM : LB_ERR_IO;
    return lb_fail(err, status, "%s: %s (%u)", call, name, (unsigned)result);
}
