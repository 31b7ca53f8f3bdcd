/* The weights of one side of a comparison as contents takes them: whole, whatever they were cut into, or one rank's
 * shard of which no file tells the place. Each is put together when it is first asked for. */
#ifndef LB_BISECT_AUDIT_SHELF_H
#define LB_BISECT_AUDIT_SHELF_H

#include "audit/comparison.h"

typedef struct lb_shelf_weight {
    uint32_t row;  /* of the side's names */
    uint32_t part; /* of its pieces: the one, LB_NONE: all of them */
    lb_whole whole;
    bool open;
    int64_t used; /* elements that were found on the other side */
} lb_shelf_weight;

/* In the order of the side's rows, which is that of names. */
typedef struct lb_shelf {
    const lb_comparison_side *side;
    lb_shelf_weight *list;
    uint32_t n;
    lb_err refused; /* the first weight that the system did not give: nothing is known of it */
} lb_shelf;

/* False when out of memory. */
bool lb_shelf_init(lb_shelf *shelf, const lb_comparison_side *side);
void lb_shelf_release(lb_shelf *shelf);
const char *lb_shelf_name(const lb_shelf *shelf, uint32_t i);
const lb_checkpoint_piece *lb_shelf_piece(const lb_shelf *shelf, uint32_t i);
lb_layout lb_shelf_layout(const lb_shelf *shelf, uint32_t i);
/* A weight whose parts do not fit is another failure than one that is refused. */
lb_status lb_shelf_open(lb_shelf *shelf, uint32_t i, lb_err *err);
/* Whether it has not met its like on the other side. */
bool lb_shelf_is_pending(const lb_shelf *shelf, uint32_t i);
bool lb_shelf_any_pending(const lb_shelf *shelf);
/* Whether numbers of it are still to be found: some of them may have met theirs (k and v of a fused matrix). */
bool lb_shelf_has_rest(const lb_shelf *shelf, uint32_t i);

#endif
