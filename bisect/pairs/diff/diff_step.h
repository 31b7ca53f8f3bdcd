/* One step of both sides: aligned, its digests compared, both replayed where something differs, and the walk that turns
 * that into rows. */
#ifndef LB_BISECT_DIFF_STEP_H
#define LB_BISECT_DIFF_STEP_H

#include "diff/diff_walk.h"
#include "pair/layer_names.h"

#include <lastbit/diff.h>
#include <lastbit/lacking.h>

/* What all steps of one diff share. */
typedef struct lb_diff_session {
    lb_capture *a, *b; /* the first and the second side */
    const lb_diff_options *options;
    const lb_layer_names_map *rules;
    const struct lb_content_map *map; /* what the user says of tensors (contents/content_map.h); NULL */
    lb_diff_report *report;
    /* for steps before the window that was asked for, from which only the state is taken: their rows go here and are
     * dropped; or NULL */
    lb_diff_report *quiet;
    bool without_replay; /* what differs is left unjudged: values are asked first */
    bool swapped;        /* the last pair was turned round */
    uint64_t shared;     /* steps that both sides have */
    bool one_by_one;     /* each rank was judged by itself: diff_many.h */
    lb_lack lacks[2];    /* bytes that either side did not keep, without which something could not be judged */
} lb_diff_session;

/* Rows and findings of the step that `walk` stands at go to its report. */
lb_status lb_diff_step(lb_diff_walk *walk, lb_diff_session *session, lb_err *err);
/* Does a program compute anything? Tensors of a checkpoint do not. */
bool lb_diff_step_has_ops(const lb_program *program);
/* Which side is to be recorded again, and how, so that what could not be judged can be. */
void lb_diff_step_say_lacks(lb_diff_session *session);

#endif
