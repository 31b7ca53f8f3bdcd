/* Adapters (LoRA) of one side that the other side has in its weights: W = W0 + s B A.
 *
 *      online   q_proj.base_layer.weight  W0     merged   q_proj.weight  W
 *               q_proj.lora_A.default.weight  A  (r, in)
 *               q_proj.lora_B.default.weight  B  (out, r)
 *
 * Names say which tensors may belong together (peft's words), numbers whether they do: s is the one number that fits
 * best, and W is the sum where no element is further from it than the rounding of a merge carries it. W and W0 are then
 * no pair of the same parameter, even where both are called q_proj.base_layer.weight, as after peft's merge_adapter. */
#ifndef LB_BISECT_MERGED_ADAPTERS_H
#define LB_BISECT_MERGED_ADAPTERS_H

#include "sources/step_sources.h"

typedef struct lb_merged_adapter {
    int online;                     /* which side holds the adapter */
    uint32_t base, down, up, whole; /* rows of that side's sources (W0, A, B), and of the other's (W) */
    double scale;
} lb_merged_adapter;

/* Ends at `most` of them. malloc'ed; LB_ERR_NOMEM is the only failure. */
lb_status lb_merged_adapters_find(const lb_step_sources *a, const lb_step_sources *b, uint32_t most,
                                  lb_merged_adapter **list, uint32_t *n, lb_err *err);

#endif
