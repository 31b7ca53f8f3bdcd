/* What the host and the measuring kernel (digest_kernel.cu) tell each other. Plain C, read by the host's compiler, by
 * nvcc, and by NVRTC, which has no other header: so nothing of ours and nothing of the C library is included but
 * integer types.
 *
 *     host                                              device
 *     lb_kernel_item[n]  ── lb_kernel_pack ──▶ units    a block of threads a unit: leaves, into the item's scratch
 *     lb_kernel_launch   ── the kernel's parameter ──▶  the block that ends an item's last unit: digests and sums of the whole
 *     lb_kernel_result   ◀── slot of the ring ───────   `whole` is written last
 *
 * One launch of lb_kernel_measure does it all, for as many items as its parameter holds: n_units blocks of
 * LB_KERNEL_THREADS threads, no dynamic shared memory, one parameter (lb_kernel_launch, by value), so that nothing is
 * copied to the device before it. The definitions are those of lastbit/digest.h and lastbit/statistics.h; results are
 * those of lb_measure, bit by bit. */
#ifndef LB_DIGEST_KERNEL_H
#define LB_DIGEST_KERNEL_H

#ifdef __CUDACC_RTC__
typedef unsigned long long uint64_t;
typedef long long int64_t;
typedef unsigned uint32_t;
typedef int int32_t;
typedef unsigned short uint16_t;
typedef unsigned char uint8_t;
#else
#include <stdint.h>
#endif

#define LB_KERNEL_NAME "lb_kernel_measure"
#define LB_KERNEL_TURN_NAME "lb_kernel_turn"
#define LB_KERNEL_READERS 256  /* threads of a block that read a leaf */
#define LB_KERNEL_THREADS 288  /* and a warp that ends the leaf before it; a block does a unit */
#define LB_KERNEL_RESIDENT 2   /* blocks of a multiprocessor for whose registers there is room */
#define LB_KERNEL_MOST_SPAN 64 /* leaves of a unit */
#define LB_KERNEL_ENOUGH 256   /* units of a value, before they are longer than a leaf */
#define LB_KERNEL_DIMS 16
#define LB_KERNEL_BLOCK 1024 /* bytes: LB_STATISTICS_BLOCK */
#define LB_KERNEL_LEAF 65536 /* bytes: LB_DIGEST_LEAF */

/* How an element (of a complex type: a part) is read as a number. */
enum lb_kernel_element {
    LB_KERNEL_F64,
    LB_KERNEL_F32,
    LB_KERNEL_BF16,
    LB_KERNEL_F16,
    LB_KERNEL_SMALL,  /* a float of 8 bits, or of 4 bits two to a byte: see lb_kernel_small */
    LB_KERNEL_SCALE,  /* e8m0 */
    LB_KERNEL_SIGNED, /* of part_bits */
    LB_KERNEL_UNSIGNED,
    LB_KERNEL_BOOL
};

/* sign | exponent | fraction. A magnitude above max_code is no number, or infinity if it is inf_code; nor is nan_code,
 * sign and all. */
typedef struct lb_kernel_small {
    uint32_t fraction_bits, bias, sign_shift, max_code, inf_code, nan_code; /* LB_KERNEL_NO_CODE: there is none */
} lb_kernel_small;
#define LB_KERNEL_NO_CODE 0xffffu

enum lb_kernel_what {
    LB_KERNEL_STATISTICS = 1,
    LB_KERNEL_BLOB = 2 /* of the dense range, where that is not the elements in their order */
};

/* One value. Made by lb_kernel_item_of; the caller adds `scratch` and `slot`, lb_kernel_pack the units. It may be
 * launched again (a graph) after it is done, with another slot or turn: slot + turn is another number in every run that
 * has the same scratch. */
typedef struct lb_kernel_item {
    uint64_t data;               /* address of element 0 */
    uint64_t dense, dense_bytes; /* the dense range */
    uint64_t bytes, numbers;     /* of all elements in row-major order; a complex element is two numbers */
    uint64_t scratch; /* device memory, 8-byte aligned, lb_kernel_scratch_bytes of it. What was there does not matter */
    uint64_t slot;    /* in the ring of results, before the launch's turn is added */
    uint32_t first_unit;           /* of the launch */
    uint32_t main, blob;           /* units: of the elements, and of the dense range */
    uint32_t main_span, blob_span; /* their leaves, a power of two */
    uint32_t contiguous;
    uint32_t chunk;   /* of a view that is not contiguous: bytes that lie together in each row and are fetched as one */
    uint32_t granule; /* bytes of one copy, of elements as they lie */
    uint32_t dense_granule;
    uint32_t what, dtype, element, part_bits, width; /* width: bytes of an element, 0 where it is less than one */
    lb_kernel_small small;
    uint32_t ndim, n_sizes;         /* n_sizes: 0 where it is contiguous */
    uint64_t shape[LB_KERNEL_DIMS]; /* as the logical digest has it */
    /* The view again, in chunks, without sizes of 1 and with neighbours merged where that changes nothing; the
     * outermost first. */
    uint64_t sizes[LB_KERNEL_DIMS];
    int64_t strides[LB_KERNEL_DIMS]; /* bytes */
} lb_kernel_item;
#define LB_KERNEL_FIXED_WORDS 18 /* of an item, before `shape` */

typedef struct lb_kernel_result {
    uint64_t logical_hi, logical_lo, blob_hi, blob_lo; /* 0, 0: not computed */
    int64_t elements, nan, pos_inf, neg_inf, zero;     /* as lb_statistics */
    double min, max, sum, sum_squares;
    uint64_t ended; /* the device's own count of units that have: 0 before the launch, and when the item is done */
    uint64_t reserved;
    uint64_t whole; /* 1 + slot + turn, once all of the above is there */
} lb_kernel_result;

#define LB_KERNEL_WORDS 508 /* with what stands before them 4 KB, which every driver takes as parameters */

/* The only parameter. */
typedef struct lb_kernel_launch {
    uint64_t results;   /* address of lb_kernel_result[n_results]: a ring, slots are taken modulo its size */
    uint64_t n_results; /* not 0 */
    uint64_t turn; /* address of a uint64_t that is added to every slot, or 0: a graph's next run takes other slots */
    uint32_t n_items, n_units;
    /* Of each item its first unit and, 32 bits up, at which word it lies: its fixed words, then as much as it has of
     * shape, sizes and strides. */
    uint64_t words[LB_KERNEL_WORDS];
} lb_kernel_launch;

/* lb_kernel_turn(uint64_t *turn, uint64_t by): one thread adds `by` to `*turn`; the last node of a graph. */

/* What the scratch holds, in words of 8 bytes: the leaves of the elements, which are those of lb_measured.leaves for a
 * contiguous value; the leaves of the dense range, if `blob`; and if statistics are wanted a record for each unit of
 * the elements, then fields for each LB_KERNEL_TOGETHER of them, and so on until one is left. */
#define LB_KERNEL_RECORD_WORDS 6
#define LB_KERNEL_FIELD_WORDS 8
#define LB_KERNEL_TOGETHER LB_KERNEL_READERS

#endif
