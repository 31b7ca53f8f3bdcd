/* A set of token sequences while it is read. */
#ifndef LB_BISECT_TOKEN_SET_H
#define LB_BISECT_TOKEN_SET_H

#include <lastbit/archive.h>
#include <lastbit/parity.h>

struct lb_token_set {
    char *path;
    lb_token_sequence *sequences;
    uint32_t n;
    char **kinds;
    uint32_t n_kinds;
    char **texts; /* what the sequences point to */
    size_t n_texts;
    lb_capture *file; /* which holds the logits */
    bool owns_rows;   /* they were copied from passes of a run: malloc'ed, a place per token in logit_of */
    size_t row_bytes; /* of those copies; SIZE_MAX: there were too many, none is kept */
    bool recorded;    /* it is a run, not a file of numbers */
    /* of a run whose loss takes other labels than the next tokens: 2: the one after it, -1: the token itself; 0:
     * none */
    int label_ahead;
    bool approximate; /* some rows were not kept, and replay could not give their very bits */
    bool failed;      /* out of memory */
};

/* A new sequence without tokens; `name` may be NULL. NULL when out of memory. */
lb_token_sequence *lb_token_set_add(lb_token_set *set, const char *name);
/* A new token that nothing is known of. */
lb_token *lb_token_sequence_add(lb_token_set *set, lb_token_sequence *sequence);
/* An alternative of the last token. */
void lb_token_choice_add(lb_token_set *set, lb_token_sequence *sequence, lb_token_choice choice);
const char *lb_token_set_keep(lb_token_set *set, const char *text);
/* The row of a kind, a new one where the name is new. */
int32_t lb_token_set_kind(lb_token_set *set, const char *name);

/* In logit_of: nothing was said after the token. */
#define LB_TOKEN_NO_ROW UINT32_MAX
static inline bool lb_token_has_row(const lb_token_sequence *sequence, uint32_t token)
{
    return sequence->logits.data && sequence->logit_of[token] != LB_TOKEN_NO_ROW;
}
/* What row `at` of the sequence's logits says, as log-probabilities. */
void lb_token_row(const lb_token_sequence *sequence, int64_t at, double *row);

lb_status lb_token_set_read_json(lb_token_set *set, lb_err *err);
lb_status lb_token_set_read_tensors(lb_token_set *set, lb_err *err);
lb_status lb_token_set_read_capture(lb_token_set *set, lb_err *err);
/* What one step of a capture says of its tokens; `scores`: in the place of the rows of its head (NULL: the recorded
 * ones). */
lb_status lb_token_set_of_step(lb_capture *capture, const lb_program *program, const lb_tensor *scores,
                               lb_token_set **set, lb_err *err);

#endif
