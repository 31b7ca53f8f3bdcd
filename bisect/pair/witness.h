/* Values that somebody wants to read although their bytes may not have been kept: an isolated replay regenerates them. */
#ifndef LB_BISECT_WITNESS_H
#define LB_BISECT_WITNESS_H

#include "shadow_pair.h"

typedef struct lb_witness {
    const lb_side *side;
    const lb_program *program; /* of the side */
    void **bytes;              /* per value: row-major elements of its dtype, or NULL */
    uint8_t *wanted, *exact;
    uint32_t n_wanted;
} lb_witness;

/* All empty; LB_ERR_NOMEM is the only failure. */
lb_status lb_witness_init(const lb_side *side, lb_witness *witness, lb_err *err);
void lb_witness_release(lb_witness *witness);
/* LB_NONE is fine. */
void lb_witness_want(lb_witness *witness, uint32_t value);
/* Replays the side if bytes of a wanted value were not kept. */
lb_status lb_witness_run(lb_witness *witness, lb_err *err);
/* The recorded bytes, or the regenerated ones: `*exact` says whether they are known to be the recorded ones. False when
 * there are none. */
bool lb_witness_value(const lb_witness *witness, uint32_t value, lb_tensor *tensor, bool *exact);

#endif
