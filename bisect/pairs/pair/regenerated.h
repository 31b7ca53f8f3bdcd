/* Values that are wanted although their bytes may not have been kept: an isolated replay regenerates them. */
#ifndef LB_BISECT_REGENERATED_H
#define LB_BISECT_REGENERATED_H

#include "pair/program_view.h"

typedef struct lb_regenerated {
    const lb_program_view *side;
    const lb_program *program; /* of the side */
    void **bytes;              /* per value: row-major elements of its dtype, or NULL */
    uint32_t *base;            /* per value: the one that an op computed and it is a view of; LB_NONE: there is none */
    uint8_t *wanted, *exact;
    uint32_t n_wanted;
} lb_regenerated;

/* All empty; LB_ERR_NOMEM is the only failure. */
lb_status lb_regenerated_init(const lb_program_view *side, lb_regenerated *regenerated, lb_err *err);
void lb_regenerated_release(lb_regenerated *regenerated);
/* LB_NONE is fine. */
void lb_regenerated_want(lb_regenerated *regenerated, uint32_t value);
/* Replays the side if bytes of a wanted value were not kept. */
lb_status lb_regenerated_run(lb_regenerated *regenerated, lb_err *err);
/* The recorded bytes, or the regenerated ones: `*exact` says whether they are known to be the recorded ones. False when
 * there are none. */
bool lb_regenerated_value(const lb_regenerated *regenerated, uint32_t value, lb_tensor *tensor, bool *exact);

#endif
