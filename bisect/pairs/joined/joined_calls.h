/* A step that runs its model several times, as one view with a part for each call: a server that answers one request
 * after another beside one that packs them, or a prefill in chunks, where the program calls all of it one step.
 *
 *      A   prompt 1 ─ token ─ token ─ prompt 2 ─ token ─ token        six calls
 *      B   both prompts ─ both tokens ─ both tokens                   three calls
 *
 * A call begins where the table of the tokens is looked up again. */
#ifndef LB_BISECT_JOINED_CALLS_H
#define LB_BISECT_JOINED_CALLS_H

#include "pair/program_view.h"

/* Cuts both views (of one program each, which only infers) where their calls are given tokens of other shapes. `*cut`
 * false: both stay as they are. LB_ERR_NOMEM is the only failure. */
lb_status lb_joined_calls_cut(lb_program_view *const views[2], bool *cut, lb_err *err);

#endif
