/* What collectives gave their members, against what the members gave them.
 *
 *      all_reduce       all members receive the same bits, and bits that some order of the sum gives
 *      broadcast        all receive what the root sent; all_gather, gather, scatter, all_to_all: elements that were
 *                       sent, in their places
 *      a message        what is received is what was sent
 *
 * Members that call something else than the rest, or the same with another size, type, reduction or root, are told
 * before anything is compared. Digests decide where they can; where bytes were kept the elements are named, a bit that
 * was turned over, and the hop on which it happened (sum_fault.h), or the rank whose contribution was missing, old or
 * there twice (term_fault.h). And the first rank that sent NaN, or infinities into a sum, without having received any:
 * what others receive of it is its fault, whatever they send on.
 */
#ifndef LB_BISECT_COLLECTIVE_RESULTS_H
#define LB_BISECT_COLLECTIVE_RESULTS_H

#include "exchanges/collective_members.h"

#include <lastbit/archive.h>
#include <lastbit/ranks.h>

typedef enum lb_collective_fault {
    LB_COLLECTIVE_RESULT,   /* a member received different bits than the members sent, or called something else */
    LB_COLLECTIVE_NONFINITE /* a member sent numbers that are not finite, and had received none */
} lb_collective_fault;

typedef struct lb_collective_finding {
    lb_collective_fault kind;
    bool calls; /* the ranks called something else than the others */
    bool note;  /* may be meant: a loss scaler that looks for its scale */
    int64_t step;
    int32_t *ranks; /* that received, or sent, what is wrong; all members where the sum itself is */
    uint32_t n_ranks;
    int32_t rank; /* the first of them, and its op */
    uint32_t op;
    int32_t from, to;   /* ranks: the hop on which bits changed; -1: not known */
    int32_t brought;    /* the rank whose contribution is missing, old or there twice; -1: none, or not known */
    int bit;            /* that was turned over; -1: several, or not known */
    int64_t element;    /* the first that is wrong; -1: bytes were not kept */
    lb_ranks_hop *hops; /* all that may be, as lb_ranks_finding has them */
    uint32_t n_hops, possible;
    char *message;
} lb_collective_finding;

typedef struct lb_collective_results {
    lb_collective_finding *list; /* in order of steps */
    uint32_t n;
    uint32_t compared; /* collectives and messages whose results were compared */
} lb_collective_results;

/* Each collective once; of a group only the first finding of a step: later ones follow from it. */
lb_status lb_collective_results_check(lb_capture *capture, lb_collective_results *results, lb_err *err);
/* The same of one step. */
lb_status lb_collective_results_check_step(lb_capture *capture, int64_t step, lb_collective_results *results,
                                           lb_err *err);
/* The two halves of it: what members of one step received, which asks for bytes, and who sent what is not finite, over
 * all steps, for which statistics will do. */
lb_status lb_collective_results_check_received(lb_capture *capture, int64_t step, lb_collective_results *results,
                                               lb_err *err);
lb_status lb_collective_results_check_finite(lb_capture *capture, lb_collective_results *results, lb_err *err);
/* What the bytes of one collective say. */
typedef struct lb_collective_bits {
    bool known;     /* what each member should have received; else digests alone were compared */
    char order[48]; /* of addition, that gives all that was received; "": no sum, or none that has a name */
} lb_collective_bits;
/* Of one collective or message, `number` among those of its step: its finding, if there is one. */
lb_status lb_collective_results_check_one(lb_capture *capture, int64_t step, const lb_collective_meetings *all,
                                          uint32_t number, lb_collective_results *results, lb_collective_bits *bits,
                                          lb_err *err);
void lb_collective_results_release(lb_collective_results *results);

#endif
