/* Finds named tensors that the ranks of the two sides split differently, so that a source of one side equals neither
 * one source of the other side nor several of them concatenated. Examples are shards of rows against shards of columns,
 * flat parameters that hold several tensors, and a batch that one side shards and the other has whole on each rank.
 *
 *      first side    rank 0 [ w w w . . . ]   rank 1 [ . . . w w w ]
 *      second side   rank 0 [ w w | v v ]     rank 1 [ w w w w | v ]       w and v flat, one behind the other
 *
 * What each side holds is known element by element. Where A has every element of a parameter or state that B has, B's
 * exact shadow begins with A's numbers, and both sides' numbers are compared again at the end of the step. What is
 * computed from other such tensors (a batch) has different shapes on the two sides and is not run exactly. */
#ifndef LB_BISECT_CUT_TENSORS_H
#define LB_BISECT_CUT_TENSORS_H

#include "pair/align.h"
#include "pair/held_part.h"

typedef struct lb_cut_tensor {
    lb_cut_kind kind;
    char *name;        /* or the module's path */
    uint32_t op[2];    /* the first source of A and of B that holds some of it */
    char part[2][160]; /* which part of it that is: "[0:16, :] of [32, 16]" */
    bool other_whole;  /* the whole tensors differ in shape */
    bool known;        /* a parameter or state of which A's numbers are there for all that B has */
    lb_layout whole;   /* its shape, where that is one */
    uint8_t dtype;     /* A's first */
    uint32_t *rows[2]; /* of lb_cut_tensors.parts of A and of B */
    uint32_t n_rows[2];
    uint32_t wrong;       /* a source whose numbers differ from the other side's, where both have them; LB_NONE */
    int wrong_side;       /* 1: it is B's */
    char wrong_part[160]; /* as `part` */
    int32_t wrong_like;   /* the rank of that side that has the same bytes in another part; -1: none has */
} lb_cut_tensor;

enum {
    LB_HELD_OTHERWISE = 1, /* some of the source's tensors are split differently, and not known */
    LB_HELD_KNOWN = 2      /* all of its tensors that are split differently are known */
};

typedef struct lb_cut_tensors {
    lb_cut_tensor *list;
    uint32_t n, unknown; /* of which so many are not known */
    char *result; /* the first module whose result one side has whole on each rank and the other in parts; NULL: none */
    uint8_t *held[2]; /* per op of A and of B: LB_HELD_…; 0: no source of such a tensor */
    lb_held_part *parts[2];
    uint32_t n_parts[2];
} lb_cut_tensors;

/* Where the recording does not say which part of a batch or result a rank holds, parts are taken in the order of ranks.
 * Sources of known tensors stop being pairs of the alignment, which refers to `out` as its `cuts`. LB_ERR_NOMEM is the
 * only failure. */
lb_status lb_cut_tensors_find(const lb_program_view *a, const lb_program_view *b,
                              const lb_layer_names_map *const rules[2], lb_alignment *alignment, lb_cut_tensors *out,
                              lb_err *err);
void lb_cut_tensors_release(lb_cut_tensors *cuts);

#endif
