/* Rows of a batch: where the batches of the two sides differ in size, which rows of the larger one are the rows of the
 * smaller.
 *
 *      smaller  [m, t]        larger  [n, t]
 *        row 0 ─────────────┐   row 0
 *        row 1 ──────────┐  │   row 1
 *                        │  └─▶ row 2
 *                        └────▶ row 3
 *
 * A value that carries rows holds n of them on one side where it holds m on the other, along one dimension, and agrees
 * in all other dimensions: [n, ...], flattened [n*t, ...], with heads [n*h, t, d], transposed [d, n*t]. */
#ifndef LB_BISECT_BATCH_ROWS_H
#define LB_BISECT_BATCH_ROWS_H

#include "pair/reassembly.h"
#include "pair/layer_names.h"

typedef struct lb_batch_rows {
    int64_t few, many; /* m and n; 0: the batches have the same shapes */
    bool turned;       /* the first side's batch is the larger */
    int64_t *places;   /* per row of the smaller batch: the row of the larger; NULL: they are not found */
    char by[64];       /* the input that they were found by */
    char missing[500]; /* why no rows were found although the batches differ in shape: one sentence */
} lb_batch_rows;

/* Finds the rows by what enters as the batch. Integers are compared bit by bit; floats count where there are no
 * integers, and to tell rows with the same integers apart. `before`: the places of an earlier step, which are kept
 * where they still fit; NULL: none. LB_ERR_NOMEM is the only failure. */
lb_status lb_batch_rows_find(const lb_program_view *a, const lb_program_view *b, const lb_layer_names_map *rules,
                             const lb_batch_rows *before, lb_batch_rows *out, lb_err *err);
/* Do both programs call their outermost module equally often? If not, calls are joined (reassembly.h), and no rows are
 * looked for. */
bool lb_batch_rows_apply(const lb_program *a, const lb_program *b);
void lb_batch_rows_release(lb_batch_rows *rows);
/* The dimension along which the larger side's value holds more rows than the smaller's. LB_REASSEMBLY_SAME: both have
 * one shape. LB_REASSEMBLY_NONE: they do not differ in rows alone. */
int lb_batch_rows_dim(const lb_batch_rows *rows, const lb_layout *few, const lb_layout *many);

/* Of an op's inputs, and of all its operands, how many carry rows. */
typedef struct lb_row_operands {
    uint32_t inputs, all;
} lb_row_operands;

/* Does `op_b`, of the larger side, do to its whole batch what `op_a` does to some rows of it? */
bool lb_batch_rows_meet(const lb_batch_rows *rows, const lb_program *pa, uint32_t op_a, const lb_program *pb,
                        uint32_t op_b, lb_row_operands *with_rows);

#endif
