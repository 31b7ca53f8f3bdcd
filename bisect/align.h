/* Aligning two programs: which op of B is op i of A.
 *
 * Ops meet by where they stand and what they are: (phase, layer path after the user's map rules, call of the layer), and
 * inside such a group by the longest common subsequence of op names and shapes, so that a run which computes something in
 * other ops (eager against fused attention, foreach against single-tensor AdamW) still lines up before and after that
 * place. Views, sources and host marks are not ops here: what they hold is found through the values.
 */
#ifndef LB_BISECT_ALIGN_H
#define LB_BISECT_ALIGN_H

#include "layer_names.h"

#include <lastbit/program.h>

typedef struct lb_alignment {
    uint32_t *b_of_a;        /* per op of A: op of B, or LB_NONE */
    uint32_t *a_of_b;        /* the reverse */
    uint32_t pairs;          /* aligned computing ops */
    uint32_t only_a, only_b; /* computing ops without a partner */
    uint8_t
        *irregular; /* per op of A: its group holds ops without a partner, so that a pair in it may be none */
    uint32_t *
        source_b_of_a; /* per op of A that is a source: the source of B with the same name, or the same place among
                                unnamed sources of that kind, dtype and shape; LB_NONE */
} lb_alignment;

lb_status lb_alignment_make(const lb_program *a, const lb_program *b, const lb_map_rules *rules,
                            lb_alignment *out, lb_err *err);
void lb_alignment_release(lb_alignment *alignment);

/* An op that computes something: no view, no source, no profiler mark, no failed op. */
bool lb_op_computes(const lb_program *program, const lb_op *op);
/* Arguments that are no tensors; devices and other texts may differ, they change no number. */
bool lb_op_same_args(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b);

#endif
