/* Writing a program anew, op by op: what the passes share. See passes.h for what stays and what is renumbered.
 *
 *      lb_rewrite_begin(rw, i)   for every op i of the input in order, then any of
 *        lb_rewrite_keep(rw, i)    take it over
 *        lb_rewrite_op(rw, …)      put another in its place
 *        (nothing)                 remove it
 *      lb_rewrite_finish(rw, …)
 */
#ifndef LB_REPLAY_REWRITE_H
#define LB_REPLAY_REWRITE_H

#include <lastbit/program.h>

typedef struct lb_rewrite {
    const lb_program *in;
    lb_program *out;    /* a copy of `in`, its ops being written anew; tables may be appended to */
    uint32_t *origin;   /* per new op */
    uint32_t *position; /* per op of `in`: how many new ops stand before its place */
    uint32_t room;
    bool failed; /* out of memory; finish reports it */
} lb_rewrite;

lb_status lb_rewrite_init(lb_rewrite *rewrite, const lb_program *in, lb_err *err);
void lb_rewrite_begin(lb_rewrite *rewrite, uint32_t op);
void lb_rewrite_keep(lb_rewrite *rewrite, uint32_t op);
void lb_rewrite_op(lb_rewrite *rewrite, const lb_op *op, uint32_t origin);
/* lb::zero or lb::state into `result`; scope, phase and thread as op `origin` of the input. */
void lb_rewrite_fill(lb_rewrite *rewrite, const char *name, uint32_t origin, uint32_t result);
/* lb::copy. */
void lb_rewrite_copy(lb_rewrite *rewrite, uint32_t origin, uint32_t from, uint32_t result);
/* An op that the input has not. */
typedef struct lb_new_op {
    const char *name;
    const lb_op *like; /* gives scope, phase, thread and node */
    uint32_t origin;   /* op of the input that it stands for, LB_NONE */
    const lb_arg *args;
    uint32_t n_args;
    const uint32_t *results;
    uint32_t n_results;
    const uint32_t *written;
    uint32_t n_written;
} lb_new_op;
/* Args, results and written values are appended to the tables. */
void lb_rewrite_new(lb_rewrite *rewrite, const lb_new_op *op);
/* The result is validated: a pass that breaks a rule is a bug of ours. The rewrite is released whatever the status. */
lb_status lb_rewrite_finish(lb_rewrite *rewrite, lb_program **out, uint32_t **origin, lb_err *err);
void lb_rewrite_release(lb_rewrite *rewrite);

#endif
