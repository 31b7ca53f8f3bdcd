/* What writes the joined program of several ranks (joined_ranks.h): the ops that it has so far, and how one more is
 * written.
 *
 * An op written stands where an op of a rank stood (lb_join_stand_at): it has its module, phase, line and autograd
 * node. Values it gives are rows of the program that the parts lie in one behind the other. Whatever fails for want of
 * memory sets `failed`; then nothing more is written. */
#ifndef LB_BISECT_JOIN_H
#define LB_BISECT_JOIN_H

#include "pair/collective_match.h"

typedef struct lb_join {
    lb_program_view *view;
    lb_program *p; /* all parts, one behind the other */
    lb_collective_matches collective_matches;
    struct message *messages; /* joined_ranks.c */
    uint32_t n_messages;
    uint32_t *at;      /* per part: its next op */
    lb_op *ops;        /* in the new order */
    uint64_t *ranks;   /* per new op: parts that it stands for */
    uint64_t standing; /* of the op that is written; 0: its part alone */
    uint32_t called;   /* string: the collective that is written; LB_NONE */
    /* part_of: per new op; new_of: per op of the parts, the first new one at or behind it */
    uint32_t n_ops, *part_of, *new_of;
    uint32_t n_fresh;
    uint32_t part; /* whose op is written */
    lb_op like;    /* an op written has its place and line */
    bool failed;
} lb_join;

/* The op behind the last one of a part. */
uint32_t lb_join_end_of(const lb_join *join, uint32_t part);
/* What is written next stands where this op stood. Communication belongs to the phase around it, and that of gradients
 * to backward, as does their division. */
void lb_join_stand_at(lb_join *join, uint32_t op, uint32_t part);

void lb_join_append(lb_join *join, lb_op op);
lb_arg lb_join_value_arg(uint32_t value);
lb_arg lb_join_int_arg(int64_t i);
/* An op with one result. */
void lb_join_write_op(lb_join *join, const char *name, const lb_arg *args, uint32_t n, uint32_t result);
void lb_join_write_clone(lb_join *join, uint32_t from, uint32_t to);
/* What the op gave, as it was recorded: sources. */
void lb_join_write_recorded(lb_join *join, uint32_t op);

uint32_t lb_join_add_value(lb_join *join, const lb_value *value);
/* A value of its own storage, contiguous. */
uint32_t lb_join_fresh(lb_join *join, lb_dtype dtype, const lb_layout *shape);
int64_t lb_join_numel(const lb_join *join, uint32_t value);
/* Elements of a contiguous value from `first` on, in row-major order, seen in another shape. */
uint32_t lb_join_reshaped(lb_join *join, uint32_t value, const lb_layout *shape, int64_t first);
/* Contiguous: the value, or a copy of it. */
uint32_t lb_join_dense(lb_join *join, uint32_t value);

/* The ops written take the place of the parts' in the view's program; what the view says of ops goes by their tables
 * from now on. */
void lb_join_hand_over(lb_join *join);

#endif
