/* Whether a kernel finds what the host finds, in every case of device/kernel_cases.h: kernel_check [LIBRARY]
 *
 * LIBRARY has a host_kernel_measure of its own (test_kernel_mutants.py compiles some that are wrong). Exit 1, and the
 * case, at the first difference. */
#include "host_grid.h"
#include "device/kernel_cases.h"
#include "device/kernel_item.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void kernel(const lb_kernel_launch *launch, host_grid grid);

static bool finds_the_same(kernel *measure, lb_measuring *m, uint64_t seed)
{
    lb_kernel_item item;
    lb_kernel_result result = {0};
    if (lb_kernel_item_of(&item, m, NULL) != LB_OK) return false;
    void *scratch = calloc(1, lb_kernel_scratch_bytes(&item));
    item.scratch = (uint64_t)(uintptr_t)scratch;
    const lb_kernel_launch launch = {(uint64_t)(uintptr_t)&item, (uint64_t)(uintptr_t)&result, 1, 0, 1,
                                     lb_kernel_batch(&item, 1)};
    measure(&launch, (host_grid){.blocks = launch.n_units, .workers = 1, .seed = seed});
    if (!scratch || !lb_measure(m, 1)) return false;
    const lb_measured found = lb_kernel_measured(&result);
    const bool same = memcmp(&found.logical, &m->out.logical, sizeof found.logical) == 0 &&
                      memcmp(&found.blob, &m->out.blob, sizeof found.blob) == 0 &&
                      memcmp(&found.statistics, &m->out.statistics, sizeof found.statistics) == 0 &&
                      (m->out.n_leaves == 0 || memcmp(scratch, m->out.leaves, 8 * m->out.n_leaves) == 0);
    free(m->out.leaves);
    free(scratch);
    return same;
}

int main(int argc, char **argv)
{
    kernel *measure = host_kernel_measure;
    if (argc > 1) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        void *found = library ? dlsym(library, "host_kernel_measure") : NULL;
        if (!found) {
            fprintf(stderr, "kernel_check: %s\n", dlerror());
            return 2;
        }
        memcpy(&measure, &found, sizeof measure);
    }
    void *bytes = NULL;
    if (posix_memalign(&bytes, 16, LB_KERNEL_CASE_BYTES)) return 2;
    lb_kernel_case_fill(bytes);
    lb_measuring m;
    size_t i = 0;
    for (; lb_kernel_case(i, bytes, &m); i++) {
        if (finds_the_same(measure, &m, i)) continue;
        printf("case %zu, %s, differs\n", i, lb_dtype_name(m.tensor.dtype));
        free(bytes);
        return 1;
    }
    printf("%zu cases are the same\n", i);
    free(bytes);
    return 0;
}
