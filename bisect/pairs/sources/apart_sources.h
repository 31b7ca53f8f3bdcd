/* Weights and states that differ as a window begins: how far, and in what pattern. They came before it, so that this is
 * said beside the answer, which names places of the step alone.
 *
 *      all of them by one amount          two runs that have drifted apart, other kernels, another batch order
 *      one layer, or one tensor, alone    a fault that an earlier step had there, a conversion, a bad rank
 *      all states of an optimizer zero    a restart that did not load them
 *
 * Distances are relative L2 by tensor. Alike is what lies within ALIKE times the median. */
#ifndef LB_BISECT_APART_SOURCES_H
#define LB_BISECT_APART_SOURCES_H

#include "sources/step_sources.h"

typedef struct lb_apart_source {
    uint32_t row;     /* of B's sources */
    const char *name; /* B's; where it has none A's; "": neither has */
    bool state;       /* not a parameter */
    double distance;
    int zero; /* the side that holds zeros alone: 1, 2; 0: neither, or both */
} lb_apart_source;

/* Zero-initialise. */
typedef struct lb_apart_sources {
    lb_apart_source *list;
    uint32_t n;
    uint32_t of[2]; /* parameters, states that were compared */
} lb_apart_sources;

/* Of all floats of B that stand beside A's. LB_ERR_NOMEM is the only failure. */
lb_status lb_apart_sources_measure(const lb_step_sources *a, const lb_step_sources *b, const lb_contents *contents,
                                   lb_apart_sources *out, lb_err *err);
void lb_apart_sources_release(lb_apart_sources *apart);
/* In words, by `say` once for each class; nothing where none is apart. */
void lb_apart_sources_text(const lb_apart_sources *apart, void *context, void (*say)(void *context, const char *text));

#endif
