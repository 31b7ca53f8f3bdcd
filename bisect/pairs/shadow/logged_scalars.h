/* Pairs the numbers that the program logged (`cap.scalar`, the loss that backward was called on) or read (`.item()`) on
 * both sides, and lists the pairs that differ. They count as outputs of the step, because a user often compares nothing
 * else of two runs.
 *
 * Scalars meet by name and by their place among those of that name; where the sides have a different number of them,
 * none is compared. Options of optimizers are no scalars here: they are what an optimizer was called with. */
#ifndef LB_BISECT_LOGGED_SCALARS_H
#define LB_BISECT_LOGGED_SCALARS_H

#include "shadow/step_outputs.h"

/* One scalar of A and the one of B in its place, whose numbers differ (two NaNs do not). */
typedef struct lb_logged_scalar {
    const char *name;  /* "item": a tensor that became a number of Python's */
    uint32_t nth;      /* from 0, among those of its name */
    double numbers[2]; /* of A and of B */
    uint32_t op[2];    /* of the whole: the last op that gave this number; LB_NONE: no recorded op did, or one side's */
    uint32_t value[2]; /* what it gave */
    uint32_t seen[2];  /* of the whole: the op at which it was logged */
} lb_logged_scalar;

typedef struct lb_logged_scalars {
    lb_logged_scalar *list;
    uint32_t n;
    char counts[300]; /* a name that the sides have in a different number, in words, or "" */
} lb_logged_scalars;

/* Both sides need the same number of parts; else there are no scalars. `swapped`: in sentences B is the first side.
 * LB_ERR_NOMEM is the only failure. */
lb_status lb_logged_scalars_find(const lb_aligned_views *views, bool swapped, lb_logged_scalars *scalars, lb_err *err);
void lb_logged_scalars_release(lb_logged_scalars *scalars);
/* Was the scalar given by an aligned pair, or by ops of one layer and phase in one dtype? If not, the two numbers may
 * be of different things. */
bool lb_logged_scalar_is_judged(const lb_logged_scalar *scalar, const lb_aligned_views *views);
/* Adds scalars that ops of both sides gave, but no aligned pair, as exits: exact arithmetic then says whether they are
 * one number. */
lb_status lb_logged_scalars_add(const lb_logged_scalars *scalars, const lb_aligned_views *views, lb_step_outputs *exits,
                                lb_err *err);

#endif
