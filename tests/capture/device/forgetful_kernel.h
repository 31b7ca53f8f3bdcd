/* A kernel for the test of the runner: out[t] = in[(t + 1) % 32], in each of two warps; then out[64 + t] is what thread
 * t of the other warp read. */
#ifndef FORGETFUL_KERNEL_H
#define FORGETFUL_KERNEL_H

#include "host_grid.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct forgetful_kernel {
    const uint32_t *in;
    uint32_t *out;
    bool forgets_warp, forgets_block; /* a barrier */
} forgetful_kernel;

void forgetful_kernel_run(forgetful_kernel *kernel, uint64_t seed);
/* seen[t]: whether thread t saw its neighbour between two writes, which a fence stands between. */
void fenced_kernel_run(uint32_t seen[32], uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
