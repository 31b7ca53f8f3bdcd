/* The host's side of the measuring kernel: what lb_measure would be asked, as the kernel wants it, and its answer as
 * lb_measure's. No function here touches a device. */
#ifndef LB_KERNEL_ITEM_H
#define LB_KERNEL_ITEM_H

#include "measure/measure.h"
#include "device/digest_kernel.h"

/* `measuring` is as for lb_measure, its addresses the device's. Fails with LB_ERR_UNSUPPORTED where there is no digest:
 * no dtype, a size that is none, a strided view of elements smaller than a byte. */
lb_status lb_kernel_item_of(lb_kernel_item *item, const lb_measuring *measuring, lb_err *err);

/* The scratch that an item needs, a multiple of 8: about a thousandth of what it reads. */
uint64_t lb_kernel_scratch_bytes(const lb_kernel_item *item);

/* What an item takes of a launch: words of LB_KERNEL_WORDS, and units. */
uint32_t lb_kernel_words(const lb_kernel_item *item);
uint64_t lb_kernel_units(const lb_kernel_item *item);

/* Gives each item its units and puts them all into the launch. False where they are more than it holds: words, or 2^31
 * units. */
bool lb_kernel_pack(lb_kernel_launch *launch, lb_kernel_item *items, size_t n);

/* Digests and statistics; the leaves stay NULL: they lie in the item's scratch. */
lb_measured lb_kernel_measured(const lb_kernel_result *result);

#endif
