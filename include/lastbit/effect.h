/* Effects: how far swaps move what leaves a step: its outermost output, its loss, its parameters.
 *
 *     lb_effects_new ─▶ lb_replay_run(… lb_effects_op for every event …) ─▶ lb_effects_rows ─▶ lb_effects_free
 *
 * A swap is not judged: its effect is measured, as the distance from the recording. Where the recording lacks bytes,
 * the distance is from the same replay without swaps, which lb_effects_new then runs. Effects are those of chained
 * replays and of replays by layer. In an isolated replay every op reads what was recorded, so that a swap moves the
 * results of its own op and nothing else.
 */
#ifndef LASTBIT_EFFECT_H
#define LASTBIT_EFFECT_H

#include <lastbit/replay.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of one tensor or several together. */
typedef struct lb_effect_size {
    uint64_t tensors; /* measured; 0: there are none, or the replay did not get that far, and the numbers are NaN */
    uint64_t moved;   /* of these: with different numbers */
    uint64_t unknown; /* neither recorded nor had from the replay without swaps */
    double max_abs;   /* largest |swapped - reference|; infinity where only one side is NaN or infinite */
    double rel_l2;    /* |swapped - reference| / |reference|; infinity for a reference that is 0 */
} lb_effect_size;

typedef struct lb_effect {
    int64_t step;
    int32_t rank;
    const char *layer;                       /* that gave the output; "": the outermost module */
    lb_effect_size output, loss, parameters; /* parameters: those that the step writes, as it leaves them */
    double loss_reference, loss_swapped;     /* NaN: no loss */
} lb_effect;

typedef struct lb_effects lb_effects;

/* `plan`: with the swaps; capture and replay stay the caller's, and outlive it. */
LB_API lb_status lb_effects_new(lb_capture *capture, lb_replay *replay, const lb_plan *plan, lb_effects **effects,
                                lb_err *err);
LB_API void lb_effects_op(lb_effects *effects, const lb_event *event);
/* By rank and step; good until the effects are freed. Their number. */
LB_API uint32_t lb_effects_rows(lb_effects *effects, const lb_effect **rows);
LB_API void lb_effects_free(lb_effects *effects);

#ifdef __cplusplus
}
#endif
#endif
