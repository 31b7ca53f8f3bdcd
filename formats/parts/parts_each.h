/* The loop that engines share out: units of work, a record each, folded in order (lastbit/parts.h).
 *
 *     const lb_parts_loop loop = {"rank", n_ranks, work, fold, &context};
 *     return lb_parts_each(options->parts, &loop, err);        // NULL: all of it is done here
 *
 * A second loop may rest on what the first has folded. Every worker goes through the same loops in the same order. */
#ifndef LB_PARTS_EACH_H
#define LB_PARTS_EACH_H

#include "parts/part_record.h"

#include <lastbit/parts.h>

typedef struct lb_parts_loop {
    const char *name; /* of a unit, for files and messages: "rank" */
    uint64_t n;
    /* Depends on the unit alone. A failure is a record, too, and is what the loop ends with at that unit; one of the
     * system (lb_is_refusal) is this worker's own. */
    lb_status (*work)(void *context, uint64_t unit, lb_part_record *record, lb_err *err);
    /* In the order of units, in one thread. Texts that are read are gone afterwards. */
    lb_status (*fold)(void *context, uint64_t unit, lb_part_record *record, lb_err *err);
    void *context;
    /* How much a unit is, of what is the same for all workers: bytes of a file. They are dealt out by it. NULL: all are
     * alike. */
    uint64_t (*weigh)(void *context, uint64_t unit);
} lb_parts_loop;

/* LB_ERR_PARTIAL: this is one part, and the others' records are not here. */
lb_status lb_parts_each(lb_parts *parts, const lb_parts_loop *loop, lb_err *err);

#endif
