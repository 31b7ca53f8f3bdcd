/* Moments of channels; see channel_moments.h. */
#include "kernel/channel_moments.h"

#include <math.h>

bool lb_channel_batch_begin(lb_channel_batch *batch, lb_call *call, const lb_tensor *in)
{
    batch->frame = lb_frame_begin(call);
    const lb_layout *layout = &in->layout;
    if (layout->ndim < 2) {
        lb_frame_fail(&batch->frame, LB_ERR_INVALID, "no channels");
        return false;
    }
    batch->samples = layout->shape[0], batch->channels = layout->shape[1], batch->spatial = 1;
    for (int d = 2; d < layout->ndim; d++) batch->spatial *= layout->shape[d];
    batch->n = batch->samples * batch->spatial;
    batch->x = lb_frame_tensor(&batch->frame, in);
    return lb_frame_ok(&batch->frame) && batch->n > 0;
}

lb_channel_moments lb_channel_moments_of(const lb_channel_batch *batch, int64_t channel, double eps)
{
    const lb_frame *frame = &batch->frame;
    lb_channel_moments moments = {0};
    for (int64_t i = 0; i < batch->n; i++)
        moments.mean += lb_frame_get(frame, batch->x, lb_channel_place(batch, channel, i));
    moments.mean /= (double)batch->n;
    for (int64_t i = 0; i < batch->n; i++) {
        const double x = lb_frame_get(frame, batch->x, lb_channel_place(batch, channel, i));
        moments.var += (x - moments.mean) * (x - moments.mean);
        moments.e += fabs(x) / (double)batch->n;
    }
    moments.var /= (double)batch->n;
    for (int64_t i = 0; i < batch->n; i++) {
        const double x = lb_frame_get(frame, batch->x, lb_channel_place(batch, channel, i));
        moments.kappa += fabs(x - moments.mean) * (fabs(x) + moments.e) / (double)batch->n / (moments.var + eps);
    }
    return moments;
}
