/* What a step was told about its tokens: which are padding that attention must not see, and which documents lie behind
 * each other in one sequence. Both are found by their numbers and their use, whatever they are called. */
#ifndef LB_BISECT_TOKEN_MARKS_H
#define LB_BISECT_TOKEN_MARKS_H

#include "tokens/scored_rows.h"

typedef struct lb_token_marks {
    uint8_t *hidden;          /* per token: a mask hides it from attention; NULL: there is no mask, or it hides none */
    int32_t *document;        /* per token: which of its sequence's it is in; NULL: there is one */
    uint32_t mask, positions; /* sources that say so; LB_NONE */
} lb_token_marks;

/* Of one of the step's ids, as far as the scores of a loss follow from it; `run` may be that which looks them up.
 * LB_ERR_NOMEM is the only failure. */
lb_status lb_token_marks_find(lb_moved_run *run, const lb_scored_step *scored, uint32_t loss, lb_token_marks *marks,
                              lb_err *err);
void lb_token_marks_release(lb_token_marks *marks);

#endif
