/* Gives a shadow numbers of the other side, so that both start from the same sources: B takes A's, or A takes B's where
 * B's type is narrower. Ops that neither side computes (random draws, decisions that rounding may have changed,
 * collectives with missing members, opaque ops) take A's recorded results. Shadows that agree after such an op prove
 * nothing about what precedes it. */
#ifndef LB_BISECT_CROSS_FEED_H
#define LB_BISECT_CROSS_FEED_H

#include "pair/align.h"

/* What a value takes: another value of the other side, or a slice of it. */
typedef struct lb_fed_value {
    uint32_t value; /* LB_NONE: nothing */
    bool own;       /* the value's own recording; `value` is LB_NONE then */
    bool cut;       /* what A has of tensors that the sides split differently (cut_tensors.h); `value`: LB_NONE */
    int32_t dim;    /* -1: the whole value */
    uint32_t place; /* of the part among the pieces */
    uint32_t n_pieces;
    const lb_reassembly_piece *pieces; /* of all parts along `dim` */
    /* where the numbers go in a source with gaps (shown_sources.h), whose storage keeps more than them; NULL: they are
     * all of it */
    const lb_value *window;
} lb_fed_value;

typedef struct lb_cross_feed {
    const lb_program_view *side, *other;
    const lb_alignment *alignment;
    bool parts;          /* this side is B */
    lb_fed_value *taken; /* per value of this side */
    double *converted;   /* what was taken last, as bytes of the right dtype */
    size_t converted_room;
    void *padded, *cut;
    lb_reassembly_piece **pieces; /* that fed values name */
    uint32_t n_pieces;
} lb_cross_feed;

lb_status lb_cross_feed_init(const lb_program_view *side, const lb_program_view *other, const lb_alignment *alignment,
                             bool parts, lb_cross_feed *cross_feed, lb_err *err);
void lb_cross_feed_release(lb_cross_feed *cross_feed);
/* The last op before `end` that gives or writes the storage (of a value), sources included, and in `*value` what it
 * left there; LB_NONE: none. */
uint32_t lb_cross_feed_giver_of_storage(const lb_program *program, int64_t storage, uint32_t end, uint32_t *value);
uint32_t lb_cross_feed_giver(const lb_program *program, uint32_t value, uint32_t end);
/* Is the op a cast or a copy, which in exact arithmetic gives just what it reads first? */
bool lb_cross_feed_op_hands_on(const lb_program *program, const lb_op *op);
/* Does B take A's recorded results of this aligned pair, whatever the two shadows hold before it? */
bool lb_cross_feed_rebases(const lb_alignment *alignment, const lb_program_view *a, uint32_t op_a,
                           const lb_program_view *b, uint32_t op_b);
/* Has the value something to take, so that lb_cross_feed_take may be true? `value`: of the whole side. */
bool lb_cross_feed_feeds(const lb_cross_feed *cross_feed, uint32_t value);
/* As lb_observer's `source` and `decided`: false where the value keeps its own numbers. The bytes stay until the next
 * call. */
bool lb_cross_feed_take(lb_cross_feed *cross_feed, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor);

#endif
