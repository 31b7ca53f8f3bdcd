/* Rows of a recorded batch put into batches of different sizes, and what an op or a kernel of a composite makes of
 * them.
 *
 *      recorded     r0 r1 r2                the batch of five that begins with row 2:     r2 r0 r1 r2 r0
 *
 * A row is one of the op's input, or of all that attention reads of one sequence: its queries, keys, values and mask.
 */
#ifndef LB_BISECT_ROW_BATCH_H
#define LB_BISECT_ROW_BATCH_H

#include "invariance/launch_rule.h"
#include "pair/regenerated.h"

#include <lastbit/composite.h>

/* How a batch is run: an op under a kernel or an order ("": its own), a composite by a kernel. */
typedef enum lb_row_run { LB_ROW_RUN_KERNEL, LB_ROW_RUN_ORDER } lb_row_run;

typedef struct lb_row_batch {
    const lb_program *program;
    const lb_regenerated *bytes;
    uint32_t op;                   /* the last one of a composite */
    const lb_composite *composite; /* NULL: the op itself */
    uint32_t y;                    /* the value that is compared */
    lb_launch_of of;
    lb_launch_shape shape;                          /* of the recorded batch; without multiprocessors */
    uint32_t values[LB_COMPOSITE_INPUTS], n_values; /* those that have rows */
    char *dense[LB_COMPOSITE_INPUTS];               /* their elements, row after row */
    size_t each[LB_COMPOSITE_INPUTS];               /* bytes of a row */
} lb_row_batch;

/* False: it has no rows, or their bytes are not known. Otherwise it has to be released. The program, the bytes and the
 * composite are borrowed. */
bool lb_row_batch_of_op(const lb_program *program, const lb_regenerated *bytes, uint32_t op, lb_row_batch *batch);
bool lb_row_batch_of_composite(const lb_composite *composite, const lb_regenerated *bytes, lb_row_batch *batch);
void lb_row_batch_release(lb_row_batch *batch);

/* What is made of a batch of `rows` recorded rows, in turn from `first` on: dense elements of y, malloc'ed;
 * `*elements`: of one row. NULL where that cannot be run so. */
char *lb_row_batch_run(const lb_row_batch *batch, lb_row_run run, const char *text, int64_t first, int64_t rows,
                       int64_t *elements);

#endif
