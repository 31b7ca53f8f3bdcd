/* The measuring kernel, compiled for the host. */
#include "cuda_on_host.h"

#include "digest_kernel.cu"

#include "host_grid.h"

static void measure(void *launch)
{
    lb_kernel_measure(*(const lb_kernel_launch *)launch);
}

extern "C" void host_kernel_measure(const lb_kernel_launch *launch, host_grid grid)
{
    lb_kernel_launch copy = *launch;
    grid.threads = LB_KERNEL_THREADS;
    host_grid_run(&grid, measure, &copy);
}

extern "C" void host_kernel_turn(uint64_t *turn, uint64_t by)
{
    lb_kernel_turn(turn, by);
}
