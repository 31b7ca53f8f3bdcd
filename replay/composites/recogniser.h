/* Asking where values come from: what the recognisers of composites are written in. Views need no rule: contents are
 * followed through storages (slice.h). */
#ifndef LB_REPLAY_RECOGNISER_H
#define LB_REPLAY_RECOGNISER_H

#include "program/slice.h"

#include <lastbit/composite.h>

typedef struct lb_recogniser {
    const lb_program *program;
    lb_slice_flow *flow;
    lb_composites *found;
    lb_err *err;
} lb_recogniser;

/* A value as one op reads it. */
typedef struct lb_reading {
    uint32_t op, value; /* op LB_NONE: nothing */
} lb_reading;

/* aten::BASE in any overload, in place or not. */
bool lb_recogniser_is(const lb_recogniser *recogniser, uint32_t op, const char *base);
bool lb_recogniser_is_any(const lb_recogniser *recogniser, uint32_t op, const char *const *bases); /* ended by NULL */
/* A forward op, or one that is run again in backward; with contents of its own. */
bool lb_recogniser_forward(const lb_recogniser *recogniser, uint32_t op);
bool lb_recogniser_same_call(const lb_recogniser *recogniser, uint32_t a, uint32_t b);

/* Arg `i` of `op`; LB_NONE when it is no value. */
lb_reading lb_recogniser_arg(const lb_recogniser *recogniser, uint32_t op, uint32_t i);
/* A number among the args. False: the arg is not a number. */
bool lb_recogniser_number(const lb_recogniser *recogniser, uint32_t op, uint32_t i, double *number);
/* The one op that gave the contents; LB_NONE when there is none, or several did. */
uint32_t lb_recogniser_maker(const lb_recogniser *recogniser, lb_reading reading);
/* The cast or copy that gave them, if it did so in the same places; LB_NONE. */
uint32_t lb_recogniser_cast(const lb_recogniser *recogniser, lb_reading reading);
/* What lies behind casts and copies. */
lb_reading lb_recogniser_peel(const lb_recogniser *recogniser, lb_reading reading);
/* Whether both show the same elements in the same places, casts apart. */
bool lb_recogniser_same(const lb_recogniser *recogniser, lb_reading a, lb_reading b);
/* Result 0, or what it writes first. */
uint32_t lb_recogniser_result(const lb_recogniser *recogniser, uint32_t op);
/* Forward ops that read what `op` made, views apart; at most `room` are stored, all are counted. */
uint32_t lb_recogniser_users(const lb_recogniser *recogniser, uint32_t op, uint32_t *users, uint32_t room);
/* Whether the dimensions in int list arg `i` are the last one alone. */
bool lb_recogniser_last_dim(const lb_recogniser *recogniser, uint32_t op, uint32_t i, int ndim);
const lb_value *lb_recogniser_value(const lb_recogniser *recogniser, uint32_t value);

/* Item `i` of list arg `arg`. */
lb_reading lb_recogniser_item(const lb_recogniser *recogniser, uint32_t op, uint32_t arg, uint32_t i);
/* Where an argument of an op stands by its name in the op table; false: it has none of that name. */
bool lb_recogniser_position(const lb_recogniser *recogniser, uint32_t op, const char *name, uint32_t *at);

/* Adds a composite with these ops (any order, duplicates allowed). `list` is copied. Inputs and outputs have to be set;
 * scope and call are those of the op that gives output 0. */
lb_status lb_recogniser_add(lb_recogniser *recogniser, const lb_composite *composite, const uint32_t *ops,
                            uint32_t n_ops);
/* The same with the ops between its inputs and `last`, which gives output 0: all that `last` depends on in its own call
 * of a module, up to contents of the inputs' storages. False, and nothing added, when something else is read on the way
 * than sources and what the module makes itself. */
lb_status lb_recogniser_add_between(lb_recogniser *recogniser, const lb_composite *composite, uint32_t last,
                                    bool *added);
/* All inputs and outputs absent. */
lb_composite lb_recogniser_composite(const lb_recogniser *recogniser, lb_composite_kind kind);

/* The recognisers. */
lb_status lb_recogniser_norms(lb_recogniser *recogniser);
lb_status lb_recogniser_attention(lb_recogniser *recogniser); /* and softmax */
lb_status lb_recogniser_finalise(lb_recogniser *recogniser);
lb_status lb_recogniser_allreduce_norms(lb_recogniser *recogniser); /* after the norms */
lb_status lb_recogniser_newton_schulz(lb_recogniser *recogniser);
lb_status lb_recogniser_layer_norms(lb_recogniser *recogniser);
lb_status lb_recogniser_gates(lb_recogniser *recogniser);
lb_status lb_recogniser_ropes(lb_recogniser *recogniser);
lb_status lb_recogniser_routers(lb_recogniser *recogniser);
lb_status lb_recogniser_losses(lb_recogniser *recogniser);
lb_status lb_recogniser_scans(lb_recogniser *recogniser);
lb_status lb_recogniser_recurrences(lb_recogniser *recogniser); /* scans step by step */
lb_status lb_recogniser_dispatches(lb_recogniser *recogniser);

#endif
