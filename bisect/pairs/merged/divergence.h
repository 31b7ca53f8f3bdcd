/* Where two programs part: from what leaves a step back to the first results that differ although all they follow from
 * is the same.
 *
 *      A:  x ──▶ up ──▶ gelu ──▶ down ──▶ add ──▶ logits          up    same on both sides
 *      B:  x ──▶ up ──▶ silu ──▶ down ──▶ add ──▶ logits          down  apart, and between them only what one side alone runs:
 *                       ▲                                               that is where it was made
 *                       origin of `down`: gelu, silu               add   apart, because down is: led to
 *
 * The merged program: ops of both sides that are one quantity are one node, ops without a partner stand by themselves.
 * A node is `same` when exact arithmetic gives the same there (or both sides go on from the same recorded numbers),
 * `apart` when it does not. From every sink that is apart the search goes back through both sides' ops at once and
 * stops at nodes that are the same. A node that is apart and reaches no other one is a divergence. Nodes that are apart
 * and lead to no sink are none: two sides may take different ways to the same result, and names alone may have paired
 * what are no partners.
 *
 * Nor is a node one on whose way all that is computed of it in its phase is the same again (a softmax in blocks: its
 * scores are masked otherwise, its result is the same). Backward reads such inner values a second time; there the
 * search passes through them.
 *
 * Pure: no I/O, no programs; tests/bisect/pairs/merged/test_divergence.c has it as a table. */
#ifndef LB_BISECT_DIVERGENCE_H
#define LB_BISECT_DIVERGENCE_H

#include <lastbit/program.h>

typedef enum lb_node_state {
    LB_NODE_SAME,   /* nothing differs here in exact arithmetic */
    LB_NODE_APART,  /* it does */
    LB_NODE_UNKNOWN /* could not be run exactly: the search goes on through it */
} lb_node_state;

/* One quantity of both sides: ops of A (one) and of B (one, or the parts of a join), rows of lb_merged.ops. */
typedef struct lb_node {
    uint32_t first[2], n[2];
    uint8_t state;
    /* integers that are not the same although exact arithmetic agrees: a decision that the sides made otherwise, or
     * what follows from one. Both shadows go on from one side's; what depends on its shape cannot */
    bool flipped;
    bool told;     /* the same, and not because it is rounding alone on both sides (shadow_numbers.h) */
    bool integers; /* integers or bools of it are not the same on both sides */
    /* unknown, and it reads terms that ranks of one side hold in the place of their sum: a difference that comes
     * through it begins here */
    bool takes_terms;
} lb_node;

/* Can an op that stands on one side only be to blame? */
enum {
    LB_BLAME_NOT,   /* it computes nothing: copies, casts, views */
    LB_BLAME_OP,    /* it computes something */
    LB_BLAME_MOVE,  /* it puts parameters together, each number as it is: only where nothing else is to blame */
    LB_BLAME_SOURCE /* it brings weights or states that the other side holds otherwise, or not */
};

typedef struct lb_merged_side {
    uint32_t n_ops;
    const uint32_t *first_pred, *preds; /* preds[first_pred[i], first_pred[i + 1]): the ops that op i reads from */
    const uint32_t *node_of;            /* per op: its node; LB_NONE: it stands on this side only */
    const uint8_t *may_differ;          /* per op: LB_BLAME_…, when it has no node */
    const uint8_t *phase;               /* per op: lb_phase; NULL: all are of one */
} lb_merged_side;

/* What leaves the step. */
typedef struct lb_sink {
    uint32_t node;  /* LB_NONE: a value that `op` gives, which is apart */
    bool inputs;    /* not the node's own state but that of what it reads is asked: decisions, collectives */
    uint32_t op[2]; /* node LB_NONE: the op of A and of B that gives it; LB_NONE: none */
} lb_sink;

typedef struct lb_merged {
    lb_merged_side sides[2];
    const lb_node *nodes;
    uint32_t n_nodes;
    const uint32_t *ops;
    const lb_sink *sinks;
    uint32_t n_sinks;
} lb_merged;

typedef struct lb_divergence {
    uint32_t node, sink; /* the node; LB_NONE: the sink with that row is itself what differs first */
    bool flipped;        /* it follows from a decision that the sides made otherwise */
    bool integers;       /* the node's */
    bool sources[2];     /* a source that has no partner is among what it follows from, per side */
    /* rows of lb_divergences.lone, per side: ops that this side alone runs behind what is the same, in order */
    uint32_t first[2], n[2];
} lb_divergence;

typedef struct lb_divergences {
    lb_divergence *list;
    uint32_t n;
    uint8_t *leads; /* per node: apart, and it leads to a sink that is */
    uint32_t *lone, n_lone;
} lb_divergences;

/* LB_ERR_NOMEM is the only failure. */
lb_status lb_divergences_find(const lb_merged *merged, lb_divergences *origins, lb_err *err);
void lb_divergences_release(lb_divergences *origins);

#endif
