/* The host's side of the measuring kernel: what lb_measure would be asked, as the kernel wants it, and its answer as
 * lb_measure's. No function here touches a device. */
#ifndef LB_KERNEL_ITEM_H
#define LB_KERNEL_ITEM_H

#include "measure/measure.h"
#include "device/digest_kernel.h"

/* `measuring` is as for lb_measure, its addresses the device's. Fails with LB_ERR_UNSUPPORTED where there is no digest:
 * no dtype, a size that is none, a strided view of elements smaller than a byte. */
lb_status lb_kernel_item_of(lb_kernel_item *item, const lb_measuring *measuring, lb_err *err);

/* Whether each byte is read once, by units that hash and add up, or twice, by units that do either: those end sooner
 * where the value is too small to keep the device busy. lb_kernel_item_of decides by size. Nothing changes where it
 * cannot be or nothing is added up. */
void lb_kernel_fuse(lb_kernel_item *item, bool fused);

/* The scratch that an item needs, a multiple of 8: about a thousandth of what it reads. */
uint64_t lb_kernel_scratch_bytes(const lb_kernel_item *item);

/* Gives each item of a launch its units, and returns how many they are. 0: more than a launch holds (2^31). */
uint32_t lb_kernel_batch(lb_kernel_item *items, size_t n);

static inline uint32_t lb_kernel_blocks(uint32_t n_units)
{
    return (n_units + LB_KERNEL_WARPS - 1) / LB_KERNEL_WARPS;
}

/* Digests and statistics; the leaves stay NULL: they lie in the item's scratch. */
lb_measured lb_kernel_measured(const lb_kernel_result *result);

#endif
