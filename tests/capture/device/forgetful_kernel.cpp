/* A kernel that forgets a barrier, or a copy, when it is told to: what tests/capture/device/host_grid.h is there to
 * find. */
#include "cuda_on_host.h"
#include "forgetful_kernel.h"

static void turn_left(void *parameters)
{
    const forgetful_kernel *p = (const forgetful_kernel *)parameters;
    __shared__ uint32_t words[32];
    const uint32_t t = threadIdx.x;
    words[t] = ~0u;
    __syncwarp();
    copy_begin(&words[t], (uint64_t)&p->in[t], 4, 4);
    copy_group();
    if (!p->forgets_copy) {
        copy_group();
        copy_wait();
    }
    if (!p->forgets_barrier) __syncwarp();
    p->out[t] = words[(t + 1) % 32];
    copy_group();
    copy_wait();
}

void forgetful_kernel_run(forgetful_kernel *kernel, uint64_t seed)
{
    const host_grid grid = {1, 32, 0, 1, seed};
    host_grid_run(&grid, turn_left, kernel);
}
