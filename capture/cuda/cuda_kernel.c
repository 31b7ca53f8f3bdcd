/* See cuda_kernel.h. */
#include "cuda_kernel.h"
#include "measure_kernel.h"

#include <stdlib.h>

static lb_status find_functions(lb_cuda_kernels *to, const lb_cuda_driver *cuda, lb_err *err)
{
    CUresult result = cuda->ModuleGetFunction(&to->measure, to->module, LB_KERNEL_NAME);
    if (!result) result = cuda->ModuleGetFunction(&to->turn, to->module, LB_KERNEL_TURN_NAME);
    if (!result) return LB_OK;
    cuda->ModuleUnload(to->module);
    return lb_cuda_failed(cuda, "cuModuleGetFunction", result, err);
}

static lb_status architecture_of(const lb_cuda_driver *cuda, CUdevice device, int *architecture, lb_err *err)
{
    int major = 0, minor = 0;
    CUresult result = cuda->DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (!result) result = cuda->DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (result) return lb_cuda_failed(cuda, "cuDeviceGetAttribute", result, err);
    *architecture = 10 * major + minor;
    return LB_OK;
}

static bool has_no_code_for_it(CUresult result)
{
    return result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

lb_status lb_cuda_kernels_load(lb_cuda_kernels *kernels, const lb_cuda_driver *cuda, const lb_kernel_image *code,
                               CUdevice device, lb_err *err)
{
    CUresult result = code->image ? cuda->ModuleLoadData(&kernels->module, code->image) : CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (has_no_code_for_it(result)) {
        int architecture = 0;
        void *machine_code;
        LB_TRY(architecture_of(cuda, device, &architecture, err));
        LB_TRY(lb_cuda_compile(code, architecture, &machine_code, err));
        result = cuda->ModuleLoadData(&kernels->module, machine_code);
        free(machine_code);
    }
    if (result) return lb_cuda_failed(cuda, "cuModuleLoadData", result, err);
    return find_functions(kernels, cuda, err);
}
