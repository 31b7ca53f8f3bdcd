/* What a tensor's rows and columns look like: their sizes and a hash of their numbers, from one pass.
 *
 *      axis 0: rows          of a matrix [out, in]; a vector has none
 *      axis 1: the middle    of stacked experts [expert, out, in]: out
 *      axis 2: columns       of a convolution: the kernel behind axis 1
 *
 * Rows of equal numbers have equal hashes, so that rows which were saved twice are seen; a row of size 0 is all zeros.
 *
 * A matrix is cut into blocks as well, as wide as a head along its rows and along its columns: a block has a size, and
 * says whether it is white noise, as an initialiser leaves it: rows alike in size, columns alike in size, and the
 * fourth moment of a normal or uniform distribution. */
#ifndef LB_BISECT_AUDIT_PROFILE_H
#define LB_BISECT_AUDIT_PROFILE_H

#include <lastbit/tensor.h>

enum { LB_PROFILE_AXES = 3, LB_PROFILE_SIDES = 2 };

typedef struct lb_profile_axis {
    int64_t n;
    float *sizes;     /* root mean square of each slice */
    uint64_t *hashes; /* of its numbers; columns have 32 bits */
} lb_profile_axis;

/* How far a block is from white noise of its size, in standard errors of the largest of three statistics. Below 4: it
 * may be noise. */
typedef struct lb_profile_block {
    float size, unlikeness;
} lb_profile_block;

typedef struct lb_profile_blocks {
    int64_t n, width; /* width: rows or columns of each */
    lb_profile_block *list;
} lb_profile_blocks;

typedef struct lb_profile {
    lb_profile_axis axes[LB_PROFILE_AXES];
    lb_profile_blocks sides[LB_PROFILE_SIDES]; /* along rows, along columns */
} lb_profile;

/* Which of the three axes is dimension `d` of the tensor; -1: its slices are not looked at. */
int lb_profile_axis_of(const lb_layout *layout, int d);
/* `head`: rows of a head, 0: a usual number. `experts`: slices of axis 0 are blocks, too. False when out of memory. */
bool lb_profile_init(lb_profile *profile, const lb_tensor *tensor, int64_t head, bool experts);
/* The same with everything 0: the sizes of what a profile of such a tensor holds. */
bool lb_profile_room(lb_profile *profile, const lb_tensor *tensor, int64_t head, bool experts);
void lb_profile_release(lb_profile *profile);

#endif
