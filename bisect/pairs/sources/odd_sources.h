/* A tensor that is made of others than its siblings are: gate and up exchanged in one layer of 32, q and k, another
 * layer's weights.
 *
 *      h.0.ffn.gu = blocks.0.mlp.g + blocks.0.mlp.u
 *      h.1.ffn.gu = blocks.1.mlp.g + blocks.1.mlp.u
 *      h.2.ffn.gu = blocks.2.mlp.u + blocks.2.mlp.g      odd: its siblings, whose names differ in numbers alone, have g
 *                                                        first
 *
 * Each side's numbers are all there, so that no tensor says it alone. Siblings are told by names, as both sides number
 * their layers; where most of them agree, the others are odd. */
#ifndef LB_BISECT_ODD_SOURCES_H
#define LB_BISECT_ODD_SOURCES_H

#include "sources/step_sources.h"

typedef struct lb_odd_source {
    uint32_t row, like; /* of B's sources: the odd one, and one of its siblings that is made as most are */
    uint32_t siblings;  /* that are */
} lb_odd_source;

/* malloc'ed; LB_ERR_NOMEM is the only failure. */
lb_status lb_odd_sources_find(const lb_step_sources *a, const lb_step_sources *b, const lb_contents *contents,
                              lb_odd_source **list, uint32_t *n, lb_err *err);
/* "h.2.ffn.gu holds u + g, where 3 of its siblings hold g + u (h.0.ffn.gu)". */
void lb_odd_source_text(const lb_odd_source *odd, const lb_step_sources *a, const lb_step_sources *b,
                        const lb_contents *contents, char text[700]);

#endif
