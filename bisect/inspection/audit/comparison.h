/* A checkpoint against another, tensor by tensor: first by names, as both sides spell them, then by contents
 * (arrangement.h). */
#ifndef LB_BISECT_AUDIT_COMPARISON_H
#define LB_BISECT_AUDIT_COMPARISON_H

#include "audit/value_match.h"
#include "audit/whole_tensor.h"

/* What a name has led to. */
typedef enum lb_comparison_state {
    LB_COMPARISON_OPEN,     /* nothing yet */
    LB_COMPARISON_STRAIGHT, /* the same tensor as it is */
    LB_COMPARISON_TURNED,   /* its transpose */
    LB_COMPARISON_ARRANGED, /* its numbers were found in another arrangement */
    LB_COMPARISON_STATE     /* no weight: of the optimizer, of random numbers */
} lb_comparison_state;

typedef struct lb_comparison_side {
    const lb_inventory *inventory;
    char **names;                /* by row of v->names: as the other side may call them */
    uint32_t *order;             /* rows by those names */
    lb_comparison_state *states; /* by row */
    uint32_t *partners;          /* by row: the other side's row of that name, LB_NONE */
} lb_comparison_side;

/* Two tensors whose numbers are compared, by rows of the sides' names. */
typedef struct lb_comparison_named_pair {
    uint32_t a, b;
    bool last; /* what is seen is told: the numbers are not looked for elsewhere */
} lb_comparison_named_pair;

/* What their numbers say. */
typedef struct lb_comparison_outcome {
    lb_value_match match;
    bool fits;      /* some way of looking at `a` has the shape of `b` */
    bool turned;    /* its last two dimensions are exchanged */
    bool joined;    /* one of them was put together of shards */
    lb_tensor a, b; /* dtypes and shapes, no numbers */
} lb_comparison_outcome;

typedef struct lb_comparison {
    lb_audit_gathering *gathering;
    lb_comparison_side a, b;
    lb_comparison_named_pair *named_pairs; /* by names, in the order in which they are told */
    uint32_t n_named_pairs;
    lb_comparison_outcome **kept; /* by row of a: what was seen of it and its partner, and not told; NULL */
} lb_comparison;

/* Two tensors that are one; `how`: what was done to make them one shape, or "". */
typedef struct lb_comparison_pair {
    const char *name, *other, *how;
    const lb_tensor *a, *b;
    const char *first; /* all tensors that `other` is made of, joined by " + "; NULL: `name` */
    bool folded;       /* one was multiplied into the other */
} lb_comparison_pair;

/* Adds a row of the report, and a finding where they differ. */
void lb_comparison_add(lb_audit_gathering *gathering, const lb_comparison_pair *pair, const lb_value_match *match,
                       const lb_audit_where *where);
/* Compares the tensors of each pair, which are units of work (lastbit/parts.h). */
lb_status lb_comparison_named_pairs(lb_comparison *comparison, lb_err *err);
/* Takes what was seen of a pair: in their order. */
lb_status lb_comparison_take(lb_comparison *comparison, uint64_t pair, const lb_comparison_outcome *outcome,
                             lb_err *err);
/* Tells what was seen of row `i` of A and its partner, which was told nowhere else. */
void lb_comparison_tell_last(lb_comparison *comparison, uint32_t i);
lb_status lb_comparison_audit(lb_audit_gathering *gathering, const lb_inventory *a, const lb_inventory *b, lb_err *err);

#endif
