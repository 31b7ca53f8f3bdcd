/* See cuda_kernel.h. */
#include "cuda/cuda_kernel.h"
#include "device/digest_kernel.h"

#include <lastbit/capture.h>
#include <stdio.h>
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

/* Where the library was built with another toolkit than this driver's, the driver refuses its code in one of several
 * ways (no binary for the device, a version of PTX or a compression that it does not know, an image that it takes for
 * none). A compiler beside the program may still make code that it takes. */
static lb_status compile_and_load(CUmodule *module, const lb_cuda_driver *cuda, const lb_kernel_image *code,
                                  CUdevice device, lb_err *err)
{
    int architecture = 0;
    void *machine_code;
    LB_TRY(architecture_of(cuda, device, &architecture, err));
    LB_TRY(lb_cuda_compile(code, architecture, &machine_code, err));
    const CUresult result = cuda->ModuleLoadData(module, machine_code);
    free(machine_code);
    return result ? lb_cuda_failed(cuda, "cuModuleLoadData", result, err) : LB_OK;
}

lb_status lb_cuda_kernels_load(lb_cuda_kernels *kernels, const lb_cuda_driver *cuda, const lb_kernel_image *code,
                               CUdevice device, lb_err *err)
{
    lb_err refused = LB_ERR_INIT, why = LB_ERR_INIT;
    const CUresult result = code->image ? cuda->ModuleLoadData(&kernels->module, code->image) : CUDA_SUCCESS;
    if (result) lb_cuda_failed(cuda, "cuModuleLoadData", result, &refused);
    if (refused.status == LB_ERR_NOMEM) return lb_fail(err, LB_ERR_NOMEM, "%s", refused.message);
    if (!code->image || result) {
        const lb_status status = compile_and_load(&kernels->module, cuda, code, device, &why);
        if (status != LB_OK)
            return lb_fail(err, status, "%.150s%s%.300s", refused.message, result ? "; and " : "", why.message);
    }
    return find_functions(kernels, cuda, err);
}

bool lb_measuring_kernels(char *words, size_t size)
{
    const lb_kernel_image code = lb_kernel_image_get();
    const lb_cuda_driver *cuda = lb_cuda_driver_get(NULL);
    char compiler[1024], driver[40] = "";
    const bool compiles = lb_cuda_compiler(compiler, sizeof compiler);
    if (cuda && cuda->version)
        snprintf(driver, sizeof driver, "; driver of CUDA %d.%d", cuda->version / 1000, cuda->version % 1000 / 10);
    snprintf(words, size, "%s%s; %s%s%s", code.image ? "compiled for " : "not compiled",
             code.image ? code.compiled : "", compiles ? "NVRTC " : "no NVRTC is found", compiles ? compiler : "",
             driver);
    return code.image || compiles;
}
