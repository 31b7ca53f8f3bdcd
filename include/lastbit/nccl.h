/* What a program that calls NCCL can say to the shim beneath it (liblastbit_nccl.so), if it is there.
 *
 * Simplest use, in a program that is linked with the shim:
 *
 *     lb_nccl_step(100);                                  // step 100 begins here
 *
 * The shim records each collective and message as an op. It does not see where a step of the program begins. Unless it
 * is told, a step is 100 collectives of the first communicator that a rank joined (LASTBIT_NCCL_STEP gives another
 * number); all its members count these alike. Link with the shim, or declare the function weak:
 *
 *     extern void lb_nccl_step(int64_t) __attribute__((weak));
 *     if (lb_nccl_step) lb_nccl_step(n);
 *
 * Threads: any. The calls of a thread belong to the step that was said last in it, or by the only rank of the process.
 */
#ifndef LASTBIT_NCCL_H
#define LASTBIT_NCCL_H

#include <lastbit/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Step `step` begins for this rank; from now on no step begins by itself. Numbers go up. */
LB_API void lb_nccl_step(int64_t step);

/* For a recorder that has the ops already (PyTorch's): with 1 the shim makes no archive of its own, and only answers
 * lb_nccl_last_order; with 0 it records again. */
LB_API void lb_nccl_join(int joined);
/* In which order NCCL reduced the last collective that this thread called, as `--order` spells it; "" when it did not
 * say. What it returns is this thread's and lasts until it asks again. */
LB_API const char *lb_nccl_last_order(void);

#ifdef __cplusplus
}
#endif
#endif
