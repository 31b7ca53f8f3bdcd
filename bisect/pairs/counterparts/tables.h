/* Tables: what one side read from memory that was filled before the step, and the other computes in the step, or filled
 * by a formula of its own.
 *
 *      A   inv_freq ─▶ mul ─▶ cos ─▶ cat([c, c])        B   cos: a source of f32 numbers, sliced
 *
 * The table was rounded when it was made, so that exact arithmetic from it and from the formula part by that rounding.
 * A table is a rounded image of the other side's value where it is no further from that value's exact numbers than
 * TIMES what the other side's own recorded bits are (these went through the same formula in the same precision), and
 * roundings of the table's own dtype. Where both sides have tables the phases in them go up to the number of rows, and
 * so does the error: rows times the unit roundoff of the coarser dtype.
 *
 * Elements may stand in another order, and each several times: a table of (T, d / 2) and one of (T, d) that repeats
 * each row in itself are one. B goes on from A's numbers. */
#ifndef LB_BISECT_TABLES_H
#define LB_BISECT_TABLES_H

#include "counterparts/counterparts.h"

typedef struct lb_table_question {
    lb_exact_side *sides[2];
    const lb_step_sources *sources[2];
    const lb_contents *contents;
    const uint32_t *met[2];
} lb_table_question;

/* Marks as wanted, before the runs: tables that one side alone holds, and what follows from no parameter on the other
 * side and has as many elements, or a multiple of them. */
lb_status lb_tables_want(const lb_table_question *asked, lb_err *err);
/* Behind the runs. Adds a counterpart of kind LB_COUNTERPART_TABLE for each, whose `b` is the value of B that takes A's
 * numbers: a source, or what an op gave. */
lb_status lb_tables_find(const lb_table_question *asked, lb_counterparts *counterparts, lb_err *err);

/* Values of A and of B, of which one is to stand beside another although their numbers differ. */
typedef struct lb_table_choice {
    const uint32_t *values[2];
    uint32_t n[2];
} lb_table_choice;

/* Adds a counterpart of kind LB_COUNTERPART_TABLE for the two whose numbers are nearest (root mean square, in the
 * orders that tables have), so that B can go on from A's table. Adds none where no two have as many elements, or one a
 * multiple of the other. */
lb_status lb_tables_put_beside(const lb_table_question *asked, const lb_table_choice *choice,
                               lb_counterparts *counterparts, lb_err *err);

#endif
