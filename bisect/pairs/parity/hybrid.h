/* A hybrid: one model's program in which some modules are the other model's.
 *
 *      base    ── op ── op ──┐                       ┌── op ── op ── scores
 *                            copy of the inputs      copy of the outputs
 *      donor                 └── ops of the module ──┘
 *
 * Modules meet by path (less what wraps one of the models) and call, what goes in and comes out by position; copies
 * convert where the sides hold different types. Of the donor's ops run those of the module and what they need besides
 * its inputs (weights, tables of angles). Only what the scores follow from is kept. */
#ifndef LB_BISECT_HYBRID_H
#define LB_BISECT_HYBRID_H

#include "program/block.h"

#include <lastbit/archive.h>

/* One recorded step of one rank, with what analyses say of it. */
typedef struct lb_model {
    lb_capture *capture;
    const lb_program *program;
    lb_slice_flow *flow;
    lb_blocks blocks;
    uint32_t scores, end; /* value that is asked for; ops from here on do not count */
} lb_model;

/* `classes`: letters of the blocks that are the donor's. `*scores`: the numbers that the hybrid gives in the place of
 * base->scores, data malloc'ed, row-major in the recorded dtype. `*blocks`: how many calls of modules were exchanged.
 * LB_ERR_UNSUPPORTED says what keeps a module from being exchanged, or the hybrid from being run. */
lb_status lb_hybrid_run(const lb_model *base, const lb_model *donor, const char *classes, lb_tensor *scores,
                        uint32_t *blocks, lb_err *err);

#endif
