/* Choices that the two sides made differently, and the rows of a batch that follow from them.
 *
 * A router whose logits tie sends a token to another expert on the other side. Where each expert gathers its tokens,
 * everything inside it then has different shapes, or the same shape over different tokens, until the experts' results
 * are put back. From there on the rows of all other tokens are the same in exact arithmetic; only those of the flipped
 * ones differ.
 *
 *      topk   A: 3 5   B: 3 6      token 17 is flipped
 *      …      five tokens here, six there: nothing to compare
 *      add    [128, 64]            rows that differ: 17, and no other. Both shadows go on from A's row 17
 *
 * So the shadows meet again at the first aligned result whose rows differ for flipped tokens alone. Where any other row
 * differs as well, that is not a consequence of the choice and is judged like any difference. */
#ifndef LB_BISECT_FLIPS_H
#define LB_BISECT_FLIPS_H

#include "pair/align.h"

/* Rows: the elements of all dimensions but the last (of a list: its elements), in row-major order. */
typedef struct lb_flip {
    uint32_t op;         /* of B: the choice */
    int64_t rows, width; /* width: choices per row */
    uint8_t *flipped;    /* per row */
} lb_flip;

typedef struct lb_flips {
    lb_flip *list;
    uint32_t n;
} lb_flips;

/* Aligned choices whose recorded integers are not the same, in the order of B's ops. LB_ERR_NOMEM is the only
 * failure. */
lb_status lb_flips_find(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                        lb_flips *flips, lb_err *err);
void lb_flips_release(lb_flips *flips);
/* A set of choices, one bit each; those behind the 63rd share the last. */
static inline uint64_t lb_flips_bit(uint32_t row)
{
    return UINT64_C(1) << (row < 63 ? row : 63);
}
/* The choices of all rows that are not the same. */
int64_t lb_flips_count(const lb_flip *flip);
/* `a` and `b`: the elements of a result of that layout. Where some of the choices `which` explain every row that
 * differs, these rows of `b` become A's, and their number is returned. 0: the choices do not explain all of them.
 * `noise`: as lb_shadow_numbers_agree takes it. */
int64_t lb_flips_settle(const lb_flips *flips, uint64_t which, const lb_layout *layout, const double *a, double *b,
                        double noise);

#endif
