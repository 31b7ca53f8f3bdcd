/* Trees of additions, run: see sum_tree.h. A node's sum lies in a slot that later nodes use again, so that memory goes
 * with the sums that are alive at a time, not with the terms; sixteen columns are added up side by side. */
#include "orders/schedule.h"
#include "orders/sum_tree.h"
#include "orders/tensor_core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 16 };

/* Where each node's sum lies. */
typedef struct slots {
    uint32_t *of;
    uint32_t n, most; /* slots; operands of the widest node */
} slots;

static bool slots_plan(const lb_sum_tree *tree, slots *plan)
{
    uint32_t *idle = malloc((tree->nodes + 1) * sizeof *idle), n_idle = 0;
    *plan = (slots){malloc((tree->nodes + 1) * sizeof *plan->of), 0, 2};
    for (uint32_t i = 0; idle && plan->of && i < tree->nodes; i++) {
        for (uint32_t k = tree->first[i]; k < tree->first[i + 1]; k++)
            if (tree->operand[k] >= tree->leaves) idle[n_idle++] = plan->of[tree->operand[k] - tree->leaves];
        plan->of[i] = n_idle ? idle[--n_idle] : plan->n++;
        if (tree->first[i + 1] - tree->first[i] > plan->most) plan->most = tree->first[i + 1] - tree->first[i];
    }
    const bool done = idle && plan->of;
    free(idle);
    return done;
}

static const lb_schedule exact = {LB_SCHEDULE_EXACT, 0, 0};

/* The real sum of `n` numbers, as the double it would round to by truncation with a sticky last bit: rounding that to
 * f32 is one rounding. all[n] is free. */
static double sum_to_odd(double *all, int64_t n)
{
    double sum = lb_schedule_sum_f64(&exact, all, n, LB_NO_DTYPE);
    if (!isfinite(sum)) return sum;
    all[n] = -sum;
    const double rest = lb_schedule_sum_f64(&exact, all, n + 1, LB_NO_DTYPE);
    uint64_t bits;
    memcpy(&bits, &sum, 8);
    return rest == 0 || bits & 1 ? sum : nextafter(sum, rest > 0 ? INFINITY : -INFINITY);
}

static float fused_f32(const lb_tree_rule *rule, const float *a, const float *b, uint32_t n, float acc)
{
    if (rule->fused) return lb_tensor_core_sum(rule->fused, a, b, n, acc);
    double few[128], *all = n + 2 <= 128 ? few : malloc(((size_t)n + 2) * sizeof *all);
    if (!all) return NAN;
    for (uint32_t i = 0; i < n; i++) all[i] = b ? (double)a[i] * (double)b[i] : (double)a[i];
    all[n] = acc;
    const float sum = (float)sum_to_odd(all, (int64_t)n + 1);
    if (all != few) free(all);
    return sum;
}

static double fused_f64(const lb_tree_rule *rule, const double *a, const double *b, uint32_t n, double acc)
{
    (void)rule;
    double few[128], *all = n + 1 <= 128 ? few : malloc(((size_t)n + 1) * sizeof *all);
    if (!all) return NAN;
    for (uint32_t i = 0; i < n; i++) all[i] = b ? a[i] * b[i] : a[i];
    all[n] = acc;
    const double sum = lb_schedule_sum_f64(&exact, all, (int64_t)n + 1, LB_NO_DTYPE);
    if (all != few) free(all);
    return sum;
}

#define REAL_TEMPLATE "orders/sum_tree_real.h"
#include "functions/real_template.h"
