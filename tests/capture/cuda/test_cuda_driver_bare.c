/* A driver that lacks what names things, or finds a context that is not current, is read all the same. This program is
 * linked with no stand-in: it loads the one without those functions (standin_bare.map). */
#include "cmocka_first.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_driver.h"

#include <dlfcn.h>
#include <string.h>

static void what_a_driver_may_lack_disables_nothing_else(void **state)
{
    (void)state;
    void *library = dlopen(LB_STANDIN_BARE, RTLD_NOW);
    assert_non_null(library);
    lb_err err = LB_ERR_INIT;
    const lb_cuda_driver *cuda = lb_cuda_driver_get(&err);
    assert_non_null(cuda);
    assert_int_equal(err.status, LB_OK);
#define IS_MISSING(NAME, symbol, parameters) assert_true(cuda->NAME == NULL);
    LB_CUDA_OPTIONAL(IS_MISSING)
#undef IS_MISSING
#define IS_THERE(NAME, symbol, parameters) assert_true(cuda->NAME != NULL);
    LB_CUDA_FUNCTIONS(IS_THERE)
#undef IS_THERE
    assert_int_equal(cuda->version, 0);
    assert_int_equal(lb_cuda_failed(cuda, "cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, &err), LB_ERR_NOMEM);
    assert_non_null(strstr(err.message, "cuMemAlloc: an error that the driver has no name for (2)"));
}

/* No context of the device is current, and none can be asked for: it is not opened yet, which is no error. */
static void device_without_a_current_context_is_not_opened(void **state)
{
    (void)state;
    lb_device *device;
    lb_err err = LB_ERR_INIT;
    lb_cuda_options options = LB_CUDA_OPTIONS_INIT;
    options.unit = 0;
    assert_int_equal(lb_cuda_open(&device, &options, &err), LB_OK);
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_driver_may_lack_disables_nothing_else),
        cmocka_unit_test(device_without_a_current_context_is_not_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
