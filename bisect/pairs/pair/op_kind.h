/* What an op is, wherever it stands in its program: its name, the shapes it takes and gives, its arguments that are no
 * tensors. By these ops of two programs are held against each other. Dtypes are no part of it: they are what two sides
 * may differ in. */
#ifndef LB_BISECT_OP_KIND_H
#define LB_BISECT_OP_KIND_H

#include <lastbit/program.h>

/* An op that computes something: no view, no source, no profiler mark, no failed op. */
bool lb_op_computes(const lb_program *program, const lb_op *op);
/* Which of `n` names is the op's, whatever its overload: "aten::add" of "aten::add.Tensor"; -1: none. */
int lb_op_name_among(const lb_program *program, const lb_op *op, const char *const *names, int n);
/* Name and shapes as one number; the name alone. `role` tells apart what these do not, 0 where there is nothing to
 * tell. */
uint64_t lb_op_kind(const lb_program *program, const lb_op *op, uint64_t role);
uint64_t lb_op_name_kind(const lb_program *program, const lb_op *op, uint64_t role);
/* Dtypes may differ between the sides, but a complex number is no real one. */
bool lb_op_gives_complex(const lb_program *program, const lb_op *op);
/* Have both the same name, phase and layer? Ranks run one model but need not run one program, so that ops cannot be
 * compared by number. */
bool lb_op_same_place(const lb_program *pa, uint32_t a, const lb_program *pb, uint32_t b);
/* One argument, and all of an op, that are no tensors; devices and other texts may differ, they change no number. Where
 * `b` is one of several `parts` (0: it is not) that stand against `a`, so may integers, which are sizes, and factors of
 * a mean: 1 / 2 of two ranks are 1 / 4 of four. */
bool lb_op_kind_same_arg(const lb_program *pa, const lb_arg *a, const lb_program *pb, const lb_arg *b);
bool lb_op_same_args(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b, uint32_t parts);
/* Does the program go back from a loss? Where it does not, what it computes under no_grad is its forward. */
bool lb_op_any_backward(const lb_program *program);
bool lb_op_is_of_forward(const lb_op *op, bool trains);
/* The one number that the op gives and that no later op of forward goes on from: a loss, or one that Python reads.
 * LB_NONE: it gives none, or makes it of nothing (a constant). */
uint32_t lb_op_last_number(const lb_program *program, uint32_t op, bool trains);
/* Whole numbers made of nothing (positions in a batch): of a batch in parts each counts its own. */
bool lb_op_counts_anew(const lb_program *program, const lb_op *op);

#endif
