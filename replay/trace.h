/* Asking where values come from: what the recognisers of composites are written in. Views need no rule: contents are followed through
 * storages (slice.h). */
#ifndef LB_REPLAY_TRACE_H
#define LB_REPLAY_TRACE_H

#include "slice.h"

#include <lastbit/composite.h>

typedef struct lb_trace {
    const lb_program *program;
    lb_flow *flow;
    lb_composites *found;
    uint32_t room;
    lb_err *err;
} lb_trace;

/* A value as one op reads it. */
typedef struct lb_reading {
    uint32_t op, value; /* op LB_NONE: nothing */
} lb_reading;

/* aten::BASE in any overload, in place or not. */
bool lb_trace_is(const lb_trace *trace, uint32_t op, const char *base);
bool lb_trace_is_any(const lb_trace *trace, uint32_t op, const char *const *bases); /* ended by NULL */
/* A forward op, or one that is run again in backward; with contents of its own. */
bool lb_trace_forward(const lb_trace *trace, uint32_t op);
bool lb_trace_same_call(const lb_trace *trace, uint32_t a, uint32_t b);

/* Arg `i` of `op`; LB_NONE when it is no value. */
lb_reading lb_trace_arg(const lb_trace *trace, uint32_t op, uint32_t i);
/* A number among the args. False when it is none. */
bool lb_trace_number(const lb_trace *trace, uint32_t op, uint32_t i, double *number);
/* The one op that gave the contents; LB_NONE when there is none, or several did. */
uint32_t lb_trace_maker(const lb_trace *trace, lb_reading reading);
/* The cast or copy that gave them, if it did so in the same places; LB_NONE. */
uint32_t lb_trace_cast(const lb_trace *trace, lb_reading reading);
/* What lies behind casts and copies. */
lb_reading lb_trace_peel(const lb_trace *trace, lb_reading reading);
/* Whether both show the same elements in the same places, casts apart. */
bool lb_trace_same(const lb_trace *trace, lb_reading a, lb_reading b);
/* Result 0, or what it writes first. */
uint32_t lb_trace_result(const lb_trace *trace, uint32_t op);
/* Forward ops that read what `op` made, views apart; at most `room` are stored, all are counted. */
uint32_t lb_trace_users(const lb_trace *trace, uint32_t op, uint32_t *users, uint32_t room);
/* Whether the dimensions in int list arg `i` are the last one alone. */
bool lb_trace_last_dim(const lb_trace *trace, uint32_t op, uint32_t i, int ndim);
const lb_value *lb_trace_value(const lb_trace *trace, uint32_t value);

/* Item `i` of list arg `arg`. */
lb_reading lb_trace_item(const lb_trace *trace, uint32_t op, uint32_t arg, uint32_t i);
/* Where an argument of an op stands by its name in the op table; false: it has none of that name. */
bool lb_trace_position(const lb_trace *trace, uint32_t op, const char *name, uint32_t *at);

/* Adds a composite with these ops (any order, duplicates allowed). `list` is copied. Inputs and outputs have to be set; scope and call are those of the op
 * that gives output 0. */
lb_status lb_trace_add(lb_trace *trace, const lb_composite *composite, const uint32_t *ops, uint32_t n_ops);
/* All inputs and outputs absent. */
lb_composite lb_trace_composite(const lb_trace *trace, lb_composite_kind kind);

/* The recognisers. */
lb_status lb_trace_norms(lb_trace *trace);
lb_status lb_trace_attention(lb_trace *trace); /* and softmax */
lb_status lb_trace_finalise(lb_trace *trace);

#endif
