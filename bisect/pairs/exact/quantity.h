/* What a value is, whatever its layout: a few means over its elements, the same for every shape, order, stride and
 * repetition of the numbers.
 *
 *      q of shape (2, 4, 8, 16)     q transposed to (2, 8, 4, 16)     q flattened to (16, 64)     k repeated for its
 *                                   query groups
 *      ───────────────────────────── one quantity ─────────────────────────────────────────       ─ that of k ─
 *
 * Two implementations of one model give a quantity other names, shapes and ops; in exact arithmetic its numbers stay.
 * How far rounding in f64 moves a mean is measured: the side is run once more with every result disturbed
 * (bisect/pairs/shadow/shadow_numbers.h), and the largest distance of the two runs is the mean's noise. Values that are
 * one number all over (zeros, masks of ones) say nothing and are no quantity. */
#ifndef LB_BISECT_QUANTITY_H
#define LB_BISECT_QUANTITY_H

#include <lastbit/tensor.h>

enum { LB_QUANTITY_MEANS = 6 };

typedef struct lb_quantity {
    int64_t elements; /* 0: the value was not seen */
    bool tells;       /* its numbers are not all alike, and are no rounding alone */
    /* All of it are whole numbers (choices of experts, masks made of them): these have the same means wherever they
     * fall. A digest of them in their order; of a matrix of integers the order within a row is left out, as a top-k
     * need not sort. */
    bool whole;
    uint64_t digest;
    double mean[LB_QUANTITY_MEANS], scale[LB_QUANTITY_MEANS], noise[LB_QUANTITY_MEANS];
} lb_quantity;

/* Of f64 elements, or of integers and bools as numbers. Elements of a mask (2^96 and more in size, or not finite) count
 * by their number alone, so that -inf and the lowest finite number are one. */
lb_quantity lb_quantity_of(const lb_tensor *tensor);
/* The disturbed run gave this in the place of that. */
void lb_quantity_disturbed(lb_quantity *quantity, const lb_quantity *disturbed);
/* The same numbers: of as many elements, or of a whole number of times as many (repeated ones). Both have to tell
 * something. */
bool lb_quantities_agree(const lb_quantity *a, const lb_quantity *b);
/* The same means, whatever the numbers of elements: tables that repeat the same rows, each as often as it needs. */
bool lb_quantities_repeat(const lb_quantity *a, const lb_quantity *b);
/* By which equal quantities stand near each other when they are sorted, and how far apart two equal ones may be. */
double lb_quantity_key(const lb_quantity *quantity);
double lb_quantity_reach(const lb_quantity *quantity);

#endif
