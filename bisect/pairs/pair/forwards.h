/* The forward passes of a step on both sides, and which pass of B is which pass of A: matched by the data that they are
 * given.
 *
 *      A    1 ── 2 ── 3                     micro-batches in order
 *      B    2 ── 1 ── evaluation ── 3       2 and 1 have the data of A's; the evaluation has no like
 *
 * A pass begins where an outermost module is called again, unless that module is part of one that was called before in
 * the pass. The ops of its modules belong to it, and so do ops outside every module that follow from this pass alone (a
 * loss, its gradient). What follows from several passes (a sum of gradients, their norm) belongs to none. Where passes
 * are not told apart, calls of a layer are matched by their numbers. */
#ifndef LB_BISECT_FORWARDS_H
#define LB_BISECT_FORWARDS_H

#include "pair/program_view.h"

typedef struct lb_forward {
    uint32_t first;                  /* op of its first module's first call */
    uint32_t first_given, end_given; /* rows of boundaries: what that call is given */
    uint32_t ops;                    /* computing ops of its forward */
    int64_t node;                    /* the first number that autograd gives in it or behind it */
    bool learns;                     /* a backward follows from it */
    uint32_t like;                   /* the pass of the other side that is given the same; LB_NONE */
} lb_forward;

typedef struct lb_side_forwards {
    lb_forward *list;
    uint32_t n;
    uint32_t *of_op; /* per op: its pass, LB_NONE: none */
    uint32_t *call;  /* per op: the number by which the call of its layer meets the other side's */
    uint32_t *given; /* per boundary: the same number of the call that it is of */
} lb_side_forwards;

typedef struct lb_forwards {
    lb_side_forwards sides[2]; /* A, B */
    bool used;                 /* they do not simply meet one after the other: calls meet by `call` */
} lb_forwards;

/* `used` stays false where a side has several parts, or where the data do not tell passes apart. LB_ERR_NOMEM is the
 * only failure; release in any case. */
lb_status lb_forwards_find(const lb_program_view *a, const lb_program_view *b, lb_forwards *passes, lb_err *err);
void lb_forwards_release(lb_forwards *passes);

/* Do some passes that meet stand at different places of their steps? */
bool lb_forwards_shift(const lb_forwards *passes);
/* The same where a step learns, but for evaluations that one side runs besides: these do not count. */
bool lb_forwards_cross(const lb_forwards *passes);
/* May these ops (LB_NONE: unknown) meet: are they in passes that do, or in none? */
bool lb_forwards_meet(const lb_forwards *passes, uint32_t op_a, uint32_t op_b);
/* By which number the op's pass meets the other side's; LB_NONE: it is in none, or numbers of calls say it. There are
 * at most LB_FORWARDS_CALLS calls of a module in a pass. */
enum { LB_FORWARDS_CALLS = 1 << 12 };
uint32_t lb_forwards_number(const lb_forwards *passes, int side, uint32_t op);
/* By which number the call of a boundary meets the other side's. `boundary`: one of the program's. */
uint32_t lb_forwards_call(const lb_forwards *passes, int side, const lb_program *program, const lb_boundary *boundary);
/* The same of a call of a module of which no boundary is at hand. */
uint32_t lb_forwards_call_of(const lb_forwards *passes, int side, const lb_program *program, uint32_t scope,
                             uint32_t call);
/* Is the op in a pass that has no like on the other side? `side`: 0 for A. */
bool lb_forwards_has_no_like(const lb_forwards *passes, int side, uint32_t op);

enum { LB_FORWARDS_SENTENCES = 8 };
/* What one side does besides, twice or in another order, in sentences; how many there are. `first`: which of A and B
 * the user named first. */
uint32_t lb_forwards_tell(const lb_forwards *passes, const lb_program *a, const lb_program *b, int first,
                          char sentences[LB_FORWARDS_SENTENCES][300]);
/* The sentence on one pass of a side (0: A) that has no like. */
void lb_forwards_tell_pass(const lb_forwards *passes, const lb_program *a, const lb_program *b, int first, int side,
                           uint32_t pass, char sentence[300]);

#endif
