/* Several steps of a rank as one program: a server that decodes token by token from a cache beside a trainer that runs
 * all tokens in one forward.
 *
 *      step 0   W, tokens ─▶ … ─▶ k0 ─▶ cache                       W, tokens ─▶ … ─▶ k0 ─┐
 *                                              becomes                                      cat ─▶ …
 *      step 1   W, token, cache ─▶ cat(cache, k1) ─▶ …               W, token  ─▶ … ─▶ k1 ─┘
 *
 * Steps stand one behind the other. What a step begins with and an earlier one left there is no source of the whole:
 * its ops read the memory itself. Numbers that are no floats, and that ops of an earlier step gave (the token that was
 * sampled, a position), stay as they were recorded, since they say what the step is asked for; so does what code
 * outside the recorded ops wrote in between. */
#ifndef LB_BISECT_JOINED_STEPS_H
#define LB_BISECT_JOINED_STEPS_H

#include "pair/program_view.h"

/* Of steps of one rank, ascending. Of one step the view is the plain one. LB_ERR_NOMEM is the only failure. */
lb_status lb_joined_steps_view(lb_capture *capture, const lb_program *const *programs, uint32_t n,
                               lb_program_view *view, lb_err *err);

/* Floats that an earlier step left and that are neither weights nor states nor gradients. */
bool lb_joined_steps_is_cache(const lb_value *value);

#endif
