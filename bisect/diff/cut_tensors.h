/* Named tensors of which the ranks of two sides hold other parts, so that no source of one is a source of the other, nor several of them put
 * together: rows here and columns there, flat parameters of several tensors, a batch that ranks share out and one that all of them have.
 *
 *      first side    rank 0 [ w w w . . . ]   rank 1 [ . . . w w w ]
 *      second side   rank 0 [ w w | v v ]     rank 1 [ w w w w | v ]       w and v flat, one behind the other
 *
 * What is computed of them stands in other shapes on the two sides, and is not run exactly; but what they hold is known element by element.
 */
#ifndef LB_BISECT_CUT_TENSORS_H
#define LB_BISECT_CUT_TENSORS_H

#include "align.h"

typedef enum lb_cut_kind {
    LB_CUT_PARAMETER,
    LB_CUT_BATCH,
    LB_CUT_RESULT /* of a module; looked for where no source is cut, and its numbers are not compared */
} lb_cut_kind;

typedef struct lb_cut_tensor {
    lb_cut_kind kind;
    char *name;           /* or the module's path */
    uint32_t op[2];       /* the first source of A and of B that holds some of it, or what gives it */
    char part[2][160];    /* which part of it that is: "[0:16, :] of [32, 16]" */
    bool other_whole;     /* the wholes have other shapes */
    uint32_t wrong;       /* a source whose numbers are not those of the other side, where both have them; LB_NONE */
    int wrong_side;       /* 1: it is B's */
    char wrong_part[160]; /* as `part` */
} lb_cut_tensor;

typedef struct lb_cut_tensors {
    lb_cut_tensor *list;
    uint32_t n;
    uint8_t *held[2]; /* per op of A and of B: a source of such a tensor */
} lb_cut_tensors;

/* Where nothing says which part a rank's batch or result is, the ranks' follow each other. LB_ERR_NOMEM is the only failure. */
lb_status lb_cut_tensors_find(const lb_program_view *a, const lb_program_view *b, const lb_map_rules *const rules[2],
                              const lb_alignment *alignment, lb_cut_tensors *out, lb_err *err);
void lb_cut_tensors_release(lb_cut_tensors *cuts);
/* "[4, 8]". */
void lb_cut_shape_text(const lb_layout *layout, char *text, size_t size);

#endif
