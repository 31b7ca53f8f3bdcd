/* Flips and what they are measured by: see expert_flip.h. */
#include "composites/expert_flip.h"

#include <math.h>
#include <stdlib.h>

static bool holds(const int64_t *ids, int64_t n, int64_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* The ids of `x` that `y` lacks, by the scores if there are any, largest first. */
static int64_t only_in(const int64_t *x, const int64_t *y, int64_t n, const double *scores, int64_t *out)
{
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        if (holds(y, n, x[i])) continue;
        int64_t at = found++;
        for (; scores && at > 0 && scores[out[at - 1]] < scores[x[i]]; at--) out[at] = out[at - 1];
        out[at] = x[i];
    }
    return found;
}

int64_t lb_flips_of(const int64_t *a, const int64_t *b, int64_t n, const double *scores, lb_expert_flip *flips)
{
    int64_t lost[LB_MOST_CHOICES], won[LB_MOST_CHOICES];
    const int64_t n_lost = only_in(a, b, n, scores, lost), n_won = only_in(b, a, n, scores, won);
    for (int64_t i = 0; i < n_lost; i++) flips[i] = (lb_expert_flip){lost[i], i < n_won ? won[n_won - 1 - i] : -1};
    return n_lost;
}

double lb_expert_flip_rounding(const double *scores, int64_t experts, lb_dtype dtype)
{
    double most = 0;
    for (int64_t e = 0; e < experts; e++)
        if (isfinite(scores[e])) most = fmax(most, fabs(scores[e]));
    return 8 * lb_dtype_unit_roundoff(dtype) * most;
}

bool lb_expert_flip_load_ids(const lb_tensor *tensor, int64_t *ids)
{
    const size_t size = lb_dtype_bits(tensor->dtype) / 8;
    if (tensor->dtype != LB_I64 && tensor->dtype != LB_I32) return false;
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r);)
        for (int64_t i = 0; i < r.count; i++) {
            const char *at = (const char *)tensor->data + (r.offset + i * r.stride) * (int64_t)size;
            *ids++ = tensor->dtype == LB_I64 ? *(const int64_t *)at : *(const int32_t *)at;
        }
    return true;
}

static void load_scores(const lb_tensor *tensor, double *scores)
{
    const int64_t size = (int64_t)(lb_dtype_bits(tensor->dtype) / 8);
    for (lb_rows r = lb_rows_of(&tensor->layout); lb_rows_next(&r); scores += r.count)
        lb_load_f64_strided(scores, tensor->dtype, (const char *)tensor->data + r.offset * size, r.stride,
                            (size_t)r.count);
}

double *lb_expert_flip_scores(const lb_tensor *tensor)
{
    double *scores = malloc((size_t)lb_layout_numel(&tensor->layout) * sizeof *scores + 1);
    if (scores) load_scores(tensor, scores);
    return scores;
}
