/* Two runs of a model that learns nothing, and that are given the same input in other steps: a server's prefill and decode steps beside one forward,
 * a sequence a call beside a batch, a prefill in chunks. All steps of either side are one program then (bisect/joined/joined_steps.h). */
#ifndef LB_BISECT_CUT_STEPS_H
#define LB_BISECT_CUT_STEPS_H

#include <lastbit/archive.h>

enum { LB_CUT_STEPS_MOST = 64 };

/* Of one rank on each side, whose steps in the window are `LB_CUT_STEPS_MOST` at most. */
bool lb_cut_steps_are(lb_capture *a, lb_capture *b, int64_t first, int64_t last);
/* The steps of the window, ascending; malloc'ed, NULL: out of memory, or one cannot be read. */
const lb_program **lb_cut_steps_load(lb_capture *capture, int64_t first, int64_t last, uint32_t *n);

#endif
