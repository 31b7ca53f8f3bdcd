/* Which op of a region to name to a person, and why.
 *
 * In this order: the op by which both sides have the same numbers in another order; one op that both sides call from
 * the same inputs with different arguments; views that take different parts of the same numbers; an op that one side
 * alone runs; a reader of a table that the other side does not hold; the first op whose inputs are met. */
#ifndef LB_BISECT_REGION_OP_H
#define LB_BISECT_REGION_OP_H

#include "implementations/region_detached.h"

/* Where a search back from a value ends: what both sides have. */
typedef struct lb_region_frontier {
    const lb_region_question *asked;
    const uint8_t *same[2]; /* per value: it is the other side's, too */
    const uint8_t *held[2]; /* per row of sources: the other side has it */
    /* per op: it leads to a counterpart that is the same on both sides, with nothing that is met on the way */
    const uint8_t *cleared[2];
    const lb_regions *regions;
    const lb_region_detached *detached;
} lb_region_frontier;

/* Fills `op`, `reason` and `source` of a region whose ops and sources are listed. */
void lb_region_op_choose(const lb_region_frontier *frontier, lb_region *region);
/* Why the two sides do not compute the same function in a region, in one sentence. 700 bytes are enough. */
struct lb_implementations;
void lb_region_op_text(const struct lb_implementations *x, const lb_region *region, char *text, size_t size);
/* Is a value of B what one of A is: by its numbers, or as a source? Values that tell nothing are taken to be. */
bool lb_region_are_alike(const lb_region_frontier *frontier, uint32_t va, uint32_t vb);
/* Are two equal quantities of one shape other numbers, element by element? */
bool lb_region_is_in_another_order(const lb_region_question *asked, uint32_t va, uint32_t vb);
/* The result that a value is a window on, or on a part of; the value itself where it is one, or of several. */
uint32_t lb_region_shown_whole(const lb_exact_side *side, uint32_t value);
/* Are two ops of one name, in place or not, whatever their overloads? */
bool lb_region_same_op(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b);
/* Is all that the op reads met, so that what differs behind it is its own? */
bool lb_region_begins_at(const lb_region_frontier *frontier, int side, uint32_t op);
/* Is the value one that the step begins with? */
bool lb_region_is_source(const lb_exact_side *side, uint32_t value);
/* Is a value made of positions and constants alone: a mask, a triangle? It follows from no float that the step begins
 * with. */
bool lb_region_is_made_of_positions(const lb_exact_side *side, uint32_t value);
/* Does the other side hold it? Of a value that is a source. */
bool lb_region_holds(const lb_region_frontier *frontier, int side, uint32_t value);

#endif
