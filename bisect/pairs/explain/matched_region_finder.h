/* The state and the steps of the search for matched regions (matched_region.h): which ops of the two sides correspond,
 * and which ops a value depends on. Only the files matched_region*.c include this header. */
#ifndef LB_BISECT_MATCHED_REGION_FINDER_H
#define LB_BISECT_MATCHED_REGION_FINDER_H

#include "program/slice.h"
#include "explain/matched_region.h"

#define LB_FINDER_NEAR 0.1 /* relative L2 distance of what two aligned ops gave, in a group with strangers */

typedef struct lb_region_finder {
    const lb_matched_region_source *source;
    const lb_program *p[2];
    lb_slice_flow *flow[2];
    uint8_t *trust; /* per op of A: is its pair believed? */
    /* per op of A: 1 + the scope in which rows of a larger batch were put into another order; 0: they were not */
    uint32_t *sorted;
    uint8_t *returned;       /* per scope of A: rows that were sorted there came back to their places */
    uint8_t *left;           /* per scope of A: such rows left it for others, still sorted */
    bool settled;            /* both are known */
    uint32_t *source_a_of_b; /* per op of B */
    uint32_t *ends[2]; /* per op: the op of the other side where a matched region ends together with it; LB_NONE */
    lb_matched_regions *out;
    uint32_t opened[2]; /* an op of each side that is no anchor while its own slice is made; LB_NONE */
    bool no_ends;       /* slices go on behind ends, which do not stop them */
    uint8_t *marks[2];  /* per op, while a slice is gathered */
    uint8_t *inside[2]; /* per op: of the composite that a matched region is grown to; nothing inside is an anchor */
    bool failed;
} lb_region_finder;

/* Values, in the order in which they were met. */
typedef struct lb_region_finder_values {
    uint32_t *list, n;
    bool failed;
} lb_region_finder_values;

void lb_region_finder_values_add(void *rows, uint32_t value); /* `rows`: lb_region_finder_values */
bool lb_region_finder_values_has(const lb_region_finder_values *rows, uint32_t value);

/* ---- who corresponds (matched_region_anchor.c) ---- */

bool lb_region_finder_same_shape(const lb_region_finder *finder, uint32_t value_a, uint32_t value_b);
/* What stands for outcome `k` of op `i` of A where several ops of B make it; LB_NONE. */
uint32_t lb_region_finder_joined_outcome(lb_region_finder *finder, uint32_t i, uint32_t k);
/* Input `k` of the ops of a join, put together; LB_NONE. */
uint32_t lb_region_finder_joined_input(lb_region_finder *finder, const lb_reassembly *join, uint32_t whole, uint32_t k,
                                       uint32_t count);
bool lb_region_finder_is_joined(lb_region_finder *finder, uint32_t i);
/* Is op `i` of A's partner, or are its parts, really what they are? */
bool lb_region_finder_is_trusted(lb_region_finder *finder, uint32_t i);
/* Has the other side the same rows in a different order, which the calling module undoes before it returns? `scope`: of
 * A. Where tokens are sorted by expert no region begins or ends. */
bool lb_region_finder_is_moved(const lb_region_finder *finder, uint32_t scope, uint8_t phase, uint32_t value_a,
                               uint32_t value_b);
/* The op of the other side that gives what op `i` gives; LB_NONE. */
uint32_t lb_region_finder_partner_op(lb_region_finder *finder, int side, uint32_t i);
/* The op of the other side where a matched region ends together with one that ends in op `i`; LB_NONE. */
uint32_t lb_region_finder_end(const lb_region_finder *finder, int side, uint32_t i);

/* Are two values of one shape the same up to rounding, and up to a factor where the batches differ in size? */
bool lb_region_finder_is_near(const lb_region_finder *finder, uint32_t value_a, uint32_t value_b);
/* The op that gave what op `reader` reads as `value`; LB_NONE when it is not one. */
uint32_t lb_region_finder_maker(const lb_region_finder *finder, int side, uint32_t reader, uint32_t value);

/* ---- rows that are sorted in a larger batch (matched_region_sorted.c) ---- */

/* Does op `i` of A sort rows, count them, or go on with such a value, so that it lines up with no row of the larger
 * batch's op? What comes of it does, once the rows are back where they were. */
bool lb_region_finder_sorts(lb_region_finder *finder, uint32_t i);
/* Finds out where sorted rows come back. Rows that never do are mixed up, and what mixes them is to be found like any
 * other fault. */
void lb_region_finder_settle(lb_region_finder *finder);

/* ---- what follows from what (matched_region_slice.c) ---- */

/* Can the op be run again: it computes, draws nothing, and of a collective all members are there? */
bool lb_region_finder_can_run(const lb_region_finder *finder, int side, uint32_t op);
/* What gives `value` as op `reader` reads it; reader LB_NONE: as it is left by op `before - 1`. */
bool lb_region_finder_make_slice(lb_region_finder *finder, int side, uint32_t reader, uint32_t before, uint32_t value,
                                 lb_matched_region_side *out);
void lb_region_finder_release_side(lb_matched_region_side *side);

/* ---- matched regions grown to composites (matched_region_growth.c) ---- */

/* Of matched regions found so far: `whole` of those that are part of a composite. */
lb_status lb_region_finder_grow(lb_region_finder *finder, lb_err *err);

#endif
