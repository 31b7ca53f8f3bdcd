/* Operands: from a program's tagged args to what a kernel takes, and the windows its results go to.
 *
 * Borders of precision regions lie here. An op outside any region reads a wide window through a copy rounded to the
 * recorded dtype, and writes part of a wide storage through one; an op inside reads windows as they are held and makes
 * the storages it writes hold the region's dtype.
 *
 * Overlaps lie here too: an input that shares memory with a result is copied first, unless it is the same window and
 * the row may work in place.
 */
#ifndef LB_REPLAY_OPERANDS_H
#define LB_REPLAY_OPERANDS_H

#include "machine/machine.h"

/* What a kernel of the current op fills, in the order of its results. */
typedef struct lb_operands_outputs {
    uint32_t *values;   /* LB_NONE: it is not wanted */
    lb_tensor *tensors; /* data NULL there */
    uint32_t n;
    bool ready;  /* fresh memory of zeros, which is what the op gives: no kernel is to run */
    bool detour; /* some tensor is a temporary that lb_operands_outputs_settle writes back */
} lb_operands_outputs;

/* Which values the kernel of `op` fills: results, written args, or both, by form. */
lb_status lb_operands_outputs_list(lb_machine *machine, const lb_op *op, lb_op_form form, lb_operands_outputs *outputs);
/* Makes buffers, in the region's dtype. Before inputs are taken: it may convert storages that they lie in. */
lb_status lb_operands_outputs_open(lb_machine *machine, const lb_op *op, lb_operands_outputs *outputs);
/* After the kernel: temporaries go to their windows, rounded as the choice says; tensors become the windows. Stochastic
 * rounding counts its draws from `first_draw`. */
void lb_operands_outputs_settle(lb_machine *machine, lb_operands_outputs *outputs, uint64_t first_draw);

/* The dtype in which an op under `choice` holds a value recorded as `dtype`; of complex numbers, which regions can only
 * make f64, that of their parts. */
lb_dtype lb_operands_choice_dtype(const lb_choice *choice, lb_dtype dtype);

/* By which row and form an op is run, and into what. */
typedef struct lb_operand_plan {
    const lb_op_row *row;
    lb_op_form form;
    const lb_operands_outputs *outputs;
    bool keep_inputs; /* every input that shares memory with a result is copied, so that inputs survive the op */
} lb_operand_plan;

/* All args of an op as operands (`out` args left out). */
lb_status lb_operands_build(lb_machine *machine, const lb_op *op, const lb_operand_plan *plan, lb_operand **args,
                            uint32_t *n_args);
/* One input by itself, by the same rules. */
lb_status lb_operands_tensor(lb_machine *machine, uint32_t value, const lb_operands_outputs *outputs,
                             lb_tensor *tensor);
/* Number of args of an op in `out` form without its trailing out args. */
uint32_t lb_operands_without_out(const lb_program *program, const lb_op *op);
/* How many kernel calls a foreach op is, from its first tensor list; 1 for other forms. */
uint32_t lb_operands_units(const lb_operand *args, uint32_t n_args, lb_op_form form);
/* The args of one of them: lists split. `unit` has room for n_args operands. */
void lb_operands_split(const lb_operand *args, uint32_t n_args, uint32_t units, uint32_t index, lb_operand *unit);

#endif
