/* Rows of a batch: where the sides' batches have other sizes, which rows of the larger one are the rows of the smaller.
 *
 *      smaller  [m, t]        larger  [n, t]
 *        row 0 ─────────────┐   row 0
 *        row 1 ──────────┐  │   row 1
 *                        │  └─▶ row 2
 *                        └────▶ row 3
 *
 * A value that carries rows holds n of them on one side where it holds m on the other, along one dimension and
 * otherwise alike: [n, ...], flattened [n*t, ...], with heads [n*h, t, d], transposed [d, n*t].
 */
#ifndef LB_BISECT_BATCH_ROWS_H
#define LB_BISECT_BATCH_ROWS_H

#include "pair/reassembly.h"
#include "pair/layer_names.h"

typedef struct lb_batch_rows {
    int64_t few, many; /* m and n; 0: the batches have the same shapes */
    bool turned;       /* the first side's batch is the larger */
    int64_t *places;   /* per row of the smaller batch: the row of the larger; NULL: they are not found */
    char by[64];       /* the input that they were found by */
    char missing[500]; /* batches of other shapes, but no rows found: one sentence */
} lb_batch_rows;

/* By what enters as the batch: integers bit by bit; floats where there are none, and to tell rows of the same integers
 * apart. `before`: the places of an earlier step, kept where they fit; NULL: none. LB_ERR_NOMEM is the only failure. */
lb_status lb_batch_rows_find(const lb_program_view *a, const lb_program_view *b, const lb_layer_names_map *rules,
                             const lb_batch_rows *before, lb_batch_rows *out, lb_err *err);
/* Does each program call its outermost module as often as the other? Otherwise calls are joined (reassembly.h), and no
 * rows taken. */
bool lb_batch_rows_apply(const lb_program *a, const lb_program *b);
void lb_batch_rows_release(lb_batch_rows *rows);
/* The dimension along which the larger side's value holds its rows as the smaller's does; LB_REASSEMBLY_SAME when both
 * have one shape, LB_REASSEMBLY_NONE when they are no such values. */
int lb_batch_rows_dim(const lb_batch_rows *rows, const lb_layout *few, const lb_layout *many);

/* Of an op's inputs, and of all its operands, how many carry rows. */
typedef struct lb_row_operands {
    uint32_t inputs, all;
} lb_row_operands;

/* Does the op of the larger side (`op_b`) do to its batch what that of the smaller does to some rows of it? */
bool lb_batch_rows_meet(const lb_batch_rows *rows, const lb_program *pa, uint32_t op_a, const lb_program *pb,
                        uint32_t op_b, lb_row_operands *with_rows);

#endif
