/* What an op is, wherever it stands in its program: its name, the shapes of what it reads and gives, and its arguments
 * other than tensors. Ops of two programs are matched by this. Dtypes do not count: the two sides may differ in them.
 */
#ifndef LB_BISECT_OP_KIND_H
#define LB_BISECT_OP_KIND_H

#include <lastbit/program.h>

/* An op that computes something: no view, no source, no profiler mark, no failed op. */
bool lb_op_computes(const lb_program *program, const lb_op *op);
/* Which of `n` names is the op's, whatever its overload: "aten::add" of "aten::add.Tensor"; -1: none. */
int lb_op_name_among(const lb_program *program, const lb_op *op, const char *const *names, int n);
/* Name and shapes as one number; the name alone. `role` separates ops that these do not separate; 0 where that is not
 * needed. */
uint64_t lb_op_kind(const lb_program *program, const lb_op *op, uint64_t role);
uint64_t lb_op_name_kind(const lb_program *program, const lb_op *op, uint64_t role);
/* Does the op give complex numbers? The sides may differ in dtype, but a complex result never matches a real one. */
bool lb_op_gives_complex(const lb_program *program, const lb_op *op);
/* Have both ops the same name, phase and layer? Ranks run one model but need not run one program, so that their ops
 * cannot be compared by number. */
bool lb_op_same_place(const lb_program *pa, uint32_t a, const lb_program *pb, uint32_t b);
/* Are an argument, or all arguments of an op, equal, tensors left aside? Devices and other texts may differ, as they
 * change no number. Where `b` is one of several `parts` that stand for `a` (0: it is not), integers may differ too, as
 * they are sizes, and so may the factor of a mean: 1 / 2 of two ranks is 1 / 4 of four. */
bool lb_op_kind_same_arg(const lb_program *pa, const lb_arg *a, const lb_program *pb, const lb_arg *b);
bool lb_op_same_args(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b, uint32_t parts);
/* Are two ops of a program calls of one op with the same numbers, tensors and lists left aside? */
bool lb_op_same_numbers(const lb_program *program, const lb_op *x, const lb_op *y);
/* Does the program have a backward? Where it has none, what it computes under no_grad is its forward. */
bool lb_op_any_backward(const lb_program *program);
/* And no collectives and no update either? */
bool lb_op_only_infers(const lb_program *program);
bool lb_op_is_of_forward(const lb_op *op, bool trains);
/* The single number that the op gives, where no later op of forward reads it: a loss, or a number that Python reads.
 * LB_NONE: it gives no such number, or the number is a constant, made from no input. */
uint32_t lb_op_last_number(const lb_program *program, uint32_t op, bool trains);
/* Is it a comparison, a rounding to whole numbers, or a choice, whose result jumps where its operands move by a bit? */
bool lb_op_kind_is_discontinuous(const lb_program *program, const lb_op *op);
/* Does a source give memory that outlives a step and that the update is the first to read: a state, or a weight in f32,
 * named or (of an optimizer that is written by hand) not? A number that Python makes for an op has one element. */
bool lb_op_kind_is_memory_of_update(const lb_program *program, const lb_op *source);
/* Does the op count from 0 without reading a tensor, as positions in a batch do? Where a batch is in parts, each part
 * counts its own. */
bool lb_op_counts_anew(const lb_program *program, const lb_op *op);

#endif
