/* A batch seen by its channels, and the moments of one with what cancellation does to them. */
#ifndef LB_REPLAY_CHANNEL_MOMENTS_H
#define LB_REPLAY_CHANNEL_MOMENTS_H

#include "kernel/frame.h"

/* (samples, channels, spatial) */
typedef struct lb_channel_batch {
    lb_frame frame;
    int64_t samples, channels, spatial, n; /* n: elements of a channel */
    const void *x;
} lb_channel_batch;

/* Begins the frame. False: it has failed, or `in` is empty; either way it only has to be ended. */
bool lb_channel_batch_begin(lb_channel_batch *batch, lb_call *call, const lb_tensor *in);

/* Where element i of a channel stands. */
static inline int64_t lb_channel_place(const lb_channel_batch *batch, int64_t channel, int64_t i)
{
    return (i / batch->spatial * batch->channels + channel) * batch->spatial + i % batch->spatial;
}

/* In f64, in two passes. e = mean |x|, kappa = mean |x - m| (|x| + e) / (var + eps): by how much more than itself a
 * variance is off. */
typedef struct lb_channel_moments {
    double mean, var, e, kappa; /* var: biased */
} lb_channel_moments;
lb_channel_moments lb_channel_moments_of(const lb_channel_batch *batch, int64_t channel, double eps);

#endif
