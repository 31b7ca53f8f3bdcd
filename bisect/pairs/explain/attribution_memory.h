/* Remembers what earlier places showed: which candidates explained them, and which searches found none. As a model
 * repeats its layers, a candidate that explained one layer is tried first at the others. */
#ifndef LB_BISECT_ATTRIBUTION_MEMORY_H
#define LB_BISECT_ATTRIBUTION_MEMORY_H

#include "explain/candidate.h"
#include "explain/matched_region.h"

/* A search that tried every candidate and found none. What two places have excluded is excluded at their twins: the
 * same op with the same arguments on tensors of the same layouts runs the same kernel. One place is not enough, as it
 * may be a fault. */
typedef struct lb_exhausted_search {
    uint64_t key;
    char nearest[128]; /* the candidate that came nearest */
    uint32_t tried;    /* candidates */
    uint32_t places;
} lb_exhausted_search;

/* What was learned at earlier places is tried first at later ones. */
typedef struct lb_attribution_memory {
    char names[16][128]; /* latest first */
    uint32_t n;
    struct {
        char name[128];
        uint32_t sites[2]; /* whose bits it gave, of each side */
    } tally[512];
    uint32_t n_tally;
    lb_candidate_trees trees;
    double seconds; /* for ruling out alternatives at places of one kind: counted by what runs */
    double spent[256];
    bool only_orders;       /* of candidates, nothing else is tried */
    lb_run_cost cost;       /* of candidates run so far */
    double work, most_work; /* of candidates run so far (search_work.h), and at most; 0: no limit */
    uint64_t probe_ops;     /* only_orders: so many ops may be run to ask for orders in this step */
    lb_candidate_digests digests;
    lb_exhausted_search *exhausted;
    uint32_t n_exhausted;
    /* kinds of ops (lb_work_kind) on the two sides that were one real function at some place */
    uint64_t one_function[64];
    uint32_t n_one_function;
} lb_attribution_memory;

/* How often a place of `n_ops` ops may be run to find the order in which it adds (addition_trees.h). */
static inline uint64_t lb_attribution_memory_runs(const lb_attribution_memory *memory, uint32_t n_ops)
{
    return memory->only_orders ? memory->probe_ops / (n_ops ? n_ops : 1) : 4096;
}
/* Adds what a search took. */
static inline void lb_attribution_memory_charge(lb_attribution_memory *memory, const lb_run_cost *cost)
{
    memory->cost.runs += cost->runs, memory->cost.ops += cost->ops;
    memory->probe_ops -= cost->ops < memory->probe_ops ? cost->ops : memory->probe_ops;
}

/* A candidate explained a place: it is tried first at the next. */
void lb_attribution_memory_note(lb_attribution_memory *memory, const char *name);
/* Of how many places it gave that side's bits so far; NULL when there is no more room. */
uint32_t *lb_attribution_memory_sites(lb_attribution_memory *memory, const char *name, int side);
/* The exhausted search of two places of that key; NULL: fewer than two were exhausted. */
const lb_exhausted_search *lb_attribution_memory_exhausted(const lb_attribution_memory *memory, uint64_t key);
/* Notes an exhausted search. Out of memory it is not noted, and twins are searched again. */
void lb_attribution_memory_note_exhausted(lb_attribution_memory *memory, uint64_t key, const char *nearest,
                                          uint32_t tried);
void lb_attribution_memory_note_function(lb_attribution_memory *memory, uint64_t kinds);
bool lb_attribution_memory_one_function(const lb_attribution_memory *memory, uint64_t kinds);
void lb_attribution_memory_release(lb_attribution_memory *memory);
/* Seconds spent on places of the same ops: the layers of a model share the time to rule out alternatives. */
double *lb_attribution_memory_spent(lb_attribution_memory *memory, const lb_program *program,
                                    const lb_matched_region_side *side);

#endif
