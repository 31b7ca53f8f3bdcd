/* What places teach about the next ones: a model repeats its layers, so that what explained one of them is likely to explain the others. */
#ifndef LB_BISECT_ATTRIBUTION_MEMORY_H
#define LB_BISECT_ATTRIBUTION_MEMORY_H

#include "candidate.h"
#include "matched_region.h"

/* What was learned at earlier places is tried first at later ones. */
typedef struct lb_attribution_memory {
    char names[16][128]; /* latest first */
    uint32_t n;
    struct {
        char name[128];
        uint32_t sites[2]; /* whose bits it gave, of each side */
    } tally[512];
    uint32_t n_tally;
    lb_given_trees trees;
    double seconds; /* for ruling out alternatives at places of one kind, once something matched */
    double spent[256];
    uint64_t ops, most_ops; /* run so far, of as many at most; 0: no limit */
} lb_attribution_memory;

/* A candidate explained a place: it is tried first at the next. */
void lb_attribution_memory_note(lb_attribution_memory *memory, const char *name);
/* Of how many places it gave that side's bits so far; NULL when there is no more room. */
uint32_t *lb_attribution_memory_sites(lb_attribution_memory *memory, const char *name, int side);
/* Seconds spent on places of the same ops: the layers of a model share the time to rule out alternatives. */
double *lb_attribution_memory_spent(lb_attribution_memory *memory, const lb_program *program,
                                    const lb_matched_region_side *side);

#endif
