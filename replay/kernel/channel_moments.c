/* Moments of channels; see channel_moments.h. */
#include "kernel/channel_moments.h"

#include <math.h>

bool lb_channel_batch_begin(lb_channel_batch *b, lb_call *call, const lb_tensor *in)
{
    b->frame = lb_frame_begin(call);
    const lb_layout *l = &in->layout;
    if (l->ndim < 2) {
        lb_frame_fail(&b->frame, LB_ERR_INVALID, "no channels");
        return false;
    }
    b->samples = l->shape[0], b->channels = l->shape[1], b->spatial = 1;
    for (int d = 2; d < l->ndim; d++) b->spatial *= l->shape[d];
    b->n = b->samples * b->spatial;
    b->x = lb_frame_tensor(&b->frame, in);
    return lb_frame_ok(&b->frame) && b->n > 0;
}

lb_channel_moments lb_channel_moments_of(const lb_channel_batch *b, int64_t c, double eps)
{
    const lb_frame *f = &b->frame;
    lb_channel_moments m = {0};
    for (int64_t i = 0; i < b->n; i++) m.mean += lb_frame_get(f, b->x, lb_channel_place(b, c, i));
    m.mean /= (double)b->n;
    for (int64_t i = 0; i < b->n; i++) {
        const double x = lb_frame_get(f, b->x, lb_channel_place(b, c, i));
        m.var += (x - m.mean) * (x - m.mean);
        m.e += fabs(x) / (double)b->n;
    }
    m.var /= (double)b->n;
    for (int64_t i = 0; i < b->n; i++) {
        const double x = lb_frame_get(f, b->x, lb_channel_place(b, c, i));
        m.kappa += fabs(x - m.mean) * (fabs(x) + m.e) / (double)b->n / (m.var + eps);
    }
    return m;
}
