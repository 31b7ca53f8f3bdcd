/* Bools and integers that steered the recorded program and whose bytes were not kept: the unchanged replay computes
 * them, and trials take them from here. At most LB_DECISIONS_BYTES; zero-initialise. */
#ifndef LB_BISECT_DECISIONS_H
#define LB_BISECT_DECISIONS_H

#include <lastbit/tensor.h>

#define LB_DECISIONS_BYTES ((uint64_t)256 << 20)

typedef struct lb_decisions {
    struct lb_kept_decision *list;
    uint32_t n;
    bool sorted;
    uint64_t bytes;
} lb_decisions;

/* What does not fit any more is left out. */
void lb_decisions_keep(lb_decisions *decisions, int32_t rank, int64_t step, uint32_t value, const lb_tensor *contents);
/* Points tensor->data at them; false where they are not held. */
bool lb_decisions_find(lb_decisions *decisions, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor);
void lb_decisions_release(lb_decisions *decisions);

#endif
