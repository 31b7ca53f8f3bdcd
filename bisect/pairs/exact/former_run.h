/* What the last run of a side left, so that the next one runs no more than what changes.
 *
 * Most runs differ from the one before in a few values: one more that both sides share, an argument put right. An op
 * whose inputs hold the bits that they held before, which is called with the same arguments, and whose results go on
 * with the same numbers, gives what it gave. Its results are looked up where an op that runs reads them. Changes are
 * followed by storage: what lies beside a changed value in its storage counts as changed. */
#ifndef LB_BISECT_FORMER_RUN_H
#define LB_BISECT_FORMER_RUN_H

#include "program/prepared.h"

/* Numbers that a run goes on with in the place of a value's own. */
typedef struct lb_former_put {
    uint64_t digest; /* 0: there are none */
    bool whole;      /* none of the value's own numbers stays */
} lb_former_put;

/* What became of an op: nothing is known of what it gave (a run may end before it), it did not run, it told. */
typedef enum lb_former_end { LB_FORMER_UNKNOWN, LB_FORMER_LEFT_OUT, LB_FORMER_NOTED } lb_former_end;

typedef struct lb_former_run {
    bool is_there;
    struct lb_former_op {
        uint32_t name, first_arg, args;
    } *ops;              /* as they ran */
    lb_former_put *puts; /* per value */
    uint64_t *digests;   /* per value whose numbers are not kept; 0: not known */
    /* Of the run at hand. */
    bool asks;          /* it may leave out what does not change */
    lb_former_put *now; /* per value */
    uint8_t *changed;   /* per row of the prepared storages */
    uint8_t *ends;      /* per op: lb_former_end */
    uint32_t running;   /* the op that was let run, of whose results nothing is known yet; LB_NONE */
    bool running_same;  /* it gives what it gave */
    double **numbers;   /* per value, of the last run: borrowed */
    double *merged;     /* the last answer of lb_former_run_result, where it had to be made */
} lb_former_run;

struct lb_exact_side;

/* False when out of memory. `may_ask`: what does not change may be left out. `numbers`: of the last run. */
bool lb_former_run_begin(struct lb_exact_side *side, bool may_ask, double **numbers);
/* Does the value go on with the same numbers as in the last run, and was there one? */
bool lb_former_run_is_put_alike(const struct lb_exact_side *side, uint32_t value);
/* Is the op not to run? Asked in the order of ops. */
bool lb_former_run_leaves_out(struct lb_exact_side *side, uint32_t op);
/* What such an op left; false when out of memory. */
bool lb_former_run_result(struct lb_exact_side *side, uint32_t value, lb_tensor *tensor);
/* A result of an op that ran, before others take its place. `same`: it has the bits that it had. */
void lb_former_run_note(struct lb_exact_side *side, uint32_t op, uint32_t value, bool same);
/* All results of the op were noted. */
void lb_former_run_noted(struct lb_exact_side *side, uint32_t op);
/* What became of the value's op; sources that go on as they did were left out. */
lb_former_end lb_former_run_end_of(const struct lb_exact_side *side, uint32_t value);
/* `is_last`: the next run is compared with this one. */
bool lb_former_run_end(struct lb_exact_side *side, bool is_last);
void lb_former_run_release(lb_former_run *former);

#endif
