/* Parameters that one side holds in one tensor and the other in several: q, k and v as one projection, gate and up as
 * one.
 *
 *      A: qkv.weight [3h, d]  =  B: q.weight [h, d], k.weight [h, d], v.weight [h, d]     along the first dimension
 *
 * Names do not tell them, bits do: where both sides start the first step that is compared from the same weights, fused
 * parameters are found by their contents. From then on they, and their optimizer states, are found by name. A is the
 * side with fewer parameters. Private to diff*.c. */
#ifndef LB_BISECT_FUSED_SOURCES_H
#define LB_BISECT_FUSED_SOURCES_H

#include "pair/align.h"

typedef struct lb_fused_row {
    char *whole, **parts;
    uint32_t n;
} lb_fused_row;

typedef struct lb_fused_sources {
    lb_fused_row *list;
    uint32_t n;
} lb_fused_sources;

/* Joins the fused parameters that are known so far in the alignment, and looks for more among parameters without a
 * partner. Both sides have the same number of parts. LB_ERR_NOMEM is the only failure. */
lb_status lb_fused_sources_join(lb_fused_sources *fused, const lb_program_view *a, const lb_program_view *b,
                                lb_alignment *alignment, lb_err *err);
void lb_fused_sources_release(lb_fused_sources *fused);
/* Whether both sides have parameters without a partner. Then the shadow of each side begins with that side's own
 * numbers. This also happens where one tensor of B stands for several of A (micro-batches of a model with one
 * projection for q, k and v), as which side is A is first decided by the number of calls. */
lb_status lb_fused_sources_apart(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                                 bool *apart, lb_err *err);
/* The number of the program's sources that are parameters. */
uint32_t lb_fused_sources_count(const lb_program *program);

#endif
