/* Which rows of numbers a loss scores against which tokens of the step's own input.
 *
 *      ids   t0 t1 t2 t3 t4 ──▶ embedding ──▶ … ──▶ logits  row 0   row 1   row 2   row 3   row 4
 *      labels                                               t1      t2      t3      t4      left out        shift 1
 *
 * Names and shapes say nothing here: token ids are what an embedding is looked up by, labels are the whole numbers by
 * which a loss takes one number of each row, and the shift is where the labels stand in the ids. Labels of another kind
 * (classes, masked words) stand nowhere in them, and such a step has no scored rows. */
#ifndef LB_BISECT_SCORED_ROWS_H
#define LB_BISECT_SCORED_ROWS_H

#include "moved/moved_run.h"

/* Token ids as an embedding reads them: `rows` sequences of `columns` tokens. */
typedef struct lb_token_ids {
    uint32_t value; /* of that shape, or one sequence of all */
    uint32_t op;    /* the first that looks them up */
    int64_t rows, columns;
    bool tokens_first; /* the value holds them token by token, and not sequence by sequence */
    int64_t *tokens;   /* row-major, as all below */
    int64_t *spare; /* per token: another ordinary one, by which it may be replaced; the token itself: there is none */
    uint8_t *ordinary; /* per token: it is no padding, and stands in the place of no image, as far as can be seen */
} lb_token_ids;

/* A loss takes one number of each row of `scores`. */
typedef struct lb_scored_rows {
    uint32_t op;             /* of the loss */
    uint32_t scores, labels; /* values: [rows, classes] or [rows, classes, columns], and what is taken */
    uint32_t ids;            /* row of `ids` */
    int64_t per_row;         /* rows of scores for each sequence */
    int64_t first;           /* the token that the first of them belongs to */
    int64_t shift;           /* the row of token t is scored against token t + shift */
    bool certain;            /* no other shift fits the labels */
    int64_t *targets;        /* per row of scores: its label; -1: left out */
    int64_t classes, inner;  /* inner: rows that stand behind the classes; 1 */
    uint32_t gradient;       /* value: of the scores, as backward gave it; LB_NONE */
    double *weights;         /* per row: - the gradient at its label; NULL: not known */
} lb_scored_rows;

typedef struct lb_scored_step {
    lb_token_ids *ids;
    uint32_t n_ids;
    lb_scored_rows *losses;
    uint32_t n_losses;
    bool waits; /* a loss lies behind a collective, so that the step cannot run without the other ranks */
    bool apart; /* losses by whole numbers that were given, behind what another rank sent, and no tokens */
    /* Of the last stage of a pipeline: the first one's run, whose values the ids are, found by the tokens that the
     * labels stand in; NULL: the ids are this run's own. */
    lb_moved_run *home;
} lb_scored_step;

/* The run whose values a step's ids are. */
lb_moved_run *lb_scored_rows_home(lb_moved_run *run, const lb_scored_step *scored);
/* One exact run; LB_OK with no losses where none scores tokens, or where it waits for other ranks. */
lb_status lb_scored_rows_find(lb_moved_run *run, lb_scored_step *scored, lb_err *err);
void lb_scored_rows_release(lb_scored_step *scored);
/* Numbers of each token, from token by token to sequence by sequence, or back. False when out of memory. */
bool lb_scored_rows_turn(const lb_token_ids *ids, int64_t *numbers, bool back);
/* Where the numbers of row n of a loss begin in its scores, and how far apart they stand. */
int64_t lb_scored_rows_begin(const lb_scored_rows *loss, int64_t row, int64_t *stride);
/* The token that row n of a loss belongs to: its sequence, and its place in it. */
void lb_scored_rows_token(const lb_scored_rows *loss, int64_t row, int64_t *sequence, int64_t *column);
/* Marks all that `value` follows from; `ancestors` has a byte for each value. */
bool lb_scored_rows_ancestors(const lb_moved_run *run, uint32_t value, uint8_t *ancestors);
/* Marks the results that follow from those marked; of any value lb_scored_rows_follows says it. */
void lb_scored_rows_descend(const lb_moved_run *run, uint8_t *marked);
bool lb_scored_rows_follows(const lb_moved_run *run, const uint8_t *marked, uint32_t value);

#endif
