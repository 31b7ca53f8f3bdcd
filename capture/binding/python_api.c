/* See python_api.h. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "binding/python_api.h"

#include <dlfcn.h>
#include <string.h>

lb_python_api py;

bool lb_python_find(const char **missing)
{
    lb_python_api found;
    void *address;
#define LB_PYTHON_LOOK_UP(result, name, parameters)                                                                    \
    address = dlsym(RTLD_DEFAULT, #name);                                                                              \
    if (!address) {                                                                                                    \
        *missing = #name;                                                                                              \
        return false;                                                                                                  \
    }                                                                                                                  \
    memcpy(&found.name, &address, sizeof address);
    LB_PYTHON_API(LB_PYTHON_LOOK_UP)
#undef LB_PYTHON_LOOK_UP
    address = dlsym(RTLD_DEFAULT, "PyFrame_GetLasti");
    memcpy(&found.PyFrame_GetLasti, &address, sizeof address);
    py = found;
    return true;
}
