/* Finds the cause of a difference at one place: the kernel, precision or order under which each side's ops reproduce
 * its recorded bits, and the change to A's ops that reproduces B's. */
#ifndef LB_BISECT_ATTRIBUTION_H
#define LB_BISECT_ATTRIBUTION_H

#include "explain/attribution_memory.h"
#include "explain/match_site.h"

/* A finding without its place. */
typedef struct lb_attribution_found {
    lb_cause cause;
    lb_proof proof;
    bool reversed;
    bool fused; /* a kernel for a composite gives the bits */
    bool fault; /* a sum over ranks was done wrong: `why` says how */
    int64_t matched, elements;
    uint32_t tried, excluded;
    char schedule[160], first[160], also[400], why[560];
    double local, total;   /* see lb_explain_finding; NaN: not known */
    lb_swap_kind kinds[3]; /* swaps that make the change in A's program; of `input`: swaps that give A's own bits */
    char arguments[3][128];
    uint32_t n_swaps;
    /* swaps that give A's own bits, where A's program does not give them as it is and the cause is not `input` */
    lb_swap own[2];
    char own_arguments[2][128];
    uint32_t n_own;
} lb_attribution_found;

/* Finds what turns the first side's bits into the second's. */
lb_status lb_attribution_find(const lb_match_site *site, lb_attribution_memory *memory, lb_attribution_found *found,
                              lb_err *err);
/* Finds the kernel, precision or order under which the first side's ops give its own recorded bits. `*own` true: they
 * give them as they are, and `found` says nothing. */
lb_status lb_attribution_identify(const lb_match_site *site, lb_attribution_memory *memory, bool *own,
                                  lb_attribution_found *found, lb_err *err);

/* Adds a swap to those that make the change: one that rounds what is stored to `dtype`; or the swaps of a candidate,
 * and then such a rounding to `narrow` (NULL: none). */
void lb_attribution_add_rounding(lb_attribution_found *found, const char *dtype);
void lb_attribution_add_swaps(lb_attribution_found *found, const lb_candidate *candidate, const char *narrow);

#endif
