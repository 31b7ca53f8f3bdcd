/* The state of delayed scaling: for each tensor the amaxes of the last steps, and the scale that they gave.
 *
 *      history[0]   this step's amax so far          after a step all move down by one, [0] becomes 0 and the scale is
 *      history[1..] those of the steps before        max / 2^margin / (largest of all, or the latest)
 *
 * as Transformer Engine does (common/recipe/delayed_scaling.cu): an amax that is 0 or not finite leaves the scale as it
 * was, a tensor that a step did not touch keeps its history. A cold start has scale 1 and zeros; a calibrated one takes
 * its first scale from its first tensor. The scale is made anew every `interval` steps. Each rank keeps its own amaxes.
 *
 * One tensor is (recipe, layer, role, slot), see operand_role.h, and is the same one in all steps of a run.
 */
#ifndef LB_REPLAY_SCALE_HISTORY_H
#define LB_REPLAY_SCALE_HISTORY_H

#include "precision/recipe.h"

typedef struct lb_scale_history {
    const lb_recipe *recipe;
    char *layer;
    lb_precision_role role;
    uint32_t slot;
    float *history; /* recipe->history of them */
    float scale;
    bool touched; /* in this step */
    bool begun;   /* has a scale of its own */
} lb_scale_history;

typedef struct lb_scale_book lb_scale_book;

lb_scale_book *lb_scale_book_new(void); /* NULL when out of memory */
void lb_scale_book_free(lb_scale_book *book);
/* Made when new; NULL when out of memory. Valid until the next call. `recipe` is compared by address. */
lb_scale_history *lb_scale_book_find(lb_scale_book *book, const lb_recipe *recipe, const char *layer,
                                     lb_precision_role role, uint32_t slot);
/* The scale for a tensor with that amax, which joins the history. Several tensors of one step share the scale. */
float lb_scale_history_take(lb_scale_history *entry, float amax);
/* After a step. */
void lb_scale_book_step(lb_scale_book *book);

#endif
