/* A difference put right in B, so that what it hides shows: two that lie between the same two places where the sides
 * meet are one region, and only when the first is gone can the second be told.
 *
 *      a table that A does not hold    B goes on from A's numbers (the nearest of the region: tables.h)
 *      other arguments                 B's op takes A's
 *      an op that B alone runs         a factor becomes 1, a term 0
 *      an edit of B that was proven    it is written so (repairs.h)
 *
 * An op that A alone runs, and other ops in its place, cannot be put right by a change of B. */
#ifndef LB_BISECT_EXCHANGE_H
#define LB_BISECT_EXCHANGE_H

#include "implementations/region_op.h"
#include "counterparts/tables.h"

typedef struct lb_exchange {
    uint32_t op;                             /* of B, whose arguments are exchanged; LB_NONE */
    uint32_t name[2], first_arg[2], args[2]; /* what it is and takes itself, and instead */
    uint32_t first_table, n_tables;          /* rows of counterparts: tables of B that take A's numbers */
} lb_exchange;

/* Makes what puts the region right; `made->op` is LB_NONE and `n_tables` 0 where nothing does. Puts nothing yet, but
 * for tables added to the counterparts in state UNKNOWN. */
lb_status lb_exchange_make(const lb_table_question *asked, const lb_regions *regions, const lb_region *region,
                           lb_counterparts *counterparts, lb_exchange *made, lb_err *err);
/* Puts it into B, or takes it out again. Before the next run lb_exact_side_prepare has to be called. */
void lb_exchange_set(const lb_exchange *exchange, bool on, const lb_exact_side *a, lb_exact_side *b,
                     lb_counterparts *counterparts);

#endif
