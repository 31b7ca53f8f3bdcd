/* Passes: program -> program. What a structural swap does to a step before it is interpreted.
 *
 * The interpreter knows no swap but the choice of kernel. A swap that changes which ops run (skip, Muon) is applied to
 * every program of the window before it runs, one pass after another; the result is a valid program of its own.
 *
 * What a pass keeps: rows of values, scopes, statistics, boundaries, collectives' members, groups and strings of the
 * input program keep their numbers; new ones are appended. Ops are removed, replaced and inserted, so op rows move:
 * `origin[new op]` is the row in the input program, or LB_NONE for an op that nothing recorded stands for. Tables that
 * name op rows (collectives, boundaries, scalars, groups, notices) are renumbered; a collective is never removed, since
 * its other members wait for it.
 *
 * An op that was replaced keeps its origin and its recorded value rows as results, so that an observer sees "this
 * recorded value, computed differently". A value produced by a pass alone has no digests and no recorded bytes.
 *
 * Pseudo ops that a pass may insert, beside ordinary ATen ops:
 *   lb::zero   ()             -> result    every element 0. If the result is a window of a storage that exists, the
 *                                          window is filled; if not, the storage is made.
 *   lb::copy   (value)        -> result    elements in row-major order, cast to the result's dtype as torch casts. The
 *                                          result may be the same window of the same storage under a later version:
 *                                          then no element changes, and the version exists.
 *   lb::state  ()             -> result    what an earlier step of this run left in that storage, or zeros: optimizer
 *                                          state that the recorded run never had.
 *   lb::round  (value, dtype) -> result    rounded to the grid of `dtype`, kept in the result's dtype.
 */
#ifndef LB_REPLAY_PASSES_H
#define LB_REPLAY_PASSES_H

#include <lastbit/replay.h>

struct lb_slice_flow;
struct lb_selector;

/* What a pass made; program and origin (program->n_ops rows, malloc'ed) are the caller's. */
typedef struct lb_passed {
    lb_program *program;
    uint32_t *origin;
    uint32_t touched; /* scopes skipped, parameters whose update changed, or composites fused */
} lb_passed;

/* Applies LB_SWAP_SKIP, LB_SWAP_MUON or LB_SWAP_UPDATE to one step; other kinds are LB_ERR_INVALID. A selector that
 * selects nothing in this program gives a plain copy and 0 touched, which is no failure: the caller decides over the
 * whole window. `given`: the recorded row of each op of `in`, where passes before it moved them; NULL: `in` is the
 * recorded program. Fails with LB_ERR_INVALID (bad selector or argument), LB_ERR_UNSUPPORTED (the structure cannot be
 * swapped; says why). */
lb_status lb_pass_apply(const lb_program *in, const uint32_t *given, const lb_swap *swap, lb_passed *out, lb_err *err);

/* The passes by themselves (`scopes`, `slices`: what to change), see skip.c, update.c and muon.h. */
lb_status lb_pass_update(const lb_program *in, const uint32_t *given, const struct lb_slice_flow *flow,
                         const struct lb_selector *selector, const char *argument, lb_passed *out, lb_err *err);
lb_status lb_pass_skip(const lb_program *in, const uint32_t *scopes, uint32_t n_scopes, lb_program **out,
                       uint32_t **origin, lb_err *err);

#endif
