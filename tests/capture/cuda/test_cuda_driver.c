/* The driver is found where the process has loaded it, and not before. This program is not linked with the stand-in. */
#include "cmocka_first.h"
#include "cuda/cuda_driver.h"

#include <dlfcn.h>
#include <string.h>

static void driver_that_nobody_loaded_is_not_there(void **state)
{
    (void)state;
    lb_err err = LB_ERR_INIT;
    assert_null(lb_cuda_driver_get(&err));
    assert_int_equal(err.status, LB_OK);
}

static void loaded_driver_is_found_with_all_functions(void **state)
{
    (void)state;
    void *library = dlopen(LB_STANDIN, RTLD_NOW);
    assert_non_null(library);
    lb_err err = LB_ERR_INIT;
    const lb_cuda_driver *cuda = lb_cuda_driver_get(&err);
    assert_non_null(cuda);
    assert_int_equal(cuda->version, 12080);
#define IS_THERE(NAME, symbol, parameters)                                                                             \
    assert_ptr_equal(*(void *const *)(const void *)&cuda->NAME, dlsym(library, #symbol));
    LB_CUDA_FUNCTIONS(IS_THERE)
    LB_CUDA_OPTIONAL(IS_THERE)
#undef IS_THERE
    assert_ptr_equal(lb_cuda_driver_get(NULL), cuda);
    assert_int_equal(lb_cuda_failed(cuda, "cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, &err), LB_ERR_NOMEM);
    assert_non_null(strstr(err.message, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(driver_that_nobody_loaded_is_not_there),
        cmocka_unit_test(loaded_driver_is_found_with_all_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
