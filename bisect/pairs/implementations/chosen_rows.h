/* The first token that the two sides choose differently in a step: what follows from it is no difference of its own.
 *
 *      logits ─▶ sampler ─▶ token ─▶ embedding ─▶ norm ─▶ attention ─▶ …
 *      └──── may differ ────────┘    └─ follows from the token, and may meet other values by chance ─┘ */
#ifndef LB_BISECT_CHOSEN_ROWS_H
#define LB_BISECT_CHOSEN_ROWS_H

#include "implementations/regions.h"

typedef struct lb_chosen_rows {
    uint32_t index[2];  /* values of A and B that choose the rows; LB_NONE: none differ */
    uint32_t lookup[2]; /* the ops that look them up */
} lb_chosen_rows;

/* Of tables that are looked up for the tokens which the step is given, too, the n-th lookup of one side stands beside
 * the other side's. LB_ERR_NOMEM is the only failure. */
lb_status lb_chosen_rows_find(const lb_region_question *question, lb_chosen_rows *out, lb_err *err);

#endif
