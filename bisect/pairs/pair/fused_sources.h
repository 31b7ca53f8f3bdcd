/* Parameters that one side holds in one tensor and the other in several: q, k and v as one projection, gate and up as
 * one.
 *
 *      A: qkv.weight [3h, d]  =  B: q.weight [h, d], k.weight [h, d], v.weight [h, d]          along the first
 *                             dimension
 *
 * Names say nothing of it, bits do: where the first step that is compared starts from the same weights, they are found
 * by contents, and from then on, their optimizer states too, by name. A is the side with fewer parameters. Private to
 * diff*.c. */
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

/* Joins in the alignment what is known, and looks among the parameters without a partner for more. Sides of as many
 * parts each. LB_ERR_NOMEM is the only failure. */
lb_status lb_fused_sources_join(lb_fused_sources *fused, const lb_program_view *a, const lb_program_view *b,
                                lb_alignment *alignment, lb_err *err);
void lb_fused_sources_release(lb_fused_sources *fused);
/* Both sides have parameters without a partner: the shadows of both begin with what each side holds. So it is where one
 * tensor of B stands for several of A (micro-batches of a model with one projection for q, k and v): which side is A
 * follows from the calls first. */
bool lb_fused_sources_apart(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment);
/* Sources that are parameters. */
uint32_t lb_fused_sources_count(const lb_program *program);

#endif
