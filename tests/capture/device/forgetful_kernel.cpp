/* A kernel that forgets a barrier when it is told to: what tests/capture/device/host_grid.h is there to find. */
#include "cuda_on_host.h"
#include "forgetful_kernel.h"

static __shared__ uint32_t words[64];

static void turn_left(void *parameters)
{
    const forgetful_kernel *p = (const forgetful_kernel *)parameters;
    const uint32_t t = threadIdx.x, warp = t / 32 * 32;
    words[t] = ~0u;
    __syncthreads();
    words[t] = p->in[t];
    if (!p->forgets_warp) __syncwarp();
    const uint32_t left = words[warp + (t + 1) % 32];
    p->out[t] = left;
    __syncwarp();
    words[t] = left;
    if (!p->forgets_block) __syncthreads();
    p->out[64 + t] = words[(t + 32) % 64];
}

/* Of two words that a thread writes with a fence between, another one may see the first alone. */
static void look_between(void *parameters)
{
    uint32_t *seen = (uint32_t *)parameters;
    const uint32_t t = threadIdx.x, left = (t + 1) % 32;
    words[t] = words[32 + t] = 0;
    __syncwarp();
    words[t] = 1;
    __threadfence();
    words[32 + t] = 1;
    seen[t] = words[left] && !words[32 + left];
    __syncwarp();
}

void fenced_kernel_run(uint32_t seen[32], uint64_t seed)
{
    const host_grid grid = {1, 32, 0, 1, seed};
    host_grid_run(&grid, look_between, seen);
}

void forgetful_kernel_run(forgetful_kernel *kernel, uint64_t seed)
{
    const host_grid grid = {1, 64, 0, 1, seed};
    host_grid_run(&grid, turn_left, kernel);
}
