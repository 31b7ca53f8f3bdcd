/* Runs a kernel's grid on the host: see cuda_on_host.h. */
#ifndef HOST_GRID_H
#define HOST_GRID_H

#include "device/digest_kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct host_grid {
    uint32_t blocks, threads; /* of a block: a multiple of 32, at most 288 */
    uint32_t first_block;     /* 0, or: blocks before it are left out */
    uint32_t workers;         /* threads of the host that run blocks side by side; 0 is 1 */
    uint64_t seed;            /* of the order of blocks, warps and threads */
} host_grid;

/* `kernel` runs once a thread. A barrier that only some threads of a warp, or of a block, reaches ends the program. */
void host_grid_run(const host_grid *grid, void (*kernel)(void *parameters), void *parameters);

/* lb_kernel_measure and lb_kernel_turn. */
void host_kernel_measure(const lb_kernel_launch *launch, host_grid grid);
void host_kernel_turn(uint64_t *turn, uint64_t by);

#ifdef __cplusplus
}
#endif
#endif
