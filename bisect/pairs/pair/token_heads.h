/* Finds the values in which a program scores tokens: the log-probabilities that a loss over the vocabulary reads or,
 * where nothing normalises them, the logits of the language-model head. */
#ifndef LB_BISECT_TOKEN_HEADS_H
#define LB_BISECT_TOKEN_HEADS_H

#include <lastbit/program.h>

/* Rows of logits or log-probabilities, and what they are to predict. */
typedef struct lb_token_head {
    uint32_t op;              /* that gives or reads the rows; the next one where a module gives them */
    uint32_t scores, targets; /* values; targets LB_NONE: none */
    bool normalised;          /* scores are log-probabilities */
    int64_t ignored;          /* the target that counts for nothing */
} lb_token_head;

typedef struct lb_token_heads {
    lb_token_head *list; /* in order of execution */
    uint32_t n;
    int64_t rows, columns; /* of all together; words of the vocabulary */
} lb_token_heads;

/* Heads of the ops and values that `counts` takes (NULL: all), losses before bare logits; all have the first's number
 * of columns. */
typedef bool lb_token_heads_of(void *context, uint32_t op, uint32_t value);
lb_status lb_token_heads_find(const lb_program *program, lb_token_heads_of *counts, void *context,
                              lb_token_heads *heads, lb_err *err);
void lb_token_heads_release(lb_token_heads *heads);

#endif
