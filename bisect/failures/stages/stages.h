/* The stages of a bisection, each a driver over lb_trial_run and lb_trial_narrow. A stage that finds sets *found and
 * has added its culprits and the cure to the report; one that clears or has nothing to change does not. */
#ifndef LB_BISECT_STAGES_H
#define LB_BISECT_STAGES_H

#include "trials/trial.h"

/* A/A of every op, the unchanged chained replay (whose failure and trace become the bisection's), unseen writes. *found
 * also when there is nothing to bisect: the outcome says why. */
lb_status lb_stage_sanity(lb_bisect_session *session, bool *found, lb_err *err);
/* Instead of all stages: replays once with options->changes, and says whether that fails. */
lb_status lb_stage_check(lb_bisect_session *session, lb_err *err);
/* Of stage 0: undoes the unseen writes of the window; `count` of them there are. */
/* A parameter that is not finite, in a window where nothing that is watched shows it. */
lb_status lb_stage_hidden(lb_bisect_session *session, bool *found, lb_err *err);
/* Collectives that do not match over ranks, or tensors that replicas no longer hold in common, where no number
 * fails. */
lb_status lb_stage_disagree(lb_bisect_session *session, bool *found, lb_err *err);
lb_status lb_stage_unseen(lb_bisect_session *session, uint32_t *count, bool *found, lb_err *err);
lb_status lb_stage_muon(lb_bisect_session *session, bool *found, lb_err *err);
lb_status lb_stage_precision(lb_bisect_session *session, bool *found, lb_err *err);
lb_status lb_stage_rank(lb_bisect_session *session, bool *found, lb_err *err);
lb_status lb_stage_block(lb_bisect_session *session, bool *found, lb_err *err);
/* Sources that hold NaN or +inf, before anything is blamed for what it made of them. No stage when there are none. */
lb_status lb_stage_spoilt(lb_bisect_session *session, bool *found, lb_err *err);
/* What wrote a mask that leaves a row of attention no key. No stage when the numbers did not go bad in such a
 * softmax. */
lb_status lb_stage_mask(lb_bisect_session *session, bool *found, lb_err *err);
/* A difference whose operands have no digits left for it, before a block is blamed. No stage when no such difference
 * led to the failure. */
lb_status lb_stage_cancellation(lb_bisect_session *session, bool *found, lb_err *err);
/* The data, when no change of the program cures. */
lb_status lb_stage_source(lb_bisect_session *session, bool *found, lb_err *err);
/* When no stage alone cures: several changes together, then each culprit while the others are cured. */
lb_status lb_stage_several(lb_bisect_session *session, bool *found, lb_err *err);
/* Last: single ops, in no block or beside one, that make numbers of finite ones that are not. */
lb_status lb_stage_op(lb_bisect_session *session, bool *found, lb_err *err);
/* Writes over what outlives a step, where the origin is one: too large a learning rate, a state or a buffer that was
 * changed. */
lb_status lb_stage_update(lb_bisect_session *session, bool *found, lb_err *err);
/* The same for a parameter that an op outside every optimizer wrote: when no block cures. */
lb_status lb_stage_loaded(lb_bisect_session *session, bool *found, lb_err *err);
/* Before blocks: an op of the optimizer that broke by itself, where the origin is one. */
lb_status lb_stage_own_op(lb_bisect_session *session, bool *found, lb_err *err);
/* Whether f64 in place of f32 would cure, as a note in the precision stage's row. Once: a second call finds its
 * trial. */
lb_status lb_stage_precision_note(lb_bisect_session *session, lb_err *err);
/* Sums in another order. */
lb_status lb_stage_order(lb_bisect_session *session, bool *found, lb_err *err);

/* ---- for the stages ---------------------------------------------------------------------------------------------- */

/* An op of the run; LB_NONE: the step of that rank, and no op of it. */
typedef struct lb_stage_place {
    int32_t rank;
    int64_t step;
    uint32_t op;
} lb_stage_place;

/* Adds a culprit with what the program says of the op: its layer, name and phase, and the class of its block. */
lb_status lb_stage_culprit_add(lb_bisect_session *session, lb_bisect_axis axis, lb_stage_place place,
                               lb_culprit **culprit, lb_err *err);
/* Of an op that writes several things the one in `storage`: its owner becomes the culprit's parameter and layer. */
lb_status lb_stage_culprit_of_storage(lb_bisect_session *session, lb_culprit *culprit, int32_t rank, int64_t storage,
                                      lb_err *err);
/* All ranks run the same code: a culprit that is not of one rank names those that take part. */
lb_status lb_stage_culprit_all_ranks(lb_bisect_session *session, lb_culprit *culprit, lb_err *err);
/* What Python does between two steps is recorded with the first, and acts in the second: marks a culprit whose op
 * stands behind what the optimizer of its step does. */
void lb_stage_culprit_between_steps(const lb_bisect_session *session, lb_culprit *culprit);
/* Sets the cure to the chosen sites (`found` NULL: all). */
lb_status lb_stage_cure_set(lb_bisect_session *session, const lb_sites *sites, const uint32_t *found, uint32_t n,
                            lb_err *err);
/* One site per step of the window, the first n. */
lb_status lb_stage_sites_add_steps(const lb_bisect_session *session, const lb_site_form *form, uint32_t n,
                                   lb_sites *sites, lb_err *err);
/* Did some op of that rank (by its row) break its result in the unchanged replay, up to the failing step? */
bool lb_stage_rank_broke(const lb_bisect_session *session, uint32_t rank_row);
/* Largest finite magnitude that was recorded of a value, 0 when nothing is known. */
double lb_stage_value_largest(const lb_bisect_session *session, const lb_program *program, uint32_t value);
/* What was left as it was, in a sentence about a change that cures. */
static inline const char *lb_stage_besides(const lb_bisect_session *session)
{
    return session->background.n ? "and the other culprits cured" : "and nothing else changed";
}
/* Steps by their rows, as a selector's list: "2,3". */
void lb_stage_step_list(const lb_bisect_session *session, const uint32_t *rows, uint32_t n, char *list, size_t size);
/* The window's last step that can matter: the failing one. */
uint32_t lb_stage_steps_until_failure(const lb_bisect_session *session);

#endif
