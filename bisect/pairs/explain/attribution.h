/* Why a place differs: what each side's bits are, and what turns one into the other. */
#ifndef LB_BISECT_ATTRIBUTION_H
#define LB_BISECT_ATTRIBUTION_H

#include "explain/attribution_memory.h"
#include "explain/match_site.h"

/* Everything of a finding but where it is. */
typedef struct lb_attribution_found {
    lb_cause cause;
    lb_proof proof;
    bool reversed;
    bool fused; /* a kernel for a composite gives the bits */
    bool fault; /* of a sum over ranks: `why` says which */
    int64_t matched, elements;
    uint32_t tried, excluded;
    char schedule[160], first[160], also[400], why[560];
    double local, total;   /* see lb_explain_finding; NaN: not known */
    lb_swap_kind kinds[3]; /* swaps that make the change in A's program; of `input`: that give A's own bits */
    char arguments[3][128];
    uint32_t n_swaps;
    /* that give A's own bits where A's program as it is does not, and the cause is another than `input` */
    lb_swap own[2];
    char own_arguments[2][128];
    uint32_t n_own;
} lb_attribution_found;

/* What turns the first side's bits into the second's. */
lb_status lb_attribution_find(const lb_match_site *site, lb_attribution_memory *memory, lb_attribution_found *found,
                              lb_err *err);
/* Under what the first side's ops give its own recorded bits. `*own`: as they are; then `found` says nothing. */
lb_status lb_attribution_identify(const lb_match_site *site, lb_attribution_memory *memory, bool *own,
                                  lb_attribution_found *found, lb_err *err);

/* One more swap that makes the change: one that rounds what is stored to a dtype; those of a candidate, and then such a
 * rounding to `narrow` (NULL: none). */
void lb_attribution_add_rounding(lb_attribution_found *found, const char *dtype);
void lb_attribution_add_swaps(lb_attribution_found *found, const lb_candidate *c, const char *narrow);

#endif
