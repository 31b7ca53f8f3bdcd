/* Where the library has no machine code for a device, NVRTC makes it from the kernels' source. This program is linked
 * with a stand-in of NVRTC, which stands for one that PyTorch has loaded. */
#include "host_program.h"
#include "cuda/cuda_kernel.h"

#include <stdlib.h>
#include <string.h>

static const lb_kernel_image text = {
    .source = "the source", .header_names = {"a.h", "b.h"}, .headers = {"first", "second"}};

static void source_is_compiled_for_the_device(void **state)
{
    (void)state;
    void *machine_code;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_cuda_compile(&text, 90, &machine_code, &err), LB_OK);
    assert_string_equal(machine_code, "digest_kernel.cu: the source, a.h: first, b.h: second --gpu-architecture=sm_90 "
                                      "--std=c++17 --fmad=false");
    free(machine_code);
}

static void source_that_does_not_compile_says_why(void **state)
{
    (void)state;
    const lb_kernel_image bad = {.source = "#error", .header_names = {"", ""}, .headers = {"", ""}};
    void *machine_code;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_cuda_compile(&bad, 90, &machine_code, &err), LB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "digest_kernel.cu(1): #error is there"));
}

/* Without an image, and with one that the driver refuses: it has no code for this device, or is of a toolkit that the
 * driver does not know. */
static void device_is_read_by_what_was_compiled(void **state)
{
    static const CUresult refusals[] = {CUDA_SUCCESS, CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                                        CUDA_ERROR_INVALID_IMAGE};
    (void)state;
    for (int i = 0; i < 4; i++) {
        host_begin(1, 1, 0);
        lb_kernel_image code = text;
        if (i) code.image = "of another device";
        const lb_cuda_options options = {
            .device_bytes = 1 << 20, .pinned_bytes = 1 << 20, .replays = 1, .unit = -1, .code = &code};
        if (i) standin_fail("cuModuleLoadData", 0, refusals[i]);
        lb_device *reader;
        lb_err err = LB_ERR_INIT;
        assert_int_equal(lb_cuda_open(&reader, &options, &err), LB_OK);
        assert_int_equal(standin_calls("cuModuleLoadData"), i ? 2 : 1);
        value *v = value_dense(host_memory(4000, 1), LB_F32, 1000, true);
        submit_values(reader, &v, 1, NULL, true);
        reader->ops->collect(reader, NULL, true);
        value_assert_same(v);
        value_free(v);
        host_end(reader);
    }
}

static void both_refusals_are_said(void **state)
{
    (void)state;
    host_begin(1, 1, 0);
    const lb_kernel_image bad = {.image = "of another driver", .source = "#error"};
    const lb_cuda_options options = {
        .device_bytes = 1 << 20, .pinned_bytes = 1 << 20, .replays = 1, .unit = -1, .code = &bad};
    lb_device *reader;
    lb_err err = LB_ERR_INIT;
    standin_fail("cuModuleLoadData", 0, CUDA_ERROR_INVALID_IMAGE);
    assert_int_equal(lb_cuda_open(&reader, &options, &err), LB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "CUDA_ERROR_INVALID_IMAGE"));
    assert_non_null(strstr(err.message, "#error is there"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(source_is_compiled_for_the_device),
        cmocka_unit_test(source_that_does_not_compile_says_why),
        cmocka_unit_test(device_is_read_by_what_was_compiled),
        cmocka_unit_test(both_refusals_are_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
