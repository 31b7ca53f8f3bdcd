/* Runs cut into other steps: see cut_steps.h. */
#include "cut_steps.h"

#include "op_kind.h"

#include <stdlib.h>

const lb_program **lb_cut_steps_load(lb_capture *capture, int64_t first, int64_t last, uint32_t *n)
{
    const int32_t *ranks;
    const int64_t *steps;
    const uint32_t all = lb_capture_steps(capture, &steps);
    const lb_program **list = calloc((size_t)all + 1, sizeof *list);
    bool there = list && lb_capture_ranks(capture, &ranks) == 1;
    *n = 0;
    for (uint32_t i = 0; i < all && there; i++) {
        if (steps[i] < first || steps[i] > last) continue;
        there = lb_capture_program(capture, ranks[0], steps[i], &list[*n], NULL) == LB_OK && list[*n]->complete;
        ++*n;
    }
    if (there) return list;
    free(list);
    return NULL;
}

/* Of steps that only infer, all on one rank. */
static bool infers(const lb_program *p)
{
    bool computes = false;
    if (p->n_collectives) return false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (p->ops[i].phase == LB_PHASE_BACKWARD || p->ops[i].phase == LB_PHASE_OPTIMIZER) return false;
        if (p->ops[i].flags & LB_OP_FAILED) return false; /* the program may have ended there */
        computes |= lb_op_computes(p, &p->ops[i]);
    }
    return computes;
}

/* The first tensor that a module was given; NULL: no module was given one. */
static const lb_layout *entering(const lb_program *p)
{
    for (uint32_t i = 0; i < p->n_boundaries; i++)
        if (!p->boundaries[i].output && p->boundaries[i].value != LB_NONE)
            return &p->values[p->boundaries[i].value].layout;
    return NULL;
}

/* Is some step given a tensor of another shape than the other side's of its number, or is that not known? */
static bool are_given_otherwise(const lb_program *const *a, uint32_t n_a, const lb_program *const *b, uint32_t n_b)
{
    for (uint32_t i = 0; i < n_a && i < n_b; i++) {
        const lb_layout *x = entering(a[i]), *y = entering(b[i]);
        if (!x || !y ? n_a != n_b : !lb_layout_same_shape(x, y)) return true;
    }
    return false;
}

bool lb_cut_steps_are(lb_capture *a, lb_capture *b, int64_t first, int64_t last)
{
    uint32_t n[2];
    const lb_program **lists[] = {lb_cut_steps_load(a, first, last, &n[0]), lb_cut_steps_load(b, first, last, &n[1])};
    bool are = lists[0] && lists[1] && n[0] && n[1] && n[0] + n[1] > 2 && n[0] <= LB_CUT_STEPS_MOST &&
               n[1] <= LB_CUT_STEPS_MOST;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; are && i < n[k]; i++) are = infers(lists[k][i]);
    are = are && are_given_otherwise(lists[0], n[0], lists[1], n[1]);
    free(lists[0]), free(lists[1]);
    return are;
}
