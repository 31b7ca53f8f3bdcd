/* Compares tensors that the two sides split differently (cut_tensors.h) by their exact numbers at the end of a step.
 * For each source that holds some of such a tensor, every write is applied to a copy of its initial numbers. The whole
 * tensor of each side is then assembled from all of that side's sources. */
#ifndef LB_BISECT_CUT_SHADOWS_H
#define LB_BISECT_CUT_SHADOWS_H

#include "pair/cut_tensors.h"
#include "shadow/shadow_pair.h"

/* The exact numbers of one source, in f64. */
typedef struct lb_cut_sheet {
    uint32_t op;
    double *numbers; /* NULL: its bytes were not kept */
    bool broken;     /* some write could not be followed */
} lb_cut_sheet;

enum { LB_CUT_RUNS = 3 }; /* of A, of A disturbed, of B */

typedef struct lb_cut_shadows {
    const lb_cut_tensors *cuts; /* NULL: there are none */
    const lb_program_view *sides[2];
    lb_cut_sheet *sheets[LB_CUT_RUNS];
    uint32_t n[LB_CUT_RUNS];
} lb_cut_shadows;

/* LB_ERR_NOMEM is the only failure. */
lb_status lb_cut_shadows_open(const lb_program_view *a, const lb_program_view *b, const lb_cut_tensors *cuts,
                              lb_cut_shadows *out, lb_err *err);
void lb_cut_shadows_close(lb_cut_shadows *shadows);
/* Takes note of what an op of that run wrote; a complex number counts as two numbers. */
void lb_cut_shadows_note(lb_cut_shadows *shadows, int run, const lb_event *event);
/* Judges the finals of these tensors; where they disagree, `final_parts` names the part of B that differs. */
void lb_cut_shadows_judge(const lb_cut_shadows *shadows, lb_shadow_pair *out);

#endif
