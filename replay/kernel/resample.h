/* Linear maps along single axes: what average pools, interpolations and mirrored or replicated borders have in common.
 *
 * Each of up to three trailing dimensions has an axis: for every output position the input positions it reads ("taps")
 * with their weights. The op is the product over its axes; its backward is the transpose. So an op is said by how its
 * axes are made.
 *
 *      out[c, y, x] = Σ_i w_y[i] Σ_j w_x[j] in[c, i, j]  (/ divisor_y divisor_x for averages) */
#ifndef LB_REPLAY_RESAMPLE_H
#define LB_REPLAY_RESAMPLE_H

#include "kernel/frame.h"

#define LB_AXES 3

typedef enum lb_resample_axis_kind {
    LB_AXIS_AVERAGE,  /* pools: kernel, stride, padding */
    LB_AXIS_ADAPTIVE, /* pools to a given size */
    LB_AXIS_NEAREST,
    LB_AXIS_NEAREST_EXACT, /* of pixel centres */
    LB_AXIS_LINEAR,
    LB_AXIS_CUBIC,         /* Keys' convolution with a = -3/4 */
    LB_AXIS_SMOOTH_LINEAR, /* antialiased: the filter is as wide as an output pixel; cubic has a = -1/2 */
    LB_AXIS_SMOOTH_CUBIC,
    LB_AXIS_SMOOTH_LANCZOS,
    LB_AXIS_REFLECT,
    LB_AXIS_REPLICATE
} lb_resample_axis_kind;

/* What an axis is made from. */
typedef struct lb_resample_axis_plan {
    lb_resample_axis_kind kind;
    int64_t in, out;
    int64_t kernel, stride, padding; /* pools; padding also of borders */
    bool ceil_mode, count_padding, align_corners;
    double divisor; /* of all axes together, where it is given: then every axis divides by 1 and the op by it; else 0 */
    double factor;  /* scale factor that the caller gave, else 0 */
    bool wide;      /* positions are computed in f64, else in f32 */
} lb_resample_axis_plan;

typedef struct lb_resample_axis {
    int64_t in, out, most;   /* most: taps of one output */
    int64_t *count;          /* per output */
    int64_t *at;             /* out * most: positions */
    double *weight, *spread; /* the same; spread: |weight| and what the rounding of its position does to it, in ulps */
    double *divisor;         /* per output; 1 where weights are all */
} lb_resample_axis;

/* Arrays belong to the frame; fails it when memory is short. */
bool lb_resample_axis_make(lb_frame *frame, const lb_resample_axis_plan *plan, lb_resample_axis *axis);

#endif
