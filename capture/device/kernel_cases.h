/* Values that show whether a measuring kernel finds what the host finds: every way that it reads, hashes and adds up.
 * What a device is asked when it is opened, and what tests ask kernels that are wrong in one place. */
#ifndef LB_KERNEL_CASES_H
#define LB_KERNEL_CASES_H

#include "measure/measure.h"

enum { LB_KERNEL_CASE_BYTES = 32 * 65536 }; /* that the values lie in, 16-byte aligned */

/* The bytes, the same each time: finite numbers of every float type, then words of any bits, then zeros. */
void lb_kernel_case_fill(void *bytes);

/* Case `i` of values in `bytes`, which may be a device's address; false: there are no more. */
bool lb_kernel_case(size_t i, void *bytes, lb_measuring *measuring);

#endif
