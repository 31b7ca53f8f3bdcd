/* Which token of one side each token of the other is, where parts of a side (steps of a server, ranks that share out a
 * batch or a sequence) have some of them each.
 *
 *      A   one forward     t0 t1 t2 t3 t4 t5            B   prefill    t0 t1 t2 t3          a row of each for every
 *          sequence of the batch
 *                          u0 u1 u2 u3 u4 u5                           u0 u1 u2 u3
 *                                                           decode     t4                   then t5
 *                                                                      u4                        u5
 *
 * It is read from the numbers that look embeddings up, before anything runs: each row of the side with more parts is
 * cut into the longest runs that stand in a row of the other, first where the part before it ended. A row of the other
 * goes on through the steps that begin with a cache of the step before. So is a zigzag (the
 * first and the last of four pieces on one rank), which no shape tells. There is no map where each side is one part of
 * rows as long as the other's, where parts have the same tokens (tensor parallelism), or where the tokens of neither
 * side are all found. Of two parts with rows of another length the longer ones are padded: what is added on either end
 * stands beside nothing, and is not compared. */
#ifndef LB_BISECT_TOKEN_MAP_H
#define LB_BISECT_TOKEN_MAP_H

#include "pair/program_view.h"

typedef struct lb_token_part {
    int64_t rows, length;
    uint32_t first; /* tokens are counted part by part, row by row */
    uint32_t ends;  /* how many sequences end in it: one a row, or those that a row has, packed */
    bool goes_on;   /* a step whose rows are those of the part before, continued from a cache */
} lb_token_part;

typedef struct lb_token_map {
    lb_token_part *parts[2]; /* per part of either side */
    uint32_t n_parts[2], n[2];
    int64_t *tokens[2];  /* per token of either side: the number that looks it up */
    uint32_t *beside[2]; /* per token of either side: the other's; LB_NONE */
    uint32_t *end_of[2]; /* per token of either side: the how manieth of its part's sequences ends with it; LB_NONE */
    /* Each part has some of the other side's tokens, and of one side all are found; or, of one rank, every sequence is
     * the other side's up to where the two chose different tokens to go on with. */
    bool sound;
    bool by_calls;    /* parts are calls in a step: a sequence that is on one side alone is another batch's */
    bool of_one_rank; /* parts are steps or calls: rows tell which token is which, too (exact/token_rows.h) */
} lb_token_map;

/* The whole numbers by which an op of forward looks rows of a learnt table up (`indexed`: one that is written as an
 * index); LB_NONE: it is none such. */
uint32_t lb_token_map_looked_up(const lb_program *program, const lb_op *op, bool indexed);
/* `*out` NULL: there is no map. One that is not sound is of one rank. LB_ERR_NOMEM is the only failure. */
lb_status lb_token_map_make(const lb_program_view *const views[2], lb_token_map **out, lb_err *err);
/* Says anew whether it is sound. */
void lb_token_map_judge(lb_token_map *map);
/* Tokens of a side that none of the other side stands beside. */
uint32_t lb_token_map_lone(const lb_token_map *map, int side);
void lb_token_map_free(lb_token_map *map);

/* Values that parts of a side have at one place, of part parts[i] each. */
typedef struct lb_token_group {
    const lb_layout *const *layouts;
    const uint32_t *parts;
    uint32_t n;
} lb_token_group;

/* `n` elements of row `a` of A's group and of row `b` of B's, one behind the other, as they lie in row-major order. */
typedef struct lb_token_run {
    uint32_t a, b;
    int64_t from, to, n, from_stride, to_stride;
} lb_token_run;

/* Which element of B's values is which of A's. `*runs` is malloc'ed; NULL where tokens do not tell, as no dimensions
 * are those of sequences and tokens, or several might be. `ends`: a value may have the last token of each row alone.
 * False when out of memory. */
bool lb_token_map_runs(const lb_token_map *map, const lb_token_group *a, const lb_token_group *b, bool ends,
                       lb_token_run **runs, uint32_t *n);

#endif
