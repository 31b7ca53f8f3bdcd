/* Choices: what the swaps of a plan ask of each op of a program.
 *
 * Swaps apply in the order given; of two that set the same thing the later wins. Ops that are asked the same share a
 * row. Skip, Muon, fusions: passes.h and fuse.h make another program of it before choices are made.
 */
#ifndef LB_REPLAY_CHOICES_H
#define LB_REPLAY_CHOICES_H

#include "machine/machine.h"

typedef struct lb_choices lb_choices; /* the swaps of one run, parsed; and the rows of choices made so far */

/* LB_ERR_INVALID names the swap whose selector or argument is wrong. NULL swaps when n is 0. */
lb_status lb_choices_new(const lb_swap *swaps, uint32_t n, lb_choices **choices, lb_err *err);
void lb_choices_free(lb_choices *choices);
/* `*choice_of`: malloc'ed row of choices per op; NULL when no op is touched. */
lb_status lb_choices_make(lb_choices *choices, const lb_prepared *prepared, const char *blocks, uint8_t **choice_of,
                          lb_err *err);
const lb_choice *lb_choices_rows(const lb_choices *choices);
/* Sets touched[i] for every swap i of the plan that is no pass: how many ops it concerned so far. */
void lb_choices_touched(const lb_choices *choices, uint64_t *touched);
bool lb_choices_want_blocks(const lb_choices *choices);
/* Some op is to be computed by PyTorch: plan.backend is needed. */
bool lb_choices_want_torch(const lb_choices *choices);
/* Some op's operands are rounded outside its kernel; `told`: what every precision swap does is asked for. */
bool lb_choices_round_operands(const lb_choices *choices, bool told);
static inline bool lb_swap_is_structural(lb_swap_kind kind)
{
    return kind == LB_SWAP_SKIP || kind == LB_SWAP_MUON || kind == LB_SWAP_FUSE || kind == LB_SWAP_UPDATE;
}

#endif
