/* Describes the arguments of ops in the words of the code that called them. For a pair it names the arguments that
 * differ; for an op that only one side runs it says what the op does (weight decay, for example).
 *
 *     aten::mul_.Tensor(p, 0.9999) of AdamW    1 - lr * weight_decay: "weight_decay 0.1 / 0"
 *     aten::leaky_relu(x, 0.2)                 the schema's name: "negative_slope 0.2 / 0.02"
 *
 * An optimizer's scalars are made from the options of its parameter group, which was recorded. An option is named where
 * it differs, and where the scalar of each side is exactly what one formula gives from that side's options. Private to
 * diff*.c. */
#ifndef LB_BISECT_DIFF_ARGUMENTS_H
#define LB_BISECT_DIFF_ARGUMENTS_H

#include "diff/diff_report.h"

/* Writes the arguments by which two ops of the same name differ, tensors aside, to row->arguments. `programs`, `ops`:
 * of the first and the second side. */
void lb_arguments_describe(lb_diff_report *report, const lb_program *const programs[2], const uint32_t ops[2],
                           lb_diff_row *row);
/* Writes what ops that `program` alone runs are for: "weight decay: the parameter times 1 - lr * weight_decay"; ""
 * where it is not known. `partner`: the other side's op for each of the program's, LB_NONE where it has none. */
void lb_arguments_meaning(const lb_program *program, const uint32_t *ops, uint32_t n, const uint32_t *partner,
                          char *text, size_t size);
/* Ops of the two sides that are judged together. */
typedef struct lb_arguments_span {
    const uint32_t *ops[2];
    uint32_t n[2];
} lb_arguments_span;
/* For ops of an optimizer that the other side runs differently: writes the options by which the two parameter groups
 * differ that step the row's parameter to row->arguments. The scalars of the ops in `span` (NULL: not known) show which
 * options they are made of; where any of those differ, the other options are left out. */
void lb_arguments_options(lb_diff_report *report, const lb_program *const programs[2], const uint32_t ops[2],
                          const lb_arguments_span *span, lb_diff_row *row);

#endif
