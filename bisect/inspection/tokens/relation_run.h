/* One relation tried: some tokens of a step are changed, and the rows of others must stay as they are.
 *
 *      carried     change the first micro-batch  all rows of those behind it stay
 *      future      change tokens 7 8 9 …         rows of tokens 0 … 6 stay
 *      rows        change the first sequence     all rows of the others stay
 *      documents   change the first document     rows of the documents behind it stay
 *      padding     change what a mask hides      all rows that it does not hide stay
 */
#ifndef LB_BISECT_RELATION_RUN_H
#define LB_BISECT_RELATION_RUN_H

#include "tokens/changed_run.h"
#include "tokens/scored_rows.h"
#include "tokens/token_rows.h"

/* Values of another rank's program, in the step as it is. */
typedef struct lb_beside {
    const lb_moved_run *run;
    lb_token_sum **values;
    uint8_t *kept; /* of the last try, as in this one's */
} lb_beside;

typedef struct lb_relation_run {
    lb_moved_run *run;
    const lb_scored_step *scored;
    uint32_t *loss_of;     /* per value: a loss whose scores follow from it; LB_NONE */
    lb_token_sum **values; /* per value, in the step as it is: a sum for each token; NULL: its shape does not tell */
    lb_token_sum **scores; /* per loss: a sum for each of its rows */
    bool holds;            /* decisions are those that were recorded */
    bool holds_whole;      /* in the next try: those of whole numbers are */
    bool chose;            /* a try made decisions anew that follow from numbers */
    lb_beside *beside;     /* of each rank between the tokens and the losses: its values, as above */
} lb_relation_run;

/* What is changed, and what must stay: per row of ids a byte for each token. */
typedef struct lb_relation_tokens {
    uint8_t **changed, **stays;
} lb_relation_tokens;

typedef struct lb_relation_answer {
    uint32_t compared, broken; /* rows of scores that had to stay, and those of them that did not */
    uint32_t moved;            /* rows that changed at all: none, and nothing was tried */
    bool unseen;               /* some scores had no exact numbers */
    double largest;            /* gap of a broken row, of its size */
    uint32_t loss;             /* of that row */
    int64_t row;
    uint32_t op; /* the first whose result changed for a token that had to stay, and so did all behind it; LB_NONE */
    const lb_moved_run *place; /* of that op: another rank, on the way from the tokens to the losses; NULL: this one */
} lb_relation_answer;

/* One run of the step as it is. */
lb_status lb_relation_run_open(lb_moved_run *run, const lb_scored_step *scored, bool holds, lb_relation_run *relation,
                               lb_err *err);
void lb_relation_run_close(lb_relation_run *relation);
/* One run with different tokens. */
lb_status lb_relation_run_try(lb_relation_run *relation, const lb_relation_tokens *tokens, lb_relation_answer *answer,
                              lb_err *err);
/* All zero, for every row of ids; false when out of memory. */
bool lb_relation_run_tokens(const lb_scored_step *scored, lb_relation_tokens *tokens);
void lb_relation_run_release_tokens(const lb_scored_step *scored, lb_relation_tokens *tokens);

#endif
