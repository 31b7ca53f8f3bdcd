/* Proves what can still be proven at a place where no candidate reproduces the recorded bits. Every one of these proofs
 * is weaker than a kernel of replay that gives the bits. The kinds of proof (bound, exact, bits) and what each shows:
 *
 *   bound   the same op on both sides, and each side's elements lie inside its error bound on that side's own inputs;
 *           replay gives the bits of neither side, or of one by chance
 *   exact   different ops that are the same real function of the same inputs
 *   bits    each side's own ops, run by themselves, give its own bits. Then the ops differ, or a constant among their
 *           arguments, or a state that one of them reads (the amax history of delayed scaling)
 *   bits    the same ops, which took different rows on the two sides: experts were chosen differently, or another input
 *           differs
 *   exact   ops whose kinds were the same real function at another place, where experts were chosen differently */
#ifndef LB_BISECT_FALLBACK_PROOF_H
#define LB_BISECT_FALLBACK_PROOF_H

#include "explain/attribution.h"

typedef struct lb_fallback_question {
    const lb_match_site *site;
    const lb_score *own[2];        /* how many of each side's bits replay of its own ops gives */
    const lb_score *score;         /* how many of B's bits the finding states */
    lb_attribution_memory *memory; /* what is run is counted there */
    bool proven_elsewhere;         /* ops of these kinds were one real function at another place */
} lb_fallback_question;

/* Tries these proofs. `found` is set only where `*done`. */
lb_status lb_fallback_proofs_find(const lb_fallback_question *asked, lb_attribution_found *found, bool *done,
                                  lb_err *err);
/* The dtype of eight bits to which a result behind the value is cast, at most `hops` ops on; LB_NO_DTYPE: none. */
lb_dtype lb_fallback_quantised_to(const lb_program *program, uint32_t value, uint32_t hops);

#endif
