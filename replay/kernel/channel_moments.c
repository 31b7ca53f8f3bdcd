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

lb_channel_moments lb_channel_moments_of(const lb_channel_batch *batch, int64_t c, double eps)
{
    const lb_frame *frame = &batch->frame;
    lb_channel_moments m = {0};
    for (int64_t i = 0; i < batch->n; i++) m.mean += lb_frame_get(frame, batch->x, lb_channel_place(batch, c, i));
    m.mean /= (double)batch->n;
    for (int64_t i = 0; i < batch->n; i++) {
        const double x = lb_frame_get(frame, batch->x, lb_channel_place(batch, c, i));
        m.var += (x - m.mean) * (x - m.mean);
        m.e += fabs(x) / (double)batch->n;
    }
    m.var /= (double)batch->n;
    for (int64_t i = 0; i < batch->n; i++) {
        const double x = lb_frame_get(frame, batch->x, lb_channel_place(batch, c, i));
        m.kappa += fabs(x - m.mean) * (fabs(x) + m.e) / (double)batch->n / (m.var + eps);
    }
    return m;
}
